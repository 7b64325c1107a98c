"""Small Chat Completions streams, written by hand, and what the adapter makes of them."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from models.adapters_under_test import make_model
from models.recorded import Outcome, PlayingTransport, outcome_of
from turnlog.contract import MessageDelta, user_message

SSE = {"content-type": "text/event-stream"}
DONE = b"data: [DONE]\n\n"


def chunk(delta: Any = None, finish: str | None = None, /, **more: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return event({"id": "x", "model": "m", "choices": [choice], **more})


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def call(args: Any = None, /, *, name: str | None = None, **fields: Any) -> dict[str, Any]:
    function: dict[str, Any] = {}
    if name is not None:
        function["name"] = name
    if args is not None:
        function["arguments"] = args
    return {"tool_calls": [{**fields, "function": function}]}


async def deltas_of(
    *parts: bytes, headers: dict[str, str] | None = None, **fields: Any
) -> list[MessageDelta]:
    specs = fields.pop("tool_specs", ())
    transport = PlayingTransport(200, headers or SSE, [b"".join(parts)])
    async with httpx2.AsyncClient(transport=transport) as client:
        model = make_model("openai-chat", fields.pop("base_url", "http://127.0.0.1:1"), client, **fields)
        return [delta async for delta in model.stream([user_message("hi")], specs)]


async def answer(*parts: bytes, **fields: Any) -> Outcome:
    return outcome_of(await deltas_of(*parts, **fields))
