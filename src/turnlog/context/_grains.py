"""Three grains of one text. Deterministic: first and last lines, diagnostics, then the rarest words.

Rare words beat first words: what a later turn asks for is seldom what a text begins with. What is written
here is stored with the entry, so a change of this file changes no old session.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from turnlog.contract import MessagePart

from ._render import ResultContent, content_text

_WORD = re.compile(r"[^\W_](?:[\w./:@$%&+#~-]{0,78}\w%?)?|_\w{1,79}|\$\d[\d.,]*")
"""A run of letters, digits and what holds names, paths and figures together, starting and ending in one."""

TEXT_LIMIT = 24_000
"""Characters of one text that are looked at; of a longer one, the beginning and the end."""

WINDOW = 400
"""Texts that the frequencies are taken over: what is older has been folded and makes no word common."""


def split_words(text: str) -> list[str]:
    if len(text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        text = f"{text[:half]} {text[-half:]}"
    return _WORD.findall(text)


class Vocabulary:
    """Document frequency as a fold over what was said. It becomes text, and the text words, only when a
    frequency is asked for; by then most of a long log has left the window."""

    __slots__ = ("_counts", "_documents", "_waiting")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._documents: deque[frozenset[str]] = deque()
        self._waiting: list[ResultContent | list[MessagePart]] = []

    def copy(self) -> Vocabulary:
        copy = Vocabulary()
        copy._counts, copy._documents = self._counts.copy(), self._documents.copy()
        copy._waiting = self._waiting.copy()
        return copy

    def add(self, content: ResultContent | list[MessagePart]) -> None:
        """Take in a message's parts or a result's content."""
        self._waiting.append(content)

    @property
    def counts(self) -> Counter[str]:
        """How many of the last texts hold a word, in lower case."""
        if self._waiting:
            for text in self._take_texts():
                words = frozenset(split_words(text.lower()))
                self._documents.append(words)
                self._counts.update(words)
                if len(self._documents) > WINDOW:
                    self._forget(self._documents.popleft())
        return self._counts

    def _take_texts(self) -> list[str]:
        """The last that fits the window of what waits, oldest first; what says nothing takes no place."""
        texts = filter(None, map(content_text, reversed(self._waiting)))
        found = list(islice(texts, WINDOW))
        self._waiting.clear()
        return found[::-1]

    def _forget(self, words: frozenset[str]) -> None:
        counts = self._counts
        for word in words:
            if counts[word] == 1:
                del counts[word]
            else:
                counts[word] -= 1


TextKind: TypeAlias = Literal["input", "output", "tool_result"]


class Grains(NamedTuple):
    summary: str
    gist: str


class _Size(NamedTuple):
    """How much of each ingredient a grain takes."""

    words: int
    line: int
    edge_lines: int
    diagnostics: int


SUMMARY = _Size(words=40, line=160, edge_lines=2, diagnostics=6)
GIST = _Size(words=12, line=100, edge_lines=1, diagnostics=2)

SHORT = 240
"""Characters below which a text is its own gist."""

_DIAGNOSTIC = re.compile(
    r"\b(?:error|failed|failure|fatal|exception|traceback|panic|denied|refused|warning|not found|assert\w*"
    r"|[a-z]+error|[a-z]+exception)\b",
    re.IGNORECASE,
)


def make_grains(text: str, kind: TextKind, vocabulary: Vocabulary) -> Grains:
    """What ``text`` shrinks to at a fold; the text itself where it is short already."""
    if len(text) <= SHORT:
        return Grains(text, text)
    ranked = _rank(split_words(text), vocabulary.counts)
    summary = _compose(text, kind, ranked, SUMMARY)
    gist = _compose(text, kind, ranked, GIST)
    if len(summary) >= len(text):
        summary = text
    return Grains(summary, gist if len(gist) < len(summary) else summary)


def extract_words(text: str, vocabulary: Vocabulary, budget: int) -> str:
    """The rarest words of ``text`` in their own order, at most ``budget`` bytes in all."""
    if len(text.encode()) <= budget:
        return text
    ranked = _rank(split_words(text), vocabulary.counts)
    taken: list[tuple[int, str]] = []
    for position, word in ranked:
        size = len(word.encode()) + 1
        if size <= budget:
            taken.append((position, word))
            budget -= size
    return _in_order(taken)


def _rank(words: list[str], counts: Mapping[str, int]) -> list[tuple[int, str]]:
    """Each word once, with its place, the most telling first: rare figures and names, then rare words."""
    found: dict[str, tuple[int, int, str]] = {}
    for position, word in enumerate(words):
        key = word.lower()
        if key not in found:
            found[key] = (counts.get(key, 0) + 2 * _tell(word), position, word)
    return [(position, word) for _, position, word in sorted(found.values())]


def _tell(word: str) -> int:
    """0 for what is surely a name or a figure, 1 for a capitalised word, 2 for the rest."""
    if not word.isalpha():
        return 0
    if word.islower():
        return 2
    return 0 if any(letter.isupper() for letter in word[1:]) else 1


def _in_order(taken: list[tuple[int, str]]) -> str:
    return " ".join(word for _, word in sorted(taken))


def _compose(text: str, kind: TextKind, ranked: list[tuple[int, str]], size: _Size) -> str:
    pieces: list[str] = []
    lines = [line for line in (raw.strip() for raw in text.splitlines()) if line]
    if kind == "tool_result" and lines:
        edges = lines[: size.edge_lines]
        if len(lines) > 2 * size.edge_lines:
            edges.append("…")
        edges += lines[max(size.edge_lines, len(lines) - size.edge_lines) :]
        pieces += [_cut(line, size.line) for line in edges]
        inner = lines[size.edge_lines : -size.edge_lines]
        told = [line for line in inner if _DIAGNOSTIC.search(line)]
        pieces += [_cut(line, size.line) for line in told[: size.diagnostics]]
    elif lines:
        pieces.append(_cut(lines[0], size.line))
    shown = "\n".join(pieces)
    taken: list[tuple[int, str]] = []
    for position, word in ranked:
        if len(taken) == size.words:
            break
        if word not in shown:
            taken.append((position, word))
    if taken:
        pieces.append(_in_order(taken))
    return "\n".join(pieces)


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def first_bytes(text: str, size: int) -> str:
    """The beginning of ``text``, at most ``size`` bytes and whole characters."""
    return text[:size] if text.isascii() else text.encode()[: max(size, 0)].decode("utf-8", "ignore")


def last_bytes(text: str, size: int) -> str:
    """The end of ``text``, at most ``size`` bytes and whole characters."""
    if size <= 0:
        return ""
    return text[-size:] if text.isascii() else text.encode()[-size:].decode("utf-8", "ignore")


def excerpt(text: str, limit: int, vocabulary: Vocabulary) -> str:
    """About ``limit`` bytes of ``text``: its beginning, its end, and the rarest words between."""
    if len(text.encode()) <= limit:
        return text
    head, tail = first_bytes(text, limit // 2), last_bytes(text, limit // 4)
    middle = text[len(head) : len(text) - len(tail)]
    told = extract_words(middle, vocabulary, limit // 8)
    return f"{head}\n[… {len(middle)} characters left out: {told}]\n{tail}"


def make_preview(text: str, limit: int, handle: str) -> str:
    """A long result as it is sent: its beginning, its end, and where the rest is."""
    if len(text.encode()) <= limit:
        return text
    head, tail = first_bytes(text, limit * 3 // 4), last_bytes(text, limit // 4)
    left = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left} of {len(text)} characters are not shown; the whole text is {handle}]\n{tail}"
