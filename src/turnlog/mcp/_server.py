"""An MCP server as a toolset: its tools are ordinary tools."""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from turnlog.contract import (
    AgentError,
    Image,
    ImagePart,
    JsonObject,
    is_secret_name,
    scrub,
    secret_headers,
    text_part,
)
from turnlog.tools import ResultPart, Tool, ToolContext, ToolError, ToolLike, ToolResult

from ._link import Connect, Link

if TYPE_CHECKING:
    from mcp import Client, types

_PAGES = 100
_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_HINTS = {
    "read_only": "read_only_hint",
    "destructive": "destructive_hint",
    "idempotent": "idempotent_hint",
    "open_world": "open_world_hint",
}


class MCPServer:
    """The tools of an MCP server, for ``Agent(tools=[MCPServer.stdio("uvx", "mcp-server-time")])``.

    Opened at the agent's first run and closed with it. A server that goes away is started, or connected to,
    again at the next call; a call that was under way is not repeated. What the server says of its tools
    (``readOnlyHint`` and the others) is in their ``annotations`` for approval rules and is believed nowhere
    else. Sampling and questions to the user are refused.

    ``prefix`` goes before the name of every tool; ``timeout`` is how many seconds opening may take.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        prefix: str = "",
        requires_approval: bool = False,
        timeout: float = 30.0,
    ) -> None:
        self.name = name
        self.version = 1
        self._connect = connect
        self._prefix = prefix
        self._requires_approval = requires_approval
        self._timeout = timeout
        self.secrets: Mapping[str, str] = {}
        """Values that it was given and that no conversation may hold, by name."""
        self._link: Link | None = None
        self._lock = threading.Lock()

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        name: str | None = None,
        prefix: str = "",
        requires_approval: bool = False,
        timeout: float = 30.0,
    ) -> MCPServer:
        """A server that is started as a process and spoken to over its standard input and output.

        It sees a few harmless variables of the environment and those in ``env``.
        """

        @asynccontextmanager
        async def connect(changed: Callable[[], None]) -> AsyncGenerator[Client]:
            client, params, stdio = _load_stdio()
            # What it writes to stderr is shown only when it cannot be started.
            with tempfile.TemporaryFile("w+", errors="replace") as said:
                started = params(command=command, args=list(args), env=dict(env or {}), cwd=cwd)
                try:
                    async with client(
                        stdio(started, errlog=said), message_handler=_listener(changed)
                    ) as made:
                        yield made
                except Exception as error:
                    said.seek(0)
                    raise _Failed(error, said.read()[-2000:]) from error

        server = cls(
            name or " ".join([command, *args])[:80],
            connect,
            prefix=prefix,
            requires_approval=requires_approval,
            timeout=timeout,
        )
        server.secrets = {key: value for key, value in (env or {}).items() if is_secret_name(key)}
        return server

    @classmethod
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        prefix: str = "",
        requires_approval: bool = False,
        timeout: float = 30.0,
    ) -> MCPServer:
        """A server that is spoken to over streamable HTTP. ``headers`` go with every request."""

        @asynccontextmanager
        async def connect(changed: Callable[[], None]) -> AsyncGenerator[Client]:
            client, transport, http_client = _load_http()
            async with (
                http_client(headers=dict(headers or {}), timeout=None) as http,
                client(transport(url, http_client=http), message_handler=_listener(changed)) as made,
            ):
                yield made

        server = cls(
            name or url.split("?")[0],
            connect,
            prefix=prefix,
            requires_approval=requires_approval,
            timeout=timeout,
        )
        server.secrets = {
            f"the header {key!r} for {server.name}": value for key, value in secret_headers(headers).items()
        }
        return server

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    # ── toolset ──

    async def open(self) -> None:
        await self._linked()

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def tools(self) -> Sequence[ToolLike]:
        async def read(client: Client) -> list[types.Tool]:
            found: list[types.Tool] = []
            cursor: str | None = None
            for _ in range(_PAGES):
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                found += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    return found
            raise AgentError("ToolExecutionError", f"MCP server {self.name!r} lists tools without end")

        link = await self._linked()
        try:
            return [self._as_tool(each) for each in await link.run(read)]
        except AgentError:
            raise
        except Exception as error:
            raise self._failed("did not list its tools", error) from error

    async def _linked(self) -> Link:
        """The connection, opened again where it broke."""
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110  (calls come from several event loops)
            await asyncio.sleep(0.005)
        try:
            if self._link is None or self._link.is_broken:
                self._link = await self._connected()
            return self._link
        finally:
            self._lock.release()

    async def _connected(self) -> Link:
        if self._link is not None:
            await self._link.close()
            self._change()  # a server that was started anew may have other tools
        link = Link(self._connect, self._change)
        try:
            await link.open(self._timeout)
        except AgentError:
            raise
        except TimeoutError as error:
            raise self._failed(f"was not ready within {self._timeout:g} s", error) from error
        except Exception as error:
            raise self._failed("could not be reached", error) from error
        return link

    def _change(self) -> None:
        self.version += 1

    def _failed(self, what: str, error: BaseException) -> AgentError:
        return AgentError(
            "ToolExecutionError", f"MCP server {self.name!r} {what}: {_words(error)}", cause=error
        )

    def _as_tool(self, told: types.Tool) -> Tool:
        name = _ODD.sub("_", self._prefix + told.name)[:64]
        hints = told.annotations
        annotations: JsonObject = {"mcp_server": self.name}
        if hints is not None:
            given = {ours: getattr(hints, theirs) for ours, theirs in _HINTS.items()}
            annotations |= {key: value for key, value in given.items() if value is not None}
        return Tool.from_schema(
            name,
            told.description or told.title or told.name,
            told.input_schema,
            self._caller(told.name),
            requires_approval=self._requires_approval,
            annotations=annotations,
            concurrent=True,
        )

    def _caller(self, tool_name: str) -> Callable[[JsonObject, ToolContext], Any]:
        async def call(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            async def report(progress: float, total: float | None, message: str | None) -> None:
                ctx.progress(message, progress=progress, total=total)

            async def work(client: Client) -> types.CallToolResult:
                return await client.call_tool(tool_name, arguments, progress_callback=report)

            link = await self._linked()
            try:
                return _result(await link.run(work))
            except (AgentError, asyncio.CancelledError):
                raise
            except Exception as error:
                if _is_gone(error):
                    link.is_broken = True
                    words = f"the connection to MCP server {self.name!r} broke; it may have taken effect"
                    raise ToolError(words) from error
                raise ToolError(_words(error)) from error

        return call


class _Failed(Exception):
    """A server that could not be started, with what it wrote."""

    def __init__(self, error: BaseException, said: str) -> None:
        super().__init__(_words(error) + (f"; it wrote:\n{said.strip()}" if said.strip() else ""))


def _listener(changed: Callable[[], None]) -> Any:
    from mcp import types

    async def listen(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed()
        await asyncio.sleep(0)

    return listen


def _result(given: types.CallToolResult) -> ToolResult:
    parts = [_part(each) for each in given.content]
    texts = [part.payload.text for part in parts if part.kind == "text"]
    content: Any = parts
    if len(texts) == len(parts):
        content = "\n".join(texts)
    if not parts and given.structured_content is not None:
        content = given.structured_content
    return ToolResult(content, is_error=given.is_error)


def _part(block: Any) -> ResultPart:
    match block.type:
        case "text":
            return text_part(block.text)
        case "image":
            return ImagePart(payload=Image(mime_type=block.mime_type, data=block.data))
        case "resource" if hasattr(block.resource, "text"):
            return text_part(f"[{block.resource.uri}]\n{block.resource.text}")
        case "resource":
            return text_part(f"[{block.resource.uri}: binary data]")
        case "resource_link":
            return text_part(f"[{block.name}: {block.uri}]")
        case _:
            return text_part(f"[{block.type}]")


def _is_gone(error: BaseException) -> bool:
    from mcp import types

    code = getattr(getattr(error, "error", None), "code", None)
    return isinstance(error, ConnectionError) or code == types.CONNECTION_CLOSED


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, _Failed):
        return scrub(str(error))
    return scrub(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _load_stdio() -> tuple[Any, Any, Any]:
    try:
        from mcp import Client, StdioServerParameters, stdio_client
    except ImportError as error:
        raise _missing(error) from error
    return Client, StdioServerParameters, stdio_client


def _load_http() -> tuple[Any, Any, Any]:
    try:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from mcp import Client
    except ImportError as error:
        raise _missing(error) from error
    return Client, streamable_http_client, httpx2.AsyncClient


def _missing(error: ImportError) -> AgentError:
    words = "MCP servers need the package mcp; install it with: pip install 'turnlog[mcp]'"
    return AgentError("PluginMissing", words, cause=error)
