"""Servers opened by a registry, and their tools called by the executor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from turnlog.contract import ToolCallRequest
from turnlog.mcp import MCPServer
from turnlog.tools import ToolAnswer, ToolContext, ToolExecutor, ToolRegistry


@asynccontextmanager
async def opened(*servers: MCPServer) -> AsyncIterator[Rig]:
    registry = ToolRegistry(servers)
    try:
        await registry.refresh()
        yield Rig(registry)
    finally:
        await registry.close()


class Rig:
    def __init__(self, registry: ToolRegistry) -> None:
        self.registry = registry
        self.executor = ToolExecutor(registry)
        self.heard: list[Any] = []

    async def call(self, name: str, **arguments: Any) -> ToolAnswer:
        request = ToolCallRequest(tool_name=name, tool_call_id=name, raw_arguments="", arguments=arguments)
        ctx = ToolContext(on_progress=lambda text, data: self.heard.append((text, data)))
        return await self.executor.execute(request, ctx)
