"""From the options of a command to an agent."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from turnlog.contract import AgentError, SpecificTool, ToolChoice
from turnlog.loop import Agent, AgentConfig, Tool, load_config

from ._app import check_session, json_option, store_option, store_url_of

CHOICES = ("auto", "none", "required")


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        json_option,
        store_option,
        click.option("--base-url", metavar="URL", help="Address of a compatible server."),
        click.option(
            "--config", metavar="FILE", type=click.Path(dir_okay=False), help="Agent configuration, TOML."
        ),
        click.option(
            "--tools",
            "-t",
            "tool_modules",
            multiple=True,
            metavar="MODULE",
            help="Python module or file with @tool functions.",
        ),
        click.option("--instructions", "-i", metavar="TEXT", help="The system prompt."),
        click.option(
            "--session",
            "-s",
            metavar="ID",
            callback=check_session,
            help="Go on with this session, or give a new one a name.",
        ),
        click.option("--title", metavar="TEXT", help="What a new session is called."),
        click.option(
            "--model", "-m", metavar="NAME", help="local (the default), openai:…, anthropic:…, google:…"
        ),
    ):
        command = option(command)
    return command


def make_agent(
    model: str | None,
    instructions: str | None,
    tool_modules: tuple[str, ...],
    config: str | None,
    base_url: str | None,
    store_url: str | None,
) -> tuple[Agent, list[Tool]]:
    tools = [tool for module in tool_modules for tool in load_tools(module)]
    loaded = load_config(config) if config else AgentConfig()
    parts: dict[str, Any] = {"tools": tools, "store": store_url_of(store_url or loaded.store)}
    if model or loaded.model is None:
        parts["model"] = model or "local"
    if instructions is not None:
        parts["instructions"] = instructions
    if base_url:
        table = None if model or isinstance(loaded.model, str) else loaded.model
        parts["model_options"] = {**((table and table.options) or {}), "base_url": base_url}
    return Agent.from_config(loaded, **parts), tools


def read_choice(choice: str | None, tools: list[Tool]) -> ToolChoice | None:
    """``--tool-choice`` as the library takes it; a tool that is not there is refused at once."""
    if choice is None or choice in CHOICES:
        return choice  # pyright: ignore[reportReturnType]
    names = [tool.name for tool in tools]
    if choice not in names:
        known = ", ".join((*CHOICES, *names))
        raise click.BadParameter(
            f"there is no tool {choice!r}; it may be {known}", param_hint="--tool-choice"
        )
    return SpecificTool(name=choice)


def load_tools(name: str) -> list[Tool]:
    """All tools of a module, named with dots or as a file."""
    try:
        module = _load_file(name) if name.endswith(".py") else _load_module(name)
    except (click.ClickException, AgentError):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        # Whatever the user's own file does when it is read, a line that says so is more use than our stack.
        raise click.BadParameter(
            f"{name} fails: {type(error).__name__}: {error}", param_hint="--tools"
        ) from error
    found: list[Tool] = [value for value in vars(module).values() if isinstance(value, Tool)]
    if not found:
        raise click.BadParameter(f"{name} has no function marked with @tool", param_hint="--tools")
    return found


def _load_file(name: str) -> ModuleType:
    path = Path(name)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {name}", param_hint="--tools")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # annotations and pickling look a module up by its name
    spec.loader.exec_module(module)
    return module


def _load_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as with python -m: a module beside you is found
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise click.BadParameter(f"there is no module {name}", param_hint="--tools") from error
