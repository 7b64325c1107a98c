"""Append, read, never change: sessions and the stores that keep them.

Everything is loaded when first used; a driver, when a store that needs it first reads or writes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._blobs import attach_images
    from ._export import export_jsonl, import_jsonl
    from ._follow import follow
    from ._fork import fork
    from ._html import render_html
    from ._jsonl import JsonlStore
    from ._ledger import check_input
    from ._markdown import render_markdown
    from ._memory import MemoryStore
    from ._postgres import PostgresStore
    from ._purge import purge, purge_scope
    from ._session import Session
    from ._sqlite import SqliteStore
    from ._urls import default_store_url, open_store, show_url
    from ._verify import Problem, verify
    from ._views import AgentState, messages_of, redaction_of, visible_entries

__all__ = [
    "AgentState",
    "JsonlStore",
    "MemoryStore",
    "PostgresStore",
    "Problem",
    "Session",
    "SqliteStore",
    "attach_images",
    "check_input",
    "default_store_url",
    "export_jsonl",
    "follow",
    "fork",
    "import_jsonl",
    "messages_of",
    "open_store",
    "purge",
    "purge_scope",
    "redaction_of",
    "render_html",
    "render_markdown",
    "show_url",
    "verify",
    "visible_entries",
]

_HOMES = {
    "AgentState": "_views",
    "JsonlStore": "_jsonl",
    "MemoryStore": "_memory",
    "PostgresStore": "_postgres",
    "Problem": "_verify",
    "Session": "_session",
    "SqliteStore": "_sqlite",
    "attach_images": "_blobs",
    "check_input": "_ledger",
    "default_store_url": "_urls",
    "export_jsonl": "_export",
    "follow": "_follow",
    "fork": "_fork",
    "import_jsonl": "_export",
    "messages_of": "_views",
    "open_store": "_urls",
    "purge": "_purge",
    "purge_scope": "_purge",
    "redaction_of": "_views",
    "render_html": "_html",
    "render_markdown": "_markdown",
    "show_url": "_urls",
    "verify": "_verify",
    "visible_entries": "_views",
}
"""Name → the module that has it."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnlog.history' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
