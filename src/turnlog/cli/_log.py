"""``sessions``, ``replay``, ``fork``: reading the log."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta

import click
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from turnlog.contract import STATUSES, RunStatus, SessionInfo, Store
from turnlog.history import show_url
from turnlog.loop import ReplayReport, fork_session, replay

from ._app import (
    FAILED,
    count,
    entries_of,
    err,
    json_option,
    out,
    session_argument,
    store_option,
    store_url_of,
    with_store,
    write_json,
)
from ._hints import go_on
from ._text import plain, safe

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
        words = "write an age, as 30m, 12h or 7d, or a time, as 2026-01-31T12:00:00Z"
        raise click.BadParameter(words, ctx, given) from error
    return value


@click.command("sessions", short_help="List the sessions of the store.")
@click.option("--waiting", "status", flag_value="awaiting_human", help="Those that wait for a human.")
@click.option("--failed", "status", flag_value="failed", help="Those whose last run failed.")
@click.option("--status", type=click.Choice(STATUSES), help="Those in this state.")
@click.option("--since", callback=_moment, metavar="AGE", help="Changed since then: 30m, 12h, 7d, or a time.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N.")
@store_option
@json_option
def sessions_command(
    status: RunStatus | None, since: str | None, limit: int | None, store_url: str | None, as_json: bool
) -> None:
    """List the sessions of the store, the last changed first."""
    found = with_store(store_url, lambda store: store.sessions(status=status, since=since, limit=limit))
    if as_json:
        for info in found:
            write_json(info)
        return
    if not found:
        url = show_url(store_url_of(store_url))
        words = "no session fits" if status or since else "no sessions yet"
        out.print(plain(f"{words} in {url}; begin with: turnlog chat --session s1"), markup=False)
        return
    rows = [_session_row(info) for info in found]
    head = ("session", "entries", "changed (UTC)", "status", "about")
    widths = [max(cell_len(row[column]) for row in (head, *rows)) for column in range(4)]
    out.print(_session_line(head, widths), style="bold")
    for row in rows:
        out.print(_session_line(row, widths))


def _session_row(info: SessionInfo) -> tuple[str, str, str, str, str]:
    changed = info.updated_at[:16].replace("T", " ")
    fork = f"(from {info.parent_session_id} at {info.forked_at}) " if info.parent_session_id else ""
    about = plain(" ".join((fork + (info.title or info.about or "")).split()))
    return plain(info.session_id), str(info.entries), changed, info.status, about


def _session_line(row: tuple[str, str, str, str, str], widths: list[int]) -> Text:
    name, entries, changed, status, about = row
    start = (
        f"{set_cell_size(name, widths[0])}  {entries:>{widths[1]}}  {changed:<{widths[2]}}  "
        f"{status:<{widths[3]}}  "
    )
    room = max(out.width - cell_len(start), 12) if out.is_terminal else 80
    line = Text(about)
    line.truncate(room, overflow="ellipsis")
    return Text(start) + line


@click.command("replay", short_help="Run a session again and compare every entry.")
@session_argument
@store_option
@json_option
def replay_command(session: str, store_url: str | None, as_json: bool) -> None:
    """Run a session again without network or side effects, and compare every entry."""
    report: ReplayReport = with_store(
        store_url, lambda store: replay(store, session), doing="comparing every entry"
    )
    if as_json:
        write_json(report)
    elif report.identical:
        rest = ", the last run is still open" if report.open_run else ""
        if report.unproven:
            rest += f"; {report.unproven} not, for what they were made of was purged"
        out.print(
            f"[green]identical[/]: {entries_of(report.entries)}, {count(report.runs, 'run')}, "
            f"{count(report.contexts, 'context')} compared{rest}"
        )
    else:
        err.print(f"[red]different[/] at entry {report.seq} ({report.kind}):")
        err.print(plain(report.difference or ""), markup=False)
    if not report.identical:
        sys.exit(FAILED)


@click.command("fork", short_help="Start a new session from the past of another.")
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
