"""The hall's part in what a model sees: the context manager asked at the right moments, with the screen and
the hints of the moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from turnlog.context import ContextBuildResult, ContextInput, ContextUpdateInput, ModelContext
from turnlog.contract import (
    APPROVAL,
    Clock,
    EntryPayload,
    JsonObject,
    LevelOfDetailSections,
    ModelInvocationDescriptor,
    ToolSpec,
)
from turnlog.history import CallState, SessionState
from turnlog.tools import ToolAnswer

from ._folds import Folds
from ._ports import Said
from ._recap import Recaps

CACHE_LIFETIME = 300.0
"""Seconds after which a provider's prompt cache is taken to be cold."""


class LiveContext:
    def __init__(
        self,
        folds: Folds,
        clock: Clock,
        hints: JsonObject | None = None,
        recaps: Recaps | None = None,
    ) -> None:
        self._folds = folds
        self._clock = clock
        self._hints = hints
        self._recaps = recaps

    def build(
        self, state: SessionState, target: ModelInvocationDescriptor, specs: Sequence[ToolSpec]
    ) -> ContextBuildResult:
        """Folds when the context is past its threshold; earlier at a turn's end or on a cold cache."""
        return self._folds.context.build_context(
            ContextInput(
                target=target,
                tool_specs=specs,
                cold=self._is_cold(state),
                turn_end=state.call_index == 0,
                screen=self._folds.host.screen,
            )
        )

    def shrink(
        self, state: SessionState, step: int, target: ModelInvocationDescriptor
    ) -> Sequence[EntryPayload]:
        updates = self._folds.context.compute_context_updates(
            ContextUpdateInput(
                target=target, overflow_hint=True, overflow_step=step, screen=self._folds.host.screen
            )
        )
        return updates.entries_to_append

    def begin_recap(self, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        if self._recaps is not None:
            self._recaps.consider(self._folds, context, target)

    async def await_recap(self) -> None:
        if self._recaps is not None:
            await self._recaps.wait(self._folds.session.session_id)

    def _is_cold(self, state: SessionState) -> bool:
        if state.last_answer_at is None:
            return False
        try:
            then, now = (datetime.fromisoformat(text) for text in (state.last_answer_at, self._clock.now()))
        except ValueError:
            return False
        return (now - then).total_seconds() > CACHE_LIFETIME

    def input_sections(self, said: Said) -> LevelOfDetailSections | None:
        return self._folds.context.input_sections(
            said.message,
            summary=said.summary,
            gist=said.gist,
            sections=said.sections,
            hints=self._new_hints(),
            screen=self._folds.host.changes(),
        )

    def result_sections(
        self, call: CallState, answer: ToolAnswer, *, closes: bool
    ) -> LevelOfDetailSections | None:
        changed = changed_by_human(call)
        return self._folds.context.result_sections(
            answer.content,
            summary=answer.summary,
            gist=answer.gist,
            sections=[(APPROVAL, changed)] if changed else (),
            hints=self._new_hints() if closes else None,
            screen=self._folds.host.changes() if closes else None,
        )

    def _new_hints(self) -> JsonObject | None:
        return self._hints


def changed_by_human(call: CallState) -> str | None:
    """What a model has to know of a result that is not of the arguments it gave: who changed which of them.

    Not what to: a purge of the decision must not leave that behind.
    """
    decided, asked = call.decided, call.requested
    if call.started is None or decided is None or decided.action != "modify" or asked is None:
        return None
    before, after = asked.arguments, decided.arguments or {}
    names = [name for name in {**before, **after} if _in(before, name) != _in(after, name)]
    if not names:
        return None
    return (
        f"{decided.decided_by} changed {', '.join(names)} before this ran; the result is of the changed call."
    )


def _in(arguments: JsonObject, name: str) -> tuple[bool, object]:
    return name in arguments, arguments.get(name)
