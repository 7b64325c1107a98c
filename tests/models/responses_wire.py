"""Small Responses streams, written by hand, and what the adapter makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import BaseModel, TypeAdapter

from models.anthropic_wire import Heard
from turnlog.contract import (
    DoneDelta,
    Message,
    MessagePart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
    parse_arguments,
    text_part,
    tool_result_part,
    user_message,
)
from turnlog.models.openai_responses import OpenAIResponsesModel
from turnlog.testing import FixedClock, FixedIds, Loopback, LoopbackAnswer

FAMILY = "openai-responses"
CALL_ID = "call_abcdefghijklmnopqrstuvwx"
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 15,
}
HELLO = [user_message("hello")]
WEATHER = ToolSpec(
    name="weather",
    description="The weather of a city.",
    parameter_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)

Event = dict[str, Any]


# ── items ──


def message(text: str = "Hi.", id: str = "msg_1", **fields: Any) -> Event:
    content = [{"type": "output_text", "annotations": [], "text": text}]
    return {
        "id": id,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": content,
    } | fields


def reasoning(*summary: str, id: str = "rs_1", **fields: Any) -> Event:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"id": id, "type": "reasoning", "summary": parts, **fields}


def function_call(args: str = '{"city":"Bern"}', id: str = "fc_1", **fields: Any) -> Event:
    item = {"id": id, "type": "function_call", "status": "completed", "arguments": args, "call_id": CALL_ID}
    return {**item, "name": "weather", **fields}


SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}}


# ── events ──


def event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}", **fields}


def pieces(text: str, size: int = 3) -> Iterable[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def streamed(at: int, item: Event) -> list[Event]:
    """All events of an item, as OpenAI sends them."""
    place = {"item_id": item["id"], "output_index": at}
    match item["type"]:
        case "message":
            body = [one for index, part in enumerate(item["content"]) for one in _content(place, index, part)]
            empty = {**item, "content": [], "status": "in_progress"}
        case "reasoning":
            body = [one for index, part in enumerate(item["summary"]) for one in _summary(place, index, part)]
            for index, part in enumerate(item.get("content") or []):
                body += _text("reasoning_text", {**place, "content_index": index}, part["text"])
            empty = {**item, "summary": []}
            empty.pop("content", None)
        case "function_call":
            args = item["arguments"]
            body = [event("function_call_arguments.delta", **place, delta=piece) for piece in pieces(args)]
            body.append(event("function_call_arguments.done", **place, arguments=args))
            empty = {**item, "arguments": "", "status": "in_progress"}
        case _:
            body, empty = [], {**item, "status": "in_progress"}
    return [
        event("output_item.added", output_index=at, item=empty),
        *body,
        event("output_item.done", output_index=at, item=item),
    ]


def _content(place: Event, index: int, part: Event) -> list[Event]:
    name, field = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
    place = {**place, "content_index": index}
    return [
        event("content_part.added", **place, part={**part, field: ""}),
        *_text(name, place, part[field], field),
        event("content_part.done", **place, part=part),
    ]


def _summary(place: Event, index: int, part: Event) -> list[Event]:
    place = {**place, "summary_index": index}
    return [
        event("reasoning_summary_part.added", **place, part={**part, "text": ""}),
        *_text("reasoning_summary_text", place, part["text"]),
        event("reasoning_summary_part.done", **place, part=part),
    ]


def _text(name: str, place: Event, text: str, field: str = "text") -> list[Event]:
    deltas = [event(f"{name}.delta", **place, delta=piece) for piece in pieces(text)]
    return [*deltas, event(f"{name}.done", **place, **{field: text})]


def created() -> list[Event]:
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "m", "output": []}
    return [event("created", response=response), event("in_progress", response=response)]


def ended(*output: Event, status: str = "completed", **fields: Any) -> Event:
    response = {"id": "resp_1", "object": "response", "model": "m", "error": None, "incomplete_details": None}
    response |= {"status": status, "output": list(output), "usage": USAGE, **fields}
    return event(status, response=response)


def answer(*items: Event, **end: Any) -> list[Event]:
    """A whole answer."""
    body = [one for at, item in enumerate(items) for one in streamed(at, item)]
    return [*created(), *body, ended(*items, **end)]


def cut_off(reason: str, *items: Event) -> list[Event]:
    return answer(*items, status="incomplete", incomplete_details={"reason": reason})


def sse(events: Iterable[Event], numbered: bool = True) -> bytes:
    found: list[bytes] = []
    for number, one in enumerate(events):
        whole = {**one, "sequence_number": number} if numbered and "sequence_number" not in one else one
        found.append(f"event: {one['type']}\ndata: {json.dumps(whole)}\n\n".encode())
    return b"".join(found)


# ── calls ──


def responses(server: Loopback, **config: Any) -> OpenAIResponsesModel:
    fields = {"base_url": server.url, "clock": FixedClock(), "ids": FixedIds(), **config}
    return OpenAIResponsesModel(fields.pop("model_id", "m"), **fields)


async def hear(
    body: Iterable[Event] | bytes | LoopbackAnswer,
    *args: Any,
    config: dict[str, Any] | None = None,
    numbered: bool = True,
    **kw: Any,
) -> Heard:
    match body:
        case LoopbackAnswer():
            played = body
        case bytes():
            played = LoopbackAnswer.sse(body)
        case _:
            played = LoopbackAnswer.sse(sse(body, numbered))
    async with Loopback(played) as server:
        model = responses(server, **(config or {}))
        heard = Heard([delta async for delta in model.stream(*(args or (HELLO,)), **kw)])
        await model.close()
        return heard


async def ask(
    messages: Sequence[Message], specs: Sequence[ToolSpec] = (), system: str | None = None, **kw: Any
) -> Any:
    """The body that a call sends. ``config`` configures the model."""
    config = kw.pop("config", {})
    async with Loopback(LoopbackAnswer.sse(sse(answer(message())))) as server:
        model = responses(server, **config)
        deltas = [delta async for delta in model.stream(messages, specs, system, **kw)]
        await model.close()
        assert isinstance(deltas[-1], DoneDelta), deltas[-1]
        return server.requests[0].json


# ── histories ──


def says(*parts: MessagePart | str) -> Message:
    whole = [text_part(part) if isinstance(part, str) else part for part in parts]
    return Message(run_id="r", role="assistant", parts=whole, timestamp="t")


def calls(call_id: str, args: str = '{"city": "Paris"}', name: str = "weather", **data: Any) -> ToolCallPart:
    payload = ToolCall(
        tool_call_id=call_id,
        tool_name=name,
        arguments=parse_arguments(args).arguments,
        raw_args_text=args,
        provider_data=data or None,
    )
    return ToolCallPart(payload=payload)


def results(*given: ToolResultPart | tuple[str, Any]) -> Message:
    parts = [one if isinstance(one, ToolResultPart) else tool_result_part(*one) for one in given]
    return Message(run_id="r", role="tool", parts=list(parts), timestamp="t")


# ── what was heard ──


def made(heard: Heard) -> list[tuple[str, str]]:
    assert heard.error is None, heard.error
    return [
        (part.payload.tool_name, part.payload.raw_args_text)
        for part in heard.parts
        if isinstance(part, ToolCallPart)
    ]


def said(heard: Heard) -> list[tuple[str, str]]:
    """(kind, text) of what is not empty."""
    assert heard.error is None, heard.error
    return [(kind, text) for kind, text, _ in heard.shape if text]


def without(events: list[dict[str, Any]], *fields: str, kinds: str = "") -> list[dict[str, Any]]:
    """Events without some of their fields, and without the kinds whose name holds ``kinds``."""
    left = [one for one in events if not kinds or kinds not in one["type"]]
    return [{name: value for name, value in one.items() if name not in fields} for one in left]


# ── requests ──

OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)


def check_official(body: dict[str, Any]) -> None:
    """``body`` fits the official client's types, and has no field that they lack."""
    assert _drawn(OFFICIAL.validate_python(body)) == body


def _drawn(value: Any) -> Any:
    """Lists are checked as they are drawn."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, dict):
        return {key: _drawn(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    return [_drawn(item) for item in value]
