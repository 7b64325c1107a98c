"""Commands to type next, as they would work: with the store, the model and the tools that were given."""

from __future__ import annotations

import shlex
from typing import Any

import click

from turnlog.history import show_url

from ._text import safe

_REPEATED = {
    "model": "-m",
    "base_url": "--base-url",
    "config": "--config",
    "tool_modules": "-t",
    "store_url": "--store",
}


def go_on(session: str) -> str:
    """The command that goes on with ``session``, as markup."""
    words = ["turnlog", "chat", "--session", session, *_given()]
    return safe(shlex.join(words)) + ("" if _has_agent() else ", and the model and tools as before")


def approve(session: str, call: str | None = None) -> str:
    """The command that decides on a call, as markup."""
    words = ["turnlog", "approve", session, *([call] if call else [])]
    return safe(shlex.join(words)) + ("" if call else " CALL") + safe(_store())


def _has_agent() -> bool:
    return "model" in click.get_current_context().params


def _given() -> list[str]:
    params: dict[str, Any] = click.get_current_context().params
    words: list[str] = []
    for name, option in _REPEATED.items():
        value: str | tuple[str, ...] | None = params.get(name)
        for one in value if isinstance(value, tuple) else (value,):
            if one:
                words += [option, show_url(one) if name == "store_url" else one]
    return words


def _store() -> str:
    url = click.get_current_context().params.get("store_url")
    return f" {shlex.join(['--store', show_url(url)])}" if url else ""
