"""Recaps that a model writes beside runs: on the wire just sent, used by the next fold, waited for only when
a prompt did not fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from loop.context_stage import SMALL, ContextStage, head, shown, wire
from loop.scenarios import SESSION, call
from turnlog import tool
from turnlog.contract import AgentError, Entry, TokenUsage
from turnlog.history import AgentState
from turnlog.loop import replay
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn

RECAP = "We count crates. crate-0-77 weighs 539 kilos; hall 1 is next."
HASTY = msgspec.structs.replace(SMALL, recap_wait=0.05)
USAGE = TokenUsage(input_tokens=4_000, output_tokens=20, total_tokens=4_020)


class Slow(ScriptedModel):
    """Never gets to an end; knows whether it was asked and whether it was closed."""

    asked = closed = 0

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.asked += 1
        try:
            await asyncio.Event().wait()
            yield
        finally:
            self.closed += 1


def halls(count: int) -> list[Any]:
    return [*(Turn(tool_calls=[call("stock", hall=n)]) for n in range(count)), "Counted."]


def kinds(entries: list[Entry]) -> list[str]:
    return [entry.kind for entry in entries]


@pytest.mark.spec("C-6", "C-3")
async def test_a_recap_is_written_beside_the_run_and_used_by_the_next_fold() -> None:
    stage = ContextStage()
    scribe = ScriptedModel(
        [Turn(text=RECAP, usage=USAGE)], default="More of it.", clock=stage.clock, ids=stage.ids
    )
    agent = stage.play(halls(5), recap=scribe)
    result = await agent.run("Count.", session=SESSION)
    assert result.text == "Counted."
    entries = await stage.check()
    found = kinds(entries)
    assert found.index("compaction_summary") < found.index("fold")
    at = found.index("compaction_summary")
    assert entries[at].payload.summary == RECAP and entries[at].payload.usage == USAGE
    fold = next(entry.payload for entry in entries if entry.kind == "fold")
    assert any(RECAP in segment.text for segment in fold.segments)
    assert "539 kilos" in shown(stage.model.requests[-1]), "though the result itself is folded away"
    assert found.count("run_ended") == 1 and found[-1] == "run_ended"


@pytest.mark.spec("C-6", "P-7")
async def test_it_is_asked_on_the_very_wire_the_provider_has_cached() -> None:
    stage = ContextStage()
    scribe = ScriptedModel(default=RECAP, clock=stage.clock, ids=stage.ids)
    await stage.play(halls(4), recap=scribe).run("Count.", session=SESSION)
    asked = scribe.requests[0]
    sent = next(r for r in stage.model.requests if len(r.messages) == len(asked.messages) - 1)
    assert head(asked) == head(sent)
    assert [wire(message) for message in asked.messages[:-1]] == [wire(message) for message in sent.messages]
    assert asked.messages[-1].role == "user" and "recap" in asked.messages[-1].text
    assert asked.tool_choice is None, "another choice of tools would cost the cache"
    assert len(shown(sent)) // 4 >= 0.6 * 6_000


@pytest.mark.spec("C-6")
async def test_the_same_model_may_write_it() -> None:
    stage = ContextStage()
    script = iter(halls(5))

    def answer(request: ModelRequest) -> Any:
        return RECAP if request.messages[-1].text.startswith("Pause the work") else next(script)

    agent = stage.play([], recap=True)
    stage.model._default = answer
    result = await agent.run("Count.", session=SESSION)
    assert result.text == "Counted."
    entries = await stage.entries()
    assert kinds(entries).count("compaction_summary") >= 1
    fold = next(entry.payload for entry in entries if entry.kind == "fold")
    assert any(RECAP in segment.text for segment in fold.segments)


@pytest.mark.spec("C-6", "O-2")
async def test_what_it_costs_is_counted() -> None:
    stage, without = ContextStage(), ContextStage()
    scribe = ScriptedModel([Turn(text=RECAP, usage=USAGE)], default=AgentError("ModelOverloaded", "busy"))
    result = await stage.play(halls(3), recap=scribe).run("Count.", session=SESSION)
    plain = await without.play(halls(3)).run("Count.", session=SESSION)
    assert result.usage is not None and plain.usage is not None
    assert result.usage.total_tokens == plain.usage.total_tokens + USAGE.total_tokens
    state = AgentState.from_entries(await stage.entries())
    assert state.token_usage is not None and state.token_usage.total_tokens == result.usage.total_tokens
    await stage.check()


@pytest.mark.spec("C-6", "O-2")
async def test_what_one_costs_of_which_nothing_came_is_counted() -> None:
    stage, without = ContextStage(), ContextStage()
    turn = Turn(tool_calls=[call("stock", hall=9)], usage=USAGE)
    scribe = ScriptedModel([turn], default=AgentError("ModelOverloaded", "busy"))
    result = await stage.play(halls(3), recap=scribe).run("Count.", session=SESSION)
    plain = await without.play(halls(3)).run("Count.", session=SESSION)
    assert result.usage is not None and plain.usage is not None
    assert result.usage.total_tokens == plain.usage.total_tokens + USAGE.total_tokens
    entries = await stage.check()
    failed = [entry.payload for entry in entries if entry.kind == "custom"]
    assert failed[0].name == "turnlog.recap_failed" and "usage" in failed[0].data
    state = AgentState.from_entries(entries)
    assert state.token_usage is not None and state.token_usage.total_tokens == result.usage.total_tokens
    later = await stage.play([Turn(text="Again.")]).run("And now?", session=SESSION)
    state = AgentState.from_entries(await stage.entries())
    assert state.token_usage is not None and later.usage is not None
    assert state.token_usage.total_tokens == result.usage.total_tokens + later.usage.total_tokens


@pytest.mark.spec("C-6", "L-7")
async def test_a_run_never_waits_for_it_and_closing_the_agent_leaves_nothing_behind() -> None:
    stage = ContextStage()
    slow = Slow(clock=stage.clock, ids=stage.ids)
    before = asyncio.all_tasks()
    agent = stage.play(halls(6), recap=slow, context=HASTY)
    result = await agent.run("Count.", session=SESSION)
    assert result.text == "Counted."
    assert (slow.asked, slow.closed) == (1, 0), "it outlives the run"
    await agent.close()
    assert (slow.asked, slow.closed) == (1, 1)
    assert asyncio.all_tasks() == before
    entries = await stage.check()
    assert "compaction_summary" not in kinds(entries) and "custom" not in kinds(entries)
    assert "fold" in kinds(entries), "a fold needs no recap"


class Late(ScriptedModel):
    """Answers when it is told to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.may_answer = asyncio.Event()

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        await self.may_answer.wait()
        async for chunk in super()._stream(request):
            yield chunk


