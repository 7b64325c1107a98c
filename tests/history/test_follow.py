"""Watching a log grow, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio

from history.history_log import open_session
from turnlog.contract import Entry
from turnlog.history import MemoryStore, follow
from turnlog.testing import FaultStore, VirtualClock


async def test_a_follower_sees_every_entry_once_and_in_order() -> None:
    store, clock = MemoryStore(), VirtualClock()
    seen: list[Entry] = []

    async def watch() -> None:
        async for entry in follow(store, "s1", clock=clock, interval=0.5):
            seen.append(entry)

    watching = asyncio.ensure_future(watch())
    await clock.advance(3)
    assert seen == []
    session = await open_session(store)
    session.append_custom("note", {"n": 1})
    await session.commit()
    await clock.advance(0.5)
    assert [entry.seq for entry in seen] == [1, 2]
    for number in (2, 3, 4):
        session.append_custom("note", {"n": number})
        await session.commit()
    await clock.advance(0.5)
    assert seen == session.entries
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_follower_starts_where_it_is_told_and_reads_only_what_is_new() -> None:
    inner, clock = MemoryStore(), VirtualClock(auto=True)
    session = await open_session(inner)
    for number in range(5):
        session.append_custom("note", {"n": number})
    await session.commit()
    store = FaultStore(inner)
    entries = follow(store, "s1", 4, clock=clock)
    assert [(await anext(entries)).seq for _ in range(2)] == [5, 6]
    waiting = asyncio.ensure_future(anext(entries))
    await asyncio.sleep(0.01)
    session.append_custom("note", {"n": 5})
    await session.commit()
    assert (await waiting).seq == 7
    assert [call for call in store.calls if call[0] == "load"] == [("load", 1), ("load", 2)]
    await entries.aclose()  # pyright: ignore[reportAttributeAccessIssue]
