"""A recorded session's answers, played to an agent that has changed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnlog import Agent, tool
from turnlog.contract import AgentError, RetryPolicy, user_message
from turnlog.history import export_jsonl, open_store
from turnlog.testing import RecordedModel, ScriptedModel, Turn


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def record() -> bytes:
    call = Turn(thinking="Sum.", tool_calls=[{"name": "add", "arguments": {"a": 1, "b": 2}}])
    model = ScriptedModel([AgentError("ModelOverloaded", "busy"), call, "It is 3."])
    store = open_store("memory:")
    retry = RetryPolicy(max_attempts=3, base_delay_ms=0)
    async with Agent(model, tools=[add], store=store, retry=retry) as agent:
        result = await agent.run("What is 1 + 2?", session="s1")
        assert result.text == "It is 3."
        return await export_jsonl(store, "s1")


@pytest.mark.spec("X-5")
async def test_a_changed_agent_gets_the_recorded_answers(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(await record())
    model = RecordedModel.from_jsonl(path)
    retry = RetryPolicy(max_attempts=3, base_delay_ms=0)
    async with Agent(
        model, tools=[add], instructions="Answer in one line.", store="memory:", retry=retry
    ) as agent:
        result = await agent.run("What is 1 + 2?", session="s2")
    assert result.text == "It is 3."
    assert model.calls == 3, "the failure is played too"
    assert model.requests[-1].system_prompt is not None
    assert "Answer in one line." in model.requests[-1].system_prompt
    assert model.requests[-1].messages[-1].tool_results[0].payload.content == "3"
    used_up = [delta async for delta in model.stream([user_message("And?")])]
    assert used_up[-1].kind == "error"


def test_a_file_without_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b"")
    with pytest.raises(AgentError, match="holds no answer"):
        RecordedModel.from_jsonl(path)
