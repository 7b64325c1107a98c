"""Checks of a store: appending and reading."""

from __future__ import annotations

import asyncio
from typing import Any

from turnlog.contract import (
    AgentError,
)

from ._store_support import IDS, Opened, SealedLog, filled, refused, same, write_notes


async def entries_come_back_as_they_were_written(opened: Opened) -> None:
    store = await opened()
    log = SealedLog()
    first, second = [*log.header(), *log.notes("one", "two")], log.notes("three", "four")
    await store.append(log.session_id, first, expected_tail=0)
    await store.append(log.session_id, second, expected_tail=3)
    wanted = first + second
    same(await store.read(log.session_id), wanted, "read")
    same(await store.read(log.session_id, after=2), wanted[2:], "read(after=2)")
    same(await store.read(log.session_id, after=1, upto=3), wanted[1:3], "read(after=1, upto=3)")
    same(await store.read(log.session_id, after=5), [], "read(after=tail)")
    same(await store.read(log.session_id, upto=99), wanted, "read(upto beyond the tail)")
    same([entry.id for entry in await store.load(log.session_id)], [s.id for s in wanted], "load")
    same([entry.seq for entry in await store.load(log.session_id, after=3)], [4, 5], "load(after=3)")
    tail = await store.tail(log.session_id)
    same(tail and (tail.seq, tail.id), (5, wanted[-1].id), "tail")


async def what_is_missing_is_named(opened: Opened) -> None:
    store = await opened()
    nobody = IDS.session()
    same(await store.tail(nobody), None, "tail of a session that does not exist")
    await refused("SessionNotFound", store.read(nobody), "read of a session that does not exist")
    await refused("SessionNotFound", store.load(nobody), "load of a session that does not exist")
    await refused(
        "SessionReadFailed", store.get_blob("sha256-" + "0" * 64), "get_blob of bytes that are not there"
    )
    log = SealedLog(nobody)
    first = log.header()
    fork = store.fork(nobody, at=1, target=IDS.session(), first=log.notes("x"))
    await refused("SessionNotFound", fork, "fork of a session that does not exist")
    later = store.append(nobody, log.notes("y"), expected_tail=2)
    await refused("SessionConcurrentWrite", later, "append after entries that are not there")
    same(await store.tail(nobody), None, "tail after refused appends")
    await store.append(nobody, first, expected_tail=0)


