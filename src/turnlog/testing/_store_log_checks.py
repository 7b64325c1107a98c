"""Checks of a store: appending and reading, forks, erasing, stored bytes, leases, the list of sessions."""

from __future__ import annotations

import asyncio
from typing import Any

from turnlog.contract import (
    AgentError,
    Lease,
    Store,
    digest,
)

from ._store_support import IDS, TIME, Opened, SealedLog, filled, refused, same, write_notes


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


async def a_fork_shares_the_past_and_nothing_else(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one", "two", "three")
    past = await store.read(log.session_id)
    fork = SealedLog(IDS.session())
    fork.seq = 2
    own = fork.notes("mine")
    await store.fork(log.session_id, at=2, target=fork.session_id, first=own)
    await store.fork(log.session_id, at=2, target=fork.session_id, first=own)
    same(await store.read(fork.session_id), past[:2] + own, "the fork's log")
    await store.append(log.session_id, more := log.notes("four"), expected_tail=4)
    await store.append(fork.session_id, grown := fork.notes("mine too"), expected_tail=3)
    same(await store.read(log.session_id), past + more, "the source after both grew")
    same(await store.read(fork.session_id), past[:2] + own + grown, "the fork after both grew")
    same(await store.read(fork.session_id, after=1, upto=3), [past[1], own[0]], "a slice over the branch")
    same([entry.seq for entry in await store.load(fork.session_id, after=1)], [2, 3, 4], "load(after=1)")
    tail = await store.tail(fork.session_id)
    same(tail and (tail.seq, tail.id), (4, grown[-1].id), "the fork's tail")
    await _check_refused_forks(store, log, fork)


async def _check_refused_forks(store: Store, log: SealedLog, fork: SealedLog) -> None:
    late = SealedLog(IDS.session())
    late.seq = 40
    beyond = store.fork(log.session_id, at=40, target=late.session_id, first=late.notes("x"))
    await refused("InvalidEntry", beyond, "a fork beyond the tail")
    held = SealedLog(fork.session_id)
    held.seq = 1
    again = store.fork(log.session_id, at=1, target=fork.session_id, first=held.notes("x"))
    await refused("SessionConcurrentWrite", again, "a fork into a session that exists")
    info = next(info for info in await store.sessions() if info.session_id == fork.session_id)
    same((info.parent_session_id, info.forked_at, info.entries), (log.session_id, 2, 4), "the fork's listing")


async def a_fork_of_a_fork_reads_through_both(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one", "two", "three")
    past = await store.read(log.session_id)
    middle = SealedLog(IDS.session())
    middle.seq = 3
    own = middle.notes("m1", "m2")
    await store.fork(log.session_id, at=3, target=middle.session_id, first=own)
    for at in (1, 3, 4, 5):
        leaf = SealedLog(IDS.session())
        leaf.seq = at
        first = leaf.notes("leaf")
        await store.fork(middle.session_id, at=at, target=leaf.session_id, first=first)
        wanted = (past[:3] + own)[:at] + first
        same(await store.read(leaf.session_id), wanted, f"a fork at {at} of a fork at 3")
        same(await store.read(leaf.session_id, after=1), wanted[1:], f"the same after 1, at {at}")


async def erasing_replaces_content_and_keeps_the_rest(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "keep", "CANARY-ERASE", "keep too")
    before = await store.read(log.session_id)
    fork = SealedLog(IDS.session())
    fork.seq = 4
    await store.fork(log.session_id, at=4, target=fork.session_id, first=fork.notes("after"))
    blank = before[2].body.replace(b"CANARY-ERASE", b"gone")
    await store.erase(log.session_id, {3: blank})
    wanted = [*before[:2], before[2]._replace(body=blank), before[3]]
    same(await store.read(log.session_id), wanted, "the log after erase")
    same((await store.read(fork.session_id))[:4], wanted, "the fork after erase")
    later = blank.replace(b"gone", b"going")
    await store.erase(fork.session_id, {3: later})
    same((await store.read(log.session_id))[2].body, later, "what a fork erased in its shared past")
    tail = await store.tail(log.session_id)
    same(tail and (tail.seq, tail.id), (4, before[3].id), "the tail after erase")
    await store.append(log.session_id, log.notes("more"), expected_tail=4)


async def bytes_are_kept_once_by_name(opened: Opened) -> None:
    store = await opened()
    for data in (b"", b"\0\xff" * 10, b"x" * 2_000_000, IDS.session().encode()):
        name = await store.put_blob(data)
        same(name, f"sha256-{digest(data)}", "the name of stored bytes")
        same(await store.put_blob(data), name, "the name when stored again")
        same(await store.get_blob(name) == data, True, f"{len(data)} stored bytes coming back the same")
    await refused("SessionReadFailed", store.get_blob("../../etc/passwd"), "get_blob of a path")


async def bytes_that_only_erased_entries_name_go_with_them(opened: Opened) -> None:
    store = await opened()
    single = await store.put_blob(f"single {IDS.session()}".encode())
    shared = await store.put_blob(f"shared {IDS.session()}".encode())
    log = await filled(store, f"blob:{single} blob:{shared}", f"blob:{shared}")
    body = (await store.read(log.session_id))[1].body
    blank = body.replace(single.encode(), b"-").replace(shared.encode(), b"-")
    await store.erase(log.session_id, {2: blank})
    await refused("SessionReadFailed", store.get_blob(single), "get_blob of bytes that were erased")
    await store.get_blob(shared)


async def a_lost_lease_writes_nothing(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    old = await store.claim(log.session_id, owner="a", ttl=60)
    await refused(
        "SessionBusy", store.claim(log.session_id, owner="b", ttl=60), "a claim while another's lease runs"
    )
    await store.append(log.session_id, log.notes("two"), expected_tail=2, lease=old)
    await store.renew(old)
    new = await store.claim(log.session_id, owner="a", ttl=60)
    if new.epoch <= old.epoch:
        raise AssertionError(f"a new claim must have a higher epoch than {old.epoch}, has {new.epoch}")
    batch = log.notes("three")
    stale = store.append(log.session_id, batch, expected_tail=3, lease=old)
    await refused("SessionConcurrentWrite", stale, "an append with an older lease")
    await refused("SessionConcurrentWrite", store.renew(old), "renewing a lost lease")
    await store.release(old)
    await refused(
        "SessionBusy", store.claim(log.session_id, owner="b", ttl=60), "a claim after a lost lease's release"
    )
    same(len(await store.read(log.session_id)), 3, "entries after a fenced append")
    await store.append(log.session_id, batch, expected_tail=3, lease=new)
    await store.release(new)
    other = await store.claim(log.session_id, owner="b", ttl=60)
    gone = store.append(log.session_id, log.notes("four"), expected_tail=4, lease=new)
    await refused("SessionConcurrentWrite", gone, "an append with a lease that was given back")
    await store.release(other)


async def a_lease_runs_out(opened: Opened) -> None:
    store = await opened()
    log = SealedLog()
    old = await store.claim(log.session_id, owner="a", ttl=0.05)
    same(await store.tail(log.session_id), None, "tail of a session that was only claimed")
    await store.append(log.session_id, log.header("Claimed first"), expected_tail=0, lease=old)
    new = await _claim_when_free(store, log.session_id)
    stale = store.append(log.session_id, log.notes("late"), expected_tail=1, lease=old)
    await refused("SessionConcurrentWrite", stale, "an append after another took over")
    info = next(info for info in await store.sessions() if info.session_id == log.session_id)
    same(info.title, "Claimed first", "the title of a session that was claimed before it was made")
    await store.release(new)


async def _claim_when_free(store: Store, session_id: str) -> Lease:
    for _ in range(200):
        try:
            return await store.claim(session_id, owner="b", ttl=60)
        except AgentError as error:
            if error.code != "SessionBusy":
                raise
            await asyncio.sleep(0.02)
    raise AssertionError("a lease of 0.05 s did not run out within 4 s")


async def sessions_are_listed(opened: Opened) -> None:
    store = await opened()
    early, late = SealedLog(), SealedLog()
    await store.append(early.session_id, early.header("Early"), expected_tail=0)
    await store.append(late.session_id, [*late.header(), *late.notes("x", "y")], expected_tail=0)
    mine = {early.session_id, late.session_id}
    listed = [info for info in await store.sessions() if info.session_id in mine]
    same([info.session_id for info in listed], [late.session_id, early.session_id], "last changed first")
    same([info.entries for info in listed], [3, 1], "entries")
    same([info.title for info in listed], [None, "Early"], "titles")
    times = (listed[0].created_at, listed[0].updated_at)
    same(times, (TIME.format(1), TIME.format(3)), "created and updated")
