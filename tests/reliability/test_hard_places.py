"""What a program may run into: files that are taken away, forks, closed loops, changed tools, odd names."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call, die_at
from turnlog import Agent, tool
from turnlog.contract import AgentError
from turnlog.history import open_store, verify
from turnlog.loop import Approvals, record_decision, replay
from turnlog.testing import ScriptedModel, Turn

STORES = ["jsonl", "sqlite"]


@pytest.mark.spec("H-6", "L-8")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("harm", ["deleted", "replaced"])
async def test_a_store_that_is_taken_away_is_not_written_to_as_if_it_were_there(
    kind: str, harm: str, tmp_path: Path
) -> None:
    url = f"{kind}:{tmp_path}/here/log"

    @tool(timeout=None)
    async def spoil() -> str:
        """Take the store away."""
        shutil.move(tmp_path / "here", tmp_path / "there")
        if harm == "replaced":
            async with Agent(ScriptedModel(["Other."]), store=url) as other:
                await other.run("Other.", session="other")
        return "gone"

    turns = ["One.", Turn(tool_calls=[call("spoil")]), "Two."]
    async with Agent(ScriptedModel(turns), tools=[spoil], store=url) as agent:
        await agent.run("Hi.", session=SESSION)
        result = await agent.run("Spoil it.", session=SESSION, check=False)
        assert result.status == "failed" and result.last_error is not None
        if kind == "sqlite":
            assert "while it was open" in result.last_error.message
    # Nothing that was acknowledged before is lost, and what took its place was not harmed.
    kept = open_store(f"{kind}:{tmp_path}/there/log")
    assert await verify(kept, SESSION) == []
    again = Agent(ScriptedModel(["Back."]), tools=[spoil], store=kept)
    resumed = await again.resume(SESSION)
    assert resumed is not None and resumed.text == "Back."
    await again.close()
    await kept.close()
    if harm == "replaced":
        async with Agent(ScriptedModel([]), store=url) as there:
            assert await verify(there.store, "other") == []


@pytest.mark.spec("H-6")
@pytest.mark.parametrize("kind", STORES)
async def test_a_store_stays_where_it_was_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")

    @tool(timeout=None)
    async def wander() -> str:
        """Go elsewhere."""
        os.chdir(tmp_path / "b")
        return "there"

    store = open_store(f"{kind}:log")
    turns = [Turn(tool_calls=[call("wander")]), "Done."]
    async with Agent(ScriptedModel(turns), tools=[wander], store=store) as agent:
        assert (await agent.run("Go.", session=SESSION)).text == "Done."
        assert await verify(store, SESSION) == []
    await store.close()
    async with Agent(ScriptedModel(["More."]), tools=[wander], store=store) as agent:
        assert (await agent.run("On.", session=SESSION)).text == "More."
    await store.close()
    assert list((tmp_path / "b").iterdir()) == []


NAMES = [
    "a/b",
    "..",
    ".",
    "é",
    "😀",
    " x ",
    "%2F",
    "'; drop table",
    "a\\b",
    "A",
    "a",
    "x" * 180,
    "~",
    "-rf",
    "*?",
]


@pytest.mark.spec("H-6")
@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite", "postgresql"])
async def test_a_session_may_have_any_name(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"{kind}:{tmp_path}/log"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_url")
    async with Agent(ScriptedModel(default="Hi."), store="memory:" if kind == "memory" else url) as agent:
        for name in NAMES:
            assert (await agent.run(f"I am {name}", session=name)).status == "completed"
        assert {info.session_id for info in await agent.store.sessions()} == set(NAMES)
        for name in NAMES:
            entries = await agent.store.load(name)
            (said,) = [e.payload.message.text for e in entries if e.kind == "model_input"]
            assert said == f"I am {name}"
            assert await verify(agent.store, name) == []
        for name in ("a\nb", "a\x00b", "x" * 181, "\ud800", "\u202e"):
            with pytest.raises(AgentError, match="cannot be used"):
                await agent.run("Hi.", session=name)


FORKS = """
import asyncio, os, sys
from turnlog import Agent
from turnlog.testing import ScriptedModel

