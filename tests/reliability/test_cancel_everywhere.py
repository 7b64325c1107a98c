"""Cancelling whoever drives a run, at every await it has: the history stays in order, no task is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from reliability.cancel_sweep import cancel_at, sweep
from turnlog import tool
from turnlog.contract import RetryPolicy, Store, ToolPolicy
from turnlog.history import JsonlStore, MemoryStore, SqliteStore
from turnlog.loop import Approvals
from turnlog.testing import Turn, check_session


def no_tool(stage: Stage) -> Any:
    return stage.agent(["Hello there."])


def tools(stage: Stage) -> Any:
    calls = [call("look", place="a"), call("look", place="b"), call("add", a=1, b=2)]
    return stage.agent([Turn(tool_calls=calls), "Done."], tool_policy=ToolPolicy(max_parallel=2))


def slow_tool(stage: Stage) -> Any:
    @tool(timeout=5.0)
    async def slow() -> str:
        """Take some time, and end well."""
        for _ in range(3):
            await asyncio.sleep(0)
        stage.effects.append("slow")
        return "done"

    return stage.agent([Turn(tool_calls=[call("slow")]), "Done."], tools=[slow])


def asked(stage: Stage) -> Any:
    async def approve(request: Any) -> str:
        await asyncio.sleep(0)
        return "approve"

    turn = Turn(tool_calls=[call("send", to="bob", text="hi")])
    return stage.agent([turn, "Done."], approvals=Approvals(handler=approve))


def retried(stage: Stage) -> Any:
    turns = [Turn(text="Half", error={"code": "ModelOverloaded", "after": 1}), "Whole."]
    return stage.agent(turns, retry=RetryPolicy(base_delay_ms=1))


AGENTS = {"no tool": no_tool, "tools": tools, "slow tool": slow_tool, "asked": asked, "retried": retried}


async def run_cancelled(
    make: Callable[[Stage], Any], store: Store, places: tuple[int, ...]
) -> tuple[int, Any]:
    stage = Stage(store=store)
    agent = make(stage)
    before = asyncio.all_tasks()
    ended, awaits = await cancel_at(agent.run("Go.", session=SESSION), *places)
    assert ended == ("cancelled" if awaits >= places[0] else "finished"), f"cancelled at {places}: {ended}"
    for _ in range(5):
        await asyncio.sleep(0)  # what was cancelled gets to its end
    left = [task.get_name() for task in asyncio.all_tasks() - before]
    assert not left, f"cancelled at {places}: {left}"
    return awaits, stage


async def check(stage: Stage, places: tuple[int, ...], *, settled: bool) -> None:
    if await stage.store.tail(SESSION) is None:
        return
    try:
        await check_session(stage.store, SESSION, settled=settled)
    except AssertionError as error:
        raise AssertionError(f"cancelled at {places}: {error}") from error


@pytest.mark.spec("L-7", "L-8")
@pytest.mark.parametrize("name", AGENTS)
async def test_cancelled_at_any_await_the_run_is_closed_in_order(name: str) -> None:
    async def case(places: tuple[int, ...]) -> int:
        awaits, stage = await run_cancelled(AGENTS[name], MemoryStore(), places)
        await check(stage, places, settled=True)
        assert len(set(stage.effects)) == len(stage.effects)
        result = await stage.agent(["Still here."]).run("Hello?", session=SESSION)
        assert result.text == "Still here."
        return awaits

    assert await sweep(case) > 3


@pytest.mark.spec("L-7", "L-8", "H-10")
@pytest.mark.parametrize("name", ["tools", "slow tool"])
async def test_cancelled_again_while_it_cleans_up_it_can_still_be_resumed(name: str) -> None:
    """Who cancels twice does not wait for the run to be closed: it may stay open, and is then resumed."""

    async def case(places: tuple[int, ...]) -> int:
        awaits, stage = await run_cancelled(AGENTS[name], MemoryStore(), places)
        await check(stage, places, settled=False)
        if await stage.store.tail(SESSION) is not None:
            await stage.agent(["Here I am."]).resume(SESSION)
            await check(stage, places, settled=True)
        return awaits

    assert await sweep(case, twice=True) > 3


@pytest.mark.spec("L-7", "L-8")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_cancelled_at_any_await_on_a_durable_store(kind: str, tmp_path: Path) -> None:
    """There the awaits are in the middle of writes that another thread makes."""
    number = 0

    async def case(places: tuple[int, ...]) -> int:
        nonlocal number
        number += 1
        folder = tmp_path / str(number)
        store = JsonlStore(folder) if kind == "jsonl" else SqliteStore(folder / "log.db")
        try:
            awaits, stage = await run_cancelled(tools, store, places)
            await check(stage, places, settled=True)
        finally:
            await store.close()
        return awaits

    assert await sweep(case) > 3


@pytest.mark.spec("L-7")
async def test_cancelled_at_any_await_of_a_resume() -> None:
    async def waiting() -> Stage:
        stage = Stage()
        agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hi"), call("look", place="x")])])
        await agent.run("Go.", session=SESSION)
        asked = [e for e in await stage.store.load(SESSION) if e.kind == "approval_requested"][-1]
        await agent.decide(SESSION, asked.payload.tool_call_id, "approve", by="carol")
        return stage

    async def case(places: tuple[int, ...]) -> int:
        stage = await waiting()
        agent = stage.agent(["Done."])
        _, awaits = await cancel_at(agent.resume(SESSION), *places)
        await check(stage, places, settled=False)
        await stage.agent(["Done."]).resume(SESSION)
        await check(stage, places, settled=True)
        assert stage.effects.count("send bob: hi") <= 1
        return awaits

    assert await sweep(case) > 3


@pytest.mark.spec("L-1", "L-7")
@pytest.mark.parametrize("name", AGENTS)
async def test_closed_after_any_event_the_run_is_closed_in_order(name: str) -> None:
    heard = 0
    while True:
        heard += 1
        stage = Stage()
        before = asyncio.all_tasks()
        events = AGENTS[name](stage).run_stream("Go.", session=SESSION)
        count = 0
        async for _ in events:
            count += 1
            if count == heard:
                break
        await events.aclose()
        assert asyncio.all_tasks() == before
        await check(stage, (heard,), settled=True)
        if count < heard:
            break
    assert heard > 5


async def test_the_sweep_itself_reaches_every_await() -> None:
    reached: list[int] = []

    async def work() -> None:
        for number in range(4):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                reached.append(number)
                raise

    async def case(places: tuple[int, ...]) -> int:
        return (await cancel_at(work(), *places))[1]

    assert await sweep(case) == 5
    assert reached == [0, 1, 2, 3]
