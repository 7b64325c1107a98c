"""Tests of the agent with the answers that a model once gave: no network, no key, the same every time.

`ritz.jsonl` is a session that was exported once: `turnlog export trip -o ritz.jsonl`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from hotel import make_agent

from turnlog.history import MemoryStore
from turnlog.testing import RecordedModel, check_session

RECORDING = Path(__file__).with_name("ritz.jsonl")


def test_the_ritz_is_booked_when_a_person_agrees() -> None:
    asyncio.run(books_the_ritz())


async def books_the_ritz() -> None:
    store, model = MemoryStore(), RecordedModel.from_jsonl(RECORDING)
    async with make_agent(model, store) as agent:
        trip = agent.session("trip")
        assert (await trip.run("Book the Ritz, please.")).status == "awaiting_human"
        [call] = await trip.pending()
        assert (call.tool_name, call.arguments) == ("book", {"hotel": "Ritz"})
        await trip.approve(call, by="ann")
        result = await trip.resume()
    assert result is not None and result.text == "The Ritz is booked."
    assert "one room" in model.requests[1].messages[-1].tool_results[0].payload.text
    await check_session(store, "trip")
