"""An MCP server for the tests, over stdio or streamable HTTP: ``python everything.py [PORT]``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("everything")
logging.disable(logging.WARNING)  # of names that are odd on purpose


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="odd.name/here")
def odd() -> str:
    """Has a name that no provider takes."""
    return "odd"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it cannot be done")


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


class Guest(BaseModel):
    name: str


def who() -> Elicit[Guest]:
    return Elicit("For whom?", Guest)


@server.tool()
def book(guest: Annotated[Guest, Resolve(who)]) -> str:
    """Asks a person."""
    return f"booked for {guest.name}"


@server.tool()
def flood(size: int) -> str:
    """Answers at length."""
    return "x" * size


@server.tool()
def environment() -> str:
    """The names of the variables it sees."""
    return " ".join(sorted(os.environ))


@server.tool()
async def work(ctx: Context) -> str:  # type: ignore[type-arg]
    """Reports its progress."""
    for step in range(3):
        await ctx.report_progress(step, 2, f"step {step}")
    return "worked"


@server.tool()
async def wait(path: str) -> str:
    """Waits for ever, and leaves a file when it is cancelled."""
    try:
        await asyncio.sleep(3600)
    finally:
        with open(path, "w") as file:  # noqa: ASYNC230
            file.write("cancelled")
    return "never"


@server.tool()
async def grow(ctx: Context) -> str:  # type: ignore[type-arg]
    """Adds a tool."""

    @server.tool()
    def grown() -> str:
        """Came later."""
        return "grown"

    await ctx.notify_tools_changed()  # to those who listen, in the newer protocol
    await ctx.session.send_tool_list_changed()
    return "a tool was added"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
