"""What networks and providers do wrong, to every adapter: one terminal, the right code.

Converse runs through botocore's own client, so what is special to SSE does not concern it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from models.adapters_under_test import known_protocols, make_model
from models.bedrock_wire import CLAUDE, client_of
from models.good_answers import ARGUMENTS, GOOD, IN_BAND, TAIL, TEXT
from models.recorded import Outcome, collect, outcome_of
from turnlog.contract import DeltaGrammar, MessageDelta
from turnlog.models import Model
from turnlog.models.bedrock import BedrockModel
from turnlog.testing import FixedClock, FixedIds, Loopback, LoopbackAnswer

pytestmark = pytest.mark.usefixtures("transport")

CONVERSE = "bedrock-converse"
PROTOCOLS = [protocol for protocol in GOOD if protocol in known_protocols()]
ALL = [*PROTOCOLS, CONVERSE]
QUICK = {"timeout_connect": 5.0, "timeout_first_byte": 0.2, "timeout_silence": 0.2}
SSE = {"content-type": "text/event-stream"}


def body(protocol: str) -> bytes:
    return b"".join(GOOD[protocol])


@asynccontextmanager
async def speaking(protocol: str, url: str, **fields: Any) -> AsyncIterator[Model]:
    if protocol != CONVERSE:
        model = make_model(protocol, url, **fields)
        yield model
        await model.close()
        return
    client = client_of(url)
    fields.pop("timeout_connect", None)
    yield BedrockModel(CLAUDE, client=client, clock=FixedClock(), ids=FixedIds(), **fields)
    client.close()


async def play(protocol: str, answer: LoopbackAnswer, **fields: Any) -> Outcome:
    """One call; checks on the way what holds for every stream, whatever happened to it."""
    async with Loopback(answer) as server:
        async with speaking(protocol, server.url, **fields) as model:
            deltas = await collect(model)
        if protocol != CONVERSE:  # what botocore raised holds its connection until it is collected
            await server.no_connections()
    check_grammar(deltas)
    return outcome_of(deltas)


def check_grammar(deltas: list[MessageDelta]) -> None:
    grammar = DeltaGrammar()
    for delta in deltas:
        call = getattr(delta.payload, "tool_call_id", None)
        assert grammar.check(delta.kind, call, delta.seq) is None
    assert grammar.state == "ended"


@pytest.mark.spec("P-2", "D-2", "D-3")
@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_a_good_answer(protocol: str, framing: Any) -> None:
    found = await play(protocol, LoopbackAnswer.sse(body(protocol), framing=framing))
    assert (found.text, found.finish, found.error) == (TEXT, "tool_calls", None)
    assert found.calls == [("get_weather", ARGUMENTS)]
    assert (found.usage.input_tokens, found.usage.output_tokens) == (10, 5)


HARMLESS: dict[str, Callable[[list[bytes]], LoopbackAnswer]] = {
    "one byte at a time": lambda e: LoopbackAnswer.sse(b"".join(e), pieces=1),
    "cut inside characters": lambda e: LoopbackAnswer.sse(b"".join(e), pieces=[3, 5, 2, 1, 7]),
    "CRLF": lambda e: LoopbackAnswer.sse(b"".join(e).replace(b"\n", b"\r\n"), pieces=3),
    "CR": lambda e: LoopbackAnswer.sse(b"".join(e).replace(b"\n", b"\r"), pieces=3),
    "byte order mark": lambda e: LoopbackAnswer.sse(b"\xef\xbb\xbf" + b"".join(e), pieces=2),
    "keep-alive comments": lambda e: LoopbackAnswer.sse(b": ping\n\n" + b": ping\n\n".join(e)),
    "ids and retry": lambda e: LoopbackAnswer.sse(b"".join(b"id: 1\nretry: 5\n" + one for one in e)),
    "no space after the colon": lambda e: LoopbackAnswer.sse(b"".join(e).replace(b"data: ", b"data:")),
    "no blank line at the end": lambda e: LoopbackAnswer.sse(b"".join(e).rstrip(b"\n")),
    "gzip unasked": lambda e: LoopbackAnswer(
        body=gzip.compress(b"".join(e)), headers={**SSE, "content-encoding": "gzip"}, pieces=11
    ),
    "JSON content type": lambda e: LoopbackAnswer(
        body=b"".join(e), headers={"content-type": "application/json"}
    ),
    "no content type": lambda e: LoopbackAnswer(body=b"".join(e)),
}


@pytest.mark.spec("P-2")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", HARMLESS)
async def test_what_does_no_harm(protocol: str, kind: str) -> None:
    found = await play(protocol, HARMLESS[kind](GOOD[protocol]))
    assert found.error is None
    assert (found.text, found.finish) == (TEXT, "tool_calls")
    assert found.calls == [("get_weather", ARGUMENTS)]


def _half(events: list[bytes]) -> bytes:
    return b"".join(events[: len(events) // 2])


def _broken_utf8(events: list[bytes]) -> bytes:
    return b"".join(events).replace("ü".encode(), b"\xc3\x28")


SERVER, TIMEOUT, PROTOCOL = {"ModelServerError"}, {"ModelTimeout"}, {"ModelProtocolError"}
CUT = SERVER | PROTOCOL

HARMFUL: dict[str, tuple[Callable[[list[bytes], bytes], LoopbackAnswer], set[str]]] = {
    "closed before the status": (lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=-1), SERVER),
    "reset before the status": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=-1, then="reset"),
        SERVER,
    ),
    "silent before the status": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=-1, then="stall"),
        TIMEOUT,
    ),
    "slow to answer": (lambda e, _: LoopbackAnswer.sse(b"".join(e), delay=0.6), TIMEOUT),
    "headers and no more": (lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=0, then="stall"), TIMEOUT),
    "closed after the headers": (lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=0), SERVER),
    "closed in the middle": (lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=len(_half(e))), SERVER),
    "reset in the middle": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=len(_half(e)), then="reset"),
        SERVER,
    ),
    "silent in the middle": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=len(_half(e)), then="stall"),
        TIMEOUT,
    ),
    "ends in the middle, in order": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=len(_half(e)), then="end"),
        CUT,
    ),
    "ends inside an event, in order": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), cut_at=len(_half(e)) + 20, then="end"),
        CUT,
    ),
    "shorter than announced": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), framing="length", cut_at=len(_half(e))),
        SERVER,
    ),
    "connection ends in the middle": (
        lambda e, _: LoopbackAnswer.sse(b"".join(e), framing="close", cut_at=len(_half(e))),
        CUT,
    ),
    "no body at all": (lambda e, _: LoopbackAnswer.sse(b""), CUT),
    "comments alone": (lambda e, _: LoopbackAnswer.sse(b": ping\n\n" * 50), CUT),
    "not JSON": (lambda e, _: LoopbackAnswer.sse(e[0] + b"data: {nonsense\n\n" + b"".join(e[1:])), PROTOCOL),
    "broken UTF-8": (lambda e, _: LoopbackAnswer.sse(_broken_utf8(e)), PROTOCOL),
    "JSON of another kind": (
        lambda e, _: LoopbackAnswer.sse(b"data: [1, 2]\n\n" * 3),
        CUT | {"ModelUnknownError"},
    ),
    "HTML with status 200": (
        lambda e, _: LoopbackAnswer(body=b"<html>Sign in</html>", headers={"content-type": "text/html"}),
        PROTOCOL,
    ),
    "error in band at first": (lambda e, error: LoopbackAnswer.sse(error), {"ModelOverloaded"}),
    "error in band later": (lambda e, error: LoopbackAnswer.sse(_half(e) + error), {"ModelOverloaded"}),
    "JSON error with status 200": (
        lambda e, _: LoopbackAnswer.json({"error": {"message": "The server is overloaded", "code": 503}}),
        {"ModelOverloaded"},
    ),
    "damaged gzip": (
        lambda e, _: LoopbackAnswer(
            body=b"\x1f\x8b" + b"x" * 90, headers={**SSE, "content-encoding": "gzip"}
        ),
        PROTOCOL,
    ),
    "unknown compression": (
        lambda e, _: LoopbackAnswer(body=b"".join(e), headers={**SSE, "content-encoding": "br"}),
        PROTOCOL,
    ),
    "gateway's page": (
        lambda e, _: LoopbackAnswer(
            body=b"<html>502</html>", status=502, headers={"content-type": "text/html"}
        ),
        SERVER,
    ),
    "error body that never ends": (
        lambda e, _: LoopbackAnswer(body=b"x" * 900_000, status=500, pieces=9000),
        SERVER,
    ),
    "error body that stalls": (
        lambda e, _: LoopbackAnswer(body=b"x" * 50, status=500, cut_at=10, then="stall"),
        SERVER,
    ),
    "redirect": (
        lambda e, _: LoopbackAnswer(
            status=307, headers={"location": "http://127.0.0.1:1/x"}, framing="length"
        ),
        {"ModelBadRequest"},
    ),
}


NOT_CONVERSE = {
    "silent before the status",
    "comments alone",
    "not JSON",
    "broken UTF-8",
    "JSON of another kind",
    "JSON error with status 200",
    "damaged gzip",
    "unknown compression",
    "error body that stalls",
    "redirect",
}
"""What cannot happen to frames with a checksum, what botocore sees to by itself, and what it waits for
where nobody can reach its connection: until its own timeout."""


@pytest.mark.spec("P-4", "D-4", "D-5", "E-2")
@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        (protocol, kind)
        for kind in HARMFUL
        for protocol in ALL
        if protocol != CONVERSE or kind not in NOT_CONVERSE
    ],
)
async def test_what_does_harm(protocol: str, kind: str) -> None:
    make, codes = HARMFUL[kind]
    answer = make(GOOD[protocol], IN_BAND[protocol])
    waits = answer.then == "stall" or answer.delay
    found = await play(protocol, answer, **(QUICK if waits else {}))
    assert found.finish is None
    assert found.error is not None
    assert found.error.error_code in codes, found.error
    assert TEXT.startswith(found.text)


@pytest.mark.spec("D-4")
@pytest.mark.parametrize("protocol", ALL)
async def test_every_cut(protocol: str) -> None:
    """Cut in order at each byte of an event border and in the middle of each event: never a clean finish
    before the last event but one."""
    events = GOOD[protocol]
    last = len(events) - TAIL.get(protocol, 1)
    at = 0
    for event in events[:last]:
        for place in (at, at + len(event) // 2):
            answer = LoopbackAnswer.sse(body(protocol), cut_at=place, then="end")
            found = await play(protocol, answer)
            assert found.error is not None, place
        at += len(event)


@pytest.mark.spec("P-4")
@pytest.mark.parametrize("protocol", ALL)
async def test_no_server_there(protocol: str) -> None:
    async with Loopback() as server:
        address = server.url
    async with speaking(protocol, address) as model:
        found = outcome_of(await collect(model))
    assert (found.error.error_code, found.error.retryable) == ("ModelUnreachable", True)
    assert ("and network" if protocol == CONVERSE else "is the server running") in found.error.message
    assert address.rpartition(":")[2] in found.error.message, "it says the address"


@pytest.mark.spec("P-4")
@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "ModelBadRequest", False),
        (401, "ModelAuthError", False),
        (402, "ModelQuotaExceeded", False),
        (403, "ModelAuthError", False),
        (404, "ModelNotFound", False),
        (408, "ModelTimeout", True),
        (413, "ModelContextOverflow", False),
        (429, "ModelRateLimited", True),
        (500, "ModelServerError", True),
        (502, "ModelServerError", True),
        (503, "ModelOverloaded", True),
        (529, "ModelOverloaded", True),
    ],
)
async def test_statuses(protocol: str, status: int, code: str, retryable: bool) -> None:
    answer = LoopbackAnswer.json({"error": {"message": "no"}}, status, {"retry-after": "9"})
    found = await play(protocol, answer)
    assert (found.error.error_code, found.error.retryable) == (code, retryable)
    assert found.error.retry_after == 9


@pytest.mark.spec("P-11", "L-7")
@pytest.mark.parametrize("protocol", ALL)
async def test_closing_the_stream_closes_the_connection(protocol: str) -> None:
    answer = LoopbackAnswer.sse(body(protocol), cut_at=len(_half(GOOD[protocol])), then="stall")
    async with Loopback(answer) as server, speaking(protocol, server.url) as model:
        stream = model.stream([])
        async for delta in stream:
            if delta.kind == "text":
                break
        assert server.open_connections == 1
        await stream.aclose()
        await server.no_connections()


@pytest.mark.spec("P-11", "L-7")
@pytest.mark.parametrize(
    ("protocol", "cut"),
    [(protocol, cut) for cut in (-1, 0, 200) for protocol in ALL if protocol != CONVERSE or cut >= 0],
)
async def test_cancelling_closes_the_connection(protocol: str, cut: int) -> None:
    answer = LoopbackAnswer.sse(body(protocol), cut_at=cut, then="stall")
    async with Loopback(answer) as server, speaking(protocol, server.url) as model:
        task = asyncio.create_task(collect(model))
        await server.next_request()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.no_connections()


@pytest.mark.parametrize("protocol", ALL)
async def test_a_finished_answer_leaves_the_connection_for_the_next(protocol: str) -> None:
    answer = LoopbackAnswer.sse(body(protocol))
    async with Loopback(answer) as server, speaking(protocol, server.url) as model:
        for _ in range(3):
            assert outcome_of(await collect(model)).finish == "tool_calls"
        assert (len(server.requests), server.connections) == (3, 1)


@pytest.mark.spec("E-3")
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_key_appears_nowhere(
    protocol: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNLOG_DEBUG", "provider")
    caplog.set_level("DEBUG")
    echo = {"error": {"message": "wrong key sk-test-key-of-no-worth in the request"}}
    async with Loopback(LoopbackAnswer.json(echo, 401)) as server:
        model = make_model(protocol, server.url)
        deltas = await collect(model)
        await model.close()
    assert any("no-worth" in value for value in server.requests[0].headers.values())
    seen = f"{deltas} {model.get_config()} {[vars(record) for record in caplog.records]}"
    assert "turnlog.provider" in seen
    assert "no-worth" not in seen
