"""L. Agent loop: overflow, streams, and control from another process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import pytest

from acceptance.desk import Desk, asks_for, call
from turnlog import AgentError, events, open_store
from turnlog.context import ContextUpdateInput, ProjectionContext
from turnlog.contract import RunEvent, decode, encode
from turnlog.loop import open_session
from turnlog.testing import Turn

# ── L-9 ──


class Watched(ProjectionContext):
    """The default, with a note of what it is asked after a refusal."""

    asked: list[tuple[ContextUpdateInput, Any]]

    def __init__(self) -> None:
        super().__init__()
        self.asked = []

    def compute_context_updates(self, input: ContextUpdateInput) -> Any:
        self.asked.append((input, super().compute_context_updates(input)))
        return self.asked[-1][1]


@pytest.mark.spec("L-9")
async def test_an_overflow_asks_for_updates_appends_them_and_calls_again() -> None:
    desk, made = Desk(), []

    def make() -> Watched:
        made.append(Watched())
        return made[-1]

    overflow = Turn(error={"code": "ModelContextOverflow", "message": "prompt is too long"})
    agent = desk.agent("Noted.", "Noted.", overflow, overflow, "Fits.", context=make)
    for n in range(2):
        await agent.run(f"Read {n}: " + "many words, all of them different; " * 300, session="s")
    assert (await agent.run("And now?", session="s")).text == "Fits."
    asked = [each for manager in made for each in manager.asked]
    assert [(given.overflow_hint, given.overflow_step) for given, _ in asked] == [(True, 1), (True, 2)]
    folds = await desk.of_kind("fold")
    assert [encode(fold.payload) for fold in folds] == [
        encode(payload) for _, told in asked for payload in told.entries_to_append
    ], "what it returned is what was appended"
    log = [entry.kind for entry in await desk.entries()][-9:]
    assert log.index("fold") > log.index("model_call_failed")
    calls = [e.payload.model_call_index for e in await desk.of_kind("model_call_started")]
    assert calls == [1, 1, 1, 1, 1], "the same call of its run"
    assert desk.model is not None
    sizes = [len(encode(list(request.messages))) for request in desk.model.requests[2:]]
    assert all(later < earlier for earlier, later in pairwise(sizes))


# ── L-16 ──


class City(TypedDict, total=False):
    name: str
    people: int


@pytest.mark.spec("L-16")
async def test_a_stream_is_a_context_manager_and_an_iterator_of_flat_typed_events() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("look", place="gate")), "All quiet.")
    kinds: list[str] = []
    async with agent.run_stream("Look.", session="s") as run:
        assert run.session_id == "s"
        async for event in run:
            assert event == decode(encode(event), RunEvent)
            kinds.append(event.kind)
            match event:
                case events.ToolStarted(tool_name=name, arguments=arguments):
                    assert (name, arguments) == ("look", {"place": "gate"})
                case events.ToolFinished(tool_name=name, text=text, is_error=failed):
                    assert (name, text, failed) == ("look", "gate is quiet", False)
                case events.RunEnded(result=ended):
                    assert ended.text == "All quiet."
                case _:
                    pass
    assert {"status", "model_delta", "tool_started", "tool_result", "assistant_message", "run_ended"} <= set(
        kinds
    )
    result = await run.result()
    assert (result.text, result.session_id, result.run_id) == ("All quiet.", "s", run.run_id)


@pytest.mark.spec("L-16")
async def test_text_snapshots_and_partial_values_grow_as_they_come() -> None:
    desk = Desk()
    said = '{"name": "Bern", "people": 130000}'
    agent = desk.agent("Hello there, dear friend.", Turn(text=said, chunk_size=6))
    snapshots: list[str] = []
    async with agent.run_stream("Hi.", session="s") as run:
        async for piece in run.text:
            assert run.snapshot is not None
            snapshots.append(run.snapshot.text)
            assert run.snapshot.text.endswith(piece)
    assert len(snapshots) > 1 and snapshots[-1] == "Hello there, dear friend."
    assert all(later.startswith(earlier) for earlier, later in pairwise(snapshots))
    async with agent.run_stream("Name a city.", session="s", output_type=City) as run:
        values = [dict(value) async for value in run.partial]
    assert values[-1] == {"name": "Bern", "people": 130_000} == (await run.result()).output
    assert len(values) > 1


@pytest.mark.spec("L-16")
async def test_a_stream_is_sent_to_and_aborted() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("look", place="gate")), "As you say.", "Never heard.")
    async with agent.run_stream("Look.", session="s") as run:
        async for event in run:
            if event.kind == "tool_started":
                await run.send("And be brief.")
    assert (await run.result()).text == "As you say."
    assert any("And be brief." in message.text for message in desk.seen)
    async with agent.run_stream("Again.", session="s") as run:
        async for event in run:
            if event.kind == "model_delta":
                await run.abort("enough")
    result = await run.result(check=False)
    assert result.status == "aborted" and result.last_error is not None
    assert "enough" in result.last_error.message


@pytest.mark.spec("L-16")
async def test_starting_and_driving_are_two_steps() -> None:
    desk = Desk()
    run_id = await desk.agent().submit("Look.", session="s")
    kinds = [entry.kind for entry in await desk.entries()]
    assert "run_started" in kinds and kinds[-1] == "model_input", "committed, and nothing is driven"
    result = await desk.agent("Seen.").resume("s")
    assert result is not None and (result.text, result.run_id) == ("Seen.", run_id)


# ── L-18 ──

PROGRAM = """
import asyncio, json, pathlib, sys
from turnlog import Agent, tool
from turnlog.loop import Approvals
from turnlog.testing import ScriptedModel, Turn

