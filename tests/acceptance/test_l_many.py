"""L. Agent loop: many runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnlog import Agent
from turnlog.contract import TokenUsage
from turnlog.history import MemoryStore
from turnlog.testing import ScriptedModel, Turn

USED = TokenUsage(input_tokens=50, output_tokens=50, total_tokens=100, cost=0.01)


@pytest.mark.spec("L-20")
async def test_many_runs_stay_under_a_bound_tell_their_progress_and_are_summed_up() -> None:
    now = most = 0

    async def answer(request: Any) -> Turn:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(3):
            await asyncio.sleep(0)
        now -= 1
        return Turn(text=f"About {request.messages[0].text}.", usage=USED)

    inputs = [f"letter {n}" for n in range(12)]
    batch = Agent(ScriptedModel(default=answer), store=MemoryStore()).map(inputs, concurrency=3)
    progress = [(batch.done, batch.total) async for _ in batch]
    assert most == 3
    assert [done for done, _ in progress] == sorted(done for done, _ in progress)
    assert progress[-1] == (12, 12)
    assert batch.usage is not None and batch.usage.total_tokens == 1_200
    assert batch.usage.cost == pytest.approx(0.12)


@pytest.mark.spec("L-20")
async def test_what_was_done_is_not_done_again() -> None:
    store = MemoryStore()
    first = ScriptedModel(default="Read.")
    some = Agent(first, store=store).map(["a", "b"], sessions="letters")
    assert [done.output for done in await some.results()] == ["Read.", "Read."]
    second = ScriptedModel(default="Read too.")
    rest = Agent(second, store=store).map(["a", "b", "c"], sessions="letters")
    assert [done.output for done in await rest.results()] == ["Read.", "Read.", "Read too."]
    assert (first.calls, second.calls) == (2, 1)
