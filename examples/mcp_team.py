"""An MCP server and two agents as tools of a third, in ten lines: `python examples/mcp_team.py`.

The models are scripted; name a real one in their place. The log of each agent is a session of its own.
"""

import asyncio
import sys
from pathlib import Path

from turnlog import Agent
from turnlog.mcp import MCPServer
from turnlog.testing import ScriptedModel, Turn

SERVER = str(Path(__file__).parent / "team" / "stock_server.py")
ASKED = Turn(tool_calls=[{"name": "in_stock", "arguments": {"article": "map"}}])
SHARED = Turn(
    tool_calls=[{"name": name, "arguments": {"input": "maps"}} for name in ("storekeeper", "writer")]
)
ANSWER = "Maps show the way; we have 9."


async def main() -> None:
    stock = MCPServer.stdio(sys.executable, SERVER)
    storekeeper = Agent(ScriptedModel([ASKED, "9 maps."]), name="storekeeper", tools=[stock], store="memory:")
    writer = Agent(ScriptedModel(["Maps show the way."]), name="writer", store="memory:")
    team = [storekeeper.as_tool("Knows the stock."), writer.as_tool("Writes a line.")]
    editor = Agent(ScriptedModel([SHARED, ANSWER]), tools=team, store="sqlite:mcp_team.db")
    async with storekeeper, writer, editor:
        print((await editor.run("A line about maps, with our stock.", session="maps")).text)


asyncio.run(main())
