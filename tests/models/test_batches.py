"""Deltas that came in one piece travel together: in order, none late, up to the one that fails."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager, suppress
from types import FrameType
from typing import Any

import httpx2
import pytest

from models import chat_wire
from models.adapters_under_test import make_model
from models.streams_in_pieces import PROTOCOLS, place_of, speaking
from turnlog.contract import Chunk, ErrorDelta, MessageDelta, StreamDone, StreamStart, TextChunk, user_message
from turnlog.models import Model, ModelRequest
from turnlog.models._base import batched
from turnlog.models.http import SSEReader
from turnlog.models.router import ProviderRouter

HELLO = [user_message("hello")]
WORDS = ["alpha ", "beta ", "gamma ", "omega"]


def words_in(deltas: list[MessageDelta]) -> list[str]:
    return [delta.payload.text_delta for delta in deltas if delta.kind == "text" and delta.payload.text_delta]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_deltas_of_one_piece_come_together_and_in_order(protocol: str) -> None:
    async with speaking(protocol, WORDS) as model, aclosing(model.stream(HELLO)) as stream:
        batches = [deltas async for deltas in stream.batches]
    together = [delta for deltas in batches for delta in deltas]
    assert words_in(together) == WORDS
    assert [delta.seq for delta in together] == list(range(1, len(together) + 1))
    assert together[-1].kind == "done"
    if protocol != "bedrock-converse":  # its thread may be slower than its reader
        assert max(len(words_in(deltas)) for deltas in batches) == len(WORDS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_read_one_at_a_time_they_are_the_same(protocol: str) -> None:
    async with speaking(protocol, WORDS) as model:
        singly = [delta async for delta in model.stream(HELLO)]
        async with aclosing(model.stream(HELLO)) as stream:
            together = [delta async for deltas in stream.batches for delta in deltas]
    assert [(delta.kind, delta.seq) for delta in singly] == [(delta.kind, delta.seq) for delta in together]
    assert words_in(singly) == WORDS


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_came_before_an_unreadable_event_of_the_piece_is_given_first(protocol: str) -> None:
    at = place_of(protocol, WORDS, WORDS[2])
    async with speaking(protocol, WORDS, broken_at=at) as model:
        deltas = [delta async for delta in model.stream(HELLO)]
    assert words_in(deltas) == WORDS[:2]
    last = deltas[-1]
    assert isinstance(last, ErrorDelta) and last.payload.error_code == "ModelProtocolError"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_with_raw_events_each_delta_has_its_own(protocol: str) -> None:
    async with speaking(protocol, WORDS, include_raw=True) as model:
        deltas = [delta async for delta in model.stream(HELLO)]
    said = [delta for delta in deltas if delta.kind == "text" and delta.payload.text_delta]
    for word, delta in zip(WORDS, said, strict=True):
        assert delta.provider_raw is not None
        assert repr(delta.provider_raw["events"]).count(word.strip()) == 1


class Speaker(Model):
    """An adapter that yields what it has in lists."""

    provider_id = "test"
    specification = "test"

    @batched
    async def _stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        yield [StreamStart(model_id="m"), TextChunk(text_delta="one ")]
        yield [TextChunk(text_delta="two "), TextChunk(text_delta=b"no text")]  # type: ignore[arg-type]
        yield [StreamDone(finish_reason="stop")]


class Louder(Speaker):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        async for chunk in super()._stream(request):
            yield TextChunk(text_delta=chunk.text_delta.upper()) if type(chunk) is TextChunk else chunk


async def test_a_chunk_that_breaks_a_rule_ends_the_stream_behind_those_before_it() -> None:
    async with aclosing(Speaker("m").stream(HELLO)) as stream:
        batches = [[delta.kind for delta in deltas] async for deltas in stream.batches]
    assert batches == [["start", "text"], ["text"], ["error"]]


async def test_a_subclass_reads_chunk_after_chunk() -> None:
    deltas = [delta async for delta in Louder("m").stream(HELLO)]
    assert words_in(deltas) == ["ONE ", "TWO "]


async def test_a_stream_that_is_closed_gives_nothing_more() -> None:
    stream = Speaker("m").stream(HELLO)
    assert (await anext(stream)).kind == "start"
    await stream.aclose()
    assert [delta async for delta in stream] == []


# ── how much is called for one delta: a count, so that a detour shows without a clock ──


@contextmanager
def counting_calls() -> Generator[list[int]]:
    """The frames of turnlog that are entered or resumed."""
    seen = [0]

    def note(frame: FrameType, what: str, arg: Any) -> None:
        if what == "call" and "/turnlog/" in frame.f_code.co_filename:
            seen[0] += 1

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


async def _calls_of(protocol: str, count: int) -> int:
    async with speaking(protocol, ["word "] * count) as model, aclosing(model.stream(HELLO)) as stream:
        with counting_calls() as seen:
            heard = [deltas async for deltas in stream.batches]
    assert sum(len(words_in(deltas)) for deltas in heard) == count
    return seen[0]


@pytest.mark.parametrize(
    ("protocol", "most"),
    [
        ("openai-chat", 1),
        ("openai-responses", 4),
        ("anthropic-messages", 0),
        ("gemini", 1),
    ],
)
async def test_a_delta_more_in_a_piece_costs_few_calls(protocol: str, most: int) -> None:
    few, many = await _calls_of(protocol, 40), await _calls_of(protocol, 240)
    assert (many - few) / 200 <= most


# ── the shapes that the reader of events cuts at once ──


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n',
        b'data: {"a": 1}\n\ndata: \n\ndata: {"b": 2}\n\n',
        b'data: {"a": 1}\r\n\r\ndata: {"b": 2}\r\n\r\n',
        b'event: x\ndata: {"a": 1}\n\nevent: y\ndata: {"b": 2}\n\n',
        b'event: x\ndata: {"a": 1}\nfoo\ndata: {"b": 2}\ndata: {"c": 3}\n\n',
        b'event: x\n\nevent: y\ndata: {"a":\ndata: 1}\n\n',
        b'event: x\ndata: {"a":\ndata: {"b": 1}}\n\nevent: y\n\n',
        b'event: x\ndata: {"a": 1}\n\n: note\n\nevent: y\ndata: {"b": 2}\n\n',
        b'data: {"a": 1}\n\n\n\ndata: {"b": 2}\n\n',
        b'data: {"a": 1}\n\nevent: x\ndata: {"b": 2}\n\n',
        b'data: {"a":\rdata: 1}\n\n',
    ],
)
def test_events_are_the_same_however_their_bytes_are_cut(body: bytes) -> None:
    def read(*pieces: bytes) -> list[tuple[str, bytes]]:
        reader = SSEReader()
        found = reader.feed(b": begun\n\n")
        for piece in pieces:
            found += reader.feed(piece)
        return found + reader.end()

    byte_by_byte = read(*(body[at : at + 1] for at in range(len(body))))
    assert read(body) == byte_by_byte
    assert read(body, body) == byte_by_byte * 2


class AtOnce:
    """A server that writes its whole answer at once, each event in its own chunk, and keeps connections."""

    def __init__(self, *events: bytes, broken: bool = False) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
        self._answer = head + chunks + (b"no length\r\n" if broken else b"0\r\n\r\n")
        self.connections: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(self._answer)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def play(self, times: int) -> list[list[MessageDelta]]:
        """The lists of deltas of each answer, to the same model."""
        batches: list[list[MessageDelta]] = []
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        async with server, httpx2.AsyncClient() as client:
            port = server.sockets[0].getsockname()[1]
            model = make_model("openai-chat", f"http://127.0.0.1:{port}", client)
            for _ in range(times):
                async with aclosing(model.stream(HELLO)) as stream:
                    batches += [deltas async for deltas in stream.batches]
            await client.aclose()
            await asyncio.gather(*self.connections)
        return batches


CHUNKS = [chat_wire.chunk({"content": word}) for word in WORDS]


async def test_chunks_that_came_in_one_read_of_the_network_come_together() -> None:
    server = AtOnce(*CHUNKS, chat_wire.chunk({}, "stop"), chat_wire.DONE)
    batches = await server.play(2)
    assert [len(words_in(deltas)) for deltas in batches if words_in(deltas)] == [len(WORDS), len(WORDS)]
    assert len(server.connections) == 1, (
        "an answer that was read to its end leaves its connection for the next"
    )


async def test_what_came_before_a_broken_chunk_is_given_first() -> None:
    batches = await AtOnce(*CHUNKS, broken=True).play(1)
    deltas = [delta for deltas in batches for delta in deltas]
    assert words_in(deltas) == WORDS
    last = deltas[-1]
    assert isinstance(last, ErrorDelta) and last.payload.error_code == "ModelServerError"


async def test_a_router_hands_on_what_came_together() -> None:
    async with speaking("openai-chat", WORDS) as model:
        stream = ProviderRouter([model]).stream(HELLO)
        batches = [deltas async for deltas in stream.batches]
    assert max(len(words_in(deltas)) for deltas in batches) == len(WORDS)
