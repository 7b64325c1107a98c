"""``sessions``, ``replay``, ``fork``, ``context``: read logs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from turnlog.contract import (
    STATUSES,
    AgentError,
    Entry,
    Message,
    RunStatus,
    SessionInfo,
    Store,
    ToolCallPart,
    ToolResultPart,
)
from turnlog.history import JsonlStore, SqliteStore, show_url
from turnlog.loop import (
    ContextDiff,
    ContextView,
    Memory,
    ReplayReport,
    diff_contexts,
    explain,
    fork_session,
)

from ._agent import agent_option, with_sessions
from ._app import (
    FAILED,
    count,
    entries_of,
    err,
    go_on,
    json_option,
    out,
    session_argument,
    status_of,
    store_option,
    store_url_of,
    with_store,
    write_json,
)
from ._text import Painter, plain, result_text, safe, short

_AGE = re.compile(r"(\d+)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _moment(ctx: click.Context, given: click.Parameter, value: str | None) -> str | None:
    """``1d``, ``12h``, ``30m`` before now, or a time."""
    if value is None:
        return None
    if found := _AGE.fullmatch(value.strip()):
        since = datetime.now(UTC) - timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
        return since.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        datetime.fromisoformat(value)
    except ValueError as error:
        words = "give an age such as 30m, 12h or 7d, or a time such as 2026-01-31T12:00:00Z"
        raise click.BadParameter(words, ctx, given) from error
    return value


def listing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which sessions are listed."""
    for option in (
        store_option,
        click.option(
            "--all", "children", is_flag=True, help="Also those of agents called as tools, and notes."
        ),
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N sessions."),
        click.option(
            "--since", callback=_moment, metavar="AGE", help="Changed since then: 30m, 12h, 7d, or a time."
        ),
        click.option("--status", type=click.Choice(STATUSES), help="Only sessions in this state."),
        click.option("--failed", "status", flag_value="failed", help="Only sessions whose last run failed."),
        click.option(
            "--waiting", "status", flag_value="awaiting_human", help="Only sessions that wait for a human."
        ),
    ):
        command = option(command)
    return command


async def list_sessions(
    store: Store,
    *,
    status: RunStatus | None,
    since: str | None,
    limit: int | None,
    children: bool,
) -> list[SessionInfo]:
    """The sessions that fit, the last changed first."""
    # A child that waits for a person, or failed, may be what is looked for.
    if children or status is not None:
        return await store.sessions(status=status, since=since, limit=limit)
    found = await store.sessions(status=status, since=since)
    return [info for info in found if _is_conversation(info)][:limit]


