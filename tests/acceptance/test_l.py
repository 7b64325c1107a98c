"""L. Agent loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import Agent, AgentError, Hooks, Limits, ModelParams, tool
from turnlog.contract import (
    TRANSITIONS,
    RetryPolicy,
    RunEvent,
    RunInput,
    TokenUsage,
    ToolCallRequest,
    ToolPolicy,
    check_transition,
    decode,
    encode,
    user_message,
)
from turnlog.history import MemoryStore, verify
from turnlog.loop import AgentLoop, RunIds, Veto
from turnlog.testing import FaultStore, ScriptedModel, Turn, VirtualClock, fail_append

LOOK = asks_for(call("look", place="gate"))


def endless(**options: Any) -> Any:
    @tool(timeout=None, **options)
    async def wait() -> str:
        """Wait for what does not come."""
        await asyncio.Event().wait()
        return "never"

    return wait


async def tell(agent: Agent, text: str = "Go.", **options: Any) -> list[Any]:
    async with agent.run_stream(text, session="s", **options) as run:
        return [event async for event in run]


@pytest.mark.spec("L-1")
async def test_run_is_run_stream_drained() -> None:
    drained, streamed = Desk(), Desk()
    result = await drained.agent(LOOK, "Quiet.").run("Look.", session="s")
    events = await tell(streamed.agent(LOOK, "Quiet."), "Look.")
    assert events[-1].kind == "run_ended" and events[-1].result == result
    assert encode(await drained.entries()) == encode(await streamed.entries())
    assert await asyncio.to_thread(lambda: Desk().agent(LOOK, "Quiet.").run_sync("Look.").text) == "Quiet."


@pytest.mark.spec("L-1")
async def test_the_consumer_drives_and_leaving_early_ends_the_run_at_once() -> None:
    desk = Desk()
    agent = desk.agent(LOOK, "Quiet.")
    run = agent.run_stream("Look.", session="s")
    await asyncio.sleep(0)
    assert desk.done == []
    async with run:
        async for event in run:
            if event.kind == "tool_started":
                break
    [ended] = await desk.of_kind("run_ended")
    assert ended.payload.status == "aborted"
    assert await verify(desk.store, "s") == []


@pytest.mark.spec("L-1")
async def test_the_loop_returns_a_result_and_the_agent_raises_unless_told_not_to() -> None:
    broken = Turn(error={"code": "ModelAuthError", "message": "no"})
    desk = Desk()
    with pytest.raises(AgentError, match="ModelAuthError") as caught:
        await desk.agent(broken).run("Hi.", session="s")
    assert caught.value.result is not None and caught.value.result.status == "failed"
    assert (await desk.agent(broken).run("Hi.", session="s", check=False)).status == "failed"
    loop: AgentLoop = desk.agent(broken).loop
    result = await loop.run(RunInput(session_id="t", input_messages=[user_message("Hi.")]))
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == "ModelAuthError"


@pytest.mark.spec("L-2")
async def test_states_are_told_as_they_change() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("pay", amount=1)), "Paid.")
    first = [event.status for event in await tell(agent) if event.kind == "status"]
    assert first == ["preparing", "model_running", "tool_running", "awaiting_human"]
    [waiting] = await agent.session("s").pending()
    await agent.session("s").approve(waiting, by="ann")
    async with agent.session("s").resume_stream() as run:
        again = [event.status async for event in run if event.kind == "status"]
    assert again == ["preparing", "tool_running", "model_running", "completed"]


@pytest.mark.spec("L-2")
def test_the_transitions_are_those_of_the_specification_and_any_other_fails_loudly() -> None:
    demanded = {
        ("idle", "preparing"),
        ("preparing", "model_running"),
        ("model_running", "tool_running"),
        ("model_running", "completed"),
        ("tool_running", "model_running"),
        ("tool_running", "awaiting_human"),
        ("awaiting_human", "tool_running"),
        ("awaiting_human", "model_running"),
    }
    running = ("preparing", "model_running", "tool_running", "awaiting_human")
    demanded |= {(state, end) for state in running for end in ("failed", "aborted")}
    assert demanded <= set(TRANSITIONS)
    states = {state for pair in TRANSITIONS for state in pair}
    for current in states:
        for following in states:
            if (current, following) in TRANSITIONS:
                check_transition(current, following)
            else:
                with pytest.raises(AgentError, match="IllegalTransition"):
                    check_transition(current, following)


@pytest.mark.spec("L-3")
async def test_events_have_a_stable_numbered_schema_and_come_after_their_entry() -> None:
    desk = Desk()
    agent = desk.agent(LOOK, "Quiet.")
    seen: list[Any] = []
    async with agent.run_stream("Look.", session="s") as run:
        async for event in run:
            seen.append(event)
            if event.kind in ("assistant_message", "tool_result"):
                stored = await desk.entries()
                assert any(entry.id == event.entry_id for entry in stored)
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers))
    for event in seen:
        wire = encode(event)
        assert b"providerRaw" not in wire
        assert set(decode(wire, dict)) >= {"kind", "payload", "seq"}
        assert decode(wire, RunEvent) == event


@pytest.mark.spec("L-3")
async def test_a_client_that_comes_back_goes_on_where_it_was() -> None:
    desk = Desk()
    agent = desk.agent(LOOK, "Quiet.")
    run = await agent.start("Look.", session="s")
    await run.result()
    whole = [event.seq async for event in run.events()]
    later = [event.seq async for event in run.events(after=whole[3])]
    assert later == whole[4:]


USED = TokenUsage(input_tokens=50, output_tokens=50, total_tokens=100, cost=0.01)


@pytest.mark.spec("L-4")
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(max_iterations=2), "RunMaxIterations"),
        (Limits(max_tool_rounds=2), "RunMaxToolRounds"),
        (Limits(max_tokens=150), "RunTokenLimit"),
        (Limits(max_cost=0.015), "RunCostLimit"),
        (Limits(max_run_duration_ms=10_000), "RunTimeout"),
    ],
    ids=["iterations", "rounds", "tokens", "cost", "duration"],
)
async def test_a_limit_ends_the_run_with_its_name_and_a_well_formed_history(
    limits: Limits, code: str
) -> None:
    desk = Desk()
    desk.clock = VirtualClock(auto=True)  # type: ignore[assignment]

    @tool
    async def step(number: int) -> str:
        """Take a step."""
        await desk.clock.sleep(1)
        return "taken"

    turns = [Turn(tool_calls=[call("step", number=n)], usage=USED) for n in range(50)]
    agent = desk.agent(*turns, tools=[step], limits=limits)
    result = await agent.run("Walk.", session="s", check=False)
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == code
    assert await verify(desk.store, "s") == []
    assert (await agent.session("s").state()).pending_tool_calls == []
    await desk.agent("Still here.").run("And now?", session="s")


@pytest.mark.spec("L-5")
async def test_a_policy_switches_off_lists_limits_and_orders_tools() -> None:
    async def offered(**options: Any) -> list[str]:
        desk = Desk()
        await desk.agent("Ok.").run("Go.", session="s", **options)
        assert desk.model is not None
        return [spec.name for spec in desk.model.requests[0].tool_specs if spec.name in ("look", "pay")]

    assert await offered() == ["look", "pay"]
    assert await offered(tool_order=["pay", "look"]) == ["pay", "look"]
    assert await offered(tool_policy=ToolPolicy(enabled=False)) == []
    assert await offered(tool_policy=ToolPolicy(allow_list=["pay"])) == ["pay"]
    assert await offered(tool_policy=ToolPolicy(allow_list=["pay"]), allowed_tools=["look", "pay"]) == ["pay"]
    assert await offered(tool_policy=ToolPolicy(allow_list=["pay"]), allowed_tools=["look"]) == []
    desk = Desk()
    calls = [call("look", place=str(n)) for n in range(3)]
    await desk.agent(asks_for(*calls), "Ok.", tool_policy=ToolPolicy(max_calls_per_run=2)).run(
        "Go.", session="s"
    )
    assert desk.done == ["look 0", "look 1"]
    desk = Desk()
    agent = desk.agent(LOOK, "Ok.", tool_policy=ToolPolicy(require_approval_by_default=True))
    assert (await agent.run("Go.", session="s")).status == "awaiting_human" and desk.done == []


@pytest.mark.spec("L-5")
async def test_no_more_tools_at_once_than_allowed() -> None:
    inside, most = 0, 0

    @tool(concurrent=True, timeout=None)
    async def enter(number: int) -> str:
        """Enter."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(20):
            await asyncio.sleep(0)
        inside -= 1
        return "left"

    desk = Desk()
    calls = [call("enter", number=n) for n in range(6)]
    await desk.agent(asks_for(*calls), "Ok.", tools=[enter], tool_policy=ToolPolicy(max_parallel=2)).run(
        "Go."
    )
    assert most == 2


