from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable


class SystemClock:
    """Wall-clock text in UTC and a monotonic counter."""

    __slots__ = ("_millis", "_second", "_text")

    def __init__(self) -> None:
        self._millis = -1
        self._text = ""
        self._second = (-1, "")

    def now(self) -> str:
        millis = time.time_ns() // 1_000_000
        if millis != self._millis:  # a burst of deltas shares one millisecond
            seconds, rest = divmod(millis, 1000)
            second, words = self._second
            if seconds != second:
                words = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
                self._second = (seconds, words)
            self._text = text = f"{words}.{rest:03d}Z"
            self._millis = millis
            return text
        return self._text

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Call it when so much time has passed; from within an event loop, which must live on till then."""
        return asyncio.get_running_loop().call_later(seconds, call)


class SystemIds:
    """Hexadecimal ids that start with the millisecond they were made in.

    Entry ids made by one source increase strictly, also within a millisecond and when the clock is set
    back.
    """

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def entry(self) -> str:
        fresh = ((time.time_ns() // 1_000_000) << 80) | int.from_bytes(os.urandom(10), "big")
        with self._lock:
            if fresh <= self._last:
                fresh = self._last + 1
            self._last = fresh
        return f"{fresh:032x}"

    def run(self) -> str:
        return f"run_{_short()}"

    def call(self) -> str:
        return f"call_{_short()}"

    def session(self) -> str:
        return f"s_{_short()}"


def _short() -> str:
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(6).hex()}"
