"""When to fold and what. Its only output is the fold entry; replaying a log never needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from turnlog.contract import AgentError, Fold, FoldItem, FoldSegment, ModelInvocationDescriptor

from ._digest import Line, digest_units, gist_of, render_lines
from ._fold import apply_fold, can_cut, is_settled, without_screens
from ._lane import unit_weight
from ._limits import ModelLimits, WindowOf, fold_threshold, smallest_limits
from ._merge import shrink_lines
from ._oversize import excerpt
from ._projection import Projection
from ._render import grain_text
from ._units import InputUnit, Level, OutputUnit, ResultsUnit, TextUnit, Unit

FoldReason: TypeAlias = Literal["threshold", "cold", "turn_end", "overflow", "manual"]

MAX_OVERFLOW_STEPS = 3
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


class FoldPlanner:
    """Plans one fold over a projection. Looks at nothing but its arguments.

    ``screen`` renders the LiveScreen that the fold will show; it is asked when a fold is due.
    """

    def __init__(
        self,
        projection: Projection,
        *,
        target: ModelInvocationDescriptor | None = None,
        window_of: WindowOf | None = None,
        screen: Callable[[], str | None] | None = None,
    ) -> None:
        self.projection = projection
        self._screen = screen
        self._window_of = window_of
        self.options = projection.options
        self.target = target
        self.units: list[Unit] = projection.units
        self._items: dict[tuple[str, str | None], FoldItem] = {}
        self._segments: list[FoldSegment] = []
        self._replaced: list[str] = []

    def plan(
        self,
        reason: FoldReason = "threshold",
        *,
        cold: bool = False,
        turn_end: bool = False,
        limits: ModelLimits | None = None,
        overflow_step: int = 0,
    ) -> Fold | None:
        """A fold, or None when there is no need or it would free too little.

        Raises ``ConfigInvalid`` when prompt and tools alone leave no room, and ``ContextOverflow`` when the
        provider refused the prompt and nothing is left to shrink.
        """
        if not self.options.fold and reason not in {"overflow", "manual"}:
            return None
        before = self.projection.tokens(self.target)
        threshold = self._threshold(limits)
        self._check_head(threshold)
        due = self._due(reason, before, threshold, cold=cold, turn_end=turn_end)
        if due is None:
            return None
        overflow_step = max(overflow_step, 1) if due == "overflow" else 0
        if overflow_step > MAX_OVERFLOW_STEPS:
            raise AgentError(
                "ContextOverflow",
                f"the prompt still does not fit after {MAX_OVERFLOW_STEPS} folds (about {before} tokens); "
                "set context.window to the model's real window, or start a new session",
            )
        self.units = without_screens(self.units)  # only now: a plan that is not due costs nothing
        aim = self._aim(due, before, threshold, overflow_step)
        least = self._least_freed(before, threshold)
        if not self._is_worth_trying(aim, least):
            return None
        self._work(aim)
        return self._finish(due, before, overflow_step, least)

    # ── whether ──

    def threshold(self) -> int:
        """H: the tokens at which a context for this target is folded."""
        return self._threshold(None)

    def _threshold(self, limits: ModelLimits | None) -> int:
        if limits is None:
            targets = dict(self.projection.targets)
            if self.target is not None:
                targets[self.target] = None
            limits = smallest_limits(self.options, targets, self._window_of)
        return fold_threshold(self.options, limits)

    def _check_head(self, threshold: int) -> None:
        head = self.projection.meter.tokens(len(self.projection.head.wire), self.target)
        room = int(threshold * (1 - self.options.tail_share))
        if head > room:
            raise AgentError(
                "ConfigInvalid",
                f"the system prompt and tools take about {head} tokens; a context is folded at {threshold} "
                f"and keeps a tail, so at most {room} can go to them; "
                "shorten them, raise context.fold_at, or use a model with a larger window",
                meta={"head_tokens": head, "fold_at": threshold},
            )

    def _due(
        self, reason: FoldReason, before: int, threshold: int, *, cold: bool, turn_end: bool
    ) -> FoldReason | None:
        if reason in {"overflow", "manual"}:
            return reason
        if before >= threshold:
            return "threshold"
        if turn_end and before >= self.options.turn_end_share * threshold:
            return "turn_end"
        return "cold" if cold and before >= self.options.cold_share * threshold else None

    def _aim(self, reason: FoldReason, before: int, threshold: int, step: int) -> Aim:
        """On overflow our own count was wrong, so the aim is a share of what was refused."""
        options, head = self.options, len(self.projection.head.wire)
        base = min(before, threshold) if reason in {"overflow", "manual"} else threshold
        share = options.target_share if step < MAX_OVERFLOW_STEPS else options.target_share / 2
        whole = self.projection.meter.weight(base, self.target)
        whole = max(whole - self._shown_again(), whole // 2)
        tail = 0 if step >= MAX_OVERFLOW_STEPS else int(whole * options.tail_share)
        return Aim(
            reason=reason,
            step=step,
            target=max(int(whole * share), min(head + tail, whole * 9 // 10)),
            tail=tail,
            ceiling=whole if reason not in {"overflow"} else int(whole * share),
            # What was refused twice is too long in all its parts, the user's own words too.
            merge_at=int(
                self.projection.meter.weight(threshold, self.target)
                * options.merge_share
                / 2 ** max(step - 1, 0)
            ),
        )

    def _least_freed(self, before: int, threshold: int) -> int:
        """A fold breaks the cache: less than this is not worth it. In a small window even a little is."""
        share = self.options.min_freed_share
        return int(max(share * before, min(self.options.min_freed_tokens, share * threshold)))

    def _shown_again(self) -> int:
        """Bytes that the fold itself will show: room that it has to leave."""
        screen = self._screen() if self._screen is not None else None
        return len(screen.encode()) if screen else 0

    def _is_worth_trying(self, aim: Aim, least: int) -> bool:
        """Whether enough could be freed at best; says so at the cost of a sum, before any text is made."""
        if aim.reason in {"overflow", "manual"}:
            return True
        weights = [unit_weight(unit, self.options) for unit in self.units]
        kept = self.kept_from(aim.tail)
        most = sum(weights[:kept]) + max(weights[kept:], default=0)
        return self.projection.meter.tokens(most, self.target) >= least

    # ── what ──

    def _work(self, aim: Aim) -> None:
        before = self.weight()
        self._use_recap(aim)
        self._shed(aim)
        if self.weight() > aim.target:
            self._digest(aim)
        self._merge(aim)
        if self.weight() > aim.ceiling:
            self._shrink_largest(aim)
        if aim.reason == "overflow" and self.weight() >= before:
            self._digest(aim._replace(tail=0))

    def weight(self) -> int:
        total = sum(unit_weight(unit, self.options) for unit in self.units)
        return len(self.projection.head.wire) + total

    def can_cut(self, position: int) -> bool:
        return can_cut(self.units, position)

    def kept_from(self, tail: int) -> int:
        """Where the tail that stays as it is begins: never inside a pair, never behind what is owed, and,
        while there is a tail at all, never behind what no call has seen yet."""
        position, weight = len(self.units), 0
        while position > 0:
            weight += unit_weight(self.units[position - 1], self.options)
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

    def _use_recap(self, aim: Aim) -> None:
        """A summary that a model wrote in the meantime takes the place of what it covers, all but the user's
        own words."""
        recap = self.projection.recap
        kept = self.projection.numbers.get(recap.first_kept_entry_id) if recap else None
        if recap is None or kept is None:
            return
        begin = self._first_unfolded()
        end = begin
        limit = self.kept_from(aim.tail)
        while end < limit and self.units[end].last_seq < kept:
            end += 1
        while end > begin and not self.can_cut(end):
            end -= 1
        if end > begin:
            stretch = self.units[begin:end]
            line = Line(stretch[0].first_seq, max(unit.last_seq for unit in stretch), "recap", recap.summary)
            said = [unit for unit in stretch if type(unit) is InputUnit]
            self._replace(
                begin, end, [line, *digest_units(said, self.projection.vocabulary, self._user_cap())]
            )

    def _shed(self, aim: Aim) -> None:
        """Old tool results go to their gist where they stand, oldest first."""
        weight, units = self.weight(), list(self.units)
        for position in range(self.kept_from(aim.tail)):
            if weight <= aim.target:
                break
            unit = units[position]
            if type(unit) is not ResultsUnit:
                continue
            items = [item for call_id in unit.found if (item := self._gist_item(unit, call_id)) is not None]
            if items:
                units[position] = unit.lowered({_call(item): Level(item.grain, item.text) for item in items})
                self._note(items)
                weight += unit_weight(units[position], self.options) - unit_weight(unit, self.options)
        self.units = units

    def _gist_item(self, unit: ResultsUnit, call_id: str) -> FoldItem | None:
        found = unit.found[call_id]
        if unit.level(call_id).grain == "gist" or found.entry.id in unit.redacted:
            return None
        gist = gist_of(unit, call_id, self.projection.vocabulary)
        if len(unit.live_text(call_id)) - len(gist) < _WORTH:
            return None
        stored = found.outcome.sections if found.outcome else None
        kept = grain_text(stored, "gist") == gist
        return FoldItem(
            entry_id=found.entry.id, tool_call_id=call_id, grain="gist", text=None if kept else gist
        )

    def _digest(self, aim: Aim) -> None:
        """The oldest stretch becomes one text, as short a stretch as does it."""
        begin, limit = self._first_unfolded(), self.kept_from(aim.tail)
        weight, end = self.weight(), begin
        lines: list[Line] = []
        while end < limit and weight > aim.target:
            step = end + 1
            while step < limit and not self.can_cut(step):
                step += 1
            stretch = self.units[end:step]
            made = digest_units(stretch, self.projection.vocabulary, self._user_cap())
            weight -= sum(unit_weight(unit, self.options) for unit in stretch)
            weight += sum(len(line.render().encode()) + 2 for line in made)
            lines += made
            end = step
        if end > begin:
            self._replace(begin, end, lines)

    def _merge(self, aim: Aim) -> None:
        """Segments that take too much, or leave a fold that would soon be due again, become one, their lines
        shortened; user lines last."""
        count = self._first_unfolded()
        segments = [unit for unit in self.units[:count] if type(unit) is TextUnit]
        size, weight = sum(unit_weight(unit, self.options) for unit in segments), self.weight()
        crowded = weight > (aim.target + aim.ceiling) // 2 and aim.reason not in {"overflow", "manual"}
        if count == 0 or (size <= aim.merge_at and not crowded):
            return
        room = aim.merge_at
        if crowded:  # prompt and tools fill most of a small window: little is left for what was said before
            room = min(max(aim.target - (weight - size), room // 4), room)
        lines = digest_units(segments, self.projection.vocabulary, self._user_cap())
        shrunk = shrink_lines(lines, self.projection.vocabulary, min(aim.merge_at // 2, room), room)
        self._replace(0, count, shrunk)

    def _shrink_largest(self, aim: Aim) -> None:
        """What is too large by itself becomes its beginning, its end and a number to recall it by."""
        room = max(aim.ceiling - len(self.projection.head.wire), 0)
        order = sorted(
            range(len(self.units)), key=lambda at: (-unit_weight(self.units[at], self.options), at)
        )
        for position in order:
            excess = self.weight() - aim.ceiling
            unit = self.units[position]
            weight = unit_weight(unit, self.options)
            if excess <= 0 or weight < _WORTH:
                return
            if not is_settled(self.units, position):
                continue
            limit = max(min(weight - excess, room // 2), _WORTH)
            match unit:
                case InputUnit():
                    text = excerpt(unit.live_text(), limit, unit.entry.seq, self.projection.vocabulary)
                    self._lower([FoldItem(entry_id=unit.entry.id, grain="gist", text=text)])
                case ResultsUnit():
                    share = max(limit // max(len(unit.found), 1), _WORTH)
                    self._lower(
                        [
                            FoldItem(
                                entry_id=found.entry.id,
                                tool_call_id=call_id,
                                grain="gist",
                                text=excerpt(
                                    unit.live_text(call_id),
                                    share,
                                    found.entry.seq,
                                    self.projection.vocabulary,
                                ),
                            )
                            for call_id, found in unit.in_order()
                            if len(unit.live_text(call_id)) > share
                        ]
                    )
                case OutputUnit() | TextUnit():
                    pass

    # ── draft ──

    def _user_cap(self) -> int:
        return self.projection.meter.weight(self.options.user_cap, self.target)

    def _first_unfolded(self) -> int:
        for position, unit in enumerate(self.units):
            if type(unit) is not TextUnit or unit.kind != "segment":
                return position
        return len(self.units)

    def _note(self, items: Sequence[FoldItem]) -> None:
        for item in items:
            self._items[item.entry_id, item.tool_call_id] = item

    def _lower(self, items: Sequence[FoldItem]) -> None:
        self._note(items)
        self._apply(Fold(reason="", tokens_before=0, tokens_after=0, items=list(items)))

    def _replace(self, begin: int, end: int, lines: Sequence[Line]) -> None:
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

    def _finish(self, reason: FoldReason, before: int, step: int, least: int) -> Fold | None:
        fold = Fold(
            reason=reason,
            tokens_before=before,
            tokens_after=self.projection.meter.tokens(self.weight(), self.target),
            items=self._remaining_items(),
            segments=self._segments,
            replaced_segments=self._replaced,
            step=step or None,
        )
        freed = before - fold.tokens_after
        if reason == "overflow":
            if freed > 0:
                return fold
            raise AgentError(
                "ContextOverflow",
                f"the prompt does not fit and nothing is left to shrink (about {before} tokens, of which "
                f"{self.projection.meter.tokens(len(self.projection.head.wire), self.target)} are system "
                "prompt and tools); shorten those, or use a model with a larger window",
            )
        if reason == "manual":
            return fold if freed > 0 else None
        return fold if freed >= least else None

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


def _call(item: FoldItem) -> str:
    return item.tool_call_id or ""


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


def plan_fold(
    projection: Projection,
    *,
    target: ModelInvocationDescriptor | None = None,
    reason: FoldReason = "threshold",
    cold: bool = False,
    turn_end: bool = False,
    limits: ModelLimits | None = None,
    overflow_step: int = 0,
) -> Fold | None:
    """:meth:`FoldPlanner.plan` over ``projection`` for a call to ``target``."""
    return FoldPlanner(projection, target=target).plan(
        reason, cold=cold, turn_end=turn_end, limits=limits, overflow_step=overflow_step
    )
