"""O. Observability."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
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


SCRIPT = """
import asyncio
from turnlog import Agent, open_store, tool
from turnlog.history import export_jsonl, import_jsonl
from turnlog.models import ProviderRouter
from turnlog.testing import ScriptedModel, Turn
from turnlog.transcript import import_messages
from turnlog.widgets import MemoryNotebookWidget

@tool(requires_approval=True)
async def pay() -> str:
    \"\"\"Pay.\"\"\"
    return "paid"

async def main():
    store, notes = open_store("memory:"), MemoryNotebookWidget()
    broken = ScriptedModel([Turn(error={"code": "ModelOverloaded", "message": "busy"})], loop=True)
    good = ScriptedModel([Turn(tool_calls=[{"name": "pay", "arguments": {}}]), "Paid."])
    agent = Agent(ProviderRouter({"a": broken, "b": good}), tools=[pay], store=store, widgets=[notes])
    session = agent.session("s")
    await session.run("The words of the user.")
    [waiting] = await session.pending()
    await session.approve(waiting, by="ann")
    await session.resume()
    await agent.append_widget_event("s", notes.write("sea", "is deep"))
    await session.fork(session="branch")
    said = next(entry for entry in await session.entries() if entry.kind == "model_input")
    await session.redact([said.id], by="ann")
    await import_jsonl(open_store("memory:"), await export_jsonl(store, "branch"))
    await import_messages(store, "other", [{"role": "user", "content": "hi"}], format="openai")

asyncio.run(main())
"""


def logged(categories: str | None) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "TURNLOG_DEBUG"}
    env |= {} if categories is None else {"TURNLOG_DEBUG": categories}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=True, timeout=200
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.spec("O-3")
def test_every_write_is_logged_in_the_categories_that_were_switched_on() -> None:
    assert logged(None) == []
    lines = logged("history,router,loop")
    for written in (
        *("run_started", "run_ended", "approval_decided", "redaction", "widget_event"),  # of the session
        "branch #15 branch_summary",
        "other #2 model_input",
    ):
        assert any("turnlog.history" in line and written in line for line in lines), written
    assert sum("branch #15 branch_summary" in line for line in lines) == 2, "forked, and imported elsewhere"
    routed = [line for line in lines if "turnlog.router" in line]
    assert any("failure of a" in line for line in routed) and any("choice of b" in line for line in routed)
    assert any("turnlog.loop" in line for line in lines)
    assert not any("turnlog.context" in line for line in lines), "what was not asked for is not told"
    assert not any("words of the user" in line for line in lines)


@pytest.mark.spec("O-3")
async def test_a_line_has_its_fields_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "turnlog")
    desk = Desk()
    await desk.agent(asks_for(call("look", place="gate")), "Quiet.").run("Look.", session="s")
    told = [(r.session, r.seq, r.kind, r.id) for r in caplog.records if r.name == "turnlog.history"]  # type: ignore[attr-defined]
    assert told == [("s", entry.seq, entry.kind, entry.id) for entry in await desk.entries()]
