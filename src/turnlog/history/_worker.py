"""One thread with a queue of jobs, reached from any event loop of any thread.

What a hop costs is what a commit costs beyond its bytes, so: one wake-up for a sleeping thread and none
for a busy one, one call into the loop for all jobs that finished together, no executor, no condition.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from ..contract import AgentError

T = TypeVar("T")


class Job:
    """Something to do on the thread. It ends with ``value`` or ``error``."""

    __slots__ = ("error", "future", "loop", "value", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.value: Any = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None

    def run(self) -> None:
        try:
            self.value = self.work()
        except BaseException as error:  # it belongs to whoever waits for the job
            self.error = error


class Worker:
    """Runs jobs in order on a thread of its own, which starts with the first job.

    ``run_group`` is given every job that waits and yields those that are done, each with a value or an
    error. The thread does not hold on to the owner: an owner that is collected without ``close`` ends it.
    """

    def __init__(
        self, name: str, run_group: Callable[[list[Job]], Iterable[list[Job]]] | None = None
    ) -> None:
        self._name = name
        self._run_group = run_group or run_each
        self._inbox: _Inbox | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    async def do(self, work: Callable[[], T]) -> T:
        return await self.submit(Job(work))

    async def submit(self, job: Job) -> Any:
        loop = asyncio.get_running_loop()
        job.loop = loop
        job.future = loop.create_future()
        inbox = self._inbox
        if inbox is None or not inbox.put(job):
            self._start().put(job)
        return await job.future

    def _start(self) -> _Inbox:
        with self._starting:
            if self._inbox is None or self._inbox.closed:
                inbox = _Inbox()
                thread = threading.Thread(
                    target=_serve, args=(inbox, self._run_group), name=self._name, daemon=True
                )
                weakref.finalize(self, inbox.close)
                thread.start()
                self._inbox, self._thread = inbox, thread
            return self._inbox

    async def stop(self, last: Callable[[], None]) -> None:
        """Run ``last`` after all that waits, then end the thread. A later job starts a new one."""
        with self._starting:
            inbox, thread = self._inbox, self._thread
            self._inbox = self._thread = None
        if inbox is None or thread is None:
            return
        job = Job(last)
        job.loop = asyncio.get_running_loop()
        job.future = job.loop.create_future()
        if inbox.put(job):
            inbox.close()
            await job.future
        await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def forget(self) -> None:
        """In a forked child: the thread stayed with the parent."""
        self._inbox = self._thread = None
        self._starting = threading.Lock()


def run_each(jobs: list[Job]) -> Iterable[list[Job]]:
    for job in jobs:
        job.run()
        yield [job]


class _Inbox:
    """Jobs that wait, and a descriptor the thread sleeps on.

    A file descriptor wakes a Python thread for a third of what a lock costs: the writer lets go of the
    interpreter during the system call, so the two threads do not fight for it.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._asleep = False
        self._guard = threading.Lock()
        self.closed = False
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()

    def put(self, job: Job) -> bool:
        with self._guard:
            if self.closed:
                return False
            self._jobs.append(job)
            wake, self._asleep = self._asleep, False
        if wake:
            self._wake()
        return True

    def close(self) -> None:
        """Take no more; the thread ends when what waits is done."""
        with self._guard:
            if self.closed:
                return
            self.closed = True
        self._wake()

    def take(self) -> list[Job]:
        """All jobs that wait; sleeps while there are none. Empty when there will be no more."""
        while True:
            with self._guard:
                if self._jobs:
                    found = list(self._jobs)
                    self._jobs.clear()
                    return found
                if self.closed:
                    return []
                self._asleep = True
            os.read(self._read, 8)

    def free(self) -> None:
        for descriptor in {self._read, self._write}:
            os.close(descriptor)

    def _wake(self) -> None:
        with suppress(OSError):  # the thread ended in between
            os.write(self._write, b"\1\0\0\0\0\0\0\0")


def _serve(inbox: _Inbox, run_group: Callable[[list[Job]], Iterable[list[Job]]]) -> None:
    while jobs := inbox.take():
        _serve_group(jobs, run_group)
        del jobs  # a sleeping thread must not keep them alive
    inbox.free()


def _serve_group(jobs: list[Job], run_group: Callable[[list[Job]], Iterable[list[Job]]]) -> None:
    for done in run_group(jobs):
        _report(done)


def _report(jobs: list[Job]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, done in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed; nobody waits any more
            loop.call_soon_threadsafe(_deliver, done)


def _deliver(jobs: list[Job]) -> None:
    for job in jobs:
        future = job.future
        if future is None or future.done():
            continue
        if job.error is None:
            future.set_result(job.value)
        elif isinstance(job.error, AgentError):
            future.set_exception(job.error)
        else:
            error = AgentError(
                "SessionWriteFailed",
                f"the store failed in a way it should not: {job.error!r}",
                cause=job.error,
            )
            future.set_exception(error)
