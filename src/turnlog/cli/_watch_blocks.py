"""What the terminal timeline is drawn with: colours, wrapped text, and a column of blocks of which only those
in sight are laid out."""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme as RichTheme
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from ._answer import render_markdown
from ._text import plain

_PALETTE = {
    "bg": ("#0f1115", "#f7f7f5"),
    "panel": ("#14171c", "#ffffff"),
    "line": ("#3a414c", "#cfcfc8"),
    "ink": ("#e7e9ed", "#1b1d21"),
    "ink2": ("#b0b7c2", "#4c525b"),
    "ink3": ("#8b94a2", "#656b75"),
    "accent": ("#86a8ff", "#2f5bd7"),
    "accent_wash": ("#1a2440", "#e9effd"),
    "accent_soft": ("#35508f", "#97b0ef"),
    "wait": ("#f0bd55", "#8f5a00"),
    "wait_wash": ("#2b230f", "#fdf3da"),
    "fail": ("#ff8d84", "#b3261e"),
    "fail_wash": ("#331917", "#fdecea"),
    "add": ("#7fd6a1", "#1a6b3c"),
    "add_wash": ("#11271a", "#e7f5ec"),
    "fork": ("#c8a4ff", "#7038b8"),
    "tool": ("#6c7480", "#868c96"),
}
"""Each colour on dark and on light ground, as in the page of the server."""
_CUT = 60_000
"""Characters of a text that are laid out; the rest is counted."""


def _colours(dark: bool) -> dict[str, str]:
    return {name: pair[0 if dark else 1] for name, pair in _PALETTE.items()}


class Paint:
    """The styles of one theme. Five hues, five meanings; each has a shape or a word beside it."""

    def __init__(self, *, dark: bool) -> None:
        self.dark = dark
        colour = _colours(dark)
        self.colour = colour
        self.ink, self.ink2, self.dim = (Style(color=colour[name]) for name in ("ink", "ink2", "ink3"))
        self.bold = Style(color=colour["ink"], bold=True)
        self.accent = Style(color=colour["accent"])
        self.soft = Style(color=colour["accent_soft"])
        self.wait = Style(color=colour["wait"])
        self.fail = Style(color=colour["fail"])
        self.add = Style(color=colour["add"])
        self.fork = Style(color=colour["fork"])
        self.tool = Style(color=colour["tool"])
        self.line = Style(color=colour["line"])
        self.chosen = Style(bgcolor=colour["accent_wash"])
        self.found = Style(bgcolor=colour["accent_soft"], bold=True)
        self.added = Style(color=colour["ink"], bgcolor=colour["add_wash"])
        self.removed = Style(color=colour["ink"], bgcolor=colour["fail_wash"])
        self.asks = Style(color=colour["wait"], bgcolor=colour["wait_wash"])

    def theme(self) -> Theme:
        colour = self.colour
        return Theme(
            name="turnlog-dark" if self.dark else "turnlog-light",
            primary=colour["accent"],
            secondary=colour["fork"],
            warning=colour["wait"],
            error=colour["fail"],
            success=colour["add"],
            foreground=colour["ink"],
            background=colour["bg"],
            surface=colour["panel"],
            panel=colour["panel"],
            boost=colour["line"],
            dark=self.dark,
        )

    def prose(self, text: str, width: int) -> list[Text]:
        """Markdown as lines."""
        return [
            Text.assemble(*((each.text, each.style or self.ink) for each in line))
            for line in render_markdown(_console(max(width, 8), self.dark), plain(text[:_CUT]))
        ]


@lru_cache(8)
def _console(width: int, dark: bool) -> Console:
    colour = _colours(dark)
    code = colour["accent"]
    styles = {
        "markdown.code": code,
        "markdown.code_block": code,
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.block_quote": colour["ink2"],
        "markdown.item.bullet": colour["ink3"],
        "markdown.item.number": colour["ink3"],
        "markdown.hr": colour["line"],
        "markdown.link": code,
        "markdown.link_url": colour["ink3"],
    }
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="truecolor",
        emoji=False,
        markup=False,
        theme=RichTheme(styles),
        legacy_windows=False,
    )


