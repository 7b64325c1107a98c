"""R. Router."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from acceptance.desk import Desk, asks_for, call
from turnlog import Agent
from turnlog.contract import LIVE_SCREEN, RequestMetadata, TokenUsage, encode, user_message
from turnlog.models import (
    ProviderRouter,
    Route,
    RouterNotice,
    by_role,
    cheapest,
    fastest,
    healthiest,
    in_order,
)
from turnlog.testing import FixedClock, ScriptedModel, Turn, VirtualClock
from turnlog.widgets import MemoryNotebookWidget


def model(name: str, *turns: Any, **more: Any) -> ScriptedModel:
    return ScriptedModel(list(turns) or [f"{name} here"], model_id=name, loop=True, **more)


def broken(name: str, code: str = "ModelOverloaded", **more: Any) -> ScriptedModel:
    return model(name, Turn(error={"code": code, "message": "down", **more}))


async def ask(router: ProviderRouter, call_index: int = 1, **meta: Any) -> list[Any]:
    place = RequestMetadata(session_id="s", run_id="r", model_call_index=call_index, **meta)
    return [delta async for delta in router.stream([user_message("Hi.")], request_metadata=place)]


def text(deltas: list[Any]) -> str:
    return "".join(delta.payload.text_delta for delta in deltas if delta.kind == "text")


@pytest.mark.spec("R-1")
async def test_one_session_is_answered_by_roles() -> None:
    desk = Desk()
    roles = {name: model(name) for name in ("planner", "executor", "reviewer")}
    for role in roles:
        agent = Agent(ProviderRouter(roles, policy=by_role({r: r for r in roles})), store=desk.store)
        assert (await agent.run("Go.", session="s", role=role)).text == f"{role} here"
    models = [entry.payload.invocation.model for entry in await desk.of_kind("model_output")]
    assert models == list(roles)


@pytest.mark.spec("R-1")
async def test_a_function_fallback_order_health_cost_and_latency_choose() -> None:
    clock = VirtualClock(auto=True)
    slow, quick = model("slow", Turn(text="slow", delay=2.0), clock=clock), model("quick", clock=clock)
    routes = {"slow": Route(slow, price=1.0), "quick": Route(quick, price=9.0)}
    own = ProviderRouter(routes, policy=lambda ctx: ["quick"], clock=clock)
    assert text(await ask(own)) == "quick here"
    assert text(await ask(ProviderRouter(routes, policy=in_order(), clock=clock))) == "slow"
    assert text(await ask(ProviderRouter(routes, policy=cheapest(), clock=clock))) == "slow"
    timed = ProviderRouter(routes, policy=fastest(), clock=clock)
    first = {text(await ask(timed, index)) for index in (1, 2)}
    assert first == {"slow", "quick here"}, "each is measured"
    assert text(await ask(timed, 9)) == "quick here"
    sick = ProviderRouter({"a": broken("a"), "b": model("b")}, policy=healthiest(), clock=clock)
    assert text(await ask(sick, 1)) == "b here"
    assert text(await ask(sick, 2)) == "b here"
    assert sick.health()["a"].failures_in_a_row == 1, "it was not asked again"


@pytest.mark.spec("R-2")
async def test_failover_before_content_and_an_error_after_it() -> None:
    assert text(await ask(ProviderRouter({"a": broken("a"), "b": model("b")}))) == "b here"
    other = model("b")
    final = await ask(ProviderRouter({"a": broken("a", "ModelBadRequest"), "b": other}))
    assert final[-1].payload.error_code == "ModelBadRequest" and other.requests == []
    shown = await ask(ProviderRouter({"a": model("a", Turn(text="half", cut=True)), "b": other}))
    assert text(shown) == "half" and shown[-1].kind == "error" and other.requests == []


@pytest.mark.spec("R-2")
async def test_the_loop_starts_a_shown_call_again_elsewhere_and_takes_back_what_was_shown() -> None:
    clock = FixedClock()
    router = ProviderRouter(
        {"a": model("a", Turn(text="half an ans", cut=True), clock=clock), "b": model("b", clock=clock)},
        policy=lambda ctx: ["a", "b"] if ctx.metadata.attempt == 1 else ["b"],
        clock=clock,
    )
    desk = Desk()
    agent = Agent(router, store=desk.store, clock=clock)
    kinds: list[str] = []
    async with agent.run_stream("Hi.", session="s") as run:
        async for event in run:
            kinds.append(event.kind)
    assert kinds.count("retracted") == 1
    assert (await run.result()).text == "b here"
    [failed] = await desk.of_kind("model_call_failed")
    calls = await desk.of_kind("model_call_started")
    assert failed.payload.shown > 0
    assert [(c.payload.model_call_index, c.payload.attempt, c.payload.target.model) for c in calls] == [
        (1, 1, "a"),
        (1, 2, "b"),
    ]


@pytest.mark.spec("R-3")
async def test_a_provider_that_fails_rests_and_one_that_asks_for_time_gets_it() -> None:
    clock = VirtualClock(auto=True)
    limited = broken("a", "ModelRateLimited", retryAfter=60)
    router = ProviderRouter({"a": limited, "b": model("b", clock=clock)}, clock=clock)
    await ask(router, 1)
    await ask(router, 2)
    assert len(limited.requests) == 1 and 0 < router.health()["a"].ready_in <= 60
    await clock.sleep(61)
    await ask(router, 3)
    assert len(limited.requests) == 2
    dead = broken("a", "ModelServerError")
    router = ProviderRouter({"a": dead, "b": model("b", clock=clock)}, clock=clock, failure_threshold=3)
    for index in range(10):
        await ask(router, index + 1)
    assert len(dead.requests) == 3, "the circuit is open"


@pytest.mark.spec("R-3")
async def test_the_choice_and_its_reason_are_in_the_log() -> None:
    desk = Desk()
    router = ProviderRouter({"a": broken("a"), "b": model("b")})
    await Agent(router, store=desk.store).run("Hi.", session="s")
    [started] = await desk.of_kind("model_call_started")
    [output] = await desk.of_kind("model_output")
    assert started.payload.target.model == "a" and "a" in started.payload.reason
    assert output.payload.invocation.model == "b"
    assert "ModelOverloaded" in output.meta["route"]


@pytest.mark.spec("R-4")
async def test_a_mixed_session_keeps_pairs_order_and_screen() -> None:
    desk = Desk()
    notes = MemoryNotebookWidget()
    planner = model("planner", asks_for(call("look", place="gate"), call("look", place="sea"), text="First."))
    executor = model("executor", asks_for(call("notebook_write", name="gate", text="quiet")), "Done.")
    summer = model("summer", "All is quiet.")
    roles = {"plan": planner, "execute": executor, "sum": summer}
    router = ProviderRouter(
        roles, policy=lambda ctx: [["plan", "execute", "execute"][ctx.metadata.model_call_index - 1]]
    )
    agent = Agent(
        router, tools=desk.tools(), widgets=[notes], store=desk.store, clock=desk.clock, ids=desk.ids
    )
    await agent.run("Look around.", session="s")
    closing = Agent(
        ProviderRouter(roles, policy=lambda ctx: ["sum"]),
        tools=desk.tools(),
        widgets=[notes],
        store=desk.store,
    )
    assert (await closing.run("Sum it up.", session="s")).text == "All is quiet."
    messages = list(summer.requests[-1].messages)
    assert [message.role for message in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "user"),
    ]
    for asked, answered in pairwise(messages):
        if asked.tool_calls:
            assert [part.payload.tool_call_id for part in asked.tool_calls] == [
                part.payload.tool_call_id for part in answered.tool_results
            ]
    wire = encode(messages).decode()
    assert LIVE_SCREEN in wire or "[Live Screen]" in wire
    assert (await closing.session("s").replay()).identical


@pytest.mark.spec("R-5")
async def test_an_observer_sees_every_choice_delta_and_usage() -> None:
    seen: list[RouterNotice] = []
    used = TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3)
    answering = model("b", Turn(text="Hello there.", usage=used))
    router = ProviderRouter({"a": broken("a"), "b": answering}, observer=seen.append)
    deltas = await ask(router)
    assert [notice.route for notice in seen if notice.kind == "choice"] == ["a", "b"]
    assert [notice.usage for notice in seen if notice.kind == "usage"] == [used]
    shown = [n.delta for n in seen if n.kind == "delta" and n.route == "b" and n.delta is not None]
    assert [d.kind for d in shown] == [d.kind for d in deltas]
    assert [n.error.code for n in seen if n.kind == "failure" and n.error] == ["ModelOverloaded"]
