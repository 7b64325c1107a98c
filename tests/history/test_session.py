"""Semantic appends: what each one checks, injects and refuses; views derived from the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from history.history_log import (
    MODEL,
    STARTED,
    answer,
    call,
    code_of,
    open_session,
    results,
    write_everything,
)
from turnlog import Agent
from turnlog.contract import (
    ENTRY_KINDS,
    SCHEMA_VERSION,
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    Message,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    RunEnded,
    ToolOutcome,
    ToolResults,
    ToolSpec,
    ToolStarted,
    WidgetEvent,
    expected_hash,
    read_envelope,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.history import MemoryStore, Session, SessionState
from turnlog.models import ScriptedModel
from turnlog.system import SystemClock, SystemIds


@pytest.fixture
async def session() -> Session:
    return await open_session(MemoryStore())


async def _with_calls(*ids: str) -> Session:
    session = await open_session(MemoryStore())
    session.start_run("run_1", STARTED)
    session.append_model_input(user_message("go"))
    session.append_model_output(answer(*(call(id) for id in ids), finish_reason="tool_calls"))
    await session.commit()
    return session


@pytest.mark.spec("H-1")
async def test_entries_get_id_seq_time_parent_and_hash() -> None:
    store = MemoryStore()
    session = await open_session(store, title="A talk", metadata={"team": "blue"})
    session.start_run("run_1", STARTED)
    session.append_model_input(user_message("hello"), meta={"trace_id": "t"})
    written = await session.commit()
    assert [entry.seq for entry in written] == [1, 2, 3]
    assert [entry.kind for entry in written] == ["session_header", "run_started", "model_input"]
    assert [entry.parent_id for entry in written] == [None, written[0].id, written[1].id]
    assert written[0].payload.schema_version == SCHEMA_VERSION
    assert len({entry.timestamp for entry in written}) == 3
    assert sorted(entry.id for entry in written) == [entry.id for entry in written]
    assert written[2].run_id == "run_1"
    assert written[2].payload.message.run_id == "run_1"
    assert written[2].payload.message.timestamp == written[2].timestamp
    previous = ""
    for stored in await store.read("s1"):
        assert b"null" not in stored.body
        envelope = read_envelope(stored.body)
        assert expected_hash(envelope, previous) == envelope.hash
        previous = envelope.hash
    assert await store.load("s1") == session.entries == written


@pytest.mark.spec("H-2")
async def test_every_kind_can_be_written_and_read_back() -> None:
    store = MemoryStore()
    session = await open_session(store)
    await write_everything(session)
    session.redact([session.entries[5].id], "private", "ana")
    session.append_purge([session.entries[5].id], "private", "ana")
    await session.commit()
    again = await open_session(store)
    assert again.entries == session.entries
    assert set(ENTRY_KINDS) - {entry.kind for entry in again.entries} == {"branch_summary"}
    assert again.view() == session.view()


@pytest.mark.spec("H-3")
@pytest.mark.parametrize(
    "message",
    [
        user_message(""),
        user_message(" \n\t"),
        user_message([]),
        Message(run_id="", role="assistant", parts=[text_part("hi")], timestamp=""),
    ],
)
async def test_an_empty_input_is_refused(session: Session, message: Message) -> None:
    with pytest.raises(AgentError) as error:
        session.append_model_input(message)
    assert code_of(error) == "InvalidEntry"
    assert session.staged == []


@pytest.mark.spec("H-3")
@pytest.mark.parametrize(
    "output",
    [
        answer(),
        answer(" "),
        answer(thinking_part("hm")),
        answer(call("", "look")),
        answer(call("c1", "")),
        answer(call("c1"), call("c1")),
    ],
)
async def test_an_output_without_text_or_proper_calls_is_refused(
    session: Session, output: ModelOutput
) -> None:
    with pytest.raises(AgentError) as error:
        session.append_model_output(output)
    assert code_of(error) == "InvalidEntry"


@pytest.mark.spec("H-3")
@pytest.mark.parametrize("missing", ["provider_id", "specification", "model"])
async def test_an_output_says_who_made_it(session: Session, missing: str) -> None:
    fields = {"provider_id": "p", "specification": "s", "model": "m"} | {missing: ""}
    output = answer("hi")
    nobody = ModelOutput(
        message=output.message,
        invocation=ModelInvocationDescriptor(**fields),
        model_call_index=1,
        attempt=1,
        finish_reason="stop",
    )
    with pytest.raises(AgentError, match="provider id, specification and model"):
        session.append_model_output(nobody)
    assert session.append_model_output(output).payload.invocation == MODEL


async def test_a_paused_answer_may_hold_the_providers_own_blocks_alone(session: Session) -> None:
    block = thinking_part("", {"origin": "anthropic", "block": {"type": "server_tool_use"}})
    with pytest.raises(AgentError, match="neither text nor calls"):
        session.append_model_output(answer(block))
    session.append_model_output(answer(block, finish_reason="pause"))


@pytest.mark.spec("H-3", "M-8")
async def test_call_ids_are_unique_in_a_session() -> None:
    session = await _with_calls("c1")
    session.append_tool_results(results(("c1", "ok")))
    with pytest.raises(AgentError, match="'c1' is already used in this session"):
        session.append_model_output(answer(call("c1")))
    await session.commit()
    again = await open_session(session.store)
    with pytest.raises(AgentError, match="'c1' is already used in this session"):
        again.append_model_output(answer(call("c1")))


@pytest.mark.spec("H-3")
async def test_results_must_match_open_calls() -> None:
    session = await _with_calls("c1", "c2", "c3")
    assert [open_call.tool_call_id for open_call in session.open_calls] == ["c1", "c2", "c3"]
    with pytest.raises(AgentError, match=r"'c9', which is not open.*c1, c2, c3"):
        session.append_tool_results(results(("c9", "?")))
    with pytest.raises(AgentError, match="a call has one result"):
        session.append_tool_results(results(("c1", "a"), ("c1", "b")))
    session.append_tool_results(results(("c2", "two")))
    with pytest.raises(AgentError, match="'c2' has a result already"):
        session.append_tool_results(results(("c2", "again")))
    await session.commit()
    with pytest.raises(AgentError, match="'c2' has a result already"):
        session.append_tool_results(results(("c2", "again")))
    with pytest.raises(AgentError, match="c1, c3 have no result yet"):
        session.append_model_output(answer("too early"))
    session.append_tool_results(results(("c3", "three"), ("c1", "one")))
    assert session.open_calls == []


@pytest.mark.spec("H-3")
async def test_results_and_outcomes_line_up() -> None:
    session = await _with_calls("c1", "c2")
    message = results(("c1", "a"), ("c2", "b")).message
    outcome = ToolOutcome(tool_call_id="c1", tool_name="look", status="success")
    with pytest.raises(AgentError, match="do not line up"):
        session.append_tool_results(ToolResults(message=message, outcomes=[outcome]))
    empty = Message(run_id="", role="tool", parts=[], timestamp="")
    with pytest.raises(AgentError, match="at least one result"):
        session.append_tool_results(ToolResults(message=empty, outcomes=[]))


@pytest.mark.spec("H-13")
async def test_a_failed_batch_of_calls_fails_each_open_call() -> None:
    session = await _with_calls("c1", "c2", "c3")
    session.append_tool_results(results(("c2", "done before")))
    entry = session.fail_open_calls(
        "the tools server is gone", error_code="ToolExecutionError", unmatched=["c7", "c8"]
    )
    assert entry is not None
    payload: Any = entry.payload
    assert [part.payload.tool_call_id for part in payload.message.tool_results] == ["c1", "c3"]
    assert all(part.payload.is_error for part in payload.message.tool_results)
    assert {outcome.status for outcome in payload.outcomes} == {"failed"}
    assert payload.execute_error == "the tools server is gone"
    assert entry.meta == {"unmatched_results": ["c7", "c8"]}
    assert session.fail_open_calls("again") is None
    session.end_run(RunEnded(status="failed"))
    await session.commit()


async def test_runs_start_once_and_end_in_order(session: Session) -> None:
    with pytest.raises(AgentError, match="no run is open"):
        session.end_run(RunEnded(status="completed"))
    session.start_run("run_1", STARTED)
    with pytest.raises(AgentError, match="'run_1' has not ended"):
        session.start_run("run_2", STARTED)
    session.append_model_input(user_message("go"))
    session.append_model_output(answer(call("c1")))
    with pytest.raises(AgentError, match="calls have no result: c1"):
        session.end_run(RunEnded(status="completed"))
    session.append_tool_results(results(("c1", "ok")))
    session.end_run(RunEnded(status="completed"))
    with pytest.raises(AgentError, match="used once"):
        session.start_run("run_1", STARTED)
    session.start_run("run_2", STARTED)
    assert (await session.commit())[-1].run_id == "run_2"


async def test_tools_start_once_an_attempt_and_only_for_open_calls() -> None:
    session = await _with_calls("c1")

    def started(call_id: str, attempt: int = 1) -> ToolStarted:
        return ToolStarted(
            tool_call_id=call_id, tool_name="look", idempotency_key="k", args_digest="d", attempt=attempt
        )

    with pytest.raises(AgentError, match="'c2', which is not open"):
        session.start_tool(started("c2"))
    session.start_tool(started("c1"))
    with pytest.raises(AgentError, match="attempt 1 of call 'c1' has started already"):
        session.start_tool(started("c1"))
    session.start_tool(started("c1", 2))
    await session.commit()
    again = await open_session(session.store)
    with pytest.raises(AgentError, match="the last was 2"):
        again.start_tool(started("c1", 2))


async def test_approvals_are_asked_once_and_decided_once() -> None:
    session = await _with_calls("c1")
    asked = ApprovalRequested(tool_call_id="c1", tool_name="look", arguments={}, digest="d")
    decided = ApprovalDecided(tool_call_id="c1", digest="d", action="approve", decided_by="ana")
    with pytest.raises(AgentError) as error:
        session.decide_approval(decided)
    assert code_of(error) == "ApprovalInvalid"
    session.request_approval(asked)
    with pytest.raises(AgentError, match="pending already"):
        session.request_approval(asked)
    other = ApprovalDecided(tool_call_id="c1", digest="x", action="approve", decided_by="ana")
    with pytest.raises(AgentError, match="bound to other content"):
        session.decide_approval(other)
    assert session.view().status == "awaiting_human"
    session.decide_approval(decided)
    with pytest.raises(AgentError, match="decided already"):
        session.decide_approval(decided)


async def test_what_json_cannot_carry_is_refused(session: Session) -> None:
    for data in ({"n": float("nan")}, {"x": object()}, {1: "key"}, {"s": "\ud800"}):
        with pytest.raises(AgentError) as error:
            session.append_custom("note", data)  # pyright: ignore[reportArgumentType]
        assert code_of(error) == "InvalidEntry"
        with pytest.raises(AgentError):
            session.init_runtime(data)  # pyright: ignore[reportArgumentType]
        with pytest.raises(AgentError):
            session.append_widget_event(WidgetEvent(widget="w", event="e", data=data))  # pyright: ignore
    with pytest.raises(AgentError, match="needs a name"):
        session.append_custom("", {})
    look = ToolSpec(name="look", description="", parameter_schema={})
    with pytest.raises(AgentError, match="share a name: look"):
        session.change_tools([look, look])
    assert session.staged == []


@pytest.mark.spec("M-5")
async def test_meta_of_an_entry_is_small_and_snake_case(session: Session) -> None:
    with pytest.raises(AgentError) as error:
        session.append_custom("note", {}, meta={"big": "x" * 3000})
    assert code_of(error) == "MetaTooLarge"
    with pytest.raises(AgentError, match="snake_case"):
        session.append_custom("note", {}, meta={"traceId": "x"})
    assert session.staged == []
    assert session.append_custom("note", {}, meta={"trace_id": "x"}).meta == {"trace_id": "x"}


@pytest.mark.spec("H-14")
async def test_views_follow_the_log() -> None:
    session = await open_session(MemoryStore(), title="A talk", metadata={"team": "blue"})
    session.set_system_instruction("be kind")
    assert session.view().status == "idle"
    session.start_run("run_1", STARTED)
    assert session.run_id == "run_1"
    session.append_model_input(user_message("hello"))
    session.append_model_output(answer("wait", call("c1"), usage=_usage(10, 5, 0.5)))
    await session.commit()
    state = session.view()
    assert (state.status, state.current_run_id) == ("tool_running", "run_1")
    assert [open_call.tool_call_id for open_call in state.pending_tool_calls] == ["c1"]
    session.append_tool_results(results(("c1", "ok")))
    session.append_model_output(answer("done", usage=_usage(20, 5, 0.25)))
    session.end_run(RunEnded(status="completed"))
    await session.commit()
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert (session.title, session.metadata, session.system_instruction) == (
        "A talk",
        {"team": "blue"},
        "be kind",
    )
    state = session.view()
    assert (state.status, state.current_run_id, state.last_error) == ("completed", None, None)
    assert state.token_usage is not None
    assert (state.token_usage.input_tokens, state.token_usage.output_tokens) == (30, 10)
    assert state.cost_usage == 0.75
    again = await open_session(session.store)
    assert (again.view(), again.messages, again.metadata) == (state, session.messages, session.metadata)


def _usage(given: int, made: int, cost: float) -> dict[str, Any]:
    return {"inputTokens": given, "outputTokens": made, "totalTokens": given + made, "cost": cost}


class _Unread(list[Any]):
    """A log that lets nobody walk through it."""

    def __iter__(self) -> Any:
        raise AssertionError("the whole log was read")


@pytest.mark.spec("H-3")
async def test_an_append_costs_the_same_however_long_the_log_is() -> None:
    session = await open_session(MemoryStore())
    session.start_run("run_1", STARTED)
    for number in range(300):
        session.append_model_input(user_message(f"{number}"))
        session.append_model_output(answer(call(f"c{number}")))
        session.append_tool_results(results((f"c{number}", "ok")))
    await session.commit()
    assert len(session.messages) == 900
    session._entries = _Unread(session._entries)
    session.append_model_input(user_message("more"))
    with pytest.raises(AgentError, match="already used"):
        session.append_model_output(answer(call("c7")))
    session.append_model_output(answer(call("c300")))
    session.append_tool_results(results(("c300", "ok")))
    session.redact([session.entries[3].id])
    await session.commit()
    assert session.view().status == "model_running"
    assert len(session.entries) == 906


@pytest.mark.spec("H-14")
async def test_the_system_instruction_stands_in_an_empty_session_too(session: Session) -> None:
    session.set_system_instruction("first")
    session.set_system_instruction("second")
    await session.commit()
    assert (await open_session(session.store)).system_instruction == "second"
    assert session.messages == []


async def test_a_session_that_must_exist_does(session: Session) -> None:
    with pytest.raises(AgentError) as error:
        await open_session(session.store, create=False)
    assert code_of(error) == "SessionNotFound"
    assert await session.refresh() == []
    assert await session.commit() == []
    assert await session.store.sessions() == []


async def test_a_tool_result_with_parts_and_grains_survives(session: Session) -> None:
    session.append_model_output(answer(call("c1")))
    part = tool_result_part("c1", [text_part("a"), text_part("b")])
    message = Message(run_id="", role="tool", parts=[part], timestamp="")
    outcome = ToolOutcome(tool_call_id="c1", tool_name="look", status="success", elapsed_ms=3)
    session.append_tool_results(ToolResults(message=message, outcomes=[outcome]))
    session.append_model_input(user_message("ok"), source="steering")
    await session.commit()
    again = await open_session(session.store)
    assert again.entries == session.entries
    last = again.entries[-1].payload
    assert isinstance(last, ModelInput)
    assert last.source == "steering"


async def test_others_have_their_turn_while_a_long_session_is_opened() -> None:
    store, clock, ids = MemoryStore(), SystemClock(), SystemIds()
    long = await Session.open(store, "long", clock=clock, ids=ids)
    for number in range(8_000):
        long.append_custom("note", {"number": number})
    await long.commit()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    again = await Session.open(store, "long", clock=clock, ids=ids)
    assert turns >= 8
    before = turns
    async with Agent(ScriptedModel(["Hello."]), store=store) as agent:
        await agent.run("Well?", session="long")
    assert turns - before >= 16  # its state, and its context
    beside.cancel()
    assert again.state == SessionState.of(again.entries)
