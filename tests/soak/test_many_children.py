"""Two hundred children of one run, all at work at the same time, measured in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, resource, sys
from turnlog import Agent, tool
from turnlog.contract import ToolPolicy
from turnlog.testing import ScriptedModel, Turn

COUNT = 200

async def main():
    together, tool_calls = asyncio.Barrier(COUNT), asyncio.Barrier(COUNT)

    @tool
    async def read(page: int) -> str:
        '''Read a page.'''
        async with asyncio.timeout(120):
            await tool_calls.wait()
        return "word " * 2000

    async def answer(request):
        if request.messages[-1].role == "tool":
            async with asyncio.timeout(120):
                await together.wait()
            return "About " + request.messages[0].text
        return Turn(tool_calls=[{"name": "read", "arguments": {"page": 1}}])

    finder = Agent(ScriptedModel(default=answer), name="finder", tools=[read], store="memory:")
    calls = [{"name": "finder", "arguments": {"input": f"topic {n}"}} for n in range(COUNT)]
    agent = Agent(
        ScriptedModel([Turn(tool_calls=calls), "Done."]),
        tools=[finder.as_tool("Finds facts.")],
        tool_policy=ToolPolicy(max_parallel=COUNT),
        store="sqlite:" + sys.argv[1],
    )
    async with agent:
        assert (await agent.run("Go.", session="s")).text == "Done."
        assert len(await agent.store.sessions(metadata={"parent_session": "s"})) == COUNT

asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.soak
@pytest.mark.spec("L-11")
def test_two_hundred_children_at_once_hold_under_300_mb(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "log.db")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"200 children at once: {done.stdout.strip()} MB")
    assert int(done.stdout) < 300
