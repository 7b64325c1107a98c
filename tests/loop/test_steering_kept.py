"""A message sent to a run in progress is not lost, however the run continues or ends."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from loop.scenarios import SESSION, MortalStore, Stage, call, decide
from turnlog.contract import AgentError, LoopLimits, RetryPolicy, Store
from turnlog.history import verify
from turnlog.loop import Hooks, replay
from turnlog.testing import Turn

WORD = "And mind the gap."


async def said(store: Store) -> list[str]:
    assert await verify(store, SESSION) == []
    report = await replay(store, SESSION)
    assert report.identical, report.difference
    assert not report.open_run or report.entries == len(await store.load(SESSION))
    return [e.payload.message.text for e in await store.load(SESSION) if e.kind == "model_input"]


async def watch(agent: Any, say_at: str, *, then: Any = None) -> Any:
    """Run, and say the word at the first event of that kind."""
    done = False
    async for event in agent.run_stream("Go.", session=SESSION, run_id="r1"):
        if event.kind == say_at and not done:
            done = True
            await agent.send(SESSION, WORD)
            if then is not None:
                await then()
    return event.result


@pytest.mark.spec("L-12")
@pytest.mark.parametrize("say_at", ["status", "model_call", "model_delta", "tool_started", "tool_result"])
async def test_it_enters_before_the_next_call(say_at: str) -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three.", "I do."])
    assert (await watch(agent, say_at)).status == "completed"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12")
async def test_the_last_event_before_the_end_is_not_too_late() -> None:
    stage = Stage()
    agent = stage.agent(["Hello.", "I do."])
    result = await watch(agent, "assistant_message")
    assert result.text == "I do." and await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12", "A-2")
async def test_it_is_heard_after_a_wait_for_approval() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="x")]), "Done."])
    assert (await watch(agent, "approval_requested")).status == "awaiting_human"
    await decide(agent, "approve")
    result = await agent.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert await said(stage.store) == ["Go.", WORD]
    asked = [m.text for m in agent.model.requests[-1].messages if m.role == "user"]  # type: ignore[attr-defined]
    assert WORD in asked[-1]


@pytest.mark.spec("L-12", "A-1")
async def test_it_is_heard_after_a_pause() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three.", "I do."])

    async def pause() -> None:
        await agent.pause("r1")

    await watch(agent, "tool_result", then=pause)
    result = await agent.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12", "L-4")
async def test_it_is_in_the_log_when_a_limit_ends_the_run() -> None:
    stage = Stage()
    agent = stage.agent(
        [Turn(tool_calls=[call("add", a=1, b=2)]), "Never."], limits=LoopLimits(max_iterations=1)
    )
    result = await watch(agent, "tool_result")
    assert result.last_error.code == "RunMaxIterations"
    assert await said(stage.store) == ["Go.", WORD]
    assert (await stage.agent(["I mind it."]).run("Well?", session=SESSION)).status == "completed"
    assert await said(stage.store) == ["Go.", WORD, "Well?"]


@pytest.mark.spec("L-12", "L-6")
async def test_it_is_in_the_log_when_the_model_fails() -> None:
    stage = Stage()
    agent = stage.agent(
        [Turn(text="Half", error={"code": "ModelOverloaded", "after": 1})], retry=RetryPolicy(max_attempts=1)
    )
    result = await watch(agent, "model_delta")
    assert result.last_error.code == "ModelOverloaded"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12", "L-9")
async def test_it_is_in_the_log_when_the_prompt_does_not_fit() -> None:
    stage = Stage()
    agent = stage.agent([AgentError("ModelContextOverflow", "prompt is too long")])
    result = await watch(agent, "model_call")
    assert result.last_error.code == "ContextOverflow"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12", "L-7")
@pytest.mark.parametrize("say_at", ["status", "model_call", "model_delta", "tool_started", "tool_result"])
async def test_it_is_in_the_log_when_the_run_is_aborted(say_at: str) -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2), call("add", a=2, b=2)]), "Three."])

    async def abort() -> None:
        await agent.abort("r1", "enough")

    assert (await watch(agent, say_at, then=abort)).status == "aborted"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12", "L-13")
async def test_it_is_in_the_log_when_a_hook_fails() -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no")

    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."], hooks=Hooks(after_tool=[fail]))
    assert (await watch(agent, "tool_started")).last_error.code == "HookFailed"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12", "H-10")
async def test_it_waits_until_a_call_that_a_crash_cut_off_is_made_again() -> None:
    stage = Stage()
    assert isinstance(stage.store, MortalStore)
    async with aclosing(stage.agent(["Never."]).run_stream("Go.", session=SESSION)) as events:
        async for event in events:
            if event.kind == "model_call":
                stage.store.dead = True
                break
    stage.store.dead = False
    agent = stage.agent(["Hello.", "I do."])
    await agent.send(SESSION, WORD)
    result = await agent.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert await said(stage.store) == ["Go.", WORD]


@pytest.mark.spec("L-12")
async def test_who_speaks_too_late_is_told() -> None:
    """Once a run is being ended, nothing is taken in that nobody would hear."""
    stage = Stage()

    async def wait_and_end(*_: Any) -> None:
        await asyncio.sleep(0)

    agent = stage.agent(["Hello."], hooks=Hooks(after_model=[wait_and_end]))
    heard: list[str] = []
    async for event in agent.run_stream("Go.", session=SESSION, run_id="r1"):
        if event.kind == "run_ended":
            with pytest.raises(AgentError, match="no run is in progress"):
                await agent.send(SESSION, WORD)
            heard.append(event.kind)
    assert heard and await said(stage.store) == ["Go."]


@pytest.mark.spec("L-12", "H-3")
@pytest.mark.parametrize("word", ["", "  \n", "half a \ud83d", []])
async def test_what_cannot_be_said_fails_who_says_it_and_not_the_run(word: Any) -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."])
    async for event in agent.run_stream("Go.", session=SESSION):
        if event.kind == "tool_started":
            with pytest.raises(AgentError):
                await agent.send(SESSION, word)
    assert event.result.status == "completed"  # type: ignore[attr-defined]
    assert await said(stage.store) == ["Go."]
