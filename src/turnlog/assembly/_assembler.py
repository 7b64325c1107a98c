"""The rules of D-6: runs of text join, arguments join per call and parse at the end, usage's last wins."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from turnlog.contract import (
    AgentError,
    DoneDelta,
    ErrorDelta,
    JsonObject,
    Message,
    MessageDelta,
    MessagePart,
    StartDelta,
    StreamError,
    StreamStart,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallStartDelta,
    UsageDelta,
)

from ._parts import PartBuilder
from ._snapshot import MessageSnapshot

_PARSE_ERROR_LENGTH = 160
_PARSE_ERRORS_KEPT = 6
_PARSE_ERRORS_ROOM = 1_400  # bytes, of the 2,048 that a meta may take


class Assembled(NamedTuple):
    """A finished answer. ``parse_errors`` names the calls whose arguments do not parse, and why."""

    message: Message
    finish_reason: str
    usage: TokenUsage | None
    parse_errors: dict[str, str]


class MessageAssembler:
    """Makes one assistant message of one stream. ``consume`` is constant work per delta."""

    __slots__ = ("_builders", "_calls", "_open", "_run_id", "done", "error", "shown", "start", "usage")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._builders: list[PartBuilder] = []
        self._calls: dict[str, tuple[int, PartBuilder]] = {}
        self._open: PartBuilder | None = None
        self.start: StreamStart | None = None
        self.done: str | None = None
        self.error: StreamError | None = None
        self.usage: TokenUsage | None = None
        self.shown = 0
        """How many deltas carried content a watcher could see."""

    def consume(self, delta: MessageDelta) -> None:
        if type(delta) is TextDelta:
            self._say("text", delta.payload.text_delta, delta.payload.provider_data)
            return
        match delta:
            case TextDelta():
                self._say("text", delta.payload.text_delta, delta.payload.provider_data)
            case ThinkingDelta():
                self._say("thinking", delta.payload.text_delta, delta.payload.provider_data)
            case ToolCallArgsDelta():
                self.shown += 1
                self._call(delta.payload.tool_call_id).fragments.append(delta.payload.args_text_delta)
            case ToolCallStartDelta():
                self._begin_call(delta)
            case ToolCallEndDelta():
                builder = self._call(delta.payload.tool_call_id)
                builder.provider_data = _joined(builder.provider_data, delta.payload.provider_data)
                builder.closed = True
            case UsageDelta():
                self.usage = delta.payload
            case StartDelta():
                self.start = delta.payload
            case DoneDelta():
                self.done = delta.payload.finish_reason
            case ErrorDelta():
                self.error = delta.payload

    def snapshot(self) -> MessageSnapshot:
        """The message so far, at a cost that does not depend on how much has been received."""
        lengths = {index: len(b.fragments) for index, b in self._calls.values() if not b.closed}
        if self._open is not None:
            lengths[len(self._builders) - 1] = len(self._open.fragments)
        return MessageSnapshot(self._run_id, self._builders, len(self._builders), lengths)

    def finish(self, timestamp: str = "") -> Assembled:
        """The finished message. Only a stream that said ``done`` has one."""
        if self.done is None:
            why = "it ended in an error" if self.error else "it has not ended"
            raise AgentError("ModelProtocolError", f"the stream has no finished message: {why}")
        parts: list[MessagePart] = []
        errors: dict[str, str] = {}
        for builder in self._builders:
            part, error = builder.build()
            parts.append(part)
            if error:
                errors[builder.call_id] = error[:_PARSE_ERROR_LENGTH]
        message = Message(
            run_id=self._run_id,
            role="assistant",
            parts=parts,
            timestamp=timestamp,
            meta=self._meta(errors) or None,
        )
        return Assembled(message, self.done, self.usage, errors)

    def _meta(self, errors: dict[str, str]) -> JsonObject:
        meta: JsonObject = {}
        if self.usage is not None:
            meta["usage"] = msgspec.to_builtins(self.usage)
        if errors:
            meta["parse_errors"] = _kept(errors)
        return meta

    def _say(self, kind: str, text: str, provider_data: JsonObject | None) -> None:
        part = self._open
        if part is None or part.kind != kind:
            if not text and provider_data is None:
                return
            part = self._begin("text" if kind == "text" else "thinking")
        if text:
            part.fragments.append(text)
            self.shown += 1
        if provider_data is not None:
            part.provider_data = _joined(part.provider_data, provider_data)
            self._close()

    def _begin(self, kind: str) -> PartBuilder:
        self._close()
        part = PartBuilder("text" if kind == "text" else "thinking")
        self._builders.append(part)
        self._open = part
        return part

    def _close(self) -> None:
        if self._open is not None:
            self._open.closed = True
            self._open = None

    def _begin_call(self, delta: ToolCallStartDelta) -> None:
        self._close()
        self.shown += 1
        start = delta.payload
        builder = PartBuilder("tool_call", call_id=start.tool_call_id, name=start.tool_name)
        builder.provider_data = start.provider_data
        self._calls[start.tool_call_id] = (len(self._builders), builder)
        self._builders.append(builder)

    def _call(self, call_id: str) -> PartBuilder:
        found = self._calls.get(call_id)
        if found is None:
            raise AgentError("ModelProtocolError", f"a delta for call {call_id}, which never started")
        return found[1]


def _kept(errors: dict[str, str]) -> dict[str, str]:
    """The first of them that a message's meta has room for; a call without one is told the plain fact."""
    kept: dict[str, str] = {}
    room = _PARSE_ERRORS_ROOM
    for call_id, error in list(errors.items())[:_PARSE_ERRORS_KEPT]:
        room -= len(msgspec.json.encode({call_id: error}))
        if room < 0:
            break
        kept[call_id] = error
    return kept


def _joined(first: JsonObject | None, second: JsonObject | None) -> JsonObject | None:
    if first is None or second is None:
        return first or second
    return {**first, **second}
