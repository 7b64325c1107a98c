"""Where sessions are kept and what they are called, with the standard library alone: a shell that completes a
word asks at every press of a key, and waits."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

_NAMES = (
    "SELECT id, coalesce(title, json_extract(CAST(digest AS TEXT), '$.about'), '') FROM sessions "
    "WHERE tail_seq > 0 AND substr(id, 1, length(?1)) = ?1 ORDER BY updated_at DESC LIMIT ?2"
)


def default_store_url() -> str:
    """``$TURNLOG_STORE``, else an SQLite file in the user's data directory."""
    if url := os.environ.get("TURNLOG_STORE"):
        return url
    return f"sqlite:{os.path.join(_data_folder(), 'turnlog', 'sessions.db')}"


def path_of(rest: str) -> str:
    """``FILE``, ``//relative/FILE`` and ``///absolute/FILE`` all work; ``~`` is the home directory."""
    return os.path.expanduser(rest.removeprefix("//"))


def session_names(url: str, prefix: str = "", *, limit: int = 1_000) -> Iterator[tuple[str, str]]:
    """The ids of sessions that begin with ``prefix``, the last changed first, each with its title or its
    first words. Reads alone: it makes no file, and migrates none. Raises whatever its driver does."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        yield from _read_sqlite(path_of(rest), prefix, limit)
    elif scheme in ("jsonl", "postgres", "postgresql"):
        yield from _ask_store(url, prefix, limit)


def _read_sqlite(path: str, prefix: str, limit: int) -> Iterator[tuple[str, str]]:
    import sqlite3  # a connection that only reads writes no part of the log, whatever the library's version
    from urllib.parse import quote

    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=0.2)
    try:
        yield from connection.execute(_NAMES, (prefix, limit))
    finally:
        connection.close()


def _ask_store(url: str, prefix: str, limit: int) -> Iterator[tuple[str, str]]:
    import asyncio

    from ._urls import open_store

    async def ask() -> list[tuple[str, str]]:
        store = open_store(url)
        try:
            found = await asyncio.wait_for(store.sessions(), 2)
        finally:
            await store.close()
        return [(info.session_id, info.title or info.about or "") for info in found]

    if url.startswith("jsonl:") and not os.path.isdir(path_of(url.removeprefix("jsonl:"))):
        return
    yield from [pair for pair in asyncio.run(ask()) if pair[0].startswith(prefix)][:limit]


def _data_folder() -> str:
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Application Support")
    if os.name == "nt":
        return os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    return os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
