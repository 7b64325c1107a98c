"""One strategy over one recording: cost, reuse, breaks, recall, time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from turnlog.contract import (
    Entry,
    ModelInputEntry,
    ModelOutput,
    ModelOutputEntry,
    TextPart,
    ToolCallPart,
    ToolResultsEntry,
    encode,
)

from .prices import Price
from .sessions import Recording
from .strategies import Fold, Piece, Strategy

LONG_AGO = 30
"""Entries: an identifier counts as needed when it was last seen at least this long before its use."""

LOOKBACK = 20
"""Messages before a mark in which a cached beginning is looked for."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{3,}[A-Za-z0-9_]")
_ESCAPES = (("\\\\", "\\"), ("\\n", "\n"), ("\\t", "\t"), ('\\"', '"'))


class Result(NamedTuple):
    strategy: str
    calls: int
    costs: dict[str, float]
    breaks: int
    byte_reuse: float
    needed: int
    recall: float
    mean_tokens: int
    sizes: list[int]
    seconds: float


def identifiers(text: str) -> set[str]:
    """Words that look like names: inner capitals, digits, underscores, dots, hyphens."""
    return {word for word in _IDENTIFIER.findall(text) if _is_name(word)}


def _is_name(word: str) -> bool:
    if not word.isalpha():
        return True
    return not word.isupper() and any(letter.isupper() for letter in word[1:])


def _unescape(wire: bytes) -> str:
    text = wire.decode()
    for _ in range(2):  # arguments are JSON within JSON
        for escape, plain in _ESCAPES:
            text = text.replace(escape, plain)
    return text


def _said(output: ModelOutput) -> str:
    parts = output.message.parts
    return "\n".join(
        part.payload.text if isinstance(part, TextPart) else _unescape(part.payload.raw_args_text.encode())
        for part in parts
        if isinstance(part, TextPart | ToolCallPart)
    )


def _text(entry: Entry) -> str:
    if isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry):
        return _unescape(encode(entry.payload.message.parts))
    return ""


class Needs:
    """Which identifiers each call used that it could only know from long ago. The same for all strategies."""

    def __init__(self, recording: Recording) -> None:
        self.by_call: list[set[str]] = []
        last: dict[str, int] = {}
        position = 0
        for call in recording.calls:
            while position < call.position:
                for word in identifiers(_text(recording.entries[position])):
                    last[word] = position
                position += 1
            used = identifiers(_said(call.output))
            self.by_call.append({word for word in used if position - last.get(word, position) >= LONG_AGO})


def run(
    strategy: Strategy, recording: Recording, needs: Needs, prices: Sequence[Price], *, recall: bool = True
) -> Result:
    known: dict[bytes, set[str]] = {}
    costs = {price.label: 0.0 for price in prices}
    before: list[Piece] = []
    position = breaks = needed = found = sent = reused = 0
    sizes: list[int] = []
    seconds = 0.0
    cache = MarkedCache()
    for call, wanted in zip(recording.calls, needs.by_call, strict=True):
        started = time.process_time()
        for entry in recording.entries[position : call.position]:
            strategy.append(entry)
        position = call.position
        if isinstance(strategy, Fold):
            strategy.prepare()
        seconds += time.process_time() - started
        pieces = strategy.request()
        common = common_bytes(before, pieces)
        total = sum(len(piece.wire) for piece in pieces)
        breaks += bool(before) and common < sum(len(piece.wire) for piece in before)
        sent, reused = sent + total, reused + common
        tokens = sum(piece.tokens for piece in pieces)
        sizes.append(tokens)
        marked = cache.read(pieces, strategy.marks(pieces))
        for price in prices:
            seen = tokens * (marked if price.marked else common) / max(total, 1)
            costs[price.label] += price.cost(seen, tokens - seen, call.output_tokens)
        if recall and wanted:
            shown = _shown(pieces, known)
            needed, found = needed + len(wanted), found + len(wanted & shown)
        before = list(pieces)
    for extra in strategy.extras:
        for price in prices:  # the summary is asked for on the prefix that was just sent
            costs[price.label] += price.cost(extra.input_tokens, 0, extra.output_tokens)
    return Result(
        strategy.name,
        len(recording.calls),
        costs,
        breaks,
        reused / max(sent, 1),
        needed,
        found / max(needed, 1),
        sum(sizes) // max(len(sizes), 1),
        sizes,
        seconds,
    )


class MarkedCache:
    """What a provider that caches at marks can read back: a beginning that was marked before, whole, and
    ends not too far before a mark of this request."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def read(self, pieces: Sequence[Piece], marks: Sequence[int]) -> int:
        """The bytes of ``pieces`` that are cached; then their marks are cached too."""
        seen = size = hashed = 0
        marked: list[int] = []
        for count, piece in enumerate(pieces, 1):
            hashed = hash((hashed, piece.wire))
            size += len(piece.wire)
            if hashed in self._known and any(0 <= mark - count <= LOOKBACK for mark in marks):
                seen = size
            if count in marks:
                marked.append(hashed)
        self._known.update(marked)
        return seen


def _shown(pieces: Iterable[Piece], known: dict[bytes, set[str]]) -> set[str]:
    shown: set[str] = set()
    for piece in pieces:
        words = known.get(piece.wire)
        if words is None:
            words = known[piece.wire] = identifiers(_unescape(piece.wire))
        shown |= words
    return shown


def common_bytes(before: Sequence[Piece], now: Sequence[Piece]) -> int:
    """How many bytes of ``now`` a cache that holds ``before`` has seen."""
    common = 0
    for left, right in zip(before, now, strict=False):
        if left.wire == right.wire:
            common += len(left.wire)
            continue
        for one, other in zip(left.wire, right.wire, strict=False):
            if one != other:
                break
            common += 1
        break
    return common
