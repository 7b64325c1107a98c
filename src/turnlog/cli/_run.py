"""``run``, ``map`` and ``resume``: drive runs to their end, print what happens, and stop with Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import Callable
from typing import IO, Any, cast

import click

from turnlog import events
from turnlog.contract import RunEndedEntry, RunResult, Store
from turnlog.files import File
from turnlog.history import SessionState
from turnlog.loop import Agent, Mapped, RunStream

from ._agent import agent_options, make_agent, recorded_workspace, session_options
from ._app import (
    CODE,
    FAILED,
    INTERRUPTED,
    WAITS,
    answer,
    approve,
    err,
    out,
    read_text,
    resume,
    session_argument,
    write_json,
)
from ._events import EventPrinter, Waiting
from ._files import file_options, read_files, say_made
from ._text import safe, short


@click.command("run")
@click.argument("text")
@agent_options
@file_options
@session_options
@click.option(
    "--tool-choice",
    metavar="NAME",
    help="auto, none, required, or the name of a tool that must be called first.",
)
def run_command(
    text: str,
    session: str | None,
    title: str | None,
    tool_choice: str | None,
    as_json: bool,
    files: tuple[str, ...],
    allow_private: bool,
    **options: Any,
) -> None:
    """Ask one question. TEXT may be - for standard input.

    The answer goes to standard output, everything else to standard error. In a pipe an answer is written
    when it is complete; --json writes every event as it happens. Exit codes: 0 answered, 1 failed, 3 a call
    waits for a human or the run was paused, 130 stopped.
    """
    if [text, *files].count("-") > 1:
        raise click.UsageError("standard input can be read once: give - for TEXT or for one --file")
    words = read_text(text)
    given = [words, *read_files(files, allow_private=allow_private)] if files else words

    async def work() -> int:
        async with make_agent(**options) as agent:
            stream = agent.run_stream(given, session=session, tool_choice=tool_choice, title=title)
            left = await _left_open(agent.store, session) if session is not None else None
            result = await watch(stream, as_json, note=left)
            if not as_json and not await say_what_waits(agent, result) and session is None and result:
                err.print(f"[dim]session {safe(result.session_id)}[/]")
            if not as_json and result is not None:
                say_made(result.final_assistant_message, result.session_id)
        return exit_code(result)

    sys.exit(asyncio.run(work()))


async def _left_open(store: Store, session: str) -> str | None:
    """What to tell of the run that a new one ends, as markup."""
    last = await store.tail(session)
    if last is None or isinstance((await store.load(session, after=last.seq - 1))[-1], RunEndedEntry):
        return None
    state = SessionState.of(await store.load(session))
    if not state.is_open:
        return None
    command = safe(shlex.join(["turnlog", "resume", session]))
    return (
        f"run {state.run_id} was left open and is ended, its question stays unanswered; another time "
        f"{command} continues it"
    )


@click.command("map")
@click.argument("lines", type=click.File("r", encoding="utf-8"), metavar="FILE")
@agent_options
@click.option(
    "--sessions",
    metavar="NAME",
    help="What the names of the sessions begin with; then a restart does only what is left.",
)
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1), default=20, help="How many at a time; default 20."
)
def map_command(
    lines: IO[str], sessions: str | None, concurrency: int, as_json: bool, **options: Any
) -> None:
    """Ask a question for each line of FILE, - for standard input, several at a time.

    A line is a JSON string, or an object with the field input, and with files where there are any: a list of
    paths. As each finishes, a JSON line goes to standard
    output: its index, from 0, its session, its status, and its output or its error. Exit codes: 0 all
    completed, 1 some did not, 130 stopped.
    """
    inputs = [_input_of(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    async def work() -> int:
        async with make_agent(**options) as agent:
            batch = agent.map(inputs, sessions=sessions, concurrency=concurrency)
            left = len(inputs)
            async for done in batch:
                status = done.result.status if done.result is not None else "failed"
                left -= status == "completed"
                write_json(_line_of(done, status))
            if not as_json and batch.usage is not None:
                cost = "" if batch.usage.cost is None else f", ${batch.usage.cost:.4f}"
                err.print(f"[dim]{batch.done} done, {batch.usage.total_tokens} tokens{cost}[/]")
        return FAILED if left else 0

    sys.exit(asyncio.run(work()))


def _input_of(line: str, number: int) -> str | list[str | File]:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise click.BadParameter(f"line {number} is not JSON: {error}", param_hint="FILE") from error
    files: Any = cast("dict[str, Any]", found).get("files") if isinstance(found, dict) else None
    found = cast("dict[str, Any]", found).get("input") if isinstance(found, dict) else found
    if not isinstance(found, str):
        raise click.BadParameter(
            f"line {number} is neither a JSON string nor an object with the text field input",
            param_hint="FILE",
        )
    if files is None:
        return found
    if not isinstance(files, list) or not all(isinstance(path, str) for path in cast("list[Any]", files)):
        raise click.BadParameter(f"files in line {number} is not a list of paths", param_hint="FILE")
    return [found, *(File(path) for path in cast("list[str]", files))]


def _line_of(done: Mapped[Any], status: str) -> dict[str, Any]:
    line: dict[str, Any] = {"index": done.index, "session": done.session_id, "status": status}
    if status == "completed":
        line["output"] = done.output
    if done.error is not None:
        line["error"] = done.error.to_info()
    if done.result is not None and done.result.usage is not None:
        line["usage"] = done.result.usage
    return line


@click.command("resume")
@session_argument
@agent_options
def resume_command(session: str, as_json: bool, **options: Any) -> None:
    """Continue the run that a crash, a pause or a wait for approval left open in SESSION.

    Give the model and the tools that the run began with; the tools code work in the folder it began with.
    Output and exit codes are those of run.
    """
    if CODE in options["tool_modules"] and not options["workspace"]:
        workspace = recorded_workspace(session, options["config"], options["store_url"])
        options["workspace"] = click.get_current_context().params["workspace"] = workspace

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
    """Print how a run that stays open continues; False when it is over."""
    if result is None or result.status not in ("awaiting_human", "paused"):
        return False
    then = ""
    for call in SessionState.of(await agent.store.load(result.session_id)).open_calls:
        if call.awaits_human:
            name = approve(result.session_id, call.call.tool_call_id)
            err.print(f"[dim]decide with: {name}, or --deny, --modify JSON, --abort[/]")
        elif call.deferred is not None:
            asked = short(call.deferred.question or call.deferred.reason)
            name = answer(result.session_id, call.call.tool_call_id)
            err.print(f"[dim]{safe(call.call.tool_name)} asks: {asked}; answer with: {name}[/]")
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


async def watch(
    stream: RunStream[str], as_json: bool, *, note: str | None = None, asks: bool = False
) -> RunResult[str] | None:
    """Print a run to its end; None when there was nothing to run. Raises ``Abort`` when it was left.

    The first Ctrl-C aborts the run and keeps the session; a second one does not wait for that. With ``asks``
    the caller shows the calls that wait for approval.
    """
    printer = EventPrinter(out, err, asks=asks)
    waiting = Waiting(err, printer, wanted=not as_json)
    interrupt = Interrupt(stream)
    result: RunResult[str] | None = None
    with interrupt, waiting.counting():
        try:
            async with stream:
                async for event in stream:
                    if not interrupt.begun and note and not as_json:
                        err.print(f"[dim]{note}[/]")
                    interrupt.begun = True
                    if as_json:
                        write_json(event)
                    else:
                        waiting.before(event)
                        printer.show(event)
                    if isinstance(event, events.RunEnded):
                        result = event.result
        except asyncio.CancelledError:
            if not interrupt.left:
                raise
            raise click.Abort from None
        finally:
            printer.close()
    return result


class Interrupt:
    """What Ctrl-C does while a run is in progress."""

    def __init__(self, stream: RunStream[str]) -> None:
        self._stream = stream
        self._asked = False
        self._task: asyncio.Task[object] | None = None
        self._aborting: asyncio.Task[None] | None = None
        self._before: object = None
        self.begun = False
        self.left = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._before = signal.getsignal(signal.SIGINT)
        _on_interrupt(self._pressed)

    def __exit__(self, *exc: object) -> None:
        _on_interrupt(None)
        if self._before is signal.SIG_IGN:  # asyncio puts the default in its place instead
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _pressed(self) -> None:
        if not self.begun or self._asked:
            self.left = True
            if self._task is not None:
                self._task.cancel()
            return
        self._asked = True
        self._aborting = asyncio.ensure_future(self._stream.abort("stopped with Ctrl-C"))


def _on_interrupt(action: Callable[[], None] | None) -> None:
    loop = asyncio.get_running_loop()
    try:
        if action is None:
            loop.remove_signal_handler(signal.SIGINT)
        else:
            loop.add_signal_handler(signal.SIGINT, action)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # Windows, or not the main thread: Ctrl-C is then an ordinary KeyboardInterrupt
