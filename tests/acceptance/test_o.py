"""O. Observability."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from acceptance.desk import Desk, asks_for, call
from turnlog import Agent, load_model
from turnlog.testing import Loopback, LoopbackAnswer

MODEL = "claude-sonnet-4-5"


def answer(cached: int) -> LoopbackAnswer:
    """A streamed answer of a model whose price is known, with so many cached tokens of a thousand."""
    usage = {"input_tokens": 1_000 - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    start: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 100}},
        {"type": "message_stop"},
    ]
    return LoopbackAnswer.sse("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events))


@pytest.mark.spec("O-2", "D-7")
async def test_usage_and_cost_are_known_for_each_call_run_and_session_with_cached_tokens_apart() -> None:
    desk = Desk()
    async with Loopback(answer(0), answer(600)) as server:
        model = load_model(f"anthropic:{MODEL}", api_key="sk-none-of-ours-0", base_url=server.url)
        agent = Agent(model, store=desk.store)
        first = (await agent.run("Hi.", session="s")).usage
        second = (await agent.run("Hi again.", session="s")).usage
        await model.close()
    assert first is not None and second is not None
    assert (first.input_tokens, first.output_tokens, first.total_tokens) == (1_000, 100, 1_100)
    assert (first.cached_input_tokens or 0, second.cached_input_tokens) == (0, 600)
    assert first.cost is not None and second.cost is not None
    assert 0 < second.cost < first.cost, "cached tokens cost less"
    calls = [entry.payload.message.meta["usage"] for entry in await desk.of_kind("model_output")]
    assert [used["inputTokens"] for used in calls] == [1_000, 1_000]
    assert [used["cost"] for used in calls] == [first.cost, second.cost]
    state = await agent.session("s").state()
    assert state.token_usage is not None and state.token_usage.total_tokens == 2_200
    assert state.token_usage.cached_input_tokens == 600
    assert state.cost_usage == pytest.approx(first.cost + second.cost)


async def test_writes_are_logged_by_category(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "turnlog")
    desk = Desk()
    agent = desk.agent(asks_for(call("pay", amount=5)), "Paid.")
    session = agent.session("s")
    await session.run("Pay.")
    [waiting] = await session.pending()
    await session.approve(waiting, by="ann")
    await session.resume()
    await session.fork(session="branch")
    by_category = {record.name for record in caplog.records if record.name.startswith("turnlog.")}
    assert {"turnlog.history", "turnlog.context", "turnlog.loop"} <= by_category
    said = [record.getMessage() for record in caplog.records if record.name == "turnlog.history"]
    kinds = [entry.kind for entry in await desk.entries()]
    assert all(any(kind in line for line in said) for kind in kinds)