@pytest.mark.spec("C-6", "O-2")
async def test_one_that_comes_after_its_run_is_used_by_a_later_run_of_another_agent() -> None:
    stage = ContextStage()
    late = Late([Turn(text=RECAP, usage=USAGE)], clock=stage.clock, ids=stage.ids)
    agent = stage.play(halls(2), recap=late)
    await agent.run("Count.", session=SESSION)
    assert kinds(await stage.entries())[-1] == "run_ended"
    late.may_answer.set()
    await agent.close()
    assert kinds(await stage.entries())[-2:] == ["run_ended", "compaction_summary"]
    state = AgentState.from_entries(await stage.entries())
    assert state.token_usage is not None and state.token_usage.total_tokens >= USAGE.total_tokens
    other = stage.play(halls(4))
    await other.run("Go on.", session=SESSION)
    fold = next(entry.payload for entry in await stage.entries() if entry.kind == "fold")
    assert any(RECAP in segment.text for segment in fold.segments)
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference


async def test_one_that_comes_during_the_next_run_is_taken_in_by_it() -> None:
    stage = ContextStage()
    late = Late([RECAP], clock=stage.clock, ids=stage.ids)
    agent = stage.play([*halls(2), *halls(4)], recap=late)
    await agent.run("Count.", session=SESSION)
    async with agent.run_stream("Go on.", session=SESSION) as run:
        async for event in run:
            if event.kind == "tool_started":
                late.may_answer.set()
                await asyncio.sleep(0)
    await agent.close()
    entries = await stage.check()
    assert kinds(entries).count("compaction_summary") == 1
    assert kinds(entries)[-1] == "run_ended"


