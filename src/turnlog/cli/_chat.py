"""``chat``: talk to an agent; its keyboard, and its questions about calls that wait for approval."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import select
import signal
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import click

from turnlog.contract import (
    AgentError,
    FileRefPart,
    ImagePart,
    PendingApproval,
    RunResult,
)
from turnlog.loop import Agent, RunStream

from ._agent import agent_options, make_agent, session_options
from ._app import CODE, WAITS, err, go_on, login, out, read_text, say_error
from ._asking import ALWAYS, LATER, Choice, allowed_tools, read_answer, show_call
from ._files import files_in, say_attached, say_made
from ._run import exit_code, say_what_waits, watch
from ._slash import leaves, run_command
from ._text import safe

if TYPE_CHECKING:
    from ._terminal import Terminal

try:
    import termios
except ImportError:  # Windows: a prompt is then a plain line
    termios = None


@click.command("code")
@click.argument("text", required=False)
@agent_options
@session_options
def code_command(
    text: str | None, session: str | None, title: str | None, as_json: bool, **options: Any
) -> None:
    """Let an agent work on the files of this folder: it reads, writes, searches and runs commands, in a
    sandbox, and asks before it changes something.

    With TEXT, which may be - for standard input, it does that and is done; else it is a chat. Exit codes are
    those of run.
    """
    words = None if text is None else read_text(text)
    if options["agent_name"] is None:
        options["tool_modules"] = tuple(dict.fromkeys((CODE, *options["tool_modules"])))
        click.get_current_context().params["tool_modules"] = options["tool_modules"]  # named in hints
    _converse(make_agent(**options), session, title, as_json, words)


@click.command("chat")
@agent_options
@session_options
def chat_command(session: str | None, title: str | None, as_json: bool, **options: Any) -> None:
    """Talk to an agent. Ctrl-C stops the answer and keeps the session; Ctrl-D leaves.

    A run that a crash, a pause or a wait for approval left open is continued first. Pasted lines are one
    message. In a pipe every line is a message. /attach PATH sends a picture, a PDF or a text file along with
    the next message; so does a path that is pasted alone. /help lists the other commands.
    """
    _converse(make_agent(**options), session, title, as_json)


def _converse(
    agent: Agent, session: str | None, title: str | None, as_json: bool, first: str | None = None
) -> None:
    name = agent.session(session).session_id
    if (terminal := _terminal()) is not None and not as_json:
        sys.exit(asyncio.run(_talk(agent, terminal(agent, name, title), first)))
    chat = Chat(agent, name, as_json, title)
    # Lines are read between two uses of the loop, on the main thread: there Ctrl-C reaches the prompt.
    with asyncio.Runner() as runner:
        try:
            code = chat.talk(runner, first)
        finally:
            runner.run(agent.close())
    sys.exit(code)


PLAIN = "TURNLOG_PLAIN"
"""A variable of the environment: a chat then prints lines and nothing else, as a screen reader wants it."""


def _terminal() -> type[Terminal] | None:
    """The better terminal, where there is one, the package for it is installed, and it is not refused."""
    if not (sys.stdin.isatty() and out.is_terminal) or out.is_dumb_terminal or os.environ.get(PLAIN):
        return None
    with contextlib.suppress(ImportError):
        from ._terminal import Terminal

        return Terminal
    return None


async def _talk(agent: Agent, terminal: Terminal, first: str | None) -> int:
    async with agent:
        return await terminal.talk(first)


class Chat:
    """One conversation, on a terminal or through a pipe."""

    def __init__(self, agent: Agent, session: str, as_json: bool, title: str | None = None) -> None:
        self._agent = agent
        self._title = title
        self._session = session
        self._as_json = as_json
        self._interactive = sys.stdin.isatty() and not as_json
        self._attached: list[ImagePart | FileRefPart] = []
        """Files that go with the next message."""

    def talk(self, runner: asyncio.Runner, first: str | None = None) -> int:
        """Until there is nothing more to read, or until ``first`` is done; the exit code."""
        agent, session = self._agent, self._session
        if self._interactive:
            edit_lines()
            model = safe(agent.model.descriptor.model)
            err.print(f"[dim]session {safe(session)} · {model} · Ctrl-C stops, Ctrl-D leaves, /help[/]")
        if runner.run(agent.store.tail(session)) is None:
            result = None
        else:
            result = self._turn(runner, agent.resume_stream(session), note="continuing where it stopped")
        done = False
        while True:
            while result is not None and result.status == "awaiting_human":
                if not self._decide(runner):
                    runner.run(say_what_waits(agent, result))
                    return WAITS
                result = self._turn(runner, agent.resume_stream(session))
            paused = result is not None and result.status == "paused"
            if paused and not self._interactive:
                runner.run(say_what_waits(agent, result))
                return WAITS
            if done:
                break
            if paused and first is None:
                err.print("[dim](paused: Enter continues, a message ends it and starts anew)[/]")
            said, done = (self._read(), False) if first is None else (first, True)
            if said is None or (not done and leaves(said)):
                break
            if not done and (self._attaches(said) or runner.run(run_command(agent, session, said))):
                continue
            if said.strip():
                words = [said, *self._attached] if self._attached else said
                self._attached = []
                result = self._turn(runner, agent.run_stream(words, session=session, title=self._title))
                if result is not None and not self._as_json:
                    say_made(result.final_assistant_message, session)
            elif paused:
                result = self._turn(runner, agent.resume_stream(session))
        if self._interactive and runner.run(agent.store.tail(session)) is not None:
            err.print(f"[dim]kept; continue with: {go_on(session)}[/]")
        if first is None and (self._interactive or result is None):
            return 0
        return exit_code(result)

    def _turn(
        self, runner: asyncio.Runner, stream: RunStream[str], *, note: str | None = None
    ) -> RunResult[str] | None:
        try:
            with quiet_keys():
                return runner.run(watch(stream, self._as_json, note=note, asks=self._interactive))
        except AgentError as error:
            if not self._interactive:
                raise
            say_error(error.code, error.message)
            return None

    def _attaches(self, said: str) -> bool:
        """Whether a line hands over files and is no message."""
        try:
            read = files_in(said, pasted=self._interactive)
        except AgentError as error:
            say_error(error.code, error.message)
            return True
        self._attached += read or []
        if not self._as_json:
            for part in read or ():
                say_attached(part)
        return read is not None

    def _read(self) -> str | None:
        if not self._interactive:
            # A pipe is UTF-8 under any locale.
            line = sys.stdin.buffer.readline().decode("utf-8", "replace")
            return line.rstrip("\n") if line else None
        while True:
            try:
                return prompt_message("> ", "… ", lambda line: err.print(f"[dim]…[/] {safe(line)}"))
            except EOFError:
                out.print()
                return None
            except KeyboardInterrupt:
                err.print("\n[dim]Ctrl-D leaves[/]")

    # ── approvals ──

    def _decide(self, runner: asyncio.Runner) -> bool:
        """Ask about the calls that wait. False when a decision is left for later."""
        if not self._interactive:
            return False
        calls = runner.run(self._agent.pending(self._session))
        allowed = runner.run(allowed_tools(self._agent.store, self._session))
        for call in calls:
            if call.tool_name in allowed:
                err.print(f"[dim]{safe(call.tool_name)}: yes, as {ALWAYS}[/]")
                chosen = Choice("approve", note="as before")
            elif (chosen := ask(call)) is None:
                return False
            if chosen.always:
                allowed.add(call.tool_name)
            note = ALWAYS if chosen.always else chosen.note
            decision = self._agent.decide(
                self._session, call.tool_call_id, chosen.action, by=login(), note=note
            )
            try:
                runner.run(decision)
            except AgentError as error:  # it expired, or was decided elsewhere in the meantime
                say_error(error.code, error.message)
            if chosen.action == "abort":
                break
        return bool(calls)


def ask(call: PendingApproval) -> Choice | None:
    """Show a call and ask until it is decided; None when it is left for later."""
    show_call(call)
    while True:
        try:
            chosen = read_answer(prompt_anew("run it? "))
        except (EOFError, KeyboardInterrupt):
            out.print()
            return None
        if chosen is not None:
            return None if chosen == LATER else chosen


_SETTLES = 0.03  # seconds in which the rest of a paste arrives


def edit_lines() -> None:
    """Arrow keys at the prompt, and a paste that waits for Enter, where Python was built with them."""
    with contextlib.suppress(ImportError):
        readline = importlib.import_module("readline")
        can_paste = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        if can_paste and "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")


def prompt(text: str) -> str:
    """Read a line. Ctrl-C counts here and while a run is in progress; in between, when an answer has just
    ended and the key is pressed a moment too late, it must not end the chat."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return input(text)
    finally:
        if sys.platform != "win32":  # there a run has no other way to hear of it
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def prompt_anew(text: str) -> str:
    """Read a line that was typed after the question was shown: what was typed before does not answer it."""
    read_pending()
    return prompt(text)


