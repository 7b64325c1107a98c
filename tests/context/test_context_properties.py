"""The promises of the room, on made-up sessions; each check is shown to catch a projector that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, find, given, settings

from context.context_driver import (
    Session,
    check_levels,
    check_pairs,
    check_prefix,
    check_replay,
    check_user_words,
    scripts,
)
from turnlog.context import FoldDraft, FoldPlanner, ModelContext, Projection, _fold
from turnlog.context._units import ResultsUnit, Unit
from turnlog.contract import (
    Entry,
    Fold,
    Message,
    MessagePart,
    ModelInputEntry,
    ModelInvocationDescriptor,
    tool_result_part,
)

Check = Callable[[Session], None]
CHECKS: list[Check] = [check_prefix, check_pairs, check_replay, check_user_words, check_levels]


@pytest.mark.spec("C-1", "C-3", "C-4", "C-5")
@pytest.mark.parametrize(
    "examples",
    [pytest.param(50), pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
def test_every_promise_holds(examples: int) -> None:
    @settings(max_examples=examples)
    @given(scripts)
    def holds(script: list[tuple[Any, ...]]) -> None:
        session = Session(script)
        for check in CHECKS:
            check(session)

    holds()


class LevelsByPosition(Projection):
    """Shows all but the newest results at their gist, as if position decided."""

    def emit(self, target: ModelInvocationDescriptor | None = None, *, force: bool = False) -> ModelContext:
        context = super().emit(target, force=force)
        results = [at for at, message in enumerate(context.messages) if message.role == "tool"]
        keep = results[-1:]
        messages = [
            message if at in keep or message.role != "tool" else _shortened(message)
            for at, message in enumerate(context.messages)
        ]
        return context._replace(messages=messages)


def _shortened(message: Message) -> Message:
    parts: list[MessagePart] = [
        tool_result_part(part.payload.tool_call_id, "gist") for part in message.tool_results
    ]
    return msgspec.structs.replace(message, parts=parts)


class AnyPlace(FoldDraft):
    """Cuts wherever the budget ends."""

    def can_cut(self, position: int) -> bool:
        return True

    def kept_from(self, tail: int) -> int:
        return max(len(self.units) - 1, 0)


class NoCutRule(FoldPlanner):
    draft = AnyPlace


class CutsAnywhere(Projection):
    """Replaces a stretch by its numbers alone."""

    def apply(self, fold: Fold, *, entry_id: str = "", timestamp: str = "") -> list[Unit]:
        kept = _fold.bounds
        try:
            _fold.bounds = lambda units, first, last: (  # type: ignore[assignment]
                next((at for at, unit in enumerate(units) if _fold.holds(unit, first)), 0),
                next((at for at, unit in enumerate(units) if _fold.holds(unit, last)), 0) or len(units),
            )
            return super().apply(fold, entry_id=entry_id, timestamp=timestamp)
        finally:
            _fold.bounds = kept


class Forgetful(Projection):
    """Depends on how often it was asked."""

    asked = 0

    def emit(self, target: ModelInvocationDescriptor | None = None, *, force: bool = False) -> ModelContext:
        self.asked += 1
        context = super().emit(target, force=force)
        return context._replace(context_hash=f"{context.context_hash}{self.asked % 2}")


class RaisesLevels(Projection):
    """Shows results whole again whenever the user speaks."""

    def step(self, entry: Entry) -> None:
        super().step(entry)
        for unit in self.units if isinstance(entry, ModelInputEntry) else ():
            if isinstance(unit, ResultsUnit) and unit.levels:
                unit.levels = {}
                unit._message = None
                self._break()


class FewWords(FoldDraft):
    def user_cap(self) -> int:
        return 3


class CutsUserWords(FoldPlanner):
    draft = FewWords


@pytest.mark.parametrize(
    ("check", "projector", "planner"),
    [
        (check_prefix, LevelsByPosition, FoldPlanner),
        (check_pairs, CutsAnywhere, NoCutRule),
        (check_replay, Forgetful, FoldPlanner),
        (check_levels, RaisesLevels, FoldPlanner),
        (check_user_words, Projection, CutsUserWords),
    ],
    ids=["prefix", "pairs", "replay", "levels", "user words"],
)
def test_each_check_catches_its_mutant(
    check: Check, projector: type[Projection], planner: type[FoldPlanner]
) -> None:
    def breaks(script: list[tuple[Any, ...]]) -> bool:
        try:
            check(Session(script, projector, planner))
        except AssertionError:
            return True
        return False

    # Found, not made small: shrinking is what would take the time.
    find(scripts, breaks, settings=settings(max_examples=1_000, database=None, phases=(Phase.generate,)))
