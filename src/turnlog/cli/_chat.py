"""``turnlog chat`` and ``turnlog run``: talk to an agent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import sys
from typing import Any

import click

from turnlog.contract import AgentError, PendingApproval, RunResult
from turnlog.loop import Agent, Decision, RunStream

from ._agent import agent_options, make_agent, read_choice
from ._app import FAILED, INTERRUPTED, WAITS, err, login, out, say_error
from ._hints import approve, go_on
from ._text import safe, short, whole
from ._watch import watch

_ANSWERS: dict[str, Decision] = {
    "y": "approve",
    "yes": "approve",
    "n": "deny",
    "no": "deny",
    "a": "abort",
    "abort": "abort",
}


@click.command("run", short_help="Ask one question.")
@click.argument("text")
@agent_options
@click.option(
    "--tool-choice",
    metavar="NAME",
    help="auto, none, required, or the name of a tool that must be called first.",
)
def run_command(text: str, tool_choice: str | None, **options: Any) -> None:
    """Ask one question. TEXT may be - for standard input.

    The answer goes to standard output, what happens around it to standard error. Exit code 0: answered,
    1: failed, 3: a call waits for approval, 130: stopped with Ctrl-C.
    """
    if text == "-":
        text = _read_all()
    if not text.strip():
        raise click.BadParameter("there is nothing to ask", param_hint="TEXT")
    sys.exit(asyncio.run(_run_once(text, tool_choice, **options)))


async def _run_once(
    text: str,
    tool_choice: str | None,
    session: str | None,
    title: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    agent, tools = make_agent(**options)
    try:
        choice = read_choice(tool_choice, tools)
        stream = agent.run_stream(text, session=session, tool_choice=choice, title=title)
        result = await watch(stream, as_json)
        if result is not None and not as_json:
            if result.status == "awaiting_human":
                _say_how_to_decide(result.session_id, await agent.pending(result.session_id))
            elif session is None:
                err.print(f"[dim]session {safe(result.session_id)}[/]")
    finally:
        await agent.close()
    return _exit_code(result)


def _exit_code(result: RunResult[str] | None) -> int:
    match result.status if result is not None else "failed":
        case "completed":
            return 0
        case "failed":
            return FAILED
        case "aborted":
            return INTERRUPTED
        case "awaiting_human" | "paused":
            return WAITS


def _read_all() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"standard input is not UTF-8: {error}", param_hint="TEXT") from error


def _say_how_to_decide(session: str, waiting: list[PendingApproval]) -> None:
    for call in waiting:
        name = approve(session, call.tool_call_id)
        err.print(f"[dim]decide with: {name}, or --deny, --modify JSON, --abort[/]")
    err.print(f"[dim]then go on with: {go_on(session)}[/]")


@click.command("chat", short_help="Talk to an agent.")
@agent_options
def chat_command(session: str | None, title: str | None, as_json: bool, **options: Any) -> None:
    """Talk to an agent. Ctrl-C stops the answer and keeps the session; Ctrl-D leaves.

    A session that a crash or a wait for approval left open goes on first. Lines may come from a pipe.
    """
    agent, _ = make_agent(**options)
    chat = Chat(agent, agent.session(session).session_id, as_json, title)
    # Lines are read between two uses of the loop, on the main thread: there Ctrl-C reaches the prompt.
    with asyncio.Runner() as runner:
        try:
            code = chat.talk(runner)
        finally:
            runner.run(agent.close())
    sys.exit(code)


def _edit_lines() -> None:
    """Arrow keys at the prompt, where Python was built with them."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # its import is what does it


def _prompt(text: str) -> str:
    """Read a line. Ctrl-C counts here and while a run goes; in between, when an answer has just ended and
    the key is pressed a moment too late, it must not end the chat."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return input(text)
    finally:
        if sys.platform != "win32":  # there a run has no other way to hear of it
            signal.signal(signal.SIGINT, signal.SIG_IGN)


class Chat:
    """One conversation, on a terminal or through a pipe."""

    def __init__(self, agent: Agent, session: str, as_json: bool, title: str | None = None) -> None:
        self._agent = agent
        self._title = title
        self._session = session
        self._as_json = as_json
        self._interactive = sys.stdin.isatty() and not as_json

    def talk(self, runner: asyncio.Runner) -> int:
        """Until there is nothing more to read; the exit code."""
        agent, session = self._agent, self._session
        if self._interactive:
            _edit_lines()
            model = safe(agent.model.descriptor.model)
            err.print(f"[dim]session {safe(session)} · {model} · Ctrl-C stops, Ctrl-D leaves[/]")
        if runner.run(agent.store.tail(session)) is None:
            result = None
        else:
            result = self._turn(runner, agent.resume_stream(session), note="going on where it stopped")
        while True:
            while result is not None and result.status == "awaiting_human":
                if not self._decide(runner):
                    _say_how_to_decide(session, runner.run(agent.pending(session)))
                    return WAITS
                result = self._turn(runner, agent.resume_stream(session))
            line = self._read_line()
            if line is None:
                break
            if line.strip():
                words = line.rstrip("\n")
                result = self._turn(runner, agent.run_stream(words, session=session, title=self._title))
        if self._interactive:
            if runner.run(agent.store.tail(session)) is not None:
                err.print(f"[dim]kept: {go_on(session)}[/]")
            return 0
        return 0 if result is None else _exit_code(result)

    def _turn(
        self, runner: asyncio.Runner, stream: RunStream[str], *, note: str | None = None
    ) -> RunResult[str] | None:
        try:
            return runner.run(watch(stream, self._as_json, note=note, asks=self._interactive))
        except AgentError as error:
            if not self._interactive:
                raise
            say_error(error.code, error.message)
            return None

    def _read_line(self) -> str | None:
        if not self._interactive:
            # Whatever the locale is, a pipe speaks UTF-8.
            return sys.stdin.buffer.readline().decode("utf-8", "replace") or None
        while True:
            try:
                return _prompt("> ")
            except EOFError:
                out.print()
                return None
            except KeyboardInterrupt:
                err.print("\n[dim]Ctrl-D leaves[/]")

    # ── approvals ──

    def _decide(self, runner: asyncio.Runner) -> bool:
        """Ask about the calls that wait. False when somebody is to decide later."""
        if not self._interactive:
            return False
        for call in runner.run(self._agent.pending(self._session)):
            action = self._ask(call)
            if action is None:
                return False
            runner.run(self._agent.decide(self._session, call.tool_call_id, action, by=login()))
            if action == "abort":
                break
        return True

    def _ask(self, call: PendingApproval) -> Decision | None:
        why = f" [dim]{short(call.reason)}[/]" if call.reason else ""
        err.print(f"[magenta]{safe(call.tool_name)}[/] {whole(call.arguments)}{why}")
        while True:
            try:
                given = _prompt("run it? [y]es, [n]o, [a]bort the run, [l]ater: ").strip().lower()
            except (EOFError, KeyboardInterrupt):
                out.print()
                return None
            if given in ("l", "later"):
                return None
            if given in _ANSWERS:
                return _ANSWERS[given]