def words(text: str, style: Style | None = None) -> Text:
    """``text`` as it is: no markup is read in it, and nothing in it moves the cursor."""
    return Text(plain(text).expandtabs(4), style=style or "", end="")


def on_one_line(text: str, style: Style | None = None) -> Text:
    return words(" ".join(text[:2_000].split()), style)


def wrap(text: Text | str, width: int, style: Style | None = None, most: int | None = None) -> list[Text]:
    """The lines of ``text`` in ``width`` columns, at most ``most`` of them."""
    width = max(width, 1)
    if isinstance(text, str):
        # Nothing more can be in sight than these characters.
        room = _CUT if most is None else min(_CUT, (most + 1) * max(width, 20) * 2)
        cut = text[:room]
        lines: list[Text] = []
        for each in cut.split("\n"):
            lines += words(each, style).wrap(_console(width, True), width) if each else [Text("")]
            if most is not None and len(lines) > most:
                break
        more = len(text) > room
    else:
        lines, more = list(text.wrap(_console(width, True), width)), False
    if most is not None and (len(lines) > most or more):
        lines = lines[: max(most - 1, 0)]
        rest = text.count("\n") + 1 - len(lines) if isinstance(text, str) else 0
        lines.append(Text(f"⋯ {rest} more lines" if rest > 1 else "⋯ more", style="dim"))
    elif more:
        lines.append(Text(f"⋯ {len(text) - _CUT:,} more characters; y copies all of it", style="dim"))
    for line in lines:
        line.rstrip()
    return lines


def fit(text: Text, width: int) -> Text:
    """``text`` on one line of exactly ``width`` columns."""
    text = text.copy()
    text.truncate(max(width, 0), overflow="ellipsis", pad=True)
    return text


