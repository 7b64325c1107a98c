"""A few connections that belong to one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ._address import Address
from ._link import Doing, DriverError, Link, translate
from ._statements import make_snapshots, prepare

T = TypeVar("T")
_PATIENCE = 5.0
"""Seconds for a server that we knew to come back: it may be restarting, or another takes its place."""


class Origin:
    """What all pools of a store share: where the server is, and whether its tables were looked at."""

    def __init__(self, address: Address, timeout: float, lock_timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self.lock_timeout = lock_timeout
        self.prepared = False

    async def connect(self) -> Link:
        """Raises the driver's errors, and ``AgentError`` for tables that are not for us."""
        link = await Link.open(self.address, timeout=self.timeout, lock_timeout=self.lock_timeout)
        try:
            if not self.prepared:
                await prepare(link, self.address)
                with suppress(DriverError):  # a role that may only read does without the cache
                    await make_snapshots(link, self.address)
                self.prepared = True
        except BaseException:
            link.drop()
            raise
        return link

    async def connect_again(self) -> Link:
        """``connect``; after it once worked, with patience for a server that is away for a moment."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (_PATIENCE if self.prepared else 0.0)
        pause = 0.05
        while True:
            try:
                return await self.connect()
            except DriverError as error:
                if translate(error, self.address, "read").code != "SessionReadFailed":
                    raise
                if loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


class Pool:
    """Up to ``limit`` connections, opened when they are needed.

    Everything that is done through it may be done twice: when the connection is lost in the middle, nobody
    knows whether it was done, and it is done once more on a new one.
    """

    def __init__(self, origin: Origin, limit: int) -> None:
        self._origin = origin
        self._limit = limit
        self._links: set[Link] = set()
        self._opening = 0
        self._idle: list[Link] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def do(self, doing: Doing, work: Callable[[Link], Awaitable[T]]) -> T:
        """Run ``work`` on a connection. Who is cancelled while waiting leaves it running to its end."""
        return await asyncio.shield(self.start(self.run(doing, work)))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in the background; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it was for someone who no longer listens, or they have it already

    async def run(self, doing: Doing, work: Callable[[Link], Awaitable[T]]) -> T:
        """``do`` for a task that nobody cancels."""
        for last in (False, True):
            try:
                link = await self._take()
            except (DriverError, OSError) as error:
                raise translate(error, self._origin.address, doing) from error
            try:
                value = await work(link)
            except (DriverError, UnicodeError) as error:
                lost = link.lost
                self._give_back(link)
                if lost and not last:
                    self._drop_idle()  # what one connection lost, the others most likely have lost too
                    continue
                raise translate(error, self._origin.address, doing) from error
            except BaseException:
                self._give_back(link)
                raise
            self._give_back(link)
            return value
        raise AssertionError("unreachable")

    async def _take(self) -> Link:
        while True:
            while self._idle:
                link = self._idle.pop()
                if not link.lost:
                    return link
                self._forget(link)
            if len(self._links) + self._opening < self._limit:
                return await self._open()
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # the turn that was ours goes to the next
                raise

    async def _open(self) -> Link:
        self._opening += 1
        try:
            link = await self._origin.connect_again()
            self._links.add(link)
            return link
        finally:
            self._opening -= 1
            if len(self._links) + self._opening < self._limit:
                self._wake()

    def _give_back(self, link: Link) -> None:
        if link.lost:
            self._forget(link)
        else:
            self._idle.append(link)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _forget(self, link: Link) -> None:
        self._links.discard(link)
        link.drop()

    def _drop_idle(self) -> None:
        while self._idle:
            self._forget(self._idle.pop())

    async def close(self) -> None:
        """After what is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.drop()

    def drop(self) -> None:
        """At once, from any thread, once nothing is under way or its loop is gone."""
        self._idle.clear()
        while self._links:
            self._links.pop().drop()
