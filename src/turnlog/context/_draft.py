"""A fold in the making: what would be visible, and what the entry will say that makes it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from turnlog.contract import Fold, FoldItem, FoldSegment, ModelInvocationDescriptor

from ._digest import Line, render_lines
from ._fold import apply_fold, can_cut, is_settled, without_screens
from ._lane import unit_weight
from ._projection import Projection
from ._units import InputUnit, OutputUnit, ResultsUnit, TextUnit, Unit
from ._words import Vocabulary

FoldReason: TypeAlias = Literal["threshold", "cold", "turn_end", "overflow", "manual"]


class FoldDraft:
    """Begins as the projection is; ``lower`` and ``replace`` shorten it. The projection stays as it was."""

    def __init__(self, projection: Projection, target: ModelInvocationDescriptor | None) -> None:
        self.projection = projection
        self.units: list[Unit] = without_screens(projection.units)
        self._target = target
        self._items: dict[tuple[str, str | None], FoldItem] = {}
        self._segments: list[FoldSegment] = []
        self._replaced: list[str] = []

    # ── sizes ──

    @property
    def vocabulary(self) -> Vocabulary:
        return self.projection.vocabulary

    @property
    def head(self) -> int:
        """Bytes of prompt and tools, which no fold can shorten."""
        return len(self.projection.head.wire)

    def weigh(self, unit: Unit) -> int:
        return unit_weight(unit, self.projection.options)

    def weight(self) -> int:
        return self.head + sum(map(self.weigh, self.units))

    def tokens(self) -> int:
        return self.projection.meter.tokens(self.weight(), self._target)

    def user_cap(self) -> int:
        """Bytes up to which what the user said stays verbatim."""
        return self.projection.meter.weight(self.projection.options.user_cap, self._target)

    # ── places ──

    def can_cut(self, position: int) -> bool:
        return can_cut(self.units, position)

    def kept_from(self, tail: int) -> int:
        """Where the tail that stays as it is begins: never inside a pair, never behind what is owed, and,
        while there is a tail at all, never behind what no call has seen yet."""
        position, weight = len(self.units), 0
        while position > 0:
            weight += self.weigh(self.units[position - 1])
            if weight > tail:
                break
            position -= 1
        if tail:
            position = min(position, self._last_output())
        owed = next((at for at in range(len(self.units)) if not is_settled(self.units, at)), len(self.units))
        position = min(position, owed)
        while position > 0 and not self.can_cut(position):
            position -= 1
        return position

    def _last_output(self) -> int:
        for position in range(len(self.units) - 1, -1, -1):
            if type(self.units[position]) is OutputUnit:
                return position
        return len(self.units)

    def first_unfolded(self) -> int:
        for position, unit in enumerate(self.units):
            if type(unit) is not TextUnit or unit.kind != "segment":
                return position
        return len(self.units)

    # ── changes ──

    def note(self, items: Sequence[FoldItem]) -> None:
        for item in items:
            self._items[item.entry_id, item.tool_call_id] = item

    def lower(self, items: Sequence[FoldItem]) -> None:
        self.note(items)
        self._apply(Fold(reason="", tokens_before=0, tokens_after=0, items=list(items)))

    def replace(self, begin: int, end: int, lines: Sequence[Line]) -> None:
        stretch = self.units[begin:end]
        first, last = _first_id(stretch[0]), _last_id(stretch[-1])
        covered = {unit.first_id for unit in stretch if type(unit) is TextUnit and unit.kind == "segment"}
        made_here = {segment.first_entry_id for segment in self._segments}
        self._segments = [one for one in self._segments if one.first_entry_id not in covered]
        self._replaced += sorted(covered - made_here)
        segment = FoldSegment(first_entry_id=first, last_entry_id=last, text=render_lines(lines))
        self._segments.append(segment)
        self._apply(Fold(reason="", tokens_before=0, tokens_after=0, items=[], segments=[segment]))

    def _apply(self, fold: Fold) -> None:
        self.units = apply_fold(self.units, fold, entry_id="", timestamp="")

    def finish(self, reason: FoldReason, tokens_before: int, step: int) -> Fold:
        return Fold(
            reason=reason,
            tokens_before=tokens_before,
            tokens_after=self.tokens(),
            items=self._remaining_items(),
            segments=self._segments,
            replaced_segments=self._replaced,
            step=step or None,
        )

    def _remaining_items(self) -> list[FoldItem]:
        """Items of entries that a segment swallowed afterwards say nothing any more."""
        visible: set[tuple[str, str | None]] = set()
        for unit in self.units:
            match unit:
                case ResultsUnit():
                    visible |= {(found.entry.id, call_id) for call_id, found in unit.found.items()}
                case InputUnit():
                    visible.add((unit.entry.id, None))
                case OutputUnit() | TextUnit():
                    pass
        return [item for key, item in self._items.items() if key in visible]


def _first_id(unit: Unit) -> str:
    match unit:
        case TextUnit():
            return unit.first_id
        case InputUnit() | OutputUnit():
            return unit.entry.id
        case ResultsUnit():
            return unit.output.entry.id


def _last_id(unit: Unit) -> str:
    match unit:
        case TextUnit():
            return unit.last_id
        case InputUnit() | OutputUnit():
            return unit.entry.id
        case ResultsUnit():
            found = list(unit.found.values())
            return found[-1].entry.id if found else unit.output.entry.id
