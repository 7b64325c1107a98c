"""A third-party adapter for better or worse, and what a test asks of its stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from turnlog.contract import (
    CallArgs,
    CallEnd,
    CallStart,
    DeltaGrammar,
    ErrorDelta,
    MessageDelta,
    StreamDone,
    StreamStart,
    TextChunk,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallStartDelta,
    decode,
    encode,
    user_message,
)
from turnlog.models import Model, ModelRequest
from turnlog.testing import FixedClock, FixedIds

START = StreamStart(model_id="m")
DONE = StreamDone(finish_reason="stop")
HELLO = [user_message("hello")]


def text(value: str) -> TextChunk:
    return TextChunk(text_delta=value)


def call_start(key: str, name: str = "add", id: str | None = None) -> CallStart:
    data = None if id is None else {"origin": "x", "id": id}
    return CallStart(tool_call_id=key, tool_name=name, provider_data=data)


def args(key: str, value: str) -> CallArgs:
    return CallArgs(tool_call_id=key, args_text_delta=value)


def end(key: str) -> CallEnd:
    return CallEnd(tool_call_id=key)


class Yielding(Model):
    """A third-party adapter, for better or worse: yields what it is given, then raises if told to."""

    provider_id = "third"
    specification = "third-party"

    def __init__(self, *chunks: Any, raises: BaseException | None = None, **fields: Any) -> None:
        super().__init__("m", clock=FixedClock(), ids=FixedIds(), **fields)
        self.chunks = chunks
        self.raises = raises
        self.closed = False
        self.seen: list[ModelRequest] = []

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.seen.append(request)
        try:
            for chunk in self.chunks:
                yield chunk
            if self.raises is not None:
                raise self.raises
        finally:
            self.closed = True


async def drain(model: Model, **options: Any) -> list[MessageDelta]:
    return [delta async for delta in model.stream(HELLO, **options)]


def check_grammar(deltas: Sequence[MessageDelta]) -> None:
    grammar = DeltaGrammar()
    for delta in deltas:
        call_id = getattr(delta.payload, "tool_call_id", None)
        assert grammar.check(delta.kind, call_id, delta.seq) is None
        assert decode(encode(delta), MessageDelta) == delta
    assert grammar.state == "ended"


async def fails(model: Model, code: str = "ModelProtocolError") -> ErrorDelta:
    deltas = await drain(model)
    check_grammar(deltas)
    last = deltas[-1]
    assert isinstance(last, ErrorDelta)
    assert last.payload.error_code == code
    assert sum(delta.kind in ("done", "error") for delta in deltas) == 1
    return last


def calls_of(deltas: Sequence[MessageDelta]) -> list[tuple[str, str, str]]:
    """(our id, name, arguments) of every call that was completed."""
    found: dict[str, list[str]] = {}
    done: list[tuple[str, str, str]] = []
    for delta in deltas:
        match delta:
            case ToolCallStartDelta():
                found[delta.payload.tool_call_id] = [delta.payload.tool_name]
            case ToolCallArgsDelta():
                found[delta.payload.tool_call_id].append(delta.payload.args_text_delta)
            case ToolCallEndDelta():
                name, *pieces = found[delta.payload.tool_call_id]
                done.append((delta.payload.tool_call_id, name, "".join(pieces)))
            case _:
                pass
    return done


def call(key: str, value: str, id: str | None = None, name: str = "add") -> list[Any]:
    return [call_start(key, name, id), args(key, value), end(key)]
