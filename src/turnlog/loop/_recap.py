"""Recaps asked for beside runs: on the wire that was just sent, waited for only when a prompt did not fit.

A recap belongs to its session, not to the run that asked for it: what is ready after the run is appended
between two runs, and the next fold uses it, in whichever process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from turnlog.context import ModelContext
from turnlog.contract import AgentError, Custom, ModelInvocationDescriptor, Store
from turnlog.models import Model
from turnlog.observe import get_logger

from ._compact import ask_recap, recap_request
from ._folds import Folds
from ._ports import Fact

FAILED = "turnlog.recap_failed"
"""Name of the custom entry that records why there is no recap."""

Deliver = Callable[[str, Fact], Awaitable[None]]

_log = get_logger("context")


class Recaps:
    """At most one question at a time for each session. What comes of it is handed to ``deliver``, a failure
    as a note."""

    def __init__(
        self, model: Model, store: Store, deliver: Deliver, *, instructions: str | None, patience: float
    ) -> None:
        self._model = model
        self._store = store
        self._deliver = deliver
        self._instructions = instructions
        self._patience = patience
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def consider(self, folds: Folds, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        """Ask, if ``context`` has grown far enough. The provider has just read it, so that reading it again
        costs little."""
        session_id = folds.session.session_id
        if session_id in self._tasks:
            return
        first_kept = folds.context.recap_due(context.stats, target, asked_at=folds.recap_asked_at)
        if first_kept is None:
            return
        folds.recap_asked_at = context.stats.estimated_tokens
        request = recap_request(folds, self._instructions)
        asked = self._ask(session_id, context, first_kept, request)
        task = asyncio.create_task(asked, name=f"turnlog recap {session_id}")
        self._tasks[session_id] = task
        task.add_done_callback(lambda done: self._forget(session_id, done))

    def _forget(self, session_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(session_id) is task:
            del self._tasks[session_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s: a recap was lost: %s: %s", session_id, type(error).__name__, error)

    async def _ask(
        self, session_id: str, context: ModelContext, first_kept: str, request: tuple[str, str]
    ) -> None:
        fact: Fact
        try:
            fact = await ask_recap(
                self._model,
                self._store,
                context,
                session_id=session_id,
                first_kept=first_kept,
                request=request,
            )
        except AgentError as error:
            _log.debug("%s: no recap: %s", session_id, error.message)
            fact = Custom(name=FAILED, data={"code": error.code, "message": error.message})
        await self._deliver(session_id, fact)

    async def wait(self, session_id: str) -> None:
        """Wait for what was asked for a session, within the bound."""
        task = self._tasks.get(session_id)
        if task is not None:
            await asyncio.wait([task], timeout=self._patience)

    async def stop(self, session_id: str) -> None:
        """What is not there yet is not wanted any more."""
        task = self._tasks.pop(session_id, None)
        if task is not None:
            await _cancel(task)

    async def settle(self) -> None:
        """Give what was asked for time to arrive, within the bound, and drop the rest."""
        here = asyncio.get_running_loop()
        tasks = [task for task in self._tasks.values() if task.get_loop() is here]
        if tasks:
            await asyncio.wait(tasks, timeout=self._patience)
        for task in tasks:
            await _cancel(task)


async def _cancel(task: asyncio.Task[None]) -> None:
    if task.get_loop() is asyncio.get_running_loop():
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
