"""Threads for sync tools: bounded, never waited for at exit, and given up when they hang."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ._answer import ToolError

T = TypeVar("T")


class Threads:
    """At most ``limit`` calls at a time, the others wait. A call that was given up no longer counts against
    them, so stuck ones cannot starve the rest; but more than ``stuck_limit`` of those are refused.

    Threads are made for one call each and are daemons: an executor of the standard library would wait for
    a stuck one when the program ends.
    """

    def __init__(self, limit: int = 64, stuck_limit: int = 1000) -> None:
        self._limit = limit
        self._stuck_limit = stuck_limit
        self._live = 0
        self._stuck = 0
        self._lock = threading.Lock()
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def stuck(self) -> int:
        """Threads whose call was given up and that have not ended."""
        return self._stuck

    async def run(
        self, function: Callable[[], T], on_cancel: Callable[[], None]
    ) -> tuple[T | None, BaseException | None]:
        """Run ``function`` in a thread and wait for it, through cancellation too: a thread cannot be
        stopped, so ``on_cancel`` asks it to, and whoever does not want to wait closes this coroutine. What it
        raised is returned beside its value: some exceptions (StopIteration) may not be set on a future."""
        await self._enter()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
        given_up = threading.Event()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                outcome = (context.run(function), None)
            except BaseException as error:
                outcome = (None, error)
            self._leave(given_up)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for this any more
                loop.call_soon_threadsafe(_settle, done, outcome)

        try:
            threading.Thread(target=body, name="turnlog-tool", daemon=True).start()
        except BaseException:
            self._leave(given_up)
            raise
        try:
            while True:
                try:
                    await asyncio.wait({done})
                    return done.result()
                except asyncio.CancelledError:
                    on_cancel()
        finally:
            if not done.done():
                self._give_up(given_up)

    async def _enter(self) -> None:
        with self._lock:
            if self._stuck >= self._stuck_limit:
                raise ToolError(
                    f"{self._stuck} earlier calls hang in their threads, so no more are started; "
                    "tools that never return need a timeout of their own inside"
                )
            if self._live < self._limit:
                self._live += 1
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    raise
            self._pass_on()  # the turn had come already: the next one takes it
            raise

    def _leave(self, given_up: threading.Event) -> None:
        with self._lock:
            if given_up.is_set():
                self._stuck -= 1
                return
            given_up.set()  # from here on, giving up has nothing left to count
        self._pass_on()

    def _give_up(self, given_up: threading.Event) -> None:
        with self._lock:
            if given_up.is_set():
                return
            given_up.set()
            self._stuck += 1
        self._pass_on()

    def _pass_on(self) -> None:
        """One place is free: the first that still waits takes it."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._live -= 1
                    return
                turn = self._waiting.popleft()
            try:
                turn.get_loop().call_soon_threadsafe(_wake, turn)
            except RuntimeError:
                continue  # that one's loop is closed
            return


def _settle(done: asyncio.Future[T], outcome: T) -> None:
    if not done.done():
        done.set_result(outcome)


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