async def ask(request):
    pathlib.Path("inside").touch()
    await asyncio.Event().wait()

@tool(timeout=None, concurrent=True)
async def wait() -> str:
    \"\"\"Wait for the file go.\"\"\"
    pathlib.Path("inside").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return "waited"

@tool(requires_approval=True, concurrent=True)
async def pay() -> str:
    \"\"\"Pay.\"\"\"
    return "paid"

async def main() -> None:
    calls = [{"name": name, "arguments": {}} for name in sys.argv[1].split()]
    model = ScriptedModel([Turn(tool_calls=calls), "Done."], default="Done again.")
    options = {"tools": [wait, pay], "store": "sqlite:log.db", "approvals": Approvals(handler=ask)}
    async with Agent(model, **options) as agent:
        result = await agent.run("Go.", session="s", check=False)
    seen = [message.text for message in model.requests[-1].messages]
    print(json.dumps({"status": result.status, "seen": seen}))

asyncio.run(main())
"""


@asynccontextmanager
async def driven_elsewhere(folder: Path, tools: str = "wait") -> AsyncIterator[Any]:
    """A process that drives a run of session ``s``, inside its tool."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, tools, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    try:
        while not (folder / "inside").exists():
            assert process.returncode is None
            await asyncio.sleep(0.02)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said_by(process: Any, folder: Path) -> Any:
    (folder / "go").touch()
    out, _ = await process.communicate()
    return json.loads(out)


@pytest.mark.spec("L-18")
async def test_a_message_reaches_a_run_in_another_process(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path}/log.db")
    async with driven_elsewhere(tmp_path) as process:
        session = open_session(store, "s")
        assert str(process.pid) in (await session.driver() or "")
        await session.send("And be brief.")
        told = await said_by(process, tmp_path)
    assert told["status"] == "completed" and "And be brief." in told["seen"]
    await store.close()  # type: ignore[attr-defined]


@pytest.mark.spec("L-18")
async def test_a_decision_reaches_a_run_in_another_process(tmp_path: Path) -> None:
    """A person is asked there, and says nothing; the decision comes from here."""
    store = open_store(f"sqlite:{tmp_path}/log.db")
    async with driven_elsewhere(tmp_path, "pay") as process:
        session = open_session(store, "s")
        [waiting] = await session.pending()
        await session.approve(waiting, by="ann")
        told = await said_by(process, tmp_path)
    assert told["status"] == "completed"
    log = await store.load("s")
    [decided] = [entry.payload for entry in log if entry.kind == "approval_decided"]
    [outcome] = [o for e in log if e.kind == "tool_results" for o in e.payload.outcomes]
    assert (decided.decided_by, outcome.status) == ("ann", "success")
    await store.close()  # type: ignore[attr-defined]


@pytest.mark.spec("L-18")
@pytest.mark.parametrize("what", ["pause", "abort"])
async def test_a_pause_and_an_abort_reach_it_too(what: str, tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path}/log.db")
    async with driven_elsewhere(tmp_path) as process:
        session = open_session(store, "s")
        assert await (session.pause() if what == "pause" else session.abort("enough"))
        told = await said_by(process, tmp_path)
    assert told["status"] == {"pause": "paused", "abort": "aborted"}[what]
    assert (await session.state()).status == told["status"]
    await store.close()  # type: ignore[attr-defined]


@pytest.mark.spec("L-18")
async def test_a_process_that_does_not_answer_is_told_of_and_so_is_that_nobody_drives(tmp_path: Path) -> None:
    store = open_store(f"sqlite:{tmp_path}/log.db")
    async with driven_elsewhere(tmp_path) as process:
        session = open_session(store, "s")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(AgentError) as caught:
            await session.abort("enough")
        assert caught.value.code == "SessionBusy" and "did not answer within" in caught.value.message
        process.kill()
        await process.wait()
        assert await session.driver() is None, "nobody drives it"
        assert await session.abort("enough"), "so it is ended from here"
    with pytest.raises(AgentError) as caught:
        await session.send("Hello?")
    assert caught.value.code == "SessionNotFound" and "no run" in caught.value.message
    await store.close()  # type: ignore[attr-defined]
