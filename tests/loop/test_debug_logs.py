"""``TURNLOG_DEBUG`` switches categories of logs on; content and secrets never show in them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import asyncio
from turnlog import Agent
from turnlog.testing import ScriptedModel
from turnlog.contract import guard
guard("sk-canary-12345678")
agent = Agent(ScriptedModel(["the answer"]), store="memory:")
asyncio.run(agent.run("a question sk-canary-12345678", session="s"))
"""


def run(categories: str | None) -> str:
    env = {key: value for key, value in os.environ.items() if key != "TURNLOG_DEBUG"}
    if categories is not None:
        env["TURNLOG_DEBUG"] = categories
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == ""
    return done.stderr


@pytest.mark.spec("O-3")
def test_nothing_is_said_by_default() -> None:
    assert run(None) == ""


@pytest.mark.spec("O-3", "E-3")
def test_each_category_says_its_own() -> None:
    said = run("history,context")
    assert "turnlog.history s #1 session_header" in said
    assert "turnlog.context s call 1.1 to scripted: 1 messages" in said
    assert "turnlog.loop" not in said
    assert "canary" not in said and "question" not in said
    assert "preparing → model_running" in run("loop")
