"""What was staged is committed or dropped: no failure in between leaves a session that cannot be used."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog.contract import AgentError, Store
from turnlog.history import MemoryStore, verify
from turnlog.loop import Approvals, Hooks, replay
from turnlog.testing import FaultStore, StoreFault, Turn


async def check(store: Store) -> list[str]:
    assert await verify(store, SESSION) == []
    report = await replay(store, SESSION)
    assert report.identical, report.difference
    return [entry.kind for entry in await store.load(SESSION)]


@pytest.mark.spec("H-3", "L-8")
async def test_a_run_id_used_twice_is_refused_and_the_session_stays_usable() -> None:
    stage = Stage()
    agent = stage.agent(["One.", "Two.", "Three."])
    await agent.run("Go.", session=SESSION, run_id="r1")
    agent._defaults = dataclasses.replace(agent._defaults, instructions="You are long-winded now.")
    with pytest.raises(AgentError) as caught:
        await agent.run("Go.", session=SESSION, run_id="r1", check=False)
    assert caught.value.code == "InvalidEntry"
    again = await agent.run("Go on.", session=SESSION, run_id="r2")
    assert again.status == "completed", again.last_error
    await check(stage.store)
    assert agent.loop.sessions.kept[SESSION].session.entries == await stage.store.load(SESSION)


@pytest.mark.spec("L-8")
async def test_a_paused_run_that_is_superseded_under_its_own_id_is_left_alone() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."])
    async for event in agent.run_stream("Go.", session=SESSION, run_id="r1"):
        if event.kind == "tool_result":
            await agent.pause("r1")
    with pytest.raises(AgentError) as caught:
        await agent.run("Again.", session=SESSION, run_id="r1", check=False)
    assert caught.value.code == "InvalidEntry"
    assert "run_ended" not in await check(stage.store)
    resumed = await agent.resume(SESSION)
    assert resumed is not None and resumed.text == "Three."


@pytest.mark.spec("L-8", "E-1")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 6))
async def test_a_store_that_raises_anything_ends_the_run_and_harms_no_log(nth: int, when: Any) -> None:
    """A store of somebody else's may raise what it likes: an ``AgentError`` comes out, memory is dropped."""
    stage = Stage()
    inner = MemoryStore()
    stage.store = FaultStore(inner, [StoreFault(nth=nth, when=when, error=OSError("the cable is out"))])
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three.", "More.", "More."])
    result = await agent.run("Add.", session=SESSION, check=False)
    if when == "before" and result.status == "failed":
        assert result.last_error is not None and result.last_error.code == "SessionWriteFailed"
    if await inner.tail(SESSION) is not None:
        assert await verify(inner, SESSION) == []
    again = await agent.run("Go on.", session=SESSION)
    assert again.status == "completed", again.last_error
    await check(inner)
    assert agent.loop.sessions.kept[SESSION].session.entries == await inner.load(SESSION)
    assert len(stage.effects) <= 1


@pytest.mark.spec("L-13", "L-2")
@pytest.mark.parametrize("point", ["before_model", "after_model", "before_tool", "after_tool"])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_hook_that_raises_leaves_a_whole_log(point: str, nth: int) -> None:
    seen: list[Any] = []

    def hook(*args: Any) -> None:
        seen.append(args)
        if len(seen) == nth:
            raise ValueError("no")

    stage = Stage()
    turns = [Turn(tool_calls=[call("add", a=1, b=2)]), Turn(tool_calls=[call("add", a=3, b=4)]), "Done."]
    agent = stage.agent(turns, hooks=Hooks(**{point: [hook]}))
    result = await agent.run("Add.", session=SESSION, check=False)
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == "HookFailed"
    await check(stage.store)
    failed = [e for e in await stage.store.load(SESSION) if e.kind == "model_call_failed"]
    if point == "before_model":
        assert [entry.payload.shown for entry in failed] == [0], "nothing of this call was shown"


@pytest.mark.spec("E-1", "L-13")
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_approval_handler_that_raises_fails_the_run_in_words(is_async: bool) -> None:
    def broken(request: Any) -> str:
        raise KeyError("no such button")

    async def broken_later(request: Any) -> str:
        raise KeyError("no such button")

    stage = Stage()
    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="bob", text="x")])],
        approvals=Approvals(handler=broken_later if is_async else broken),
    )
    result = await agent.run("Greet Bob.", session=SESSION, check=False)
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == "HookFailed" and "no such button" in result.last_error.message
    assert stage.effects == []
    await check(stage.store)


@pytest.mark.spec("H-4")
async def test_two_agents_on_one_store_see_each_others_entries() -> None:
    stage = Stage()
    first, second = stage.agent(["One.", "Three."]), stage.agent(["Two.", "Four."])
    for agent in (first, second, first, second):
        assert (await agent.run("Next.", session=SESSION)).status == "completed"
    log = await stage.store.load(SESSION)
    assert second.loop.sessions.kept[SESSION].session.entries == log
    await check(stage.store)
