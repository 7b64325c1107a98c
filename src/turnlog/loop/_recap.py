"""A recap asked for beside a run: on the wire that was just sent, and never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from turnlog.context import ModelContext
from turnlog.contract import AgentError, Custom, ModelInvocationDescriptor, Store
from turnlog.models import Model
from turnlog.observe import get_logger

from ._compact import ask_recap
from ._folds import Folds
from ._ports import Fact

FAILED = "turnlog.recap_failed"
"""Name of the custom entry that says why there is no recap."""

_log = get_logger("context")


class BackgroundRecap:
    """At most one question at a time. What comes of it is handed to ``deliver``, a failure as a note."""

    def __init__(self, model: Model, store: Store, folds: Folds, deliver: Callable[[Fact], None]) -> None:
        self._model = model
        self._store = store
        self._folds = folds
        self._deliver = deliver
        self._task: asyncio.Task[None] | None = None

    def consider(self, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        """Ask, if ``context`` has grown far enough. The provider has just read it, so that reading it again
        costs little."""
        folds = self._folds
        if self._task is not None:
            return
        first_kept = folds.context.recap_due(context.stats, target, asked_at=folds.recap_asked_at)
        if first_kept is None:
            return
        folds.recap_asked_at = context.stats.estimated_tokens
        name = f"turnlog recap {folds.session.session_id}"
        self._task = asyncio.create_task(self._ask(context, first_kept), name=name)

    async def _ask(self, context: ModelContext, first_kept: str) -> None:
        session_id = self._folds.session.session_id
        try:
            recap = await ask_recap(
                self._model, self._store, context, session_id=session_id, first_kept=first_kept
            )
            self._deliver(recap)
        except AgentError as error:
            _log.debug("%s: no recap: %s", session_id, error.message)
            self._deliver(Custom(name=FAILED, data={"code": error.code, "message": error.message}))
        finally:
            self._task = None

    async def stop(self) -> None:
        """The run is over: what is not there yet is not wanted any more."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
