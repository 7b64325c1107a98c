"""Small Converse streams, written by hand, and a botocore client for a server on this machine."""

from __future__ import annotations

import json
from binascii import crc32
from collections.abc import Iterator, Sequence
from functools import cache
from struct import pack
from typing import Any

from botocore.config import Config
from botocore.eventstream import EventStreamBuffer
from botocore.session import Session, get_session

from models.anthropic_wire import HELLO, Heard
from turnlog.models.bedrock import BedrockModel
from turnlog.testing import FixedClock, FixedIds, Loopback, LoopbackAnswer

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


@cache
def session() -> Session:
    return get_session()


def client_of(url: str, read_timeout: float = 20.0) -> Any:
    return session().create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=read_timeout),
    )


def frame(kind: str, payload: dict[str, Any], *, exception: bool = False) -> bytes:
    headers = {
        ":exception-type" if exception else ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception" if exception else "event",
    }
    head = b"".join(
        pack("!B", len(name)) + name.encode() + pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    body = json.dumps(payload).encode()
    prelude = pack("!II", 16 + len(head) + len(body), len(head))
    prelude += pack("!I", crc32(prelude))
    whole = prelude + head + body
    return whole + pack("!I", crc32(whole))


def converse(*events: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(frame(*event) for event in (("messageStart", {"role": "assistant"}), *events))


Events = list[tuple[str, dict[str, Any]]]


def block(
    index: int, *deltas: dict[str, Any], start: dict[str, Any] | None = None, stop: bool = True
) -> Events:
    events: Events = []
    if start is not None:
        events.append(("contentBlockStart", {"contentBlockIndex": index, "start": start}))
    events += [("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}) for delta in deltas]
    return [*events, ("contentBlockStop", {"contentBlockIndex": index})] if stop else events


def text(index: int, *pieces: str) -> Events:
    return block(index, *({"text": piece} for piece in pieces))


def call(index: int, name: str, *pieces: str, id: str = "tooluse_1", stop: bool = True) -> Events:
    start = {"toolUse": {"toolUseId": id, "name": name}}
    return block(index, *({"toolUse": {"input": piece}} for piece in pieces), start=start, stop=stop)


def end(reason: str, usage: dict[str, int] | None = None, **more: Any) -> Events:
    counts = usage or {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    stop = {"stopReason": reason, **more}
    return [("messageStop", stop), ("metadata", {"usage": counts, "metrics": {"latencyMs": 1}})]


def answer(body: bytes, **fields: Any) -> LoopbackAnswer:
    return LoopbackAnswer(body=body, headers={"content-type": "application/vnd.amazon.eventstream"}, **fields)


async def talk(played: LoopbackAnswer, *args: Any, config: dict[str, Any] | None = None, **kw: Any) -> Heard:
    """What one call makes of ``played``."""
    heard, _ = await exchange(played, *args, config=config, **kw)
    return heard


async def exchange(
    played: LoopbackAnswer, *args: Any, config: dict[str, Any] | None = None, **kw: Any
) -> tuple[Heard, Any]:
    """What one call makes of ``played``, and the body it sent."""
    settings = {"model_id": CLAUDE, **(config or {})}
    async with Loopback(played) as server:
        client = client_of(server.url)
        model = BedrockModel(client=client, clock=FixedClock(), ids=FixedIds(), **settings)
        heard = Heard([delta async for delta in model.stream(*(args or (HELLO,)), **kw)])
        client.close()
    return heard, server.requests[0].json if server.requests else None


class PlainClient:
    """A client that reads frames with no model of the service: events are what their JSON says."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.calls: list[dict[str, Any]] = []

    def converse_stream(self, **arguments: Any) -> dict[str, Any]:
        self.calls.append(arguments)
        return {"stream": self._events()}

    def _events(self) -> Iterator[dict[str, Any]]:
        buffer = EventStreamBuffer()
        buffer.add_data(self._body)
        for event in buffer:
            yield {event.headers[":event-type"]: json.loads(event.payload)}


async def talk_plainly(played: LoopbackAnswer) -> Heard:
    model = BedrockModel(CLAUDE, client=PlainClient(played.body), clock=FixedClock(), ids=FixedIds())
    return Heard([delta async for delta in model.stream(HELLO)])


async def ask(
    messages: Sequence[Any], specs: Sequence[Any] = (), system: str | None = None, **kw: Any
) -> Any:
    played = answer(converse(*text(0, "ok"), *end("end_turn")))
    heard, body = await exchange(played, messages, specs, system, **kw)
    assert heard.finish == "stop", heard.error
    return body
