"""A client of several streams: numbers that never repeat, calls that wait, events that are read back."""

from __future__ import annotations

import asyncio

import pytest

from turnlog import Agent, RunEvent, tool
from turnlog.contract import decode, encode
from turnlog.events import RunEnded, TextDelta, ToolFinished
from turnlog.history import MemoryStore
from turnlog.testing import ScriptedModel, Turn


@tool(requires_approval=True)
def order(item: str) -> str:
    """Order something."""
    return f"ordered {item}"


def said(told: list[RunEvent]) -> str:
    """As the README reads events: a type checker follows the class, or ``make lint`` fails."""
    words = ""
    for event in told:
        match event:
            case TextDelta(text=text):
                words += text
            case ToolFinished(status=status):
                words += f"[{status}]"
            case _:
                pass
    return words


@pytest.mark.spec("L-3", "L-17")
async def test_numbers_rise_over_waits_runs_and_processes() -> None:
    calls = Turn(tool_calls=[{"name": "order", "arguments": {"item": "lamp"}}])
    store = MemoryStore()
    agent = Agent(ScriptedModel([calls, "Done."]), tools=[order], store=store)
    seen = [event async for event in agent.run_stream("Order a lamp.", session="s1")]
    (call,) = await agent.pending("s1")
    assert (call.tool_name, call.arguments) == ("order", {"item": "lamp"})
    await agent.decide("s1", call.tool_call_id, "approve", by="ann")
    assert await agent.pending("s1") == []
    seen += [event async for event in agent.resume_stream("s1")]
    elsewhere = Agent(ScriptedModel(["Bye."]), tools=[order], store=store)
    seen += [event async for event in elsewhere.run_stream("Bye.", session="s1")]
    numbers = [event.seq for event in seen]
    assert numbers == sorted(set(numbers)), "each number is above the one before"
    assert [event.kind for event in seen].count("run_ended") == 3
    assert said(seen) == "[success]Done.Bye."
    assert [decode(encode(event), RunEvent) for event in seen] == seen


@pytest.mark.spec("L-3", "L-17")
async def test_a_client_that_comes_back_gets_what_it_missed_from_the_log() -> None:
    agent = Agent(ScriptedModel(["One.", "Two."]), store="memory:")
    seen = [event async for event in agent.run_stream("Go.", session="s1")]
    later = [event async for event in agent.run_stream("On.", session="s1")]
    entries = [event for event in (*seen, *later) if getattr(event, "entry_id", None)]
    for last in (0, entries[1].seq, seen[-1].seq):
        missed = [event async for event in agent.session("s1").events(after=last)]
        assert [event for event in missed if getattr(event, "entry_id", None)] == [
            event for event in entries if event.seq > last
        ]
        assert [event.seq for event in missed] == sorted({event.seq for event in missed})
    ends = [event for event in (*seen, *later) if isinstance(event, RunEnded)]
    again = [event async for event in agent.session("s1").events()]
    assert [(end.seq, end.result) for end in again if isinstance(end, RunEnded)] == [
        (end.seq, end.result) for end in ends
    ]


@pytest.mark.spec("L-17")
async def test_a_run_outlives_its_watchers_and_serves_any_number_of_them() -> None:
    go_on = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await go_on.wait()
        return "waited"

    model = ScriptedModel([Turn(text="First.", tool_calls=[{"name": "wait", "arguments": {}}]), "Then."])
    agent = Agent(model, tools=[wait], store="memory:")
    run = await agent.start("Go.", session="s1")
    first: list[RunEvent] = []
    async for event in run.events():
        first.append(event)
        if event.kind == "tool_started":
            break  # this watcher leaves; the run does not care
    watching = [asyncio.create_task(_read(run.events(after=first[-1].seq))) for _ in range(3)]
    late = asyncio.create_task(_read(run.events()))
    await asyncio.sleep(0)
    go_on.set()
    result = await run.result()
    assert result.text == "Then." and run.done
    rest = [await task for task in watching]
    assert rest[0] == rest[1] == rest[2]
    assert [event.seq for event in (*first, *rest[0])] == [event.seq for event in await late]
    assert said([*first, *rest[0]]) == "First.[success]Then."


async def _read(events: object) -> list[RunEvent]:
    return [event async for event in events]  # type: ignore[attr-defined]
