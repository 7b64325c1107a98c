"""Small generateContent streams, written by hand, and what the adapter makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.genai import types
from pydantic import TypeAdapter

from models.anthropic_wire import Heard
from turnlog.contract import (
    DoneDelta,
    Message,
    ToolCall,
    ToolCallPart,
    ToolSpec,
    parse_arguments,
    user_message,
)
from turnlog.models.google import GoogleModel
from turnlog.testing import FixedClock, FixedIds, Loopback, LoopbackAnswer

HELLO = [user_message("hello")]
COUNTS = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}


def piece(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
        more.setdefault("usageMetadata", COUNTS)
    candidate.update(more.pop("candidate", {}))
    return {"candidates": [candidate], "modelVersion": "gemini-x", "responseId": "r1", **more}


def call(name: str, args: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A part with a call; ``id`` belongs to the call, anything else to the part."""
    function: dict[str, Any] = {"name": name, **({} if args is None else {"args": args})}
    if "id" in more:
        function["id"] = more.pop("id")
    return {"functionCall": function, **more}


def sse(*pieces: dict[str, Any]) -> bytes:
    return b"".join(f"data: {json.dumps(one)}\r\n\r\n".encode() for one in pieces)


def array(*pieces: dict[str, Any]) -> LoopbackAnswer:
    """The form of a stream without ``alt=sse``: one growing array, pretty-printed."""
    body = "[" + "\n,\r\n".join(json.dumps(one, indent=2) for one in pieces) + "\n]\n"
    return LoopbackAnswer(body=body.encode(), headers={"content-type": "application/json; charset=UTF-8"})


def google(server: Loopback, **config: Any) -> GoogleModel:
    fields = {"base_url": server.url, "clock": FixedClock(), "ids": FixedIds(), **config}
    return GoogleModel(fields.pop("model_id", "gemini-2.5-pro"), **fields)


async def hear(
    body: bytes | LoopbackAnswer, *args: Any, config: dict[str, Any] | None = None, **kw: Any
) -> Heard:
    answer = body if isinstance(body, LoopbackAnswer) else LoopbackAnswer.sse(body)
    async with Loopback(answer) as server:
        model = google(server, **(config or {}))
        heard = Heard([delta async for delta in model.stream(*(args or (HELLO,)), **kw)])
        await model.close()
        return heard


async def ask(
    messages: Sequence[Message], specs: Sequence[ToolSpec] = (), system: str | None = None, **kw: Any
) -> Any:
    """The body that a call sends. ``config`` configures the model."""
    config = kw.pop("config", {})
    async with Loopback(LoopbackAnswer.sse(sse(piece({"text": "ok"}, finish="STOP")))) as server:
        model = google(server, **config)
        deltas = [delta async for delta in model.stream(messages, specs, system, **kw)]
        await model.close()
        assert isinstance(deltas[-1], DoneDelta), deltas[-1]
        return server.requests[0].json


def calls(call_id: str, args: str = '{"city": "Paris"}', name: str = "weather", **data: Any) -> ToolCallPart:
    payload = ToolCall(
        tool_call_id=call_id,
        tool_name=name,
        arguments=parse_arguments(args).arguments,
        raw_args_text=args,
        provider_data={"origin": "google", **data} if data else None,
    )
    return ToolCallPart(payload=payload)


# ── requests ──

OFFICIAL: dict[str, TypeAdapter[Any]] = {
    "contents": TypeAdapter(list[types.Content]),
    "systemInstruction": TypeAdapter(types.Content),
    "tools": TypeAdapter(list[types.Tool]),
    "toolConfig": TypeAdapter(types.ToolConfig),
    "generationConfig": TypeAdapter(types.GenerationConfig),
    "safetySettings": TypeAdapter(list[types.SafetySetting]),
    "cachedContent": TypeAdapter(str),
    "serviceTier": TypeAdapter(str),
    "labels": TypeAdapter(dict[str, str]),
}


def check_official(body: dict[str, Any]) -> None:
    """Every part of ``body`` fits the official client's types, which refuse fields they do not know."""
    for name, value in body.items():
        OFFICIAL[name].validate_json(json.dumps(value))
