"""A client of several streams: numbers that go on, calls that wait, events that are read back."""

from __future__ import annotations

import pytest

from turnlog import Agent, RunEvent, tool
from turnlog.contract import decode, encode
from turnlog.testing import ScriptedModel, Turn


@tool(requires_approval=True)
def order(item: str) -> str:
    """Order something."""
    return f"ordered {item}"


def said(events: list[RunEvent]) -> str:
    """As the README reads events: a type checker follows ``kind`` to the payload, or ``make lint`` fails."""
    words = ""
    for event in events:
        match event.kind:
            case "model_delta" if event.payload.delta.kind == "text":
                words += event.payload.delta.payload.text_delta
            case "tool_result":
                words += f"[{event.payload.status}]"
            case _:
                pass
    return words


@pytest.mark.spec("L-3")
async def test_a_client_goes_on_from_its_last_number_over_waits_and_runs() -> None:
    calls = Turn(tool_calls=[{"name": "order", "arguments": {"item": "lamp"}}])
    model = ScriptedModel([calls, "Done.", "Bye."])
    agent = Agent(model, tools=[order], store="memory:")
    seen = [event async for event in agent.run_stream("Order a lamp.", session="s1")]
    (call,) = await agent.pending("s1")
    assert (call.tool_name, call.arguments) == ("order", {"item": "lamp"})
    await agent.decide("s1", call.tool_call_id, "approve", by="ann")
    assert await agent.pending("s1") == []
    seen += [event async for event in agent.resume_stream("s1", after=seen[-1].seq)]
    seen += [event async for event in agent.run_stream("Bye.", session="s1", after=seen[-1].seq)]
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert [event.kind for event in seen].count("run_ended") == 3
    assert said(seen) == "[success]Done.Bye."
    assert [decode(encode(event), RunEvent) for event in seen] == seen
