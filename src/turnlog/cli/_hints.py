"""Commands to type next, as they would work: with the store, the model and the tools that were given."""

from __future__ import annotations

import shlex
from typing import Any

import click

from turnlog.history import show_url

from ._text import safe

STORE = "turnlog.store"
"""Where a command keeps the URL of the store that an agent brought along."""

_REPEATED = {
    "agent_name": "--agent",
    "model": "-m",
    "base_url": "--base-url",
    "config": "--config",
    "tool_modules": "-t",
    "store_url": "--store",
}


def go_on(session: str) -> str:
    """The command that talks on in ``session``, as markup."""
    return _with_agent(["turnlog", "chat", "--session", session])


def resume(session: str) -> str:
    """The command that continues the open run of ``session``, as markup."""
    return _with_agent(["turnlog", "resume", session])


def approve(session: str, call: str | None = None) -> str:
    """The command that decides on a call, as markup."""
    words = ["turnlog", "approve", session, *([call] if call else [])]
    return safe(shlex.join(words)) + ("" if call else " CALL") + safe(_store())


def _with_agent(words: list[str]) -> str:
    params: dict[str, Any] = click.get_current_context().params
    for name, option in _REPEATED.items():
        value: str | tuple[str, ...] | None = params.get(name)
        for one in value if isinstance(value, tuple) else (value,):
            if one:
                words += [option, show_url(one) if name == "store_url" else one]
    return safe(shlex.join(words)) + ("" if "model" in params else ", and the model and tools as before")


def _store() -> str:
    context = click.get_current_context()
    url = context.params.get("store_url") or context.meta.get(STORE)
    return f" {shlex.join(['--store', show_url(url)])}" if url else ""
