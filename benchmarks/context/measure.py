"""One strategy over one recording: cost, reuse, breaks, recall, time."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
from .sessions import Call, Recording
from .strategies import Extra, Piece, Strategy

LONG_AGO = 30
"""Entries: an identifier counts as needed when it was last seen at least this long before its use."""

FEW = 8
"""Entries: what more of them hold is common in the session, and a strategy is given no credit for it."""

LOOKBACK = 20
"""Messages before a mark in which a cached beginning is looked for."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{3,}[A-Za-z0-9_]")
_ESCAPES = (("\\\\", "\\"), ("\\n", "\n"), ("\\t", "\t"), ('\\"', '"'))


class Result(NamedTuple):
    """``needed`` and ``recall`` have a figure for each definition of need."""

    strategy: str
    calls: int
    costs: dict[str, float]
    breaks: int
    byte_reuse: float
    needed: dict[str, int]
    recall: dict[str, float]
    mean_tokens: int
    sizes: list[int]
    seconds: float


def words(text: str) -> set[str]:
    """All words of five letters and more, with the figures, dots and hyphens in them."""
    return set(_IDENTIFIER.findall(text))


def identifiers(text: str) -> set[str]:
    """Words that look like names: inner capitals, digits, underscores, dots, hyphens."""
    return {word for word in words(text) if _is_name(word)}


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


class Need(NamedTuple):
    """A definition of need: which words count, and in how many entries one may have been so far."""

    title: str
    split: Callable[[str], set[str]]
    most: int | None


NAMES = Need("names", identifiers, None)
"""Words that look like names, however often they were seen before."""

RARE = Need("rare words", words, FEW)
"""Any word that at most eight entries have held so far."""


class Needs:
    """Which words each call used that it could only know from long ago. The same for all strategies."""

    def __init__(self, recording: Recording, need: Need) -> None:
        self.need = need
        self.by_call: list[set[str]] = []
        self._held: dict[bytes, set[str]] = {}
        last: dict[str, int] = {}
        held: Counter[str] = Counter()
        position = 0
        for call in recording.calls:
            while position < call.position:
                found = need.split(_text(recording.entries[position]))
                held.update(found)
                last |= dict.fromkeys(found, position)
                position += 1
            self.by_call.append(
                {
                    word
                    for word in need.split(_said(call.output))
                    if position - last.get(word, position) >= LONG_AGO
                    and (need.most is None or held[word] <= need.most)
                }
            )

    def held(self, piece: Piece) -> set[str]:
        """The words of a message, split once for all strategies."""
        found = self._held.get(piece.wire)
        if found is None:
            found = self._held[piece.wire] = self.need.split(_unescape(piece.wire))
        return found


def both_needs(recording: Recording) -> list[Needs]:
    return [Needs(recording, NAMES), Needs(recording, RARE)]


def run(strategy: Strategy, recording: Recording, needs: Sequence[Needs], prices: Sequence[Price]) -> Result:
    """Replay a recording. The head is paid for at every call; reuse is of what follows it."""
    meter = _Meter(prices, recording.head)
    seen_words = [_Recall(one) for one in needs]
    before: list[Piece] = []
    position = breaks = sent = reused = 0
    sizes: list[int] = []
    seconds = 0.0
    strategy.begin(recording.head)
    for number, call in enumerate(recording.calls):
        started = time.process_time()
        for entry in recording.entries[position : call.position]:
            strategy.append(entry)
        position = call.position
        strategy.idle, strategy.starts_turn = call.idle, call.starts_turn
        strategy.prepare()
        seconds += time.process_time() - started
        asked = len(strategy.extras)
        pieces = list(strategy.request())
        common = common_bytes(before, pieces)
        breaks += bool(before) and common < sum(len(piece.wire) for piece in before)
        sent, reused = sent + sum(len(piece.wire) for piece in pieces), reused + common
        sizes.append(meter.charge(pieces, common, strategy.marks(pieces), call))
        meter.charge_extras(strategy.extras[asked:], call.idle)
        for recall in seen_words:
            recall.look(number, pieces)
        before = pieces
    return Result(
        strategy=strategy.name,
        calls=len(recording.calls),
        costs=meter.costs,
        breaks=breaks,
        byte_reuse=reused / max(sent, 1),
        needed={one.title: one.needed for one in seen_words},
        recall={one.title: one.found / max(one.needed, 1) for one in seen_words},
        mean_tokens=sum(sizes) // max(len(sizes), 1),
        sizes=sizes,
        seconds=seconds,
    )


class _Meter:
    """Adds up what each provider charges, by what its cache still holds."""

    def __init__(self, prices: Sequence[Price], head: int) -> None:
        self.costs = {price.label: 0.0 for price in prices}
        self._prices = prices
        self._head = head
        self._caches = {price.label: MarkedCache() for price in prices if price.marked}
        self._called = False

    def charge(self, pieces: Sequence[Piece], common: int, marks: Sequence[int], call: Call) -> int:
        """Pay for a call; returns the tokens of its request."""
        total = max(sum(len(piece.wire) for piece in pieces), 1)
        tokens = sum(piece.tokens for piece in pieces)
        for price in self._prices:
            warm = self._called and call.idle <= price.lifetime
            known = common
            if price.marked:
                cache = self._caches[price.label]
                if not warm:
                    cache.expire()
                known = cache.read(pieces, marks)
            seen = self._head + tokens * known / total if warm else 0
            size = self._head + tokens
            self.costs[price.label] += price.cost(seen, size - seen, call.output_tokens)
        self._called = True
        return self._head + tokens

    def charge_extras(self, extras: Sequence[Extra], idle: float) -> None:
        """A summary is asked for on the prefix that was sent last, which is cheap while it is cached."""
        for extra in extras:
            for price in self._prices:
                seen = extra.input_tokens if idle <= price.lifetime else 0
                self.costs[price.label] += price.cost(seen, extra.input_tokens - seen, extra.output_tokens)


class _Recall:
    """Counts the words that a call needed, and those of them that it was sent."""

    def __init__(self, needs: Needs) -> None:
        self.title = needs.need.title
        self.needed = self.found = 0
        self._needs = needs

    def look(self, number: int, pieces: Iterable[Piece]) -> None:
        wanted = self._needs.by_call[number]
        if not wanted:
            return
        left = set(wanted)
        for piece in pieces:
            left -= self._needs.held(piece)
        self.needed += len(wanted)
        self.found += len(wanted) - len(left)


class MarkedCache:
    """What a provider that caches at marks can read back: a beginning that was marked before, whole, and
    ends not too far before a mark of this request."""

    def __init__(self) -> None:
        self._known: set[int] = set()

    def expire(self) -> None:
        self._known.clear()

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
