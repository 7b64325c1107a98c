"""What else writes to a session while a run is going in it: it waits, is refused, or is taken up, and the run
goes on undisturbed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.shell import Shell
from loop.scenarios import SESSION, Stage, call
from loop.test_writers import process, wait_for
from turnlog import Agent, tool
from turnlog.contract import AgentError, Lease, Store
from turnlog.history import open_store, verify
from turnlog.loop import (
    Approvals,
    SessionOptions,
    compact_session,
    purge_entries,
    record_decision,
    redact_entries,
    replay,
)
from turnlog.loop._lease import SessionLease
from turnlog.system import SystemClock
from turnlog.testing import ScriptedModel, Turn
from turnlog.widgets import MemoryNotebookWidget

Work = Callable[[Store, str], Coroutine[Any, Any, Any]]


async def _purge(store: Store, entry_id: str) -> None:
    await purge_entries(store, SESSION, [entry_id], by="ana")


async def _redact(store: Store, entry_id: str) -> None:
    await redact_entries(store, SESSION, [entry_id], by="ana")


async def _compact(store: Store, entry_id: str) -> None:
    await compact_session(store, SESSION)


@pytest.fixture(params=["jsonl", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path}/log"


@asynccontextmanager
async def run_elsewhere(url: str, folder: Path) -> AsyncGenerator[subprocess.Popen[str]]:
    """A run that is in the middle of a tool, in another process."""
    with process(url, SESSION, "hold", folder, 30.0) as child:
        await asyncio.to_thread(wait_for, folder / "inside", child)
        yield child
        (folder / "go").touch()
        out, errors = await asyncio.to_thread(child.communicate, timeout=200)
        assert json.loads(out or errors)["status"] == "completed"  # nobody disturbed it


@pytest.mark.spec("H-4", "H-9")
async def test_a_run_in_another_process_is_not_disturbed(url: str, tmp_path: Path) -> None:
    works: list[Work] = [_purge, _redact, _compact]
    async with Agent(ScriptedModel(["Hello."]), store=url) as agent:
        await agent.run("Something private.", session=SESSION)
        store = agent.store
        private = next(entry.id for entry in await store.load(SESSION) if entry.kind == "model_input")
        async with run_elsewhere(url, tmp_path) as child:
            for work in works:
                with pytest.raises(AgentError, match=f"in use by process {child.pid} on .*--wait") as busy:
                    await work(store, private)
                assert busy.value.code == "SessionBusy" and busy.value.retryable
        for work in works:
            await work(store, private)
        assert await verify(store, SESSION) == []


@pytest.mark.spec("H-9")
async def test_who_wants_to_wait_waits(url: str, tmp_path: Path) -> None:
    async with Agent(ScriptedModel(["Hello."]), store=url) as agent:
        await agent.run("Something private.", session=SESSION)
        store = agent.store
        private = next(entry.id for entry in await store.load(SESSION) if entry.kind == "model_input")
        async with run_elsewhere(url, tmp_path):
            purging = asyncio.create_task(purge_entries(store, SESSION, [private], by="ana", on_busy="wait"))
            compacting = asyncio.create_task(compact_session(store, SESSION, on_busy="wait"))
            await asyncio.sleep(0.05)
            assert not purging.done() and not compacting.done()
        await asyncio.gather(purging, compacting)
        assert await verify(store, SESSION) == []
        assert "purge" in [entry.kind for entry in await store.load(SESSION)]


@pytest.mark.spec("H-9")
async def test_a_run_in_a_fork_that_shares_the_content_counts_too(url: str, tmp_path: Path) -> None:
    from turnlog.loop import fork_session

    async with Agent(ScriptedModel(["Hello."]), store=url) as agent:
        await agent.run("Something private.", session="parent")
        await fork_session(agent.store, "parent", target=SESSION)
        entries = await agent.store.load("parent")
        private = next(entry.id for entry in entries if entry.kind == "model_input")
        async with run_elsewhere(url, tmp_path):
            with pytest.raises(AgentError, match=f"session {SESSION} is in use by"):
                await purge_entries(agent.store, "parent", [private], by="ana")
        await purge_entries(agent.store, "parent", [private], by="ana")
        for name in ("parent", SESSION):
            assert await verify(agent.store, name) == []


@pytest.mark.spec("H-9")
async def test_a_fork_that_is_made_while_a_purge_waits_counts_too(url: str) -> None:
    from turnlog.loop import fork_session

    async with Agent(ScriptedModel(["Hello."]), store=url) as agent:
        store = agent.store
        await agent.run("Something private.", session=SESSION)
        private = next(entry.id for entry in await store.load(SESSION) if entry.kind == "model_input")
        others: list[Lease] = []

        class ForkedMeanwhile:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def claim(self, session_id: str, **options: Any) -> Lease:
                if not others:
                    await fork_session(store, SESSION, target="fork")
                    others.append(await store.claim("fork", owner="another/1/1/1/run-1", ttl=600))
                return await store.claim(session_id, **options)

        late: Any = ForkedMeanwhile()
        with pytest.raises(AgentError, match="session fork is in use by"):
            await purge_entries(late, SESSION, [private], by="ana")
        assert "purge" not in [entry.kind for entry in await store.load("fork")]
        await store.release(others[0])
        await purge_entries(late, SESSION, [private], by="ana")
        for name in (SESSION, "fork"):
            assert "purge" in [entry.kind for entry in await store.load(name)]
            assert await verify(store, name) == []


@pytest.mark.spec("H-4")
async def test_what_was_told_to_a_run_that_never_got_in_does_not_disturb_who_has_the_session(
    url: str,
) -> None:
    notes = MemoryNotebookWidget()
    model = ScriptedModel(["Hello.", "Hello again."])
    waits = SessionOptions(on_busy="wait")
    async with Agent(model, store=url, widgets=[notes], sessions=waits) as agent:
        await agent.run("Hi.", session=SESSION)
        before = await agent.store.read(SESSION)
        theirs = await agent.store.claim(SESSION, owner="another/1/1/1/run-1", ttl=600)
        in_line = asyncio.ensure_future(agent.run("And?", session=SESSION))
        await asyncio.sleep(0)  # it has begun
        waiting = agent.loop.sessions.runs[SESSION]
        assert await agent.append_widget_event(SESSION, notes.write("gate", "is open")) is None
        await agent.abort(waiting.run_id)
        with pytest.raises(AgentError, match="RunAborted"):
            await in_line
        assert await agent.store.read(SESSION) == before
        await agent.store.release(theirs)
        await agent.run("And now?", session=SESSION)
        kinds = [entry.kind for entry in await agent.store.load(SESSION)]
        assert kinds.count("widget_event") == 1
        assert await verify(agent.store, SESSION) == []


@pytest.mark.spec("A-3")
@pytest.mark.parametrize("second", ["approve", None])
async def test_a_desk_may_decide_on_one_call_while_a_handler_is_asked_about_the_next(
    second: str | None,
) -> None:
    stage = Stage()
    asked: list[str] = []

    async def handler(request: Any) -> str | None:
        asked.append(request.tool_call_id)
        if len(asked) == 1:
            return "approve"
        await agent.decide(SESSION, asked[0], "deny", by="carol")
        return second

    turns = [Turn(tool_calls=[call("send", to=to, text="hi") for to in ("bob", "eve")]), "So be it."]
    agent = stage.agent(turns, approvals=Approvals(handler=handler))
    result = await agent.run("Go.", session=SESSION)
    assert result.status == ("completed" if second else "awaiting_human"), result.last_error
    decided = [entry.payload for entry in await stage.store.load(SESSION) if entry.kind == "approval_decided"]
    assert (decided[0].tool_call_id, decided[0].decided_by) == (asked[0], "carol")
    assert len(stage.effects) == (1 if second else 0), "what carol denied was not sent"
    assert (await replay(stage.store, SESSION)).identical
    assert await verify(stage.store, SESSION) == []


@pytest.mark.spec("H-4")
def test_the_command_line_says_who_has_it_and_what_to_do(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Something private.")
    call = {"toolCalls": [{"name": "wait", "arguments": {"name": "rain"}}]}
    going = shell.start("run", "-m", shell.script(call), "-t", "tools.py", "-s", "s1", "Wait.")
    try:
        effects = shell.folder / "effects.txt"
        while not effects.exists():
            assert going.poll() is None
        said = shell.each([["purge", "s1", "3", "--yes"], ["redact", "s1", "3"], ["compact", "s1"]])
        for done in said:
            assert done.code == 1 and len(done.err.splitlines()) == 1
            assert f"SessionBusy: session s1 is in use by process {going.pid} on " in done.err
            assert "--wait" in done.err
    finally:
        going.kill()
        going.communicate()


# ── decisions ──


@tool(requires_approval=True, timeout=None)
async def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


def asks(*more: Any, **options: Any) -> Agent:
    turn = Turn(tool_calls=[{"name": "send", "arguments": {"to": "bob"}}])
    return Agent(ScriptedModel([turn, *more]), tools=[send], **options)


@pytest.mark.spec("A-2", "H-4")
async def test_a_decision_on_a_run_that_asks_elsewhere_is_refused_and_the_run_goes_on(url: str) -> None:
    """Its handler is asked; somebody else decides on the same call with another store object."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def handler(request: Any) -> str:
        asked.set()
        await answer.wait()
        return "approve"

    agent, other = asks("Done.", store=url, approvals=Approvals(handler=handler)), open_store(url)
    run = asyncio.create_task(agent.run("Send.", session=SESSION))
    await asked.wait()
    (waiting,) = [e.payload for e in await other.load(SESSION) if e.kind == "approval_requested"]
    with pytest.raises(AgentError, match=f"in use by process {os.getpid()} on .*decide once") as busy:
        await record_decision(other, SESSION, waiting.tool_call_id, "deny", by="eve")
    assert busy.value.code == "SessionBusy"
    answer.set()
    assert (await run).text == "Done."
    assert await verify(other, SESSION) == []
    await agent.close()
    await other.close()


