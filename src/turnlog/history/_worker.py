"""One thread with a queue of jobs, reached from any event loop of any thread.

What a hop costs is what a commit costs beyond its bytes, so: one wake-up for a sleeping thread and none
for a busy one, one for the loop however many jobs finished together, no executor, no condition. Both
sides sleep on a descriptor: the side that wakes releases the interpreter during the system call, so that
the two threads do not fight for it.
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
_ONE = b"\1\0\0\0\0\0\0\0"


def _alone(jobs: list[Any]) -> None:
    job = jobs[0]
    try:
        job.value = job.work()
    except BaseException as error:  # the caller that waits for the job gets it
        job.error = error


class Uncut(asyncio.Future[Any]):
    """What comes of work that nothing can take back. A task that awaits it and is cancelled is told so once
    the work is done; nothing has to be shielded."""

    def cancel(self, msg: Any = None) -> bool:
        return False


class Job:
    """Something to do on the thread. It ends with ``value`` or ``error``; ``run`` is given it in a list."""

    __slots__ = ("error", "future", "outbox", "run", "value", "work")

    def __init__(self, work: Callable[[], Any], run: Callable[[list[Any]], None] = _alone) -> None:
        self.work = work
        self.run = run
        self.value: Any = None
        self.error: BaseException | None = None
        self.outbox: _Outbox | None = None
        self.future: asyncio.Future[Any] | None = None

    def deliver(self) -> None:
        future, error = self.future, self.error
        if future is None or future.done():
            return
        if error is None:
            future.set_result(self.value)
        elif isinstance(error, AgentError):
            future.set_exception(error)
        else:
            words = f"the store failed in a way it should not: {error!r}"
            future.set_exception(AgentError("SessionWriteFailed", words, cause=error))


RunGroup = Callable[[list[Job]], Iterable[list[Job]]]
"""Given every job that waits, where that is more than one; yields those that are done, each with a value or
an error. A job that waits alone is run by itself."""


def run_each(jobs: list[Job]) -> Iterable[list[Job]]:
    for job in jobs:
        job.run([job])
        yield [job]


class Worker:
    """Runs jobs in order on a thread of its own, which starts with the first job.

    The thread does not hold on to the worker: one that is collected without ``stop`` ends it.
    """

    def __init__(self, name: str, run_group: RunGroup = run_each) -> None:
        self._name = name
        self._run_group = run_group
        self._inbox: _Inbox | None = None
        self._thread: threading.Thread | None = None
        self._leaving: threading.Thread | None = None
        self._outboxes: dict[asyncio.AbstractEventLoop, _Outbox] = {}
        self._lock = threading.Lock()
        _workers.add(self)
        weakref.finalize(self, _give_back, self._outboxes)

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return self.submit(Job(work))

    def submit(self, job: Job, *, uncut: bool = False) -> asyncio.Future[Any]:
        """Hand ``job`` to the thread; call from a coroutine, await what it returns."""
        loop = asyncio.get_running_loop()
        job.outbox = self._outboxes.get(loop) or self._add_outbox(loop)
        future = job.future = Uncut(loop=loop) if uncut else loop.create_future()
        inbox = self._inbox
        while inbox is None or not inbox.put(job):
            inbox = self._start()
        return future

    def _start(self) -> _Inbox:
        with self._lock:
            if self._inbox is None or self._inbox.closed:
                inbox = _Inbox()
                args = (inbox, self._run_group, self._leaving)
                thread = threading.Thread(target=_serve, args=args, name=self._name, daemon=True)
                self._leaving = None
                weakref.finalize(self, inbox.close)
                thread.start()
                self._inbox, self._thread = inbox, thread
            return self._inbox

    def _add_outbox(self, loop: asyncio.AbstractEventLoop) -> _Outbox:
        with self._lock:
            for other in [other for other in self._outboxes if other.is_closed()]:
                self._outboxes.pop(other).close()
            outbox = self._outboxes[loop] = _Outbox(loop)
        return outbox

    async def stop(self, last: Callable[[], None]) -> None:
        """Run ``last`` after all that waits, then end the thread. A later job starts a new one."""
        with self._lock:
            inbox, thread = self._inbox, self._thread
            self._inbox = self._thread = None
            self._leaving = thread or self._leaving
        loop = asyncio.get_running_loop()
        if inbox is not None and thread is not None:
            job = Job(last)
            job.outbox = self._outboxes.get(loop) or self._add_outbox(loop)
            job.future = loop.create_future()
            if inbox.put(job):
                inbox.close()
                await job.future
            thread.join()  # what is left of it takes microseconds
        with self._lock:
            outbox = self._outboxes.pop(loop, None)
        if outbox is not None:
            outbox.close()

    def forget(self) -> None:
        """In a forked child: the thread stayed with the parent."""
        self._inbox = self._thread = self._leaving = None
        self._outboxes.clear()
        self._lock = threading.Lock()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in list(_workers):
        worker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _give_back(outboxes: dict[asyncio.AbstractEventLoop, _Outbox]) -> None:
    for loop, outbox in outboxes.items():
        if loop.is_closed():
            outbox.close()
        else:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(outbox.close)


def _new_signal() -> tuple[int, int]:
    """(end to read, end to write) of something a thread can sleep on."""
    if hasattr(os, "eventfd"):
        signal = os.eventfd(0, os.EFD_CLOEXEC)
        return signal, signal
    return os.pipe()


class _Inbox:
    """Jobs that wait for the thread."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._asleep = False
        self._guard = threading.Lock()
        self._read, self._write = _new_signal()
        self.closed = False

    def put(self, job: Job) -> bool:
        with self._guard:
            if self.closed:
                return False
            self._jobs.append(job)
            wake, self._asleep = self._asleep, False
        if wake:  # after the lock is free again: the thread takes it first thing
            os.write(self._write, _ONE)
        return True

    def close(self) -> None:
        """Take no more; the thread ends when what waits is done."""
        with self._guard:
            if self.closed:
                return
            self.closed = True
            if self._asleep:
                os.write(self._write, _ONE)

    def take(self) -> list[Job]:
        """All jobs that wait; sleeps while there are none. Empty when there will be no more."""
        while True:
            with self._guard:
                if self._jobs:
                    found = list(self._jobs)
                    self._jobs.clear()
                    return found
                if self.closed:
                    for descriptor in {self._read, self._write}:
                        os.close(descriptor)
                    return []
                self._asleep = True
            os.read(self._read, 8)


