"""One try of one call: started, watched, stopped, and given up if it will not stop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

from turnlog.contract import Clock

from ._answer import ToolAnswer, failure
from ._context import Channel, ToolContext
from ._render import Collector, render
from ._text import Unserialisable
from ._threads import Threads
from ._tool import Tool

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
