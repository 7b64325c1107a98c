"""``chat``: talk to an agent."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from turnlog.contract import AgentError, ApprovalDecidedEntry, ApprovalRequestedEntry, RunResult
from turnlog.loop import Agent, RunStream

from ._agent import agent_options, make_agent, session_options
from ._app import WAITS, err, login, out, say_error
from ._ask import Choice, ask
from ._hints import go_on
from ._keys import edit_lines, prompt_message, quiet_keys
from ._run import exit_code, say_what_waits
from ._text import safe
from ._watch import watch

_ALWAYS = "always in this session"


@click.command("chat", short_help="Talk to an agent.")
@agent_options
@session_options
def chat_command(session: str | None, title: str | None, as_json: bool, **options: Any) -> None:
    """Talk to an agent. Ctrl-C stops the answer and keeps the session; Ctrl-D leaves.

    A run that a crash, a pause or a wait for approval left open is continued first. Pasted lines are one
    message. In a pipe every line is a message.
    """
    agent = make_agent(**options)
    chat = Chat(agent, agent.session(session).session_id, as_json, title)
    # Lines are read between two uses of the loop, on the main thread: there Ctrl-C reaches the prompt.
    with asyncio.Runner() as runner:
        try:
            code = chat.talk(runner)
        finally:
            runner.run(agent.close())
    sys.exit(code)


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
            edit_lines()
            model = safe(agent.model.descriptor.model)
            err.print(f"[dim]session {safe(session)} · {model} · Ctrl-C stops, Ctrl-D leaves[/]")
        if runner.run(agent.store.tail(session)) is None:
            result = None
        else:
            result = self._turn(runner, agent.resume_stream(session), note="continuing where it stopped")
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
            if paused:
                err.print("[dim](paused: Enter continues, a message ends it and starts anew)[/]")
            said = self._read()
            if said is None:
                break
            if said.strip():
                result = self._turn(runner, agent.run_stream(said, session=session, title=self._title))
            elif paused:
                result = self._turn(runner, agent.resume_stream(session))
        if self._interactive:
            if runner.run(agent.store.tail(session)) is not None:
                err.print(f"[dim]kept; continue with: {go_on(session)}[/]")
            return 0
        return 0 if result is None else exit_code(result)

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
        allowed = runner.run(self._allowed())
        for call in calls:
            if call.tool_name in allowed:
                err.print(f"[dim]{safe(call.tool_name)}: yes, as {_ALWAYS}[/]")
                chosen = Choice("approve", note="as before")
            elif (chosen := ask(call)) is None:
                return False
            if chosen.always:
                allowed.add(call.tool_name)
            note = _ALWAYS if chosen.always else chosen.note
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

    async def _allowed(self) -> set[str]:
        """Tools whose calls were always approved in this session; what a fork took along does not count."""
        names: dict[str, str] = {}
        allowed: set[str] = set()
        for entry in await self._agent.store.load(self._session):
            if isinstance(entry, ApprovalRequestedEntry):
                names[entry.payload.tool_call_id] = entry.payload.tool_name
            elif isinstance(entry, ApprovalDecidedEntry) and entry.session_id == self._session:
                decided = entry.payload
                if decided.note == _ALWAYS and decided.tool_call_id in names:
                    allowed.add(names[decided.tool_call_id])
        return allowed
