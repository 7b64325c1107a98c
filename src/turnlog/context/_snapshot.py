"""A projection as bytes and back: units by the seqs of their entries, which the log still has. The lanes and
their hashes are left out: they are made when they are first needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from turnlog.contract import (
    CompactionSummary,
    Entry,
    ModelCallFailedEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ToolResultsEntry,
    ToolSpec,
)

from ._options import ContextOptions, LearnedWindows, Refusal, TokenMeter
from ._projection import HeadPart, Projection
from ._render import Vocabulary
from ._units import LIVE, InputUnit, Level, OutputUnit, ResultsUnit, TextKind, TextUnit, Unit

# The private names are those of the classes that are written down here.
# pyright: reportPrivateUsage=false

_Asked: TypeAlias = tuple[ModelInvocationDescriptor, int]


class _Input(msgspec.Struct, array_like=True, tag="i"):
    seq: int
    level: Level | None = None


class _Output(msgspec.Struct, array_like=True, tag="o"):
    seq: int


class _Results(msgspec.Struct, array_like=True, tag="r"):
    output: int
    found: dict[str, int]
    levels: dict[str, Level]
    closed: bool


class _Text(msgspec.Struct, array_like=True, tag="t"):
    kind: TextKind
    text: str
    entry_id: str
    timestamp: str
    first: tuple[str, int]
    last: tuple[str, int]


class _Words(msgspec.Struct, array_like=True):
    """The words of the last texts, how many of them hold each, and the words of each text by number."""

    words: list[str]
    counts: list[int]
    texts: list[list[int]]


class _Kept(msgspec.Struct, array_like=True):
    last_seq: int
    breaks: int
    units: list[_Input | _Output | _Results | _Text]
    words: _Words
    factors: list[tuple[ModelInvocationDescriptor, float]]
    waiting: _Asked | None
    windows: list[tuple[ModelInvocationDescriptor, Refusal]]
    asked: _Asked | None
    targets: list[ModelInvocationDescriptor]
    tools: list[ToolSpec]
    head_texts: dict[HeadPart, str | None]
    shown_hints: str | None
    hints_from: tuple[str, int]
    recap: CompactionSummary | None
    recap_kept: int | None
    partial: int | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


def dump_projection(projection: Projection) -> tuple[bytes, list[Entry]] | None:
    """The projection as bytes, and the entries that it refers to. None while something is hidden: a snapshot
    would hold what must not be seen, or what was made without it."""
    if projection._hidden or projection._gone:
        return None
    entries: dict[int, Entry] = {}
    units = [_dump_unit(unit, entries) for unit in projection.units]
    partial, recap = projection._partial, projection.recap
    if partial is not None:
        entries[partial.seq] = partial
    kept = _Kept(
        last_seq=projection.last_seq,
        breaks=projection.breaks,
        units=units,
        words=_dump_words(projection.vocabulary),
        factors=list(projection.meter._factors.items()),
        waiting=projection.meter._waiting,
        windows=list(projection.windows._found.items()),
        asked=projection.windows._asked,
        targets=list(projection.targets),
        tools=projection.tool_specs,
        head_texts=projection._head_texts,
        shown_hints=projection.shown_hints,
        hints_from=projection._hints_from,
        recap=recap,
        recap_kept=None if recap is None else _kept_from(projection, recap, entries),
        partial=None if partial is None else partial.seq,
    )
    return _encode(kept), list(entries.values())


def _kept_from(projection: Projection, recap: CompactionSummary, entries: Mapping[int, Entry]) -> int | None:
    """Where a recap that waits for a fold ends; it is of no use once that place is folded itself."""
    seq = projection.numbers.get(recap.first_kept_entry_id)
    return seq if seq in entries else None


def _dump_unit(unit: Unit, entries: dict[int, Entry]) -> _Input | _Output | _Results | _Text:
    match unit:
        case InputUnit():
            entries[unit.entry.seq] = unit.entry
            return _Input(unit.entry.seq, None if unit.level is LIVE else unit.level)
        case OutputUnit():
            entries[unit.entry.seq] = unit.entry
            return _Output(unit.entry.seq)
        case ResultsUnit():
            entries.update((found.entry.seq, found.entry) for found in unit.found.values())
            return _Results(
                unit.output.entry.seq,
                {call_id: found.entry.seq for call_id, found in unit.found.items()},
                dict(unit.levels),
                unit.closed,
            )
        case TextUnit():
            return _Text(
                unit.kind,
                unit.text,
                unit.entry_id,
                unit.timestamp,
                (unit.first_id, unit.first_seq),
                (unit.last_id, unit.last_seq),
            )


def load_projection(data: bytes, entries: Mapping[int, Entry], options: ContextOptions) -> Projection:
    """Raises ``MsgspecError``, ``KeyError`` or ``ValueError`` for what does not fit together."""
    kept = _decode(data)
    projection = Projection(options)
    projection.last_seq, projection.breaks = kept.last_seq, kept.breaks
    projection.vocabulary = _load_words(kept.words)
    projection.meter, projection.windows = _load_meter(kept, options), _load_windows(kept)
    projection.targets = dict.fromkeys(kept.targets)
    projection._tools, projection._head_texts = kept.tools, kept.head_texts
    projection.shown_hints, projection._hints_from = kept.shown_hints, kept.hints_from
    projection.recap = kept.recap
    if kept.recap is not None and kept.recap_kept is not None:
        projection.numbers[kept.recap.first_kept_entry_id] = kept.recap_kept
    if kept.partial is not None:
        projection._partial = _entry(entries, kept.partial, ModelCallFailedEntry)
    outputs: dict[int, OutputUnit] = {}
    for row in kept.units:
        unit = _load_unit(row, entries, outputs)
        projection.units.append(unit)
        _number(projection, unit)
    return projection


def _load_unit(
    row: _Input | _Output | _Results | _Text, entries: Mapping[int, Entry], outputs: dict[int, OutputUnit]
) -> Unit:
    match row:
        case _Input():
            unit = InputUnit(_entry(entries, row.seq, ModelInputEntry))
            unit.level = LIVE if row.level is None else row.level
            return unit
        case _Output():
            outputs[row.seq] = output = OutputUnit(_entry(entries, row.seq, ModelOutputEntry))
            return output
        case _Results():
            return _load_results(row, entries, outputs[row.output])
        case _Text():
            return TextUnit(
                row.kind,
                row.text,
                entry_id=row.entry_id,
                timestamp=row.timestamp,
                first=row.first,
                last=row.last,
            )


def _load_results(row: _Results, entries: Mapping[int, Entry], output: OutputUnit) -> ResultsUnit:
    unit = ResultsUnit(output)
    for call_id, seq in row.found.items():
        entry = _entry(entries, seq, ToolResultsEntry)
        parts = entry.payload.message.tool_results
        unit.add(entry, next(part for part in parts if part.payload.tool_call_id == call_id))
    unit.closed = row.closed
    if row.levels:
        unit.levels = row.levels
    return unit


def _number(projection: Projection, unit: Unit) -> None:
    """What the projection knows of entries in view by their ids and calls."""
    match unit:
        case InputUnit() | OutputUnit():
            projection.numbers[unit.entry.id] = unit.entry.seq
        case ResultsUnit():
            for found in unit.found.values():
                projection.numbers[found.entry.id] = found.entry.seq
            if not unit.closed:
                for call_id in unit.output.calls:
                    if call_id not in unit.found:
                        projection._calls[call_id] = unit
        case TextUnit():
            if unit.kind in ("partial", "branch"):
                projection.numbers[unit.entry_id] = unit.first_seq


def _entry(entries: Mapping[int, Entry], seq: int, kind: type[Any]) -> Any:
    entry = entries[seq]
    if not isinstance(entry, kind):
        raise ValueError(f"entry {seq} is a {entry.kind}")
    return entry


def _load_meter(kept: _Kept, options: ContextOptions) -> TokenMeter:
    meter = TokenMeter(options)
    meter._factors, meter._waiting = dict(kept.factors), kept.waiting
    return meter


def _load_windows(kept: _Kept) -> LearnedWindows:
    windows = LearnedWindows()
    windows._found = dict(kept.windows)
    windows._asked = kept.asked
    return windows


def _dump_words(vocabulary: Vocabulary) -> _Words:
    counts = vocabulary.counts
    words = sorted(counts)
    numbers = {word: number for number, word in enumerate(words)}
    texts = [sorted(map(numbers.__getitem__, text)) for text in vocabulary.texts]
    return _Words(words, [counts[word] for word in words], texts)


def _load_words(kept: _Words) -> Vocabulary:
    vocabulary = Vocabulary()
    vocabulary._counts.update(dict(zip(kept.words, kept.counts, strict=True)))
    vocabulary._documents.extend(kept.texts)
    vocabulary._words = kept.words
    return vocabulary
