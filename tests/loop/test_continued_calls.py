"""A tool that asks for something and is run again with it: the question and the answer are in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, RunResult, ToolContext, ToolResult, open_session, tool
from turnlog.contract import AgentError
from turnlog.history import SessionState, SqliteStore
from turnlog.loop import Session
from turnlog.testing import ScriptedModel, Turn


def asking(seen: list[Any], **options: Any) -> Any:
    @tool(**options)
    def book(ctx: ToolContext, city: str) -> ToolResult | str:
        """Book a room; asks for the name, then for the day."""
        seen.append((ctx.attempt, [(each.state, each.content, each.declined) for each in ctx.answers]))
        if ctx.answers and ctx.answers[-1].declined:
            return f"no room in {city}"
        if len(ctx.answers) < 2:
            what = ["name", "day"][len(ctx.answers)]
            return ToolResult.deferred(
                "it needs to know more",
                question=f"Which {what}?",
                answer_schema={"type": "string"},
                state={"step": len(ctx.answers)},
            )
        return f"{city}: {ctx.answers[0].content} on {ctx.answers[1].content}"

    return book


def script(*answers: Any) -> ScriptedModel:
    return ScriptedModel([Turn(tool_calls=[{"name": "book", "arguments": {"city": "Oslo"}}]), *answers])


async def resumed(session: Session[Any]) -> RunResult[Any]:
    result = await session.resume()
    assert result is not None
    return result


async def test_a_tool_is_run_again_with_each_answer_also_in_another_process(tmp_path: Path) -> None:
    seen: list[Any] = []
    url = f"sqlite:{tmp_path / 'log.db'}"
    async with Agent(script("Booked."), tools=[asking(seen)], store=url) as agent:
        assert (await agent.run("Book.", session="trip")).status == "awaiting_human"
    store = SqliteStore(str(tmp_path / "log.db"))  # another process: neither the agent nor its tools
    trip = open_session(store, "trip")
    [question] = await trip.questions()
    assert question.question == "Which name?"
    with pytest.raises(AgentError, match="does not fit"):
        await trip.answer(question, 7)
    await trip.answer(question, "Ada", by="ann")
    assert await trip.questions() == []
    with pytest.raises(AgentError, match="does not wait for an answer"):
        await trip.answer(question, "Bob")
    await store.close()
    async with Agent(ScriptedModel(["Booked."]), tools=[asking(seen)], store=url) as agent:
        trip = agent.session("trip")
        assert (await resumed(trip)).status == "awaiting_human"
        [question] = await trip.questions()
        await trip.answer(question, "Monday", by="ann")
        result = await resumed(trip)
        assert result.text == "Booked."
        [done] = [entry for entry in await trip.entries() if entry.kind == "tool_results"]
        assert done.payload.message.tool_results[0].payload.text == "Oslo: Ada on Monday"
        assert (await trip.replay()).identical
    assert seen == [
        (1, []),
        (2, [({"step": 0}, "Ada", False)]),
        (3, [({"step": 0}, "Ada", False), ({"step": 1}, "Monday", False)]),
    ]


async def test_an_answer_that_nobody_gives_reaches_the_tool_as_declined() -> None:
    seen: list[Any] = []
    async with Agent(script("No."), tools=[asking(seen)], store="memory:") as agent:
        trip = agent.session("trip")
        await trip.run("Book.")
        [question] = await trip.questions()
        await trip.answer(question, "not now", is_error=True, by="ann")
        assert (await resumed(trip)).text == "No."
        assert seen[-1] == (2, [({"step": 0}, "not now", True)])
        assert (await trip.replay()).identical


async def test_an_approved_call_is_not_asked_about_again_when_it_continues() -> None:
    seen: list[Any] = []
    async with Agent(script("No."), tools=[asking(seen, requires_approval=True)], store="memory:") as agent:
        trip = agent.session("trip")
        await trip.run("Book.")
        [call] = await agent.pending()
        await trip.approve(call, by="ann")
        assert (await resumed(trip)).status == "awaiting_human"
        assert await agent.pending() == []
        [question] = await trip.questions()
        await trip.answer(question, None, is_error=True)
        assert (await resumed(trip)).text == "No."
        assert (await trip.replay()).identical


async def test_a_call_that_continues_may_have_run_again_from_its_next_start_on() -> None:
    async with Agent(script("No."), tools=[asking([])], store="memory:") as agent:
        trip = agent.session("trip")
        await trip.run("Book.")
        [question] = await trip.questions()
        await trip.answer(question, None, is_error=True)
        await trip.resume()
        entries = await trip.entries()
    kinds = [entry.kind for entry in entries]
    begins = kinds.index("tool_started")
    assert kinds[begins : begins + 5] == [
        *("tool_started", "tool_deferred", "tool_answered", "tool_started", "tool_results")
    ]
    after = [SessionState.of(entries[: begins + length]).open_calls[0] for length in range(1, 5)]
    assert [call.may_have_run for call in after] == [True, False, False, True]
    assert [call.waits for call in after] == [False, True, False, False]
    starts = [entry.payload for entry in entries if entry.kind == "tool_started"]
    assert [each.attempt for each in starts] == [1, 2]
    assert starts[0].idempotency_key == starts[1].idempotency_key
