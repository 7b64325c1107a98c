"""The transport by itself: clients, limits of time and size, what is logged."""

from __future__ import annotations

import asyncio
import gzip
import logging
import zlib
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import httpx2
import pytest

from models.recorded import collect, outcome_of
from turnlog.contract import AgentError, Chunk, StreamDone, StreamStart, TextChunk
from turnlog.models import ModelRequest
from turnlog.models.http import HttpModel, HttpModelConfig
from turnlog.models.http._model import find_key, find_url, is_loopback
from turnlog.models.http._read import SilenceWatch, inflater
from turnlog.testing import Loopback, LoopbackAnswer

pytestmark = pytest.mark.usefixtures("transport")

BODY = b"data: one\n\ndata: two\n\ndata: end\n\n"


class Plain(HttpModel):
    """The smallest adapter: every event is text, ``end`` ends."""

    provider_id: ClassVar[str] = "plain"
    specification: ClassVar[str] = "plain"
    default_base_url: ClassVar[str] = "https://plain.example"
    url_variables: ClassVar[tuple[str, ...]] = ("PLAIN_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("PLAIN_KEY", "PLAIN_TOKEN")
    limits: ClassVar[dict[str, int]] = {}

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        config: HttpModelConfig = request.config
        headers = {"authorization": f"Bearer {self._key(config)}"}
        async with self._send(request, f"{self._url(config)}/say", b'{"a":1}', headers) as exchange:
            yield StreamStart(model_id=config.model_id, request_id=exchange.request_id)
            async for events in exchange.sse(**self.limits):
                for _, data in events:
                    if data == b"end":
                        exchange.finished()
                        yield StreamDone(finish_reason="stop")
                        return
                    yield TextChunk(text_delta=data.decode())


class Narrow(Plain):
    limits: ClassVar[dict[str, int]] = {"max_event": 1000, "max_total": 5000}


@pytest.mark.spec("P-1")
async def test_nothing_is_opened_before_the_first_call() -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as server:
        model = Plain("m", base_url=server.url)
        assert server.connections == 0
        assert outcome_of(await collect(model)).text == "onetwo"
        await model.close()
        await server.no_connections()
        assert outcome_of(await collect(model)).text == "onetwo", "a closed model may be used again"
        await model.close()


def test_one_model_in_several_event_loops() -> None:
    model = Plain("m")

    async def once() -> str:
        async with Loopback(LoopbackAnswer.sse(BODY)) as server:
            model.update_config(base_url=server.url)
            found = outcome_of(await collect(model))
            await model.close()
            return found.text

    assert [asyncio.run(once()) for _ in range(3)] == ["onetwo"] * 3


async def test_many_streams_at_once() -> None:
    async with Loopback(LoopbackAnswer.sse(BODY, pieces=5)) as server:
        model = Plain("m", base_url=server.url)
        found = await asyncio.gather(*(collect(model) for _ in range(30)))
        assert {outcome_of(deltas).text for deltas in found} == {"onetwo"}
        await model.close()


async def test_a_slow_consumer_is_not_silence() -> None:
    async with Loopback(LoopbackAnswer.sse(BODY, pieces=11, piece_delay=0.01)) as server:
        model = Plain("m", base_url=server.url, timeout_silence=1.0)
        kinds: list[str] = []
        async for delta in model.stream([]):
            kinds.append(delta.kind)
            if kinds == ["start", "text"]:
                await asyncio.sleep(1.2)
        assert kinds == ["start", "text", "text", "done"]
        await model.close()


async def test_keep_alives_are_not_silence() -> None:
    body = b": ping\n\n" * 25 + BODY
    async with Loopback(LoopbackAnswer.sse(body, pieces=8, piece_delay=0.03)) as server:
        model = Plain("m", base_url=server.url, timeout_silence=0.6)
        assert outcome_of(await collect(model)).finish == "stop"
        await model.close()


async def test_the_watch_leaves_other_cancellations_alone() -> None:
    watch = SilenceWatch(5.0)

    async def wait() -> None:
        watch.begin()
        await asyncio.sleep(10)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not watch.took_effect()
    watch.stop()


@pytest.mark.spec("E-2")
@pytest.mark.parametrize(
    "body",
    [b"data: " + b"x" * 3000, b"data: " + b"x" * 3000 + b"\n\n", b": ping\n\n" * 2000],
    ids=["one endless line", "one huge event", "endless comments"],
)
async def test_limits_of_size(body: bytes) -> None:
    async with Loopback(LoopbackAnswer.sse(body, pieces=700)) as server:
        model = Narrow("m", base_url=server.url)
        error = outcome_of(await collect(model)).error
        assert (error.error_code, error.retryable) == ("ModelProtocolError", False)
        await server.no_connections()
        await model.close()


async def test_a_compressed_bomb_meets_the_limits() -> None:
    bomb = gzip.compress(b": " + b"\0" * 50_000_000)
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    async with Loopback(LoopbackAnswer(body=bomb, headers=headers)) as server:
        model = Narrow("m", base_url=server.url)
        assert outcome_of(await collect(model)).error.error_code == "ModelProtocolError"
        await model.close()


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("packing", ["gzip", "two members", "zlib", "raw deflate"])
def test_inflating_in_steps(packing: str, size: int) -> None:
    plain = bytes(range(256)) * 4000
    match packing:
        case "gzip":
            packed = gzip.compress(plain)
        case "two members":
            packed = gzip.compress(plain[:70_000]) + gzip.compress(plain[70_000:])
        case "zlib":
            packed = zlib.compress(plain)
        case _:
            packer = zlib.compressobj(wbits=-15)
            packed = packer.compress(plain) + packer.flush()
    feed = inflater("gzip" if packing in ("gzip", "two members") else "deflate")
    pieces = [piece for at in range(0, len(packed), size) for piece in feed(packed[at : at + size])]
    assert b"".join(pieces) == plain
    assert max(map(len, pieces)) <= 256 * 1024


@pytest.mark.spec("P-3", "E-2")
async def test_addresses_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HttpModelConfig(model_id="m")
    assert find_url(config, ("PLAIN_URL",), "https://d.example/") == "https://d.example"
    with pytest.raises(AgentError, match="set PLAIN_KEY or PLAIN_TOKEN in the environment") as found:
        find_key(config, ("PLAIN_KEY", "PLAIN_TOKEN"), "https://d.example", "plain")
    assert found.value.code == "ModelAuthError"
    assert find_key(config, ("PLAIN_KEY",), "http://localhost:9", "plain") is None
    monkeypatch.setenv("PLAIN_TOKEN", " key-of-the-environment ")
    monkeypatch.setenv("PLAIN_URL", "https://e.example/v2/")
    assert (
        find_key(config, ("PLAIN_KEY", "PLAIN_TOKEN"), "https://d.example", "plain")
        == "key-of-the-environment"
    )
    assert find_url(config, ("PLAIN_URL",), "https://d.example/") == "https://e.example/v2"
    monkeypatch.setenv("PLAIN_URL", "e.example")
    with pytest.raises(AgentError, match="environment variable PLAIN_URL"):
        find_url(config, ("PLAIN_URL",), "https://d.example/")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:80", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:80", True),
        ("http://localhost/x", True),
        ("http://a.localhost", True),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_what_is_this_machine(url: str, local: bool) -> None:
    assert is_loopback(url) is local


