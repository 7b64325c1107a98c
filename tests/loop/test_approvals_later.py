"""Waiting is a state in the log: decisions that come later, expire, or concern what may have run."""

from __future__ import annotations

import pytest

from loop.scenarios import SESSION, Stage, call, decide, die_at
from turnlog.contract import ToolPolicy
from turnlog.loop import replay
from turnlog.testing import Turn


async def outcomes(stage: Stage) -> list[tuple[str, str | None]]:
    return [
        (outcome.status, outcome.error_code)
        for entry in await stage.store.load(SESSION)
        if entry.kind == "tool_results"
        for outcome in entry.payload.outcomes
    ]


@pytest.mark.spec("T-3", "A-3", "H-10")
async def test_an_approved_call_that_may_have_run_is_not_run_again() -> None:
    """The approval came before the crash: it let the call run once, not once more."""
    stage = Stage()
    first = stage.agent(
        [Turn(tool_calls=[call("send", to="ann", text="hi")])], on_approval=lambda r: "approve"
    )
    await die_at(first, "tool_started", "Tell Ann.")
    ran = list(stage.effects)
    await stage.agent(["Perhaps told."]).resume(SESSION)
    assert stage.effects == ran
    assert await outcomes(stage) == [("unknown", "ToolOutcomeUnknown")]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("T-3", "A-1")
@pytest.mark.parametrize(("action", "runs"), [("approve", 1), ("deny", 0)])
async def test_an_unknown_outcome_may_be_put_to_a_human(action: str, runs: int) -> None:
    stage = Stage()
    policy = ToolPolicy(outcome_unknown="human")
    first = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)])], tool_policy=policy)
    await die_at(first, "tool_started", "Add.")
    before = len(stage.effects)
    second = stage.agent(["Done."], tool_policy=policy)
    result = await second.resume(SESSION)
    assert result is not None and result.status == "awaiting_human"
    await decide(second, action)
    result = await second.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert len(stage.effects) - before == runs
    keys = {e.payload.idempotency_key for e in await stage.store.load(SESSION) if e.kind == "tool_started"}
    assert len(keys) == 1
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1", "A-4")
async def test_a_request_nobody_decides_in_time_expires() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="a", text="b")]), "Then not."], approval_ttl=60.0)
    assert (await agent.run("go", session=SESSION)).status == "awaiting_human"
    stage.clock.advance(3600)
    result = await agent.resume(SESSION)
    assert result is not None and result.text == "Then not."
    assert stage.effects == []
    assert [s for s, _ in await outcomes(stage)] == ["denied"]
    decided = next(e.payload for e in await stage.store.load(SESSION) if e.kind == "approval_decided")
    assert decided.action == "expire"
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1")
async def test_a_paused_run_is_let_go_and_goes_on_when_resumed() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "Two."])
    async for event in agent.run_stream("1 + 1?", session=SESSION):
        if event.kind == "tool_started":
            assert await agent.pause(event.run_id)
    assert event.payload.result.status == "awaiting_human"
    kinds = [entry.kind for entry in await stage.store.load(SESSION)]
    assert kinds[-1] == "tool_results"
    result = await stage.agent(["Two."]).resume(SESSION)
    assert result is not None and result.text == "Two."
    assert stage.effects == ["add 1 1"]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-2", "A-4")
async def test_other_calls_run_while_one_waits() -> None:
    stage = Stage()
    calls = [call("send", to="a", text="b"), call("add", a=1, b=1)]
    agent = stage.agent([Turn(tool_calls=calls), "Both."])
    assert (await agent.run("go", session=SESSION)).status == "awaiting_human"
    assert stage.effects == ["add 1 1"]
    await decide(agent, "approve")
    await agent.resume(SESSION)
    assert stage.effects == ["add 1 1", "send a: b"]
    assert (await replay(stage.store, SESSION)).identical
