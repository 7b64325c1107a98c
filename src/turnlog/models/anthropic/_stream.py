"""Events of the Messages API in, chunks out. Knows nothing of HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    JsonObject,
    StreamDone,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    encode,
    parse_arguments,
)

from .._faults import map_stream_fault
from .._history import ToolNames
from ._blocks import KINDS, ORIGIN, Block, as_object, as_text, call_data, usage_of
from ._events import Answer, BlockDelta, StreamEvent, read_event, read_message, read_raw_delta

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


class MessagesReader:
    """Follows one answer, event by event; ``ended`` once the provider said that it is complete.

    The end of a tool call is held back until what follows it is known: when the answer was cut off
    there, the call never gets an end, and the stream fails instead.
    """

    __slots__ = (
        "_blocks",
        "_calls",
        "_container",
        "_counts",
        "_held",
        "_last",
        "_model",
        "_names",
        "_open_part",
        "_out",
        "_provider",
        "_request_id",
        "_seen",
        "_started",
        "_stop",
        "ended",
    )

    def __init__(
        self,
        model: str,
        *,
        names: ToolNames | None = None,
        provider: str = ORIGIN,
        request_id: str | None = None,
    ) -> None:
        self._model = model
        self._names = names
        self._provider = provider
        self._request_id = request_id
        self._out: list[Chunk] = []
        self._blocks: dict[int, Block] = {}
        self._started = False
        self._seen = 0
        self._calls = 0
        self._held: list[Block] = []
        self._last: Block | None = None
        self._open_part: Literal["text", "thinking"] | None = None
        self._counts: JsonObject = {}
        self._stop: BlockDelta | None = None
        self._container: JsonObject = {}
        self.ended = False

    def feed(self, name: str, data: bytes) -> Sequence[Chunk]:
        """The chunks of one event. Raises ``ModelProtocolError`` for what no Messages server may send."""
        event = read_event(data)
        kind = event.type or name
        if kind == "content_block_delta":
            return self._on_delta(event, data)
        match kind:
            case "message_start":
                self._on_start(event.message or Answer())
            case "content_block_start":
                self._begin(event.index, event.content_block or {})
            case "content_block_stop":
                self._end(self._blocks.pop(event.index, None))
            case "message_delta":
                self._on_message_delta(event)
            case "message_stop":
                self._finish()
            case "error":
                raise self._fault(data)
            case _:  # pings, and kinds that a later version adds
                if event.error is not None:
                    raise self._fault(data)
        return self._take()

    def whole(self, data: bytes) -> Sequence[Chunk]:
        """The chunks of an answer that came in one piece, from a server that does not stream."""
        message = read_message(data)
        if message.type != "message":
            raise self._fault(data)
        self._on_start(message)
        self._finish()
        return self._take()

    # ── the message ──

    def _on_start(self, message: Answer) -> None:
        if self._started:
            if self._seen:
                raise _protocol("a second message_start after content: two answers were joined into one")
            return
        self._started = True
        self._out.append(
            StreamStart(model_id=message.model or self._model, request_id=self._request_id or message.id)
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
            self._out.append(usage_of(self._counts))

    def _finish(self) -> None:
        self._need_start()
        for block in self._blocks.values():
            if block.kind == "call":
                raise _protocol(f"message_stop while the call of {block.name!r} is still open")
            self._end(block)
        self._blocks.clear()
        stop = self._stop
        if stop is None or not stop.stop_reason:
            raise _protocol("message_stop without a stop_reason: whether the answer is whole is unknown")
        self._refuse_cut(stop.stop_reason)
        self._release()
        finish = _FINISH.get(stop.stop_reason, "other")
        if finish == "stop" and self._calls:
            finish = "tool_calls"
        said = {"stop_sequence": stop.stop_sequence, "stop_details": stop.stop_details}
        kept = {key: value for key, value in said.items() if value}
        self._out.append(
            StreamDone(finish_reason=finish, provider_data={"origin": ORIGIN, **kept} if kept else None)
        )
        self.ended = True

    def _refuse_cut(self, reason: str) -> None:
        """Fail an answer that stopped for want of room, or inside a call."""
        if reason == "model_context_window_exceeded":
            raise AgentError(
                "ModelContextOverflow",
                f"{self._model}: the answer filled the context window before it was done",
            )
        cut = self._last
        if cut is None or cut not in self._held or reason in ("tool_use", "end_turn"):
            return
        where = f"inside a call of {cut.name!r}, so its arguments are not complete"
        if reason == "max_tokens":
            raise AgentError(
                "ModelProtocolError",
                f"{self._model} reached max_tokens {where}; raise max_tokens",
                retryable=False,
            )
        if reason == "refusal":
            raise AgentError(
                "ModelContentFiltered", f"{self._model}: the provider stopped the answer {where}"
            )
        if parse_arguments("".join(cut.args)).error:
            raise AgentError(
                "ModelProtocolError", f"{self._model} stopped ({reason}) {where}", retryable=False
            )

    # ── blocks ──

    def _begin(self, index: int, raw: JsonObject) -> None:
        self._need_start()
        previous = self._blocks.pop(index, None)
        if previous is not None:
            if previous.kind == "call":
                raise _protocol(f"block {index} starts again while its call is still open")
            self._end(previous)
        self._release()
        self._seen += 1
        block = Block(KINDS.get(str(raw.get("type")), "verbatim"), str(self._seen), raw)
        self._blocks[index] = self._last = block
        match block.kind:
            case "text":
                self._close_part("text")
                self._say_text(as_text(raw.get("text")))
            case "thinking":
                self._close_part("thinking")
                self._say_thinking(as_text(raw.get("thinking")))
            case "call":
                self._calls += 1
                self._open_part = None
                name = self._names.ours(block.name) if self._names else block.name
                self._out.append(
                    CallStart(tool_call_id=block.key, tool_name=name, provider_data=call_data(raw))
                )
            case "verbatim":
                pass

    def _on_delta(self, event: StreamEvent, data: bytes) -> Sequence[Chunk]:
        block, delta = self._blocks.get(event.index), event.delta
        if block is None or delta is None:
            raise _protocol(f"a content_block_delta for block {event.index}, which is not open")
        match block.kind, delta.type:
            case "text", "text_delta":
                if delta.text:  # nearly every event: no detour
                    self._open_part = "text"
                    return (TextChunk(text_delta=delta.text),)
            case "call", "input_json_delta":
                if delta.partial_json:
                    block.args.append(delta.partial_json)
                    return (CallArgs(tool_call_id=block.key, args_text_delta=delta.partial_json),)
            case "thinking", "thinking_delta":
                if delta.thinking:
                    self._open_part = "thinking"
                    return (ThinkingChunk(text_delta=delta.thinking),)
            case "thinking", "signature_delta":
                block.signature += delta.signature or ""
            case "text", "citations_delta":
                block.citations.append(delta.citation)
            case "verbatim", "input_json_delta":
                block.args.append(delta.partial_json or "")
            case "verbatim", _:
                block.grow(read_raw_delta(data))
            case _:  # a kind that a later version adds
                pass
        return ()

    def _end(self, block: Block | None) -> None:
        if block is None:
            return
        match block.kind:
            case "text":
                if block.citations:
                    self._say_text("", {"origin": ORIGIN, "citations": block.citations})
            case "thinking":
                if block.signature:
                    self._say_thinking("", {"origin": ORIGIN, "signature": block.signature})
            case "call":
                given = as_object(block.raw.get("input"))
                if given and not block.args:  # some calls come whole, in their start
                    block.args.append(encode(given).decode())
                    self._out.append(CallArgs(tool_call_id=block.key, args_text_delta=block.args[0]))
                self._held.append(block)
            case "verbatim":
                self._pass_on(block)

    def _pass_on(self, block: Block) -> None:
        """A block that has no part of ours travels whole, as an empty part with the block inside."""
        if text := "".join(block.args):
            parsed = parse_arguments(text)
            if parsed.arguments is None:
                raise _protocol(
                    f"the input of a {block.raw.get('type')} block does not parse: {parsed.error}"
                )
            block.raw["input"] = parsed.arguments
        data = {"origin": ORIGIN, "block": block.raw}
        if block.raw.get("type") == "redacted_thinking":
            self._close_part("thinking")
            self._say_thinking("", data)
        else:
            self._close_part("text")
            self._say_text("", data)

    def _release(self) -> None:
        container = self._container.get("id")
        for block in self._held:
            # Only calls that code in a container made need it back.
            kept = {"container": container} if container and "caller" in call_data(block.raw) else None
            self._out.append(CallEnd(tool_call_id=block.key, provider_data=kept))
        self._held.clear()

    # ── parts ──

    def _close_part(self, kind: Literal["text", "thinking"]) -> None:
        """End an open part of the same kind: two blocks must not become one."""
        if self._open_part != kind:
            return
        if kind == "text":
            self._say_text("", {"origin": ORIGIN})
        else:
            self._say_thinking("", {"origin": ORIGIN})

    def _say_text(self, text: str, data: JsonObject | None = None) -> None:
        if text or data:
            self._out.append(TextChunk(text_delta=text, provider_data=data))
            self._open_part = None if data else "text"

    def _say_thinking(self, text: str, data: JsonObject | None = None) -> None:
        if text or data:
            self._out.append(ThinkingChunk(text_delta=text, provider_data=data))
            self._open_part = None if data else "thinking"

    def _fault(self, data: bytes) -> AgentError:
        return map_stream_fault(json.loads(data), self._provider)

    def _need_start(self) -> None:
        if not self._started:  # some servers leave it out
            self._on_start(Answer())

    def _take(self) -> Sequence[Chunk]:
        taken, self._out = self._out, []
        return taken


def _protocol(found: str) -> AgentError:
    return AgentError("ModelProtocolError", f"the Messages stream holds {found}")
