"""``export``, ``import``, ``verify``: taking a session elsewhere and checking it."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

import click

from turnlog.contract import AgentError, Store, encode
from turnlog.history import export_jsonl, import_jsonl, render_html, render_markdown, verify, visible_entries
from turnlog.loop import purge_entries

from ._app import err, json_option, out, store_option, with_store


@click.command("export")
@click.argument("session")
@click.option("--format", "form", type=click.Choice(["jsonl", "markdown", "html"]), default="jsonl")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Default: standard output.")
@store_option
def export_command(session: str, form: str, output: str | None, store_url: str | None) -> None:
    """Write a session as JSON lines, as Markdown, or as one HTML file."""

    async def work(store: Store) -> bytes:
        if form == "jsonl":
            return await export_jsonl(store, session)
        entries = visible_entries(await store.load(session))
        return (render_html if form == "html" else render_markdown)(entries).encode()

    data = with_store(store_url, work)
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot write {output}: {error.strerror}") from error
    err.print(f"wrote {output} ({len(data)} bytes)")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@store_option
def import_command(file: str, store_url: str | None) -> None:
    """Read a session from JSON lines that export wrote."""
    data = Path(file).read_bytes()
    out.print(with_store(store_url, lambda store: import_jsonl(store, data)))


@click.command("verify")
@click.argument("session")
@store_option
@json_option
def verify_command(session: str, store_url: str | None, as_json: bool) -> None:
    """Check a session: its hash chain, its order, the pairing of calls and results."""
    problems = with_store(store_url, lambda store: verify(store, session))
    if as_json:
        for problem in problems:
            click.echo(encode(problem).decode())
    elif not problems:
        out.print("[green]sound[/]: the chain holds, every call has its place")
    for problem in problems if not as_json else ():
        err.print(f"[red]{problem.seq}[/] {problem.message}")
    if problems:
        sys.exit(1)


@click.command("purge")
@click.argument("session")
@click.argument("entries", nargs=-1, required=True, metavar="ENTRY…")
@click.option("--reason", metavar="TEXT")
@click.option("--by", metavar="NAME", default=getpass.getuser, show_default="your login")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
def purge_command(
    session: str, entries: tuple[str, ...], reason: str | None, by: str, yes: bool, store_url: str | None
) -> None:
    """Erase what entries hold (by id or seq) from the store's own files. This cannot be undone."""
    if not yes:
        click.confirm(f"Erase {len(entries)} of the entries of {session} for good?", abort=True)

    async def work(store: Store) -> str:
        known = {str(entry.seq): entry.id for entry in await store.load(session)}
        logged = await purge_entries(
            store, session, [known.get(name, name) for name in entries], by=by, reason=reason
        )
        return logged.id

    out.print(f"erased; logged as entry {with_store(store_url, work)}")
