"""Builds logs by hand: sealed entries with counted ids and a counted clock."""

from __future__ import annotations

from typing import Any

from turnlog.contract import (
    Custom,
    Entry,
    EntryPayload,
    LevelOfDetailSections,
    LoopLimits,
    Message,
    MessagePart,
    ModelCallStarted,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    Redaction,
    RetryPolicy,
    RunStarted,
    SystemPrompt,
    ToolCall,
    ToolCallPart,
    ToolOutcome,
    ToolPolicy,
    ToolResults,
    ToolsChange,
    ToolSpec,
    encode,
    seal,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.history import redaction_of, visible_entries

CLAUDE = ModelInvocationDescriptor(
    provider_id="anthropic", specification="anthropic", model="claude-opus-4-5"
)
GPT = ModelInvocationDescriptor(provider_id="openai", specification="openai-responses", model="gpt-5.2")


def spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description=f"does {name}", parameter_schema={"type": "object"})


def call(call_id: str, name: str = "read", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=call_id,
            tool_name=name,
            arguments=arguments,
            raw_args_text=encode(arguments).decode(),
        )
    )


class Log:
    """A growing list of entries."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._index = 0

    def add(self, payload: EntryPayload, *, run_id: str | None = "run_1") -> Entry:
        seq = len(self.entries) + 1
        last = self.entries[-1] if self.entries else None
        sealed = seal(
            payload,
            id=f"{seq:032x}",
            previous_id=last.id if last else None,
            previous_hash=last.hash if last else "",
            session_id="s_1",
            seq=seq,
            timestamp=f"2026-01-01T{seq // 3600 % 24:02d}:{seq // 60 % 60:02d}:{seq % 60:02d}.000Z",
            run_id=run_id,
        )
        self.entries.append(sealed.entry)
        return sealed.entry

    def run(self, **fields: Any) -> Entry:
        return self.add(
            RunStarted(limits=LoopLimits(), tool_policy=ToolPolicy(), retry=RetryPolicy(), **fields)
        )

    def prompt(self, text: str) -> Entry:
        return self.add(SystemPrompt(text=text))

    def tools(self, *names: str) -> Entry:
        return self.add(ToolsChange(tools=[spec(name) for name in names]))

    def user(self, text: str, sections: LevelOfDetailSections | None = None) -> Entry:
        return self.add(ModelInput(message=user_message(text, run_id="run_1"), sections=sections))

    def started(self, context_hash: str, target: ModelInvocationDescriptor = CLAUDE, **fields: Any) -> Entry:
        self._index += 1
        return self.add(
            ModelCallStarted(
                model_call_index=self._index,
                attempt=1,
                context_hash=context_hash,
                target=target,
                message_count=0,
                **fields,
            )
        )

    def output(
        self,
        *parts: MessagePart | str,
        thinking: str | None = None,
        wire_hash: str | None = None,
        by: ModelInvocationDescriptor = CLAUDE,
        meta: dict[str, Any] | None = None,
    ) -> Entry:
        made: list[MessagePart] = [text_part(part) if isinstance(part, str) else part for part in parts]
        if thinking is not None:
            made.insert(0, thinking_part(thinking, {"origin": by.specification, "signature": "s"}))
        message = Message(run_id="run_1", role="assistant", parts=made, timestamp="", meta=meta)
        return self.add(
            ModelOutput(
                message=message,
                invocation=by,
                model_call_index=max(1, self._index),
                attempt=1,
                finish_reason="tool_calls" if message.tool_calls else "stop",
                wire_hash=wire_hash,
            )
        )

    def results(self, **contents: Any) -> Entry:
        """``call_id=content`` or ``call_id=(content, sections)``."""
        parts: list[MessagePart] = []
        outcomes: list[ToolOutcome] = []
        for call_id, value in contents.items():
            content, sections = value if isinstance(value, tuple) else (value, None)
            parts.append(tool_result_part(call_id, content))
            outcomes.append(
                ToolOutcome(tool_call_id=call_id, tool_name="read", status="success", sections=sections)
            )
        message = Message(run_id="run_1", role="tool", parts=parts, timestamp="")
        return self.add(ToolResults(message=message, outcomes=outcomes))

    def redact(self, *entries: Entry) -> Entry:
        hidden, trimmed = redaction_of(self.entries, [entry.id for entry in entries])
        return self.add(Redaction(entry_ids=hidden, trimmed=trimmed))

    def visible(self) -> list[Entry]:
        """What a subscriber is told to fold after a redaction."""
        return visible_entries(self.entries)

    def custom(self) -> Entry:
        return self.add(Custom(name="note", data={"secret": "never shown"}))
