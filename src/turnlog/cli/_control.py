"""``approve``, ``answer``, ``abort``, ``pause``, ``send``: decide on the calls of a run and reach the run, in
whichever process it is driven."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Literal

import click

from turnlog.contract import (
    ApprovalDecided,
    Entry,
    JsonObject,
    ModelInputEntry,
    PendingApproval,
    SessionHeader,
    Store,
)
from turnlog.history import SessionState
from turnlog.loop import Decision, PendingAnswer, StoredSession, pending_answers

from ._agent import OpenHandle, agent_option, with_sessions
from ._app import (
    FAILED,
    approve,
    check_session,
    err,
    json_option,
    login,
    out,
    read_text,
    resume,
    session_argument,
    store_option,
    write_json,
)
from ._app import answer as answer_with
from ._asking import find_edit, show_lines, workspace_of
from ._text import safe, short, whole

_PATIENCE = 3.0  # seconds in which a run that was asked to stop is expected to stop


def _by_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--by", metavar="NAME", default=login, show_default="your login", help=help)


# ── approvals ──


@click.command("approve")
@click.argument("session", required=False, callback=check_session)
@click.argument("call", required=False)
@click.option("--deny", "action", flag_value="deny", help="Do not run it; the model is told.")
@click.option("--abort", "action", flag_value="abort", help="End the run.")
@click.option("--modify", "arguments", metavar="JSON", help="Run it with these arguments instead.")
@click.option("--note", metavar="TEXT", help="A note for the log; with --deny the model reads it.")
@_by_option("Who decides, for the log.")
@store_option
@agent_option
@json_option
def approve_command(
    session: str | None,
    call: str | None,
    action: Literal["deny", "abort"] | None,
    arguments: str | None,
    note: str | None,
    by: str,
    store_url: str | None,
    agent_name: str | None,
    as_json: bool,
) -> None:
    """Let a call run, or not. Without CALL, list the calls of SESSION that wait for a human; without SESSION,
    those of all sessions. `turnlog resume` then continues the run."""
    changed = _parse_object(arguments)
    if changed is not None and action is not None:
        raise click.UsageError(f"--modify and --{action} contradict each other; give one of them")
    if session is None or call is None:
        if changed is not None or action is not None or note is not None:
            words = " ".join(["turnlog approve", *([session] if session else [])])
            raise click.UsageError(f"name the CALL to decide on; {words} lists what waits")
        _list_waiting(store_url, agent_name, session, as_json)
        return
    chosen: Decision = "modify" if changed is not None else action or "approve"

    async def work(store: Store, open: OpenHandle) -> tuple[ApprovalDecided, str]:
        decided = await open(session).decide(call, chosen, by=by, arguments=changed, note=note)
        return decided, await how_to_continue(store, session)

    decided, command = with_sessions(agent_name, store_url, work)
    if as_json:
        write_json(decided)
        return
    out.print(f"{decided.action} by {safe(by)}")
    err.print(f"[dim]continue with: {command}[/]")


async def how_to_continue(store: Store, session: str) -> str:
    """The command, as markup. A child is continued by the session that called it."""
    known: set[str] = set()
    while session not in known:
        known.add(session)
        header = (await store.load(session))[0].payload
        parent = header.parent_session_id if isinstance(header, SessionHeader) else None
        if parent is None or await store.tail(parent) is None:
            break
        session = parent
    return resume(session, SessionState.of(await store.load(session)))


def _list_waiting(store_url: str | None, agent_name: str | None, session: str | None, as_json: bool) -> None:
    """The inbox: calls to decide on, oldest first, and calls to answer."""

    folders: dict[str, str] = {}

    async def work(store: Store, open: OpenHandle) -> tuple[list[PendingApproval], list[PendingAnswer]]:
        asked = await (store.pending() if session is None else open(session).pending())
        for name in {one.session_id for one in asked}:
            folders[name] = workspace_of(SessionState.of(await store.load(name))) or "."
        return asked, await pending_answers(store, session)

    asked, questions = with_sessions(agent_name, store_url, work)
    if as_json:
        for one in asked:
            write_json(one if session is None else one.requested)
        return
    _show_calls(asked, session, folders)
    _show_questions(questions, session)
    if not asked and not questions:
        out.print("nothing waits" + (f" in {safe(session)}" if session is not None else ""))
    if asked:
        err.print(f"[dim]decide with: {approve(session or 'SESSION')}, or --deny, --modify JSON, --abort[/]")
    if questions:
        err.print(f"[dim]answer with: {answer_with(session or 'SESSION')}[/]")


def _show_calls(asked: Sequence[PendingApproval], session: str | None, folders: dict[str, str]) -> None:
    indent = "" if session is not None else "  "
    for one in asked:
        if session is None:
            when = one.requested_at[:16].replace("T", " ")
            out.print(f"[bold]{safe(one.session_id)}[/] [dim]{when}[/]")
        shown, lines = find_edit(one.arguments, folders[one.session_id])
        out.print(f"{indent}[magenta]{one.tool_call_id}[/] {safe(one.tool_name)} {whole(shown)}")
        show_lines(out, lines, indent + "  ")
        if one.reason:
            out.print(f"{indent}  [dim]{safe(one.reason)}[/]")


def _parse_object(text: str | None) -> JsonObject | None:
    found = _parse(text, "--modify")
    if text is not None and not isinstance(found, dict):
        raise click.BadParameter("arguments are a JSON object", param_hint="--modify")
    return found  # pyright: ignore[reportUnknownVariableType]


def _parse(text: str | None, option: str) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint=option) from error


# ── answers from outside ──


@click.command("answer")
@click.argument("session", required=False, callback=check_session)
@click.argument("call", required=False)
@click.argument("text", required=False)
@click.option("--value", metavar="JSON", help="An answer that is not text: a number, a list, an object.")
@click.option("--error", "failed", is_flag=True, help="The call failed, and the answer is the reason.")
@_by_option("Who answers, for the log.")
@store_option
@agent_option
@json_option
def answer_command(
    session: str | None,
    call: str | None,
    text: str | None,
    value: str | None,
    failed: bool,
    by: str,
    store_url: str | None,
    agent_name: str | None,
    as_json: bool,
) -> None:
    """Answer a call whose tool left the answer to others. Without CALL, list the questions of SESSION;
    without SESSION, those of all sessions. TEXT may be - for standard input. `turnlog resume` then continues
    the run."""
    if session is None or call is None:
        if value is not None or failed:
            raise click.UsageError("name the SESSION and the CALL to answer; turnlog answer lists what waits")
        _list_questions(store_url, agent_name, session, as_json)
        return
    if (text is None) == (value is None):
        raise click.UsageError("give the answer as TEXT, or as --value JSON")
    content = _parse(value, "--value") if text is None else read_text(text)

    async def work(store: Store, open: OpenHandle) -> str:
        await open(session).answer(call, content, is_error=failed, by=by)
        return await how_to_continue(store, session)

    command = with_sessions(agent_name, store_url, work)
    if as_json:
        write_json({"sessionId": session, "toolCallId": call, "answeredBy": by})
        return
    out.print(f"answered by {safe(by)}")
    err.print(f"[dim]continue with: {command}[/]")


def _list_questions(
    store_url: str | None, agent_name: str | None, session: str | None, as_json: bool
) -> None:
    found = with_sessions(agent_name, store_url, lambda store, _: pending_answers(store, session))
    if as_json:
        for one in found:
            write_json(one)
        return
    _show_questions(found, session)
    if not found:
        out.print("no question waits" + (f" in {safe(session)}" if session is not None else ""))
    else:
        err.print(f"[dim]answer with: {answer_with(session or 'SESSION')}[/]")


def _show_questions(found: Sequence[PendingAnswer], session: str | None) -> None:
    indent = "" if session is not None else "  "
    for one in found:
        if session is None:
            out.print(f"[bold]{safe(one.session_id)}[/]")
        to = f" [dim]for {safe(one.asked.by)}[/]" if one.asked.by else ""
        out.print(
            f"{indent}[magenta]{one.tool_call_id}[/] {safe(one.tool_name)} asks{to}: {safe(one.question)}"
        )
        if one.asked.answer_schema is not None:
            out.print(f"{indent}  [dim]the answer fits {short(one.asked.answer_schema)}[/]")


# ── runs in other processes ──


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (json_option, store_option, agent_option):
        command = option(command)
    return command


@click.command("abort")
@session_argument
@click.option("--reason", metavar="TEXT", default="aborted from the command line", help="Why, for the log.")
@_options
def abort_command(session: str, reason: str, **options: Any) -> None:
    """End the open run of SESSION, also one that another process drives. The session is kept."""

    async def work(handle: StoredSession, reached: Reached) -> None:
        await handle.abort(reason)
        ended = await reached.comes(lambda state: not state.is_open)
        reached.tell(
            "aborted" if ended else "asked to stop; it ends when its model or tool returns", done=ended
        )

    _reach(session, work, **options)


@click.command("pause")
@session_argument
@_options
def pause_command(session: str, **options: Any) -> None:
    """Pause the open run of SESSION before its next step, also one that another process drives.

    That process stops driving the run, which stays open; `turnlog resume` continues it.
    """

    async def work(handle: StoredSession, reached: Reached) -> None:
        await handle.pause()
        paused = await reached.comes(lambda state: state.paused or not state.is_open)
        if paused and not reached.state.is_open:
            reached.tell(f"not paused: the run ended ({reached.state.status})", done=False)
            sys.exit(FAILED)
        reached.tell("paused" if paused else "asked to pause; it pauses after its present step", done=paused)
        if not reached.as_json:
            err.print(f"[dim]continue with: {resume(session, reached.state)}[/]")

    _reach(session, work, **options)


@click.command("send")
@session_argument
@click.argument("text")
@_options
def send_command(session: str, text: str, **options: Any) -> None:
    """Add a message to the open run of SESSION: the model reads it before its next answer.

    A run that nobody drives takes it in when it is resumed. TEXT may be - for standard input.
    """
    words = read_text(text)

    async def work(handle: StoredSession, reached: Reached) -> None:
        await handle.send(words)
        added = [
            entry.seq
            for entry in await reached.news()
            if isinstance(entry, ModelInputEntry) and entry.payload.message.text == words
        ]
        if added:
            reached.tell(f"sent; entry {added[-1]} of the log", done=True)
        elif reached.driver is not None:
            reached.tell("queued; the run takes it in before its next model call", done=False)
        else:
            reached.tell("queued; nobody drives the run, which takes it in when it is resumed", done=False)
            if not reached.as_json:
                err.print(f"[dim]resume it with: {resume(session, reached.state)}[/]")

    _reach(session, work, **options)


class Reached:
    """An open run that a command reaches."""

    def __init__(self, store: Store, session: str, entries: list[Entry], as_json: bool) -> None:
        self.state = SessionState.of(entries)
        self.as_json = as_json
        self.driver: str | None = None
        self._store = store
        self._session = session
        self._tail = len(entries)

    async def news(self) -> list[Entry]:
        """The entries since the command began."""
        return await self._store.load(self._session, after=self._tail)

    async def comes(self, wanted: Callable[[SessionState], bool]) -> bool:
        """Wait for a state of the log; False when it does not come soon."""
        ends = monotonic() + _PATIENCE
        while True:
            self.state = SessionState.of(await self._store.load(self._session))
            if wanted(self.state):
                return True
            if monotonic() > ends:
                return False
            await asyncio.sleep(0.1)

    def tell(self, words: str, *, done: bool) -> None:
        if self.as_json:
            told = {"sessionId": self._session, "runId": self.state.run_id, "done": done}
            write_json({**told, "driver": self.driver, "status": self.state.status})
            return
        out.print(words)
        if self.driver is not None:
            err.print(f"[dim]driven by {safe(self.driver)}[/]")


def _reach(
    session: str,
    work: Callable[[StoredSession, Reached], Awaitable[None]],
    *,
    agent_name: str | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    async def reach(store: Store, handle: StoredSession) -> None:
        reached = Reached(store, session, await store.load(session), as_json)
        if not reached.state.is_open:
            last = f"; the last one {reached.state.status}" if reached.state.run_id else ""
            err.print(f"no run is open in {safe(session)}{last}")
            sys.exit(FAILED)
        reached.driver = await handle.driver()
        await work(handle, reached)

    with_sessions(agent_name, store_url, lambda store, open: reach(store, open(session)))
