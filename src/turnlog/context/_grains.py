"""Three grains of one text. Deterministic: first and last lines, diagnostics, then the rarest words.

Rare words beat first words: what a later turn asks for is seldom what a text begins with. What is written
here is stored with the entry, so a change of this file changes no old session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from ._words import Vocabulary, split_words

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
