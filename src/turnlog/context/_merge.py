"""Many lines into fewer bytes: what the user said goes last, and what was said first never."""

from __future__ import annotations

from collections.abc import Sequence

from ._digest import Line, cap_words
from ._grains import extract_words
from ._words import Vocabulary

_LEAST = 40
"""Characters below which a line says too little to keep."""

_USER_LEAST = 200


def shrink_lines(lines: Sequence[Line], vocabulary: Vocabulary, limit: int, user_limit: int) -> list[Line]:
    """``lines`` in about ``limit`` bytes: other lines are cut first, the oldest go next.

    The user's lines may take up to ``user_limit``, verbatim while they fit into ``limit``. Of more than that
    the first one and the newest stay, and one line says where the others are.
    """
    user = sum(_size(line) for line in lines if line.is_user)
    rest = [line for line in lines if not line.is_user]
    share = level([_size(line) for line in rest], limit - user)
    if share >= _LEAST:
        return [line if line.is_user else _shorten(line, vocabulary, share) for line in lines]
    if user > limit:
        cap = max(level([_size(line) for line in lines if line.is_user], limit), _USER_LEAST)
        lines = [
            line._replace(text=cap_words(line.text, cap, line.first_seq)) if line.is_user else line
            for line in lines
        ]
    return _drop_oldest(lines, vocabulary, limit - user, user_limit)


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


def _drop_oldest(lines: Sequence[Line], vocabulary: Vocabulary, limit: int, user_limit: int) -> list[Line]:
    """Newest lines first until the limits are used up; what is left out is named by one line."""
    keep = _kept_words(lines, user_limit)
    left = limit
    for position in range(len(lines) - 1, -1, -1):
        line = lines[position]
        if not line.is_user and left >= _LEAST:
            keep.add(position)
            left -= min(_size(line), _LEAST)
    result: list[Line] = []
    gap: list[Line] = []
    for position, line in enumerate(lines):
        if position in keep:
            result += _omitted(gap)
            gap = []
            result.append(line if line.is_user else _shorten(line, vocabulary, _LEAST))
        else:
            gap.append(line)
    return result + _omitted(gap)


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


def _omitted(gap: Sequence[Line]) -> list[Line]:
    if not gap:
        return []
    return [Line(gap[0].first_seq, gap[-1].last_seq, "omitted", f"{sum(map(_count, gap))} lines")]


def _count(line: Line) -> int:
    """How many lines a line stands for: one that was left out before names its own."""
    first = line.text.partition(" ")[0]
    return int(first) if line.kind == "omitted" and first.isdecimal() else 1


def _shorten(line: Line, vocabulary: Vocabulary, share: int) -> Line:
    if _size(line) <= share:
        return line
    room = max(share - (_size(line) - len(line.text.encode())), 16)
    return line._replace(text=extract_words(line.text, vocabulary, room))


def _size(line: Line) -> int:
    return len(line.render().encode()) + 1
