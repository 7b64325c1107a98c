"""X. Surfaces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from acceptance.desk import Desk
from turnlog import Agent, AgentError
from turnlog.history import MemoryStore
from turnlog.testing import (
    FaultStore,
    FixedClock,
    FixedIds,
    ScriptedModel,
    check_model,
    check_store,
    check_trace,
    check_widget,
    fail_append,
    read_trace,
)
from turnlog.widgets import TodoWidget

FIVE_LINES = """
from turnlog import Agent
agent = Agent("scripted:answers.json")
print(agent.run_sync("Hello?").text)
"""


@pytest.mark.spec("X-1")
def test_five_lines_make_an_agent_that_works(tmp_path: Path) -> None:
    assert len(FIVE_LINES.strip().splitlines()) <= 5
    (tmp_path / "answers.json").write_text('{"turns": ["Hello there."]}', encoding="utf-8")
    (tmp_path / "first.py").write_text(FIVE_LINES, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.stdout, done.returncode) == ("Hello there.\n", 0), done.stderr


@pytest.mark.spec("X-5")
async def test_fakes_are_the_same_on_every_run_and_fail_on_order() -> None:
    logs = []
    for _ in range(2):
        store, clock, ids = MemoryStore(), FixedClock(), FixedIds()
        agent = Agent(ScriptedModel(["Hi."], clock=clock, ids=ids), store=store, clock=clock, ids=ids)
        await agent.run("Hello?", session="s")
        logs.append([entry.hash for entry in await store.load("s")])
    assert logs[0] == logs[1]
    broken = Agent(ScriptedModel(["Hi."]), store=FaultStore(MemoryStore(), [fail_append(1)]))
    with pytest.raises(AgentError, match="SessionWriteFailed"):
        await broken.run("Hello?", session="s")


@pytest.mark.spec("X-5")
async def test_kits_and_golden_traces_can_be_run_by_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_store(MemoryStore)
    await check_widget(TodoWidget)
    assert callable(check_model)
    desk = Desk()
    await desk.agent("Hi.").run("Hello?", session="s")
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("TURNLOG_UPDATE_GOLDEN", "1")
    check_trace(path, await desk.entries())
    monkeypatch.delenv("TURNLOG_UPDATE_GOLDEN")
    check_trace(path, await desk.entries())
    assert [entry.hash for entry in read_trace(path)] == [entry.hash for entry in await desk.entries()]
    await desk.agent("More.").run("More?", session="s")
    with pytest.raises(AssertionError):
        check_trace(path, await desk.entries())
