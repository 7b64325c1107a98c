"""A stretch of entries as one text: lines of ``#number kind: text``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from turnlog.contract import RECALL, Grain, TextPart, ToolCallPart

from ._grains import extract_words, make_grains
from ._oversize import first_bytes, last_bytes
from ._render import REDACTED, grain_text
from ._units import InputUnit, OutputUnit, ResultsUnit, TextUnit, Unit
from ._words import Vocabulary

PREFACE = f"[Earlier in this session, shortened. {RECALL} brings text back, by #number or by a query.]"

_KINDS = "user|host|assistant|tool|recap|branch|omitted"
_HEADER = re.compile(rf"^#(\d+)(?:-(\d+))? ((?:{_KINDS})(?: [^\n:]*)?): ", re.MULTILINE)
_FALSE_HEADER = re.compile(rf"(\n)(#\d+(?:-\d+)? (?:{_KINDS})(?: [^\n:]*)?: )")
_CALL_CHARS = 160

SHORTENED = " (words)"
"""Behind the kind of a line that no longer says what it said word for word."""


class Line(NamedTuple):
    """One entry (or stretch) in a digest."""

    first_seq: int
    last_seq: int
    kind: str
    text: str

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


def digest_units(units: Iterable[Unit], vocabulary: Vocabulary, user_cap: int) -> list[Line]:
    """The lines of a stretch. User text is verbatim up to ``user_cap`` bytes."""
    lines: list[Line] = []
    for unit in units:
        match unit:
            case InputUnit():
                kind = "host" if unit.entry.payload.source == "host" else "user"
                text = cap_words(unit.live_text(), user_cap, unit.entry.seq)
                lines.append(Line(unit.first_seq, unit.last_seq, kind, text))
            case OutputUnit():
                lines.append(Line(unit.first_seq, unit.last_seq, "assistant", _output_line(unit, vocabulary)))
            case ResultsUnit():
                lines += _result_lines(unit, vocabulary)
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
    pieces = [make_grains(said, "output", vocabulary).gist] if said.strip() else []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            arguments = extract_words(part.payload.raw_args_text, vocabulary, _CALL_CHARS)
            pieces.append(f"{part.payload.tool_name}({arguments})")
    return "\n".join(pieces)


def _result_lines(unit: ResultsUnit, vocabulary: Vocabulary) -> list[Line]:
    lines: list[Line] = []
    for call_id, found in unit.in_order():
        name = found.outcome.tool_name if found.outcome else "result"
        name = "".join(letter for letter in name if letter.isalnum() or letter in "_-.") or "result"
        seq = found.entry.seq
        lines.append(Line(seq, seq, f"tool {name}", grain_of(unit, call_id, "gist", vocabulary)))
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
