"""``export``, ``import``, ``verify``: a session elsewhere, and checked."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click

from turnlog.contract import (
    AgentError,
    Entry,
    Store,
)
from turnlog.history import export_jsonl, import_jsonl, named_blobs, verify, visible_entries
from turnlog.system import SystemIds
from turnlog.transcript import (
    MessageFormat,
    export_messages,
    import_messages,
    render_html,
    render_markdown,
)

from ._app import FAILED, err, json_option, out, session_argument, store_option, with_store, write_json
from ._text import plain, plain_json, safe

_MESSAGES = ("openai", "anthropic", "langchain")


@click.command("export", short_help="Write a session to a file.")
@session_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "markdown", "html", *_MESSAGES]),
    default="jsonl",
    show_default=True,
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Default: standard output.")
@store_option
def export_command(session: str, form: str, output: str | None, store_url: str | None) -> None:
    """Write a session as JSON lines, as a page to read, or as the messages of another system."""

    async def work(store: Store) -> bytes:
        if form == "jsonl":
            return await export_jsonl(store, session)
        entries = visible_entries(await store.load(session))
        if form == "markdown":
            return render_markdown(entries).encode()
        blobs = await _read_images(store, entries)
        if form == "html":
            return render_html(entries, blobs=blobs).encode()
        made = export_messages(entries, format=cast("MessageFormat", form), blobs=blobs)
        return json.dumps(made, ensure_ascii=False, indent=2).encode() + b"\n"

    data = with_store(store_url, work)
    if output is None:
        _write_out(data)
        return
    try:
        _write_private(Path(output), data)
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot write {output}: {error.strerror}") from error
    err.print(f"wrote {safe(output)} ({len(data)} bytes)")


def _write_out(data: bytes) -> None:
    """To a pipe as it is; to a terminal so that nothing in it moves the cursor: JSON escapes what others
    show as pictures, so that a copy from the screen still means the same."""
    if sys.stdout.isatty():
        data = plain_json(data.decode()).encode()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _write_private(path: Path, data: bytes) -> None:
    """For the owner's eyes alone, as the store is."""
    fresh = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    with open(fresh, "wb") as file:
        if os.name != "nt" and path.is_file():
            os.fchmod(fresh, 0o600)
        file.write(data)


async def _read_images(store: Store, entries: Sequence[Entry]) -> dict[str, bytes]:
    """The bytes of every image shown; one that is gone is left to its place."""
    found: dict[str, bytes] = {}
    for name in {name for entry in entries for name in named_blobs(entry)}:
        try:
            found[name] = await store.get_blob(name)
        except AgentError as error:
            err.print(f"[yellow]{error.code}[/]: {safe(error.message)}")
    return found


@click.command("import", short_help="Read a session from a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", *_MESSAGES]),
    default="jsonl",
    show_default=True,
    help="JSON lines that export wrote, or a JSON file with the messages of another system.",
)
@click.option("--session", metavar="ID", help="Name of the new session, for messages of another system.")
@click.option("--title", help="Title of the new session, for messages of another system.")
@click.option("--trust", is_flag=True, help="Keep its open run and its approvals: only for your own exports.")
@store_option
def import_command(
    file: str, form: str, session: str | None, title: str | None, trust: bool, store_url: str | None
) -> None:
    """Read a session from a file: what export wrote, or a conversation of another system."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot read {file}: {error.strerror}") from error
    if form == "jsonl":
        if session or title:
            raise click.UsageError("an export brings its own name and title; leave out --session and --title")
        name = with_store(store_url, lambda store: import_jsonl(store, data, trust=trust))
    else:
        if trust:
            raise click.UsageError("--trust is for exports; messages bring no run with them")
        name = with_store(store_url, lambda store: _import_messages(store, form, data, session, title))
    out.print(plain(name), markup=False)


async def _import_messages(
    store: Store, form: str, data: bytes, session: str | None, title: str | None
) -> str:
    try:
        messages = json.loads(data)
    except ValueError as error:
        raise AgentError("InvalidMessage", f"the file is not JSON: {error}") from error
    return await import_messages(
        store,
        session or SystemIds().session(),
        messages,
        format=cast("MessageFormat", form),
        title=title,
    )


@click.command("verify", short_help="Check that a log is whole and unchanged.")
@session_argument
@store_option
@json_option
def verify_command(session: str, store_url: str | None, as_json: bool) -> None:
    """Check a session: its hash chain, its order, the pairing of calls and results."""
    problems = with_store(store_url, lambda store: verify(store, session))
    if as_json:
        for problem in problems:
            write_json(problem)
    elif not problems:
        out.print("[green]sound[/]: the chain holds, every call has its place")
    for problem in problems if not as_json else ():
        place = f"entry {problem.seq}" if problem.seq is not None else "session"
        err.print(f"[red]{place}[/]: {safe(problem.message)}")
    if problems:
        sys.exit(FAILED)
