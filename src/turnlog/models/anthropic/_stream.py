"""Events of the Messages API in, chunks out. Knows nothing of HTTP, and skips fields it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from turnlog.contract import (
    AgentError,
    Chunk,
    JsonObject,
    StreamStart,
    TextChunk,
    TokenUsage,
    encode,
    parse_arguments,
)

from .._answer import (
    UNREADABLE,
    AnswerWriter,
    Block,
    BlockKind,
    EventReader,
    LooseDecoder,
    ServerEvent,
    as_count,
    as_object,
    as_text,
)
from .._faults import map_stream_fault
from ..wire import ToolNames


class BlockDelta(msgspec.Struct):
    """What ``content_block_delta`` and ``message_delta`` carry, all kinds in one."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: Any = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None


class Answer(msgspec.Struct):
    """The message as ``message_start`` announces it; its content is nearly always still empty."""

    type: str | None = None
    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Any = None
    container: Any = None
    usage: dict[str, Any] | None = None


class StreamEvent(msgspec.Struct):
    type: str = ""
    index: int = 0
    delta: BlockDelta | None = None
    content_block: dict[str, Any] | None = None
    message: Answer | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


class _RawDelta(msgspec.Struct):
    delta: dict[str, Any] | None = None


_SERVER = "the Messages API"
_decode_raw_delta = msgspec.json.Decoder(_RawDelta).decode

read_event = LooseDecoder(StreamEvent, _SERVER)
"""One event; ``ModelProtocolError`` for what is none."""

read_message = LooseDecoder(Answer, _SERVER)
"""A whole answer, or the error that came in its place."""


def read_raw_delta(data: bytes) -> JsonObject:
    """The delta of an event with all its fields."""
    try:
        return _decode_raw_delta(data).delta or {}
    except UNREADABLE:
        return json.loads(data)["delta"]  # it was read before, by the standard library


def says_something(data: bytes) -> bool:
    """Whether an object of no type reports a failure."""
    found = cast("JsonObject", json.loads(data))
    return any(found.get(key) for key in ("error", "message", "detail", "msg"))


ORIGIN = "anthropic"
"""The family that reads back what this adapter puts into ``providerData``."""

KINDS: dict[str, BlockKind] = {"text": "text", "thinking": "thinking", "tool_use": "call"}
"""Blocks that have a part of ours; all others travel verbatim."""

_KNOWN_CALL = frozenset({"type", "id", "name", "input", "caller"})
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class MessageBlock(Block):
    def __init__(self, kind: BlockKind, raw: JsonObject) -> None:
        super().__init__(kind, raw)
        self._grown: dict[str, list[str]] = {}
        if kind == "thinking":
            self.signature.append(as_text(raw.get("signature")))
        elif kind == "text":
            self.citations += raw.get("citations") or ()

    def grow(self, delta: JsonObject) -> None:
        """Add a delta of a kind we do not know: text is appended, anything else replaced."""
        raw = self.raw
        for key, value in delta.items():
            if key == "type" or value is None:
                continue
            if isinstance(value, str):
                self._grown.setdefault(key, [as_text(raw.get(key))]).append(value)
            elif key == "citation":
                raw["citations"] = [*(raw.get("citations") or ()), value]
            else:
                raw[key] = value

    def whole(self) -> JsonObject:
        """The block with all that came after its start."""
        return {**self.raw, **{key: "".join(pieces) for key, pieces in self._grown.items()}}


def call_data(raw: JsonObject) -> JsonObject:
    """What a call must carry back. A call that the model made itself needs no ``caller``."""
    data: JsonObject = {"origin": ORIGIN}
    if raw.get("id"):
        data["id"] = raw["id"]
    caller = as_object(raw.get("caller"))
    if caller and caller.get("type") != "direct":
        data["caller"] = caller
    further = {key: value for key, value in raw.items() if key not in _KNOWN_CALL and value is not None}
    return {**data, "block": further} if further else data


def usage_of(counts: JsonObject) -> TokenUsage:
    """Our counts of Anthropic's, which leave cached input out of ``input_tokens``."""
    fresh, output, read, written = (as_count(counts.get(name)) for name in _COUNTS)
    total_input = (fresh or 0) + (read or 0) + (written or 0)
    return TokenUsage(
        input_tokens=total_input,
        output_tokens=output or 0,
        total_tokens=total_input + (output or 0),
        cached_input_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=as_count(as_object(counts.get("output_tokens_details")).get("thinking_tokens")),
    )


_FINISH = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "stop_sequence": "stop_sequence",
    "max_tokens": "length",
    "pause_turn": "pause",
    "compaction": "pause",
    "refusal": "refusal",
}
"""``stop_reason`` → our finish reason; what a newer API adds is ``other``."""