async def once(text):
    return (await agent.run(text, session="s1")).text

agent = Agent(ScriptedModel(["One.", "Two."]), store=sys.argv[1])
assert asyncio.run(once("a")) == "One."
child = os.fork()
said = asyncio.run(once("b")) if child == 0 else ""
if child == 0:
    os._exit(0 if said == "Two." else 1)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(once("c")) == "Two."
"""


@pytest.mark.spec("H-4", "H-6")
@pytest.mark.parametrize("kind", STORES)
async def test_a_process_may_fork_with_an_open_store(kind: str, tmp_path: Path) -> None:
    url = f"{kind}:{tmp_path}/log"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FORKS, url], capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    store = open_store(url)
    said = [e.payload.message.text for e in await store.load("s1") if e.kind == "model_input"]
    assert said == ["a", "b", "c"]
    assert await verify(store, "s1") == []
    await store.close()


CLOSES = """
import asyncio, os, sys
from turnlog import Agent, tool
from turnlog.history import verify
from turnlog.loop import SessionOptions
from turnlog.testing import ScriptedModel, Turn

going, ran = asyncio.Event(), []

@tool(timeout=None, idempotent=True)
async def wait() -> str:
    "Wait."
    going.set()
    ran.append(1)
    if len(ran) == 1:
        await asyncio.Event().wait()
    return "waited"

def answer(request):
    done = any(message.role == "tool" for message in request.messages)
    return "Done." if done else Turn(tool_calls=[{"name": "wait", "arguments": {}}])

def make():
    return Agent(
        ScriptedModel(default=answer),
        tools=[wait],
        store=sys.argv[1],
        sessions=SessionOptions(lease_ttl=600),
    )

agent = make()
loop = asyncio.new_event_loop()
run = loop.create_task(agent.run("Wait.", session="s1"))
loop.run_until_complete(going.wait())
loop.close()

async def later():
    other = agent if sys.argv[2] == "same" else make()
    async with other:
        result = await other.resume("s1")
        assert result is not None and result.text == "Done.", result
        assert await verify(other.store, "s1") == []

