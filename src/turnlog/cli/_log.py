"""``sessions``, ``show``, ``replay``, ``fork``: reading the log."""

from __future__ import annotations

import sys

import click
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from turnlog.contract import AgentError, Entry, ModelInputEntry, SessionInfo, Store
from turnlog.history import show_url, visible_entries
from turnlog.loop import ReplayReport, RunState, fork_session, replay

from ._app import (
    FAILED,
    count,
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
from ._render import entry_line
from ._text import plain, safe

_DESCRIBED = 50  # sessions whose first words are looked up, so that a store of thousands is listed at once
_LONGEST = 2000  # entries of a session that is read for its first words


@click.command("sessions", short_help="List the sessions of the store.")
@store_option
@json_option
def sessions_command(store_url: str | None, as_json: bool) -> None:
    """List the sessions of the store, the last changed first."""

    async def work(store: Store) -> list[tuple[SessionInfo, str]]:
        found = await store.sessions()
        described = 0 if as_json else _DESCRIBED
        words = [info.title or await _first_words(store, info) for info in found[:described]]
        return [*zip(found, words, strict=False), *((info, info.title or "") for info in found[described:])]

    found = with_store(store_url, work)
    if as_json:
        for info, _ in found:
            write_json(info)
        return
    if not found:
        url = show_url(store_url_of(store_url))
        out.print(plain(f"no sessions yet in {url}; begin with: turnlog chat --session s1"), markup=False)
        return
    rows = [_session_row(info, title) for info, title in found]
    head = ("session", "entries", "changed (UTC)", "about")
    widths = [max(cell_len(row[column]) for row in (head, *rows)) for column in range(3)]
    out.print(_session_line(head, widths), style="bold")
    for row in rows:
        out.print(_session_line(row, widths))


async def _first_words(store: Store, info: SessionInfo) -> str:
    """What the user said first, as far as it may be seen: the whole log has to be read to know that."""
    if info.entries > _LONGEST:
        return ""
    try:
        entries = visible_entries(await store.load(info.session_id))
    except AgentError as error:  # one damaged session must not hide the others
        return f"({error.code})"
    said = (entry.payload.message.text for entry in entries if isinstance(entry, ModelInputEntry))
    return next(said, "")[:500]


def _session_row(info: SessionInfo, title: str) -> tuple[str, str, str, str]:
    origin = f"(from {info.parent_session_id} at {info.forked_at}) " if info.parent_session_id else ""
    about = " ".join(plain(origin + title).split())
    return plain(info.session_id), str(info.entries), info.updated_at[:16].replace("T", " "), about


def _session_line(row: tuple[str, str, str, str], widths: list[int]) -> Text:
    """Session, size and time are never cut; what it is about gets the rest of the line."""
    name, entries, changed, about = row
    start = f"{set_cell_size(name, widths[0])}  {entries:>{widths[1]}}  {changed:<{widths[2]}}  "
    room = max(out.width - cell_len(start), 12) if out.is_terminal else 80
    line = Text(about)
    line.truncate(room, overflow="ellipsis")
    return Text(start) + line


@click.command("show", short_help="Show a session's log, an entry a line.")
@session_argument
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
    width = out.width if out.is_terminal else None
    for entry in shown:
        out.print(entry_line(entry, width))
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
            f"[green]identical[/]: {_entries(report.entries)}, {count(report.runs, 'run')}, "
            f"{count(report.contexts, 'context')} compared{rest}"
        )
    else:
        err.print(f"[red]different[/] at entry {report.seq} ({report.kind}):")
        err.print(plain(report.difference or ""), markup=False)
    if not report.identical:
        sys.exit(FAILED)


@click.command("fork", short_help="Make a new session that shares the past of another.")
@session_argument
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
        err.print(f"[dim]go on with: {go_on(name)}[/]")
