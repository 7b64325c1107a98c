"""What lies over the terminal timeline: a decision, an answer, a line to type, the keys."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from turnlog.contract import PendingApproval
from turnlog.loop import PendingAnswer

from ._watch_blocks import Blocks, Paint, words, wrap
from ._watch_steps import call_lines, clock, question_card

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Move",
        (
            ("j k", "next and previous step"),
            ("J K", "next and previous thing that you said"),
            ("n N", "next and previous problem, or match of a search"),
            ("g g   G", "first and last step"),
            ("↑ ↓ PgUp PgDn", "scroll; Tab changes the side that scrolls"),
            ("f", "follow what is new"),
            ("m", "widths of the strip: steps, time, cost; a click in it jumps"),
        ),
    ),
    (
        "Look",
        (
            ("Enter", "open the step: its detail, the call that waits, the agent it called"),
            ("1 … 5  [ ]", "what the model saw, raw, tool, timing and cost, widgets"),
            (".", "what was new to the model, or everything it saw"),
            ("e  E", "this step whole; all texts whole"),
            ("c  p", "session of the agent that a step called; session that this one came from"),
            ("b", "branches"),
            ("o  t", "outline; dark or light"),
            ("y  Y", "copy the step's last entry as JSON; all its entries, a line each"),
        ),
    ),
    (
        "Find",
        (
            ("/", "search in this session, in a list over all sessions"),
            ("&", "show only steps that hold some words"),
            ("!", "show only what went wrong"),
            ("Esc", "end a search or a filter, close, go back"),
        ),
    ),
    (
        "Act",
        (
            ("a", "decide on what waits, or answer it: shown whole before"),
            ("d", "deny what waits, with a reason"),
            ("i", "say something to the run"),
            ("Space", "pause the run"),
            ("g s  g i", "sessions; those that wait for you"),
            ("q  Ctrl-C", "leave; runs continue"),
        ),
    ),
)

_CSS = """
ModalScreen { align: center middle; background: $background 70%; }
#box { width: 90%; max-width: 110; height: auto; max-height: 94%; background: $surface; border: round $boost;
       padding: 0 1; }
#box.wait { border: round $warning; }
#box Blocks { height: auto; min-height: 1; }
#buttons { height: 1; margin-top: 1; }
#buttons Button { min-width: 6; height: 1; border: none; margin-right: 2; background: $background;
                  color: $foreground; }
