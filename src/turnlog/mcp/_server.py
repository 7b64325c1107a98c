"""An MCP server as a toolset: its tools are ordinary tools."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack

from turnlog.contract import (
    FINAL_ANSWER,
    AgentError,
    JsonObject,
    Runtime,
    find_unjson,
    is_secret_name,
    scrub,
    secret_headers,
)
from turnlog.tools import Tool, ToolContext, ToolError, ToolLike, ToolResult

from ._call import call_tool
from ._link import Connect, Flight, Link
from ._transport import LocalProgram, RuntimeProgram, in_words, over_http, over_pipes

if TYPE_CHECKING:
    from mcp import Client, types
    from turnlog.loop import Agent

T = TypeVar("T")
_log = logging.getLogger("turnlog.mcp")

_PAGES, _TOOLS = 100, 1000
_DESCRIPTION, _SCHEMA = 8000, 100_000
"""Characters of a description that are shown to a model, and bytes of the largest schema that is taken."""
_TRIES = 3
_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_HINTS = {
    "read_only": "read_only_hint",
    "destructive": "destructive_hint",
    "idempotent": "idempotent_hint",
    "open_world": "open_world_hint",
}
_MISSING = "MCP servers need the package mcp; install it with: pip install 'turnlog[mcp]'"


class MCPOptions(TypedDict, total=False):
    """How a server is used. Times are in seconds.

    ``name`` is shown in messages. ``prefix`` stands before the name of every tool. ``allow`` names the tools
    that are offered, as the server calls them (default: all). ``timeout`` is how long opening may take,
    ``call_timeout`` how long a call may (default: the executor's limit). With ``resources`` and ``prompts``
    the model is offered tools that list and read them. ``sampling`` is an agent that answers when the server
    asks for text of a model: each time is a run in a session of its own, linked to the call; without it the
    server is refused. ``max_message`` is the size in bytes of the largest message that is taken.
    """

    name: str
    prefix: str
    allow: Sequence[str] | None
    requires_approval: bool
    timeout: float
    call_timeout: float | None
    resources: bool
    prompts: bool
    sampling: Agent[Any] | None
    max_message: int


@dataclass(frozen=True, slots=True)
class MCPResource:
    """Something that a server lets its clients read, by its ``uri``."""

    uri: str
    name: str
    description: str = ""
    mime_type: str | None = None


@dataclass(frozen=True, slots=True)
class MCPPrompt:
    """A text that a server fills in; ``arguments`` are the names of what it needs, with ``?`` behind those
    that may be left out."""

    name: str
    description: str = ""
    arguments: tuple[str, ...] = ()


class MCPServer:
    """The tools of an MCP server, for ``Agent(tools=[MCPServer.stdio("uvx", "mcp-server-time")])``.

    Opened at the agent's first run and closed with it. A server that went away is started, or connected to,
    again at the next call, a bounded number of times; a call that was in progress is not repeated, and its
    result says that it may have taken effect. What the server says of its tools (``readOnlyHint`` and the
    others) is in their ``annotations`` for approval rules and is believed nowhere else. A question to the
    user is a deferred answer of the call: ``session.questions()`` lists it, ``session.answer(…)`` answers it.
    """

    def __init__(self, name: str, connect: Connect, origin: object, options: MCPOptions) -> None:
        self.name = options.get("name") or name
        self.version = 1
        self.secrets: Mapping[str, str] = {}
        """Values that it was given and that no conversation may hold, by name."""
        self.problems: list[str] = []
        """What the server offers and is not used, and why."""
        self.sampling = options.get("sampling")
        self.held: dict[tuple[str, str], Flight] = {}
        self.runtime: Runtime | None = None
        """Where its process is started, other than on the machine itself."""
        self._offered: Runtime | None = None
        self._takes_runtime = False
        self._connect, self._options = connect, options
        self._origin = hashlib.sha256(json.dumps(origin).encode()).hexdigest()
        self._link: Link | None = None
        self._lock = threading.Lock()

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        runtime: Runtime | Literal["host"] | None = None,
        **options: Unpack[MCPOptions],
    ) -> Self:
        """A server that is started as a process and spoken to over its standard input and output.

        It sees a few harmless variables of the environment and those in ``env``. With ``runtime`` it is
        started there, behind that runtime's policy. Without one it is started in the runtime of its agent,
        where that has a sandbox; ``"host"`` starts it on the machine itself all the same.
        """
        line, given = [os.fspath(part) for part in (command, *args)], dict(env or {})

        @asynccontextmanager
        async def connect(link: Link) -> AsyncGenerator[Client]:
            where = server.runtime or _boxed(server._offered)
            if where is None:
                program: LocalProgram | RuntimeProgram = await LocalProgram.start(line, given, cwd)
            else:
                program = await RuntimeProgram.start(where, line, given, cwd)
            try:
                async with _client(over_pipes(program, limit, link.outcome), link, server) as made:
                    yield made
            except Exception as error:
                said = f"; it wrote:\n{scrub(program.said()[-2000:])}" if program.said() else ""
                why = link.outcome.reason or in_words(error)
                raise ConnectionError(f"{why}{said}") from error

        limit = options.get("max_message", 64_000_000)
        plain = {key: "" if is_secret_name(key) else value for key, value in sorted(given.items())}
        server = cls(" ".join(line)[:80], connect, ["stdio", line, plain, cwd], options)
        server.runtime = runtime if runtime != "host" else None
        server._takes_runtime = runtime is None
        server.secrets = {key: value for key, value in given.items() if is_secret_name(key)}
        return server

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, **options: Unpack[MCPOptions]
    ) -> Self:
        """A server that is spoken to over streamable HTTP. ``headers`` are sent with every request, and never
        to another address."""
        given = dict(headers or {})
        limit, seconds = options.get("max_message", 64_000_000), options.get("timeout", 30.0)

        @asynccontextmanager
        async def connect(link: Link) -> AsyncGenerator[Client]:
            async with _client(over_http(url, given, limit, seconds), link, server) as made:
                yield made

        server = cls(url.split("?")[0], connect, ["http", url.split("?")[0], sorted(given)], options)
        server.secrets = {
            f"the header {key!r} for {server.name}": value for key, value in secret_headers(headers).items()
        }
        return server

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    def use_runtime(self, runtime: Runtime) -> None:
        """The runtime of the agent: its process is started there, where it has a sandbox."""
        if self._takes_runtime:
            self._offered = runtime

    @property
    def instructions(self) -> str | None:
        """What the server says about its use; None before it is open."""
        return self._link.instructions if self._link is not None else None

    # ── toolset ──

    async def open(self) -> None:
        await self.linked()

    async def close(self) -> None:
        link, self._link = self._link, None
        self.held.clear()
        if link is not None:
            await link.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def tools(self) -> Sequence[ToolLike]:
        allow = self._options.get("allow")
        problems: list[str] = []
        made: dict[str, Tool] = {}
        listed = await self._all("tools", _list_tools)
        for told in listed:
            if allow is not None and told.name not in allow:
                continue
            name, problem = self._shown_name(told.name), _check_tool(told)
            if name in made:
                problem = f"its name, as models can write it, is that of another tool: {name!r}"
            if name == FINAL_ANSWER:
                problem = (
                    f"{FINAL_ANSWER!r} is the name that structured output uses; give the server a prefix"
                )
            if problem is None:
                made[name] = self._as_tool(name, told)
            else:
                problems.append(
                    f"tool {told.name[:80]!r} of MCP server {self.name!r} is not offered: {problem}"
                )
        if allow is not None and (missing := sorted(set(allow) - {each.name for each in listed})):
            problems.append(f"MCP server {self.name!r} has no tool {', '.join(missing)}, which allow names")
        for problem in problems:
            if problem not in self.problems:
                _log.warning("%s", problem)
        self.problems = problems
        return [*made.values(), *self._own_tools()]

    async def linked(self) -> Link:
        """The connection, opened again where it broke."""
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110  (calls come from several event loops)
            await asyncio.sleep(0.005)
        try:
            if self._link is None or self._link.is_broken:
                self._link = await self._connected(_TRIES if self._link is not None else 1)
            return self._link
        finally:
            self._lock.release()

    async def _connected(self, tries: int) -> Link:
        if self._link is not None:
            self.held.clear()
            await self._link.close()
            self._change()  # a server that was started anew may have other tools
        for attempt in range(tries):
            link = Link(self._connect, self._change)
            try:
                await link.open(self._options.get("timeout", 30.0))
                return link
            except Exception as error:
                if attempt == tries - 1:
                    raise self._failed(error, tries) from error
            await asyncio.sleep(0.5 * 2**attempt)
        raise AssertionError("unreachable: the last try returns or raises")

    def _change(self) -> None:
        self.version += 1

    def _failed(self, error: Exception, tries: int = 1) -> AgentError:
        if isinstance(error, ImportError):
            return AgentError("PluginMissing", _MISSING, cause=error)
        if isinstance(error, AgentError):
            return error
        what = f"could not be reached{f', in {tries} tries' if tries > 1 else ''}: {in_words(error)}"
        if isinstance(error, TimeoutError):
            what = (
                f"was not ready within {self._options.get('timeout', 30.0):g} s; raise timeout, or see to it"
            )
        return AgentError("ToolExecutionError", f"MCP server {self.name!r} {what}", cause=error)

    def _shown_name(self, name: str) -> str:
        """A name that every provider takes, and that stays the same."""
        shown = _ODD.sub("_", self._options.get("prefix", "") + name) or "_"
        if len(shown) <= 64:
            return shown
        return f"{shown[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def _as_tool(self, name: str, told: types.Tool) -> Tool:
        annotations: JsonObject = {"mcp_server": self.name, "origin": self._origin}
        if told.annotations is not None:
            given = {ours: getattr(told.annotations, theirs) for ours, theirs in _HINTS.items()}
            annotations |= {key: value for key, value in given.items() if value is not None}

        async def call(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            return await call_tool(self, told.name, arguments, ctx)

        description = told.description or told.title or told.name
        return self._made(name, description, told.input_schema, call, annotations)

    def _made(
        self, name: str, description: str, schema: JsonObject, call: Any, annotations: JsonObject
    ) -> Tool:
        limit = self._options.get("call_timeout")
        timeouts: Any = {} if limit is None else {"timeout": limit}
        return Tool.from_schema(
            name,
            description[:_DESCRIPTION],
            schema,
            call,
            requires_approval=self._options.get("requires_approval", False),
            annotations=annotations,
            concurrent=True,
            **timeouts,
        )

    # ── resources and prompts ──

    async def resources(self) -> list[MCPResource]:
        """What the server lets its clients read."""
        return [
            MCPResource(each.uri, each.title or each.name, each.description or "", each.mime_type)
            for each in await self._all("resources", _list_resources)
        ]

    async def read_resource(self, uri: str) -> str | bytes:
        """A resource: text, or bytes. Several texts under one address are joined."""
        found = await self._host(lambda client: client.read_resource(uri, cache_mode="bypass"))
        texts = [each.text for each in found.contents if hasattr(each, "text")]
        if not texts and found.contents:
            return base64.b64decode(found.contents[0].blob)
        return "\n".join(texts)

    async def prompts(self) -> list[MCPPrompt]:
        """The prompts that the server fills in."""
        return [
            MCPPrompt(
                each.name,
                each.description or "",
                tuple(f"{one.name}{'' if one.required else '?'}" for one in each.arguments or ()),
            )
            for each in await self._all("prompts", _list_prompts)
        ]

    async def prompt(self, name: str, **arguments: str) -> str:
        """A prompt with its arguments filled in, as text to run an agent with."""
        found = await self._host(lambda client: client.get_prompt(name, arguments))
        said = [(each.role, _text_of(each.content)) for each in found.messages]
        return said[0][1] if len(said) == 1 else "\n\n".join(f"{role}: {text}" for role, text in said)

    def _own_tools(self) -> list[Tool]:
        annotations: JsonObject = {"mcp_server": self.name, "origin": self._origin, "read_only": True}
        text: JsonObject = {"type": "string"}

        async def list_resources(arguments: JsonObject, ctx: ToolContext) -> object:
            return [_shown(each) for each in await self.resources()]

        async def read_resource(arguments: JsonObject, ctx: ToolContext) -> object:
            return await self.read_resource(arguments["uri"])

        async def list_prompts(arguments: JsonObject, ctx: ToolContext) -> object:
            return [_shown(each) for each in await self.prompts()]

        async def get_prompt(arguments: JsonObject, ctx: ToolContext) -> object:
            return await self.prompt(arguments["name"], **arguments.get("arguments", {}))

        named = {"name": text, "arguments": {"type": "object", "additionalProperties": text}}
        made: list[tuple[str, str, JsonObject, list[str], Any]] = []
        if self._options.get("resources"):
            made += [
                ("list_resources", f"List what {self.name} lets you read.", {}, [], list_resources),
                ("read_resource", f"Read a resource of {self.name}.", {"uri": text}, ["uri"], read_resource),
            ]
        if self._options.get("prompts"):
            made += [
                ("list_prompts", f"List the prompts of {self.name}.", {}, [], list_prompts),
                ("get_prompt", f"Fill in a prompt of {self.name}.", named, ["name"], get_prompt),
            ]
        return [
            self._made(
                self._shown_name(name),
                description,
                {"type": "object", "properties": fields, "required": needed, "additionalProperties": False},
                _guarded(call),
                annotations,
            )
            for name, description, fields, needed, call in made
        ]

    async def _all(self, what: str, read: Callable[[Client, str | None], Any]) -> list[Any]:
        """Every page of a listing; nothing where the server has no such thing."""

        async def pages(client: Client) -> list[Any]:
            found: list[Any] = []
            cursor: str | None = None
            for _ in range(_PAGES):
                page = await read(client, cursor)
                found += getattr(page, what)
                cursor = page.next_cursor
                if cursor is None and len(found) <= _TOOLS:
                    return found
                if len(found) > _TOOLS:
                    break
            raise AgentError(
                "ToolExecutionError",
                f"MCP server {self.name!r} lists more than {_TOOLS} {what}, or pages without end",
            )

        link = await self.linked()
        if link.offers is not None and getattr(link.offers, what, None) is None:
            return []
        return await self._host(pages)

    async def _host(self, work: Callable[[Client], Any]) -> Any:
        link = await self.linked()
        try:
            return await asyncio.wait_for(link.run(work), self._options.get("timeout", 30.0))
        except AgentError:
            raise
        except TimeoutError as error:
            raise self._failed(TimeoutError("no answer")) from error
        except Exception as error:
            if link.outcome.ended or isinstance(error, ConnectionError):
                link.give_up()
            words = f"MCP server {self.name!r}: {link.outcome.reason or in_words(error)}"
            raise AgentError("ToolExecutionError", words, cause=error) from error


def _boxed(runtime: Runtime | None) -> Runtime | None:
    return runtime if runtime is not None and runtime.sandbox is not None else None


def _client(transport: Any, link: Link, server: MCPServer) -> Client:
    from mcp import Client, types
    from turnlog import __version__

    return Client(
        transport,
        message_handler=link.hear,
        elicitation_callback=link.elicit,
        sampling_callback=link.sample if server.sampling is not None else None,
        client_info=types.Implementation(name="turnlog", version=__version__),
        cache=None,
    )


def _list_tools(client: Client, cursor: str | None) -> Any:
    return client.list_tools(cursor=cursor, cache_mode="bypass")


def _list_resources(client: Client, cursor: str | None) -> Any:
    return client.list_resources(cursor=cursor, cache_mode="bypass")


def _list_prompts(client: Client, cursor: str | None) -> Any:
    return client.list_prompts(cursor=cursor, cache_mode="bypass")


def _check_tool(told: types.Tool) -> str | None:
    """What is wrong with a tool as its server describes it."""
    schema = told.input_schema
    if (found := find_unjson(schema)) is not None:
        return f"its schema is no JSON: {found}"
    if len(json.dumps(schema)) > _SCHEMA:
        return f"its schema has more than {_SCHEMA // 1000} kB"
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        return "its schema is not that of an object"
    try:
        Tool.from_schema("checked", "", schema, _unused).bind({})
    except Exception as error:
        return f"its schema cannot be used: {in_words(error)}"
    return None


async def _unused(arguments: JsonObject, ctx: ToolContext) -> None: ...


def _guarded(call: Callable[[JsonObject, ToolContext], Any]) -> Callable[[JsonObject, ToolContext], Any]:
    async def run(arguments: JsonObject, ctx: ToolContext) -> object:
        try:
            return await call(arguments, ctx)
        except AgentError as error:
            raise ToolError(error.message) from error

    return run


def _shown(each: MCPResource | MCPPrompt) -> JsonObject:
    return {name: value for name in each.__slots__ if (value := getattr(each, name))}


def _text_of(content: Any) -> str:
    if content.type == "resource":
        return getattr(content.resource, "text", f"[{content.resource.uri}]")
    return getattr(content, "text", f"[{content.type}]")