@pytest.mark.spec("A-2", "A-3")
@pytest.mark.parametrize("at", ["approval_requested", "status", "run_ended"])
@pytest.mark.parametrize("action", ["approve", "deny", "abort"])
async def test_who_watches_a_run_may_decide_for_it_at_once(at: str, action: str) -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="x")]), "So be it."])
    decided = False
    events: list[Any] = []
    async for event in agent.run_stream("Go.", session=SESSION):
        events.append(event)
        waits = event.kind != "status" or event.status == "awaiting_human"
        if event.kind == at and waits and not decided:
            decided = True
            (asked,) = await agent.pending(SESSION)
            await agent.decide(SESSION, asked.tool_call_id, action, by="carol")
    status = events[-1].result.status
    if at == "run_ended":
        assert status == "awaiting_human"
        resumed = await agent.resume(SESSION, check=False)
        assert resumed is not None
        status = resumed.status
    else:
        assert [e.action for e in events if e.kind == "approval_decided"] == [action]
    assert status == ("aborted" if action == "abort" else "completed")
    assert stage.effects == (["send bob: x"] if action == "approve" else [])
    assert await verify(stage.store, SESSION) == []
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-2", "A-3")
@pytest.mark.parametrize("first", ["desk", "handler"])
async def test_of_a_handler_and_a_desk_the_first_word_counts(first: str) -> None:
    stage = Stage()
    asked, answer, withdrawn = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(request: Any) -> str:
        asked.set()
        try:
            await answer.wait()
        except asyncio.CancelledError:
            withdrawn.set()
            raise
        return "deny"

    turn = Turn(tool_calls=[call("send", to="bob", text="x")])
    agent = stage.agent([turn, "So be it."], approvals=Approvals(handler=handler))
    run = asyncio.create_task(agent.run("Go.", session=SESSION))
    await asked.wait()
    (waiting,) = await agent.pending(SESSION)
    if first == "desk":
        await agent.decide(SESSION, waiting.tool_call_id, "approve", by="carol")
    else:
        answer.set()
    assert (await run).status == "completed"
    assert withdrawn.is_set() == (first == "desk")
    assert stage.effects == (["send bob: x"] if first == "desk" else [])
    with pytest.raises(AgentError, match="does not wait"):
        await agent.decide(SESSION, waiting.tool_call_id, "approve", by="carol")
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-3", "H-4")
async def test_of_many_who_decide_at_once_one_is_heard_and_the_others_are_told(url: str) -> None:
    agent = asks(store=url)
    await agent.run("Send.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)

    async def decide(number: int) -> str:
        store = open_store(url)
        try:
            await record_decision(store, SESSION, waiting.tool_call_id, "approve", by=f"desk {number}")
            return "heard"
        except AgentError as error:
            return error.code
        finally:
            await store.close()

    said = await asyncio.gather(*(decide(number) for number in range(6)))
    assert sorted(said) == ["ApprovalInvalid"] * 5 + ["heard"]
    assert [e.kind for e in await agent.store.load(SESSION)].count("approval_decided") == 1
    assert await verify(agent.store, SESSION) == []
    await agent.close()


@pytest.mark.spec("A-2")
async def test_a_store_that_fails_while_a_decision_is_taken_up_ends_the_run_in_order() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="x")]), "So be it."])
    refused = ""
    async for event in agent.run_stream("Go.", session=SESSION):
        if event.kind == "approval_requested":
            stage.store.dead = True  # pyright: ignore[reportAttributeAccessIssue]
            try:
                await agent.decide(SESSION, event.tool_call_id, "approve", by="carol")
            except AgentError as error:
                refused = error.code
            stage.store.dead = False  # pyright: ignore[reportAttributeAccessIssue]
    assert refused == "SessionWriteFailed"
    assert event.result.status == "failed"
    assert stage.effects == []
    (waiting,) = await agent.pending(SESSION)
    await agent.decide(SESSION, waiting.tool_call_id, "approve", by="carol")
    result = await stage.agent(["So be it."]).resume(SESSION)
    assert result is not None and result.text == "So be it."
    assert stage.effects == ["send bob: x"]


@pytest.mark.spec("H-4")
async def test_a_run_waits_the_moment_that_a_decision_takes() -> None:
    """Nobody is turned away because of work that is over in a moment, whatever he said about waiting."""
    stage = Stage()
    async with SessionLease(stage.store, SESSION, clock=SystemClock(), work="decide"):
        run = asyncio.create_task(stage.agent(["Hello."]).run("Hi.", session=SESSION))
        await asyncio.sleep(0.05)
        assert not run.done()
    assert (await run).text == "Hello."
