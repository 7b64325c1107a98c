"""The application behind ``watch``: the list of sessions, and the frame that all its screens share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from turnlog.contract import AgentError, RunStatus, SessionInfo, Store
from turnlog.loop import Glance

from ._app import count, status_of
from ._log import list_sessions
from ._watch_ask import HelpScreen, LineScreen, Panel, while_open
from ._watch_blocks import Blocks, Paint, fit, words
from ._watch_session import SessionScreen
from ._watch_steps import session_lines
from ._watch_steps import status_of as status_text
from ._watch_view import Frame

_LOOK = 1.5
"""Seconds between two looks at the list of sessions."""
_MOST = 1_000


@dataclass(frozen=True)
class Listing:
    """Which sessions are listed."""

    status: RunStatus | None = None
    since: str | None = None
    limit: int | None = None
    children: bool = False


class WatchApp(Frame):
    """Looks at the sessions of a store. It drives no run: leaving it touches none."""

    TITLE = "turnlog watch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: $background; color: $foreground; }
    #foot { dock: bottom; background: $surface; }
    """

    def __init__(
        self,
        store: Store,
        session: str | None = None,
        *,
        listing: Listing | None = None,
        place: str = "",
        advise: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        super().__init__(store, place=place, advise=advise)
        self._session = session
        self._listing = listing or Listing()

    def on_mount(self) -> None:
        for dark in (True, False):
            self.register_theme(Paint(dark=dark).theme())
        self.theme = "turnlog-dark"
        self.push_screen(SessionsScreen(self._listing))
        if self._session is not None:
            self.push_screen(SessionScreen(self._session))

    def action_theme(self) -> None:
        self.paint = Paint(dark=not self.paint.dark)
        self.theme = "turnlog-dark" if self.paint.dark else "turnlog-light"
        for screen in self.screen_stack:
            if isinstance(screen, SessionsScreen | SessionScreen):
                screen.repaint()

    def action_sessions(self, status: RunStatus | None = None) -> None:
        """Back to the list: all of it, or the sessions in one state."""
        while isinstance(self.screen, SessionScreen):
            self.pop_screen()
        if isinstance(self.screen, SessionsScreen):
            self.screen.list_only(status)

    def action_help_quit(self) -> None:  # what Ctrl-C is bound to
        self.exit()


class SessionsScreen(Screen[None]):
    """The sessions of a store, those that wait for a person first."""

    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self._listing = listing
        self._status: RunStatus | None = listing.status
        self._found: list[SessionInfo] = []
        self._undriven: set[str] = set()
        self._glances: dict[str, tuple[str, Glance]] = {}
        self._search = ""
        self._hits: dict[str, int | None] | None = None
        self._told = "reading the store…"
        self._g = False

    @property
    def frame(self) -> Frame:
        return cast("Frame", self.app)  # pyright: ignore[reportUnknownMemberType]

    def compose(self) -> ComposeResult:
        yield Panel(self._head, id="head")
        yield Blocks(self._lay, key=self._key, paint=lambda: self.frame.paint, id="rows")
        yield Panel(self._foot, id="foot")

    def on_mount(self) -> None:
        self.query_one("#rows").focus()
        self.run_worker(while_open(self._look), group="look")

    @property
    def _rows(self) -> Blocks:
        return self.query_one("#rows", Blocks)

    def repaint(self) -> None:
        self._rows.show(len(self._found), fresh=True)
        self._redraw()

    def _redraw(self) -> None:
        for panel in self.query(Panel):
            panel.redraw()

    def list_only(self, status: RunStatus | None) -> None:
        self._status = status
        self._rows.choose(0 if self._found else None)
        self.run_worker(while_open(self._read), group="read", exclusive=True)

    # ── what is there ──

    async def _look(self) -> None:
        while True:
            if self.is_current or not self._found:
                await self._read()
            await asyncio.sleep(_LOOK)

    async def _read(self) -> None:
        app = self.frame
        try:
            found = await list_sessions(
                app.store,
                status=self._status,
                since=self._listing.since,
                limit=self._listing.limit or _MOST,
                children=self._listing.children,
            )
            self._undriven = {
                info.session_id
                for info in found[:100]
                if "nobody" in await status_of(app.store, info.session_id, info.status)
            }
        except AgentError as error:
            self._told = f"{error.code}: {error.message}; trying again"
            self._redraw()
            return
        chosen = self._chosen
        if self._hits is not None:
            found = [info for info in found if info.session_id in self._hits]
        self._found = sorted(found, key=lambda info: info.status != "awaiting_human")
        names = [info.session_id for info in self._found]
        self._told = "" if names else self._nothing()
        rows = self._rows
        rows.show(len(names))
        if names:
            at = names.index(chosen.session_id) if chosen is not None and chosen.session_id in names else 0
            if rows.chosen != at:
                rows.choose(at)
        self._redraw()
        await self._glance()

    def _nothing(self) -> str:
        if self._search:
            return f"nothing found for {self._search!r}; Esc shows all sessions"
        if self._status or self._listing.since:
            return f"no session in {self.frame.place} fits"
        return f"no sessions yet in {self.frame.place}; begin with: turnlog chat --session s1"

    async def _glance(self) -> None:
        """Read what the rows in sight tell of their sessions."""
        first, last = self._rows.in_sight
        for info in self._found[first : last + 1]:
            kept = self._glances.get(info.session_id)
            if kept is not None and kept[0] == info.cursor:
                continue
            try:
                self._glances[info.session_id] = info.cursor, await self.frame.logs.glance(info.session_id)
            except AgentError:  # deleted meanwhile; the next look leaves it out
                continue
            self._rows.show(len(self._found))

    # ── drawing ──

    def _key(self, index: int) -> object:
        info = self._found[index]
        kept = self._glances.get(info.session_id)
        return info.cursor, info.status, info.session_id in self._undriven, kept and kept[0]

    def _lay(self, index: int, width: int) -> list[Text]:
        info, paint = self._found[index], self.frame.paint
        kept = self._glances.get(info.session_id)
        status = status_text(info.status, paint, undriven=info.session_id in self._undriven)
        return session_lines(info, status, kept[1] if kept is not None else None, width, paint)

    def _head(self, width: int, height: int) -> list[Text]:
        paint = self.frame.paint
        waiting = sum(info.status == "awaiting_human" for info in self._found)
        only = {"awaiting_human": " that wait for you", "failed": " that failed"}.get(self._status or "", "")
        line = Text.assemble(
            (" turnlog ", paint.bold), (f"{count(len(self._found), 'session')}{only}", paint.ink2)
        )
        if waiting:
            line.append(f"  ■ {waiting} waiting", style=paint.wait)
        if self._search:
            line.append_text(words(f"  / {self._search}", paint.accent))
        line.append_text(words(f"  {self.frame.place}", paint.dim))
        return [fit(line, width)]

    def _foot(self, width: int, height: int) -> list[Text]:
        paint = self.frame.paint
        keys = "j k move · Enter open · / search · w waiting · ! failed · t theme · ? keys · q leave"
        return [fit(words(f" {self._told or keys}", paint.wait if self._told else paint.dim), width)]

    # ── keys ──

    @property
    def _chosen(self) -> SessionInfo | None:
        at = self._rows.chosen
        return self._found[at] if at is not None and at < len(self._found) else None

    def _move(self, by: int) -> None:
        if self._found:
            at = self._rows.chosen or 0
            self._rows.choose(min(max(at + by, 0), len(self._found) - 1))
            self.run_worker(while_open(self._glance), group="glance", exclusive=True)

    async def on_key(self, event: events.Key) -> None:
        key = event.character if event.is_printable and event.character else event.key
        second, self._g = self._g, key == "g"
        page = max(self._rows.size.height // 3 - 1, 1)
        moves = {"j": 1, "down": 1, "k": -1, "up": -1, "pagedown": page, "pageup": -page}
        moves |= {"G": 1_000_000, "end": 1_000_000, "home": -1_000_000}
        if key in moves:
            self._move(moves[key])
        elif key == "g" and second:
            self._g = False
            self._move(-1_000_000)
        elif key == "enter":
            self._open()
        elif key == "?":
            self.frame.push_screen(HelpScreen(self.frame.paint))
        elif key == "/":
            box = LineScreen(
                "search what was said, done or failed in all sessions", self.frame.paint, self._search
            )
            self.frame.push_screen(box, self._find)
        elif key == "w" or (key == "i" and second):
            self.list_only(None if self._status == "awaiting_human" else "awaiting_human")
        elif key == "!":
            self.list_only(None if self._status == "failed" else "failed")
        elif key == "t":
            await self.run_action("app.theme")
        elif key == "escape" or (key == "s" and second):
            self._hits, self._search = None, ""
            self.list_only(None)
        elif key == "q":
            self.frame.exit()
        else:
            return
        event.stop()

    def _open(self) -> None:
        if (info := self._chosen) is not None:
            at = self._hits.get(info.session_id) if self._hits is not None else None
            self.frame.push_screen(SessionScreen(info.session_id, at=at, found=self._search))

    def on_blocks_chosen(self, event: Blocks.Chosen) -> None:
        self._rows.choose(event.index)
        if event.again:
            self._open()

    def _find(self, text: Any) -> None:
        if text is not None:
            self._search = text.strip()
            self.run_worker(while_open(self._search_all), group="read", exclusive=True)

    async def _search_all(self) -> None:
        self._hits = None
        if self._search:
            self._told = "searching…"
            self._redraw()
            try:
                found = await self.frame.store.sessions(limit=_MOST)
                hits = await self.frame.logs.search(found, self._search)
            except AgentError as error:
                self._told = f"{error.code}: {error.message}"
                self._redraw()
                return
            self._hits = {hit.session_id: hit.seq for hit in hits}
        await self._read()
