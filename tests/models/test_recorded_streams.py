"""Every recorded and constructed exchange, through the adapter that speaks its protocol."""

from __future__ import annotations

import random
from collections import Counter

import httpx2
import pytest

from models.adapters_under_test import NOT_READ
from models.recorded import (
    bare,
    body_of,
    check_outcome,
    cut_points,
    exchange_names,
    load,
    outcome_of,
    play_over_http,
    play_pieces,
)
from slices import slice_of

NAMES = exchange_names()
STREAMS = [name for name in NAMES if load(name)["stream"] and load(name)["response"]["status"] == 200]
CUT = [
    name
    for name in STREAMS
    if not (load(name)["expected"] or {}).get("error")
    and cut_points(load(name), 1)
    and load(name)["id"] not in NOT_READ
]

pytestmark = pytest.mark.skipif(not NAMES, reason="no recorded exchanges here; set TURNLOG_SHARED")


def _short(name: str) -> str:
    return name.removesuffix(".json").rpartition("/")[2]


@pytest.mark.spec("P-2", "P-4", "P-5", "D-7")
@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("name", NAMES, ids=_short)
async def test_an_exchange_reads_as_it_was_recorded(name: str) -> None:
    exchange = load(name)
    deltas = await play_over_http(exchange)
    assert [delta.seq for delta in deltas] == list(range(1, len(deltas) + 1))
    assert deltas[0].kind == "start"
    check_outcome(exchange, outcome_of(deltas))


@pytest.mark.spec("P-2", "D-2")
@pytest.mark.parametrize("name", STREAMS, ids=_short)
async def test_where_the_network_cuts_does_not_matter(name: str) -> None:
    exchange = load(name)
    body = body_of(exchange)
    whole = bare(await play_pieces(exchange, [body]))
    size = 1 if len(body) <= 20_000 else 3
    assert bare(await play_pieces(exchange, _every(body, size))) == whole
    assert bare(await play_pieces(exchange, _random(body, name))) == whole


@pytest.mark.spec("D-4", "D-5")
@pytest.mark.parametrize("name", CUT, ids=_short)
async def test_a_cut_answer_is_an_error(name: str) -> None:
    exchange = load(name)
    body = body_of(exchange)
    for at in cut_points(exchange):
        for failure in (None, httpx2.RemoteProtocolError("peer closed connection")):
            found = outcome_of(await play_pieces(exchange, [body[:at]], failure))
            assert found.finish is None, f"a clean finish after {at} of {len(body)} bytes"
            assert found.error is not None
            assert found.error.retryable, found.error


SLICES = 25


@pytest.mark.spec("P-2", "D-2", "D-4", "D-5")
@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("name", CUT[slice_of(SLICES) :: SLICES], ids=_short)
async def test_pieces_and_cuts_of_a_real_connection(name: str) -> None:
    await _pieces_and_cuts(name)


@pytest.mark.soak
@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("name", CUT, ids=_short)
async def test_pieces_and_cuts_of_every_stream(name: str) -> None:
    await _pieces_and_cuts(name)


async def _pieces_and_cuts(name: str) -> None:
    exchange = load(name)
    body = body_of(exchange)
    whole = bare(await play_pieces(exchange, [body]))
    for sizes in ([len(piece) for piece in _random(body, name)], None):
        assert bare(await play_over_http(exchange, pieces=sizes)) == whole
    for at in cut_points(exchange, 8):
        for then in ("close", "end"):
            found = outcome_of(await play_over_http(exchange, cut_at=at, then=then))
            assert found.finish is None, f"a clean finish after {at} of {len(body)} bytes"
            assert found.error is not None and found.error.retryable, found.error


def test_how_many_exchanges_there_are() -> None:
    counts = Counter(load(name)["protocol"] for name in NAMES)
    cuts = sum(2 * len(cut_points(load(name))) for name in CUT)
    print(f"\nexchanges {sum(counts.values())}: {dict(counts)}; streams {len(STREAMS)}; cuts {cuts}")
    assert counts["openai-chat"] >= 69


def _every(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def _random(body: bytes, seed: str) -> list[bytes]:
    dice = random.Random(seed)
    pieces: list[bytes] = []
    at = 0
    while at < len(body):
        size = dice.choice((1, 2, 3, 5, 40, 300, 2000))
        pieces.append(body[at : at + size])
        at += size
    return pieces
