"""Reads recorded sessions into our own log: sealed entries with the grains a hall would have stored.

The format is one JSON object a line: ``{"type": "message", "timestamp": "2026-01-31T10:00:00Z", "message":
{"role": "user" | "assistant" | "toolResult" | "bashExecution", …}}``; other lines are skipped. Any file of it
will do. Without times no cache ever expires, and without the billed usage of the first call the head (system
prompt and tools) is taken to be empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from turnlog.context import Projection, ProjectionContext
from turnlog.contract import (
    READ_ARTIFACT,
    Entry,
    EntryPayload,
    Message,
    MessagePart,
    ModelInput,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutput,
    ToolCall,
    ToolCallPart,
    ToolOutcome,
    ToolResults,
    encode,
    seal,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)


class Call(NamedTuple):
    """A model call: the entries before it are what a strategy may show; ``output`` is what came of it.

    ``idle`` is how many seconds passed since the answer before it, ``starts_turn`` whether the user spoke
    in between.
    """

    position: int
    output: ModelOutput
    output_tokens: int
    billed_input: int
    idle: float = 0.0
    starts_turn: bool = False


class Recording(NamedTuple):
    """``head`` is what the system prompt and the tools took, in tokens."""

    name: str
    entries: list[Entry]
    calls: list[Call]
    head: int = 0

    def with_pauses(self, seconds: float, every: int) -> Recording:
        """The same session, which its user left alone for so long before every so many turns."""
        calls: list[Call] = []
        turns = 0
        for call in self.calls:
            turns += call.starts_turn
            pauses = call.starts_turn and turns % every == 0
            calls.append(call._replace(idle=call.idle + seconds) if pauses else call)
        return self._replace(calls=calls)


class LogWriter:
    """Appends payloads as the hall does: the levels of detail are made from the log so far."""

    def __init__(self, context: ProjectionContext | None = None) -> None:
        self.entries: list[Entry] = []
        self.context = context or ProjectionContext()

    def add(self, payload: EntryPayload) -> Entry:
        seq = len(self.entries) + 1
        last = self.entries[-1] if self.entries else None
        entry = seal(
            payload,
            id=f"{seq:032x}",
            previous_id=last.id if last else None,
            previous_hash=last.hash if last else "",
            session_id="bench",
            seq=seq,
            timestamp="2026-01-01T00:00:00.000Z",
            run_id="run",
        ).entry
        self.entries.append(entry)
        self.context.step(entry)
        return entry

    def add_input(self, text: str) -> Entry:
        return self.add_message(user_message(text, run_id="run"))

    def add_message(self, message: Message) -> Entry:
        return self.add(ModelInput(message=message, sections=self.context.input_sections(message)))

    def add_result(self, call_id: str, name: str, text: str, *, is_error: bool) -> Entry:
        outcome = ToolOutcome(
            tool_call_id=call_id,
            tool_name=name,
            status="failed" if is_error else "success",
            sections=self.context.result_sections(text),
        )
        part = tool_result_part(call_id, text, is_error=is_error)
        message = Message(run_id="run", role="tool", parts=[part], timestamp="")
        return self.add(ToolResults(message=message, outcomes=[outcome]))

    def add_previews(self, results: ToolResults) -> None:
        """The results as an Agent writes them: what is too long is kept apart, and sent as a preview."""
        for part, outcome in zip(results.message.tool_results, results.outcomes, strict=True):
            text = part.payload.content if isinstance(part.payload.content, str) else ""
            shown = self.context.preview(text, f"{READ_ARTIFACT} sha256-{sha256(text.encode()).hexdigest()}")
            self.add_result(
                outcome.tool_call_id, outcome.tool_name, shown or text, is_error=part.payload.is_error
            )


def read_session(path: Path) -> Recording:
    writer = LogWriter()
    calls: list[Call] = []
    answered = asked = None
    for at, record in _messages(path):
        match record["role"]:
            case "user":
                writer.add_input(_text(record["content"]) or "(empty)")
            case "bashExecution":
                writer.add_input(f"$ {record['command']}\n{record['output']}")
            case "assistant":
                output = _output(record)
                if output is None:
                    continue
                usage = record.get("usage") or {}
                billed = sum(usage.get(key, 0) for key in ("input", "cacheRead", "cacheWrite"))
                calls.append(
                    Call(
                        position=len(writer.entries),
                        output=output,
                        output_tokens=usage.get("output", 0),
                        billed_input=billed,
                        idle=max(asked - answered, 0.0) if asked and answered else 0.0,
                        starts_turn=bool(writer.entries) and isinstance(writer.entries[-1], ModelInputEntry),
                    )
                )
                writer.add(output)
                answered = at
            case "toolResult":
                text = _text(record["content"])
                writer.add_result(
                    record["toolCallId"], record["toolName"], text, is_error=bool(record.get("isError"))
                )
            case _:
                continue
        asked = at
    return Recording(path.stem, writer.entries, calls, _head_tokens(writer.entries, calls))


def _head_tokens(entries: list[Entry], calls: list[Call]) -> int:
    """What the first call was billed for beyond the messages that it was sent."""
    if not calls or not calls[0].billed_input:
        return 0
    sent = Projection.of(entries[: calls[0].position]).tokens()
    return max(calls[0].billed_input - sent, 0)


def _messages(path: Path) -> Iterator[tuple[float | None, dict[str, Any]]]:
    """Each message, with when it was written, in seconds."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if record.get("type") == "message":
                    at = record.get("timestamp")
                    yield datetime.fromisoformat(at).timestamp() if at else None, record["message"]
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise SystemExit(
                    f"{path}, line {number}: not a record ({error}); a line is one JSON object, see "
                    "benchmarks/context/sessions.py"
                ) from None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def _output(record: dict[str, Any]) -> ModelOutput | None:
    """The answer, or None for a call that was cut short: those are attempts, and never shown."""
    if record.get("stopReason") in {"aborted", "error"}:
        return None
    parts: list[MessagePart] = []
    for part in record["content"]:
        match part["type"]:
            case "text":
                parts.append(text_part(part["text"]))
            case "thinking":
                parts.append(thinking_part(part.get("thinking", "")))
            case "toolCall":
                arguments = part["arguments"]
                parts.append(
                    ToolCallPart(
                        payload=ToolCall(
                            tool_call_id=part["id"],
                            tool_name=part["name"],
                            arguments=arguments,
                            raw_args_text=encode(arguments).decode(),
                        )
                    )
                )
            case _:
                continue
    if not parts:
        return None
    return ModelOutput(
        message=Message(run_id="run", role="assistant", parts=parts, timestamp=""),
        invocation=ModelInvocationDescriptor(
            provider_id=record.get("provider", ""),
            specification=record.get("api", ""),
            model=record.get("model", ""),
        ),
        model_call_index=1,
        attempt=1,
        finish_reason=record.get("stopReason") or "stop",
    )


def call_of(call_id: str) -> ModelOutput:
    """An answer that calls one tool and says nothing."""
    call = ToolCall(tool_call_id=call_id, tool_name="read", arguments={}, raw_args_text="{}")
    parts: list[MessagePart] = [ToolCallPart(payload=call)]
    return ModelOutput(
        message=Message(run_id="run", role="assistant", parts=parts, timestamp=""),
        invocation=ModelInvocationDescriptor(provider_id="", specification="", model=""),
        model_call_index=1,
        attempt=1,
        finish_reason="tool_calls",
    )