async def test_a_client_handed_in_stays_open() -> None:
    async with (
        Loopback(LoopbackAnswer.sse(BODY)) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
    ):
        model = Plain("m", client=client)
        assert outcome_of(await collect(model)).text == "onetwo"
        await model.close()
        assert not client.is_closed
        assert server.requests[0].path == "/say"


@pytest.mark.spec("E-3")
async def test_extra_headers_replace_ours() -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as server:
        model = Plain(
            "m", base_url=server.url, extra_headers={"Authorization": "Basic other-secret", "x-a": "b"}
        )
        await collect(model)
        await model.close()
    headers = server.requests[0].headers
    assert (headers["authorization"], headers["x-a"]) == ("Basic other-secret", "b")


@pytest.mark.spec("O-3", "E-3")
async def test_debug_records(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.DEBUG, "turnlog.provider")

    async def call() -> list[Any]:
        caplog.clear()
        async with Loopback(LoopbackAnswer.sse(BODY)) as server:
            model = Plain("m", base_url=server.url, api_key="sk-canary-24681357")
            await collect(model)
            await model.close()
        return [vars(record) for record in caplog.records if record.name == "turnlog.provider"]

    monkeypatch.setenv("TURNLOG_DEBUG", "history,context")
    assert await call() == []
    monkeypatch.setenv("TURNLOG_DEBUG", "history, provider")
    request, response = await call()
    assert request["body"] == '{"a":1}'
    assert request["headers"]["authorization"] == "[secret]"
    assert response["headers"]["content-type"] == "text/event-stream"
    assert "canary" not in f"{request}{response}"


async def test_no_task_is_left_behind() -> None:
    async with Loopback(LoopbackAnswer.sse(BODY, cut_at=12, then="stall")) as server:
        model = Plain("m", base_url=server.url)
        before = asyncio.all_tasks()
        stream = model.stream([])
        async for delta in stream:
            if delta.kind == "text":
                break
        await stream.aclose()
        await server.no_connections()
        assert asyncio.all_tasks() <= before
        await model.close()


async def test_the_loopback_server_plays_what_it_is_given() -> None:
    answers = [
        LoopbackAnswer(body=b"abc", status=418, headers={"x-a": "b"}, framing="length"),
        LoopbackAnswer(body=b"abcdef", pieces=[1, 2]),
        LoopbackAnswer(body=b"abcdef", framing="close", cut_at=2),
    ]
    async with Loopback(*answers) as server, httpx2.AsyncClient(base_url=server.url) as client:
        first = await client.post("/x?y=1", content=b"hello")
        assert (first.status_code, first.headers["x-a"], first.content) == (418, "b", b"abc")
        assert (await client.get("/")).content == b"abcdef"
        assert (await client.get("/")).content == b"ab"
        assert (await client.get("/")).content == b"ab", "the last answer is played for ever"
    seen = server.requests[0]
    assert (seen.method, seen.path, seen.body) == ("POST", "/x?y=1", b"hello")
    assert answers[1].parts() == [b"a", b"bc", b"de", b"f"]
