"""What a run's policy bounds: how many tools run at once, which run alone, what is offered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import tool
from turnlog.contract import ToolPolicy
from turnlog.testing import Turn


@dataclass
class Gauge:
    """Counts the bodies that are inside at the same time, and with whom the lonely one shared the room."""

    inside: list[str] = field(default_factory=list[str])
    most: int = 0
    beside: set[str] = field(default_factory=set[str])

    async def stay(self, name: str) -> str:
        self.inside.append(name)
        self.most = max(self.most, len(self.inside))
        if "lonely" in self.inside:
            self.beside |= set(self.inside) - {"lonely"}
        for _ in range(20):  # every other task has its turn meanwhile
            await asyncio.sleep(0)
        self.inside.remove(name)
        return name

    def tools(self) -> list[Any]:
        @tool(concurrent=True, timeout=None)
        async def crowd(number: int) -> str:
            """May run beside others."""
            return await self.stay(f"crowd {number}")

        @tool(timeout=None)
        async def lonely() -> str:
            """Runs alone."""
            return await self.stay("lonely")

        return [crowd, lonely]


CROWD = [call("crowd", number=n) for n in range(8)]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
async def test_at_most_so_many_tools_run_at_once(width: int) -> None:
    stage, gauge = Stage(), Gauge()
    agent = stage.agent(
        [Turn(tool_calls=CROWD), "ok"], tools=gauge.tools(), tool_policy=ToolPolicy(max_parallel=width)
    )
    await agent.run("go", session=SESSION)
    assert gauge.most == width


@pytest.mark.parametrize("place", [0, 3, 8])
async def test_a_tool_that_is_not_concurrent_runs_alone(place: int) -> None:
    stage, gauge = Stage(), Gauge()
    calls = [*CROWD[:place], call("lonely"), *CROWD[place:], call("lonely")]
    agent = stage.agent(
        [Turn(tool_calls=calls), "ok"], tools=gauge.tools(), tool_policy=ToolPolicy(max_parallel=4)
    )
    await agent.run("go", session=SESSION)
    assert gauge.beside == set()
    assert gauge.most == 4, "the others still run side by side"
    shown = [each for each in (await agent.session(SESSION).messages()) if each.role == "tool"]
    names = [part.payload.text.split()[0] for message in shown for part in message.tool_results]
    assert sorted(names) == sorted(each["name"] for each in calls)


async def offered(**options: Any) -> list[str]:
    stage, gauge = Stage(), Gauge()
    agent = stage.agent(["ok"], tools=[*gauge.tools(), *stage.tools()])
    await agent.run("go", session=SESSION, **options)
    entries = await stage.store.load(SESSION)
    own = {"crowd", "lonely", "add", "look", "divide", "wait", "send"}
    found = next(entry.payload.tools for entry in entries if entry.kind == "tools_change")
    return [spec.name for spec in found if spec.name in own]


async def test_the_model_is_offered_tools_in_the_order_of_the_run() -> None:
    assert await offered() == ["crowd", "lonely", "add", "look", "divide", "wait", "send"]
    order = ["wait", "add", "crowd"]
    assert await offered(tool_order=order) == ["wait", "add", "crowd", "lonely", "look", "divide", "send"]
    assert await offered(tool_order=order, allowed_tools=["add", "wait"]) == ["wait", "add"]


async def test_the_runs_own_list_never_widens_the_policys() -> None:
    policy = ToolPolicy(allow_list=["add", "look"])
    assert await offered(tool_policy=policy, allowed_tools=["look", "send"]) == ["look"]


async def test_no_tool_is_offered_and_none_runs_where_tools_are_off() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "ok"])
    await agent.run("go", session=SESSION, tool_policy=ToolPolicy(enabled=False))
    entries = await stage.store.load(SESSION)
    assert not any(entry.kind == "tools_change" and entry.payload.tools for entry in entries)
    assert [e.payload.outcomes[0].error_code for e in entries if e.kind == "tool_results"] == ["ToolNotFound"]
    assert stage.effects == []
