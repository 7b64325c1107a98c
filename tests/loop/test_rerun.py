"""What if: a branch runs on from a step with one thing changed, and nothing that was recorded runs again."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog import Agent, AgentError, tool
from turnlog.loop import Session
from turnlog.models import ScriptedModel, Turn
from turnlog.models.anthropic import AnthropicModel

RAN: list[str] = []


@tool
def look(place: str) -> str:
    """Look at a place."""
    RAN.append(place)
    return f"a lamp in the {place}"


def calls(*places: str) -> Turn:
    return Turn(text="Let me see.", tool_calls=[{"name": "look", "arguments": {"place": p}} for p in places])


def make_agent(*answers: str | Turn, store: Any = "memory:", **more: Any) -> Agent:
    return Agent(ScriptedModel(answers), tools=[look], store=store, **more)


PAST = (calls("attic"), calls("cellar"), "Two lamps.")


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


async def seq_of(session: Session, kind: str, nth: int = 0) -> int:
    return [entry.seq for entry in await session.entries() if entry.kind == kind][nth]


async def results_of(session: Session) -> list[str]:
    entries = [entry for entry in await session.entries() if entry.kind == "tool_results"]
    return [part.payload.text for entry in entries for part in entry.payload.message.tool_results]


async def test_other_instructions_are_tried_without_running_a_recorded_call() -> None:
    async with make_agent(*PAST, calls("attic"), calls("cellar"), "Both, briefly.") as agent:
        past = agent.session("past")
        await past.run("What is where?")
        before = await past.entries()
        branch = await past.rerun(await seq_of(past, "model_call_started"), instructions="Be brief.")
        assert RAN == ["attic", "cellar"]  # by the first run alone
        assert (await branch.messages())[-1].text == "Both, briefly."
        assert (await branch.explain()).system_prompt == "Be brief."
        assert await past.entries() == before
        assert (await branch.replay()).identical
        started = [entry for entry in await branch.entries() if entry.kind == "run_started"][-1]
        assert started.payload.rerun.source == "past" and started.payload.rerun.instructions == "Be brief."


async def test_another_model_answers_from_there_on() -> None:
    async with make_agent(*PAST) as agent:
        past = agent.session("past")
        await past.run("What is where?")
        other = ScriptedModel(["Just one."], model_id="other")
        branch = await past.rerun(await seq_of(past, "model_call_started", 1), model=other)
        assert (await branch.messages())[-1].text == "Just one."
        assert (await branch.explain()).target.model == "other"
        both = await past.compare(branch)
        assert both.timeline_b.runs[-1].model == "scripted:other"
        assert "≠ model        scripted:scripted        | scripted:other" in both.text


@pytest.mark.parametrize("mode", ["recorded", "ask", "live"])
async def test_a_call_that_is_not_recorded_follows_the_choice(mode: Any) -> None:
    async with make_agent(*PAST, calls("attic", "garden"), "Three.") as agent:
        past = agent.session("past")
        await past.run("What is where?")
        RAN.clear()
        branch = await past.rerun(await seq_of(past, "model_call_started"), tools=mode)
        state = await branch.state()
        if mode == "live":
            assert RAN == ["garden"] and state.status == "completed"
            assert await results_of(branch) == ["a lamp in the attic", "a lamp in the garden"]
        elif mode == "ask":
            assert RAN == [] and state.status == "awaiting_human"
            waiting = await branch.pending()
            assert [call.arguments for call in waiting] == [{"place": "garden"}]
            await branch.approve(waiting[0], by="ann")
            await branch.resume()
            assert RAN == ["garden"] and (await branch.state()).status == "completed"
        else:
            assert RAN == [] and state.status == "aborted"
            assert state.last_error is not None and "has no result of this call" in state.last_error.message
        assert (await branch.replay()).identical


async def test_the_same_call_twice_gets_each_result_once() -> None:
    async with make_agent(calls("attic"), "One.", calls("attic"), calls("attic"), "Two.") as agent:
        past = agent.session("past")
        await past.run("Look.")
        RAN.clear()
        branch = await past.rerun(await seq_of(past, "model_call_started"), tools="live")
        assert RAN == ["attic"]  # the first was recorded, the second was not
        assert (await branch.state()).status == "completed"


async def test_another_result_of_a_tool() -> None:
    async with make_agent(*PAST, "No lamp at all.") as agent:
        past = agent.session("past")
        await past.run("What is where?")
        RAN.clear()
        branch = await past.rerun(await seq_of(past, "tool_results", 1), result="nothing in the cellar")
        assert RAN == []
        assert await results_of(branch) == ["a lamp in the attic", "nothing in the cellar"]
        assert (await branch.messages())[-1].text == "No lamp at all."
        assert (await branch.replay()).identical


async def test_other_arguments_of_a_call() -> None:
    async with make_agent(*PAST, "The shed, then.") as agent:
        past = agent.session("past")
        await past.run("What is where?")
        RAN.clear()
        at = await seq_of(past, "tool_started", 1)
        branch = await past.rerun(at, arguments={"place": "shed"}, tools="live")
        assert RAN == ["shed"]
        assert await results_of(branch) == ["a lamp in the attic", "a lamp in the shed"]
        assert (await branch.replay()).identical


async def test_other_words_of_the_user() -> None:
    async with make_agent("Hello.", *PAST, "In the attic?") as agent:
        past = agent.session("past")
        await past.run("Hi.")
        await past.run("What is where?")
        branch = await past.rerun(await seq_of(past, "model_input", 1), text="Where is the lamp?")
        said = [message.text for message in await branch.messages()]
        assert said == ["Hi.", "Hello.", "Where is the lamp?", "In the attic?"]
        assert (await branch.replay()).identical


async def test_a_rerun_that_was_cut_off_is_resumed_under_the_same_rule() -> None:
    async with make_agent(*PAST, calls("attic"), calls("garden"), "Never.") as agent:
        past = agent.session("past")
        await past.run("What is where?")
        stream = await past.rerun_stream(await seq_of(past, "model_call_started"), session="branch")
        async with stream:
            async for event in stream:
                if event.kind == "tool_result":
                    await agent.pause(stream.run_id)
        branch = agent.session("branch")
        assert (await branch.state()).status == "paused"
    RAN.clear()
    async with make_agent(calls("garden"), "Never.", store=agent.store) as later:
        branch = later.session("branch")
        await branch.resume(check=False)
        assert RAN == []  # still: what is not recorded ends the run
        assert (await branch.state()).status == "aborted"


@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (99, {}, "the entries 1 to"),
        (0, {}, "the entries 1 to"),
        (5, {"text": "x"}, "is not what a run was asked"),
        (3, {"result": "x"}, "belongs to no tool call"),
        (5, {"result": "x", "arguments": {}}, "exclude each other"),
        (15, {}, "no model call follows"),
        (5, {"tools": "maybe"}, "'recorded', 'ask' or 'live'"),
        (5, {"colour": "red"}, "no option 'colour'"),
    ],
)
async def test_a_change_that_makes_no_sense_leaves_nothing_behind(at: int, change: Any, words: str) -> None:
    async with make_agent(*PAST) as agent:
        past = agent.session("past")
        await past.run("What is where?")
        with pytest.raises(AgentError, match=words):
            await past.rerun(at, **change)
        assert [info.session_id for info in await agent.store.sessions()] == ["past"]


async def test_a_preview_tells_what_a_rerun_does_and_makes_nothing() -> None:
    async with make_agent(*PAST, calls("attic"), calls("shed")) as agent:
        past = agent.session("past")
        await past.run("What is where?")
        at = await seq_of(past, "model_call_started", 1)
        told = await past.preview_rerun(at, instructions="Be brief. " * 100)
        assert (told.shared, told.call, told.model) == (at - 1, 2, "scripted:scripted")
        assert [call.arguments for call in told.recorded] == [{"place": "cellar"}]
        assert told.missing == [] and told.unrecorded is None and told.cost is None
        assert (
            "runs again from model call 2" in told.text and "answers: look; any other call ends" in told.text
        )
        assert await agent.store.sessions(parent="past") == [] and RAN == ["attic", "cellar"]
        branch = await past.rerun(at, instructions="Be brief. " * 100)
        made = [entry for entry in await branch.entries() if entry.kind == "model_call_started"][1]
        assert abs(told.input_tokens - made.payload.estimated_tokens) <= 0.05 * told.input_tokens


async def test_a_preview_knows_the_price_and_what_the_recording_lacks() -> None:
    async with make_agent(*PAST) as agent:
        past = agent.session("past")
        await past.run("What is where?")
        other = AnthropicModel("claude-sonnet-4-5", api_key="k")
        told = await past.preview_rerun(await seq_of(past, "model_call_started"), model=other)
        assert told.cost is not None and told.cost > 0 and "about $" in told.text
        assert [call.tool_name for call in told.recorded] == ["look", "look"]
        first = await seq_of(past, "tool_results")
        longer = await past.preview_rerun(first, result="a lamp " * 500)
        assert longer.call == 2 and len(longer.recorded) == 1
        assert longer.input_tokens > 500
        changed = await past.preview_rerun(first, arguments={"place": "shed"}, tools="live")
        assert changed.unrecorded == "look" and "it runs, with its effects" in changed.text
        asked = await seq_of(past, "model_input")
        worded = await past.preview_rerun(asked, text="Where?")
        assert worded.shared < asked and worded.call == 1
        with pytest.raises(AgentError, match="the session has the entries"):
            await past.preview_rerun(999, text="x")


async def test_a_rerun_whose_tool_is_gone_says_so() -> None:
    async with make_agent(*PAST) as agent:
        await agent.session("past").run("What is where?")
        at = await seq_of(agent.session("past"), "tool_results")
        async with Agent(ScriptedModel(["One."]), store=agent.store) as bare:
            past = bare.session("past")
            for change in (past.rerun, past.preview_rerun):
                with pytest.raises(
                    AgentError, match="'look', a tool that this agent does not have"
                ) as refused:
                    await change(at, arguments={"place": "shed"}, tools="live")
                assert "--result" in refused.value.message
            told = await past.preview_rerun(at, result="nothing")
            assert told.missing == ["look"] and "no tool look" in told.text
            assert await bare.store.sessions(parent="past") == []
            branch = await past.rerun(at, result="nothing")  # what was recorded needs no tool
            assert (await branch.messages())[-1].text == "One."