_TAKES: dict[BlockKind, tuple[str, ...]] = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "call": ("input_json_delta",),
    "verbatim": ("input_json_delta",),
}
"""What belongs into a block of each kind."""


class MessagesReader(EventReader[ServerEvent]):
    def __init__(
        self,
        model: str,
        *,
        names: ToolNames | None = None,
        provider: str = ORIGIN,
        request_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._names = names
        self._provider = provider
        self._request_id = request_id
        self._reason = reason
        self._writer = AnswerWriter(model, ORIGIN)
        self._blocks: dict[int, MessageBlock] = {}
        self._aliases: dict[int, int] = {}
        """A number that only deltas use → the block they belong to."""
        self._started = False
        self._seen = False
        self._counts: JsonObject = {}
        self._stop: BlockDelta | None = None
        self._container: JsonObject = {}
        self._programmed: MessageBlock | None = None
        self._unread: AgentError | None = None

    def _fill(self, events: Iterable[ServerEvent], chunks: list[Chunk]) -> None:
        decode, blocks = read_event.strict, self._blocks
        for name, data in events:
            try:
                event = decode(data)
            except UNREADABLE:
                event = read_event(data)
            delta = event.delta
            # Nearly every event: more of the text that is being said.
            if delta is not None and delta.type == "text_delta" and event.type == "content_block_delta":
                block = blocks.get(event.index)
                if block is not None and block.kind == "text" and delta.text:
                    self._writer.open = "text"
                    chunks.append(TextChunk(text_delta=delta.text))
                    continue
            chunks += self._feed(event, name, data)
            if self.ended:
                return

    def _feed(self, event: StreamEvent, name: str, data: bytes) -> Sequence[Chunk]:
        """The chunks of one event. Raises ``ModelProtocolError`` for what no Messages server may send."""
        kind = event.type or name
        match kind:
            case "content_block_delta":
                return self._on_delta(event, data)
            case "message_start":
                self._on_start(event.message or Answer())
            case "content_block_start":
                self._begin(event.index, event.content_block or {})
            case "content_block_stop":
                self._end(self._blocks.pop(self._aliases.get(event.index, event.index), None))
            case "message_delta":
                self._on_message_delta(event)
            case "message_stop":
                self._finish()
            case "error":
                raise self._fault(data)
            case "message":
                return self.whole(data)
            case _:  # pings, and kinds that a later version adds
                if event.error is not None or (not kind and says_something(data)):
                    raise self._fault(data)
        return self._writer.take()

    def whole(self, data: bytes) -> Sequence[Chunk]:
        """The chunks of an answer that came in one piece, from a server that does not stream."""
        message = read_message(data)
        if message.type != "message":
            raise self._fault(data)
        self._on_start(message)
        self._finish()
        return self._writer.take()

    # ── the message ──

    def _on_start(self, message: Answer) -> None:
        if self._started:
            if self._seen:
                raise _protocol("a second message_start after content: two answers were joined into one")
            return
        self._started = True
        self._writer.put(
            StreamStart(
                model_id=message.model or self._model,
                request_id=self._request_id or message.id,
                reason=self._reason,
            )
        )
        self._count(message.usage)
        self._container = as_object(message.container)
        for position, block in enumerate(message.content or ()):
            self._begin(-1 - position, block)
            self._end(self._blocks.pop(-1 - position))
        if message.stop_reason:
            self._stop = BlockDelta(
                stop_reason=message.stop_reason,
                stop_sequence=message.stop_sequence,
                stop_details=message.stop_details,
            )

    def _on_message_delta(self, event: StreamEvent) -> None:
        self._need_start()
        self._count(event.usage)
        delta = event.delta
        if delta is not None:
            self._container = as_object(delta.container) or self._container
            if delta.stop_reason:
                self._stop = delta

    def _count(self, counts: JsonObject | None) -> None:
        if counts:
            self._counts.update({key: value for key, value in counts.items() if value is not None})
            self._writer.put(usage_of(self._counts))

    def _finish(self) -> None:
        self._need_start()
        stop = self._stop
        reason = _FINISH.get(stop.stop_reason, "other") if stop and stop.stop_reason else ""
        for block in self._blocks.values():
            if block.call is not None and reason not in ("length", "refusal"):
                raise _protocol(f"message_stop while the call of {block.call.name!r} is still open")
            self._end(block)
        self._blocks.clear()
        if stop is None or not stop.stop_reason:
            raise _protocol("message_stop without a stop_reason: whether the answer is whole is unknown")
        if self._unread is not None and reason not in ("length", "refusal"):
            raise self._unread
        if stop.stop_reason == "model_context_window_exceeded":
            raise AgentError(
                "ModelContextOverflow",
                f"{self._model}: the answer filled the context window before it was done",
            )
        self._place_call()
        said = {"stop_sequence": stop.stop_sequence, "stop_details": stop.stop_details}
        kept = {key: value for key, value in said.items() if value}
        self._writer.finish(
            reason,
            stop.stop_reason,
            {"origin": ORIGIN, **kept} if kept else None,
        )
        self.ended = True

    def _place_call(self) -> None:
        """A call made by code in a container needs the container back, which is named at the end."""
        block, container = self._programmed, self._container.get("id")
        if block is not None and block.call is not None and container:
            block.call.end_data = {"container": container}

    # ── blocks ──

    def _begin(self, index: int, raw: JsonObject) -> None:
        self._need_start()
        previous = self._blocks.pop(index, None)
        if previous is not None:
            if previous.call is not None:
                raise _protocol(f"block {index} starts again while its call is still open")
            self._end(previous)
        self._seen = True
        self._aliases.pop(index, None)
        writer = self._writer
        block = MessageBlock(KINDS.get(str(raw.get("type")), "verbatim"), raw)
        self._blocks[index] = block
        match block.kind:
            case "text":
                writer.begin("text")
                writer.say("text", as_text(raw.get("text")))
            case "thinking":
                writer.begin("thinking")
                writer.say("thinking", as_text(raw.get("thinking")))
            case "call":
                writer.begin()
                name, data = as_text(raw.get("name")), call_data(raw)
                block.call = writer.begin_call(self._names.ours(name) if self._names else name, data)
                self._programmed = block if "caller" in data else None
            case "verbatim":
                writer.begin()

    def _on_delta(self, event: StreamEvent, data: bytes) -> Sequence[Chunk]:
        delta = event.delta or BlockDelta()
        block = self._blocks.get(event.index) or self._misnumbered(event.index, delta)
        match block.kind, delta.type:
            case "text", "text_delta":
                self._writer.say("text", delta.text or "")
                return self._writer.take()
            case "call", "input_json_delta":
                assert block.call is not None
                self._writer.add_args(block.call, delta.partial_json or "")
                return self._writer.take()
            case "text" | "thinking", "thinking_delta":
                self._writer.say("thinking", delta.thinking or "")
                return self._writer.take()
            case "thinking" | "call", "text_delta":  # a server that forgot to begin a block of its own
                self._writer.say("text", delta.text or "")
                return self._writer.take()
            case "text" | "thinking", "input_json_delta":
                raise _protocol(f"arguments in block {event.index}, which is no call")
            case "thinking", "signature_delta":
                block.signature.append(delta.signature or "")
            case "text", "citations_delta":
                block.citations.append(delta.citation)
            case "verbatim", "input_json_delta":
                block.args.append(delta.partial_json or "")
            case "verbatim", _:
                block.grow(read_raw_delta(data))
            case _:  # a kind that a later version adds
                pass
        return ()

    def _misnumbered(self, index: int, delta: BlockDelta) -> MessageBlock:
        """The only block that is open and takes ``delta``: Anthropic itself misnumbers deltas at times."""
        at = self._aliases.get(index)
        if at not in self._blocks and len(self._blocks) == 1:
            (at,) = self._blocks
        block = self._blocks.get(at) if at is not None else None
        if block is None or delta.type not in _TAKES[block.kind]:
            raise _protocol(f"a content_block_delta for block {index}, which is not open")
        assert at is not None
        self._aliases[index] = at
        return block

    def _end(self, block: MessageBlock | None) -> None:
        if block is None:
            return
        writer = self._writer
        match block.kind:
            case "text":
                if block.citations:
                    writer.say("text", "", {"origin": ORIGIN, "citations": block.citations})
            case "thinking":
                if signature := "".join(block.signature):
                    writer.say("thinking", "", {"origin": ORIGIN, "signature": signature})
            case "call":
                assert block.call is not None
                given = as_object(block.raw.get("input"))
                if given and not block.call.args:  # some calls come whole, in their start
                    writer.add_args(block.call, encode(given).decode())
                writer.end_call(block.call)
            case "verbatim":
                self._pass_on(block)

    def _pass_on(self, block: MessageBlock) -> None:
        raw = block.whole()
        kind = raw.get("type")
        if text := "".join(block.args):
            parsed = parse_arguments(text)
            if parsed.arguments is None:  # cut by the limit, where the end says so
                self._unread = _protocol(f"the input of a {kind} block does not parse: {parsed.error}")
                return
            raw["input"] = parsed.arguments
        self._writer.pass_on("thinking" if kind == "redacted_thinking" else "text", raw)

    def _fault(self, data: bytes) -> AgentError:
        return map_stream_fault(json.loads(data), self._provider)

    def _need_start(self) -> None:
        if not self._started:  # some servers leave it out
            self._on_start(Answer())


def _protocol(found: str) -> AgentError:
    return AgentError("ModelProtocolError", f"the Messages stream holds {found}")
