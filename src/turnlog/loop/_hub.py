"""The last events of a run, for any number of watchers; the log is behind it for what came earlier."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from turnlog.contract import RunEvent

_KEPT = 10_000
"""Events that are kept for watchers who come late or read slowly."""


class Hub:
    """Belongs to the event loop that drives the run; watchers may be in others."""

    __slots__ = ("_events", "_watchers", "closed")

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self._watchers: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.closed = False

    @property
    def first(self) -> int | None:
        """The number of the oldest event that is kept."""
        return self._events[0].seq if self._events else None

    @property
    def last(self) -> int | None:
        """The number of the newest event."""
        return self._events[-1].seq if self._events else None

    def publish(self, told: Sequence[RunEvent]) -> None:
        self._events.extend(told)
        if len(self._events) > 2 * _KEPT:
            del self._events[:-_KEPT]
        if self._watchers:
            self._wake()

    def close(self) -> None:
        """The run is not driven here any more."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        for event, loop in list(self._watchers.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    async def events(self, after: int) -> AsyncIterator[RunEvent]:
        """Events with numbers above ``after``, until the hub is closed. A watcher that reads too slowly
        misses what is no longer kept; the log has the entries."""
        news = asyncio.Event()
        self._watchers[news] = asyncio.get_running_loop()
        try:
            while True:
                news.clear()
                closed = self.closed
                for event in self._events[bisect_right(self._events, after, key=_number) :]:
                    after = event.seq
                    yield event
                if closed:
                    return
                if not self._events or self._events[-1].seq <= after:
                    await news.wait()
        finally:
            del self._watchers[news]


def _number(event: RunEvent) -> int:
    return event.seq
