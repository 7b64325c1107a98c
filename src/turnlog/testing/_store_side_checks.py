"""Checks of a store: forks, erasing, stored bytes, leases, the list of sessions."""

from __future__ import annotations

import asyncio

from turnlog.contract import (
    AgentError,
    Lease,
    Store,
    digest,
)

from ._store_support import IDS, TIME, Opened, SealedLog, filled, refused, same


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
