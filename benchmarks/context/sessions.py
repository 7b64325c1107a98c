"""Reads recorded sessions into our own log: sealed entries with the grains a hall would have stored.

The format is one JSON object a line: ``{"type": "message", "message": {"role": "user" | "assistant" |
"toolResult" | "bashExecution", …}}``; other lines are skipped. Any file of it will do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from turnlog.context import Projection, input_sections, result_sections
from turnlog.contract import (
    Entry,
    EntryPayload,
    Message,
    MessagePart,
    ModelInput,
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
    """A model call: the entries before it are what a strategy may show; ``output`` is what came of it."""

    position: int
    output: ModelOutput
    output_tokens: int
    billed_input: int


class Recording(NamedTuple):
    name: str
    entries: list[Entry]
    calls: list[Call]


class LogWriter:
    """Appends payloads as the hall does: grains are made from the log so far."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.projection = Projection()

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
        self.projection.step(entry)
        return entry

    def add_input(self, text: str) -> Entry:
        message = user_message(text, run_id="run")
        return self.add(ModelInput(message=message, sections=input_sections(self.projection, message)))

    def add_result(self, call_id: str, name: str, text: str, *, is_error: bool) -> None:
        outcome = ToolOutcome(
            tool_call_id=call_id,
            tool_name=name,
            status="failed" if is_error else "success",
            sections=result_sections(self.projection, text),
        )
        part = tool_result_part(call_id, text, is_error=is_error)
        message = Message(run_id="run", role="tool", parts=[part], timestamp="")
        self.add(ToolResults(message=message, outcomes=[outcome]))


def read_session(path: Path) -> Recording:
    writer = LogWriter()
    calls: list[Call] = []
    for record in _messages(path):
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
                calls.append(Call(len(writer.entries), output, usage.get("output", 0), billed))
                writer.add(output)
            case "toolResult":
                text = _text(record["content"])
                writer.add_result(
                    record["toolCallId"], record["toolName"], text, is_error=bool(record.get("isError"))
                )
            case _:
                continue
    return Recording(path.stem, writer.entries, calls)


def _messages(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{path}, line {number}: not JSON ({error}); a line is one record") from None
            if record.get("type") == "message":
                yield record["message"]


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
