"""What hooks are given, hooks that hang, and hooks that are none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import AgentError, load_model
from turnlog.contract import LoopLimits, RunEvent, ToolCallRequest
from turnlog.history import verify
from turnlog.loop import Hooks, RunIds, replay
from turnlog.testing import Turn, check_session
from turnlog.tools import ToolAnswer

POINTS = ["before_model", "after_model", "before_tool", "after_tool", "on_event"]


@pytest.mark.spec("L-7", "L-13")
@pytest.mark.parametrize("point", POINTS)
async def test_an_abort_reaches_a_run_whose_hook_hangs(point: str) -> None:
    stage = Stage()
    hanging = asyncio.Event()

    async def hang(*_: Any) -> None:
        if not hanging.is_set():
            hanging.set()
            await asyncio.Event().wait()

    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."], hooks=Hooks(**{point: [hang]}))
    task = asyncio.create_task(agent.run("Add.", session=SESSION, run_id="r1", check=False))
    await hanging.wait()
    await asyncio.sleep(0)
    await agent.abort("r1", "enough")
    result = await asyncio.wait_for(task, 120)
    assert result.status == "aborted"
    assert await verify(stage.store, SESSION) == []
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference


@pytest.mark.spec("L-7", "L-13")
@pytest.mark.parametrize("closed", ["agent", "stream"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_may_close_the_run_it_is_called_for(point: str, closed: str) -> None:
    """It does not wait for itself: the run ends as aborted, and its session is free."""
    stage = Stage()

    async def close(*_: Any) -> None:
        await (agent.close() if closed == "agent" else stream.aclose())

    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."], hooks=Hooks(**{point: [close]}))
    stream = agent.run_stream("Add.", session=SESSION)
    result = await asyncio.wait_for(stream.result(check=False), 120)
    assert result.status == "aborted"
    assert agent.loop.sessions.runs == {}
    assert await verify(stage.store, SESSION) == []
    assert (await stage.agent(["Here."]).run("Again.", session=SESSION)).text == "Here."


@pytest.mark.spec("L-7", "L-8", "L-13")
@pytest.mark.parametrize("point", POINTS)
async def test_a_run_that_is_cancelled_inside_a_hook_is_closed_in_order(point: str) -> None:
    stage = Stage()
    hanging = asyncio.Event()

    async def hang(*_: Any) -> None:
        if not hanging.is_set():
            hanging.set()
            await asyncio.Event().wait()

    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."], hooks=Hooks(**{point: [hang]}))
    task = asyncio.create_task(agent.run("Add.", session=SESSION))
    await hanging.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent.loop.sessions.runs == {}
    await check_session(stage.store, SESSION)


@pytest.mark.spec("L-3", "L-13")
async def test_watching_hooks_hear_of_the_end_of_an_aborted_run() -> None:
    stage = Stage()
    heard: list[str] = []
    agent = stage.agent(
        [Turn(tool_calls=[call("wait", what="rain")])],
        hooks=Hooks(on_event=[lambda event: heard.append(event.kind)]),
    )
    async for event in agent.run_stream("Wait.", session=SESSION, run_id="r1"):
        if event.kind == "tool_started":
            await agent.abort("r1", "enough")
    assert heard[-1] == "run_ended" and "error" in heard


@pytest.mark.spec("L-4", "L-13")
async def test_a_time_limit_holds_for_hooks_too() -> None:
    stage = Stage()

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    agent = stage.agent(
        ["Hello."], hooks=Hooks(before_model=[hang]), limits=LoopLimits(max_run_duration_ms=20)
    )
    result = await asyncio.wait_for(agent.run("Go.", session=SESSION, check=False), 120)
    assert result.last_error is not None and result.last_error.code == "RunTimeout"


@pytest.mark.spec("E-1", "L-13")
@pytest.mark.parametrize("given", [print, [None], "print", 5])
@pytest.mark.parametrize("point", POINTS)
def test_hooks_are_lists_of_functions(point: str, given: Any) -> None:
    with pytest.raises(AgentError, match=point):
        Hooks(**{point: given})


@pytest.mark.spec("P-3", "E-1")
@pytest.mark.parametrize("name", [None, 5, "", ":", "openai", "openai:", "nobody:x", b"openai:x"])
def test_a_model_needs_a_name(name: Any) -> None:
    with pytest.raises(AgentError) as caught:
        load_model(name)
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.spec("L-13")
async def test_hooks_get_the_call_its_answer_and_the_ids_they_ask_for() -> None:
    seen: list[Any] = []

    def before(call: ToolCallRequest, *, ids: RunIds) -> None:
        seen.append((call.tool_name, call.arguments, ids))

    async def after(call: ToolCallRequest, answer: ToolAnswer, ids: RunIds) -> None:
        seen.append((call.tool_name, answer.content, ids))

    def told(event: RunEvent, ids: RunIds) -> None:
        assert (ids.session_id, ids.run_id) == (event.session_id, event.run_id)

    hooks = Hooks(before_tool=[before], after_tool=[after], on_event=[told])
    agent = Stage().agent([Turn(tool_calls=[call("add", a=1, b=1)]), "ok"], hooks=hooks)
    result = await agent.run("go", session=SESSION)
    ids = RunIds(SESSION, result.run_id)
    assert seen == [("add", {"a": 1, "b": 1}, ids), ("add", "2", ids)]
