"""The command group: options every command shares, and errors as one clear sentence."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from turnlog import __version__
from turnlog.contract import AgentError, Store
from turnlog.history import default_store_url, open_store

T = TypeVar("T")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Commands(click.Group):
    """Loads the module of a command when the command is used."""

    modules = {
        "chat": "_chat",
        "run": "_chat",
        "sessions": "_log",
        "show": "_log",
        "context": "_context",
        "compact": "_context",
        "replay": "_log",
        "fork": "_log",
        "approve": "_approve",
        "export": "_export",
        "import": "_export",
        "verify": "_export",
        "purge": "_export",
        "doctor": "_doctor",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = self.modules.get(cmd_name)
        if module is None:
            return None
        from importlib import import_module

        return getattr(import_module(f"{__package__}.{module}"), f"{cmd_name}_command")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="turnlog")
def app() -> None:
    """Agents whose every turn is a line in an append-only log."""


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        help="sqlite:FILE, jsonl:DIR or postgresql://…; default $TURNLOG_STORE, else your data directory.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="JSON lines for scripts.")(command)


def store_url_of(url: str | None) -> str:
    return url or default_store_url()


def with_store(url: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, do ``work`` with it, close it."""

    async def go() -> T:
        store = open_store(store_url_of(url))
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(_plain(go()))


async def _plain(work: Coroutine[Any, Any, T]) -> T:
    return await work


def say_error(error: AgentError) -> None:
    err.print(f"[bold red]{error.code}[/]: ", end="")
    err.print(error.message, markup=False)


def load_dotenv() -> None:
    """Take keys from ``.env`` in the working directory; what is set already wins."""
    path = Path(".env")
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, found, value = line.strip().removeprefix("export ").partition("=")
        if found and name.isidentifier():
            os.environ.setdefault(name, value.strip().strip("'\""))


def run() -> None:
    load_dotenv()
    try:
        app(standalone_mode=False)
    except click.exceptions.Abort:
        err.print("interrupted")
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except AgentError as error:
        say_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