@pytest.mark.spec("L-6")
async def test_a_retry_backs_off_honours_what_the_provider_asks_and_is_in_the_log() -> None:
    clock = VirtualClock(auto=True)
    desk = Desk()
    desk.clock = clock  # type: ignore[assignment]
    turns = [
        Turn(error={"code": "ModelServerError", "message": "a"}),
        Turn(error={"code": "ModelServerError", "message": "b"}),
        Turn(error={"code": "ModelRateLimited", "message": "c", "retryAfter": 40}),
        "Done.",
    ]
    policy = RetryPolicy(max_attempts=4, base_delay_ms=1_000, jitter=0.5)
    await desk.agent(*turns, retry=policy).run("Go.", session="s")
    failed = [entry.payload for entry in await desk.of_kind("model_call_failed")]
    first, second, third = (each.retry_in_ms for each in failed)
    assert 500 <= first <= 1_500 and 1_000 <= second <= 3_000 and third >= 40_000
    started = [
        (e.payload.model_call_index, e.payload.attempt) for e in await desk.of_kind("model_call_started")
    ]
    assert started == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert round(clock.monotonic() * 1000) >= first + second + third
    final = Desk()
    await final.agent(Turn(error={"code": "ModelBadRequest", "message": "no"})).run(
        "Go.", session="s", check=False
    )
    assert len(await final.of_kind("model_call_started")) == 1