asyncio.run(asyncio.wait_for(later(), 120))  # and not when the lease has run out
os._exit(0)  # what the loop left behind is not to be heard of
"""


@pytest.mark.spec("H-10", "L-7")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("who", ["same", "other"])
def test_a_loop_that_is_closed_over_a_run_keeps_nobody_out(kind: str, who: str, tmp_path: Path) -> None:
    """A notebook, a test runner: the loop is gone, the program goes on with another."""
    command = [sys.executable, "-c", CLOSES, f"{kind}:{tmp_path}/log", who]
    done = subprocess.run(command, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.spec("L-1", "L-7")
@pytest.mark.parametrize("kind", STORES)
async def test_a_stream_that_is_left_and_collected_is_closed(kind: str, tmp_path: Path) -> None:
    async with Agent(ScriptedModel(["A long answer.", "Two."]), store=f"{kind}:{tmp_path}/log") as agent:

        async def look() -> None:
            async for event in agent.run_stream("Hi.", session=SESSION):
                if event.kind == "model_delta":
                    break

        await look()
        gc.collect()
        while True:  # asyncio closes it in a task of its own
            try:
                result = await agent.run("Again.", session=SESSION)
                break
            except AgentError as error:
                if error.code != "SessionBusy":
                    raise
                await asyncio.sleep(0.01)
        assert result.text == "Two."
        ends = [e.payload.status for e in await agent.store.load(SESSION) if e.kind == "run_ended"]
        assert ends == ["aborted", "completed"]
        assert await verify(agent.store, SESSION) == []


@tool(name="look", timeout=None, idempotent=True)
async def look_closer(place: str, closely: bool) -> str:
    """Look, closely or not."""
    raise AssertionError("it must not run with arguments that do not fit it")


@tool(name="look", timeout=None)
async def look_once(place: str) -> str:
    """Look, and change what is there by looking."""
    raise AssertionError("it may have run, and is not harmless any more")


@pytest.mark.spec("T-3", "H-10")
@pytest.mark.parametrize("tools", [[], [look_closer], [look_once]])
async def test_a_call_of_a_tool_that_is_not_what_it_was_is_not_guessed_at(tools: list[Any]) -> None:
    """It had started when the process died. Now it is gone, takes other arguments, or may not be repeated."""
    stage = Stage()
    first = stage.agent([Turn(tool_calls=[call("look", place="sea")])])
    await die_at(first, "tool_started", "Look.")
    result = await stage.agent(["Who knows."], tools=tools).resume(SESSION)
    assert result is not None and result.text == "Who knows."
    entries = await stage.store.load(SESSION)
    (outcome,) = [o for e in entries if e.kind == "tool_results" for o in e.payload.outcomes]
    assert (outcome.status, outcome.error_code) == ("unknown", "ToolOutcomeUnknown")
    assert await verify(stage.store, SESSION) == []
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1", "A-3")
async def test_a_decision_that_comes_too_late_is_told_so_before_and_after_the_run_has_moved_on() -> None:
    stage = Stage()
    turn = Turn(tool_calls=[call("send", to="bob", text="x")])
    agent = stage.agent([turn, "Then not."], approvals=Approvals(ttl=60.0))
    await agent.run("Go.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)
    stage.clock.advance(3600)
    late = {"by": "carol", "clock": stage.clock, "ids": stage.ids}
    with pytest.raises(AgentError, match="ApprovalExpired"):
        await record_decision(stage.store, SESSION, waiting.tool_call_id, "approve", **late)
    resuming = asyncio.create_task(agent.resume(SESSION))
    codes: list[str] = []
    while not resuming.done():
        try:
            await record_decision(stage.store, SESSION, waiting.tool_call_id, "approve", **late)
        except AgentError as error:
            codes.append(error.code)
        await asyncio.sleep(0)
    assert set(codes) <= {"ApprovalExpired", "ApprovalInvalid", "SessionBusy"}
    assert (result := resuming.result()) is not None and result.text == "Then not."
    assert stage.effects == []
    assert await verify(stage.store, SESSION) == []


MANY = """
import asyncio, sys
from turnlog import Agent
from turnlog.testing import ScriptedModel, Turn

async def main():
    model = ScriptedModel(default=lambda request: Turn(text="word " * 500, chunk_size=1, delay=0.1))
    agent = Agent(model, store=sys.argv[1])
    runs = [agent.run("Hi.", session=f"s{n}") for n in range(100)]
    asyncio.get_running_loop().call_later(0.5, lambda: print("going", flush=True))
    try:
        await asyncio.gather(*runs)
    finally:
        await agent.close()

asyncio.run(main())
"""


@pytest.mark.spec("H-10", "L-7")
async def test_ctrl_c_in_the_middle_of_a_hundred_sessions(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", MANY, url, stdout=pipe, stderr=pipe)
    assert child.stdout is not None
    await child.stdout.readline()
    child.send_signal(signal.SIGINT)
    errors = (await child.communicate())[1].decode()
    assert "KeyboardInterrupt" in errors and "never retrieved" not in errors
    async with Agent(ScriptedModel(default="Hello again."), store=url) as agent:
        names = [info.session_id for info in await agent.store.sessions()]
        for name in names:
            assert await verify(agent.store, name) == []
        await asyncio.gather(*(agent.resume(name) for name in names))
        results = await asyncio.gather(*(agent.run("Hi.", session=name) for name in names))
        assert {result.text for result in results} <= {"Hello again."}
