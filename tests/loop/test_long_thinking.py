"""Thinking through a turn of many calls, with a server that refuses what Claude refuses."""

from __future__ import annotations

from typing import Any

import pytest

from loop.context_stage import stock
from models import anthropic_wire as wire
from turnlog import Agent
from turnlog.context import ContextOptions
from turnlog.events import AnswerAdded
from turnlog.history import MemoryStore
from turnlog.loop import replay
from turnlog.testing import Loopback, LoopbackAnswer, LoopbackRequest

CALLS = 20
TURNS = 3
SMALL = ContextOptions(fold_at=12_000, min_freed_tokens=300)


class Claude:
    """Thinks, calls a tool so many times in one turn, and answers. Like the API it refuses a budget where the
    work in progress does not begin with a thinking block."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, request: LoopbackRequest) -> LoopbackAnswer:
        body = request.json
        thinking = body.get("thinking")
        if thinking and thinking["type"] == "enabled" and not self._begins_with_thought(body["messages"]):
            message = (
                "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`"
            )
            error = {"type": "invalid_request_error", "message": message}
            return LoopbackAnswer.json({"type": "error", "error": error}, status=400)
        self.asked.append(thinking)
        number = len(self.asked)
        blocks = wire.thinking(0, f"thought {number}", f"sig{number}") if thinking else []
        index = 1 if thinking else 0
        if number % CALLS:
            hall = f'{{"hall": {number}}}'
            blocks += wire.call(index, "stock", hall, id=f"toolu_{number}")
            return LoopbackAnswer.sse(wire.sse(wire.begin(), *blocks, *wire.end("tool_use")))
        blocks += wire.text(index, f"That is all of it, {number}.")
        return LoopbackAnswer.sse(wire.sse(wire.begin(), *blocks, *wire.end("end_turn")))

    def _begins_with_thought(self, messages: list[Any]) -> bool:
        """Whether the first answer after the last word of the user does; true where there is none yet."""
        first = None
        for message in reversed(messages):
            if message["role"] == "assistant":
                first = message
            elif not any(block["type"] == "tool_result" for block in message["content"]):
                break
        return first is None or first["content"][0]["type"] == "thinking"


async def long_turns(server: Loopback, **config: Any) -> tuple[list[AnswerAdded], MemoryStore, int]:
    store = MemoryStore()
    model = wire.anthropic(server, **config)
    agent = Agent(model, store=store, tools=[stock], context=SMALL)
    heard: list[AnswerAdded] = []
    for turn in range(TURNS):
        async with agent.run_stream(f"Look into all halls, {turn}.", session="s1") as run:
            heard += [event async for event in run if isinstance(event, AnswerAdded)]
            assert (await run.result()).status == "completed"
    report = await replay(store, "s1", options=SMALL)
    assert report.identical, report.difference
    folds = [entry for entry in await store.load("s1") if entry.kind == "fold"]
    await agent.close()
    await model.close()
    return heard, store, len(folds)


@pytest.mark.spec("P-6", "C-3")
async def test_a_budget_is_asked_for_until_a_fold_in_the_turn_and_then_log_and_event_tell_why_not() -> None:
    claude = Claude()
    async with Loopback(claude) as server:
        heard, store, folds = await long_turns(server, thinking=2_048)
    assert folds >= 2
    assert len(claude.asked) == TURNS * CALLS, "no call was refused"
    for turn in range(TURNS):
        on = [asked is not None for asked in claude.asked[turn * CALLS : (turn + 1) * CALLS]]
        assert on[0], "every turn begins with thinking"
        assert on == sorted(on, reverse=True), "it comes back with the next user message"
    assert None in claude.asked
    notes = [event.note for event in heard]
    assert [note is None for note in notes] == [asked is not None for asked in claude.asked]
    assert all("thinking is off until the next user message" in note for note in notes if note)
    folded, told = False, []
    for entry in await store.load("s1"):
        if entry.kind in ("fold", "model_input"):
            folded = entry.kind == "fold"
        elif entry.kind == "model_output":
            told.append((entry.meta or {}).get("route"))
            assert folded or told[-1] is None, "only a fold in the turn is a reason"
    assert told == notes


@pytest.mark.spec("P-6", "C-3")
async def test_adaptive_thinking_stays_on_through_folds() -> None:
    claude = Claude()
    async with Loopback(claude) as server:
        heard, _, folds = await long_turns(server, model_id="claude-opus-4-6", thinking="adaptive")
    assert folds >= 2
    assert claude.asked == [{"type": "adaptive"}] * (TURNS * CALLS)
    assert not any(event.note for event in heard)
