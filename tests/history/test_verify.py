"""A log is read with distrust: every kind of damage is found, and the entry is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from history.history_log import STARTED, answer, call, open_session, results, write_everything
from turnlog.contract import (
    Custom,
    RunEnded,
    Sealed,
    StoredEntry,
    Tail,
    encode,
    read_envelope,
    seal,
    user_message,
)
from turnlog.history import MemoryStore, verify

Damage = Callable[[list[StoredEntry]], list[StoredEntry]]


async def _damaged(damage: Damage) -> list[tuple[str, int | None]]:
    good = MemoryStore()
    session = await open_session(good)
    await write_everything(session)
    rows = await good.read("s1")
    bad = MemoryStore()
    await bad.append("s1", rows, expected_tail=0)
    bad._logs["s1"].own = damage(list(rows))
    return [(problem.code, problem.seq) for problem in await verify(bad, "s1")]


def _swap_text(rows: list[StoredEntry]) -> list[StoredEntry]:
    rows[5] = rows[5]._replace(body=rows[5].body.replace(b"the words", b"other ones", 1))
    return rows


def _swap_order(rows: list[StoredEntry]) -> list[StoredEntry]:
    rows[2], rows[3] = rows[3], rows[2]
    return rows


def _forge_purge(rows: list[StoredEntry]) -> list[StoredEntry]:
    from turnlog.contract import content_digest

    envelope = read_envelope(rows[5].body)
    forged = (
        rows[5]
        .body.replace(b"the words", b"forged words")
        .replace(b'"hash"', b'"purgedDigest":"' + content_digest(envelope).encode() + b'","hash"')
    )
    rows[5] = rows[5]._replace(body=forged)
    return rows


@pytest.mark.spec("H-5")
@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda rows: rows, []),
        (_swap_text, [("changed", 6)]),
        (_swap_order, [("gap", 3), ("order", 3), ("gap", 4)]),
        (lambda rows: rows[:7] + rows[8:], [("gap", 8)]),
        (lambda rows: [rows[0], rows[1]._replace(body=b"{"), *rows[2:]], [("unreadable", 2)]),
        (lambda rows: [rows[0]._replace(id="x"), *rows[1:]], [("changed", 1)]),
        (_forge_purge, [("changed", 6)]),
    ],
)
async def test_damage_is_found_and_named(damage: Damage, found: list[tuple[str, int | None]]) -> None:
    assert await _damaged(damage) == found


@pytest.mark.spec("H-5")
async def test_any_flipped_bit_of_any_entry_is_found() -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.append_model_input(user_message("hello"), meta={"trace_id": "t"})
    await session.commit()
    rows = await store.read("s1")
    for place, row in enumerate(rows):
        for byte in range(len(row.body)):
            damaged = bytearray(row.body)
            damaged[byte] ^= 1 << byte % 8
            store._logs["s1"].own[place] = row._replace(body=bytes(damaged))
            problems = await verify(store, "s1")
            assert problems, (place, byte)
            assert problems[0].seq in (place + 1, None), problems
        store._logs["s1"].own[place] = row


async def test_content_may_not_vanish_unsaid() -> None:
    from turnlog.history._purge import blank_body

    store = MemoryStore()
    session = await open_session(store)
    entry = session.append_model_input(user_message("hello"))
    await session.commit()
    row = (await store.read("s1"))[1]
    await store.erase("s1", {2: blank_body(row.body, entry)})
    (problem,) = await verify(store, "s1")
    assert (problem.code, problem.seq, problem.entry_id) == ("purge", 2, entry.id)
    session.redact([entry.id])
    await session.commit()
    assert await verify(store, "s1") == []


async def _raw(store: MemoryStore, *payloads: Any, run_id: str | None = None) -> None:
    """Entries as a writer would make them that does not go through a session."""
    rows = await store.read("s1")
    previous = read_envelope(rows[-1].body)
    batch: list[StoredEntry] = []
    last_id, last_hash = previous.id, previous.hash
    for place, payload in enumerate(payloads, previous.seq + 1):
        made: Sealed = seal(
            payload,
            id=f"raw_{place}",
            previous_id=last_id,
            previous_hash=last_hash,
            session_id="s1",
            seq=place,
            timestamp="2026-01-01T00:00:00.000Z",
            run_id=run_id,
        )
        last_id, last_hash = made.entry.id, made.entry.hash
        batch.append(made.stored)
    await store.append("s1", batch, expected_tail=previous.seq)


@pytest.mark.parametrize(
    "payloads",
    [
        [results(("c9", "for nobody"))],
        [answer(call("c1")), answer("too early")],
        [answer(call("c1")), results(("c1", "a")), results(("c1", "b"))],
        [answer(call("c1")), results(("c1", "a")), answer(call("c1"))],
        [RunEnded(status="completed")],
        [STARTED, STARTED],
        [answer()],
    ],
)
async def test_a_log_that_no_session_would_write_is_named(payloads: list[Any]) -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    await _raw(store, *payloads, run_id="run_1")
    (problem, *_) = await verify(store, "s1")
    assert (problem.code, problem.seq) == ("pairing", 2 + len(payloads))


async def test_missing_and_changed_bytes_are_named() -> None:
    store = MemoryStore()
    session = await open_session(store)
    name = await store.put_blob(b"picture")
    session.append_custom("note", {"see": f"blob:{name}", "not": name})
    await session.commit()
    assert await verify(store, "s1") == []
    store._blobs[name] = b"another"
    assert [(problem.code, problem.seq) for problem in await verify(store, "s1")] == [("blob", 2)]
    del store._blobs[name]
    (problem,) = await verify(store, "s1")
    assert "not there" in problem.message


async def test_a_tail_that_lies_is_named() -> None:
    class Lying(MemoryStore):
        async def tail(self, session_id: str) -> Tail | None:
            return Tail(seq=9, id="x", hash="y")

    store = Lying()
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    assert [problem.code for problem in await verify(store, "s1")] == ["tail"]


async def test_a_problem_is_a_value() -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    await _raw(store, Custom(name="x", data={}))
    assert await verify(store, "s1") == []
    store._logs["s1"].own.pop(1)
    problems = await verify(store, "s1")
    assert b'"code":"gap"' in encode(problems[0])
