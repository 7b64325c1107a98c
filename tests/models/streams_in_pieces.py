"""One answer of a few words in each protocol, event by event: a test chooses what comes together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from models import anthropic_wire, bedrock_wire, chat_wire, google_wire, responses_wire
from models.adapters_under_test import make_model
from models.recorded import PlayingTransport
from turnlog.models import Model
from turnlog.models.bedrock import BedrockModel
from turnlog.testing import FixedClock, FixedIds

SSE = {"content-type": "text/event-stream"}
PROTOCOLS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "bedrock-converse")


def _chat(words: Sequence[str]) -> list[bytes]:
    said = [chat_wire.chunk({"content": word}) for word in words]
    return [*said, chat_wire.chunk({}, "stop"), chat_wire.DONE]


def _anthropic(words: Sequence[str]) -> list[bytes]:
    wire = anthropic_wire
    return [wire.sse(event) for event in (wire.begin(), *wire.text(0, *words), *wire.end("end_turn"))]


def _responses(words: Sequence[str]) -> list[bytes]:
    wire = responses_wire
    text = "".join(words)
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = wire.message(text)
    events = [
        *wire.created(),
        wire.event("output_item.added", output_index=0, item={**item, "content": []}),
        *(wire.event("output_text.delta", **place, delta=word) for word in words),
        wire.event("output_text.done", **place, text=text),
        wire.event("output_item.done", output_index=0, item=item),
        wire.ended(item),
    ]
    return [wire.sse([{**event, "sequence_number": at}]) for at, event in enumerate(events)]


def _gemini(words: Sequence[str]) -> list[bytes]:
    wire = google_wire
    said = [wire.sse(wire.piece({"text": word}, usageMetadata=wire.COUNTS)) for word in words]
    return [*said, wire.sse(wire.piece({"text": ""}, finish="STOP"))]


def _converse(words: Sequence[str]) -> list[dict[str, Any]]:
    wire = bedrock_wire
    return [{name: payload} for name, payload in (*wire.text(0, *words), *wire.end("end_turn"))]


_SAYS = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic-messages": _anthropic,
    "gemini": _gemini,
    "bedrock-converse": _converse,
}


class PlayingClient:
    """A client of Bedrock whose events are read one after the other without a wait, so that they meet."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._events = events

    def converse_stream(self, **arguments: Any) -> dict[str, Any]:
        return {"stream": self._play()}

    def _play(self) -> Iterator[dict[str, Any]]:
        yield from self._events


@asynccontextmanager
async def speaking(
    protocol: str, words: Sequence[str], *, broken_at: int | None = None, **fields: Any
) -> AsyncIterator[Model]:
    """A model that says ``words``, all of it in one piece; the event of one word may be unreadable."""
    events: list[Any] = list(_SAYS[protocol](words))
    if broken_at is not None:
        events[broken_at] = _broken(events[broken_at])
    if protocol == "bedrock-converse":
        client = PlayingClient(events)
        yield BedrockModel(bedrock_wire.CLAUDE, client=client, clock=FixedClock(), ids=FixedIds(), **fields)
        return
    transport = PlayingTransport(200, SSE, [b"".join(events)])
    async with httpx2.AsyncClient(transport=transport) as client:
        yield make_model(protocol, client=client, **fields)


def place_of(protocol: str, words: Sequence[str], word: str) -> int:
    """The event that says ``word``."""
    quoted = json.dumps(word)
    events = _SAYS[protocol](words)
    return next(
        at
        for at, event in enumerate(events)
        if (event.decode() if isinstance(event, bytes) else json.dumps(event)).count(quoted) == 1
    )


def _broken(event: Any) -> Any:
    if isinstance(event, bytes):
        end = event.rindex(b"}")
        return event[:end] + event[end + 1 :]
    return {"contentBlockDelta": {"contentBlockIndex": 7, "delta": {"toolUse": {"input": "{"}}}}