@pytest.mark.spec("L-7")
@pytest.mark.parametrize("place", ["model_delta", "tool_started", "status"])
async def test_an_abort_leaves_no_open_call_and_no_task(place: str) -> None:
    desk = Desk()
    before = asyncio.all_tasks()
    agent = desk.agent(asks_for(call("wait"), call("look", place="x")), tools=[endless(), *desk.tools()])
    async with agent.run_stream("Go.", session="s") as run:
        async for event in run:
            if event.kind == place:
                await run.abort("enough")
    assert (await run.result(check=False)).status == "aborted"
    assert (await agent.session("s").state()).pending_tool_calls == []
    outcomes = [o.status for e in await desk.of_kind("tool_results") for o in e.payload.outcomes]
    assert set(outcomes) <= {"skipped"}
    assert await verify(desk.store, "s") == []
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - before == set()


@pytest.mark.spec("L-7")
async def test_a_tool_that_ignores_an_abort_is_left_behind_after_a_bounded_time() -> None:
    clock = VirtualClock(auto=True)
    release = asyncio.Event()

    @tool(timeout=None)
    async def stubborn() -> str:
        """Do not listen."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    desk = Desk()
    desk.clock = clock  # type: ignore[assignment]
    agent = desk.agent(asks_for(call("stubborn")), tools=[stubborn])
    async with agent.run_stream("Go.", session="s") as run:
        async for event in run:
            if event.kind == "tool_started":
                await run.abort("enough")
    assert (await run.result(check=False)).status == "aborted"
    assert clock.monotonic() < 60
    release.set()
    await asyncio.sleep(0.01)


@pytest.mark.spec("L-8")
@pytest.mark.parametrize("nth", [2, 3, 4])
async def test_a_write_that_fails_ends_the_run_and_log_and_memory_agree(nth: int) -> None:
    inner = MemoryStore()
    desk = Desk()
    desk.store = FaultStore(inner, [fail_append(nth)])
    agent = desk.agent(LOOK, "Quiet.")
    result = await agent.run("Look.", session="s", check=False)
    assert result.status == "failed"
    assert result.last_error is not None and result.last_error.code == "SessionWriteFailed"
    desk.store = inner
    again = desk.agent("Quiet, I think.", "Quiet.")
    if (await again.session("s").state()).status not in ("idle", "completed"):
        await again.resume("s", check=False)
    assert await verify(inner, "s") == []
    assert (await again.session("s").replay()).identical


@pytest.mark.spec("L-12")
async def test_a_message_sent_meanwhile_enters_before_the_next_model_call() -> None:
    desk = Desk()
    agent = desk.agent(LOOK, "As you wish.")
    async with agent.run_stream("Look.", session="s") as run:
        async for event in run:
            if event.kind == "tool_started":
                await run.send("And be quick.")
    assert [message.role for message in desk.seen] == ["user", "assistant", "tool", "user"]
    assert desk.seen[-1].text == "And be quick."


@pytest.mark.spec("L-13")
async def test_hooks_are_called_and_one_that_raises_fails_the_run_visibly() -> None:
    called: list[str] = []
    hooks = Hooks(
        before_model=[lambda context: called.append("before_model")],
        after_model=[lambda message: called.append("after_model")],
        before_tool=[lambda call: called.append("before_tool")],
        after_tool=[lambda call, answer: called.append("after_tool")],
        on_event=[lambda event: called.append("event")],
    )
    await Desk().agent(LOOK, "Quiet.", hooks=hooks).run("Look.", session="s")
    steps = [step for step in called if step != "event"]
    assert steps == [
        "before_model",
        "after_model",
        "before_tool",
        "after_tool",
        "before_model",
        "after_model",
    ]
    assert "event" in called

    def explode(*_: Any) -> None:
        raise RuntimeError("boom")

    for point in ("before_model", "after_model", "before_tool", "after_tool", "on_event"):
        desk = Desk()
        agent = desk.agent(LOOK, "Quiet.", hooks=Hooks(**{point: [explode]}))
        result = await agent.run("Look.", session="s", check=False)
        assert result.status == "failed" and result.last_error is not None, point
        assert result.last_error.code == "HookFailed" and "boom" in result.last_error.message


@pytest.mark.spec("L-13")
async def test_what_a_hook_decides_is_a_value_in_the_log_and_a_replay_needs_no_hook() -> None:
    def guard(call: ToolCallRequest, ids: RunIds) -> Veto | None:
        return Veto("not in this house") if ids.session_id == "s" else None

    desk = Desk()
    agent = desk.agent(LOOK, "Then not.", hooks=Hooks(check_tool=[guard]))
    assert (await agent.run("Look.", session="s")).text == "Then not."
    assert desk.done == []
    session = desk.agent("Unused.").session("s")
    (denied,) = [entry.payload for entry in await session.entries() if entry.kind == "tool_results"]
    assert denied.outcomes[0].status == "denied"
    assert "not in this house" in denied.message.tool_results[0].payload.text
    assert (await session.replay()).identical


@pytest.mark.spec("L-15")
async def test_every_field_of_a_run_is_reachable_and_its_result_is_whole() -> None:
    desk = Desk()
    agent = desk.agent(Turn(text="Hi.", usage=USED), instructions="You are brief.")
    result = await agent.run(
        user_message("One."),
        session="s",
        run_id="run-7",
        instructions="You are long-winded.",
        allowed_tools=["look", "pay"],
        tool_order=["pay"],
        tool_policy=ToolPolicy(max_parallel=2),
        limits=Limits(max_iterations=7),
        retry=RetryPolicy(max_attempts=2),
        runtime_data={"os": "linux"},
        runtime_hints={"time": "noon"},
        params=ModelParams(temperature=0),
        title="A title",
        metadata={"customer": 42},
    )
    assert desk.model is not None
    request = desk.model.requests[0]
    assert request.messages[0].text.startswith("One.")
    assert "You are long-winded." in (request.system_prompt or "") and "linux" in (
        request.system_prompt or ""
    )
    assert "noon" in encode(list(request.messages)).decode()
    assert [spec.name for spec in request.tool_specs if spec.name in ("look", "pay")] == ["pay", "look"]
    [started] = await desk.of_kind("run_started")
    assert started.run_id == "run-7"
    assert (started.payload.limits.max_iterations, started.payload.retry.max_attempts) == (7, 2)
    assert started.payload.tool_policy.max_parallel == 2
    assert (result.session_id, result.run_id, result.status) == ("s", "run-7", "completed")
    assert result.final_assistant_message is not None and result.final_assistant_message.text == "Hi."
    assert result.last_error is None and result.usage is not None and result.usage.total_tokens == 100
    with pytest.raises(AgentError, match="SessionNotFound"):
        await agent.run("Hi.", session="nowhere", auto_create=False)


async def test_a_stream_has_text_snapshot_result_abort_and_send_and_starting_is_not_driving() -> None:
    desk = Desk()
    agent = desk.agent("Hello there, dear friend.", "Second.")
    async with agent.run_stream("Hi.", session="s") as run:
        said = [piece async for piece in run.text]
    assert "".join(said) == "Hello there, dear friend." and len(said) > 1
    assert (await run.result()).text == "Hello there, dear friend."
    assert run.session_id == "s" and run.run_id
    run_id = await agent.submit("And?", session="s")
    started = [entry.run_id for entry in await desk.of_kind("run_started")]
    assert started[-1] == run_id and len(await desk.of_kind("model_call_started")) == 1
    result = await agent.resume("s")
    assert result is not None and result.text == "Second."


@pytest.mark.spec("L-17")
async def test_a_run_outlives_its_watchers_and_any_number_may_watch() -> None:
    desk = Desk()
    agent = desk.agent(LOOK, "Quiet.", "More.")
    run = await agent.start("Look.", session="s")
    async for _ in run.events():
        break  # a watcher leaves
    assert (await run.result()).text == "Quiet."
    first, second = [event.seq async for event in run.events()], [event.seq async for event in run.events()]
    assert first == second and len(first) > 5
    later = await agent.start("And?", session="s")
    await later.result()
    numbers = [event.seq async for event in agent.session("s").events(after=0)]
    assert numbers == sorted(set(numbers)), "numbers belong to the session and never repeat"


@pytest.mark.spec("L-19")
async def test_a_run_that_repeats_one_failing_call_is_told_so_and_ends() -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("never")

    desk = Desk()
    limits = Limits(warn_repeated_failures=2, max_repeated_failures=4)
    agent = desk.agent(*[asks_for(call("fail"))] * 9, tools=[fail], limits=limits)
    result = await agent.run("Go.", session="s", check=False)
    assert result.last_error is not None and result.last_error.code == "RunStalled"
    told = ["Do not repeat it" in content for _, content in results_in(desk.seen)]
    assert told == [False, True, True]


@pytest.mark.spec("L-19")
async def test_what_was_shown_before_an_abort_is_in_the_log() -> None:
    desk = Desk()
    agent = desk.agent("A long answer that nobody waits for.")
    shown = ""
    async with agent.run_stream("Go.", session="s") as run:
        async for piece in run.text:
            shown += piece
            break
    [failed] = await desk.of_kind("model_call_failed")
    assert shown and failed.payload.partial.startswith(shown)


class StructCity(msgspec.Struct):
    name: str
    people: int


class PydanticCity(pydantic.BaseModel):
    name: str
    people: int


@dataclass
class DataCity:
    name: str
    people: int


class DictCity(TypedDict):
    name: str
    people: int


GOOD, BAD = '{"name": "Bern", "people": 130000}', '{"name": "Bern", "people": "many"}'


@pytest.mark.spec("L-10")
@pytest.mark.parametrize("kind", [StructCity, PydanticCity, DataCity, DictCity])
async def test_an_answer_is_a_value_of_the_type_that_was_asked_for(kind: Any) -> None:
    result = await Desk().agent(GOOD).run("Name a city.", session="s", output_type=kind)
    city: Any = result.output
    if kind is DictCity:
        assert city == {"name": "Bern", "people": 130_000}
    else:
        assert type(city) is kind and (city.name, city.people) == ("Bern", 130_000)


@pytest.mark.spec("L-10")
async def test_what_does_not_fit_is_corrected_by_the_model_a_bounded_number_of_times() -> None:
    desk = Desk()
    agent = desk.agent(BAD, GOOD)
    result = await agent.run("Name a city.", session="s", output_type=StructCity)
    assert result.output == StructCity("Bern", 130_000)
    assert len(await desk.of_kind("model_call_started")) == 2
    assert "people" in desk.seen[-1].text, "the model is told what was wrong"
    assert (await agent.session("s").replay()).identical
    never = Desk()
    limits = Limits(max_corrections=2)
    failed = await never.agent(*[BAD] * 9).run(
        "Name a city.", session="s", output_type=StructCity, limits=limits, check=False
    )
    assert failed.status == "failed" and failed.last_error is not None
    assert failed.last_error.code == "OutputInvalid"
    assert len(await never.of_kind("model_call_started")) == 3


def helper(model: ScriptedModel) -> Any:
    return Agent(model, name="helper", store="memory:").as_tool("Helps.")


ASK_HELPER = asks_for(call("helper", input="Bees?"))


async def child_of(desk: Desk) -> str:
    [info] = [each for each in await desk.store.sessions() if each.session_id != "s"]
    return info.session_id


@pytest.mark.spec("L-11")
async def test_an_agent_is_a_tool_of_another_in_a_session_linked_to_its_parent() -> None:
    desk = Desk()
    child = ScriptedModel([Turn(text="Bees dance.", usage=USED)])
    result = await desk.agent(ASK_HELPER, "They dance.", tools=[helper(child)]).run("Bees?", session="s")
    assert result.text == "They dance."
    assert results_in(desk.seen) == [(False, "Bees dance.")]
    [started] = await desk.of_kind("tool_started")
    [header, *_] = await desk.entries(await child_of(desk))
    assert header.payload.parent_session_id == "s"
    assert header.payload.parent_tool_call_id == started.payload.tool_call_id
    assert result.usage is not None and result.usage.total_tokens >= 100, "what it used counts here too"


@pytest.mark.spec("L-11")
async def test_limits_and_aborts_reach_down() -> None:
    desk = Desk()
    hungry = ScriptedModel(default=lambda request: Turn(tool_calls=[call("look", place="x")], usage=USED))
    sub = Agent(hungry, name="helper", tools=desk.tools(), store="memory:").as_tool("Helps.")
    agent = desk.agent(ASK_HELPER, "Done.", tools=[sub], limits=Limits(max_tokens=450))
    result = await agent.run("Go.", session="s", check=False)
    assert result.last_error is not None and result.last_error.code == "RunTokenLimit"
    assert hungry.calls < 10
    began = asyncio.Event()

    async def wait(request: Any) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    desk = Desk()
    run = await desk.agent(ASK_HELPER, tools=[helper(ScriptedModel(default=wait))]).start("Go.", session="s")
    await began.wait()
    await run.abort("enough")
    assert (await run.result(check=False)).status == "aborted"
    assert (await desk.agent().session(await child_of(desk)).state()).status == "aborted"
