"""A limit on waiting that costs next to nothing per wait."""

from __future__ import annotations

import asyncio

_GRACE = 0.02


class SilenceWatch:
    """Breaks off a wait that lasts longer than ``limit`` seconds, like ``asyncio.timeout``.

    One timer serves a whole stream: a wait only writes down when it began, and the timer looks. Time
    that the consumer spends between two waits does not count.
    """

    __slots__ = ("_cancelling", "_fired", "_handle", "_late_since", "_loop", "_since", "_task", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._late_since: float | None = None
        self._task: asyncio.Task[object] | None = None
        self._fired = False
        self._cancelling = 0
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A wait begins now, in this task."""
        self._task = asyncio.current_task()
        self._since = self._loop.time()
        if self._handle is None:
            self._handle = self._loop.call_later(self.limit, self._look)

    def done(self) -> None:
        """What was waited for is here."""
        self._since = None

    def stop(self) -> None:
        self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def took_effect(self) -> bool:
        """After ``CancelledError``: was it ours alone? Then it is to be read as a timeout."""
        if not self._fired or self._task is None:
            return False
        self._fired = False
        return self._task.uncancel() <= self._cancelling

    def restart(self, limit: float) -> None:
        """Another limit from here on."""
        self.stop()
        self.limit = limit

    def _look(self) -> None:
        self._handle = None
        if self._since is None or self._task is None:
            return
        left = self._since + self.limit - self._loop.time()
        if left <= 0 and self._late_since != self._since:
            # The process may have been asleep: let the loop read what has come meanwhile, then look again.
            self._late_since = self._since
            left = _GRACE
        if left > 0:
            self._handle = self._loop.call_later(left, self._look)
            return
        self._since = None
        self._fired = True
        self._cancelling = self._task.cancelling()
        self._task.cancel()
