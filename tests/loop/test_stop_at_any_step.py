"""A run that is paused, or aborted and cancelled twice, after any number of steps of the event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import Agent, tool
from turnlog.contract import AgentError, RetryPolicy, ToolPolicy
from turnlog.history import SessionState, verify
from turnlog.loop import Approvals, replay
from turnlog.testing import Turn
from turnlog.widgets import MemoryNotebookWidget

STEPS = range(120)


def agent_on(stage: Stage) -> Agent:
    """Everything a run does: retry, think, run tools side by side, keep long output, ask, take notes."""

    @tool(timeout=None, concurrent=True)
    async def fetch(n: int) -> str:
        """Fetch a long text."""
        stage.effects.append(f"fetch {n}")
        await asyncio.sleep(0)
        return "".join(f"line {i}\n" for i in range(8_000))

    @tool(timeout=None)
    def compute(n: int) -> int:
        """Compute in a thread."""
        stage.effects.append(f"compute {n}")
        return n * n

    turns = [
        Turn(text="Half", error={"code": "ModelOverloaded", "after": 1}),
        Turn(
            thinking="hm",
            tool_calls=[call("fetch", n=1), call("look", place="sea"), call("send", to="bob", text="x")],
        ),
        Turn(tool_calls=[call("compute", n=3), call("notebook_write", name="n", text="nine")]),
        "Done.",
    ]
    return stage.agent(
        turns,
        tools=[fetch, compute, *stage.tools()],
        tool_policy=ToolPolicy(max_parallel=2),
        retry=RetryPolicy(jitter=0.0),
        approvals=Approvals(handler=lambda _: "approve"),
        widgets=[MemoryNotebookWidget()],
    )


async def check(stage: Stage, agent: Agent, *, open_run: bool = False) -> None:
    assert agent.loop.sessions.runs == {}
    left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    assert left == set()
    assert len(stage.effects) == len(set(stage.effects)), "something ran twice"
    if await stage.store.tail(SESSION) is not None:
        assert await verify(stage.store, SESSION) == []
        state = SessionState.of(await stage.store.load(SESSION))
        assert open_run or (not state.is_open and not state.open_calls)
        report = await replay(stage.store, SESSION)
        assert report.identical, report.difference
        kept = agent.loop.sessions.kept.get(SESSION)
        assert kept is None or kept.session.entries == await stage.store.load(SESSION)
        assert kept is None or not kept.session.staged
    again = stage.agent(["Here."])
    agent.loop._parts = dataclasses.replace(agent.loop.parts, model=again.model)
    if open_run:
        await agent.resume(SESSION)
    assert (await agent.run("Are you there?", session=SESSION)).status == "completed"
    assert (await replay(stage.store, SESSION)).identical


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.spec("L-7", "L-8")
@pytest.mark.parametrize("number", range(0, 120, 3))
async def test_aborted_and_cancelled(number: int) -> None:
    stage = Stage()
    agent = agent_on(stage)
    task = asyncio.create_task(agent.run("Go.", session=SESSION, run_id="r1"))
    await steps(number)
    await agent.abort("r1", "enough")
    await steps(number % 4)
    task.cancel()
    await steps(number % 3)
    task.cancel()
    with suppress(asyncio.CancelledError, AgentError):
        await task
    # Whoever cancels twice may cut off the writing of the end itself; the run is then resumed.
    state = SessionState()
    if await stage.store.tail(SESSION) is not None:
        state = SessionState.of(await stage.store.load(SESSION))
    await check(stage, agent, open_run=state.is_open)


@pytest.mark.spec("A-1", "H-10")
@pytest.mark.parametrize("number", range(0, 120, 2))
async def test_paused_and_resumed(number: int) -> None:
    stage = Stage()
    agent = agent_on(stage)
    task = asyncio.create_task(agent.run("Go.", session=SESSION, run_id="r1"))
    await steps(number)
    await agent.pause("r1")
    result: Any = await task
    for _ in range(3):
        if result is not None and result.status in ("paused", "awaiting_human"):
            result = await agent.resume(SESSION)
    assert result is not None and result.status == "completed", result
    await check(stage, agent)