async def a_batch_is_written_whole_or_not_at_all(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    before = await store.read(log.session_id)
    batch = log.notes("two", "three", "four")
    holed = [batch[0], batch[2]]
    await refused("InvalidEntry", store.append(log.session_id, holed, expected_tail=2), "a batch with a gap")
    await refused("InvalidEntry", store.append(log.session_id, [], expected_tail=2), "an empty batch")
    twice = [batch[0], batch[1]._replace(id=batch[0].id)]
    await refused("InvalidEntry", store.append(log.session_id, twice, expected_tail=2), "an id used twice")
    same(await store.read(log.session_id), before, "the log after refused batches")
    await store.append(log.session_id, batch, expected_tail=2)
    same(await store.read(log.session_id), before + batch, "the log after a good batch")


async def the_same_batch_again_is_done_already(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    batch = log.notes("two", "three")
    await store.append(log.session_id, batch, expected_tail=2)
    await store.append(log.session_id, batch, expected_tail=2)
    await store.append(log.session_id, log.notes("four"), expected_tail=4)
    await store.append(log.session_id, batch, expected_tail=2)
    same([s.seq for s in await store.read(log.session_id)], [1, 2, 3, 4, 5], "the log after repeats")
    other = SealedLog(log.session_id)
    other.seq = 2
    foreign = other.notes("not two", "not three")
    again = store.append(log.session_id, foreign, expected_tail=2)
    await refused("SessionConcurrentWrite", again, "a different batch at the same place")
    mixed = [batch[0], foreign[1]]
    again = store.append(log.session_id, mixed, expected_tail=2)
    await refused("SessionConcurrentWrite", again, "a batch that is there only in part")


async def the_expected_tail_guards_the_log(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one", "two")
    ahead = SealedLog(log.session_id)
    ahead.seq = 7
    error = await refused(
        "SessionConcurrentWrite",
        store.append(log.session_id, ahead.notes("x"), expected_tail=7),
        "an append beyond the tail",
    )
    if not error.retryable:
        raise AssertionError("SessionConcurrentWrite must be retryable")
    anew = SealedLog(log.session_id)
    await refused(
        "SessionConcurrentWrite",
        store.append(log.session_id, anew.header(), expected_tail=0),
        "a second beginning",
    )
    same(len(await store.read(log.session_id)), 3, "entries after refused appends")


async def tasks_that_write_at_once_leave_no_gap(opened: Opened) -> None:
    store = await opened()
    session_id = IDS.session()
    await store.append(session_id, SealedLog(session_id).header(), expected_tail=0)
    won = await asyncio.gather(*(write_notes(store, session_id, f"task {n}", 5) for n in range(6)))
    stored = await store.read(session_id)
    same([s.seq for s in stored], list(range(1, 32)), "seqs after concurrent appends")
    same({s.id for s in stored[1:]}, {id for ids in won for id in ids}, "acknowledged entries")


async def sessions_written_at_once_do_not_mix(opened: Opened) -> None:
    store = await opened()
    logs = [SealedLog() for _ in range(12)]
    wanted = {log.session_id: [*log.header(), *log.notes("a", "b")] for log in logs}
    bad = SealedLog()
    bad.seq = 4
    results = await asyncio.gather(
        *(store.append(id, batch, expected_tail=0) for id, batch in wanted.items()),
        store.append(bad.session_id, bad.notes("nothing before it"), expected_tail=4),
        return_exceptions=True,
    )
    same(results[:-1], [None] * len(logs), "appends to different sessions at once")
    if not isinstance(results[-1], AgentError):
        raise AssertionError("an append that must fail succeeded among others that must not")
    for session_id, batch in wanted.items():
        same(await store.read(session_id), batch, f"session {session_id}")


async def two_openings_share_one_log(opened: Opened) -> None:
    one, two = await opened(), await opened()
    log = await filled(one, "one")
    if await two.tail(log.session_id) is None:
        return  # this store keeps nothing outside the process
    await two.append(log.session_id, log.notes("two"), expected_tail=2)
    late = SealedLog(log.session_id)
    late.seq = 2
    stale = one.append(log.session_id, late.notes("late"), expected_tail=2)
    await refused("SessionConcurrentWrite", stale, "an append from the other opening with an old tail")
    won = await asyncio.gather(
        *(write_notes(store, log.session_id, f"opening {n}", 6) for n, store in enumerate((one, two)))
    )
    stored = await one.read(log.session_id)
    same([s.seq for s in stored], list(range(1, 16)), "seqs after two openings wrote")
    same({s.id for s in stored[3:]}, {id for ids in won for id in ids}, "acknowledged entries")
    same(await two.read(log.session_id), stored, "the log as the other opening sees it")


async def every_text_survives(opened: Opened) -> None:
    store = await opened()
    texts = [
        "",
        "nul \0 and controls \x01\x1f\x7f",
        "line\nends\r\n\u2028\u2029\u0085",
        "„ßüß“ 漢字 🜁 é é",
        '"quoted" \\ back',
        "x" * 1_500_000,
        '{"commit":{"seq":1}}',
    ]
    log = SealedLog()
    batch = [*log.header("漢字 🜁"), *log.notes(*texts)]
    await store.append(log.session_id, batch, expected_tail=0)
    same(await store.read(log.session_id), batch, "entries with awkward text")
    found: list[Any] = [entry.payload for entry in (await store.load(log.session_id))[1:]]
    same([payload.data["text"] for payload in found], texts, "the texts themselves")


async def every_session_id_works_or_is_refused(opened: Opened) -> None:
    store = await opened()
    suffix = IDS.session()
    names = ["a/b", "../up", "a b", "ü漢🜁", "x:y%2Fz", "a'b\"c", ".", "CON", "a.b", "-rf", "a\\b", "*?"]
    logs = [SealedLog(f"{name} {suffix}") for name in names] + [
        SealedLog(f".{suffix}"),
        SealedLog(f"~{suffix}"),
    ]
    for log in logs:
        await store.append(log.session_id, log.header(log.session_id), expected_tail=0)
    for log in logs:
        same([s.seq for s in await store.read(log.session_id)], [1], f"session {log.session_id!r}")
    listed = {info.session_id for info in await store.sessions()}
    same({log.session_id for log in logs} - listed, set[str](), "ids that the list of sessions lacks")
    for bad in ("", "a\0b", "line\nend", "x" * 500):
        log = SealedLog("s")
        await refused("InvalidEntry", store.append(bad, log.header(), expected_tail=0), f"the id {bad[:9]!r}")


async def a_cancelled_append_is_whole_or_nothing(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    tail = 2
    for delay in (0, 0.0001, 0.0005, 0.002):
        batch = log.notes("two", "three")
        task = asyncio.ensure_future(store.append(log.session_id, batch, expected_tail=tail))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.append(log.session_id, batch, expected_tail=tail)
        tail += 2
        found = [s.seq for s in await store.read(log.session_id)]
        same(found, list(range(1, tail + 1)), "the log after a cancelled append was repeated")


async def closing_keeps_what_was_written(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    wanted = await store.read(log.session_id)
    name = await store.put_blob(b"kept")
    shared = await (await opened()).tail(log.session_id) is not None
    await store.close()
    await store.close()
    if shared:
        again = await opened()
        same(await again.read(log.session_id), wanted, "the log after closing and opening again")
        same(await again.get_blob(name), b"kept", "stored bytes after closing and opening again")
