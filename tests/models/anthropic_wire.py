"""Small Messages streams, written by hand, and what the adapter makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsStreaming
from pydantic import BaseModel, TypeAdapter

from turnlog.assembly import MessageAssembler
from turnlog.contract import (
    DoneDelta,
    ErrorDelta,
    Message,
    MessageDelta,
    MessagePart,
    StreamError,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    parse_arguments,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.models.anthropic import AnthropicModel
from turnlog.testing import FixedClock, FixedIds, Loopback, LoopbackAnswer

USAGE = {"input_tokens": 10, "output_tokens": 1}
HELLO = [user_message("hello")]
WEATHER = ToolSpec(
    name="weather",
    description="The weather of a city.",
    parameter_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def begin(**message: Any) -> dict[str, Any]:
    whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": []}
    return {"type": "message_start", "message": {**whole, "usage": USAGE, **message}}


def block(
    index: int, start: dict[str, Any], *deltas: dict[str, Any], stop: bool = True
) -> list[dict[str, Any]]:
    events = [{"type": "content_block_start", "index": index, "content_block": start}]
    events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [*events, {"type": "content_block_stop", "index": index}] if stop else events


def text(index: int, *pieces: str, **start: Any) -> list[dict[str, Any]]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": "", **start}, *deltas)


def thinking(index: int, thought: str, signature: str) -> list[dict[str, Any]]:
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": thought},
        {"type": "signature_delta", "signature": signature},
    )


def call(index: int, name: str, *pieces: str, id: str = "toolu_1", stop: bool = True) -> list[dict[str, Any]]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas, stop=stop)


def end(reason: str | None, usage: dict[str, Any] | None = None, **delta: Any) -> list[dict[str, Any]]:
    said = {"stop_reason": reason, "stop_sequence": None, **delta}
    return [
        {"type": "message_delta", "delta": said, "usage": usage or {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


class Heard:
    """What came out of one call."""

    def __init__(self, deltas: list[MessageDelta]) -> None:
        self.deltas = deltas
        assembler = MessageAssembler("")
        for delta in deltas:
            assembler.consume(delta)
        self.usage = assembler.usage
        last = deltas[-1]
        self.error: StreamError | None = last.payload if isinstance(last, ErrorDelta) else None
        self.finish = last.payload.finish_reason if isinstance(last, DoneDelta) else None
        self.done = last.payload if isinstance(last, DoneDelta) else None
        self.parts: list[MessagePart] = []
        if self.done is not None:
            self.message = assembler.finish("2026-01-01T00:00:00.000Z").message
            self.parts = self.message.parts

    @property
    def shape(self) -> list[tuple[str, str, Any]]:
        """(kind, text, provider data) of each part that is no call."""
        return [
            (part.kind, part.payload.text, part.payload.provider_data)
            for part in self.parts
            if not isinstance(part, ToolCallPart) and hasattr(part.payload, "text")
        ]


def anthropic(server: Loopback, **config: Any) -> AnthropicModel:
    fields = {"base_url": server.url, "clock": FixedClock(), "ids": FixedIds(), **config}
    return AnthropicModel(fields.pop("model_id", "claude-sonnet-4-5"), **fields)


async def hear(
    body: bytes | LoopbackAnswer, *args: Any, config: dict[str, Any] | None = None, **kw: Any
) -> Heard:
    answer = body if isinstance(body, LoopbackAnswer) else LoopbackAnswer.sse(body)
    async with Loopback(answer) as server:
        model = anthropic(server, **(config or {}))
        heard = Heard([delta async for delta in model.stream(*(args or (HELLO,)), **kw)])
        await model.close()
        return heard


async def ask(
    messages: Sequence[Message], specs: Sequence[ToolSpec] = (), system: str | None = None, **kw: Any
) -> Any:
    """The body that a call sends. ``config`` configures the model."""
    config = kw.pop("config", {})
    async with Loopback(LoopbackAnswer.sse(sse(begin(), *text(0, "ok"), *end("end_turn")))) as server:
        model = anthropic(server, **config)
        deltas = [delta async for delta in model.stream(messages, specs, system, **kw)]
        await model.close()
        assert isinstance(deltas[-1], DoneDelta), deltas[-1]
        return server.requests[0].json


# ── histories ──


def says(*parts: MessagePart | str) -> Message:
    whole = [text_part(part) if isinstance(part, str) else part for part in parts]
    return Message(run_id="r", role="assistant", parts=whole, timestamp="t")


def calls(call_id: str, args: str = '{"city": "Paris"}', name: str = "weather", **data: Any) -> ToolCallPart:
    arguments = parse_arguments(args).arguments
    provider_data = {"origin": "anthropic", **data} if data else None
    payload = ToolCall(
        tool_call_id=call_id,
        tool_name=name,
        arguments=arguments,
        raw_args_text=args,
        provider_data=provider_data,
    )
    return ToolCallPart(payload=payload)


def thought(words: str, **data: Any) -> MessagePart:
    return thinking_part(words, {"origin": "anthropic", **data} if data else None)


def results(*given: ToolResultPart | tuple[str, Any]) -> Message:
    parts = [one if isinstance(one, ToolResultPart) else tool_result_part(*one) for one in given]
    return Message(run_id="r", role="tool", parts=list(parts), timestamp="t")


# ── requests ──

OFFICIAL: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)


def check_official(body: dict[str, Any]) -> None:
    """``body`` fits the official client's types, and has no field that they lack."""
    known = {name: value for name, value in body.items() if name not in ("temperature", "top_p", "top_k")}
    assert _drawn(OFFICIAL.validate_python(known)) == known


def _drawn(value: Any) -> Any:
    """Lists are checked as they are drawn; blocks of an answer are taken as they are."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, dict):
        return {key: _drawn(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    return [_drawn(item) for item in value]


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def marks(body: dict[str, Any]) -> list[str]:
    """Where marks stand: ``tools``, ``system``, or the number of the block among all of them."""
    found = [
        name for name in ("tools", "system") if any("cache_control" in block for block in body.get(name, ()))
    ]
    blocks = [block for turn in body["messages"] for block in turn["content"]]
    return found + [str(at) for at, block in enumerate(blocks) if "cache_control" in block]