@click.command("sessions")
@listing_options
@json_option
def sessions_command(
    status: RunStatus | None,
    since: str | None,
    limit: int | None,
    children: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """List the sessions of the store, the last changed first."""

    async def look(store: Store) -> tuple[list[SessionInfo], dict[str, str]]:
        if store_url is not None:  # the usual place is made when it is first used; this one may be misspelt
            check_is_there(store)
        found = await list_sessions(store, status=status, since=since, limit=limit, children=children)
        return found, {one.session_id: await status_of(store, one.session_id, one.status) for one in found}

    found, statuses = with_store(store_url, look)
    if as_json:
        for info in found:
            write_json(info)
        return
    if not found:
        url = show_url(store_url_of(store_url))
        none = f"no sessions yet in {url}; begin with: turnlog chat --session s1"
        out.print(plain(f"no session in {url} fits" if status or since else none), markup=False)
        return
    rows = [_session_row(info, depth, statuses[info.session_id]) for info, depth in _as_tree(found)]
    head = ("session", "entries", "changed (UTC)", "status", "about")
    widths = [max(cell_len(row[column]) for row in (head, *rows)) for column in range(4)]
    painter = Painter(out)
    out.print(_session_line(head, widths, painter.width), style="bold", markup=False)
    painter.write(_session_line(row, widths, painter.width) for row in rows)


def check_is_there(store: Store) -> None:
    """Raises ``ConfigInvalid`` for a file or a folder that does not exist."""
    match store:
        case SqliteStore():
            kind, path = "file", store.path
        case JsonlStore():
            kind, path = "folder", store.folder
        case _:
            return
    if not os.path.exists(path):
        raise AgentError(
            "ConfigInvalid", f"there is no {kind} {path}, so it holds no sessions; check --store"
        )


def _is_conversation(info: SessionInfo) -> bool:
    """Not the session of an agent that was called as a tool, nor the log of shared notes."""
    child = "parent_session" in (info.metadata or {})
    return not child and not info.session_id.startswith(Memory.PREFIX)


def _as_tree(found: list[SessionInfo]) -> list[tuple[SessionInfo, int]]:
    """Each child below the session that called it, where that is in the list too, and how deep it is."""
    listed = {info.session_id for info in found}
    below: dict[str | None, list[SessionInfo]] = {}
    for info in found:
        parent = (info.metadata or {}).get("parent_session")
        below.setdefault(parent if parent in listed else None, []).append(info)
    rows: list[tuple[SessionInfo, int]] = []
    due = [(info, 0) for info in reversed(below.pop(None, []))]
    while due:
        info, depth = due.pop()
        rows.append((info, depth))
        due += [(child, depth + 1) for child in reversed(below.pop(info.session_id, []))]
    return rows


def _session_row(info: SessionInfo, depth: int, status: str) -> tuple[str, str, str, str, str]:
    changed = info.updated_at[:16].replace("T", " ")
    fork = f"(from {info.parent_session_id} at {info.forked_at}) " if info.parent_session_id else ""
    about = plain(" ".join((fork + (info.title or info.about or "")).split()))
    name = f"{'  ' * (depth - 1)}└ {plain(info.session_id)}" if depth else plain(info.session_id)
    return name, str(info.entries), changed, status, about


def _session_line(row: tuple[str, str, str, str, str], widths: list[int], width: int | None) -> str:
    name, entries, changed, status, about = row
    start = (
        f"{set_cell_size(name, widths[0])}  {entries:>{widths[1]}}  {changed:<{widths[2]}}  "
        f"{status:<{widths[3]}}  "
    )
    room = 80 if width is None else max(width - cell_len(start), 12)
    return start + (about if cell_len(about) <= room else set_cell_size(about, room - 1) + "…")


@click.command("replay")
@session_argument
@store_option
@agent_option
@json_option
def replay_command(session: str, store_url: str | None, agent_name: str | None, as_json: bool) -> None:
    """Run a session again without network or side effects, and compare every entry. Widgets and a context of
    your own are those of --agent."""
    report: ReplayReport = with_sessions(
        agent_name, store_url, lambda _, open: open(session).replay(), doing="comparing every entry"
    )
    if as_json:
        write_json(report)
    elif report.identical:
        rest = ", the last run is still open" if report.open_run else ""
        if report.unproven:
            rest += f"; {report.unproven} could not be compared: their content was purged"
        out.print(
            f"[green]identical[/]: {entries_of(report.entries)}, {count(report.runs, 'run')}, "
            f"{count(report.contexts, 'context')} compared{rest}"
        )
    else:
        err.print(f"[red]different[/] at entry {report.seq} ({report.kind}):")
        err.print(plain(report.difference or ""), markup=False)
    if not report.identical:
        sys.exit(FAILED)


@click.command("fork")
@session_argument
@click.option("--at", type=int, metavar="N", help="Number of the last shared entry; default the newest.")
@click.option("--to", "target", metavar="ID", help="Name of the new session.")
@store_option
@json_option
def fork_command(
    session: str, at: int | None, target: str | None, store_url: str | None, as_json: bool
) -> None:
    """Start a new session that shares the past of SESSION up to an entry; nothing is copied."""

    async def work(store: Store) -> str:
        return await fork_session(store, session, at=at, target=target)

    name = with_store(store_url, work)
    if as_json:
        write_json({"sessionId": name})
    else:
        out.print(safe(name))
        err.print(f"[dim]continue with: {go_on(name)}[/]")


_BAR = 32
_NAMES = {"segments": "digests of the past", "branch": "note of the fork", "live screen": "widgets"}
"""Kinds of content in plainer words."""


@click.command("context")
@session_argument
@click.option(
    "--call", "-c", type=int, default=-1, metavar="N", help="Which model call, from 1; default the last."
)
@click.option(
    "--diff",
    nargs=2,
    type=int,
    metavar="N M",
    help="Only what call M saw and call N did not, and the reverse.",
)
@store_option
@json_option
def context_command(
    session: str, call: int, diff: tuple[int, int] | None, store_url: str | None, as_json: bool
) -> None:
    """Show exactly what the model saw at a call, what filled its window, and when it is folded."""
    entries: list[Entry] = with_store(store_url, lambda store: store.load(session))
    if diff is not None:
        before, after = explain(entries, diff[0]), explain(entries, diff[1])
        _show_diff(before, after, as_json)
        return
    view = explain(entries, call)
    if as_json:
        write_json(view)
        return
    _show_view(view)


def _show_view(view: ContextView) -> None:
    proof = (
        "[green]as recorded[/]"
        if view.matches
        else "[yellow]redacted since[/]"
        if view.redacted
        else "[red]differs[/]"
    )
    target = f"{view.target.provider_id}:{view.target.model}"
    out.print(f"call {view.call} · {safe(target)} · context {view.context_hash[:12]} {proof}")
    window = f"window {view.window:,} tokens" if view.window else "window not known"
    fold_at = f"folds at {view.fold_at:,}" if view.fold_at else "never folds"
    out.print(f"{window} · {fold_at} · {count(view.folds, 'fold')} so far")
    total = sum(part.tokens for part in view.gauge)
    for part in view.gauge:
        name, bar = _NAMES.get(part.kind, part.kind), "█" * max(1, round(part.share * _BAR))
        out.print(f"  {name:<20} [cyan]{bar:<{_BAR}}[/] {part.tokens:>8} tokens  {part.share:6.1%}")
    out.print(f"  {'together':<20} {'':<{_BAR}} {total:>8} tokens, estimated\n")
    if view.system_prompt:
        out.print(f"[bold]system[/]\n{safe(view.system_prompt)}\n")
    names = {
        part.payload.tool_call_id: part.payload.tool_name
        for message in view.messages
        for part in message.tool_calls
    }
    for message in view.messages:
        _show_message(message, names)


def _show_message(message: Message, names: dict[str, str]) -> None:
    out.print(f"[bold]{message.role}[/]")
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            out.print(f"[cyan]→ {safe(part.payload.tool_name)}[/] {safe(part.payload.raw_args_text)}")
        elif isinstance(part, ToolResultPart):
            name = names.get(part.payload.tool_call_id, part.payload.tool_call_id)
            out.print(f"[cyan]{safe(name)}[/] {safe(result_text(part))}")
        elif part.kind == "text" or part.kind == "thinking":
            out.print(safe(part.payload.text), style="dim italic" if part.kind == "thinking" else "")
        else:
            out.print(f"[dim]({part.kind})[/]")
    out.print()


def _show_diff(before: ContextView, after: ContextView, as_json: bool) -> None:
    found: ContextDiff = diff_contexts(before.context(), after.context())
    if as_json:
        write_json(found)
        return
    grown = "[green]only grew[/]" if found.grown else "[yellow]was changed[/]"
    out.print(
        f"from call {before.call} to call {after.call} the context {grown}: "
        f"{count(found.common_messages, 'message')} ({found.common_bytes} bytes) in common"
    )
    for sign, colour, messages in (("-", "red", found.removed), ("+", "green", found.added)):
        for message in messages:
            out.print(f"[{colour}]{sign} {message.role}[/] {short(_words(message), 160)}")


def _words(message: Message) -> str:
    """The text of a message, calls and results included."""
    said = [message.text] if message.text else []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            said.append(f"→ {part.payload.tool_name} {part.payload.raw_args_text}")
        elif isinstance(part, ToolResultPart):
            said.append(result_text(part))
    return " ".join(said) or ", ".join(part.kind for part in message.parts)
