"""A chat on a terminal that can do more: the input stays open while an answer comes in.

prompt_toolkit keeps the last lines of the screen: the block of Markdown that still grows, what is waited for,
the input, and a line with the model, what was used, and how full its window is. What is complete is printed
above them for good, and belongs to the terminal from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import StdoutProxy
from prompt_toolkit.styles import Style
from rich.console import Console
from rich.segment import Segment, Segments

from turnlog import events
from turnlog.contract import (
    AgentError,
    Entry,
    FileRefPart,
    ImagePart,
    ModelOutputEntry,
    PendingApproval,
    RunEvent,
    RunResult,
    TokenUsage,
)
from turnlog.history import default_store_url, usage_of
from turnlog.loop import Agent, RunStream

from ._answer import MarkdownAnswer, render_markdown
from ._app import WAITS, err, go_on, login, out, say, say_error, span
from ._asking import ALWAYS, LATER, Choice, allowed_tools, read_answer, show_call
from ._events import EventPrinter, waited_for
from ._files import files_in, say_attached, say_made
from ._run import exit_code, say_what_waits
from ._slash import commands_of, leaves, run_command
from ._text import plain, result_text, safe

_MAIN = ("command", "path", "pattern", "query", "url", "name", "job")
"""Arguments that tell the most about a call."""
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack", "live": ""})


class GrowingAnswer(MarkdownAnswer):
    """The block that is coming in is shown by the input's own screen, not drawn into the terminal."""

    def __init__(self, console: Console, screen: Terminal) -> None:
        super().__init__(console)
        self._screen = screen

    def _print(self, text: str) -> None:
        self._erase()
        if lines := render_markdown(self._console, text):
            # With its last line break: a line that is not complete would be overwritten by the input.
            whole = [[], *lines] if self._printed else lines
            self._console.print(
                Segments([each for line in whole for each in (*line, Segment.line())]), end=""
            )
            self._printed = True

    def _draw(self) -> None:
        self._later = None
        began = monotonic()
        lines = render_markdown(self._console, self._text)
        self._screen.show([*([[]] if self._printed else []), *lines])
        self._drawn_at = monotonic()
        self._cost = self._drawn_at - began

    def _erase(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._screen.show([])


class ScreenPrinter(EventPrinter):
    """A tool call is one line, printed when it is over; ``/open`` shows it whole."""

    def __init__(self, screen: Terminal) -> None:
        super().__init__(out, err, asks=True, answer=GrowingAnswer(out, screen))
        self._calls: dict[str, events.ToolStarted] = {}

    def show(self, event: RunEvent) -> None:
        match event:
            case events.ToolStarted():
                self._part()
                self._calls[event.tool_call_id] = event
            case events.ToolProgressed():
                pass  # its last line is in sight below
            case events.ToolFinished():
                self._finished(event)
            case _:
                super().show(event)

    def _finished(self, event: events.ToolFinished) -> None:
        self._part()
        started = self._calls.pop(event.tool_call_id, None)
        arguments = started.arguments if started is not None else None
        mark = "[green]✓[/]" if event.status == "success" else f"[yellow]✗ {event.status}[/]"
        elapsed = event.elapsed_ms or 0
        took = f" · {span(elapsed)}" if elapsed >= 1000 else ""
        result = "".join(result_text(part) for part in event.message.tool_results)
        line = f"{mark} [cyan]{safe(event.tool_name)}[/] {safe(main_argument(arguments))}"
        line += f"[dim]{took} → {safe(last_line(result))}[/]"
        err.print(line, soft_wrap=False, no_wrap=True, overflow="ellipsis")


def main_argument(arguments: dict[str, Any] | None) -> str:
    given = arguments or {}
    for name in _MAIN:
        if isinstance(given.get(name), str):
            return " ".join(str(given[name]).split())[:80]
    return " ".join(f"{name}={value!r}" for name, value in given.items())[:80]


def last_line(text: str) -> str:
    """The line of a result that tells how it went: the last that has words."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("[")]
    return (told or lines or ["nothing"])[-1 if len(lines) < 3 or lines[-1].startswith("[") else 0][:200]


class Status:
    """What a session has used, and how full the window was at its last call."""

    def __init__(self, agent: Agent, session: str) -> None:
        self._agent, self._session = agent, session
        self._seq = 0
        self._used: TokenUsage | None = None
        self._last: TokenUsage | None = None

    async def look(self) -> None:
        """Take in what the log has since."""
        if await self._agent.store.tail(self._session) is None:
            return
        found: Sequence[Entry] = await self._agent.store.load(self._session, after=self._seq)
        for entry in found:
            self._seq = entry.seq
            if not isinstance(entry, ModelOutputEntry):
                continue
            used = usage_of(entry.payload.message)
            if used is not None:
                self._last = used
                self._used = used if self._used is None else self._used + used

    def text(self, width: int) -> str:
        model = self._agent.model
        parts = [plain(model.descriptor.model)]
        if (used := self._used) is not None and (last := self._last) is not None:
            parts.append(f"{_count(used.total_tokens)} tokens")
            if used.cost is not None:
                parts.append(f"${used.cost:.4f}")
            if used.cached_input_tokens is not None and used.input_tokens:
                parts.append(f"cache {used.cached_input_tokens / used.input_tokens:.0%}")
            if window := model.model_info().context_window:
                full = min(last.total_tokens / window, 1.0)
                parts.append(f"window {'█' * round(full * 10):░<10} {full:.0%} of {_count(window)}")
        return " · ".join(parts)[: max(width - 1, 1)]


def _count(number: int) -> str:
    return f"{number / 1000:.0f}k" if number >= 10_000 else f"{number:,}"


class Words(Completer):
    """Completes slash commands at the start of a line, and files behind an @."""

    def __init__(self, commands: Iterable[str]) -> None:
        self._commands = tuple(commands)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            for name in self._commands:
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text))
            return
        word = text.split()[-1] if text and not text[-1].isspace() else ""
        started = word.removeprefix("@") if word.startswith("@") else None
        if text.startswith("/attach "):
            started = word
        if started is not None:
            yield from _files(started)


def _files(started: str) -> Iterable[Completion]:
    folder, name = os.path.split(started)
    with contextlib.suppress(OSError):
        found = sorted(Path(folder or ".").iterdir())
        for path in [each for each in found if each.name.startswith(name) and (name or each.name[:1] != ".")][
            :200
        ]:
            shown = path.name + ("/" if path.is_dir() else "")
            yield Completion(shown, start_position=-len(name))


def _history() -> History:
    """What was typed before, in a file of the user's own beside the store."""
    _, _, place = default_store_url().partition(":")
    path = Path(place).with_name("chat_history")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


class Terminal:
    """One conversation. ``talk`` reads lines until it is left; a run is a task beside it."""

    def __init__(self, agent: Agent, session: str, title: str | None) -> None:
        self._agent, self._session, self._title = agent, session, title
        self._status = Status(agent, session)
        self._live: Sequence[Sequence[Segment]] = ()
        self._doing: str | None = None
        self._since = 0.0
        self._stream: RunStream[str] | None = None
        self._question: asyncio.Future[str] | None = None
        self._work: asyncio.Task[RunResult[str] | None] | None = None
        self._attached: list[ImagePart | FileRefPart] = []
        self._prompt: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            prompt_continuation="… ",
            bottom_toolbar=self._toolbar,
            key_bindings=self._keys(),
            completer=Words(commands_of(agent)),
            complete_while_typing=True,
            history=_history(),
            style=_STYLE,
            refresh_interval=0.5,
            erase_when_done=True,
            reserve_space_for_menu=4,
        )

    # ── the screen ──

    def show(self, lines: Sequence[Sequence[Segment]]) -> None:
        """Put these in the place of what stands above the input."""
        self._live = lines
        self._prompt.app.invalidate()

    def _message(self) -> AnyFormattedText:
        size = self._prompt.app.output.get_size()
        lines = [_ansi(line) for line in self._live[-max(size.rows - 6, 1) :]]
        if self._doing is not None:
            waited = monotonic() - self._since
            lines.append(f"\x1b[2m{plain(self._doing)[: max(size.columns - 12, 1)]} · {waited:.0f} s\x1b[0m")
        mark = "\x1b[35mrun it?\x1b[0m " if self._question is not None else "> "
        return ANSI("\n".join([*lines, mark]))

    def _toolbar(self) -> AnyFormattedText:
        return self._status.text(self._prompt.app.output.get_size().columns)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter", filter=~has_completions | Condition(self._completes_nothing))
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            self._interrupt(event)

        @keys.add("c-o")
        def _(event: KeyPressEvent) -> None:
            event.app.create_background_task(self._take("/open"))

        return keys

    def _completes_nothing(self) -> bool:
        state = self._prompt.default_buffer.complete_state
        return state is None or state.current_completion is None

    def _interrupt(self, event: KeyPressEvent) -> None:
        if self._stream is not None:
            event.app.create_background_task(self._stream.abort("stopped with Ctrl-C"))
        elif self._question is not None and not self._question.done():
            self._question.set_result(LATER)
        elif event.current_buffer.text:
            event.current_buffer.reset()
        else:
            err.print("[dim]Ctrl-D leaves[/]")

    # ── talking ──

    async def talk(self, first: str | None = None) -> int:
        with _printing_above():
            model = safe(self._agent.model.descriptor.model)
            say(err, f"[dim]session {safe(self._session)} · {model} · Ctrl-C stops, Ctrl-D leaves, /help[/]")
            await self._status.look()
            if await self._agent.store.tail(self._session) is not None:
                self._begin(self._agent.resume_stream(self._session))
            try:
                code = await self._converse(first)
            finally:
                await self._leave()
            if await self._agent.store.tail(self._session) is not None:
                err.print(f"[dim]kept; continue with: {go_on(self._session)}[/]")
        return code

    async def _converse(self, first: str | None) -> int:
        if first is not None:
            if self._work is not None:
                await self._work
            self._say(first)
            reading = asyncio.ensure_future(self._read_on())
            assert self._work is not None
            await asyncio.wait({self._work, reading}, return_when=asyncio.FIRST_COMPLETED)
            reading.cancel()
            await asyncio.wait({reading})
            return exit_code(self._work.result()) if self._work.done() else 0
        await self._read_on()
        if self._work is not None and self._work.done():
            result = self._work.result()
            return WAITS if result is not None and result.status == "awaiting_human" else 0
        return 0

    async def _read_on(self) -> None:
        """Take lines as they are entered, until Ctrl-D or a command that leaves."""
        while True:
            try:
                said = await self._prompt.prompt_async()
            except EOFError:
                return
            except KeyboardInterrupt:
                continue
            if leaves(said):
                return
            await self._take(said)

    async def _take(self, said: str) -> None:
        if self._question is not None:
            if not self._question.done():
                self._question.set_result(said)
        elif not said.strip():
            if self._stream is None and self._paused():
                self._begin(self._agent.resume_stream(self._session))
        elif self._stream is None:
            if not self._attaches(said) and not await run_command(self._agent, self._session, said):
                self._say(said)
        elif not await run_command(self._agent, self._session, said, running=True):
            self._print_said(said)
            try:
                await self._agent.send(self._session, said)
            except AgentError as error:  # it has just ended
                say_error(error.code, error.message)

    def _paused(self) -> bool:
        result = self._work.result() if self._work is not None and self._work.done() else None
        return result is not None and result.status == "paused"

    def _say(self, said: str) -> None:
        self._print_said(said)
        words = [said, *self._attached] if self._attached else said
        self._attached = []
        self._begin(self._agent.run_stream(words, session=self._session, title=self._title))

    def _attaches(self, said: str) -> bool:
        """Whether a line hands over files, to be sent with the next message."""
        try:
            read = files_in(said, pasted=True)
        except AgentError as error:
            say_error(error.code, error.message)
            return True
        self._attached += read or []
        for part in read or ():
            say_attached(part)
        return read is not None

    def _print_said(self, said: str) -> None:
        for number, line in enumerate(said.split("\n")):
            err.print(f"[bold]{'>' if not number else '…'} {safe(line)}[/]")

    def _begin(self, stream: RunStream[str]) -> None:
        self._stream = stream
        self._work = asyncio.create_task(self._run(stream), name="turnlog chat")

    async def _leave(self) -> None:
        """Ctrl-D while a run is in progress ends the run; what it said is kept."""
        if self._work is not None and not self._work.done():
            if self._question is not None and not self._question.done():
                self._question.set_result(LATER)
            if self._stream is not None:
                await self._stream.abort("the chat was left")
            await asyncio.wait({self._work})

    # ── runs ──

    async def _run(self, stream: RunStream[str]) -> RunResult[str] | None:
        """A run to its end, with the questions that come up in it."""
        try:
            result = await self._follow(stream)
            while result is not None and result.status == "awaiting_human":
                self._stream = None
                if not await self._decide():
                    await say_what_waits(self._agent, result)
                    return result
                result = await self._follow(self._agent.resume_stream(self._session))
            if result is not None:
                say_made(result.final_assistant_message, self._session)
                if result.status == "paused":
                    err.print("[dim](paused: Enter continues, a message ends it and starts anew)[/]")
            return result
        except AgentError as error:
            say_error(error.code, error.message)
            return None
        finally:
            self._stream, self._doing = None, None
            self.show([])

    async def _follow(self, stream: RunStream[str]) -> RunResult[str] | None:
        self._stream = stream
        printer = ScreenPrinter(self)
        result: RunResult[str] | None = None
        try:
            async with stream:
                async for event in stream:
                    self._notice(event)
                    printer.show(event)
                    if isinstance(event, events.AnswerAdded):
                        await self._status.look()
                    elif isinstance(event, events.RunEnded):
                        result = event.result
        finally:
            printer.close()
            self._doing = None
        return result

    def _notice(self, event: RunEvent) -> None:
        if isinstance(event, events.ToolProgressed):
            lines = [line for line in (event.text or "").splitlines() if line.strip()]
            if lines:
                self._doing = f"{event.tool_name}: {lines[-1].strip()}"
        elif (what := waited_for(event)) is not None:
            self._doing, self._since = what, monotonic()
        elif isinstance(event, events.TextDelta | events.ToolFinished | events.AnswerAdded):
            self._doing = None

    async def _decide(self) -> bool:
        """Ask about the calls that wait. False when a decision is left for later."""
        calls = await self._agent.pending(self._session)
        allowed = await allowed_tools(self._agent.store, self._session)
        for call in calls:
            if call.tool_name in allowed:
                err.print(f"[dim]{safe(call.tool_name)}: yes, as {ALWAYS}[/]")
                chosen = Choice("approve", note="as before")
            elif (chosen := await self._ask(call)) is None:
                return False
            if chosen.always:
                allowed.add(call.tool_name)
            note = ALWAYS if chosen.always else chosen.note
            try:
                await self._agent.decide(
                    self._session, call.tool_call_id, chosen.action, by=login(), note=note
                )
            except AgentError as error:  # it expired, or was decided elsewhere in the meantime
                say_error(error.code, error.message)
            if chosen.action == "abort":
                break
        return bool(calls)

    async def _ask(self, call: PendingApproval) -> Choice | None:
        show_call(call)
        buffer = self._prompt.default_buffer
        kept = buffer.text  # what was typed before the question does not answer it
        buffer.reset()
        try:
            while True:
                self._question = asyncio.get_running_loop().create_future()
                self._prompt.app.invalidate()
                chosen = read_answer(await self._question)
                if chosen is not None:
                    return None if chosen == LATER else chosen
        finally:
            self._question = None
            if kept:
                buffer.insert_text(kept)


def _ansi(line: Sequence[Segment]) -> str:
    with out.capture() as captured:
        out.print(Segments(list(line)), end="")
    return captured.get()


@contextlib.contextmanager
def _printing_above() -> Generator[None]:
    """What is printed meanwhile is put above the input, at once and as it is."""
    before = sys.stdout, sys.stderr
    with StdoutProxy(sleep_between_writes=0.01, raw=True) as proxy:
        sys.stdout = sys.stderr = proxy
        try:
            yield
        finally:
            proxy.flush()
            sys.stdout, sys.stderr = before
