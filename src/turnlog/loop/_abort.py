"""Interrupting a run at its next await point, without a task of its own to cancel."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType

from turnlog.contract import AgentError

inside: ContextVar[tuple[str, ...]] = ContextVar("turnlog_inside", default=())
"""The sessions whose runs the current code works for: a tool that waits for one of these waits for itself."""


class RunInterrupted(Exception):
    """Raised inside the runner when the run was told to stop; carries why."""

    def __init__(self, error: AgentError) -> None:
        super().__init__(error.message)
        self.error = error


class RunLeft(Exception):
    """Raised inside the runner to leave a run as it is: open in the log, to be resumed."""


class AbortScope:
    """``with scope:`` around an await makes that await interruptible by ``request``.

    A run has no task of its own: its reader drives it. So the await in progress is cancelled
    the way ``asyncio.timeout`` does it, and only while it is in progress: what the consumer awaits between
    two events is its own.
    """

    __slots__ = ("_cancelling", "_fired", "_loop", "_task", "reason")

    def __init__(self) -> None:
        self.reason: AgentError | None = None
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fired = False
        self._cancelling = 0

    def request(self, error: AgentError) -> None:
        """Stop the run; safe from any task and any thread. The first reason stays."""
        if self.reason is not None:
            return
        self.reason = error
        loop = self._loop
        if loop is None or self._task is None:
            return
        try:
            same = asyncio.get_running_loop() is loop
        except RuntimeError:
            same = False
        if same:
            self._fire()
        else:
            with suppress(RuntimeError):  # the loop is closed, and the run with it
                loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task() and not self._fired:
            self._fired = True
            task.cancel()

    def __enter__(self) -> None:
        # In this order: a thread that requests now either finds the task, or is found out here.
        self._loop = loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        self._cancelling = task.cancelling() if task is not None else 0
        if self.reason is not None:
            self._task = None
            raise RunInterrupted(self.reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._fired and task is not None:
            self._fired = False
            # Somebody else may have cancelled the task as well: that cancellation is raised again.
            ours = task.uncancel() <= self._cancelling
            if ours and kind is asyncio.CancelledError and self.reason is not None:
                raise RunInterrupted(self.reason) from None
