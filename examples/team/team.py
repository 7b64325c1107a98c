"""Two agents and an MCP server: a clerk asks the server for the stock and the buyer, an agent, for prices.

Run it: `python examples/team/team.py`. The clerk answers 40 questions in one session; its context is folded
on the way, and the log still has every word: the session is replayed at the end, entry by entry.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from turnlog import Agent, ToolContext, tool
from turnlog.context import ContextOptions
from turnlog.history import open_store
from turnlog.mcp import MCPServer
from turnlog.models import ModelRequest, ScriptedModel, Turn

QUESTIONS = 40


def think_as_clerk(request: ModelRequest) -> str | Turn:
    """What a model would say: ask for both, then report."""
    last = request.messages[-1]
    if last.tool_results:
        stock, price = (part.payload.text for part in last.tool_results)
        return f"{stock} in stock. {price} " + "Please tell me if you need anything else. " * 20
    article = last.text.split()[-1].strip("?")
    return Turn(
        tool_calls=[{"name": name, "arguments": {"article": article}} for name in ("in_stock", "ask_buyer")]
    )


async def main() -> None:
    store = open_store("memory:")
    buyer = Agent(
        ScriptedModel(default="It costs 5 dollars."),
        name="buyer",
        instructions="You know what things cost.",
        store=store,
    )

    @tool(concurrent=True, idempotent=True)
    async def ask_buyer(ctx: ToolContext, article: str) -> str:
        """Ask the buyer what an article costs."""
        child = f"{ctx.session_id}-{ctx.tool_call_id}"
        return (await buyer.run(f"What does {article} cost?", session=child)).text

    clerk = Agent(
        ScriptedModel(default=think_as_clerk),
        name="clerk",
        tools=[MCPServer.stdio(sys.executable, str(Path(__file__).with_name("stock_server.py"))), ask_buyer],
        store=store,
        context=ContextOptions(fold_at=4_000, min_freed_tokens=500),
    )
    async with buyer, clerk:
        shop = clerk.session("shop")
        for number in range(QUESTIONS):
            result = await shop.run(f"Do we have article-{number}?")
        print(result.text.split(" Please")[0])
        entries = await shop.entries()
        print(f"{len(entries)} entries, {sum(entry.kind == 'fold' for entry in entries)} folds")
        print(f"{len(await store.sessions())} sessions, one for each question to the buyer")
        print(f"replayed: {'identical' if (await shop.replay()).identical else 'different'}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
