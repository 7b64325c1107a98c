"""One session, several models: choice, failover, health, observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent
from turnlog.contract import AgentError, MessageDelta, RequestMetadata, RetryPolicy, TokenUsage, user_message
from turnlog.history import MemoryStore
from turnlog.models import (
    ProviderRouter,
    Route,
    RouteContext,
    RouterNotice,
    by_role,
    cheapest,
    fastest,
    healthiest,
    in_order,
)
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn, VirtualClock


def model(name: str, *turns: Any, **more: Any) -> ScriptedModel:
    return ScriptedModel(list(turns) or [f"{name} answers"], model_id=name, loop=True, **more)


def down(name: str, code: str = "ModelOverloaded", **more: Any) -> ScriptedModel:
    return model(name, Turn(error={"code": code, "message": f"{name} is down", **more}))


async def ask(router: ProviderRouter, **meta: Any) -> list[MessageDelta]:
    place = RequestMetadata(session_id="s", run_id=meta.pop("run_id", "r"), **meta)
    return [delta async for delta in router.stream([user_message("hi")], request_metadata=place)]


def said(deltas: list[MessageDelta]) -> str:
    return "".join(d.payload.text_delta for d in deltas if d.kind == "text")


@pytest.mark.spec("R-2")
async def test_failover_before_the_first_content_is_inside_the_router() -> None:
    router = ProviderRouter({"a": down("a"), "b": model("b")})
    deltas = await ask(router)
    assert [d.kind for d in deltas].count("start") == 1
    assert said(deltas) == "b answers"
    start = deltas[0].payload
    assert start.target.model == "b"
    assert "a failed with ModelOverloaded" in start.reason


@pytest.mark.spec("R-2")
async def test_after_content_the_stream_ends_in_an_error() -> None:
    second = model("b")
    router = ProviderRouter({"a": model("a", Turn(text="some words", cut=True)), "b": second})
    deltas = await ask(router)
    assert deltas[-1].kind == "error" and deltas[-1].payload.retryable
    assert said(deltas) == "some words"
    assert second.requests == []


@pytest.mark.spec("R-2")
async def test_what_another_model_cannot_mend_is_not_tried_elsewhere() -> None:
    other = model("b")
    router = ProviderRouter({"a": down("a", "ModelBadRequest"), "b": other})
    deltas = await ask(router)
    assert deltas[-1].payload.error_code == "ModelBadRequest"
    assert other.requests == []


@pytest.mark.spec("R-2", "D-2")
async def test_all_down_gives_the_last_error_in_a_whole_stream() -> None:
    router = ProviderRouter({"a": down("a"), "b": down("b", "ModelServerError")})
    deltas = await ask(router)
    assert [d.kind for d in deltas] == ["start", "error"]
    assert deltas[-1].payload.error_code == "ModelServerError"


@pytest.mark.spec("R-2")
async def test_the_loop_makes_a_shown_call_again_and_retracts_it() -> None:
    clock, ids = FixedClock(), FixedIds()
    broken = ScriptedModel([Turn(text="half", cut=True)], model_id="a", clock=clock, ids=ids, loop=True)
    router = ProviderRouter(
        {"a": broken, "b": model("b", clock=clock, ids=ids)},
        policy=lambda ctx: ["a", "b"] if ctx.metadata.attempt == 1 else ["b", "a"],
        clock=clock,
        ids=ids,
    )
    agent = Agent(router, store=MemoryStore(), clock=clock, ids=ids, retry=RetryPolicy(jitter=0.0))
    events = [event async for event in agent.run_stream("hi", session="s")]
    assert events[-1].result.text == "b answers"
    assert [e.attempt for e in events if e.kind == "retracted"] == [1]
    started = [e.payload for e in await agent.store.load("s") if e.kind == "model_call_started"]
    assert [(s.target.model, s.reason) for s in started] == [("a", "a: policy"), ("b", "b: policy")]


@pytest.mark.spec("R-1")
async def test_roles_choose_the_model_of_a_run() -> None:
    clock, ids = FixedClock(), FixedIds()
    parts = {"plan": model("planner"), "act": model("executor"), "check": model("reviewer")}
    policy = by_role({"planner": "plan", "executor": ["act"], "reviewer": "check"}, default="act")
    router = ProviderRouter(parts, policy=policy, clock=clock, ids=ids)
    agent = Agent(router, store=MemoryStore(), clock=clock, ids=ids)
    answers = [(await agent.run("go", session="s", role=role)).text for role in ("planner", "reviewer")]
    answers.append((await agent.run("go", session="s")).text)
    assert answers == ["planner answers", "reviewer answers", "executor answers"]
    outputs = [e.payload.invocation.model for e in await agent.store.load("s") if e.kind == "model_output"]
    assert outputs == ["planner", "reviewer", "executor"]


@pytest.mark.spec("R-1")
async def test_policies_sort_by_cost_latency_and_health() -> None:
    routes = {"dear": Route(model("dear"), price=15.0), "cheap": Route(model("cheap"), price=0.2)}
    assert said(await ask(ProviderRouter(routes, policy=cheapest()))) == "cheap answers"
    clock = VirtualClock(auto=True)
    slow = model("slow", Turn(text="slow answers", delay=2.0), clock=clock)
    router = ProviderRouter(
        {"slow": slow, "quick": model("quick", clock=clock)}, policy=fastest(), clock=clock
    )
    await ask(router, run_id="1")
    await ask(router, run_id="2")
    assert said(await ask(router, run_id="3")) == "quick answers"
    router = ProviderRouter({"a": down("a"), "b": model("b")}, policy=healthiest())
    await ask(router, run_id="1")
    assert router.target_for(RequestMetadata(session_id="s", run_id="2"))[0].model == "b"


@pytest.mark.spec("R-3")
async def test_the_circuit_opens_rests_and_closes_again() -> None:
    clock = VirtualClock()
    flaky = ScriptedModel(
        [Turn(error={"code": "ModelServerError", "message": "x"})] * 3 + ["back"], model_id="a"
    )
    router = ProviderRouter({"a": flaky, "b": model("b")}, clock=clock, cooldown=30.0)
    for number in range(3):
        assert said(await ask(router, run_id=str(number))) == "b answers"
    assert router.health()["a"].ready_in == pytest.approx(30.0)
    target, reason = router.target_for(RequestMetadata(session_id="s", run_id="rest"))
    assert target.model == "b"
    assert reason is not None and "a rests 30 s after ModelServerError" in reason
    await clock.advance(31)
    assert said(await ask(router, run_id="again")) == "back"
    assert router.health()["a"].failures_in_a_row == 0


@pytest.mark.spec("R-3")
async def test_retry_after_is_honoured_per_provider() -> None:
    clock = VirtualClock()
    router = ProviderRouter(
        {"a": down("a", "ModelRateLimited", retry_after=12.0), "b": model("b")}, clock=clock
    )
    await ask(router, run_id="1")
    assert router.health()["a"].ready_in == pytest.approx(12.0)
    assert router.target_for(RequestMetadata(session_id="s", run_id="2"))[0].model == "b"
    await clock.advance(13)
    assert router.target_for(RequestMetadata(session_id="s", run_id="3"))[0].model == "a"


@pytest.mark.spec("R-3")
async def test_a_key_that_is_refused_opens_the_circuit_at_once() -> None:
    router = ProviderRouter({"a": down("a", "ModelAuthError"), "b": model("b")})
    deltas = await ask(router, run_id="1")
    assert deltas[-1].payload.error_code == "ModelAuthError"
    assert said(await ask(router, run_id="2")) == "b answers"


@pytest.mark.spec("R-5")
async def test_the_observer_sees_choices_deltas_usage_and_failures() -> None:
    notices: list[RouterNotice] = []
    usage = TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3)
    good = model("b", Turn(text="ok", usage=usage))
    await ask(ProviderRouter({"a": down("a"), "b": good}, observer=notices.append))
    assert [(n.kind, n.route) for n in notices if n.kind in ("choice", "failure")] == [
        ("choice", "a"),
        ("failure", "a"),
        ("choice", "b"),
    ]
    assert [n.usage for n in notices if n.kind == "usage"] == [usage]
    assert {n.delta.kind for n in notices if n.delta is not None and n.route == "b"} >= {
        "start",
        "text",
        "done",
    }


@pytest.mark.spec("R-1", "E-2")
async def test_a_policy_that_names_no_route_is_said_so() -> None:
    def wrong(ctx: RouteContext) -> str:
        return "nowhere"

    router = ProviderRouter({"a": model("a")}, policy=wrong)
    with pytest.raises(AgentError, match="routes are a"):
        router.target_for(RequestMetadata(session_id="s", run_id="r"))
    with pytest.raises(AgentError, match="at least one model"):
        ProviderRouter({})


def test_a_list_of_models_is_named_after_them_and_order_is_kept() -> None:
    router = ProviderRouter([model("x"), model("y"), model("x")], policy=in_order())
    assert list(router.health()) == ["x", "y", "x-3"]
    assert router.supports("tools")


async def test_a_route_may_be_the_name_of_a_model(tmp_path: Path) -> None:
    script = tmp_path / "answers.json"
    script.write_text('["From the file."]')
    router = ProviderRouter({"file": f"scripted:{script}", "other": ScriptedModel("Not asked.")})
    assert (await Agent(router, store="memory:").run("Hi")).text == "From the file."
    with pytest.raises(AgentError) as refused:
        ProviderRouter({"file": "nobody:knows"})
    assert refused.value.code == "ConfigInvalid"
