"""C-13. A window that nobody told is learned, from refusals and from servers; recaps outlive their run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from acceptance.desk import Desk, asks_for, call
from turnlog import Agent, load_model, tool
from turnlog.context import ContextOptions
from turnlog.contract import TokenUsage, encode
from turnlog.models import ModelRequest
from turnlog.testing import Loopback, LoopbackAnswer, LoopbackRequest, ScriptedModel, Turn

LETTER = "Letter {0}.\n" + "\n".join(f"Clause {{0}}-{n} speaks of matter {n * 3}." for n in range(70))
RECAP = "We count crates. crate-0-77 weighs 539 kilos; hall 1 is next."
USED = TokenUsage(input_tokens=4_000, output_tokens=20, total_tokens=4_020, cost=0.5)
SMALL = ContextOptions(fold_at=6_000, min_freed_tokens=300, preview_at=100_000)


@tool(timeout=None)
async def stock(hall: int) -> str:
    """Read the stock of a hall."""
    return "\n".join(f"crate-{hall}-{n} weighs {n * 7 + hall} kilos" for n in range(200))


class HouseServer:
    """Chat Completions of one's own with a window of 6,000 tokens. It refuses what is longer; what its window
    is it may tell on the page where vLLM does, but not in its refusals."""

    window = 6_000

    def __init__(self, *, tells: bool) -> None:
        self.tells = tells
        self.refused = 0

    def __call__(self, request: LoopbackRequest) -> LoopbackAnswer:
        if request.path == "/v1/models" and self.tells:
            return LoopbackAnswer.json({"data": [{"id": "house", "max_model_len": self.window}]})
        if request.path != "/v1/chat/completions":
            return LoopbackAnswer.json({"detail": "Not Found"}, status=404)
        if len(request.body) > self.window * 4:
            self.refused += 1
            error = {"message": "maximum context length exceeded", "code": "context_length_exceeded"}
            return LoopbackAnswer.json({"error": error}, status=400)
        chunk = {"choices": [{"index": 0, "delta": {"content": "Noted."}, "finish_reason": "stop"}]}
        return LoopbackAnswer.sse(b"data: " + encode(chunk) + b"\n\ndata: [DONE]\n\n")


@pytest.mark.spec("C-13")
@pytest.mark.parametrize("tells", [True, False], ids=["told", "refused"])
async def test_an_unknown_window_is_learned_and_no_turn_fails_for_it(tells: bool) -> None:
    """Twenty letters, more than three windows of them. A server that tells never has to refuse."""
    desk, server = Desk(), HouseServer(tells=tells)
    async with Loopback(server) as loopback:
        model = load_model("openai-chat:house", base_url=f"{loopback.url}/v1", api_key="none")
        async with Agent(model, store=desk.store, clock=desk.clock, ids=desk.ids) as agent:
            for n in range(20):
                assert (await agent.run(LETTER.format(n) * 2, session="s")).text == "Noted."
            assert (await agent.session("s").replay()).identical
        await model.close()
    assert await desk.of_kind("fold"), "there was more than the window holds"
    calls = await desk.of_kind("model_call_started")
    if tells:
        assert server.refused == 0
        assert {call.payload.window for call in calls} == {server.window}, "what was told is in the log"
    else:
        assert 1 <= server.refused <= 6, "a few refusals, each learned from"
        assert {call.payload.window for call in calls} == {None}


@pytest.mark.spec("C-13")
async def test_a_long_session_that_moves_to_a_small_server_is_folded_before_it_is_sent() -> None:
    desk, server = Desk(), HouseServer(tells=True)
    agent = desk.agent(*["Noted."] * 20)
    for n in range(20):
        await agent.run(LETTER.format(n) * 2, session="s")
    assert not await desk.of_kind("fold")
    async with Loopback(server) as loopback:
        model = load_model("openai-chat:house", base_url=f"{loopback.url}/v1", api_key="none")
        async with Agent(model, store=desk.store) as agent:
            assert (await agent.run("And now?", session="s")).text == "Noted."
        await model.close()
    assert server.refused == 0 and len(await desk.of_kind("fold")) == 1


@pytest.mark.spec("C-13")
async def test_a_recap_outlives_its_run_and_is_paid_for_in_the_totals() -> None:
    """The recap is still being written when the run has its answer; it is in the log afterwards."""
    desk, gate = Desk(), asyncio.Event()

    class Patient(ScriptedModel):
        async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            await gate.wait()
            async for chunk in super()._stream(request):
                yield chunk

    scribe = Patient([Turn(text=RECAP, usage=USED)], default="More of it.", clock=desk.clock, ids=desk.ids)
    turns = [*(asks_for(call("stock", hall=n)) for n in range(3)), "Counted."]
    agent = desk.agent(*turns, tools=[stock], context=SMALL, recap=scribe)
    assert (await agent.run("Count.", session="s")).text == "Counted."
    assert not await desk.of_kind("compaction_summary")
    gate.set()
    await agent.close()
    [summary] = await desk.of_kind("compaction_summary")
    assert summary.seq > (await desk.of_kind("run_ended"))[-1].seq
    state = await desk.agent().session("s").state()
    assert state.token_usage is not None and state.token_usage.cost == USED.cost
