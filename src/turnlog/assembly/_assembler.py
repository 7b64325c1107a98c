"""The rules of D-6: runs of text join, arguments join per call and parse at the end, usage's last wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

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
    ToolCall,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallPart,
    ToolCallStartDelta,
    UsageDelta,
    parse_arguments,
    text_part,
    thinking_part,
)


class PartBuilder:
    __slots__ = ("call_id", "closed", "fragments", "kind", "name", "provider_data")

    def __init__(
        self, kind: Literal["text", "thinking", "tool_call"], *, call_id: str = "", name: str = ""
    ) -> None:
        self.kind: Literal["text", "thinking", "tool_call"] = kind
        self.call_id = call_id
        self.name = name
        self.fragments: list[str] = []
        self.provider_data: JsonObject | None = None
        self.closed = False

    def build(self, length: int | None = None) -> tuple[MessagePart, str | None]:
        """The part made of the first ``length`` fragments, and what its arguments' parse complained of."""
        text = "".join(self.fragments if length is None else self.fragments[:length])
        match self.kind:
            case "text":
                return text_part(text, self.provider_data), None
            case "thinking":
                return thinking_part(text, self.provider_data), None
            case "tool_call":
                parsed = parse_arguments(text)
                call = ToolCall(
                    tool_call_id=self.call_id,
                    tool_name=self.name,
                    arguments=parsed.arguments,
                    raw_args_text=text,
                    provider_data=self.provider_data,
                )
                return ToolCallPart(payload=call), parsed.error


class MessageSnapshot:
    """The message as it was at one delta. Taking it is cheap; the text is joined when it is asked for.

    Calls whose end has not been seen are left out: nothing may take them for complete.
    """

    __slots__ = ("_builders", "_count", "_lengths", "_run_id")

    def __init__(
        self, run_id: str, builders: Sequence[PartBuilder], count: int, lengths: dict[int, int]
    ) -> None:
        self._run_id = run_id
        self._builders = builders
        self._count = count
        self._lengths = lengths

    @property
    def parts(self) -> list[MessagePart]:
        found: list[MessagePart] = []
        for index in range(self._count):
            builder = self._builders[index]
            length = self._lengths.get(index)
            if builder.kind == "tool_call" and length is not None:
                continue
            found.append(builder.build(length)[0])
        return found

    @property
    def text(self) -> str:
        return "".join(
            "".join(self._builders[index].fragments[: self._lengths.get(index)])
            for index in range(self._count)
            if self._builders[index].kind == "text"
        )

    def message(self, timestamp: str = "") -> Message:
        return Message(run_id=self._run_id, role="assistant", parts=self.parts, timestamp=timestamp)


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
        if type(delta) is TextDelta:  # nearly all of them: more of the text that is being said
            part, text = self._open, delta.payload.text_delta
            if part is not None and part.kind == "text" and text and delta.payload.provider_data is None:
                part.fragments.append(text)
                self.shown += 1
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


class DeltaFilter:
    """Drops what a reconnect or a replay delivers again, by (run, model call, attempt, seq)."""

    __slots__ = ("_last", "_stream")

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, int], int] = {}
        self._stream: tuple[str, int, int] | None = None

    def accept(
        self, delta: MessageDelta, *, model_call_index: int | None = None, attempt: int | None = None
    ) -> bool:
        """True the first time a delta is seen. Its place comes from ``start`` unless it is given."""
        if model_call_index is not None:
            self._stream = (delta.run_id, model_call_index, attempt or 1)
        elif isinstance(delta, StartDelta):
            self._stream = (delta.run_id, delta.payload.model_call_index or 1, delta.payload.attempt or 1)
        stream = self._stream or (delta.run_id, 1, 1)
        if delta.seq <= self._last.get(stream, 0):
            return False
        self._last[stream] = delta.seq
        return True
