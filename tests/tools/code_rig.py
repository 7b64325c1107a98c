"""An agent with the built-in tools, whose model makes the calls of a test one after the other."""

from __future__ import annotations

from typing import Any

from turnlog import Agent
from turnlog.contract import Runtime, ToolResultsEntry
from turnlog.history import open_store
from turnlog.testing import FakeRuntime, ScriptedModel, Turn
from turnlog.tools import code_tools


def call(tool: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=[{"name": tool, "arguments": arguments}])


class CodeRig:
    def __init__(
        self, files: dict[str, str | bytes] | None = None, *, runtime: Runtime | None = None, **options: Any
    ):
        self.files = FakeRuntime(files or {}, **options)
        self.runtime: Runtime = runtime or self.files
        self.store = open_store("memory:")
        self.tools = code_tools()

    def agent(self, *turns: Any, **options: Any) -> Agent:
        return Agent(
            ScriptedModel(list(turns)), tools=self.tools, store=self.store, runtime=self.runtime, **options
        )

    async def run(self, *calls: Turn, session: str = "s") -> list[tuple[str, str]]:
        """Status and text of each call of one turn."""
        before = len(await self.results(session))
        await self.agent(*calls, "Done.").run("Work.", session=session)
        return (await self.results(session))[before:]

    async def results(self, session: str = "s") -> list[tuple[str, str]]:
        if await self.store.tail(session) is None:
            return []
        return [
            (outcome.status, str(part.payload.content))
            for entry in await self.store.load(session)
            if isinstance(entry, ToolResultsEntry)
            for part, outcome in zip(entry.payload.message.tool_results, entry.payload.outcomes, strict=True)
        ]
