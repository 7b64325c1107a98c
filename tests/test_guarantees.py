"""The page of guarantees names tests that are there; and the promises that are about a whole program."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from turnlog import Agent, AgentError, ToolContext, ToolResult, tool
from turnlog.testing import ScriptedModel, Turn

ROOT = Path(__file__).parent.parent


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 15
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{path} has no {name}"


# ── control from another process ──


async def hold(store: str, folder: Path) -> Process:
    """A process that drives a run in session ``s``, whose tool waits for the file ``go``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "tests" / "loop" / "writer_process.py")),
        *(store, "s", "hold", str(folder), "30"),
        stdout=asyncio.subprocess.PIPE,
    )
    while not (folder / "inside").exists():
        assert process.returncode is None
        await asyncio.sleep(0.02)
    return process


async def test_a_process_that_does_not_answer_is_reported_and_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    store = f"sqlite:{tmp_path / 'a.db'}"
    process = await hold(store, tmp_path)
    try:
        process.send_signal(signal.SIGSTOP)
        async with Agent(ScriptedModel([]), store=store) as here:
            with pytest.raises(AgentError) as caught:
                await here.session("s").abort()
            assert caught.value.code == "SessionBusy"
            assert await here.store.posted("s") == [], "what was not heard is withdrawn"
    finally:
        process.kill()
        await process.wait()


# ── deferred answers ──


async def test_a_deferred_call_is_answered_by_another_agent_once(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'a.db'}"
    calls: list[str] = []

    @tool
    def measure(ctx: ToolContext, room: str) -> ToolResult:
        """Have a room measured."""
        calls.append(ctx.tool_call_id)
        return ToolResult.deferred("somebody has to go there", answer_schema={"type": "number"})

    asks = Turn(tool_calls=[{"name": "measure", "arguments": {"room": "hall"}}])
    async with Agent(ScriptedModel([asks]), tools=[measure], store=store) as first:
        assert (await first.run("How large is the hall?", session="s")).status == "awaiting_human"
    model = ScriptedModel(["It has 21.5 m²."])
    async with Agent(model, tools=[measure], store=store) as second:
        house = second.session("s")
        with pytest.raises(AgentError, match="does not fit"):
            await house.answer(calls[0], "large")
        await house.answer(calls[0], 21.5, by="caretaker")
        with pytest.raises(AgentError) as caught:
            await house.answer(calls[0], 22)
        assert caught.value.code == "InvalidEntry"
        result = await house.resume()
        assert result is not None
        assert result.text == "It has 21.5 m²."
        assert model.requests[0].messages[-1].tool_results[0].payload.text == "21.5"
        assert len(calls) == 1, "the tool is not run again"
        assert (await house.replay()).identical
