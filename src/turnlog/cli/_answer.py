"""The text of an answer on its way to a reader: a file, a plain terminal, or one that shows Markdown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments

from ._text import plain

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


_LONGEST_PAUSE = 1.0  # seconds between two drawings, however long one takes


class Answer(Protocol):
    """Takes in text piece by piece."""

    @property
    def in_line(self) -> bool:
        """Whether a line has begun on the screen and not ended."""
        ...

    def add(self, text: str) -> None: ...

    def part(self) -> None:
        """Something else is printed now, and the text continues below it."""
        ...

    def close(self) -> None:
        """The text is complete."""
        ...

    def drop(self) -> bool:
        """The text is retracted. True when some of it stays in sight."""
        ...


def answer_on(console: Console) -> Answer:
    if not console.is_terminal:
        return HeldAnswer(console)
    return StreamedAnswer(console) if console.is_dumb_terminal else MarkdownAnswer(console)


class HeldAnswer:
    """For a file or a pipe, where nothing can be taken back: an answer is written when it is complete."""

    in_line = False

    def __init__(self, console: Console) -> None:
        self._console = console
        self._held = ""

    def add(self, text: str) -> None:
        self._held += text

    def part(self) -> None:
        pass

    def close(self) -> None:
        held, self._held = self._held, ""
        if held:
            self._console.print(plain(held), end="" if held.endswith("\n") else "\n", markup=False)
            self._console.file.flush()

    def drop(self) -> bool:
        self._held = ""
        return False


class StreamedAnswer:
    """Printed as it comes. On a terminal no word is cut at the margin."""

    def __init__(self, console: Console, style: str | None = None) -> None:
        self._console = console
        self._style = style
        self._column = 0
        self._gap = ""
        self._word = ""
        self._began = False

    @property
    def in_line(self) -> bool:
        return self._began

    def add(self, text: str) -> None:
        if not text:
            return
        if not self._console.is_terminal:
            self._print(plain(text))
            return
        for character in plain(text):
            if character == "\n":
                self._end_word()
                self._print("\n")
                self._column, self._gap = 0, ""
            elif character.isspace():
                self._end_word()
                self._gap += character
            else:
                if cell_len(character) > 1:  # scripts without spaces break anywhere
                    self._end_word()
                self._word += character

    def _end_word(self) -> None:
        if not self._word:
            return
        size, room = cell_len(self._gap + self._word), self._console.width - self._column
        if size > room and self._column:
            self._print("\n" + self._word)
            self._column = cell_len(self._word)
        else:
            self._print(self._gap + self._word)
            self._column += size
        if self._column > self._console.width:  # a word that is longer than a line
            self._column %= self._console.width
        self._gap = self._word = ""

    def _print(self, text: str) -> None:
        self._console.print(text, end="", markup=False, style=self._style)
        self._began = True

    def part(self) -> None:
        self._end_word()
        if self._began:
            self._console.print()
        self._column, self._gap, self._began = 0, "", False

    def close(self) -> None:
        self.part()

    def drop(self) -> bool:
        seen = self._began or bool(self._word)
        self.part()
        return seen


class MarkdownAnswer:
    """Blocks of Markdown that are complete are printed for good; the one that is coming in stands below them
    and is drawn again as it grows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""
        self._printed = False
        self._rows = 0
        self._drawn_at = self._cost = 0.0
        self._later: asyncio.TimerHandle | None = None

    @property
    def in_line(self) -> bool:
        return bool(self._text)

    def add(self, text: str) -> None:
        self._text += plain(text)
        if "\n" in text:
            self._print_blocks()
        if self._later is not None or not self._text:
            return
        # Drawing a long block takes time, of which most is left to the run itself.
        wait = self._drawn_at + min(8 * self._cost, _LONGEST_PAUSE) - monotonic()
        if wait <= 0:
            self._draw()
        else:
            self._later = asyncio.get_running_loop().call_later(wait, self._draw)

    def _print_blocks(self) -> None:
        """Print what cannot change any more: all before the last block, as far as its lines are complete."""
        lines = self._text.split("\n")
        starts = [
            token.map[0]
            for token in _parser().parse("\n".join(lines[:-1]))
            if token.level == 0 and token.map is not None and token.nesting >= 0
        ]
        if len(starts) > 1:
            self._print("\n".join(lines[: starts[-1]]))
            self._text = "\n".join(lines[starts[-1] :])

    def _print(self, text: str) -> None:
        self._erase()
        if lines := render_markdown(self._console, text):
            self._write([*([[]] if self._printed else []), *lines])
            self._console.print()
            self._printed = True

    def _draw(self) -> None:
        self._later = None
        began = monotonic()
        lines = render_markdown(self._console, self._text)
        if self._printed:
            lines.insert(0, [])
        lines = lines[-max(self._console.height - 1, 1) :]
        self._erase()
        self._write(lines)
        self._rows = len(lines)
        self._drawn_at = monotonic()
        self._cost = self._drawn_at - began

    def _write(self, lines: Sequence[Sequence[Segment]]) -> None:
        shown: list[Segment] = []
        for number, line in enumerate(lines):
            shown += [*([Segment.line()] if number else []), *line]
        self._console.print(Segments(shown), end="")
        self._console.file.flush()

    def _erase(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._rows:
            self._console.file.write("\r" + "\x1b[A" * (self._rows - 1) + "\x1b[J")
            self._rows = 0

    def part(self) -> None:
        text, self._text = self._text, ""
        self._print(text)
        self._printed = False

    def close(self) -> None:
        self.part()

    def drop(self) -> bool:
        seen, self._printed, self._text = self._printed, False, ""
        self._erase()
        self._console.file.flush()
        return seen


@cache
def _parser() -> MarkdownIt:
    """Markdown as people write it in a conversation. Nothing that was said is left out: HTML, addresses and
    references stand as they were written."""
    from markdown_it import MarkdownIt  # it is for terminals alone, and slow to load

    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["image", "reference", "autolink"])


def render_markdown(console: Console, text: str) -> list[list[Segment]]:
    """The lines of Markdown ``text``, its blocks parted by one empty line each."""
    from rich.markdown import Markdown

    shown: list[list[Segment]] = []
    for block in _blocks(_parser().parse(text)):
        markdown = Markdown("", hyperlinks=False, code_theme="ansi_dark")
        markdown.parsed = block
        lines = console.render_lines(markdown, pad=False)
        filled = [number for number, line in enumerate(lines) if any(s.text.strip() for s in line)]
        if filled:
            shown += [*([[]] if shown else []), *lines[filled[0] : filled[-1] + 1]]
    return shown


def _blocks(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    block: list[Token] = []
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":  # a line that was ended is a line
                child.type = "hardbreak"
        block.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield block
            block = []
