"""One session in the terminal timeline as it is used: its keys, and what they do to a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual import events

from turnlog.contract import AgentError
from turnlog.loop import open_session

from ._watch_ask import AnswerScreen, Decided, DecisionScreen, HelpScreen, LineScreen, SureScreen, while_open
from ._watch_blocks import Blocks
from ._watch_detail import TABS, json_of, tab_of
from ._watch_strip import WIDTHS
from ._watch_view import SessionView

_FAR = 1_000_000_000


class SessionScreen(SessionView):
    async def on_key(self, event: events.Key) -> None:
        key = event.character if event.is_printable and event.character else event.key
        second, self._g = self._g, key == "g"
        if second and key in _AFTER_G:
            self._g = False
            act = _AFTER_G[key]
        else:
            act = _KEYS.get(key)
        if act is not None:
            event.stop()
            act(self)

    # ── moving ──

    def _step(self, by: int) -> None:
        self._go((self.conversation.chosen or 0) + by)

    def _turn(self, by: int) -> None:
        """To the next thing that a person said."""
        steps, at = self.shown.steps, self.conversation.chosen or 0
        places = range(at + 1, len(steps)) if by > 0 else range(at - 1, -1, -1)
        self._go(next((place for place in places if steps[place].kind == "input"), at))

    def _next_problem(self, by: int) -> None:
        place = self._problem_after(by)
        if place is None:
            what = f"match of {self.shown.found!r}" if self.shown.found else "problem"
            self._tell(f"no {'further' if by > 0 else 'earlier'} {what}")
        else:
            self._go(place)

    def _roll(self, pages: float) -> None:
        side = self.detail if self._sheet or self.focused is self.detail else self.conversation
        page = max(side.size.height - 2, 1)
        side.roll(round(pages * page) if abs(pages) >= 1 else (1 if pages > 0 else -1))
        if side is self.conversation:
            self.following = self.following and side.at_end
        self._redraw()

    def _follow_end(self) -> None:
        self._go(len(self.shown.steps) - 1)
        self.conversation.go_to_end()
        self._tell("following what is new" if self.following else "")

    def _change_side(self) -> None:
        if self.detail.display and self.conversation.display:
            (self.conversation if self.focused is self.detail else self.detail).focus()

    def on_blocks_chosen(self, event: Blocks.Chosen) -> None:
        if event.blocks.id == "outline":
            self._go(self._outline[event.index])
        elif event.blocks.id == "conversation":
            if event.again:
                self._open()
            else:
                self._go(event.index)

    def on_click(self, event: events.Click) -> None:
        if event.widget is not None and event.widget.id == "strip" and self._strip is not None:
            step = self._strip[1].step_at(max(event.x - 1, 0))
            if step is not None:
                self._go(self._index_of(step.seq))

    # ── looking ──

    def _open(self) -> None:
        """What Enter does: the most useful thing about the selected step."""
        step = self.chosen
        if step is None:
            return
        call = step.tool_call_id or ""
        if call in self.shown.pending or call in self.shown.questions:
            self._decide()
        elif self.shown.child_of(step) is not None:
            self._open_child()
        elif self.query_one("#detail").display and not self._sheet:
            self._expand()
        else:
            self._show_sheet(not self._sheet)

    def _show_sheet(self, wanted: bool) -> None:
        self._sheet = wanted
        self._arrange()
        (self.detail if wanted else self.conversation).focus()

    def _expand(self) -> None:
        if (step := self.chosen) is not None:
            self.shown.opened ^= {step.seq}
            self.conversation.show(len(self.shown.steps))
            self.conversation.choose(self.conversation.chosen)
            self._redraw()

    def _expand_all(self) -> None:
        self._whole = self.shown.all_open = not self._whole
        self._show_steps(fresh=True)

    def _tab_to(self, number: int) -> None:
        self._tab = TABS[number % len(TABS)]
        if not self.detail.display:
            self._show_sheet(True)
        self._redraw()

    def _tab_by(self, by: int) -> None:
        step = self.chosen
        if step is None:
            return
        at = TABS.index(tab_of(step, self._tab)) + by
        if TABS[at % len(TABS)] == "tool" and step.kind != "tool":
            at += by
        self._tab_to(at)

    def _switch_news(self) -> None:
        self._everything = not self._everything
        self._tab_to(0)

    def _next_widths(self) -> None:
        self._widths = (self._widths + 1) % len(WIDTHS)
        self._tell(f"the strip shows {WIDTHS[self._widths]}")
        self._redraw()

    def _toggle_outline(self) -> None:
        self._outline_wanted = not self.query_one("#outline").display
        self._arrange()
        self._chose()

    def _open_child(self) -> None:
        step = self.chosen
        child = self.shown.child_of(step) if step is not None else None
        if child is None:
            self._tell("this step called no other agent")
        else:
            self.frame.push_screen(SessionScreen(child))

    def _open_parent(self) -> None:
        if self._came_from is None:
            self._tell("this session came from no other")
        else:
            self.frame.push_screen(SessionScreen(self._came_from))

    def _branches(self) -> None:
        if not self._forks:
            self._tell("no branches; turnlog fork, turnlog rerun and the what-if of turnlog serve make them")
            return
        at = self.shown.branches
        step = self.chosen
        here = [name for seq in (step.entries if step is not None else ()) for name in at.get(seq, ())]
        names = here or [info.session_id for info in self._forks]
        if len(names) == 1:
            self.frame.push_screen(SessionScreen(names[0]))
            return
        told = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        self._type(f"which branch? {told}", lambda text: self._open_branch(names, text))

    def _open_branch(self, names: list[str], text: str) -> None:
        if text.isdecimal() and 1 <= int(text) <= len(names):
            self.frame.push_screen(SessionScreen(names[int(text) - 1]))
        elif text in names:
            self.frame.push_screen(SessionScreen(text))
        elif text:
            self._tell(f"there is no branch {text}")

    def _copy(self, *, whole: bool) -> None:
        step = self.chosen
        if step is None:
            return
        entries = self.shown.entries(step)
        text = "\n".join(json_of(each, indent=None) for each in entries) if whole else json_of(entries[-1])
        self.frame.copy_to_clipboard(text)
        what = f"{len(entries)} entries" if whole else f"entry {entries[-1].seq}"
        self._tell(f"{what} copied as JSON, {len(text):,} characters (where the terminal allows it)")

    # ── finding ──

    def _type(self, title: str, then: Callable[[str], None], value: str = "") -> None:
        def done(text: Any) -> None:
            if text is not None:
                then(text.strip())

        self.frame.push_screen(LineScreen(title, self.frame.paint, value), done)

    def _find(self) -> None:
        self._type("search in this session", self._look_for, self.shown.found)

    def _look_for(self, text: str) -> None:
        self.shown.found = text
        step = self.chosen
        self._show_steps(fresh=True)
        if text and (step is None or not self._holds(step, text)):
            place = self._problem_after(1)
            place = self._problem_after(-1) if place is None else place
            if place is None:
                self.shown.found = ""
                self._tell(f"nothing found for {text!r}")
            else:
                self._go(place)

    def _filter_by(self) -> None:
        self._type("show only steps that hold these words", self._show_only, self._filter)

    def _show_only(self, text: str) -> None:
        self._filter = text
        self._show_steps(fresh=True)

    def _toggle_errors(self) -> None:
        self._errors_only = not self._errors_only
        self._show_steps(fresh=True)
        if not self.shown.steps:
            self._errors_only = False
            self._show_steps(fresh=True)
            self._tell("nothing went wrong here")

    def _back(self) -> None:
        if self._sheet:
            self._show_sheet(False)
        elif self.shown.found or self._filter or self._errors_only:
            self.shown.found = self._filter = ""
            self._errors_only = False
            self._show_steps(fresh=True)
        else:
            self.frame.pop_screen()

    # ── acting ──

    def _waiting(self) -> str | None:
        """The call to decide on: that of the selected step, or the first one that waits."""
        step = self.chosen
        asked = [*self.shown.pending, *self.shown.questions]
        if step is not None and step.tool_call_id in asked:
            return step.tool_call_id
        if not asked:
            self._tell("nothing waits here")
            return None
        for place, each in enumerate(self.shown.steps):
            if each.tool_call_id == asked[0]:
                self._go(place)
        return asked[0]

    def _decide(self, *, denies: bool = False) -> None:
        call = self._waiting()
        if call is None:
            return
        if (question := self.shown.questions.get(call)) is not None:

            async def answer(content: object) -> None:
                await open_session(self.frame.store, self.session_id).answer(
                    question, content, by=self.frame.by
                )

            def answered(given: Any) -> None:
                if given is not None:
                    self.run_worker(
                        while_open(self._reach, "answered", lambda: answer(given[0])), group="act"
                    )

            self.frame.push_screen(AnswerScreen(question, self.frame.paint), answered)
            return
        asked = self.shown.pending[call]

        def decided(choice: Decided | None) -> None:
            if choice is not None:
                word = {"approve": "approved", "deny": "denied", "abort": "aborted"}[choice.action]
                self.run_worker(
                    while_open(self._reach, word, lambda: self._record(asked, choice)), group="act"
                )

        box = DecisionScreen(asked, self.shown.folder, self.frame.paint, denies=denies)
        self.frame.push_screen(box, decided)

    async def _record(self, asked: Any, choice: Decided) -> None:
        """Decide on exactly what was shown, by the path of ``turnlog approve``."""
        handle = open_session(self.frame.store, self.session_id)
        waiting = {each.tool_call_id: each for each in await handle.pending()}
        now = waiting.get(asked.tool_call_id)
        if now is None:
            raise AgentError("ApprovalInvalid", "this call does not wait any more: it was decided elsewhere")
        if now.digest != asked.digest:
            raise AgentError("ApprovalInvalid", "what waits now is not what was shown; look at it again")
        await handle.decide(now, choice.action, by=self.frame.by, note=choice.note)

    async def _reach(self, word: str, act: Callable[[], Any]) -> None:
        """Do something to the run, and tell who continues it."""
        self._tell("sending…")
        try:
            await act()
            handle = open_session(self.frame.store, self.session_id)
            driver = await handle.driver()
            if driver is not None:
                self._tell(f"{word}; {driver} drives the run")
            elif (await handle.state()).current_run_id is None:
                self._tell(word)
            elif self.frame.advise is not None:
                command = await self.frame.advise(self.session_id)
                self._tell(f"{word}; nobody drives the run, continue it with: {command}")
            else:
                self._tell(f"{word}; nobody drives the run")
        except AgentError as error:
            self._tell(f"{error.code}: {error.message}")

    def _say(self) -> None:
        def send(text: str) -> None:
            if text:
                handle = open_session(self.frame.store, self.session_id)
                self.run_worker(while_open(self._reach, "sent", lambda: handle.send(text)), group="act")

        self._type("say something to the run; the model reads it before its next answer", send)

    def _pause(self) -> None:
        handle = open_session(self.frame.store, self.session_id)
        if self.shown.driver is None:
            self._tell("no run is in progress here")
            return

        def sure(yes: Any) -> None:
            if yes:
                self.run_worker(while_open(self._reach, "asked to pause", handle.pause), group="act")

        question = f"Pause the run before its next step? {self.shown.driver} then stops driving it."
        self.frame.push_screen(SureScreen(question, "Pause", self.frame.paint), sure)


# The private names are the class's own: these tables are the body of ``on_key``.
# pyright: reportPrivateUsage=false
_Act = Callable[[SessionScreen], Any]
_AFTER_G: dict[str, _Act] = {
    "g": lambda screen: screen._go(0),
    "s": lambda screen: screen.run_worker(screen.run_action("app.sessions")),
    "i": lambda screen: screen.run_worker(screen.run_action("app.sessions('awaiting_human')")),
}
_KEYS: dict[str, _Act] = {
    "j": lambda screen: screen._step(1),
    "k": lambda screen: screen._step(-1),
    "J": lambda screen: screen._turn(1),
    "K": lambda screen: screen._turn(-1),
    "n": lambda screen: screen._next_problem(1),
    "N": lambda screen: screen._next_problem(-1),
    "G": lambda screen: screen._go(_FAR),
    "end": lambda screen: screen._go(_FAR),
    "home": lambda screen: screen._go(0),
    "down": lambda screen: screen._roll(0.1),
    "up": lambda screen: screen._roll(-0.1),
    "pagedown": lambda screen: screen._roll(1),
    "pageup": lambda screen: screen._roll(-1),
    "tab": SessionScreen._change_side,
    "f": SessionScreen._follow_end,
    "enter": SessionScreen._open,
    "e": SessionScreen._expand,
    "E": SessionScreen._expand_all,
    "[": lambda screen: screen._tab_by(-1),
    "]": lambda screen: screen._tab_by(1),
    ".": SessionScreen._switch_news,
    "m": SessionScreen._next_widths,
    "o": SessionScreen._toggle_outline,
    "c": SessionScreen._open_child,
    "p": SessionScreen._open_parent,
    "b": SessionScreen._branches,
    "y": lambda screen: screen._copy(whole=False),
    "Y": lambda screen: screen._copy(whole=True),
    "/": SessionScreen._find,
    "&": SessionScreen._filter_by,
    "!": SessionScreen._toggle_errors,
    "escape": SessionScreen._back,
    "a": SessionScreen._decide,
    "d": lambda screen: screen._decide(denies=True),
    "i": SessionScreen._say,
    "space": SessionScreen._pause,
    " ": SessionScreen._pause,
    "t": lambda screen: screen.run_worker(screen.run_action("app.theme")),
    "?": lambda screen: screen.frame.push_screen(HelpScreen(screen.frame.paint)),
    "q": lambda screen: screen.frame.exit(),
    **{str(number): (lambda screen, at=number - 1: screen._tab_to(at)) for number in range(1, 6)},
}
