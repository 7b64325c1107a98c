"""``memory``: the notes that sessions share, read and edited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from turnlog.contract import Store
from turnlog.loop import Memory, Notebook

from ._app import json_option, out, read_text, store_option, with_store, write_json
from ._text import plain


@click.group("memory")
def memory_command() -> None:
    """Read and edit the notes that sessions share.

    A notebook with a scope keeps its notes in a log of its own, named memory:SCOPE. Sessions read a change
    when their next run begins, and before each step of a run.
    """


@memory_command.command("list", short_help="List the scopes.")
@store_option
@json_option
def list_command(store_url: str | None, as_json: bool) -> None:
    """List the scopes that have notes."""

    async def find(store: Store) -> list[Memory]:
        start, found = Memory.PREFIX, [info.session_id for info in await store.sessions()]
        return [Memory(store, name.removeprefix(start)) for name in found if name.startswith(start)]

    for memory in with_store(store_url, find):
        if as_json:
            write_json({"scope": memory.scope, "session": memory.session_id})
        else:
            out.print(plain(memory.scope), markup=False)


@memory_command.command("show", short_help="Show the notes of a scope.")
@click.argument("scope")
@store_option
@json_option
def show_command(scope: str, store_url: str | None, as_json: bool) -> None:
    """Show the notes of a scope."""
    _print(scope, store_url, as_json, lambda memory: memory.read())


@memory_command.command("write", short_help="Keep a note.")
@click.argument("scope")
@click.argument("name")
@click.argument("text")
@click.option("--seen", type=click.IntRange(min=0), metavar="N", help="Refuse if it changed since version N.")
@store_option
@json_option
def write_command(
    scope: str, name: str, text: str, seen: int | None, store_url: str | None, as_json: bool
) -> None:
    """Keep a note; the same name replaces it. TEXT - is standard input."""
    words = read_text(text)
    _print(scope, store_url, as_json, lambda memory: memory.write(name, words, seen=seen))


@memory_command.command("erase", short_help="Remove a note.")
@click.argument("scope")
@click.argument("name")
@store_option
@json_option
def erase_command(scope: str, name: str, store_url: str | None, as_json: bool) -> None:
    """Remove a note. It stays in the log; turnlog purge and turnlog delete erase it for good."""
    _print(scope, store_url, as_json, lambda memory: memory.erase(name))


@memory_command.command("undo", short_help="Take back the last change.")
@click.argument("scope")
@store_option
@json_option
def undo_command(scope: str, store_url: str | None, as_json: bool) -> None:
    """Undo the last change, by the model or a human."""
    _print(scope, store_url, as_json, lambda memory: memory.undo())


def _print(
    scope: str, store_url: str | None, as_json: bool, work: Callable[[Memory], Awaitable[Notebook]]
) -> None:
    notes = with_store(store_url, lambda store: work(Memory(store, scope)))
    if as_json:
        write_json({"scope": scope, "version": notes.version, "notes": dict(notes.notes)})
        return
    for name, text in notes.notes:
        out.print(plain(f"{name}: {text}"), markup=False)
    if not notes.notes:
        out.print(plain(f"no notes in {scope}"), markup=False)