async def test_a_run_that_begins_while_one_is_being_appended_is_not_refused() -> None:
    stage = ContextStage()
    late = Late([RECAP], clock=stage.clock, ids=stage.ids)
    agent = stage.play([*halls(2), *["Yes."] * 5], recap=late)
    await agent.run("Count.", session=SESSION)
    late.may_answer.set()
    for _ in range(5):
        await asyncio.sleep(0)
        assert (await agent.run("Sure?", session=SESSION)).text == "Yes."
    await agent.close()
    assert kinds(await stage.entries()).count("compaction_summary") == 1


@pytest.mark.spec("C-6", "C-9")
async def test_it_is_waited_for_when_a_prompt_does_not_fit() -> None:
    stage = ContextStage()
    late = Late([RECAP], clock=stage.clock, ids=stage.ids)
    overflow = AgentError("ModelContextOverflow", "the prompt is too long")
    asyncio.get_running_loop().call_later(0.05, late.may_answer.set)
    turns = [*halls(2)[:-1], overflow, "Counted."]
    result = await stage.play(turns, recap=late).run("Count.", session=SESSION)
    assert result.text == "Counted."
    found = kinds(await stage.entries())
    assert found.index("compaction_summary") < found.index("fold")
    fold = next(entry.payload for entry in await stage.entries() if entry.kind == "fold")
    assert any(RECAP in segment.text for segment in fold.segments)
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference


async def test_the_wait_has_a_bound() -> None:
    stage = ContextStage()
    slow = Slow(clock=stage.clock, ids=stage.ids)
    overflow = AgentError("ModelContextOverflow", "the prompt is too long")
    agent = stage.play([*halls(2)[:-1], overflow, "Counted."], recap=slow, context=HASTY)
    assert (await agent.run("Count.", session=SESSION)).text == "Counted."
    await agent.close()
    assert slow.closed == slow.asked == 1


async def test_a_program_without_an_event_loop_gets_what_it_paid_for() -> None:
    stage = ContextStage()
    scribe = ScriptedModel([Turn(text=RECAP, delay=0.0)], clock=stage.clock, ids=stage.ids)
    agent = stage.play(halls(2), recap=scribe)
    await asyncio.to_thread(agent.run_sync, "Count.", session=SESSION)
    assert "compaction_summary" in kinds(await stage.entries())


@pytest.mark.spec("C-6")
async def test_it_follows_instructions_carries_on_from_the_last_and_lists_the_files() -> None:
    stage = ContextStage()
    scribe = ScriptedModel([RECAP, "More was counted."], clock=stage.clock, ids=stage.ids)
    options = msgspec.structs.replace(SMALL, recap_instructions="Keep every weight.")

    @tool(timeout=None)
    async def read_file(path: str) -> str:
        """Read a file."""
        return "x " * 4_000

    @tool(timeout=None)
    async def edit_file(path: str) -> str:
        """Edit a file."""
        return "done " * 3_000

    turns = [Turn(tool_calls=[call("read_file", path="a.txt"), call("edit_file", path="b.txt")])]
    turns += [Turn(tool_calls=[call("read_file", path=f"c{n}.txt")]) for n in range(6)]
    agent = stage.play([*turns, "Done."], recap=scribe, context=options, tools=[read_file, edit_file])
    await agent.run("Count.", session=SESSION)
    await agent.close()
    recaps = [entry.payload for entry in await stage.entries() if entry.kind == "compaction_summary"]
    assert len(recaps) == 2
    first, second = (request.messages[-1].text for request in scribe.requests[:2])
    assert "Keep every weight." in first and "Carry on" not in first
    assert recaps[0].summary.startswith(RECAP)
    assert "Files changed: b.txt" in recaps[0].summary and "Files read: a.txt" in recaps[0].summary
    assert RECAP in second and "Carry on from your last recap" in second
    assert "b.txt" in recaps[1].summary and "a.txt" in recaps[1].summary and "c1.txt" in recaps[1].summary