class Blocks(Widget, can_focus=True):
    """Blocks of lines below each other. It stands on a block and not on a line, so that nothing above or
    below what is in sight needs a height: ten thousand blocks cost what the screen shows."""

    DEFAULT_CSS = "Blocks { height: 1fr; width: 1fr; }"

    class Chosen(Message):
        """Somebody clicked on a block."""

        def __init__(self, blocks: Blocks, index: int, *, again: bool) -> None:
            super().__init__()
            self.blocks = blocks
            self.index = index
            self.again = again

    class Laid(Message):
        """The room for the blocks has changed."""

    def __init__(
        self,
        lay: Callable[[int, int], Sequence[Text]],
        *,
        key: Callable[[int], Hashable] = lambda index: 0,
        paint: Callable[[], Paint],
        id: str,
        chooses: bool = True,
    ) -> None:
        super().__init__(id=id)
        self._lay = lay
        self._key = key
        self._paint = paint
        self._chooses = chooses
        self.count = 0
        self.chosen: int | None = None
        self.top = 0
        self._skip = 0
        self._cache: dict[tuple[int, bool, Hashable], list[Strip]] = {}
        self._shown: list[tuple[int, Strip]] | None = None
        self._width = 0
        self._drawn = self.size

    # ── what is shown ──

    def show(self, count: int, *, fresh: bool = False) -> None:
        """There are ``count`` blocks now. ``fresh``: what was laid out is not true any more."""
        self.count = count
        if fresh:
            self._cache.clear()
        if self.chosen is not None and self.chosen >= count:
            self.chosen = count - 1 if count else None
        if self.top >= count:
            self.top, self._skip = max(count - 1, 0), 0
        self._change()

    def choose(self, index: int | None) -> None:
        """Select a block, and bring it into sight."""
        self.chosen = index
        if index is not None:
            self._bring(index)
        self._change()

    def restart(self) -> None:
        self.top = self._skip = 0
        self._change()

    def _change(self) -> None:
        self._shown = None
        self.refresh()

    def _lines(self, index: int) -> list[Strip]:
        width = max(self.size.width - 2, 1)
        if width != self._width:
            self._cache.clear()
            self._width = width
        chosen = self._chooses and index == self.chosen
        key = (index, chosen, self._key(index))
        if (kept := self._cache.get(key)) is not None:
            return kept
        paint = self._paint()
        edge = Segment("▌" if chosen else " ", paint.accent)
        console = _console(width, paint.dark)
        lines: list[Strip] = []
        for line in self._lay(index, width):
            # A text without spans leaves its own style to the console that prints it.
            styled = Segment.apply_style(line.render(console), console.get_style(line.style))
            strip = Strip([edge, *styled]).adjust_cell_length(width + 1)
            lines.append(strip.apply_style(paint.chosen) if chosen else strip)
        if len(self._cache) > 2_000:
            self._cache.clear()
        self._cache[key] = lines
        return lines

    def _view(self) -> list[tuple[int, Strip]]:
        if self._shown is None or self._drawn != self.size:
            self._drawn = self.size
            self._shown = self._walk()
            if len(self._shown) < self.size.height and (self.top or self._skip):
                self._stand_at_end()
                self._shown = self._walk()
        return self._shown

    def _walk(self) -> list[tuple[int, Strip]]:
        rows: list[tuple[int, Strip]] = []
        index, skip = self.top, self._skip
        while len(rows) < self.size.height and index < self.count:
            rows += [(index, line) for line in self._lines(index)[skip:]]
            skip = 0
            index += 1
        return rows[: self.size.height]

    def render_line(self, y: int) -> Strip:
        view = self._view()
        width = self.size.width
        line = view[y][1] if y < len(view) else Strip.blank(width - 1)
        bar = " "
        if view and (first := view[0][0], last := view[-1][0]) and not (self._begins and self.at_end):
            height = self.size.height
            thumb = max(1, round(height * (last - first + 1) / max(self.count, 1)))
            at = round((height - thumb) * first / max(self.count - (last - first + 1), 1))
            bar = "▐" if at <= y < at + thumb else " "
        edge = Strip([Segment(bar, self._paint().line)])
        return Strip.join([line.adjust_cell_length(width - 1), edge]).apply_style(self.rich_style)

    # ── moving ──

    @property
    def _begins(self) -> bool:
        return self.top == 0 and self._skip == 0

    @property
    def at_end(self) -> bool:
        """Whether the last line of the last block is in sight."""
        view = self._view()
        return not view or (view[-1][0] == self.count - 1 and view[-1][1] is self._lines(self.count - 1)[-1])

    @property
    def in_sight(self) -> tuple[int, int]:
        """The first and the last block of which something is shown."""
        view = self._view()
        return (view[0][0], view[-1][0]) if view else (0, 0)

    def _stand_at_end(self) -> None:
        room, index = self.size.height, self.count
        while index > 0 and room > 0:
            index -= 1
            room -= len(self._lines(index))
        self.top, self._skip = index, max(0, -room)

    def _bring(self, index: int) -> None:
        if not self.is_mounted or not self.size.height or index >= self.count:
            self.top, self._skip = index, 0
            return
        height = self.size.height
        if index < self.top or (index == self.top and self._skip):
            self.top, self._skip = index, 0
            return
        below, at = -self._skip, self.top
        while at <= index and below <= height:
            below += len(self._lines(at))
            at += 1
        if at > index and below <= height:
            return
        room, first = height - len(self._lines(index)), index
        while first > 0 and room > 0:
            first -= 1
            room -= len(self._lines(first))
        self.top, self._skip = (index, 0) if first == index else (first, max(0, -room))

    def roll(self, lines: int) -> None:
        if not self.count:
            return
        skip, top = self._skip + lines, self.top
        while skip < 0 and top > 0:
            top -= 1
            skip += len(self._lines(top))
        while top < self.count - 1 and skip >= len(self._lines(top)):
            skip -= len(self._lines(top))
            top += 1
        self.top, self._skip = top, max(skip, 0)
        self._change()

    def go_to_end(self) -> None:
        if self.count and self.size.height:
            self._stand_at_end()
            self._change()

    def on_resize(self) -> None:
        self._shown = None
        if self.chosen is not None and self._chooses:
            self._bring(self.chosen)
        self.post_message(self.Laid())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.roll(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.roll(-3)

    def on_click(self, event: events.Click) -> None:
        view = self._view()
        if 0 <= event.y < len(view):
            index = view[event.y][0]
            self.post_message(self.Chosen(self, index, again=index == self.chosen))
