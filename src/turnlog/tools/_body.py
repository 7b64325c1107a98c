"""One try of one call: started, watched, stopped, and given up if it will not stop; and threads for
sync tools: bounded, never waited for at exit."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from turnlog.contract import Clock

from ._answer import ToolAnswer, ToolError, Unserialisable, failure
from ._context import Channel, ToolContext
from ._render import Collector, render
from ._tool import Tool

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
        stopped, so ``on_cancel`` asks it to end, and a caller that does not want to wait closes this
        coroutine. What it raised is returned beside its value: some exceptions (StopIteration) may not be
        set on a future."""
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


_QUICK = 2
_TURNS = 8
"""How many turns of the loop a task that was torn down may take to end."""


class _Rendered(NamedTuple):
    """What a thread made ready, told apart from what a tool may return."""

    answer: ToolAnswer


class Body:
    """The running function of a tool. Whatever it raises becomes an answer; nothing gets out of the task."""

    def __init__(
        self,
        tool: Tool,
        kwargs: dict[str, Any],
        ctx: ToolContext,
        channel: Channel,
        threads: Threads,
        limit: int,
    ) -> None:
        self._tool = tool
        self._kwargs = kwargs
        self._ctx = ctx
        self._channel = channel
        self._threads = threads
        self._limit = limit
        self._collector = Collector(ctx.progress)
        self.entered = False
        """Whether the function was called: what was stopped before that had no effect."""
        self._inner: Coroutine[Any, Any, Any] | None = None
        self._channel.bind(asyncio.get_running_loop())
        self._coroutine: Coroutine[Any, Any, ToolAnswer] = self._guarded()
        self.task: asyncio.Task[ToolAnswer] = asyncio.create_task(
            self._coroutine, name=f"turnlog tool {tool.name}"
        )

    @property
    def output(self) -> str:
        """What a generator has yielded so far."""
        return self._collector.text

    @property
    def patient(self) -> bool:
        """Whether waiting after :meth:`stop` has a point: a sync function without a context sees nothing."""
        return self._tool.is_async or self._tool.takes_context

    def answer(self) -> ToolAnswer:
        if self.task.cancelled():  # before its first step: the function was never called
            return failure(self._tool.name, asyncio.CancelledError())
        error = self.task.exception()
        return self.task.result() if error is None else failure(self._tool.name, error)

    def stop(self) -> None:
        self._channel.cancelled = True
        self.task.cancel()

    async def tear_down(self) -> bool:
        """End a task that ignores cancellation; False when even that leaves it running.

        Closing the coroutine raises GeneratorExit at its await, which few tools catch; the task then has
        nothing left to run.
        """
        self._channel.close()
        self.close()
        for _ in range(_TURNS):
            if self.task.done():
                return True
            await asyncio.sleep(0)
        return self.task.done()

    def close(self) -> None:
        self.task.add_done_callback(_retrieve)
        self._coroutine.close()
        if self._inner is not None and inspect.getcoroutinestate(self._inner) == inspect.CORO_SUSPENDED:
            _keep_for_ever(self._inner)
        self.task.cancel()

    async def _guarded(self) -> ToolAnswer:
        # SystemExit out of a task would end the whole loop; so nothing at all leaves this function.
        try:
            if self._tool.is_async:
                self.entered = True
                return await self._finish(self._tool.call(self._kwargs, self._ctx))
            value, error = await self._threads.run(self._call_now, self._cancelled)
            if error is not None:
                return self._failed(error)
            if isinstance(value, _Rendered):
                return value.answer
            return await self._finish(value)
        except GeneratorExit:
            raise
        except BaseException as error:
            return self._failed(error)

    def _call_now(self) -> object:
        """Runs in a thread: the call, and the work of rendering what it returned."""
        self.entered = True
        value = self._tool.call(self._kwargs, self._ctx)
        if inspect.isgenerator(value):
            value = self._collector.drain_now(cast("Iterator[object]", value))
        if inspect.isawaitable(value) or inspect.isasyncgen(value):
            return value
        return _Rendered(render(value, self._limit))

    async def _finish(self, value: object) -> ToolAnswer:
        if inspect.isawaitable(value):
            self._inner = value if inspect.iscoroutine(value) else None
            value = await value
        if inspect.isasyncgen(value):
            value = await self._collector.drain(cast("AsyncIterator[object]", value))
        return render(value, self._limit)

    def _cancelled(self) -> None:
        self._channel.cancelled = True

    def _failed(self, error: BaseException) -> ToolAnswer:
        if isinstance(error, Unserialisable):
            return ToolAnswer.failed(
                "ToolExecutionError", f"{self._tool.name!r} ran, but {error}", cause=error
            )
        answer = failure(self._tool.name, error)
        if isinstance(error, self._tool.retry_on or ()):
            return replace(answer, retryable=True)
        return answer


def _keep_for_ever(coroutine: Coroutine[Any, Any, Any]) -> None:
    """A tool that ignored even GeneratorExit. Nothing will ever wake it, but when Python lets go of it, it is
    told once more; at the end of the program, without a loop, a tool that catches everything around its await
    would then spin in place of waiting. A reference that is never given back outlives the interpreter."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))


async def race(clock: Clock, waiters: set[asyncio.Future[Any]], seconds: float | None) -> None:
    """Wait until one of ``waiters`` is done, or for so long on the injected clock. Leaves no task behind."""
    if seconds is None:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        return
    for _ in range(_QUICK):  # most calls are done by then: no timer, and a clock that jumps stays put
        await asyncio.sleep(0)
        if any(waiter.done() for waiter in waiters):
            return
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({*waiters, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.add_done_callback(_retrieve)
        if timer.cancel():
            await asyncio.wait({timer})


def _retrieve(task: asyncio.Future[Any]) -> None:
    """An exception nobody will read must not be reported as forgotten."""
    if not task.cancelled():
        task.exception()
