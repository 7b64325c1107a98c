"""Many lines of markup are shown fast, and to the byte as rich shows them one by one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from turnlog.cli._text import Painter, safe, short

HOSTILE = [
    "plain",
    "",
    "   spaces at the end   ",
    "a [bold] that somebody wrote [/] and \\[escaped] \\\\[twice] and a last \\",
    "[/nothing] [red",
    "wide 漢字かな and emoji 🎈🎈 to the end of the line, which is long enough to be cut 漢字漢字",
    "\x1b[31mred\x1b[0m \u202eturned\u202c",
    "[[double]] [] [1] [a b=c]",
]
PLACES: dict[str, dict[str, Any]] = {
    "a file": {"force_terminal": False},
    "colours": {"force_terminal": True, "color_system": "truecolor", "width": 60},
    "few colours": {"force_terminal": True, "color_system": "standard", "width": 30},
    "no colours": {"force_terminal": True, "color_system": "standard", "no_color": True, "width": 60},
    "no styles": {"force_terminal": True, "color_system": None, "width": 60},
}


def console_of(place: str) -> Console:
    return Console(file=io.StringIO(), highlight=False, soft_wrap=True, emoji=False, **PLACES[place])


@pytest.mark.parametrize("place", PLACES)
def test_a_line_is_what_rich_prints(place: str) -> None:
    told, painted = console_of(place), console_of(place)
    painter = Painter(painted)
    head = "[dim]    7 12:00:01   12ms[/] tool_results       "
    bodies = [f"[cyan]{safe(text)}[/] success [dim]{short(text)}[/]" for text in HOSTILE]
    bodies += [safe(text) for text in HOSTILE]
    for body in bodies:
        line, rest = Text.from_markup(head, emoji=False), Text.from_markup(body, emoji=False)
        if painter.width is None:
            rest.rstrip()
        line = line + rest
        if painter.width is not None:
            line.truncate(painter.width, overflow="ellipsis")
        told.print(line)
    painter.write(painter.line(head, body) for body in bodies)
    assert _text(painted) == _text(told)


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
