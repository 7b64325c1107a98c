"""A stretch of entries as one text: lines of ``#number kind: text``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from turnlog.contract import RECALL, Grain, TextPart, ToolCallPart

from ._render import REDACTED, Vocabulary, extract_words, first_bytes, grain_text, last_bytes, make_grains
from ._units import InputUnit, OutputUnit, ResultsUnit, TextUnit, Unit

PREFACE = f"[Earlier in this session, shortened. {RECALL} brings text back, by #number or by a query.]"

_KINDS = "user|host|assistant|tool|recap|branch|omitted"
_HEADER = re.compile(rf"^#(\d+)(?:-(\d+))? ((?:{_KINDS})(?: [^\n:]*)?): ", re.MULTILINE)
_FALSE_HEADER = re.compile(rf"(\n)(#\d+(?:-\d+)? (?:{_KINDS})(?: [^\n:]*)?: )")
_CALL_CHARS = 800

SHORTENED = " (words)"
"""Behind the kind of a line that was shortened."""


class Line(NamedTuple):
    """One entry (or stretch) in a digest."""

    first_seq: int
    last_seq: int
    kind: str
    text: str

    @property
    def entries(self) -> int:
        """How many entries it stands for."""
        return max(self.last_seq - self.first_seq + 1, 1)

    @property
    def is_user(self) -> bool:
        return self.kind in {"user", "host"}

    def render(self) -> str:
        number = (
            f"{self.first_seq}" if self.first_seq == self.last_seq else f"{self.first_seq}-{self.last_seq}"
        )
        return f"#{number} {self.kind}: {_escape(self.text)}"


def _escape(text: str) -> str:
    """No later line of a text may pass for a header; only such a line is touched."""
    return _FALSE_HEADER.sub(r"\1 \2", text) if "\n#" in text else text


def render_lines(lines: Iterable[Line]) -> str:
    return "\n".join([PREFACE, *(line.render() for line in lines)])


def parse_lines(text: str) -> list[Line]:
    """The lines that :func:`render_lines` wrote."""
    headers = list(_HEADER.finditer(text))
    if not headers:
        return []
    ends = [header.start() - 1 for header in headers[1:]] + [len(text)]
    return [
        Line(
            int(header.group(1)),
            int(header.group(2) or header.group(1)),
            header.group(3),
            text[header.end() : end],
        )
        for header, end in zip(headers, ends, strict=True)
    ]


def digest_units(
    units: Iterable[Unit], vocabulary: Vocabulary, user_cap: int, lowest: Collection[str] = ()
) -> list[Line]:
    """The lines of a stretch. User text is verbatim up to ``user_cap`` bytes; a result is its summary, or its
    gist where its call is among ``lowest``."""
    lines: list[Line] = []
    for unit in units:
        match unit:
            case InputUnit():
                kind = "host" if unit.entry.payload.source == "host" else "user"
                lower = unit.lower_text()  # what was shortened does not become longer again
                text = cap_words(unit.live_text() if lower is None else lower, user_cap, unit.entry.seq)
                lines.append(Line(unit.first_seq, unit.last_seq, kind, text))
            case OutputUnit():
                lines.append(Line(unit.first_seq, unit.last_seq, "assistant", _output_line(unit, vocabulary)))
            case ResultsUnit():
                lines += _result_lines(unit, vocabulary, lowest)
            case TextUnit(kind="note"):
                pass
            case TextUnit(kind="partial"):
                text = f"{make_grains(unit.text, 'output', vocabulary).gist} [interrupted]"
                lines.append(Line(unit.first_seq, unit.last_seq, "assistant", text))
            case TextUnit():
                lines += parse_lines(unit.text) if unit.kind == "segment" else []
                if not lines or lines[-1].last_seq < unit.first_seq:
                    kind = "branch" if unit.kind == "branch" else "recap"
                    lines.append(Line(unit.first_seq, unit.last_seq, kind, unit.text))
    return lines


def cap_words(text: str, cap: int, seq: int) -> str:
    """``text`` itself, or its beginning and end with a note of what is between."""
    if len(text.encode()) <= cap:
        return text
    head, tail = first_bytes(text, cap * 2 // 3), last_bytes(text, cap // 3)
    left = len(text) - len(head) - len(tail)
    return f"{head}\n[… {left} characters left out; recall #{seq}]\n{tail}"


def _output_line(unit: OutputUnit, vocabulary: Vocabulary) -> str:
    if unit.redacted:
        return REDACTED
    message = unit.full
    said = "\n".join(part.payload.text for part in message.parts if isinstance(part, TextPart))
    pieces = [make_grains(said, "output", vocabulary).summary] if said.strip() else []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            arguments = extract_words(part.payload.raw_args_text, vocabulary, _CALL_CHARS)
            pieces.append(f"{part.payload.tool_name}({arguments})")
    return "\n".join(pieces)


def _result_lines(unit: ResultsUnit, vocabulary: Vocabulary, lowest: Collection[str]) -> list[Line]:
    lines: list[Line] = []
    for call_id, found in unit.in_order():
        name = found.outcome.tool_name if found.outcome else "result"
        name = "".join(letter for letter in name if letter.isalnum() or letter in "_-.") or "result"
        seq = found.entry.seq
        grain: Grain = "gist" if call_id in lowest else "summary"
        lines.append(Line(seq, seq, f"tool {name}", grain_of(unit, call_id, grain, vocabulary)))
    return lines


def grain_of(unit: ResultsUnit, call_id: str, grain: Grain, vocabulary: Vocabulary) -> str:
    """A result's lower grain: what the fold before gave it, what is stored, or one made now."""
    found = unit.found[call_id]
    if found.entry.id in unit.redacted:
        return REDACTED
    level = unit.level(call_id)
    if level.grain == grain and level.text is not None:
        return level.text
    stored = grain_text(found.outcome.sections, grain) if found.outcome else None
    live = unit.live_text(call_id)
    if stored is not None and len(stored) <= max(len(live), 1):
        return stored
    made = make_grains(live, "tool_result", vocabulary)
    return made.summary if grain == "summary" else made.gist