class _Outbox:
    """Finished jobs on their way to one event loop, which watches a descriptor for them.

    Loops that cannot watch one are called the usual way, at twice the cost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[Job] = deque()
        self._guard = threading.Lock()
        self._closed = False
        self._read, self._write = _new_signal()
        self._watched = True
        try:
            loop.add_reader(self._read, self._drain)
        except NotImplementedError:
            self._watched = False

    def put(self, jobs: list[Job]) -> None:
        self._jobs.extend(jobs)
        if not self._watched:
            with suppress(RuntimeError):  # the loop was closed; nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver)
            return
        with self._guard:  # a descriptor that was closed may by now be someone else's
            if not self._closed:
                os.write(self._write, _ONE)
                return
        with suppress(RuntimeError):  # a job that was handed in while the worker was being stopped
            self._loop.call_soon_threadsafe(self._deliver)

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            if self._watched and not self._loop.is_closed():
                self._loop.remove_reader(self._read)
            for descriptor in {self._read, self._write}:
                os.close(descriptor)
        self._deliver()

    def _drain(self) -> None:
        os.read(self._read, 8)
        self._deliver()

    def _deliver(self) -> None:
        jobs, closed = self._jobs, self._loop.is_closed()
        while jobs:
            job = jobs.popleft()
            if not closed:
                job.deliver()


def _serve(inbox: _Inbox, run_group: RunGroup, leaving: threading.Thread | None) -> None:
    if leaving is not None:  # it has its last jobs to do, and they come first
        leaving.join()
        del leaving
    while jobs := inbox.take():
        if len(jobs) > 1:
            _serve_group(jobs, run_group)
            del jobs
            continue
        job = jobs[0]  # the usual case, and every step between two sleeps counts
        try:
            job.run(jobs)
        except BaseException as error:
            job.error = error
        if job.outbox is not None:
            job.outbox.put(jobs)
        del job, jobs  # a sleeping thread must not keep them alive


def _serve_group(jobs: list[Job], run_group: RunGroup) -> None:
    left = set(jobs)
    try:
        for done in run_group(jobs):
            left.difference_update(done)
            _hand_over(done)
    except BaseException as error:  # the thread lives on, and nobody waits for ever
        for job in left:
            job.error = error
        _hand_over(left)


def _hand_over(done: Iterable[Job]) -> None:
    waiting: dict[_Outbox, list[Job]] = {}
    for job in done:
        if job.outbox is not None:
            waiting.setdefault(job.outbox, []).append(job)
    for outbox, finished in waiting.items():
        outbox.put(finished)
