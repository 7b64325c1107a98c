"""Many lines into fewer bytes: what the user said is shortened last, and what was said first never lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ._digest import SHORTENED, Line, cap_words
from ._grains import extract_words
from ._words import Vocabulary

_LEAST = 80
"""Characters below which a line says too little to keep."""

_USER_LEAST = 200


def shrink_lines(lines: Sequence[Line], vocabulary: Vocabulary, limit: int, user_limit: int) -> list[Line]:
    """``lines`` in about ``limit`` bytes: other lines are cut first, the oldest go next.

    The user's lines may take up to ``user_limit``, verbatim while they fit into ``limit``. Of more than that
    the first one and the newest stay as they are, and of the others their rarest words.
    """
    user = sum(_size(line) for line in lines if line.is_user)
    if user > limit:
        lines = _lower_words(lines, limit)
        user, limit = sum(_size(line) for line in lines if line.is_user), user_limit
    rest = [line for line in lines if not line.is_user]
    share = level([_size(line) for line in rest], limit - user)
    if share >= _LEAST:
        return [line if line.is_user else _shorten(line, vocabulary, share) for line in lines]
    return _drop_oldest(lines, vocabulary, limit - user)


def _lower_words(lines: Sequence[Line], limit: int) -> list[Line]:
    """Of what the user said, only the first line and the newest stay verbatim."""
    cap = max(limit // 4, _USER_LEAST)
    kept = _kept_words(lines, limit // 2)
    lowered: list[Line] = []
    for position, line in enumerate(lines):
        if line.is_user:
            if position in kept:
                line = line._replace(text=cap_words(line.text, cap, line.first_seq))
            else:
                line = line._replace(kind=f"{line.kind}{SHORTENED}")
        lowered.append(line)
    return lowered


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
    """One line for many: how many they were, and the rarest words of all of them."""
    words = extract_words("\n".join(map(_words_of, gap)), vocabulary, max(room, 0))
    text = f"{sum(map(_count, gap))} lines"
    return Line(gap[0].first_seq, gap[-1].last_seq, "omitted", f"{text}: {words}" if words else text)


def _words_of(line: Line) -> str:
    return line.text.partition(": ")[2] if line.kind == "omitted" else line.text


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