_LEAST = 240
"""Bytes below which a line says too little to keep: lines are put together until each has as much."""

_LEAST_WORDS = 40
"""Bytes of words that a line keeps of what it stands for, however little room there is."""

_USER_LEAST = 200

_USER_SHARE, _USER_FLOOR = 12, 600
"""What the user's words may take verbatim: one part in so many of the room, and so many bytes in any case."""

_COUNTED = re.compile(r"\d+ lines(?:: |$)")
"""How lines of stretches that were left out began before they had nothing but words."""


def shrink_lines(lines: Sequence[Line], limit: int) -> list[Line]:
    """``lines`` in about ``limit`` bytes.

    What the user said is verbatim while it takes a part of that; of more than that the first line and the
    newest stay. Of all others the words stay that no line before them holds, figures and names first, and
    where there are too many lines for the room, neighbours become one.
    """
    verbatim = max(limit // _USER_SHARE, _USER_FLOOR)
    if sum(_size(line) for line in lines if line.is_user) > verbatim:
        lines = _lower_words(lines, verbatim)
    room = limit - sum(_size(line) for line in lines if line.is_user)
    share = _share(lines, room)
    if any(share * line.entries < min(_size(line), _LEAST) for line in lines if not line.is_user):
        lines = _put_together(lines, room)
        share = _share(lines, room)
    told = Vocabulary()
    shrunk: list[Line] = []
    for line in lines:
        shrunk.append(line if line.is_user else _shorten(line, told, int(share * line.entries)))
        told.add(line.text)
    return shrunk


def _share(lines: Sequence[Line], room: int) -> float:
    """The bytes that each entry gets of the room."""
    return level([(_size(line), line.entries) for line in lines if not line.is_user], room)


def _put_together(lines: Sequence[Line], room: int) -> list[Line]:
    """Neighbours as one line where by their share of the room they would say too little; the user's own
    lines stay apart."""
    total = sum(line.entries for line in lines if not line.is_user)
    each = room / max(total, 1)
    result: list[Line] = []
    for is_user, run in groupby(lines, lambda line: line.is_user):
        group: list[Line] = []
        for line in run:
            if is_user:
                result.append(line)
                continue
            group.append(line)
            if sum(one.entries for one in group) * each >= _LEAST:
                result.append(_as_one(group))
                group = []
        if group:
            result.append(_as_one(group))
    return result


def _as_one(lines: Sequence[Line]) -> Line:
    if len(lines) == 1:
        return lines[0]
    text = "\n".join(map(_words_of, lines))
    return Line(lines[0].first_seq, lines[-1].last_seq, "omitted", text)


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


def level(sizes: Sequence[tuple[int, int]], limit: int) -> float:
    """The largest share for each part at which all sizes, each cut to as many shares as it has parts, add up
    to at most ``limit``."""
    ordered = sorted(sizes, key=lambda one: one[0] / one[1])
    left, parts = limit, sum(count for _, count in sizes)
    for size, count in ordered:
        if size / count * parts > left:
            return max(left / parts, 0)
        left -= size
        parts -= count
    return ordered[-1][0] / ordered[-1][1] if ordered else 0


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
