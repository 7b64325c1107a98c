"""Watching a log grow."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ..contract import Clock, Entry, Store

INTERVAL = 0.2


async def follow(
    store: Store, session_id: str, after: int = 0, *, clock: Clock, interval: float = INTERVAL
) -> AsyncIterator[Entry]:
    """Entries after ``after``, those that are there and then those that come, for as long as it is read.

    Looks every ``interval`` seconds of ``clock``. A session that does not exist yet is waited for.
    """
    while True:
        tail = await store.tail(session_id)
        if tail is None or tail.seq <= after:
            await clock.sleep(interval)
            continue
        for entry in await store.load(session_id, after=after):
            after = entry.seq
            yield entry
