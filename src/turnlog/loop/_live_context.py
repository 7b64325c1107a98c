"""The hall's part in what a model sees: grains and the LiveScreen at write time, folds when they are due."""

from __future__ import annotations

from datetime import datetime

from turnlog.context import (
    FoldPlanner,
    ModelContext,
    WindowOf,
    hints_section,
    input_sections,
    result_sections,
)
from turnlog.contract import (
    APPROVAL,
    LIVE_SCREEN,
    Clock,
    Fold,
    JsonObject,
    LevelOfDetailSections,
    Message,
    ModelInvocationDescriptor,
    Section,
)
from turnlog.tools import ToolAnswer

from ._recap import BackgroundRecap
from ._state import CallState, RunState
from ._warm import WarmSession

CACHE_LIFETIME = 300.0
"""Seconds after which a provider's prompt cache is taken to be cold."""


class LiveContext:
    def __init__(
        self,
        warm: WarmSession,
        clock: Clock,
        hints: JsonObject | None = None,
        recap: BackgroundRecap | None = None,
        window_of: WindowOf | None = None,
    ) -> None:
        self._warm = warm
        self._clock = clock
        self._hints = hints
        self._recap = recap
        self._window_of = window_of

    def fold_before(self, state: RunState, target: ModelInvocationDescriptor) -> Fold | None:
        """A fold when the context is past its threshold; earlier at a turn's end or on a cold cache."""
        planner = self._planner(target)
        return planner.plan("threshold", cold=self._is_cold(state), turn_end=state.call_index == 0)

    def fold_overflow(self, state: RunState, step: int, target: ModelInvocationDescriptor) -> Fold | None:
        return self._planner(target).plan("overflow", overflow_step=step)

    def _planner(self, target: ModelInvocationDescriptor) -> FoldPlanner:
        return FoldPlanner(
            self._warm.projection, target=target, window_of=self._window_of, screen=self._warm.host.screen
        )

    def begin_recap(self, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        if self._recap is not None:
            self._recap.consider(context, self._planner(target).threshold())

    def screen(self) -> str | None:
        return self._warm.host.screen()

    def _is_cold(self, state: RunState) -> bool:
        if state.last_answer_at is None:
            return False
        try:
            then, now = (datetime.fromisoformat(text) for text in (state.last_answer_at, self._clock.now()))
        except ValueError:
            return False
        return (now - then).total_seconds() > CACHE_LIFETIME

    def input_sections(self, message: Message) -> LevelOfDetailSections | None:
        return input_sections(self._warm.projection, message, added=self._added(screen=True))

    def result_sections(
        self, call: CallState, answer: ToolAnswer, *, closes: bool
    ) -> LevelOfDetailSections | None:
        changed = changed_by_human(call)
        return result_sections(
            self._warm.projection,
            answer.content,
            summary=answer.summary,
            gist=answer.gist,
            added=[*([(APPROVAL, changed)] if changed else ()), *self._added(screen=closes)],
        )

    def _added(self, *, screen: bool) -> list[Section]:
        added: list[Section] = []
        if not screen:
            return added
        if (hints := self._new_hints()) is not None:
            added.append(hints)
        if (changes := self._warm.host.changes()) is not None:
            added.append((LIVE_SCREEN, changes))
        return added

    def _new_hints(self) -> Section | None:
        return hints_section(self._warm.projection, self._hints)


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
