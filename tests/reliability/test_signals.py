"""SIGTERM to a process that runs an agent: it is gone at once or ends in order, and nothing is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnlog import Agent, tool
from turnlog.history import open_store
from turnlog.testing import OutsideRecord, ScriptedModel, check_session
from turnlog.tools import ToolContext

PATIENCE = 120.0

TOOLS = '''
import time
from turnlog import tool
from turnlog.tools import ToolContext


@tool(timeout=None)
def pay(amount: int, ctx: ToolContext) -> str:
    """Pay, and take long about it."""
    with open("effects.txt", "a") as file:
        file.write(ctx.idempotency_key + "\\n")
    while not ctx.cancelled:
        time.sleep(0.01)
    return "paid"
'''

PROGRAM = """
import asyncio, signal, sys
from tools import pay
from turnlog import Agent, load_model


async def main() -> None:
    agent = Agent(load_model("scripted:answers.json"), tools=[pay], store=sys.argv[1])
    run = asyncio.ensure_future(agent.run("Pay.", session="s1"))
    if sys.argv[2] == "drains":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)
    try:
        await run
    except asyncio.CancelledError:
        await agent.close()
        sys.exit(0)


asyncio.run(main())
"""


@pytest.fixture(params=["jsonl:log", "sqlite:log.db"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "program.py").write_text(PROGRAM)
    turns = [{"toolCalls": [{"name": "pay", "arguments": {"amount": 3}}]}, "Paid."]
    (tmp_path / "answers.json").write_text(json.dumps(turns))
    monkeypatch.chdir(tmp_path)
    return tmp_path, request.param


def start_and_term(home: Path, *words: str) -> int:
    """Run a program until its tool is at work, send it SIGTERM, and say how it ended."""
    process = subprocess.Popen([sys.executable, *words], cwd=home, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not (home / "effects.txt").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def finish(home: Path, url: str, expected: str) -> None:
    """Resume in this process what that one left, and check all of it."""

    @tool(timeout=None)
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay, and take long about it."""
        raise AssertionError("it ran before, and must not run again")

    store = open_store(url)
    await Agent(ScriptedModel(default="I cannot tell."), tools=[pay], store=store).resume("s1")
    keys = (home / "effects.txt").read_text().split()
    outside = OutsideRecord(effects={key: keys.count(key) for key in keys}, watched=["pay"])
    await check_session(store, "s1", outside=outside)
    entries = await store.load("s1")
    statuses = [o.status for e in entries if e.kind == "tool_results" for o in e.payload.outcomes]
    assert statuses == [expected]
    await store.close()


@pytest.mark.spec("H-6", "H-10", "T-3")
async def test_a_program_that_does_nothing_about_it_leaves_a_log_to_go_on_with(
    home: tuple[Path, str],
) -> None:
    folder, url = home
    assert start_and_term(folder, "program.py", url, "dies") == -signal.SIGTERM
    await finish(folder, url, "unknown")


@pytest.mark.spec("L-7", "L-8")
async def test_a_program_that_cancels_its_run_ends_in_order(home: tuple[Path, str]) -> None:
    """The tool is told to stop, what it answers is kept, the run is closed, the process ends by itself."""
    folder, url = home
    assert start_and_term(folder, "program.py", url, "drains") == 0
    store = open_store(url)
    entries = await store.load("s1")
    await store.close()
    assert entries[-1].kind == "run_ended" and entries[-1].payload.status == "aborted"
    await finish(folder, url, "success")


@pytest.mark.spec("H-10", "T-3")
async def test_the_command_line_leaves_a_log_to_go_on_with(home: tuple[Path, str]) -> None:
    folder, url = home
    command = ("-m", "turnlog.cli", "run", "--model", "scripted:answers.json", "--tools", "tools.py")
    code = start_and_term(folder, *command, "--store", url, "--session", "s1", "Pay.")
    assert code != 0
    await finish(folder, url, "unknown")
