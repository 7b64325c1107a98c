"""A fold in the making (what would be visible, and what the entry will hold that makes it so), and the steps
that shorten it, each where the one before left too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from turnlog.contract import Fold, FoldItem, FoldSegment, Grain, ModelInvocationDescriptor

from ._digest import Line, cap_words, digest_units, grain_of, render_lines, shrink_lines
from ._fold import apply_fold, can_cut, is_settled, without_screens
from ._lane import unit_weight
from ._projection import Projection
from ._render import Vocabulary, excerpt, grain_text
from ._units import RANK, InputUnit, Level, OutputUnit, ResultsUnit, TextUnit, Unit

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
        self.lowest = {
            call_id
            for unit in projection.units
            if type(unit) is ResultsUnit
            for call_id in unit.found
            if unit.level(call_id).grain == "gist"
        }
        """Calls whose results are at their gist already: no level of detail is ever raised."""

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


_WORTH = 200
"""Bytes a result must shrink by before its level is touched."""


class Aim(NamedTuple):
    """What a fold works towards, in bytes of weight."""

    reason: FoldReason
    step: int
    target: int
    tail: int
    ceiling: int
    merge_at: int
    grains: tuple[Grain, ...]


def shrink(draft: FoldDraft, aim: Aim) -> None:
    before = draft.weight()
    _use_recap(draft, aim)
    _shed(draft, aim)
    if draft.weight() > aim.target:
        _digest(draft, aim)
    _merge(draft, aim)
    if draft.weight() > aim.ceiling:
        _shrink_largest(draft, aim)
    if aim.reason == "overflow" and draft.weight() >= before:
        _digest(draft, aim._replace(tail=0))


def _use_recap(draft: FoldDraft, aim: Aim) -> None:
    """A summary that a model wrote in the meantime takes the place of what it covers, all but the user's
    own words."""
    recap = draft.projection.recap
    kept = draft.projection.numbers.get(recap.first_kept_entry_id) if recap else None
    if recap is None or kept is None:
        return
    begin = draft.first_unfolded()
    end = begin
    limit = draft.kept_from(aim.tail)
    while end < limit and draft.units[end].last_seq < kept:
        end += 1
    while end > begin and not draft.can_cut(end):
        end -= 1
    if end > begin:
        stretch = draft.units[begin:end]
        line = Line(stretch[0].first_seq, max(unit.last_seq for unit in stretch), "recap", recap.summary)
        said = [unit for unit in stretch if type(unit) is InputUnit]
        draft.replace(begin, end, [line, *digest_units(said, draft.vocabulary, draft.user_cap())])


def _shed(draft: FoldDraft, aim: Aim) -> None:
    """What is old goes to a lower level where it stands, oldest first: to its summary, and where that is not
    enough to its gist. Gists that are not enough either are of no use: a digest holds more in less room."""
    weight, units = draft.weight(), list(draft.units)
    kept = draft.kept_from(aim.tail)
    for grain in aim.grains:
        noted: list[FoldItem] = []
        for position in range(kept):
            if weight <= aim.target:
                break
            unit = units[position]
            lower, items = _lowered(draft, unit, grain)
            if items:
                units[position] = lower
                noted += items
                weight += draft.weigh(lower) - draft.weigh(unit)
        if weight <= aim.target or grain == aim.grains[0]:
            draft.note(noted)
            draft.units = list(units)


def _lowered(draft: FoldDraft, unit: Unit, grain: Grain) -> tuple[Unit, list[FoldItem]]:
    match unit:
        case ResultsUnit():
            items = [
                item
                for call_id in unit.found
                if (item := _result_item(unit, call_id, grain, draft.vocabulary)) is not None
            ]
            return unit.lowered({_call(item): Level(item.grain, item.text) for item in items}), items
        case InputUnit():
            item = _input_item(draft, unit, grain)
            return (unit.lowered(Level(item.grain, item.text)), [item]) if item else (unit, [])
        case OutputUnit() | TextUnit():
            return unit, []


def _result_item(unit: ResultsUnit, call_id: str, grain: Grain, vocabulary: Vocabulary) -> FoldItem | None:
    found, level = unit.found[call_id], unit.level(call_id)
    if RANK[level.grain] >= RANK[grain] or found.entry.id in unit.redacted:
        return None
    text = grain_of(unit, call_id, grain, vocabulary)
    shown = (
        unit.live_text(call_id) if level.grain == "live" else grain_of(unit, call_id, level.grain, vocabulary)
    )
    if len(shown.encode()) - len(text.encode()) < _WORTH:
        return None
    stored = found.outcome.sections if found.outcome else None
    kept = grain_text(stored, grain) == text
    return FoldItem(entry_id=found.entry.id, tool_call_id=call_id, grain=grain, text=None if kept else text)


def _input_item(draft: FoldDraft, unit: InputUnit, grain: Grain) -> FoldItem | None:
    """Of an input only what is over the cap goes, unless its author said what stands for it."""
    payload, live = unit.entry.payload, unit.live_text()
    if RANK[unit.level.grain] >= RANK[grain] or unit.redacted or len(live.encode()) <= draft.user_cap():
        return None
    text = grain_text(payload.sections, grain) if payload.authored else None
    if text is None and grain == "summary":
        return FoldItem(
            entry_id=unit.entry.id, grain=grain, text=cap_words(live, draft.user_cap(), unit.entry.seq)
        )
    return FoldItem(entry_id=unit.entry.id, grain=grain) if text is not None else None


def _digest(draft: FoldDraft, aim: Aim) -> None:
    """The oldest stretch becomes one text, as short a stretch as does it."""
    begin, limit = draft.first_unfolded(), draft.kept_from(aim.tail)
    weight, end = draft.weight(), begin
    lines: list[Line] = []
    while end < limit and weight > aim.target:
        step = end + 1
        while step < limit and not draft.can_cut(step):
            step += 1
        stretch = draft.units[end:step]
        made = digest_units(stretch, draft.vocabulary, draft.user_cap(), draft.lowest)
        weight -= sum(draft.weigh(unit) for unit in stretch)
        weight += sum(len(line.render().encode()) + 2 for line in made)
        lines += made
        end = step
    if end > begin:
        draft.replace(begin, end, lines)


def _merge(draft: FoldDraft, aim: Aim) -> None:
    """Segments that take too much, or leave a fold that would soon be due again, become one, their lines
    shortened; user lines last."""
    count = draft.first_unfolded()
    segments = [unit for unit in draft.units[:count] if type(unit) is TextUnit]
    size, weight = sum(draft.weigh(unit) for unit in segments), draft.weight()
    crowded = weight > (aim.target + aim.ceiling) // 2 and aim.reason not in {"overflow", "manual"}
    if count == 0 or (size <= aim.merge_at and not crowded):
        return
    # What else the aim leaves is room for what was said before; where prompt and tools fill most of a small
    # window that is little, and the past still has its part.
    left = aim.target - (weight - size)
    lines = digest_units(segments, draft.vocabulary, draft.user_cap())
    shrunk = shrink_lines(lines, left + left // 5 if left > aim.merge_at else max(left, aim.merge_at // 2))
    draft.replace(0, count, shrunk)


def _shrink_largest(draft: FoldDraft, aim: Aim) -> None:
    """What is too large by itself becomes its beginning, its end and a number to recall it by."""
    room = max(aim.ceiling - draft.head, 0)
    order = sorted(range(len(draft.units)), key=lambda at: (-draft.weigh(draft.units[at]), at))
    for position in order:
        excess = draft.weight() - aim.ceiling
        unit = draft.units[position]
        weight = draft.weigh(unit)
        if excess <= 0 or weight < _WORTH:
            return
        if not is_settled(draft.units, position):
            continue
        limit = max(min(weight - excess, room // 2), _WORTH)
        match unit:
            case InputUnit():
                text = excerpt(unit.live_text(), limit, draft.vocabulary)
                draft.lower([FoldItem(entry_id=unit.entry.id, grain="gist", text=text)])
            case ResultsUnit():
                share = max(limit // max(len(unit.found), 1), _WORTH)
                draft.lower(
                    [
                        FoldItem(
                            entry_id=found.entry.id,
                            tool_call_id=call_id,
                            grain="gist",
                            text=excerpt(unit.live_text(call_id), share, draft.vocabulary),
                        )
                        for call_id, found in unit.in_order()
                        if len(unit.live_text(call_id).encode()) > share
                    ]
                )
            case OutputUnit() | TextUnit():
                pass


def _call(item: FoldItem) -> str:
    return item.tool_call_id or ""
