"""Stores by URL. Nothing is opened, and no driver loaded, before a store is used."""

from __future__ import annotations

import re
from importlib import import_module
from typing import cast

from ..contract import AgentError, Clock, Store, scrub
from ._names import path_of

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
    path = path_of(rest)
    if not path:
        raise AgentError("ConfigInvalid", f"store {url!r} names no path; write {_EXAMPLES}")
    return cast("Store", cls(path, clock=clock))


def show_url(url: str) -> str:
    """``url`` for people: without its password, however short that is."""
    url = re.sub(r"(//[^/@:]*):[^/@]*@", r"\1:[secret]@", scrub(url))
    return re.sub(r"(password=)[^&]*", r"\1[secret]", url)
