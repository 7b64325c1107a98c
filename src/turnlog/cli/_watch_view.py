"""One session in the terminal timeline as it is shown: live, one selected step drives all of it."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen

from turnlog.contract import AgentError, SessionHeader, SessionInfo, Store
from turnlog.history import Announcing, Step
from turnlog.loop import Log, Logs, Saw, open_session, saw, words_of

from ._app import login
from ._asking import workspace_of
from ._watch_ask import Panel, while_open
from ._watch_blocks import Blocks, Paint, fit, words, wrap
from ._watch_detail import Block, Tab, detail_blocks
from ._watch_steps import (
    Shown,
    head_lines,
    is_problem,
    outline_line,
    outline_of,
    step_key,
    step_lines,
    went_wrong,
)
from ._watch_strip import WIDTHS, RunStrip, gauge_lines

_LOOK, _HINTED = 0.25, 1.0
"""Seconds between two looks at a log that another process writes; with a store that says when to look."""
_SLOW = 1.0
"""Seconds between two looks at who drives the run."""
_BRANCHES = 10.0
_SETTLES = 0.05
"""Seconds that a selection rests before its detail is read."""
_TOLD = 6.0
_WIDE, _ROOMY = 160, 108
"""Columns from which the outline, and the detail, have a place beside the conversation."""
_TALL = 30


class Frame(App[None]):
    """What all screens share."""

    def __init__(
        self, store: Store, *, place: str = "", advise: Callable[[str], Awaitable[str]] | None = None
    ) -> None:
        # Without colour the terminal's own two are used; shapes and words tell the rest.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.store = store
        self.logs = Logs(store)
        self.by = login()
        self.paint = Paint(dark=True)
        self.place = place
        """The store, in words."""
        self.advise = advise
        """The command that continues the run of a session."""


class SessionView(Screen[None]):
    CSS = """
    #middle { height: 1fr; }
    #outline { width: 32; }
    #conversation { width: 1fr; }
    #detail { width: 44%; background: $surface; }
    #top { height: 2; }
    #gauge { width: 44%; padding-left: 2; }
    """

    def __init__(self, session_id: str, *, at: int | None = None, found: str = "") -> None:
        super().__init__()
        self.session_id = session_id
        self.shown = Shown(log=Log(session_id), timeline=Log(session_id).timeline, steps=[])
        self.shown.found = found
        self._begin_at = at
        self._saw: Saw | None = None
        self._saw_key: tuple[str, int] | None = None
        self._saw_wanted: tuple[str, int] | None = None
        self._tab: Tab = "saw"
        self._everything = self._whole = False
        self._sheet = False
        self._outline_wanted: bool | None = None
        self._outline: list[int] = []
        self._blocks: list[Block] = []
        self._detail_key: object = None
        self._widths = 0
        self._strip: tuple[object, RunStrip] | None = None
        self._errors_only = False
        self._filter = ""
        self.following = at is None
        self._unseen = 0
        self._told, self._told_at = "", 0.0
        self._problem = "reading the log…"
        self._gone = False
        self._g = False
        self._came_from: str | None = None
        self._forks: list[SessionInfo] = []

    @property
    def frame(self) -> Frame:
        return cast("Frame", self.app)  # pyright: ignore[reportUnknownMemberType]

    # ── the parts ──

    def compose(self) -> ComposeResult:
        yield Panel(self._head, id="head")
        with Horizontal(id="top"):
            yield Panel(self._draw_strip, id="strip")
            yield Panel(self._draw_gauge, id="gauge")
        yield Panel(self._draw_gauge, id="window")
        with Horizontal(id="middle"):
            yield Blocks(self._lay_outline, key=self._outline_key, paint=self._paint, id="outline")
            yield Blocks(
                self._lay_step, key=lambda at: step_key(self.shown, at), paint=self._paint, id="conversation"
            )
            yield Blocks(self._lay_detail, paint=self._paint, id="detail", chooses=False)
        yield Panel(self._foot, id="foot")

    @property
    def conversation(self) -> Blocks:
        return self.query_one("#conversation", Blocks)

    @property
    def detail(self) -> Blocks:
        return self.query_one("#detail", Blocks)

    @property
    def chosen(self) -> Step | None:
        """The selected step."""
        at = self.conversation.chosen
        return self.shown.steps[at] if at is not None and at < len(self.shown.steps) else None

    def on_mount(self) -> None:
        self._arrange()
        self.conversation.focus()
        self.run_worker(while_open(self._follow), group="follow")

    def on_resize(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        """Give each part its place for the size of the terminal."""
        width, height = self.frame.size.width, self.frame.size.height
        roomy, tall = width >= _ROOMY, height >= _TALL
        outline = width >= _WIDE if self._outline_wanted is None else self._outline_wanted
        self.query_one("#outline").display = outline and not self._sheet
        self.query_one("#detail").display = roomy or self._sheet
        self.detail.styles.width = "44%" if roomy else "1fr"
        self.query_one("#conversation").display = roomy or not self._sheet
        self.query_one("#gauge").display = roomy
        self.query_one("#window").display = not roomy
        self.query_one("#top").styles.height = (4 if tall else 3) if roomy else 2
        for each in ("#strip", "#gauge"):
            self.query_one(each).styles.height = "100%"
        self.query_one("#head").styles.height = len(self._head(width, 2))
        self._chose()
        self.call_after_refresh(self._redraw)

    def repaint(self) -> None:
        """All of it anew, as after a change of colours."""
        self._detail_key = None
        self._show_steps(fresh=True)

    def _redraw(self) -> None:
        for panel in self.query(Panel):
            panel.redraw()
        self._draw_detail()

    # ── what is there ──

    async def _follow(self) -> None:
        """Take in the log as it grows, for as long as the screen is open."""
        app, handle = self.frame, open_session(self.frame.store, self.session_id)
        looked = branches = 0.0
        while True:
            try:
                log = await app.logs.get(self.session_id)
                grown = log is not self.shown.log or log.tail != self.shown.timeline.entries
                if monotonic() - looked > _SLOW or grown:
                    looked = monotonic()
                    self.shown.driver = await handle.driver() if log.state.is_open else None
                    self.query_one("#head", Panel).redraw()
                if grown:
                    waits = log.state.status == "awaiting_human" or any(
                        call.waits for call in log.state.open_calls
                    )
                    pending = await handle.pending() if waits else []
                    questions = await handle.questions() if waits else []
                    self.shown.pending = {each.tool_call_id: each for each in pending}
                    self.shown.questions = {each.tool_call_id: each for each in questions}
                    self._take(log)
                if monotonic() - branches > _BRANCHES:
                    branches = monotonic()
                    await self._find_branches()
                if self._problem:
                    self._problem = ""
                    self._redraw()
            except AgentError as error:
                if error.code == "SessionNotFound":
                    self._lose()
                    return
                self._problem = f"{error.code}: {error.message}; what was read stays, trying again"
                self._redraw()
                await asyncio.sleep(_SLOW)
                continue
            await self._wait()

    async def _wait(self) -> None:
        store = self.frame.store
        if isinstance(store, Announcing):
            await store.wait_for_change(self.session_id, self.shown.log.tail, _HINTED)
        else:
            await asyncio.sleep(_LOOK)

    async def _find_branches(self) -> None:
        store = self.frame.store
        self._forks = await store.sessions(parent=self.session_id)
        places: dict[int, list[str]] = {}
        for info in self._forks:
            if info.forked_at is not None:
                places.setdefault(info.forked_at, []).append(info.session_id)
        if places != self.shown.branches:
            self.shown.branches = places
            self._show_steps()

    def _take(self, log: Log) -> None:
        """The log has grown: show what is new, and stay where the reader is."""
        shown, before = self.shown, len(self.shown.timeline.steps)
        state = log.state
        anew = log is not shown.log and shown.log.tail > 0
        shown.log, shown.timeline, shown.status = log, log.timeline, state.status
        shown.folder = workspace_of(state) or "."
        header = log.entries[0].payload
        if isinstance(header, SessionHeader):
            self._came_from = header.parent_session_id or (header.metadata or {}).get("parent_session")
        if not self.following:
            self._unseen += len(shown.timeline.steps) - before
        self._show_steps(fresh=anew)

    def _lose(self) -> None:
        self._gone = True
        self._problem = f"session {self.session_id} was deleted; Esc goes back to the list"
        empty = Log(self.session_id)
        self.shown = Shown(log=empty, timeline=empty.timeline, steps=[])
        self._saw, self._blocks = None, []
        self.detail.show(0, fresh=True)
        self._show_steps(fresh=True)

    def _passes(self, step: Step) -> bool:
        if self._errors_only and not went_wrong(step):
            return False
        return not self._filter or self._holds(step, self._filter)

    def _holds(self, step: Step, text: str) -> bool:
        text = text.lower()
        if text in f"{step.tool or ''} {step.title} {step.error or ''}".lower():
            return True
        return any(text in words_of(entry).lower() for entry in self.shown.entries(step))

    def _show_steps(self, *, fresh: bool = False) -> None:
        """Bring the conversation in step with the log and the filter, with the same step selected."""
        shown, chosen = self.shown, self.chosen
        seq = chosen.seq if chosen is not None else self._begin_at
        filtered = self._errors_only or bool(self._filter)
        steps = shown.timeline.steps
        shown.steps = [step for step in steps if self._passes(step)] if filtered else steps
        self._outline = outline_of(shown.steps)
        conversation = self.conversation
        conversation.show(len(shown.steps), fresh=fresh or filtered)
        if shown.steps and (self.following or seq is None):
            self._select(len(shown.steps) - 1)
            conversation.go_to_end()
        elif shown.steps and (at := self._index_of(seq or 0)) != conversation.chosen:
            self._select(at)
        else:
            self._chose()
        if shown.steps:
            self._begin_at = None
        self.query_one("#head").styles.height = len(self._head(self.frame.size.width, 2))
        self._redraw()

    def _index_of(self, seq: int) -> int:
        """The place of the step that holds entry ``seq``, or of the last one before it."""
        steps = self.shown.steps
        at = 0
        for place, step in enumerate(steps):
            if seq in step.entries:
                return place
            if step.seq <= seq:
                at = place
        return at

    # ── the selection ──

    def _select(self, index: int) -> None:
        steps = self.shown.steps
        if not steps:
            return
        index = min(max(index, 0), len(steps) - 1)
        self.conversation.choose(index)
        self._chose()

    def _go(self, index: int) -> None:
        """Select, as somebody who reads: the end is followed from there on, any other place is not."""
        if not self.shown.steps:
            return
        self._select(index)
        self.following = self.conversation.chosen == len(self.shown.steps) - 1
        if self.following:
            self._unseen = 0
        self._redraw()

    def _chose(self) -> None:
        step = self.chosen
        if self.query_one("#outline").display and self._outline:
            at = self.conversation.chosen or 0
            outline = self.query_one("#outline", Blocks)
            outline.show(len(self._outline))
            outline.choose(max(bisect_right(self._outline, at) - 1, 0))
        if step is None:
            return
        call = self._call_of(step)
        key = (self.shown.log.session_id, call)
        if call == 0:
            self._saw, self._saw_key, self._saw_wanted = None, key, None
        elif key not in (self._saw_key, self._saw_wanted):
            self._saw_wanted = key
            self.run_worker(while_open(self._look_at, call, key), group="saw", exclusive=True)

    def _call_of(self, step: Step) -> int:
        """The model call that a step belongs to, or the last one before it; 0: none."""
        steps = self.shown.timeline.steps
        for at in range(bisect_right(steps, step.seq, key=lambda each: each.seq) - 1, -1, -1):
            if (call := steps[at].call) is not None:
                return call
        return 0

    async def _look_at(self, call: int, key: tuple[str, int]) -> None:
        """Read what the model saw; in a thread, for a long log takes a while."""
        await asyncio.sleep(_SETTLES)
        try:
            found = await asyncio.to_thread(saw, self.shown.log, call)
        except AgentError as error:
            found = None
            self._tell(f"{error.code}: {error.message}")
        if self._saw_wanted != key:
            return  # the selection moved on
        self._saw = found
        self._saw_key, self._saw_wanted = key, None
        self._redraw()

    def _problem_after(self, by: int) -> int | None:
        steps, at = self.shown.steps, self.conversation.chosen or 0
        found = self.shown.found
        places = range(at + 1, len(steps)) if by > 0 else range(at - 1, -1, -1)
        for place in places:
            if self._holds(steps[place], found) if found else is_problem(steps[place]):
                return place
        return None

    # ── drawing ──

    def _paint(self) -> Paint:
        return self.frame.paint

    def _lay_step(self, index: int, width: int) -> list[Text]:
        return step_lines(self.shown, index, width, self.frame.paint)

    def _outline_key(self, index: int) -> object:
        step = self.shown.steps[self._outline[index]]
        return step.seq, step.status, step.title

    def _lay_outline(self, index: int, width: int) -> list[Text]:
        return [outline_line(self.shown.steps[self._outline[index]], width, self.frame.paint)]

    def _lay_detail(self, index: int, width: int) -> list[Text]:
        return list(self._blocks[index](width))

    def _draw_detail(self) -> None:
        step = self.chosen
        if step is None or not self.detail.display:
            return
        place = (step.seq, self._tab, self._everything)
        key = (place, len(step.entries), step.status, self._saw_key, self._whole, self.frame.paint.dark)
        if key == self._detail_key:
            return
        moved = self._detail_key is None or self._detail_key[0] != place  # type: ignore[index]
        self._detail_key = key
        self._blocks = detail_blocks(
            self.shown,
            step,
            self._saw,
            self._tab,
            self.frame.paint,
            everything=self._everything,
            whole=self._whole,
        )
        self.detail.show(len(self._blocks), fresh=True)
        if moved:
            self.detail.restart()

    def _head(self, width: int, height: int) -> list[Text]:
        return head_lines(self.session_id, self.shown, width, self.frame.paint)

    def _draw_strip(self, width: int, height: int) -> list[Text]:
        shown, steps = self.shown, self.shown.steps
        widths = WIDTHS[self._widths]
        key = (shown.timeline.entries, len(steps), width - 2, widths, len(shown.branches), shown.status)
        if self._strip is None or self._strip[0] != key:
            self._strip = key, RunStrip(shown, steps, width - 2, widths)
        first, last = self.conversation.in_sight if steps else (0, 0)
        sight = (steps[first].seq, steps[last].seq) if steps else (0, 0)
        return [
            Text.assemble(" ", line)
            for line in self._strip[1].lines(self.chosen, sight, height, self.frame.paint)
        ]

    def _draw_gauge(self, width: int, height: int) -> list[Text]:
        asked = None
        if self._saw is not None:
            call = self._saw.view.call
            asked = next((step for step in self.shown.timeline.steps if step.call == call), None)
        lines = gauge_lines(self._saw, asked, width - 3, height, self.frame.paint)
        return [Text.assemble(" ", line) for line in lines] if height == 1 else lines

    def _tell(self, text: str) -> None:
        self._told, self._told_at = text, monotonic()
        self.query_one("#foot", Panel).redraw()

    def _foot(self, width: int, height: int) -> list[Text]:
        paint = self.frame.paint
        if self._problem:
            return [fit(words(f" {self._problem}", paint.wait), width)]
        if self._told and monotonic() - self._told_at < _TOLD:
            lines = wrap(self._told, width - 2, paint.accent)
            return [Text.assemble(" ", line) for line in lines[:height]]
        waits = "a decide · " if self.shown.pending or self.shown.questions else ""
        keys = f" {waits}j k step · Enter open · / find · ! errors · b branches · ? keys · q leave"
        left = Text("", style=paint.dim)
        if self._filter or self._errors_only:
            what = "what went wrong" if self._errors_only else f"steps with {self._filter!r}"
            total = len(self.shown.timeline.steps)
            left.append_text(
                words(f" only {what}: {len(self.shown.steps)} of {total} · Esc all", paint.accent)
            )
        elif self.shown.found:
            left.append_text(words(f" / {self.shown.found} · n N next, previous · Esc ends", paint.accent))
        elif self._unseen > 0 and not self.following:
            left.append(f" ↓ {self._unseen} new · f follows", style=paint.accent)
        left.append(keys, style=paint.dim)
        return [fit(left, width)]
