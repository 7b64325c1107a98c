"""Stores by URL. Nothing is opened, and no driver loaded, before a store is used."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import cast

from ..contract import AgentError, Clock, Store, scrub

_SCHEMES = {
    "memory": ("_memory", "MemoryStore"),
    "jsonl": ("jsonl", "JsonlStore"),
    "sqlite": ("sqlite", "SqliteStore"),
    "postgresql": ("postgres", "PostgresStore"),
    "postgres": ("postgres", "PostgresStore"),
}
_EXAMPLES = "memory:, jsonl:DIR, sqlite:FILE or postgresql://user@host/database"


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store that ``url`` names: ``memory:``, ``jsonl:DIR``, ``sqlite:FILE`` or ``postgresql://…``.

    Does no input or output; the store opens itself on first use. ``clock`` is what leases are measured by.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        raise AgentError("ConfigInvalid", f"store {show_url(url)!r} is not known; write {_EXAMPLES}")
    module, name = _SCHEMES[scheme]
    cls = getattr(import_module(f"{__package__}.{module}"), name)
    if scheme == "memory":
        return cast("Store", cls(clock=clock))
    if scheme.startswith("postgres"):
        return cast("Store", cls(url, clock=clock))
    path = _path_of(rest)
    if not path:
        raise AgentError("ConfigInvalid", f"store {url!r} names no path; write {_EXAMPLES}")
    return cast("Store", cls(path, clock=clock))


def show_url(url: str) -> str:
    """``url`` for people: without its password, however short that is."""
    url = re.sub(r"(//[^/@:]*):[^/@]*@", r"\1:[secret]@", scrub(url))
    return re.sub(r"(password=)[^&]*", r"\1[secret]", url)


def _path_of(rest: str) -> str:
    """``FILE``, ``//relative/FILE`` and ``///absolute/FILE`` all work; ``~`` is the home directory."""
    return os.path.expanduser(rest.removeprefix("//"))


def default_store_url() -> str:
    """``$TURNLOG_STORE``, else an SQLite file in the user's data directory."""
    if url := os.environ.get("TURNLOG_STORE"):
        return url
    return f"sqlite:{_data_folder() / 'turnlog' / 'sessions.db'}"


def _data_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