@pytest.mark.spec("C-6", "L-7")
@pytest.mark.parametrize("how", ["abort", "close", "cancel"])
async def test_a_run_that_is_stopped_takes_it_along(how: str) -> None:
    stage = ContextStage()
    slow = Slow(clock=stage.clock, ids=stage.ids)
    agent = stage.play(halls(6), recap=slow)
    before = asyncio.all_tasks()

    async def watch() -> None:
        async with aclosing(agent.run_stream("Count.", session=SESSION, run_id="r1")) as events:
            async for event in events:
                await asyncio.sleep(0)
                if slow.asked and event.kind == "tool_started":
                    if how == "abort":
                        await agent.abort("r1", "enough")
                    elif how == "close":
                        break
                    else:
                        raise asyncio.CancelledError

    try:
        await watch()
    except asyncio.CancelledError:
        assert how == "cancel"
    assert (slow.asked, slow.closed) == (1, 1)
    assert asyncio.all_tasks() == before
    assert (await stage.entries())[-1].payload.status == "aborted"
    await stage.check()


@pytest.mark.spec("C-6", "E-2")
@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (AgentError("ModelAuthError", "no such key"), "no such key"),
        (Turn(tool_calls=[call("stock", hall=9)]), "empty recap"),
        (Turn(text="Half of it", cut=True), "the recap failed"),
    ],
)
async def test_what_went_wrong_is_noted_and_the_run_goes_on(turn: Any, said: str) -> None:
    stage = ContextStage()
    scribe = ScriptedModel(default=turn, clock=stage.clock, ids=stage.ids)
    result = await stage.play(halls(4), recap=scribe).run("Count.", session=SESSION)
    assert result.text == "Counted."
    entries = await stage.check()
    noted = [entry.payload for entry in entries if entry.kind == "custom"]
    assert noted and noted[0].name == "turnlog.recap_failed"
    assert noted[0].data["code"] == "ContextCompactionFailed" and said in noted[0].data["message"]
    assert not any("recap_failed" in shown(request) for request in stage.model.requests)


@pytest.mark.spec("C-6")
async def test_it_is_not_asked_for_again_and_again() -> None:
    """After one came to nothing the context has to grow first; while one waits to be used, none is wanted."""
    stage = ContextStage()
    slow = Slow(clock=stage.clock, ids=stage.ids)
    agent = stage.play([*halls(2), *["Yes."] * 30], recap=slow, context=HASTY)
    await agent.run("Count.", session=SESSION)
    for _ in range(10):
        await agent.run("Sure?", session=SESSION)
    assert slow.asked == 1
    await agent.close()
    assert slow.closed == 1
    scribe = ScriptedModel(default=RECAP, clock=stage.clock, ids=stage.ids)
    other = ContextStage()
    agent = other.play([*halls(2), *["Yes."] * 30], recap=scribe)
    await agent.run("Count.", session=SESSION)
    for _ in range(10):
        await agent.run("Sure?", session=SESSION)
    assert scribe.calls == 1
    assert kinds(await other.entries()).count("compaction_summary") == 1


async def test_a_short_session_asks_for_none() -> None:
    stage = ContextStage()
    scribe = ScriptedModel(default=RECAP)
    await stage.play(["Yes."], recap=scribe).run("Count.", session=SESSION)
    assert scribe.calls == 0
