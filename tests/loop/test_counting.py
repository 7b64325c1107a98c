"""What a run counts and what it does not, and what it writes when the log cannot be written."""

from __future__ import annotations

import asyncio

import pytest

from loop.scenarios import SESSION, Stage, call, die_at
from turnlog import Agent, tool
from turnlog.contract import LoopLimits, StreamError, StreamStart, TextChunk, TokenUsage, ToolPolicy
from turnlog.history import MemoryStore
from turnlog.testing import FaultStore, ScriptedModel, Turn, fail_append
from turnlog.tools import ToolContext

USED = TokenUsage(input_tokens=10, output_tokens=5, total_tokens=15)


async def test_what_a_failed_call_used_is_in_the_total() -> None:
    stage = Stage()
    start, end = StreamStart(model_id="m"), StreamError(error_code="ModelServerError", message="cut")
    broken = Turn(chunks=[start, TextChunk(text_delta="half"), USED, end])
    result = await stage.agent([broken, Turn(text="whole", usage=USED)]).run("Go.", session=SESSION)
    assert result.usage is not None and result.usage.total_tokens == 30


async def test_a_success_in_between_ends_a_row_of_failures() -> None:
    stage = Stage()
    bad, good = call("divide", a=1, b=0), call("divide", a=1, b=1)
    turns = [Turn(tool_calls=[bad]), Turn(tool_calls=[bad, good]), "It cannot be divided."]
    limits = LoopLimits(max_repeated_failures=2)
    result = await stage.agent(turns, limits=limits).run("Divide.", session=SESSION, check=False)
    assert result.status == "completed", result.last_error


async def test_a_call_that_is_made_again_after_a_crash_is_one_call() -> None:
    stage = Stage()
    policy = ToolPolicy(max_calls_per_run=2, max_parallel=1)
    turn = Turn(tool_calls=[call("look", place="gate"), call("look", place="sea")])
    await die_at(stage.agent([turn], tool_policy=policy), "tool_started", "Look.")
    result = await stage.agent(["All quiet."], tool_policy=policy).resume(SESSION)
    assert result is not None and result.status == "completed"
    entries = await stage.store.load(SESSION)
    assert [entry.payload.attempt for entry in entries if entry.kind == "tool_started"] == [1, 2, 1]
    statuses = [e.payload.outcomes[0].status for e in entries if e.kind == "tool_results"]
    assert statuses == ["success", "success"]


async def test_a_result_is_in_the_log_while_its_neighbour_still_runs() -> None:
    stage = Stage()
    seen: list[list[str]] = []

    @tool(concurrent=True, timeout=None)
    async def quick() -> str:
        """Return at once."""
        return "quick"

    @tool(concurrent=True, timeout=None)
    async def slow() -> str:
        """Return when the other's result is safe."""
        for _ in range(1_000):
            await asyncio.sleep(0)
            kinds = [entry.kind for entry in await stage.store.load(SESSION)]
            if "tool_results" in kinds:
                break
        seen.append(kinds)
        return "slow"

    turn = Turn(tool_calls=[call("slow"), call("quick")])
    await stage.agent([turn, "Both."], tools=[quick, slow]).run("Go.", session=SESSION)
    assert "tool_results" in seen[0]


async def test_calls_of_different_sessions_have_different_keys() -> None:
    """Even where their ids are the same, as after a restore into another session."""
    keys: list[str] = []

    @tool
    async def note(ctx: ToolContext) -> str:
        """Note the key."""
        keys.append(ctx.idempotency_key)
        return "noted"

    for session in ("a", "b"):
        stage = Stage()
        await stage.agent([Turn(tool_calls=[call("note")]), "ok"], tools=[note]).run("Go.", session=session)
    assert len(set(keys)) == 2


@pytest.mark.parametrize("nth", [2, 3, 4])
async def test_after_a_write_that_failed_nothing_more_is_written(nth: int) -> None:
    inner = MemoryStore()
    store = FaultStore(inner, [fail_append(nth)])
    stage = Stage()
    model = ScriptedModel(
        [Turn(tool_calls=[call("look", place="x")]), "ok"], clock=stage.clock, ids=stage.ids
    )
    agent = Agent(model, tools=stage.tools(), store=store, clock=stage.clock, ids=stage.ids)
    result = await agent.run("Look.", session=SESSION, check=False)
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == "SessionWriteFailed"
    assert "run_ended" not in [entry.kind for entry in await inner.load(SESSION)]


async def test_what_was_shown_before_an_abort_is_in_the_log() -> None:
    stage = Stage()
    agent = stage.agent(["A long answer that nobody waits for."])
    async with agent.run_stream("Go.", session=SESSION) as run:
        async for event in run:
            if event.kind == "model_delta" and getattr(event, "text", ""):
                await run.abort("the user left")
    [failed] = [e.payload for e in await stage.store.load(SESSION) if e.kind == "model_call_failed"]
    assert failed.partial and "A long answer".startswith(failed.partial[:6])


async def test_a_call_that_was_stopped_is_not_said_to_have_done_nothing() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)])])
    await die_at(agent, "tool_started", "Add.")
    await stage.agent(["Well."]).run("Something else.", session=SESSION)
    [result] = [
        e.payload.message.tool_results[0].payload.content
        for e in await stage.store.load(SESSION)
        if e.kind == "tool_results"
    ]
    assert "may have taken effect" in result