def prompt_message(text: str, more: str, show: Callable[[str], None]) -> str:
    """Read a message. What was pasted with its first line belongs to it: lines that are complete are shown
    with ``show``, and one that is not is edited behind the prompt ``more``."""
    said = prompt(text)
    while rest := read_pending():
        *lines, unfinished = rest.split("\n")
        for line in lines:
            show(line)
            said += f"\n{line}"
        if unfinished:
            said += f"\n{_prompt_with(more, unfinished)}"
    return said


def _prompt_with(text: str, start: str) -> str:
    """Read a line that begins with ``start``, which can still be changed where lines are edited."""
    readline: Any = sys.modules.get("readline")
    if readline is None:
        return start + prompt(text + start)
    readline.set_startup_hook(lambda: readline.insert_text(start))
    try:
        return prompt(text)
    finally:
        readline.set_startup_hook(None)


def read_pending() -> str:
    """What was typed or pasted and not read yet, with line breaks as ``\\n``."""
    if termios is None:
        return ""
    found = b""
    with _without(termios.ICANON | termios.ECHO) as changed:
        while changed and select.select([sys.stdin], [], [], _SETTLES)[0]:
            piece = os.read(sys.stdin.fileno(), 65536)
            if not piece:
                break
            found += piece
    text = found.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\x04", "").replace("\0", "")  # Ctrl-D pressed too early


@contextlib.contextmanager
def quiet_keys() -> Generator[None]:
    """What is typed while an answer is printed is not mixed into it; the next prompt shows it."""
    if termios is None:
        yield
        return
    with _without(termios.ECHO):
        yield


@contextlib.contextmanager
def _without(flags: int) -> Generator[bool]:
    """The terminal without these modes, and as it was when we leave, also by a signal. False: no terminal."""
    terminal = termios
    assert terminal is not None
    try:
        before = terminal.tcgetattr(sys.stdin)
    except (terminal.error, ValueError, OSError):
        yield False
        return

    def restore() -> None:
        with contextlib.suppress(terminal.error, OSError):
            terminal.tcsetattr(sys.stdin, terminal.TCSANOW, before)

    def ended(number: int, frame: object) -> None:
        restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    changed = [*before]
    changed[3] = before[3] & ~flags
    terminal.tcsetattr(sys.stdin, terminal.TCSANOW, changed)
    others = {number: signal.signal(number, ended) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield True
    finally:
        restore()
        for number, action in others.items():
            signal.signal(number, action or signal.SIG_DFL)
