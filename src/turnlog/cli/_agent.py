"""From the options of a command to an agent."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar, cast

import click

from turnlog.contract import AgentError, Store
from turnlog.history import JsonlStore, SessionState, SqliteStore, default_store_url
from turnlog.loop import (
    Agent,
    AgentConfig,
    StoredSession,
    Tool,
    coding_parts,
    load_config,
    load_model,
    open_session,
)

from ._app import (
    AGENT,
    CODE,
    SANDBOXES,
    STORE,
    check_session,
    err,
    json_option,
    remember,
    store_option,
    store_url_of,
    with_store,
)
from ._asking import workspace_of
from ._project import ask_about
from ._text import plain

T = TypeVar("T")

_MADE_OF = {
    "model": "--model",
    "instructions": "--instructions",
    "tool_modules": "--tools",
    "mcp_files": "--mcp",
    "config": "--config",
    "base_url": "--base-url",
    "store_url": "--store",
    "workspace": "--workspace",
    "sandbox": "--sandbox",
    "policy": "--policy",
    "project": "--project",
    "trust_project": "--trust-project",
}
"""Options that make an agent; one that is loaded is made already."""
_CODING = ("--workspace", "--sandbox", "--policy")


MODULE = click.Path(readable=False)
"""A file, or the name of a module; shells complete files."""


def agent_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--agent",
        "-a",
        "agent_name",
        metavar="MODULE:NAME",
        type=MODULE,
        callback=remember(AGENT),
        help="An Agent, or a function that returns one, from a Python module or file. It has its own store.",
    )(command)


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that make an agent."""
    for option in (
        json_option,
        store_option,
        click.option(
            "--base-url",
            metavar="URL",
            help="Address of a server that is compatible with the model's provider.",
        ),
        click.option(
            "--config", metavar="FILE", type=click.Path(dir_okay=False), help="Agent configuration in TOML."
        ),
        click.option(
            "--trust-project",
            is_flag=True,
            help="Trust AGENTS.md, skills and hooks of this folder as they are, and use them.",
        ),
        click.option(
            "--project/--no-project",
            default=None,
            help="Use AGENTS.md, skills and hooks of this folder, which you are asked about once; default "
            "with the tools code.",
        ),
        click.option(
            "--tools",
            "-t",
            "tool_modules",
            multiple=True,
            metavar="MODULE",
            type=MODULE,
            help="Python module or file with @tool functions, or code, the built-in ones; can be repeated.",
        ),
        click.option(
            "--policy",
            type=click.Choice(["read-only", "ask-before-write", "workspace-auto", "everything-asks"]),
            help="With the tools code: what runs without a question; default ask-before-write.",
        ),
        click.option(
            "--sandbox",
            type=click.Choice(["auto", *SANDBOXES]),
            help="With the tools code: what holds commands in; default the best this system has, or refusal.",
        ),
        click.option(
            "--workspace",
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="With the tools code: the folder they work in; default this one.",
        ),
        click.option(
            "--mcp",
            "mcp_files",
            multiple=True,
            metavar="FILE",
            type=click.Path(readable=False),
            help="MCP servers, as in .mcp.json, once you have trusted the file; can be repeated.",
        ),
        click.option("--instructions", "-i", metavar="TEXT", help="The system prompt."),
        click.option(
            "--model",
            "-m",
            metavar="NAME",
            help="openai:MODEL, anthropic:MODEL, google:MODEL, …; default local, a model on this machine.",
        ),
        agent_option,
    ):
        command = option(command)
    return command


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose the session of a new run."""
    for option in (
        click.option("--title", metavar="TEXT", help="The title of a new session."),
        click.option(
            "--session",
            "-s",
            metavar="ID",
            callback=check_session,
            help="Continue this session, or name a new one.",
        ),
    ):
        command = option(command)
    return command


def make_agent(
    agent_name: str | None,
    model: str | None,
    instructions: str | None,
    tool_modules: tuple[str, ...],
    mcp_files: tuple[str, ...],
    config: str | None,
    base_url: str | None,
    store_url: str | None,
    workspace: str | None,
    sandbox: Any,
    policy: Any,
    project: bool | None,
    trust_project: bool,
) -> Agent:
    if agent_name is not None:
        given = click.get_current_context().params
        if also := [option for name, option in _MADE_OF.items() if given.get(name)]:
            raise click.UsageError(
                f"--agent loads an agent that is made already; leave out {', '.join(also)}"
            )
        agent = load_agent(agent_name)
        if (url := _url_of(agent.store)) not in (None, default_store_url()):
            click.get_current_context().meta[STORE] = url
        return agent
    loaded = load_config(config) if config else AgentConfig()
    coding: dict[str, Any] = {}
    if CODE in tool_modules:
        coding = {
            **coding_parts(
                workspace or ".", sandbox=sandbox or "auto", approvals=policy or "ask-before-write"
            )
        }
        if loaded.instructions is not None:
            del coding["instructions"]
    elif given := [
        option for value, option in zip((workspace, sandbox, policy), _CODING, strict=True) if value
    ]:
        raise click.UsageError(f"{', '.join(given)}: these options are for --tools {CODE}")
    tools = [tool for module in tool_modules if module != CODE for tool in load_tools(module)]
    parts: dict[str, Any] = {
        **coding,
        "tools": [*coding.get("tools", ()), *tools, *map(_load_servers, mcp_files)],
        "store": store_url_of(store_url or loaded.store),
    }
    if model or loaded.model is None:
        parts["model"] = model or _default_model()
    if instructions is not None:
        parts["instructions"] = instructions
    if trust_project or (project if project is not None else CODE in tool_modules):
        found = ask_about(workspace or ".", trusts=trust_project)
        parts |= found.parts(parts.get("instructions") or loaded.instructions)
    if base_url:
        table = None if model or isinstance(loaded.model, str) else loaded.model
        parts["model_options"] = {**((table and table.options) or {}), "base_url": base_url}
    return Agent.from_config(loaded, **parts)


def _default_model() -> str:
    """The model on this machine. Where it is not installed, the error names the other way too."""
    try:
        load_model("local")
    except AgentError as error:
        other = "or name a model of a provider, as -m openai:MODEL with OPENAI_API_KEY set"
        raise AgentError(error.code, f"{error.message}; {other}", cause=error) from error
    return "local"


def recorded_workspace(session: str, config: str | None, store_url: str | None) -> str | None:
    """The folder that the open run of ``session`` works in; None when no run is open, or its log has none."""
    url = store_url or (load_config(config).store if config else None)
    state = SessionState.of(with_store(url, lambda store: store.load(session)))
    return workspace_of(state) if state.is_open else None


def _url_of(store: Store) -> str | None:
    """How another command names the store of an agent; None when it cannot."""
    match store:
        case SqliteStore():
            return f"sqlite:{store.path}"
        case JsonlStore():
            return f"jsonl:{store.folder}"
        case _:
            return None


def load_agent(name: str) -> Agent[Any]:
    """The agent that ``MODULE:NAME`` or ``FILE.py:NAME`` names; without a name it is ``agent``."""
    return cast("Agent[Any]", load_object(name, Agent, "agent", "--agent"))


def load_object(name: str, kind: type[T], usual: str, option: str) -> T:
    """What ``MODULE:NAME`` or ``FILE.py:NAME`` names, or the function there returns; ``usual`` is the name
    where none is given."""
    place, _, attribute = name.partition(":")
    module = _load(place, option)
    attribute = attribute or usual
    found: Any = getattr(module, attribute, None)
    if not isinstance(found, kind) and callable(found):
        found = _guarded(found, f"{attribute}() in {place}", option)
    if isinstance(found, kind):
        return cast("T", found)
    others = [key for key, value in vars(module).items() if isinstance(value, kind)]
    if found is None:
        known = f"; its {usual}s: {', '.join(others)}" if others else ""
        raise click.BadParameter(f"{place} has no {attribute!r}{known}", param_hint=option)
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    raise click.BadParameter(
        f"{attribute!r} in {place} is a {type(found).__name__}, not {article} {kind.__name__}",
        param_hint=option,
    )


OpenHandle: TypeAlias = Callable[[str], StoredSession]
"""Gives a session by its name; nothing is read before it is used."""


def with_sessions(
    agent_name: str | None,
    store_url: str | None,
    work: Callable[[Store, OpenHandle], Awaitable[T]],
    *,
    doing: str | None = None,
) -> T:
    """Do ``work`` with the sessions of an agent, which has its own store, or of a store."""
    if agent_name is None:
        return with_store(
            store_url, lambda store: work(store, lambda session: open_session(store, session)), doing=doing
        )
    if store_url is not None:
        raise click.UsageError("--agent brings its own store; leave out --store")

    async def by_agent() -> T:
        async with load_agent(agent_name) as agent:
            return await work(agent.store, agent.session)

    return asyncio.run(by_agent())


def load_tools(name: str) -> list[Tool]:
    """All tools of a module, named with dots or as a file."""
    module = _load(name, "--tools")
    found: list[Tool] = [value for value in vars(module).values() if isinstance(value, Tool)]
    if not found:
        raise click.BadParameter(f"{name} has no function marked with @tool", param_hint="--tools")
    return found


def _load_servers(file: str) -> object:
    """The MCP servers of a file, once the user trusts it."""
    from turnlog.mcp import MCPServers  # most commands do without

    return MCPServers.from_file(file, trust=ask_for_trust)


def ask_for_trust(question: object) -> bool:
    """Ask the person at the terminal; nobody there is a no."""
    if not sys.stdin.isatty() or not err.is_terminal:
        return False
    err.print(plain(str(question)), markup=False)
    return click.confirm("Trust this file as it is now?", default=False, err=True)


def _load(name: str, option: str) -> ModuleType:
    load = _load_file if name.endswith(".py") else _load_module
    return _guarded(lambda: load(name, option), name, option)


def _guarded(work: Callable[[], Any], what: str, option: str) -> Any:
    """Run the user's own code. What it raises is told in one line, without a traceback of ours."""
    try:
        return work()
    except (click.ClickException, AgentError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise click.BadParameter(
            f"{what} fails: {type(error).__name__}: {error}", param_hint=option
        ) from error


def _load_file(name: str, option: str) -> ModuleType:
    path = Path(name)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {name}", param_hint=option)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # annotations and pickling look a module up by its name
    spec.loader.exec_module(module)
    return module


def _load_module(name: str, option: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as with python -m: a module beside you is found
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0] and error.name != name:
            raise
        raise click.BadParameter(f"there is no module {name}", param_hint=option) from error
