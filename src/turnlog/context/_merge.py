"""Many lines into fewer bytes. Every stretch keeps words: those of the user longest, and the first ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ._digest import SHORTENED, Line, cap_words
from ._grains import extract_words
from ._oversize import first_bytes
from ._words import Vocabulary

_LEAST = 80
"""Bytes below which a line says too little to keep."""

_LEAST_WORDS = 40
"""Bytes of words that a line keeps of what it stands for, however little room there is."""

_USER_LEAST = 200

_USER_SHARE, _USER_FLOOR = 4, 1_200
"""What the user's words may take verbatim: one part in so many of the room, and so many bytes in any case."""

_COUNTED = re.compile(r"\d+ lines(?:: |$)")
"""How lines of stretches that were left out began before they had nothing but words."""


def shrink_lines(lines: Sequence[Line], vocabulary: Vocabulary, limit: int) -> list[Line]:
    """``lines`` in about ``limit`` bytes.

    What the user said is verbatim while it takes a part of that; of more than that the first line and the
    newest stay, and of the others their rarest words. Other lines are cut, then the oldest become one line
    for each stretch.
    """
    verbatim = max(limit // _USER_SHARE, _USER_FLOOR)
    if sum(_size(line) for line in lines if line.is_user) > verbatim:
        lines = _lower_words(lines, verbatim)
    room = limit - sum(_size(line) for line in lines if line.is_user)
    share = level([_size(line) for line in lines if not line.is_user], room)
    if share >= _LEAST:
        return [line if line.is_user else _shorten(line, vocabulary, share) for line in lines]
    return _drop_oldest(lines, vocabulary, room)


def _lower_words(lines: Sequence[Line], limit: int) -> list[Line]:
    """Of what the user said, only the first line and the newest stay verbatim."""
    cap = max(limit // 2, _USER_LEAST)
    capped = [
        line._replace(text=cap_words(line.text, cap, line.first_seq)) if line.is_user else line
        for line in lines
    ]
    kept = _kept_words(capped, limit)
    return [
        short if not line.is_user or position in kept else line._replace(kind=f"{line.kind}{SHORTENED}")
        for position, (line, short) in enumerate(zip(lines, capped, strict=True))
    ]


def level(sizes: Sequence[int], limit: int) -> int:
    """The largest cap at which all ``sizes``, each cut to it, add up to at most ``limit``."""
    ordered = sorted(sizes)
    left = limit
    for position, size in enumerate(ordered):
        count = len(ordered) - position
        if size * count > left:
            return max(left // count, 0)
        left -= size
    return ordered[-1] if ordered else 0


def _drop_oldest(lines: Sequence[Line], vocabulary: Vocabulary, limit: int) -> list[Line]:
    """The newest lines, shortened, in half the room; of each stretch that is left out, one line with its
    rarest words."""
    keep = {position for position, line in enumerate(lines) if line.is_user}
    left = limit // 2
    for position in range(len(lines) - 1, -1, -1):
        if position not in keep:
            left -= min(_size(lines[position]), _LEAST)
            if left < 0:
                break
            keep.add(position)
    gaps = [list(gap) for kept, gap in groupby(range(len(lines)), keep.__contains__) if not kept]
    total = sum(map(len, gaps))
    result: list[Line] = []
    for position, line in enumerate(lines):
        if position in keep:
            result.append(line if line.is_user else _shorten(line, vocabulary, _LEAST))
        elif gaps and position == gaps[0][0]:
            gap = gaps.pop(0)
            room = limit // 2 * len(gap) // total
            result.append(_omitted([lines[at] for at in gap], vocabulary, room))
    return result


def _kept_words(lines: Sequence[Line], limit: int) -> set[int]:
    """Which of the user's lines stay: the first, that the work began with, and the newest that fit."""
    said = [position for position, line in enumerate(lines) if line.is_user]
    keep: set[int] = set(said[:1])
    left = limit - sum(_size(lines[position]) for position in keep)
    for position in reversed(said[1:]):
        left -= _size(lines[position])
        if left < 0:
            break
        keep.add(position)
    return keep


def _omitted(gap: Sequence[Line], vocabulary: Vocabulary, room: int) -> Line:
    """One line for many: the rarest words of all of them. Its numbers say how many entries it stands for."""
    words = _some_words("\n".join(map(_words_of, gap)), vocabulary, room)
    return Line(gap[0].first_seq, gap[-1].last_seq, "omitted", words)


def _words_of(line: Line) -> str:
    return _COUNTED.sub("", line.text, count=1) if line.kind == "omitted" else line.text


def _shorten(line: Line, vocabulary: Vocabulary, share: int) -> Line:
    if _size(line) <= share:
        return line
    text = _words_of(line)
    return line._replace(text=_some_words(text, vocabulary, share - (_size(line) - len(line.text.encode()))))


def _some_words(text: str, vocabulary: Vocabulary, room: int) -> str:
    """Words of ``text`` in about ``room`` bytes, never none: a word too long for it is cut."""
    room = max(room, _LEAST_WORDS)
    return extract_words(text, vocabulary, room) or first_bytes(text.lstrip(), room)


def _size(line: Line) -> int:
    return len(line.render().encode()) + 1
