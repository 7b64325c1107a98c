"""What a run does, seen from outside: events, results, limits, retries, abort, steering, hooks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from loop.scenarios import SESSION, MortalStore, Stage, call, die_at
from turnlog import Agent, tool
from turnlog.contract import (
    TRANSITIONS,
    AgentError,
    ApprovalDecided,
    Entry,
    LoopLimits,
    RetryPolicy,
    RunEvent,
    SpecificTool,
    TokenUsage,
    ToolPolicy,
    decode,
    encode,
)
from turnlog.history import SessionState
from turnlog.loop import Approvals, Hooks, replay
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn, VirtualClock


async def events_of(agent: Agent, text: str = "go", **options: Any) -> list[RunEvent]:
    return [event async for event in agent.run_stream(text, session=SESSION, **options)]


async def kinds(stage: Stage, session: str = SESSION) -> list[str]:
    return [entry.kind for entry in await stage.store.load(session)]


def check_well_formed(entries: list[Entry]) -> None:
    """Every call has exactly one result, every run that started has ended, seq has no gap."""
    calls: dict[str, int] = {}
    open_runs = 0
    for position, entry in enumerate(entries, 1):
        assert entry.seq == position
        if entry.kind == "model_output":
            calls.update((part.payload.tool_call_id, 0) for part in entry.payload.message.tool_calls)
        elif entry.kind == "tool_results":
            for part in entry.payload.message.tool_results:
                calls[part.payload.tool_call_id] += 1
        elif entry.kind == "run_started":
            open_runs += 1
        elif entry.kind == "run_ended":
            open_runs -= 1
    assert set(calls.values()) <= {1}
    assert open_runs == 0


@pytest.mark.spec("L-1", "X-1")
async def test_run_is_run_stream_drained() -> None:
    result = await Stage().agent(["Hello there."]).run("Hi", session=SESSION, check=False)
    assert (result.status, result.text, result.session_id) == ("completed", "Hello there.", SESSION)
    assert result.usage is not None and result.usage.output_tokens > 0


@pytest.mark.spec("L-1")
def test_run_sync_works_without_a_loop_and_twice() -> None:
    stage = Stage()
    agent = stage.agent(["One.", "Two."])
    assert agent.run_sync("a", session=SESSION).text == "One."
    assert agent.run_sync("b", session=SESSION).text == "Two."


@pytest.mark.spec("L-1", "E-2")
async def test_run_sync_inside_a_loop_says_what_to_do() -> None:
    with pytest.raises(AgentError, match=r"await agent\.run"):
        Stage().agent(["x"]).run_sync("hi")


@pytest.mark.spec("L-2")
async def test_status_events_follow_the_table() -> None:
    stage = Stage()
    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="a", text="b")]), "ok"],
        approvals=Approvals(handler=lambda r: "approve"),
    )
    steps = [e for e in await events_of(agent) if e.kind == "status"]
    assert [s.status for s in steps] == [
        "preparing",
        "model_running",
        "tool_running",
        "awaiting_human",
        "tool_running",
        "model_running",
        "completed",
    ]
    assert all((s.previous, s.status) in TRANSITIONS for s in steps)


@pytest.mark.spec("L-2", "A-4")
async def test_a_denied_last_call_goes_straight_back_to_the_model() -> None:
    agent = Stage().agent(
        [Turn(tool_calls=[call("send", to="a", text="b")]), "ok"],
        approvals=Approvals(handler=lambda r: "deny"),
    )
    steps = [(e.previous, e.status) for e in await events_of(agent) if e.kind == "status"]
    assert ("awaiting_human", "model_running") in steps


@pytest.mark.spec("L-3")
async def test_events_are_numbered_and_entries_are_in_the_log_when_told() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "3"])
    seen = 0
    async for event in agent.run_stream("1 + 2?", session=SESSION):
        assert event.seq > seen
        seen = event.seq
        assert decode(encode(event), RunEvent) == event
        entry_id = getattr(event, "entry_id", None)
        if entry_id is not None:
            assert entry_id in {entry.id for entry in await stage.store.load(SESSION)}
    assert event.kind == "run_ended"


@pytest.mark.spec("D-10")
async def test_no_tool_starts_before_the_terminal_delta() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2), call("add", a=3, b=4)]), "done"])
    async for event in agent.run_stream("go", session=SESSION):
        if event.kind == "model_delta" and event.delta.kind != "done":
            assert event.model_call_index > 1 or stage.effects == []


@pytest.mark.spec("D-4", "D-5", "L-6")
@pytest.mark.parametrize(
    "broken",
    [
        Turn(tool_calls=[{"name": "add", "raw_args": '{"a": 1'}], cut=True),
        Turn(text="half an ans", cut=True),
        Turn(text="hm", error={"code": "ModelServerError", "message": "gone", "after": 2}),
    ],
    ids=["cut call", "cut text", "server error"],
)
async def test_a_cut_stream_runs_nothing_and_is_tried_again(broken: Turn) -> None:
    stage = Stage()
    told = await events_of(stage.agent([broken, "whole"]))
    assert stage.effects == []
    assert told[-1].result.text == "whole"
    started = [e.payload for e in await stage.store.load(SESSION) if e.kind == "model_call_started"]
    assert [(s.model_call_index, s.attempt) for s in started] == [(1, 1), (1, 2)]
    assert [e.kind for e in told].count("retracted") == 1
    failed = next(e for e in told if e.kind == "error")
    assert failed.will_retry


@pytest.mark.spec("L-6")
async def test_retry_honours_retry_after_and_backs_off() -> None:
    stage = Stage()
    turns = [
        Turn(error={"code": "ModelRateLimited", "message": "slow down", "retry_after": 7.0}),
        Turn(error={"code": "ModelOverloaded", "message": "busy"}),
        Turn(error={"code": "ModelOverloaded", "message": "busy"}),
        "at last",
    ]
    await stage.agent(turns, retry=RetryPolicy(jitter=0.0)).run("go", session=SESSION)
    waits = [e.payload.retry_in_ms for e in await stage.store.load(SESSION) if e.kind == "model_call_failed"]
    assert waits == [7000, 1000, 2000]


@pytest.mark.spec("L-6", "P-4")
async def test_what_is_not_retryable_ends_the_run_at_once() -> None:
    stage = Stage()
    result = await stage.agent([Turn(error={"code": "ModelAuthError", "message": "no key"})]).run(
        "go", session=SESSION, check=False
    )
    assert result.status == "failed"
    assert result.last_error is not None and result.last_error.code == "ModelAuthError"
    check_well_formed(await stage.store.load(SESSION))


@pytest.mark.spec("H-3", "L-6")
async def test_an_empty_answer_is_a_failed_call_that_is_tried_again() -> None:
    stage = Stage()
    result = await stage.agent([Turn(thinking="hm"), "Something."]).run("go", session=SESSION)
    assert result.text == "Something."
    failed = [e.payload.error.code for e in await stage.store.load(SESSION) if e.kind == "model_call_failed"]
    assert failed == ["ModelEmptyOutput"]


@pytest.mark.spec("L-4")
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (LoopLimits(max_iterations=2), "RunMaxIterations"),
        (LoopLimits(max_tool_rounds=2), "RunMaxToolRounds"),
        (LoopLimits(max_tokens=10), "RunTokenLimit"),
        (LoopLimits(max_cost=0.5), "RunCostLimit"),
    ],
)
async def test_limits_end_the_run_with_a_named_error(limits: LoopLimits, code: str) -> None:
    stage = Stage()
    usage = TokenUsage(input_tokens=10, output_tokens=10, total_tokens=20, cost=1.0)
    turn = Turn(tool_calls=[call("look", place="x")], usage=usage)
    model = ScriptedModel([turn], clock=stage.clock, ids=stage.ids, loop=True)
    agent = Agent(
        model, tools=stage.tools(), store=stage.store, clock=stage.clock, ids=stage.ids, limits=limits
    )
    result = await agent.run("go", session=SESSION, check=False)
    assert result.status == "failed"
    assert result.last_error is not None and result.last_error.code == code
    check_well_formed(await stage.store.load(SESSION))
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("L-4", "L-7")
async def test_duration_limit_stops_a_hanging_tool() -> None:
    clock = VirtualClock(auto=True)
    stage = Stage()
    model = ScriptedModel([Turn(tool_calls=[call("wait", what="x")])], clock=clock, ids=stage.ids)
    agent = Agent(
        model,
        tools=stage.tools(),
        store=stage.store,
        clock=clock,
        ids=stage.ids,
        limits=LoopLimits(max_run_duration_ms=5_000),
    )
    result = await agent.run("go", session=SESSION, check=False)
    assert result.last_error is not None and result.last_error.code == "RunTimeout"
    check_well_formed(await stage.store.load(SESSION))


@pytest.mark.spec("L-5")
async def test_policy_limits_tools_calls_and_order() -> None:
    stage = Stage()
    turn = Turn(tool_calls=[call("add", a=1, b=1), call("look", place="x"), call("look", place="y")])
    agent = stage.agent([turn, "ok"], tool_policy=ToolPolicy(allow_list=["look", "add"], max_calls_per_run=1))
    await agent.run("go", session=SESSION, allowed_tools=["look", "divide"])
    entries = await stage.store.load(SESSION)
    offered = next(e.payload.tools for e in entries if e.kind == "tools_change")
    assert [spec.name for spec in offered] == ["look"]
    codes = [e.payload.outcomes[0].error_code for e in entries if e.kind == "tool_results"]
    assert codes == ["ToolNotFound", "ToolCallLimit", None]
    assert stage.effects == ["look x"]


@pytest.mark.spec("T-9")
async def test_a_change_of_tools_is_recorded_once() -> None:
    stage = Stage()
    await stage.agent(["a"]).run("1", session=SESSION)
    await stage.agent(["b"]).run("2", session=SESSION)
    await stage.agent(["c"], tools=stage.tools()[:1]).run("3", session=SESSION)
    changes = [e.payload.tools for e in await stage.store.load(SESSION) if e.kind == "tools_change"]
    assert [len(tools) for tools in changes] == [7, 3]


@pytest.mark.spec("L-12")
async def test_steering_enters_before_the_next_model_call() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "changed course"])
    async for event in agent.run_stream("go", session=SESSION):
        if event.kind == "tool_started":
            await agent.send(SESSION, "wait, do it differently")
    found = await kinds(stage)
    steered = [e for e in await stage.store.load(SESSION) if e.kind == "model_input"][-1]
    assert steered.payload.source == "steering"
    assert found.index("tool_results") < found.index("model_input", 4) < found.index("model_output", 8)
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("L-12")
async def test_steering_at_the_end_makes_the_model_answer_again() -> None:
    stage = Stage()
    agent = stage.agent(["first", "second"])
    async for event in agent.run_stream("go", session=SESSION):
        if event.kind == "assistant_message" and event.message.text == "first":
            await agent.send(SESSION, "and?")
    assert event.result.text == "second"


@pytest.mark.spec("L-12", "E-2")
async def test_steering_a_session_without_a_run_is_refused() -> None:
    with pytest.raises(AgentError, match="no run is in progress"):
        await Stage().agent(["x"]).send(SESSION, "hello?")


@pytest.mark.spec("L-13")
@pytest.mark.parametrize("point", ["before_model", "after_model", "before_tool", "after_tool", "on_event"])
async def test_a_hook_that_raises_fails_the_run_visibly(point: str) -> None:
    stage = Stage()

    def bad(*_: object) -> None:
        raise ValueError("hook is broken")

    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "ok"], hooks=Hooks(**{point: [bad]}))
    result = await agent.run("go", session=SESSION, check=False)
    assert result.status == "failed"
    assert result.last_error is not None and result.last_error.code == "HookFailed"
    assert "hook is broken" in result.last_error.message
    check_well_formed(await stage.store.load(SESSION))


@pytest.mark.spec("L-13")
async def test_hooks_are_called_at_their_points() -> None:
    seen: list[str] = []

    def note(name: str) -> Any:
        async def hook(*_: object) -> None:
            seen.append(name)

        return hook

    points = ("before_model", "after_model", "before_tool", "after_tool")
    hooks = Hooks(**{point: [note(point)] for point in points})
    await (
        Stage()
        .agent([Turn(tool_calls=[call("add", a=1, b=1)]), "ok"], hooks=hooks)
        .run("go", session=SESSION)
    )
    assert seen == ["before_model", "after_model", "before_tool", "after_tool", "before_model", "after_model"]


@pytest.mark.spec("L-1", "L-7")
async def test_closing_the_stream_early_aborts_the_run() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1), call("add", a=2, b=2)])])
    async with aclosing(agent.run_stream("go", session=SESSION)) as stream:
        async for event in stream:
            if event.kind == "tool_result":
                break
    entries = await stage.store.load(SESSION)
    assert entries[-1].kind == "run_ended" and entries[-1].payload.status == "aborted"
    check_well_formed(entries)
    assert stage.effects == ["add 1 1"]


@pytest.mark.spec("L-7")
async def test_cancelling_the_consumer_leaves_a_well_formed_history_and_no_task() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("wait", what="x")])])
    before = asyncio.all_tasks()
    task = asyncio.create_task(agent.run("go", session=SESSION))
    while not stage.effects:  # noqa: ASYNC110
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    check_well_formed(await stage.store.load(SESSION))
    assert asyncio.all_tasks() == before


@pytest.mark.spec("L-7")
async def test_abort_reaches_a_waiting_model() -> None:
    stage = Stage()
    clock = VirtualClock()
    model = ScriptedModel([Turn(text="slow " * 20, delay=60.0)], clock=clock, ids=stage.ids)
    agent = Agent(model, store=stage.store, clock=clock, ids=stage.ids)
    task = asyncio.create_task(agent.run("go", session=SESSION, run_id="r1", check=False))
    while not clock.sleeping:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await agent.abort("r1", "enough")
    result = await task
    assert result.status == "aborted"
    assert result.last_error is not None and result.last_error.message == "enough"
    assert not await agent.abort("r1")
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("L-7")
async def test_the_consumer_may_await_between_events_without_being_interrupted() -> None:
    """An abort while the consumer does its own work must not cancel that work."""
    stage = Stage()
    agent = stage.agent(["one two three"])
    finished = False
    async for event in agent.run_stream("go", session=SESSION):
        if event.kind == "model_call":
            await agent.abort(event.run_id, "stop")
            await asyncio.sleep(0)
            finished = True
    assert finished
    assert event.result.status == "aborted"


@pytest.mark.spec("L-8")
async def test_a_failed_write_ends_the_run_and_the_log_is_what_it_was() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "ok", "again"])
    assert isinstance(stage.store, MortalStore)
    events: list[RunEvent] = []
    async for event in agent.run_stream("go", session=SESSION):
        events.append(event)
        if event.kind == "tool_started":
            stage.store.dead = True
    assert events[-1].result.status == "failed"
    assert events[-1].result.last_error.code == "SessionWriteFailed"
    stage.store.dead = False
    assert (await kinds(stage))[-1] == "tool_started"
    result = await agent.resume(SESSION, check=False)
    assert result is not None and result.status == "completed"
    check_well_formed(await stage.store.load(SESSION))


@pytest.mark.spec("H-10", "T-3")
async def test_a_tool_that_may_have_run_is_not_run_again() -> None:
    stage = Stage()
    await die_at(stage.agent([Turn(tool_calls=[call("add", a=1, b=2)])]), "tool_started", "Add.")
    ran = list(stage.effects)
    result = await stage.agent(["I do not know."]).resume(SESSION, check=False)
    assert result is not None and result.text == "I do not know."
    assert stage.effects == ran
    entries = await stage.store.load(SESSION)
    outcome = next(e.payload.outcomes[0] for e in entries if e.kind == "tool_results")
    assert (outcome.status, outcome.error_code) == ("unknown", "ToolOutcomeUnknown")
    check_well_formed(entries)
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("H-10", "C-1")
async def test_a_call_asked_again_after_a_crash_has_the_same_context() -> None:
    stage = Stage()
    await die_at(stage.agent(["never heard"]), "model_call", "Hello?")
    await stage.agent(["Hello."]).resume(SESSION)
    hashes = [
        e.payload.context_hash for e in await stage.store.load(SESSION) if e.kind == "model_call_started"
    ]
    assert len(hashes) == 2 and hashes[0] == hashes[1]


@pytest.mark.spec("H-10")
async def test_resume_of_a_finished_session_does_nothing() -> None:
    stage = Stage()
    agent = stage.agent(["Hi."])
    await agent.run("Hi", session=SESSION)
    before = await kinds(stage)
    assert await agent.resume(SESSION) is None
    assert await kinds(stage) == before


@pytest.mark.spec("E-2", "H-14")
async def test_a_session_that_does_not_exist_is_said_so() -> None:
    with pytest.raises(AgentError) as caught:
        await Stage().agent(["x"]).resume("nowhere")
    assert caught.value.code == "SessionNotFound"


async def test_a_new_run_closes_one_that_a_crash_left_open() -> None:
    stage = Stage()
    await die_at(stage.agent([Turn(tool_calls=[call("add", a=1, b=2)])]), "tool_started", "Add.")
    result = await stage.agent(["New."]).run("Something else.", session=SESSION)
    assert result.text == "New."
    check_well_formed(await stage.store.load(SESSION))
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("H-4")
async def test_two_runs_at_once_in_one_session_are_refused() -> None:
    stage = Stage()
    agent = stage.agent(["one", "two"])
    async with aclosing(agent.run_stream("a", session=SESSION)) as first:
        await anext(first)
        with pytest.raises(AgentError) as caught:
            await agent.run("b", session=SESSION)
    assert caught.value.code == "SessionBusy"


@pytest.mark.spec("A-1", "A-3")
async def test_a_handler_may_modify_arguments_and_exactly_those_run() -> None:
    stage = Stage()

    def change(request: Any) -> ApprovalDecided:
        return ApprovalDecided(
            tool_call_id=request.tool_call_id,
            digest=request.digest,
            action="modify",
            decided_by="dora",
            arguments={"to": "ann", "text": "softly"},
        )

    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="ann", text="LOUDLY")]), "ok"], approvals=Approvals(handler=change)
    )
    await agent.run("go", session=SESSION)
    assert stage.effects == ["send ann: softly"]
    started = next(e.payload for e in await stage.store.load(SESSION) if e.kind == "tool_started")
    assert started.arguments == {"to": "ann", "text": "softly"}


@pytest.mark.spec("A-1")
async def test_a_decision_may_abort_the_run() -> None:
    stage = Stage()
    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="a", text="b")])], approvals=Approvals(handler=lambda r: "abort")
    )
    result = await agent.run("go", session=SESSION, check=False)
    assert result.status == "aborted"
    assert stage.effects == []
    check_well_formed(await stage.store.load(SESSION))


@pytest.mark.spec("A-2", "A-3")
async def test_a_waiting_run_refuses_a_new_one_and_a_foreign_decision() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="a", text="b")]), "ok"])
    result = await agent.run("go", session=SESSION, check=False)
    assert result.status == "awaiting_human"
    with pytest.raises(AgentError) as busy:
        await agent.run("more", session=SESSION)
    assert busy.value.code == "SessionBusy"
    with pytest.raises(AgentError) as wrong:
        await agent.decide(SESSION, "call_9999", "approve", by="eve")
    assert wrong.value.code == "ApprovalInvalid"
    waiting = [e for e in await stage.store.load(SESSION) if e.kind == "approval_requested"][-1]
    await agent.decide(SESSION, waiting.payload.tool_call_id, "approve", by="carol")
    with pytest.raises(AgentError):
        await agent.decide(SESSION, waiting.payload.tool_call_id, "deny", by="carol")


@pytest.mark.spec("T-4", "C-4")
async def test_a_long_result_is_kept_apart_and_can_be_read_on() -> None:
    stage = Stage()

    @tool(timeout=None)
    async def fetch() -> str:
        """Fetch a long text."""
        return "".join(f"line {n}\n" for n in range(20_000))

    agent = stage.agent([Turn(tool_calls=[call("fetch")]), "long"], tools=[fetch])
    await agent.run("go", session=SESSION)
    entries = await stage.store.load(SESSION)
    outcome = next(e.payload.outcomes[0] for e in entries if e.kind == "tool_results")
    assert outcome.artifact is not None
    whole = await stage.store.get_blob(outcome.artifact)
    assert whole.decode().endswith("line 19999\n")
    shown = next(
        e.payload.message.tool_results[0].payload.content for e in entries if e.kind == "tool_results"
    )
    assert len(shown) < 20_000 and outcome.artifact in shown
    again = stage.agent(
        [Turn(tool_calls=[call("read_artifact", artifact=outcome.artifact, offset=100_000)]), "read"],
        tools=[fetch],
    )
    await again.run("read on", session=SESSION)
    page = [
        e.payload.message.tool_results[0].payload.content
        for e in await stage.store.load(SESSION)
        if e.kind == "tool_results"
    ][-1]
    assert "line 10" in page
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("L-15", "P-5")
async def test_a_forced_tool_choice_holds_for_the_first_call_only() -> None:
    stage = Stage()
    model = ScriptedModel([Turn(tool_calls=[call("add", a=1, b=1)]), "2"], clock=stage.clock, ids=stage.ids)
    agent = Agent(model, tools=stage.tools(), store=stage.store, clock=stage.clock, ids=stage.ids)
    await agent.run("go", session=SESSION, tool_choice=SpecificTool(name="add"))
    assert [request.tool_choice for request in model.requests] == [SpecificTool(name="add"), None]


@pytest.mark.spec("H-14", "L-14")
async def test_the_system_instruction_is_an_entry_written_when_it_changes() -> None:
    stage = Stage()
    await stage.agent(["a"]).run("1", session=SESSION)
    await stage.agent(["b"]).run("2", session=SESSION)
    await stage.agent(["c"], instructions="You are long-winded.").run("3", session=SESSION)
    prompts = [e.payload.text for e in await stage.store.load(SESSION) if e.kind == "system_prompt"]
    assert prompts == ["You are brief.", "You are long-winded."]


async def test_state_folds_to_what_the_run_ended_as() -> None:
    stage = Stage()
    await stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "2"]).run("go", session=SESSION, check=False)
    state = SessionState()
    for entry in await stage.store.load(SESSION):
        state.step(entry)
    assert state.status == "completed"
    assert (state.tool_rounds, state.calls_started, state.call_index) == (1, 1, 2)


def test_fixed_parts_are_fixed() -> None:
    assert FixedClock().now() == FixedClock().now()
    assert FixedIds().run() == FixedIds().run()
