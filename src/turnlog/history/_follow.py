"""Watching a log grow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from ..contract import Clock, Entry, Store

INTERVAL = 0.2
_HINTED = 1.0
"""Seconds between two looks at a store that says when to look: its hints may be lost."""


@runtime_checkable
class Announcing(Protocol):
    """A store that hears of changes, which others may have made."""

    async def wait_for_change(self, session_id: str, after: int, timeout: float) -> None:
        """Until the log may have grown past entry ``after``, ``timeout`` seconds at most."""
        ...


async def follow(
    store: Store, session_id: str, after: int = 0, *, clock: Clock, interval: float = INTERVAL
) -> AsyncIterator[Entry]:
    """Entries after ``after``, those that are there and then those that come, for as long as it is read.

    Looks every ``interval`` seconds of ``clock``; a store that hears of changes says when to look, and is
    looked at less often beside. A session that does not exist yet is waited for.
    """
    while True:
        tail = await store.tail(session_id)
        if tail is None or tail.seq <= after:
            if isinstance(store, Announcing):
                await store.wait_for_change(session_id, after, max(interval, _HINTED))
            else:
                await clock.sleep(interval)
            continue
        for entry in await store.load(session_id, after=after):
            after = entry.seq
            yield entry
