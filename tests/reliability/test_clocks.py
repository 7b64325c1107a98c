"""Wall clocks that are set back and forth while a run goes."""

from __future__ import annotations

import asyncio
import random

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import Agent
from turnlog.contract import RetryPolicy, ToolPolicy
from turnlog.history import MemoryStore
from turnlog.system import SystemIds
from turnlog.testing import ScriptedModel, Turn, check_session


class JumpyClock:
    """Each time it is asked, it may be years earlier or later. Durations are right: they never are asked
    of the wall clock."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._passed = 0.0

    def now(self) -> str:
        return f"{self._random.randrange(1971, 2099)}-{self._random.randrange(1, 13):02d}-01T00:00:00.000Z"

    def monotonic(self) -> float:
        self._passed += 0.001
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self._passed += seconds
        await asyncio.sleep(0)


@pytest.mark.spec("M-1", "H-1", "H-10")
@pytest.mark.parametrize("seed", range(25))
async def test_a_clock_that_jumps_changes_times_and_nothing_else(seed: int) -> None:
    clock, stage, store = JumpyClock(seed), Stage(), MemoryStore()
    turns = [
        Turn(error={"code": "ModelOverloaded", "retry_after": 2.0}),
        Turn(tool_calls=[call("add", a=1, b=2), call("look", place="x"), call("send", to="a", text="b")]),
        "Done.",
    ]
    ids = SystemIds()
    agent = Agent(
        ScriptedModel(turns, clock=clock, ids=ids),
        tools=stage.tools(),
        store=store,
        clock=clock,
        ids=ids,
        retry=RetryPolicy(jitter=0.0),
        tool_policy=ToolPolicy(max_parallel=2),
    )
    result = await agent.run("Go.", session=SESSION)
    assert result.status == "awaiting_human"
    asked = [e for e in await store.load(SESSION) if e.kind == "approval_requested"][-1]
    await agent.decide(SESSION, asked.payload.tool_call_id, "approve", by="carol")
    resumed = await agent.resume(SESSION)
    assert resumed is not None and resumed.status == "completed"
    entries = await store.load(SESSION)
    assert [entry.id for entry in entries] == sorted(entry.id for entry in entries)
    elapsed = [o.elapsed_ms for e in entries if e.kind == "tool_results" for o in e.payload.outcomes]
    assert all(value is not None and 0 <= value < 10_000 for value in elapsed)
    await check_session(store, SESSION)
