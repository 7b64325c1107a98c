"""``sessions``, ``show``, ``replay``, ``fork``: reading the log."""

from __future__ import annotations

import sys

import click
from rich.table import Table

from turnlog.contract import Entry, SessionInfo, Store
from turnlog.history import visible_entries
from turnlog.loop import ReplayReport, RunState, fork_session, replay

from ._app import FAILED, count, err, json_option, out, store_option, with_store, write_json
from ._render import entry_line
from ._text import plain, safe


@click.command("sessions", short_help="List the sessions of the store.")
@store_option
@json_option
def sessions_command(store_url: str | None, as_json: bool) -> None:
    """List the sessions of the store, the last changed first."""
    found: list[SessionInfo] = with_store(store_url, lambda store: store.sessions())
    if as_json:
        for info in found:
            write_json(info)
        return
    if not found:
        out.print("no sessions yet: turnlog chat -m local --session s1")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("session", "entries", "changed", "title", "from"):
        table.add_column(column, no_wrap=True, overflow="ignore")
    for info in found:
        origin = f"{info.parent_session_id}@{info.forked_at}" if info.parent_session_id else ""
        changed = info.updated_at[:19].replace("T", " ")
        table.add_row(safe(info.session_id), str(info.entries), changed, safe(info.title or ""), safe(origin))
    out.print(table, crop=False)


@click.command("show", short_help="Show a session's log, an entry a line.")
@click.argument("session")
@click.option("--after", type=int, default=0, help="Only entries after this seq.")
@store_option
@json_option
def show_command(session: str, after: int, store_url: str | None, as_json: bool) -> None:
    """Show a session's log, an entry a line, and where its run stands."""
    entries: list[Entry] = with_store(store_url, lambda store: store.load(session))
    shown = [entry for entry in visible_entries(entries) if entry.seq > after]
    if as_json:
        for entry in shown:
            write_json(entry)
        return
    for entry in shown:
        out.print(entry_line(entry))
    state = RunState()
    for entry in entries:
        state.step(entry)
    out.print(f"[dim]{_entries(len(entries))} · {state.status}{_usage(state)}[/]")
    for call in state.open_calls:
        what = (
            "waits for approval"
            if call.awaits_human
            else "started, no result"
            if call.started
            else "not started"
        )
        out.print(f"[yellow]open call[/] {call.call.tool_call_id} {safe(call.call.tool_name)}: {what}")


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def _usage(state: RunState) -> str:
    usage = state.usage
    if usage is None:
        return ""
    cached = f", {usage.cached_input_tokens} cached" if usage.cached_input_tokens else ""
    cost = f" · ${usage.cost:.4f}" if usage.cost is not None else ""
    return f" · last run {usage.input_tokens} in{cached}, {usage.output_tokens} out{cost}"


@click.command("replay", short_help="Run a session again and compare every entry.")
@click.argument("session")
@store_option
@json_option
def replay_command(session: str, store_url: str | None, as_json: bool) -> None:
    """Run a session again without network or side effects, and compare every entry."""
    report: ReplayReport = with_store(store_url, lambda store: replay(store, session))
    if as_json:
        write_json(report)
    elif report.identical:
        rest = ", the last run is still open" if report.open_run else ""
        out.print(
            f"[green]identical[/]: {_entries(report.entries)}, {count(report.runs, 'run')}, "
            f"{count(report.contexts, 'context')} compared{rest}"
        )
    else:
        err.print(f"[red]different[/] at entry {report.seq} ({report.kind}):")
        err.print(plain(report.difference or ""), markup=False)
    if not report.identical:
        sys.exit(FAILED)


@click.command("fork", short_help="Make a new session that shares the past of another.")
@click.argument("session")
@click.option("--at", type=int, help="Last shared entry; default the newest.")
@click.option("--to", "target", metavar="ID", help="Name of the new session.")
@store_option
@json_option
def fork_command(
    session: str, at: int | None, target: str | None, store_url: str | None, as_json: bool
) -> None:
    """Make a new session that shares the past of SESSION up to an entry."""

    async def work(store: Store) -> str:
        return await fork_session(store, session, at=at, target=target)

    name = with_store(store_url, work)
    if as_json:
        write_json({"sessionId": name})
    else:
        out.print(safe(name))
        err.print(f"[dim]go on with: turnlog chat --session {safe(name)}[/]")
