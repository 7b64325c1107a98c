"""The servers that a file names (``.mcp.json``), once the user has trusted it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, Unpack, cast

from turnlog.contract import AgentError, Runtime, is_secret_name, scrub
from turnlog.system import TrustStore
from turnlog.tools import ToolLike

from ._server import MCPOptions, MCPServer

_KIND = "mcp"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True)
class TrustQuestion:
    """What a person is asked before the servers of a file are used. ``lines`` says what each would start or
    connect to; ``status`` whether the file was trusted before and has ``changed`` since, or is ``new``."""

    path: str
    status: Literal["new", "changed"]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        was = "has changed since you trusted it" if self.status == "changed" else "is not trusted yet"
        return "\n".join([f"{self.path} {was}. It would use these MCP servers:", *self.lines])


Trust: TypeAlias = Literal[True] | Callable[[TrustQuestion], bool] | None


class MCPServers:
    """Several servers as one toolset: ``Agent(tools=[MCPServers.from_file(".mcp.json")])``. The name of each
    stands before those of its tools, as in ``git_log``."""

    def __init__(self, servers: Mapping[str, MCPServer], name: str = "MCP servers") -> None:
        self.name = name
        self.servers = dict(servers)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str] = ".mcp.json",
        *,
        trust: Trust = None,
        store: TrustStore | None = None,
        **options: Unpack[MCPOptions],
    ) -> Self:
        """The servers of a file in the usual form, ``{"mcpServers": {NAME: {"command": …} | {"url": …}}}``.

        A file may start any process, so the user has to trust it first. ``trust=None`` takes a file that is
        trusted as it is now; a function is asked where it is not, and its yes is remembered by hash in the
        user's config folder; True takes it without a question, on the word of the caller. Raises
        ``ConfigInvalid``. ``options`` hold for every server.
        """
        file = Path(path)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise _invalid(file, f"it cannot be read: {error.strerror}") from error
        tables = _read_tables(file, content)
        if trust is not True:
            _check_trust(file, content, tables, trust, store or TrustStore())
        return cls({name: _made(file, name, table, options) for name, table in tables.items()}, str(path))

    @property
    def version(self) -> int:
        return sum(server.version for server in self.servers.values())

    @property
    def secrets(self) -> Mapping[str, str]:
        return {
            f"{key} of {name}": value
            for name, server in self.servers.items()
            for key, value in server.secrets.items()
        }

    def use_runtime(self, runtime: Runtime) -> None:
        for server in self.servers.values():
            server.use_runtime(runtime)

    async def open(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.servers.values():
                    group.create_task(server.open())
        except BaseExceptionGroup as failed:
            await self.close()
            raise failed.exceptions[0] from None

    async def tools(self) -> Sequence[ToolLike]:
        return [tool for server in self.servers.values() for tool in await server.tools()]

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.servers.values()))


def _read_tables(file: Path, content: bytes) -> dict[str, Mapping[str, Any]]:
    """What the file says of each server that is not disabled. Raises ``ConfigInvalid``."""
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _invalid(file, f"it is not JSON: {error}") from error
    tables: Any = cast("dict[str, Any]", found).get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(tables, dict):
        raise _invalid(file, 'it has no object "mcpServers"')
    checked: dict[str, Mapping[str, Any]] = {}
    for name, table in cast("dict[str, Any]", tables).items():
        problem = _problem(table)
        if problem is not None:
            raise _invalid(file, f"server {name!r}: {problem}")
        if not table.get("disabled"):
            checked[name] = table
    return checked


def _problem(table: Any) -> str | None:
    if not isinstance(table, dict):
        return "it is an object with a command or a url"
    given = cast("dict[str, Any]", table)
    if given.get("type") == "sse":
        return "the transport sse is a thing of the past; give the url of streamable HTTP"
    if isinstance(given.get("command"), str) == isinstance(given.get("url"), str):
        return "it needs a command, or else a url"
    args, maps = given.get("args", []), [given.get("env", {}), given.get("headers", {})]
    if not isinstance(args, list) or not all(isinstance(each, str) for each in cast("list[Any]", args)):
        return "args is a list of texts"
    for each in maps:
        if not isinstance(each, dict) or not all(
            isinstance(value, str) for value in cast("dict[str, Any]", each).values()
        ):
            return "env and headers hold texts"
    return None


def _describe(tables: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """What each server would do, in words for a person; values that look secret are left out."""
    lines: list[str] = []
    for name, table in tables.items():
        does = table.get("url") or " ".join([table.get("command", ""), *table.get("args", [])])
        given: dict[str, str] = {**table.get("env", {}), **table.get("headers", {})}
        more = [f"{key}={'…' if is_secret_name(key) else value}" for key, value in given.items()]
        line = " ".join([does, *([f"with {', '.join(more)}"] if more else [])])
        lines.append(scrub(f"{name}: {'connects to' if table.get('url') else 'runs'} {line}"))
    return tuple(lines)


def _check_trust(
    file: Path,
    content: bytes,
    tables: Mapping[str, Mapping[str, Any]],
    ask: Callable[[TrustQuestion], bool] | None,
    store: TrustStore,
) -> None:
    status = store.status(_KIND, file, content)
    if status == "trusted":
        return
    question = TrustQuestion(str(file), status, _describe(tables))
    if ask is not None and ask(question):
        store.trust(_KIND, file, content)
        return
    raise AgentError(
        "ConfigInvalid",
        f"{question}\nNothing was started. To trust it as it is: turnlog mcp trust {file} "
        "(with --yes where nobody can answer a question)",
    )


def _made(file: Path, name: str, table: Mapping[str, Any], options: MCPOptions) -> MCPServer:
    def fill(text: str) -> str:
        return _VARIABLE.sub(lambda found: _value(file, name, found[1], found[2]), text)

    chosen: MCPOptions = {"name": name, "prefix": f"{name}_", **options}
    if isinstance(table.get("url"), str):
        headers = {key: fill(value) for key, value in table.get("headers", {}).items()}
        return MCPServer.http(fill(table["url"]), headers=headers, **chosen)
    env = {key: fill(value) for key, value in table.get("env", {}).items()}
    cwd = str(file.parent.absolute() / fill(table.get("cwd", ".")))
    words = [fill(word) for word in (table["command"], *table.get("args", []))]
    return MCPServer.stdio(words[0], *words[1:], env=env, cwd=cwd, **chosen)


def _value(file: Path, server: str, variable: str, default: str | None) -> str:
    found = os.environ.get(variable, default)
    if found is None:
        raise _invalid(file, f"server {server!r}: the environment has no {variable}")
    return found


def _invalid(file: Path, problem: str) -> AgentError:
    return AgentError("ConfigInvalid", f"{file}: {problem}")
