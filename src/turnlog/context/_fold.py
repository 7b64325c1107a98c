"""What a fold entry does to what is visible. Nothing here decides anything: the entry has all of it."""

from __future__ import annotations

from collections.abc import Sequence

from turnlog.contract import Fold, FoldItem, FoldSegment

from ._units import InputUnit, Level, OutputUnit, ResultsUnit, TextUnit, Unit


def apply_fold(units: Sequence[Unit], fold: Fold, *, entry_id: str, timestamp: str) -> list[Unit]:
    """The units after ``fold``."""
    result = lower_items(without_screens(units), fold.items)
    for segment in fold.segments:
        result = replace_stretch(result, segment, entry_id=entry_id, timestamp=timestamp)
    return result


def without_screens(units: Sequence[Unit]) -> list[Unit]:
    """What one fold showed again is of no more use at the next one, which shows its own."""
    return [unit for unit in units if type(unit) is not TextUnit or unit.kind not in ("screen", "hints")]


def lower_items(units: Sequence[Unit], items: Sequence[FoldItem]) -> list[Unit]:
    """Each named result or input at its new level, where that is lower than it was."""
    inputs: dict[str, FoldItem] = {}
    results: dict[str, Level] = {}
    for item in items:
        if item.tool_call_id is None:
            inputs[item.entry_id] = item
        else:
            results[item.tool_call_id] = Level(item.grain, item.text)
    if not inputs and not results:
        return list(units)
    lowered: list[Unit] = []
    for unit in units:
        if type(unit) is ResultsUnit and unit.complete:
            named = {call_id: results[call_id] for call_id in unit.found if call_id in results}
            unit = unit.lowered(named) if named else unit
        elif type(unit) is InputUnit and (item := inputs.get(unit.entry.id)) is not None:
            unit = unit.lowered(Level(item.grain, item.text))
        lowered.append(unit)
    return lowered


def replace_stretch(
    units: Sequence[Unit], segment: FoldSegment, *, entry_id: str, timestamp: str
) -> list[Unit]:
    """One text in the place of the units from the first entry's to the last one's.

    A segment that names what is not visible changes nothing: the entries it meant are all still shown.
    """
    begin, end = bounds(units, segment.first_entry_id, segment.last_entry_id)
    if begin >= end:
        return list(units)
    stretch = units[begin:end]
    text = TextUnit(
        "segment",
        segment.text,
        entry_id=entry_id,
        timestamp=timestamp,
        first=(segment.first_entry_id, min(unit.first_seq for unit in stretch)),
        last=(segment.last_entry_id, max(unit.last_seq for unit in stretch)),
    )
    return [*units[:begin], text, *units[end:]]


def bounds(units: Sequence[Unit], first_id: str, last_id: str) -> tuple[int, int]:
    """The units of a stretch, moved inward so that no call is on one side and its result on the other."""
    begin = next((at for at, unit in enumerate(units) if holds(unit, first_id)), len(units))
    last = next((at for at in range(begin, len(units)) if holds(units[at], last_id)), begin - 1)
    end = next((at for at in range(begin, last + 1) if not is_settled(units, at)), last + 1)
    if begin < end and type(units[begin]) is ResultsUnit:
        begin += 1
    if begin < end and not can_cut(units, end):
        end -= 1
    return begin, end


def holds(unit: Unit, entry_id: str) -> bool:
    match unit:
        case InputUnit() | OutputUnit():
            return unit.entry.id == entry_id
        case ResultsUnit():
            return any(found.entry.id == entry_id for found in unit.found.values())
        case TextUnit():
            return entry_id in (unit.first_id, unit.last_id)


def is_settled(units: Sequence[Unit], position: int) -> bool:
    """Whether nothing is owed on the unit there: its calls are answered."""
    unit = units[position]
    match unit:
        case ResultsUnit():
            return unit.complete
        case OutputUnit():
            following = units[position + 1] if position + 1 < len(units) else None
            return not unit.calls or (type(following) is ResultsUnit and following.complete)
        case InputUnit() | TextUnit():
            return True


def can_cut(units: Sequence[Unit], position: int) -> bool:
    """Whether a cut before ``position`` leaves every call with its result."""
    return position >= len(units) or type(units[position]) is not ResultsUnit
