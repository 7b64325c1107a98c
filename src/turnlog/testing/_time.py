"""Clocks that no machine's load can disturb, and names that are the same on every run."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast

START = "2026-01-01T00:00:00.000Z"
_IDLE_PASSES = 2  # the second pass has seen what the selector had ready
_MAX_PASSES = 100_000


def _text(start: datetime, seconds: float) -> str:
    moment = start + timedelta(milliseconds=round(seconds * 1000))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _parse(start: str) -> datetime:
    return datetime.fromisoformat(start).astimezone(UTC)


class FixedClock:
    """Every ``now`` is ``step`` seconds after the one before; ``sleep`` adds its seconds and returns."""

    def __init__(self, start: str = START, *, step: float = 0.001) -> None:
        self._start = _parse(start)
        self._step = step
        self._passed = 0.0

    def now(self) -> str:
        text = _text(self._start, self._passed)
        self._passed += self._step
        return text

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self._passed += max(0.0, seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        self._passed += seconds


class VirtualClock:
    """Time stands still until it is moved: by ``advance``, or by itself (``auto=True``) whenever nothing in
    the event loop can run before some sleeper wakes.

    Sleepers wake one by one in the order of their time, each with the loop run until it is idle again. Work
    that the loop cannot see (threads, sockets) counts as idle: with ``auto``, give such work ``grace`` real
    seconds before time jumps. Use one such clock per event loop.
    """

    def __init__(self, start: str = START, *, auto: bool = False, grace: float = 0.0) -> None:
        self._start = _parse(start)
        self._auto = auto
        self._grace = grace
        self._passed = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._pump_loop: asyncio.AbstractEventLoop | None = None
        self._idle = 0

    def now(self) -> str:
        return _text(self._start, self._passed)

    def monotonic(self) -> float:
        return self._passed

    @property
    def sleeping(self) -> int:
        """How many wait for a time to come."""
        return sum(1 for sleeper in self._sleepers if not sleeper[2].done())

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await self._sleep(seconds)

    def _sleep(self, seconds: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + seconds, next(self._order), future))
        if self._auto:
            self._start_pump()
        return future

    def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.Future[None]:
        """Call it when time has moved so far; ``cancel`` what is returned to leave it."""
        future = self._sleep(seconds)
        future.add_done_callback(lambda done: None if done.cancelled() else call())
        return future

    async def advance(self, seconds: float) -> None:
        """Move time; who wakes on the way runs, and may sleep and wake again, before this returns."""
        target = self._passed + seconds
        await self.settle()
        while (due := self._first()) is not None and due <= target:
            self._wake()
            await self.settle()
        self._passed = max(self._passed, target)
        await self.settle()

    async def settle(self) -> None:
        """Return once nothing else in the event loop can run."""
        loop = asyncio.get_running_loop()
        idle = 0
        for _ in range(_MAX_PASSES):
            await asyncio.sleep(0)
            idle = 0 if _ready(loop) else idle + 1
            if idle >= _IDLE_PASSES:
                return
        raise AssertionError("the event loop never became idle: something spins without waiting")

    def _first(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake(self) -> None:
        due, _, future = heapq.heappop(self._sleepers)
        self._passed = max(self._passed, due)
        future.set_result(None)

    def _start_pump(self) -> None:
        loop = asyncio.get_running_loop()
        if self._pump_loop is not loop:
            self._pump_loop = loop
            self._idle = 0
            loop.call_soon(self._pump)

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle = 0 if _ready(loop) else self._idle + 1
        if self._idle <= _IDLE_PASSES:
            last = self._idle == _IDLE_PASSES and self._grace > 0
            if last:
                loop.call_later(self._grace, self._pump)
            else:
                loop.call_soon(self._pump)
            return
        self._idle = 0
        if self._first() is not None:
            self._wake()
        if self._first() is not None:
            loop.call_soon(self._pump)
        else:
            self._pump_loop = None


def _ready(loop: asyncio.AbstractEventLoop) -> int:
    """How many callbacks are ready to run. There is no public way to ask."""
    return len(cast("deque[Any]", loop._ready))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class FixedIds:
    """Counters in the place of randomness: ``entry_000001``, ``run_0001``, ``call_0001``, ``session_0001``.

    Entry ids sort in the order they were made. A second source for the same store needs a ``prefix`` of
    its own (a letter sorts after the ids without one).
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._counts = {"entry": 0, "run": 0, "call": 0, "session": 0}

    def entry(self) -> str:
        return self._make("entry", 6)

    def run(self) -> str:
        return self._make("run", 4)

    def call(self) -> str:
        return self._make("call", 4)

    def session(self) -> str:
        return self._make("session", 4)

    def _make(self, what: str, digits: int) -> str:
        self._counts[what] += 1
        return f"{what}_{self._prefix}{self._counts[what]:0{digits}d}"
