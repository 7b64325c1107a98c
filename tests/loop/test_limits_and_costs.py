"""Limits to the number, and costs that are known, unknown, or nonsense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import Agent, ToolResult, tool
from turnlog.contract import (
    AgentError,
    LoopLimits,
    ModelInvocationDescriptor,
    RetryPolicy,
    RunResult,
    TokenUsage,
    ToolPolicy,
    cost_of,
)
from turnlog.history import MemoryStore, Session, verify
from turnlog.loop import plan_retry, replay
from turnlog.testing import ScriptedModel, Turn, VirtualClock

LOOK = Turn(tool_calls=[call("look", place="sea")])


async def run(stage: Stage, turns: list[Any], **options: Any) -> Any:
    result = await stage.agent(turns, **options).run("Go.", session=SESSION, check=False)
    assert await verify(stage.store, SESSION) == []
    assert (await replay(stage.store, SESSION)).identical
    return result


@pytest.mark.spec("L-4")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
async def test_as_many_rounds_of_tools_as_allowed_and_then_an_answer(limit: int) -> None:
    """Two rounds are asked for. The limit counts rounds that ran: it leaves room for the answer to them."""
    stage = Stage()
    result = await run(stage, [LOOK, LOOK, "Quiet."], limits=LoopLimits(max_tool_rounds=limit))
    assert len(stage.effects) == min(limit, 2)
    if limit >= 2:
        assert result.text == "Quiet."
    else:
        assert result.last_error.code == "RunMaxToolRounds"


@pytest.mark.spec("L-4")
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4])
async def test_as_many_model_calls_as_allowed(limit: int) -> None:
    stage = Stage()
    result = await run(stage, [LOOK, LOOK, "Quiet."], limits=LoopLimits(max_iterations=limit))
    made = [e for e in await stage.store.load(SESSION) if e.kind == "model_call_started"]
    assert len(made) == min(limit, 3)
    if limit >= 3:
        assert result.text == "Quiet."
    else:
        assert result.last_error.code == "RunMaxIterations"


@pytest.mark.spec("L-5")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
async def test_as_many_tool_calls_as_allowed(limit: int) -> None:
    stage = Stage()
    turn = Turn(tool_calls=[call("look", place="a"), call("look", place="b")])
    policy = ToolPolicy(max_calls_per_run=limit, max_parallel=2)
    await run(stage, [turn, LOOK, "Quiet."], tool_policy=policy)
    assert len(stage.effects) == min(limit, 3)


@pytest.mark.spec("L-4")
async def test_a_cost_limit_that_cannot_be_kept_says_so() -> None:
    """Nobody knows what this model costs: going on would be to ignore the limit without a word."""
    stage = Stage()
    result = await run(stage, [LOOK, "Quiet."], limits=LoopLimits(max_cost=0.5))
    assert result.status == "failed" and result.last_error.code == "RunCostLimit"
    assert "not known" in result.last_error.message and "max_tokens" in result.last_error.message


@pytest.mark.spec("L-6")
def test_retries_at_the_edges() -> None:
    def error(**meta: Any) -> Any:
        return AgentError("ModelRateLimited", "slow down", meta=meta).to_info()

    policy = RetryPolicy(
        max_attempts=3, base_delay_ms=100, max_delay_ms=150, max_retry_after_ms=5_000, jitter=0
    )
    assert plan_retry(error(), 1, policy, 0.5) == 100
    assert plan_retry(error(), 2, policy, 0.5) == 150, "capped"
    assert plan_retry(error(), 3, policy, 0.5) is None, "three attempts are three attempts"
    assert plan_retry(error(retry_after=2), 1, policy, 0.5) == 2_000
    assert plan_retry(error(retry_after=0.01), 1, policy, 0.5) == 100, "ours when it is longer"
    assert plan_retry(error(retry_after=5), 1, policy, 0.5) == 5_000
    assert plan_retry(error(retry_after=5.001), 1, policy, 0.5) is None, "longer than we would wait"
    assert plan_retry(error(retry_after=math.inf), 1, policy, 0.5) is None
    assert plan_retry(error(retry_after=math.nan), 1, policy, 0.5) == 100
    assert plan_retry(error(retry_after=-3), 1, policy, 0.5) == 100
    assert plan_retry(error(), 1, RetryPolicy(max_attempts=1), 0.5) is None
    assert plan_retry(error(), 5_000, RetryPolicy(max_attempts=9_999, jitter=0), 0.5) == 30_000
    assert plan_retry(AgentError("ModelAuthError", "no").to_info(), 1, policy, 0.5) is None


@pytest.mark.spec("L-6")
async def test_one_attempt_is_one_attempt() -> None:
    stage = Stage()
    result = await run(stage, [AgentError("ModelOverloaded", "busy"), "x"], retry=RetryPolicy(max_attempts=1))
    assert result.last_error.code == "ModelOverloaded"


@pytest.mark.spec("O-2", "D-7")
@pytest.mark.parametrize(
    "usage",
    [
        TokenUsage(input_tokens=10, output_tokens=5, total_tokens=15, cached_input_tokens=20),
        TokenUsage(input_tokens=10, output_tokens=5, total_tokens=15, cache_write_tokens=20),
        TokenUsage(input_tokens=-1, output_tokens=5, total_tokens=4),
    ],
)
def test_usage_that_makes_no_sense_has_no_price(usage: TokenUsage) -> None:
    """What a server reports is not checked by anyone before us; an answer must not be lost over it."""
    known = ModelInvocationDescriptor(
        provider_id="anthropic", specification="anthropic", model="claude-sonnet-4-5"
    )
    assert cost_of(known, usage) is None


@pytest.mark.spec("O-2")
@pytest.mark.parametrize("provider", ["local", "scripted", "openai-compatible", "somebody"])
def test_a_model_is_not_priced_by_its_name_alone(provider: str) -> None:
    target = ModelInvocationDescriptor(provider_id=provider, specification="openai-chat", model="gpt-4o")
    usage = TokenUsage(input_tokens=1_000, output_tokens=5, total_tokens=1_005)
    assert cost_of(target, usage) is None


@pytest.mark.spec("O-2")
@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o"),
        ("azure", "gpt-4o"),
        ("anthropic", "claude-sonnet-4-5"),
        ("google", "gemini-2.5-pro"),
        ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("xai", "grok-3"),
        ("moonshot", "kimi-k2-0905-preview"),
        ("deepseek", "deepseek-chat"),
        ("mistral", "mistral-large-latest"),
        ("groq", "llama-3.3-70b-versatile"),
    ],
)
def test_providers_are_found_under_the_names_that_prices_go_by(provider: str, model: str) -> None:
    pytest.importorskip("genai_prices")
    target = ModelInvocationDescriptor(provider_id=provider, specification="x", model=model)
    usage = TokenUsage(input_tokens=1_000, output_tokens=500, total_tokens=1_500)
    cost = cost_of(target, usage)
    assert cost is not None and cost > 0


@pytest.mark.spec("O-2")
async def test_sums_over_calls_with_and_without_a_cost() -> None:
    stage = Stage()
    priced = TokenUsage(input_tokens=10, output_tokens=1, total_tokens=11, cost=0.25, cached_input_tokens=4)
    free = TokenUsage(input_tokens=5, output_tokens=1, total_tokens=6)
    turns = [Turn(tool_calls=[call("look", place="sea")], usage=priced), Turn(text="Quiet.", usage=free)]
    result = await run(stage, turns)
    whole = TokenUsage(input_tokens=15, output_tokens=2, total_tokens=17, cost=0.25, cached_input_tokens=4)
    assert result.usage == whole
    session = await Session.open(stage.store, SESSION, clock=stage.clock, ids=stage.ids)
    assert session.view().token_usage == whole and session.view().cost_usage == 0.25


# ── time ──


def slow_agent(clock: VirtualClock, store: MemoryStore, limit_ms: int) -> Agent:
    @tool(timeout=None)
    async def ask() -> ToolResult:
        """Work for four seconds, then leave the answer to others."""
        await clock.sleep(4)
        return ToolResult.deferred("somebody answers")

    turns = [Turn(tool_calls=[call("ask")]), Turn(tool_calls=[call("ask")]), "Done."]
    limits = LoopLimits(max_run_duration_ms=limit_ms)
    model = ScriptedModel(turns, clock=clock)
    return Agent(model, tools=[ask], limits=limits, store=store, clock=clock)


@pytest.mark.spec("L-4")
@pytest.mark.parametrize(("limit_ms", "ending"), [(5_000, "RunTimeout"), (10_000, None)])
async def test_a_resumed_run_has_the_time_that_is_left_of_its_limit(
    limit_ms: int, ending: str | None
) -> None:
    clock, store = VirtualClock(auto=True), MemoryStore()
    agent = slow_agent(clock, store, limit_ms)
    result: RunResult[str] | None = await agent.run("Go.", session="s", check=False)
    while result is not None and result.status == "awaiting_human":
        await clock.sleep(3600)  # nobody drives the run: this is not its time
        asked = (await agent.session("s").state()).pending_tool_calls[0]
        await agent.session("s").answer(asked.tool_call_id, "so be it")
        await clock.sleep(3600)
        result = await agent.resume("s", check=False)
    assert result is not None
    assert (result.last_error.code if result.last_error else None) == ending
    assert (await replay(store, "s")).identical
