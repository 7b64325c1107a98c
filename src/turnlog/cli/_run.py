"""``run`` and ``resume``: drive one run to its end."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from turnlog.contract import RunResult
from turnlog.history import SessionState
from turnlog.loop import Agent

from ._agent import agent_options, make_agent, session_options
from ._app import FAILED, INTERRUPTED, WAITS, err, read_text, session_argument
from ._hints import approve, resume
from ._text import safe, short
from ._watch import watch


@click.command("run", short_help="Ask one question.")
@click.argument("text")
@agent_options
@session_options
@click.option(
    "--tool-choice",
    metavar="NAME",
    help="auto, none, required, or the name of a tool that must be called first.",
)
def run_command(
    text: str, session: str | None, title: str | None, tool_choice: str | None, as_json: bool, **options: Any
) -> None:
    """Ask one question. TEXT may be - for standard input.

    The answer goes to standard output, everything else to standard error. In a pipe an answer is written
    when it is complete; --json writes every event as it happens. Exit codes: 0 answered, 1 failed, 3 a call
    waits for a human or the run was paused, 130 stopped.
    """
    words = read_text(text)

    async def work() -> int:
        async with make_agent(**options) as agent:
            stream = agent.run_stream(words, session=session, tool_choice=tool_choice, title=title)
            result = await watch(stream, as_json)
            if not as_json and not await say_what_waits(agent, result) and session is None and result:
                err.print(f"[dim]session {safe(result.session_id)}[/]")
        return exit_code(result)

    sys.exit(asyncio.run(work()))


@click.command("resume", short_help="Continue a run that was left open.")
@session_argument
@agent_options
def resume_command(session: str, as_json: bool, **options: Any) -> None:
    """Continue the run that a crash, a pause or a wait for approval left open in SESSION.

    Give the model and the tools that the run began with. Output and exit codes are those of run.
    """

    async def work() -> int:
        async with make_agent(**options) as agent:
            result = await watch(agent.resume_stream(session), as_json)
            if result is None:
                if not as_json:
                    err.print(f"no run is open in {safe(session)}")
                return 0
            if not as_json:
                await say_what_waits(agent, result)
        return exit_code(result)

    sys.exit(asyncio.run(work()))


async def say_what_waits(agent: Agent, result: RunResult[str] | None) -> bool:
    """Tell how a run that was let go continues; False when it is over."""
    if result is None or result.status not in ("awaiting_human", "paused"):
        return False
    then = ""
    for call in SessionState.of(await agent.store.load(result.session_id)).open_calls:
        if call.awaits_human:
            name = approve(result.session_id, call.call.tool_call_id)
            err.print(f"[dim]decide with: {name}, or --deny, --modify JSON, --abort[/]")
        elif call.deferred is not None:
            name = f"{safe(call.call.tool_name)} ({call.call.tool_call_id})"
            err.print(f"[dim]{name} waits for an answer: {short(call.deferred.reason)}[/]")
        then = "then "
    err.print(f"[dim]{then}continue with: {resume(result.session_id)}[/]")
    return True


def exit_code(result: RunResult[str] | None) -> int:
    match result.status if result is not None else "failed":
        case "completed":
            return 0
        case "failed":
            return FAILED
        case "aborted":
            return INTERRUPTED
        case "awaiting_human" | "paused":
            return WAITS
