"""One executor on a clock that stands still."""

from __future__ import annotations

import asyncio
from typing import Any

from turnlog.contract import ToolCallRequest
from turnlog.testing import VirtualClock
from turnlog.tools import ToolAnswer, ToolContext, ToolExecutor, ToolRegistry


def call(name: str, _id: str = "call_1", **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(tool_name=name, tool_call_id=_id, raw_arguments="", arguments=arguments)


class Rig:
    """Runs tools by name."""

    def __init__(self, *tools: Any, **options: Any) -> None:
        self.clock = VirtualClock()
        self.executor = ToolExecutor(ToolRegistry(tools), self.clock, **options)
        self.ctx = ToolContext(session_id="s", run_id="r", clock=self.clock)

    def start(self, name: str, _id: str = "call_1", **arguments: Any) -> asyncio.Task[ToolAnswer]:
        return asyncio.create_task(self.executor.execute(call(name, _id, **arguments), self.ctx))

    async def run(self, name: str, **arguments: Any) -> ToolAnswer:
        return await self.executor.execute(call(name, **arguments), self.ctx)
