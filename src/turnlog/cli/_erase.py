"""``redact``, ``purge``, ``delete``: what entries hold is hidden or erased, or whole sessions are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from turnlog.contract import Entry, PurgeEntry, RedactionEntry, Store
from turnlog.loop import purge_entries, redact_entries

from ._app import (
    FAILED,
    entries_of,
    err,
    json_option,
    login,
    out,
    session_argument,
    store_option,
    wait_option,
    with_store,
    write_json,
)
from ._text import plain


def _options(command: Any) -> Any:
    for option in (
        json_option,
        store_option,
        wait_option,
        click.option(
            "--by", metavar="NAME", default=login, show_default="your login", help="Who, for the log."
        ),
        click.option("--reason", metavar="TEXT", help="Why, for the log."),
        click.argument("entries", nargs=-1, required=True, metavar="ENTRY…"),
        session_argument,
    ):
        command = option(command)
    return command


@click.command("redact", short_help="Hide what entries hold from every view.")
@_options
def redact_command(
    session: str,
    entries: tuple[str, ...],
    reason: str | None,
    by: str,
    wait: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Hide what entries hold (by number or id), and the copies of it, from every view, export and future
    context. The bytes stay in the store; purge erases them."""

    async def work(store: Store) -> Entry:
        ids = await _ids(store, session, entries)
        return await redact_entries(
            store, session, ids, by=by, reason=reason, on_busy="wait" if wait else "refuse"
        )

    _say("hidden", with_store(store_url, work), as_json)


@click.command("purge", short_help="Erase what entries hold, for good.")
@_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge_command(
    session: str,
    entries: tuple[str, ...],
    reason: str | None,
    by: str,
    wait: bool,
    store_url: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """Erase what entries hold (by number or id), and the copies of it, from the store's own files.

    This cannot be undone. What a model said of it elsewhere is content of its own: name those entries too.
    """
    if not yes and not _confirmed(f"Erase {entries_of(len(entries))} of {plain(session)} for good?"):
        err.print("nothing was erased")
        sys.exit(FAILED)

    async def work(store: Store) -> Entry:
        ids = await _ids(store, session, entries)
        return await purge_entries(
            store, session, ids, by=by, reason=reason, on_busy="wait" if wait else "refuse"
        )

    _say("erased", with_store(store_url, work), as_json)


@click.command("delete", short_help="Erase a whole session, for good.")
@session_argument
@click.option("--forks", is_flag=True, help="Erase the sessions that were forked from it too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
def delete_command(session: str, forks: bool, yes: bool, store_url: str | None) -> None:
    """Erase a session from the store's own files. This cannot be undone.

    A session whose past other sessions share is refused, unless they are erased too (--forks).
    """
    named = with_store(store_url, lambda store: _family(store, session, forks))
    what = f"{plain(session)} ({entries_of(named[0])})"
    if named[1]:
        what += f" and {len(named[1])} forked from it: {plain(', '.join(named[1][:10]))}"
    if not yes and not _confirmed(f"Erase {what} for good?"):
        err.print("nothing was erased")
        sys.exit(FAILED)

    async def work(store: Store) -> None:
        await store.delete_session(session, forks="delete" if forks else "refuse")

    with_store(store_url, work)
    out.print(f"erased {what}", markup=False)


async def _family(store: Store, session: str, forks: bool) -> tuple[int, list[str]]:
    """How many entries the session has, and what would be erased with it."""
    tail = await store.tail(session)
    found: list[str] = []
    if forks:
        todo = [session]
        for parent in todo:
            below = [info.session_id for info in await store.sessions(parent=parent)]
            todo += below
            found += below
    return (tail.seq if tail else 0), found


def _confirmed(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C, or nobody there to answer
        err.print()
        return False


async def _ids(store: Store, session: str, names: Sequence[str]) -> list[str]:
    known = {str(entry.seq): entry.id for entry in await store.load(session)}
    return [known.get(name, name) for name in names]


def _say(done: str, logged: Entry, as_json: bool) -> None:
    if as_json:
        write_json(logged)
        return
    assert isinstance(logged, PurgeEntry | RedactionEntry)
    whole, parts = len(logged.payload.entry_ids), len(logged.payload.trimmed or {})
    out.print(f"{done}; logged as entry {logged.seq}")
    rest = f", and copies in {entries_of(parts)} more" if parts else ""
    err.print(f"[dim]{done}: {entries_of(whole)}{rest}[/]")
