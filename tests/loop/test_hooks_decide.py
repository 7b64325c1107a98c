"""Hooks that veto and change calls, and add to results: what they decide is in the log."""

from __future__ import annotations

from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import AgentError, tool
from turnlog.contract import (
    ApprovalRequestedEntry,
    Entry,
    ToolCallRequest,
    ToolResultsEntry,
    ToolStartedEntry,
)
from turnlog.history import verify
from turnlog.loop import Change, Hooks, Note, Question, RunIds, Veto, replay
from turnlog.testing import Turn
from turnlog.tools import ToolAnswer

ADD = Turn(tool_calls=[call("add", a=1, b=2)])


async def log_of(stage: Stage, kind: type[Any]) -> list[Any]:
    entries: list[Entry] = await stage.store.load(SESSION)
    assert await verify(stage.store, SESSION) == []
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference
    return [entry.payload for entry in entries if isinstance(entry, kind)]


@pytest.mark.spec("L-13")
async def test_a_veto_is_a_result_that_the_model_reads_and_nothing_runs() -> None:
    stage = Stage()
    seen: list[str] = []

    def no_sums(call: ToolCallRequest, ids: RunIds) -> Veto | None:
        seen.append(ids.session_id)
        return Veto("no sums on Sundays") if call.tool_name == "add" else None

    agent = stage.agent([ADD, "Then not."], hooks=Hooks(check_tool=[no_sums]))
    assert (await agent.run("Add.", session=SESSION)).text == "Then not."
    assert seen == [SESSION]
    (results,) = await log_of(stage, ToolResultsEntry)
    assert results.outcomes[0].status == "denied"
    assert results.message.tool_results[0].payload.text == "add was not run: no_sums: no sums on Sundays"
    assert await log_of(stage, ToolStartedEntry) == []


@pytest.mark.spec("L-13")
async def test_a_change_is_what_runs_and_the_log_names_the_hook() -> None:
    stage = Stage()

    def double(call: ToolCallRequest) -> Change:
        return Change({**(call.arguments or {}), "b": 40})

    async def one_more(call: ToolCallRequest) -> Change:
        assert call.arguments == {"a": 1, "b": 40}  # a hook sees what the one before it made
        return Change({"a": 2, "b": 40})

    agent = stage.agent([ADD, "Done."], hooks=Hooks(check_tool=[double, one_more]))
    await agent.run("Add.", session=SESSION)
    (started,) = await log_of(stage, ToolStartedEntry)
    assert (started.arguments, started.changed_by) == ({"a": 2, "b": 40}, "one_more")
    (results,) = await log_of(stage, ToolResultsEntry)
    assert results.message.tool_results[0].payload.text == "42"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.mark.spec("L-13")
async def test_a_person_is_asked_about_what_a_hook_made_of_a_call_and_that_runs() -> None:
    stage = Stage()
    asked: list[int] = []

    def at_most_ten(call: ToolCallRequest) -> Change | None:
        amount = (call.arguments or {})["amount"]
        asked.append(amount)
        return Change({"amount": 10}) if amount > 10 else None

    turns = [Turn(tool_calls=[call("pay", amount=500)]), "Paid."]
    agent = stage.agent(turns, tools=[pay], hooks=Hooks(check_tool=[at_most_ten]))
    result = await agent.run("Pay.", session=SESSION)
    assert result.status == "awaiting_human"
    (waiting,) = await agent.pending(SESSION)
    assert waiting.arguments == {"amount": 10}
    await agent.decide(SESSION, waiting.tool_call_id, "approve", by="ann")
    await agent.resume(SESSION)
    assert asked == [500]  # what was approved is not changed again
    (requested,) = await log_of(stage, ApprovalRequestedEntry)
    assert requested.changed_by == "at_most_ten"
    (results,) = await log_of(stage, ToolResultsEntry)
    assert results.message.tool_results[0].payload.text == "paid 10"


@pytest.mark.spec("L-13")
async def test_a_note_follows_a_result() -> None:
    stage = Stage()

    def check(call: ToolCallRequest, answer: ToolAnswer) -> Note | None:
        return Note(f"{answer.text} is odd; check it")

    agent = stage.agent([ADD, "Done."], hooks=Hooks(check_result=[check]))
    await agent.run("Add.", session=SESSION)
    (results,) = await log_of(stage, ToolResultsEntry)
    assert results.message.tool_results[0].payload.text.endswith("3 is odd; check it")


@pytest.mark.spec("L-13")
async def test_a_hook_can_have_a_person_asked() -> None:
    stage = Stage()

    def ask(call: ToolCallRequest) -> Question:
        return Question("is it Sunday?")

    agent = stage.agent([ADD, "Done."], hooks=Hooks(check_tool=[ask]))
    assert (await agent.run("Add.", session=SESSION)).status == "awaiting_human"
    (waiting,) = await agent.pending(SESSION)
    assert waiting.reason == "is it Sunday?"
    await agent.decide(SESSION, waiting.tool_call_id, "approve", by="ann")
    assert (await agent.resume(SESSION)).text == "Done."  # pyright: ignore[reportOptionalMemberAccess]
    (results,) = await log_of(stage, ToolResultsEntry)
    assert results.message.tool_results[0].payload.text == "3"


def says(*_: Any) -> str:
    return "no"


def misfits(*_: Any) -> Change:
    return Change({"a": "x"})


def forbids(*_: Any) -> Veto:
    return Veto("no")


def breaks(*_: Any) -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("point", "hook", "why"),
    [
        ("check_tool", says, "returned a str; it may return Veto(reason), Change(arguments)"),
        ("check_tool", misfits, "changed the arguments of add to some that do not fit"),
        ("check_result", forbids, "returned a Veto; it may return Note(text) or None"),
        ("check_tool", breaks, "raised ZeroDivisionError"),
        ("check_result", breaks, "raised ZeroDivisionError"),
    ],
)
async def test_a_hook_that_decides_wrongly_fails_the_run_and_loses_no_result(
    point: str, hook: Any, why: str
) -> None:
    stage = Stage()
    agent = stage.agent([ADD, "Done."], hooks=Hooks(**{point: [hook]}))
    with pytest.raises(AgentError) as error:
        await agent.run("Add.", session=SESSION)
    assert error.value.code == "HookFailed"
    assert why in error.value.message
    (results,) = await log_of(stage, ToolResultsEntry)
    assert results.outcomes[0].status == ("success" if point == "check_result" else "skipped")
