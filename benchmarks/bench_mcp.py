"""What a call of an MCP tool costs here beside the bare client of the ``mcp`` package: at most 1 ms more."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from turnlog.contract import ToolCallRequest
from turnlog.mcp import MCPServer
from turnlog.tools import ToolContext, ToolExecutor, ToolRegistry

SERVER = ["-SE", str(Path(__file__).parents[1] / "tests" / "mcp" / "hostile.py"), "plain"]
CALLS, ROUNDS = 300, 5
LIMIT_MS = 1.0


async def median_ms(call: Callable[[], Awaitable[Any]]) -> float:
    times: list[float] = []
    for _ in range(CALLS):
        start = time.perf_counter()
        await call()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


async def main() -> int:
    registry = ToolRegistry([MCPServer.stdio(sys.executable, *SERVER)])
    await registry.refresh()
    executor = ToolExecutor(registry)
    request = ToolCallRequest(tool_name="plain", tool_call_id="c", raw_arguments="", arguments={})
    bare_ms: list[float] = []
    ours_ms: list[float] = []
    async with Client(StdioServerParameters(command=sys.executable, args=SERVER)) as client:
        for _ in range(ROUNDS):  # in turns, so that a busy machine slows both
            bare_ms.append(await median_ms(lambda: client.call_tool("plain", {})))
            ours_ms.append(await median_ms(lambda: executor.execute(request, ToolContext())))
    await registry.close()
    bare, ours = min(bare_ms), min(ours_ms)
    more = ours - bare
    print(f"bare client {bare:.3f} ms, turnlog {ours:.3f} ms, more by {more:.3f} ms (limit {LIMIT_MS:g} ms)")
    return 0 if more <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