#buttons Button:focus { background: $primary; color: $background; text-style: bold; }
#buttons Button:disabled { color: $boost; }
#box Input { border: none; height: 1; padding: 0; background: $background; }
#box Static { height: auto; }
"""


@dataclass(frozen=True)
class Decided:
    """What a person chose."""

    action: Literal["approve", "deny", "abort"]
    note: str | None = None


class _Modal(ModalScreen[Any]):
    CSS = _CSS

    def __init__(self, paint: Paint) -> None:
        super().__init__()
        self.paint = paint

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self.dismiss(None)


class DecisionScreen(_Modal):
    """A call that waits, whole. It can be approved once its last line was in sight."""

    def __init__(self, asked: PendingApproval, folder: str, paint: Paint, *, denies: bool = False) -> None:
        super().__init__(paint)
        self.asked = asked
        self._denies = denies
        self._folder = folder
        self._note: Literal["deny", "abort"] = "deny"
        self._lines: dict[int, list[Text]] = {}

    def compose(self) -> ComposeResult:
        asked, paint = self.asked, self.paint
        why = asked.reason or "a person decides"
        lapses = f" · lapses at {clock(asked.expires_at)}" if asked.expires_at else ""
        with Vertical(id="box", classes="wait"):
            yield Static(
                Text.assemble(
                    (" ■ Waits for your decision ", paint.asks), words(f"  {why}{lapses}", paint.wait)
                )
            )
            yield Static(
                Text.assemble(
                    words(asked.tool_name, paint.bold), words(f"  in {asked.session_id}", paint.dim)
                )
            )
            yield Blocks(self._lay, paint=lambda: paint, id="call", chooses=False)
            yield Static("", id="hint")
            yield Input(placeholder="why not; the model reads it", id="note")
            with Horizontal(id="buttons"):
                yield Button("Approve once", id="approve")
                yield Button("Deny…", id="deny")
                yield Button("Abort the run…", id="abort")
                yield Button("Later", id="later")

    def _lay(self, index: int, width: int) -> Sequence[Text]:
        # Each line is a block, so that what is in sight is known to the line.
        return [self._call(width)[index]]

    def _call(self, width: int) -> list[Text]:
        if width not in self._lines:
            self._lines = {width: call_lines(self.asked, self._folder, width, self.paint) or [Text("")]}
        return self._lines[width]

    def on_mount(self) -> None:
        self.query_one("#note").display = False
        self.query_one("#approve", Button).disabled = True
        self.call_after_refresh(self._measure)

    def on_resize(self) -> None:
        self.call_after_refresh(self._measure)

    def _measure(self) -> None:
        call = self.query_one("#call", Blocks)
        lines = len(self._call(max(call.size.width - 2, 1)))
        call.styles.height = min(lines, max(self.size.height - 10, 3))
        call.show(lines, fresh=True)
        if self._denies:
            self._denies = False
            self._ask_why("deny")
        self._look()

    def on_blocks_laid(self) -> None:
        self._look()

    def _look(self) -> None:
        """Approving is possible once the end was in sight."""
        call, button = self.query_one("#call", Blocks), self.query_one("#approve", Button)
        hint = self.query_one("#hint", Static)
        if call.count and call.size.height and call.at_end and button.disabled:
            button.disabled = False
            hint.update("")
            if not self.query_one("#note").display:
                button.focus()
        elif button.disabled:
            hint.update(
                Text("↓ PgDn: there is more; approve when you have seen its end", style=self.paint.wait)
            )
            if self.focused is None or self.focused.id == "approve":
                call.focus()

    def on_key(self, event: events.Key) -> None:
        call = self.query_one("#call", Blocks)
        typing = isinstance(self.focused, Input)
        page = max(call.size.height - 1, 1)
        rolls = {"down": 1, "up": -1, "pagedown": page, "pageup": -page}
        if not typing:
            rolls |= {"j": 1, "k": -1, "space": page, "end": 1_000_000, "home": -1_000_000}
        if event.key in rolls:
            event.stop()
            call.roll(rolls[event.key])
            self._look()
        elif event.key in ("right", "left") and not typing:
            event.stop()
            (self.focus_next if event.key == "right" else self.focus_previous)(Button)
        elif event.key == "d" and not typing:
            event.stop()
            self._ask_why("deny")
        else:
            super().on_key(event)

    def _ask_why(self, what: Literal["deny", "abort"]) -> None:
        self._note = what
        note = self.query_one("#note", Input)
        note.placeholder = (
            "why not; the model reads it. Enter denies, Esc goes back"
            if what == "deny"
            else "why; for the log. Enter ends the run, Esc goes back"
        )
        note.display = True
        note.focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        match event.button.id:
            case "approve":
                self.dismiss(Decided("approve"))
            case "deny":
                self._ask_why("deny")
            case "abort":
                self._ask_why("abort")
            case _:
                self.dismiss(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(Decided(self._note, event.value.strip() or None))


class AnswerScreen(_Modal):
    """A question that a tool left to others, and the line that answers it."""

    def __init__(self, asked: PendingAnswer, paint: Paint) -> None:
        super().__init__(paint)
        self._asked = asked

    def compose(self) -> ComposeResult:
        lines = question_card(self._asked, 100, self.paint)[:-1]
        with Vertical(id="box", classes="wait"):
            yield Static(Text("\n").join(lines))
            yield Static("", id="hint")
            yield Input(placeholder="your answer; Enter sends it, Esc leaves it for later", id="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text = event.value
        schema = self._asked.asked.answer_schema
        if schema is None or schema.get("type") == "string":
            if text.strip():
                self.dismiss((text,))
            return
        try:
            self.dismiss((json.loads(text),))
        except ValueError:
            told = "This answer has a form: write it as JSON, such as 3, true or {…}."
            self.query_one("#hint", Static).update(Text(told, style=self.paint.fail))


class LineScreen(_Modal):
    """One line to type: a search, a filter, words for a run."""

    def __init__(self, title: str, paint: Paint, value: str = "") -> None:
        super().__init__(paint)
        self._title = title
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(words(self._title, self.paint.dim))
            yield Input(self._value, id="note")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class SureScreen(_Modal):
    """Whether something is meant that reaches a run."""

    def __init__(self, question: str, yes: str, paint: Paint) -> None:
        super().__init__(paint)
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(words(self._question, self.paint.ink))
            with Horizontal(id="buttons"):
                yield Button(self._yes, id="yes")
                yield Button("No", id="no")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class HelpScreen(_Modal):
    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Blocks(self._lay, paint=lambda: self.paint, id="keys", chooses=False)

    def on_mount(self) -> None:
        keys = self.query_one("#keys", Blocks)
        keys.show(len(KEYS))
        keys.styles.height = max(self.size.height - 4, 3)

    def on_resize(self) -> None:
        self.on_mount()

    def _lay(self, index: int, width: int) -> list[Text]:
        title, rows = KEYS[index]
        lines = [Text(title, style=self.paint.bold)]
        for keys, does in rows:
            told = wrap(does, width - 17, self.paint.ink2)
            lines.append(Text.assemble((f"  {keys:<15}", self.paint.accent), told[0]))
            lines += [Text.assemble(" " * 17, line) for line in told[1:]]
        return [*lines, Text("")]

    def on_key(self, event: events.Key) -> None:
        keys = self.query_one("#keys", Blocks)
        page = max(keys.size.height - 1, 1)
        rolls = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": page, "space": page, "pageup": -page}
        event.stop()
        if event.key in rolls:
            keys.roll(rolls[event.key])
        elif event.key in ("escape", "q", "question_mark", "enter"):
            self.dismiss(None)


def while_open(work: Callable[..., Awaitable[object]], *given: object) -> Callable[[], Awaitable[None]]:
    """Work of a screen, which ends when the screen closes and its parts are gone."""

    async def run() -> None:
        with suppress(NoMatches):
            await work(*given)

    return run


class Panel(Static):
    """Lines that are made for the room there is."""

    DEFAULT_CSS = "Panel { height: 1; width: 1fr; }"

    def __init__(self, lay: Callable[[int, int], Sequence[Text]], *, id: str) -> None:
        super().__init__("", id=id, markup=False)
        self._lay = lay

    def redraw(self) -> None:
        if self.size.width and self.display:
            # Its size is set by the screen: what it says moves nothing else.
            self.update(Text("\n").join(self._lay(self.size.width, self.size.height)), layout=False)

    def on_resize(self) -> None:
        self.redraw()
