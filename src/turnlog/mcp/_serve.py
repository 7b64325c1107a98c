"""An agent as an MCP server: it has one tool, and each conversation is a session in the log."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from turnlog.contract import AgentError, JsonObject, RunResult
from turnlog.events import ToolStarted
from turnlog.loop import Agent

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from mcp import types

_OURS = "mcp-"
"""How the sessions begin that clients may continue: those that were begun for a client."""
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


def make_server(agent: Agent[Any], description: str | None = None) -> Server[Any]:
    """A server of the ``mcp`` package whose only tool runs ``agent``."""
    from mcp.server.lowlevel import Server

    from mcp import types
    from turnlog import __version__

    name = _ODD.sub("_", agent.name)[:64] or "agent"
    tool = types.Tool(
        name=name,
        description=description or f"Asks the agent {agent.name}, which answers when its work is done.",
        input_schema=_SCHEMA,
        output_schema=_OUTPUT,
    )

    async def list_tools(ctx: object, params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name != name:
            return _told(f"there is no tool {params.name!r}; the tool is {name!r}")
        return await _answer(agent, params.arguments or {}, ctx)

    return Server(name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_stdio(agent: Agent[Any], description: str | None = None) -> None:
    """Serve ``agent`` over standard input and output, until the input ends."""
    from mcp.server.stdio import stdio_server

    server = make_server(agent, description)
    async with agent, stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


async def serve_http(agent: Agent[Any], host: str, port: int, description: str | None = None) -> None:
    """Serve ``agent`` over streamable HTTP, at the path ``/mcp``."""
    import uvicorn

    app = make_server(agent, description).streamable_http_app(host=host)
    async with agent:
        await uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning")).serve()


async def _answer(agent: Agent[Any], arguments: JsonObject, ctx: Any) -> types.CallToolResult:
    text, given = arguments.get("input"), arguments.get("session")
    if not isinstance(text, str) or not text.strip():
        return _told("give the question, or the task, as text in 'input'")
    if given is not None and not (isinstance(given, str) and given.startswith(_OURS)):
        return _told(f"there is no session {given!r} to continue; use the session of an answer of this tool")
    session = agent.session(given or f"{_OURS}{secrets.token_hex(8)}")
    try:
        if given is not None and (await session.state()).current_run_id is not None:
            stream = session.resume_stream()  # it waited for a person: what was decided is taken up
        else:
            stream = session.run_stream(text, metadata={"mcp": True})
        steps = 0
        async with stream as run:
            async for event in run:
                if isinstance(event, ToolStarted):
                    steps += 1
                    await ctx.session.report_progress(steps, None, f"calls {event.tool_name}")
            result = await run.result(check=False)
    except AgentError as error:
        return _told(f"{error.code}: {error.message}")
    return await _result(agent, session.session_id, result)


async def _result(agent: Agent[Any], session_id: str, result: RunResult[Any]) -> types.CallToolResult:
    from mcp import types

    is_error = False
    match result.status:
        case "completed":
            words = result.text
        case "awaiting_human" | "paused":
            words = await _waits(agent, session_id)
        case _:
            is_error = True
            error = result.last_error
            words = f"{error.code}: {error.message}" if error is not None else f"the run is {result.status}"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=words)],
        structured_content={"answer": words, "session": session_id, "status": result.status},
        is_error=is_error,
    )


async def _waits(agent: Agent[Any], session_id: str) -> str:
    session = agent.session(session_id)
    calls = [f"approval of {call.tool_name}" for call in await session.pending()]
    questions = [f"an answer to: {one.question}" for one in await session.questions()]
    return (
        f"The agent waits for a person: {'; '.join([*calls, *questions]) or 'its run was paused'}. Decide in "
        f"session {session_id} where the agent runs (turnlog approve, turnlog answer), then call this tool "
        "again with this session."
    )


def _told(words: str) -> types.CallToolResult:
    from mcp import types

    return types.CallToolResult(content=[types.TextContent(type="text", text=words)], is_error=True)


_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "input": {
            "type": "string",
            "description": "What to do, and all that has to be known for it.",
        },
        "session": {"type": "string", "description": "The session of an earlier answer, to continue there."},
    },
    "required": ["input"],
    "additionalProperties": False,
}
_OUTPUT: JsonObject = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "session": {"type": "string"},
        "status": {"type": "string"},
    },
    "required": ["answer", "session", "status"],
}
