"""A key of the environment never reaches the log, not even when the user types it."""

from __future__ import annotations

import pytest

from turnlog import Agent
from turnlog.contract import encode
from turnlog.testing import ScriptedModel


@pytest.mark.spec("E-3")
async def test_a_key_in_the_environment_is_cut_out_before_any_model_used_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "sk-live-canary-0123456789"
    monkeypatch.setenv("SOMEBODYS_API_KEY", key)
    agent = Agent(ScriptedModel([f"your key is {key}"]), store="memory:", instructions=f"use {key}")
    events = [event async for event in agent.run_stream(f"my key is {key}", session="s")]
    kept = b"".join(encode(entry) for entry in await agent.store.load("s"))
    assert key.encode() not in kept
    assert events[-1].kind == "run_ended"
