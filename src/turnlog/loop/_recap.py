"""A recap asked for beside a run: on the wire that was just sent, and never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from turnlog.context import ModelContext
from turnlog.contract import AgentError, Custom, Store
from turnlog.models import Model
from turnlog.observe import get_logger

from ._compact import ask_recap
from ._facts import Fact
from ._warm import WarmSession

FAILED = "turnlog.recap_failed"
"""Name of the custom entry that says why there is no recap."""

_GROWTH = 0.1
"""Share of the threshold that a context grows by before a recap that came to nothing is asked for again."""

_log = get_logger("context")


class BackgroundRecap:
    """At most one question at a time. What comes of it is handed to ``deliver``, a failure as a note."""

    def __init__(
        self, model: Model, store: Store, warm: WarmSession, deliver: Callable[[Fact], None]
    ) -> None:
        self._model = model
        self._store = store
        self._warm = warm
        self._deliver = deliver
        self._task: asyncio.Task[None] | None = None

    def consider(self, context: ModelContext, threshold: int) -> None:
        """Ask, if ``context``, which is folded at ``threshold`` tokens, has grown far enough.

        The provider has just read it, so that reading it again costs little."""
        warm = self._warm
        if self._task is not None or warm.projection.recap is not None:
            return
        tokens = context.stats.estimated_tokens
        if tokens < warm.recap_asked_at:
            warm.recap_asked_at = 0  # a fold has been since
        due = warm.projection.options.recap_share * threshold
        if warm.recap_asked_at:
            due = max(due, warm.recap_asked_at + _GROWTH * threshold)
        if tokens < due or (first_kept := warm.projection.last_answer) is None:
            return
        warm.recap_asked_at = tokens
        name = f"turnlog recap {warm.session.session_id}"
        self._task = asyncio.create_task(self._ask(context, first_kept), name=name)

    async def _ask(self, context: ModelContext, first_kept: str) -> None:
        session_id = self._warm.session.session_id
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
