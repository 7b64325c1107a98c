"""Text that others wrote, made safe to show on a terminal; and many lines of markup, shown fast."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.markup import escape
from rich.style import Style

from turnlog.contract import FileRefPart, ImagePart, TextPart, ToolResultPart, about_file, encode

# A model or a tool must not move the cursor, rename the window or hide what it did: control characters are
# shown as their pictures, line breaks and tabs stay. Nor may it turn text around (202A…, 2066…), so that one
# thing is read and another approved.
_PICTURES: dict[int, int] = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def plain(text: str) -> str:
    """``text`` without the characters that change how a terminal shows the others."""
    return text.translate(_PICTURES)


def plain_json(text: str) -> str:
    """JSON that says the same and moves no cursor: what ``plain`` shows as pictures is escaped."""
    return "".join(f"\\u{ord(char):04x}" if ord(char) in _PICTURES else char for char in text)


def safe(text: str) -> str:
    """``text`` as markup that says exactly ``text``."""
    return escape(plain(text))


def whole(value: object) -> str:
    """All of ``value``, as markup: what somebody is to decide on, to the last character."""
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def short(value: object, limit: int = 120) -> str:
    """``value`` on one line, as markup."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return safe(text if len(text) <= limit else text[: limit - 1] + "…")


def result_text(part: ToolResultPart) -> str:
    content = part.payload.content
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return encode(content).decode()
    return "\n".join(map(_shown, content))


def _shown(part: TextPart | ImagePart | FileRefPart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ImagePart():
            return f"({about_file(part.payload)})"
        case FileRefPart():
            return f"({about_file(part.payload)})"


# ── many lines ──

_TAG = re.compile(r"(\\*)\[([a-z#/@][^[]*?)\]")
_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}
_AT_ONCE = 500
Piece: TypeAlias = "tuple[str, tuple[str, ...]]"
"""A text, and the names of its styles."""


class Painter:
    """Lines of markup on a console as it would print them, at a tenth of the cost: a log has many lines, and
    few styles. ``write`` shows them as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._system = _SYSTEMS.get(console.color_system or "")
        self._codes = cache(self._codes_of)
        self.width = console.width if console.is_terminal else None
        """Columns of the terminal; None where there is none, and nothing is cut."""

    def write(self, lines: Iterable[str]) -> None:
        lines = iter(lines)
        while chunk := list(islice(lines, _AT_ONCE)):
            self._console.file.write("\n".join(chunk) + "\n")
        self._console.file.flush()

    def line(self, head: str, body: str, *, cut: bool = True) -> str:
        """``head`` and ``body``, which are markup, in one line: cut to the width of the terminal, or without
        spaces at its end where there is none and where nothing is to be cut."""
        pieces, rest = _pieces(head), _pieces(body)
        if self.width is None or not cut:
            while rest and not rest[-1][0].rstrip():
                rest.pop()
            if rest:
                text, names = rest.pop()
                rest.append((text.rstrip(), names))
            pieces += rest
        else:
            pieces = self._cut(pieces + rest, self.width)
        if self._system is None:
            return "".join([text for text, _ in pieces])
        return "".join([self._paint(text, names) for text, names in pieces])

    def _cut(self, pieces: list[Piece], width: int) -> list[Piece]:
        whole = "".join([text for text, _ in pieces])
        if cell_len(whole) <= width:
            return pieces
        room = len(set_cell_size(whole, width - 1))
        found: list[Piece] = []
        for text, names in pieces:
            if len(text) > room:
                found.append((text[:room] + "…", names))
                break
            found.append((text, names))
            room -= len(text)
        return found

    def _paint(self, text: str, names: tuple[str, ...]) -> str:
        if not names:
            return text
        before, after = self._codes(names)
        return f"{before}{text}{after}"

    def _codes_of(self, names: tuple[str, ...]) -> tuple[str, str]:
        style = Style.combine([self._console.get_style(name) for name in names])
        if self._console.no_color:
            style = style.without_color
        before, _, after = style.render("\0", color_system=self._system).partition("\0")
        return before, after


def _pieces(markup: str) -> list[Piece]:
    """The texts of markup with the names of their styles, as rich reads it."""
    if "[" not in markup:
        return [(markup, ())]
    found: list[Piece] = []
    names: tuple[str, ...] = ()
    text, at = "", 0
    for tag in _TAG.finditer(markup):
        slashes = len(tag[1])
        text += markup[at : tag.start()] + "\\" * (slashes // 2)
        at = tag.end()
        if slashes % 2:
            text += f"[{tag[2]}]"
            continue
        if text:
            found.append((text, names))
            text = ""
        names = names[:-1] if tag[2].startswith("/") else (*names, tag[2])
    if text := text + markup[at:]:
        found.append((text, names))
    return found
