"""Aborts that meet something else: a cancellation, another thread, a write, a handler, a finished tool."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import Agent, tool
from turnlog.contract import AgentError, Store, ToolPolicy
from turnlog.history import MemoryStore, SessionState, verify
from turnlog.loop import Approvals, replay
from turnlog.testing import FaultStore, ScriptedModel, StoreFault, Turn


async def check_closed(store: Store) -> SessionState:
    state = SessionState.of(await store.load(SESSION))
    assert not state.is_open and not state.open_calls
    assert await verify(store, SESSION) == []
    report = await replay(store, SESSION)
    assert report.identical, report.difference
    return state


def other_tasks() -> set[Any]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


@pytest.mark.spec("L-7")
async def test_a_cancellation_that_meets_an_abort_is_not_swallowed() -> None:
    """``asyncio.timeout`` around a run must still fire when somebody aborts the run at the same moment."""
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("wait", what="rain")])])
    reached = asyncio.Event()

    async def consume() -> None:
        async with aclosing(agent.run_stream("Wait.", session=SESSION, run_id="r1")) as events:
            async for event in events:
                if event.kind == "tool_started":
                    reached.set()

    task = asyncio.create_task(consume())
    await reached.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    await agent.abort("r1", "the user left")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await check_closed(stage.store)
    assert other_tasks() == set()


def abort_in_thread(agent: Agent) -> None:
    asyncio.run(agent.abort("r1", "from a thread"))


@pytest.mark.spec("L-7")
async def test_an_abort_from_another_thread_reaches_a_run_that_hangs() -> None:
    for _ in range(20):
        stage = Stage()
        agent = stage.agent([Turn(tool_calls=[call("wait", what="rain")])])
        threads: list[threading.Thread] = []
        async for event in agent.run_stream("Wait.", session=SESSION, run_id="r1"):
            if event.kind == "tool_started":
                thread = threading.Thread(target=abort_in_thread, args=(agent,))
                threads.append(thread)
                thread.start()
        threads[0].join()
        assert (await check_closed(stage.store)).status == "aborted"


def test_an_abort_after_the_loop_is_gone_says_nothing() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("wait", what="rain")])])
    scopes: list[Any] = []

    async def start() -> None:
        async with aclosing(agent.run_stream("Wait.", session=SESSION, run_id="r1")) as events:
            async for event in events:
                if event.kind == "tool_started":
                    scopes.append(agent.loop.sessions.runs)
                    break

    asyncio.run(start())
    assert asyncio.run(agent.abort("r1", "too late")) is False


@pytest.mark.spec("L-7", "A-1")
@pytest.mark.parametrize("answer", [None, "approve"])
async def test_an_approval_handler_may_abort_the_run(answer: str | None) -> None:
    stage = Stage()

    async def ask(request: Any) -> str | None:
        await agent.abort("r1", "I have seen enough")
        return answer

    turns = [Turn(tool_calls=[call("send", to="bob", text="x")]), "never"]
    agent = stage.agent(turns, approvals=Approvals(handler=ask))
    result = await agent.run("Greet Bob.", session=SESSION, run_id="r1", check=False)
    assert result.status == "aborted" and stage.effects == []
    await check_closed(stage.store)


@pytest.mark.spec("L-7", "T-3")
async def test_a_result_that_is_being_kept_is_not_lost_by_an_abort() -> None:
    """The tool ran and returned; the abort comes while its long output is on the way to the store."""
    stage = Stage()

    @tool(timeout=None)
    async def fetch() -> str:
        """Fetch a long text."""
        stage.effects.append("fetch")
        return "".join(f"line {n}\n" for n in range(20_000))

    async def hook(when: str, method: str, number: int) -> None:
        if method == "put_blob" and when == "before":
            await agent.abort("r1", "the user left")
            await asyncio.sleep(3600)

    inner = MemoryStore()
    stage.store = FaultStore(inner, hook=hook)
    agent = stage.agent([Turn(tool_calls=[call("fetch")])], tools=[fetch])
    result = await agent.run("Fetch.", session=SESSION, run_id="r1", check=False)
    assert result.status == "aborted" and stage.effects == ["fetch"]
    shown = next(entry for entry in await inner.load(SESSION) if entry.kind == "tool_results")
    assert shown.payload.outcomes[0].status == "success"
    assert "line 1\n" in shown.payload.message.tool_results[0].payload.content
    await check_closed(inner)
    assert other_tasks() == set()


@pytest.mark.spec("T-3", "L-8")
async def test_a_store_that_breaks_its_promise_over_an_artifact_does_not_hang_the_run() -> None:
    stage = Stage()

    @tool(timeout=None)
    async def fetch() -> str:
        """Fetch a long text."""
        return "".join(f"line {n}\n" for n in range(20_000))

    inner = MemoryStore()
    stage.store = FaultStore(inner, [StoreFault(nth=1, method="put_blob", error=OSError("no route"))])
    agent = stage.agent([Turn(tool_calls=[call("fetch")]), "Long."], tools=[fetch])
    result = await asyncio.wait_for(agent.run("Fetch.", session=SESSION), 120)
    assert result.status == "completed"
    await check_closed(inner)


@pytest.mark.spec("L-7")
async def test_a_tool_whose_task_is_cancelled_by_others_does_not_hang_the_run() -> None:
    stage = Stage()

    @tool(timeout=None)
    async def rude() -> str:
        """Cancel every tool of this program."""
        for task in asyncio.all_tasks():
            if task.get_name().startswith("turnlog tool"):
                task.cancel()
        await asyncio.sleep(3600)
        return "never"

    agent = stage.agent([Turn(tool_calls=[call("rude")]), "It was stopped."], tools=[rude])
    result = await asyncio.wait_for(agent.run("Go.", session=SESSION), 120)
    assert result.status == "completed"
    await check_closed(stage.store)


@pytest.mark.spec("L-1", "L-7")
async def test_a_stream_that_is_dropped_unread_leaves_nothing() -> None:
    """Never iterated, dropped after an event, and collected by the garbage collector."""
    stage = Stage()
    agent = stage.agent(["One.", "Two.", "Three."])
    agent.run_stream("Never read.", session=SESSION)
    gc.collect()

    async def glance() -> None:
        async for _ in agent.run_stream("Hello.", session=SESSION):
            break

    await glance()
    gc.collect()
    for _ in range(1000):  # the event loop closes it in a task of its own
        await asyncio.sleep(0)
    assert other_tasks() == set()
    assert agent.loop.sessions.runs == {}
    assert (await check_closed(stage.store)).status == "aborted"
    assert (await agent.run("Again.", session=SESSION)).status == "completed"


@pytest.mark.spec("L-1")
async def test_the_consumer_may_change_between_events() -> None:
    """One task reads an event, another the next: an abort reaches whoever waits at that moment."""
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("wait", what="rain")])])
    stream = agent.run_stream("Wait.", session=SESSION, run_id="r1")
    kinds: list[str] = []
    while not kinds or kinds[-1] != "run_ended":
        reading = asyncio.create_task(stream.next_event())
        if kinds and kinds[-1] == "tool_started":
            await asyncio.sleep(0.01)
            await agent.abort("r1", "the user left")
        kinds.append((await reading).kind)
    await stream.aclose()
    assert (await check_closed(stage.store)).status == "aborted"


@pytest.mark.spec("L-7", "L-8")
@pytest.mark.parametrize("nth", range(1, 6))
async def test_closing_during_a_write_ends_the_run_in_the_log(nth: int) -> None:
    """The consumer is cancelled while an append is on its way: it arrives, and the run's end after it."""
    stage = Stage()
    inner = MemoryStore()
    caught: list[asyncio.Task[Any]] = []

    async def hook(when: str, method: str, number: int) -> None:
        if method == "append" and when == "before" and number == nth:
            caught[0].cancel()
            for _ in range(3):
                await asyncio.sleep(0)

    stage.store = FaultStore(inner, hook=hook)
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2), call("look", place="sea")]), "Done."])
    caught.append(asyncio.create_task(agent.run("Add.", session=SESSION)))
    try:
        await caught[0]
    except asyncio.CancelledError:
        pass
    else:
        pytest.skip("there are fewer appends")
    await check_closed(inner)
    assert agent.loop.sessions.runs == {}
    assert (await agent.run("Again.", session=SESSION, check=False)).run_id


@pytest.mark.spec("L-8")
async def test_a_loop_that_cancels_everything_leaves_log_and_memory_in_step() -> None:
    """What ``asyncio.run`` does at its end: every task is cancelled, the one that writes too."""
    stage = Stage()
    inner = MemoryStore()

    async def hook(when: str, method: str, number: int) -> None:
        if method == "append" and when == "after" and number == 2:
            for task in asyncio.all_tasks() - {keeper}:
                task.cancel()
            await asyncio.sleep(1)

    stage.store = FaultStore(inner, hook=hook)
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three.", "Again."])
    keeper = asyncio.current_task()
    run = asyncio.create_task(agent.run("Add.", session=SESSION))
    with pytest.raises(asyncio.CancelledError):
        await run
    result = await agent.run("And again?", session=SESSION)
    assert result.status == "completed", result.last_error
    await check_closed(inner)
    assert agent.loop.sessions.kept[SESSION].session.entries == await inner.load(SESSION)


@pytest.mark.spec("A-2", "L-7")
async def test_what_is_asked_for_is_told_while_other_calls_still_run() -> None:
    """A call that needs a human is in the log, and its watcher knows, before a slow neighbour is done."""
    stage = Stage()
    gate = asyncio.Event()

    @tool(timeout=None, concurrent=True)
    async def slow() -> str:
        """Take long."""
        await gate.wait()
        return "done"

    calls = [call("slow"), call("look", place="sea"), call("send", to="bob", text="x")]
    agent = stage.agent(
        [Turn(tool_calls=calls)],
        tools=[slow, *stage.tools()],
        tool_policy=ToolPolicy(max_parallel=2),
    )
    kinds: list[str] = []
    async with asyncio.timeout(120), aclosing(agent.run_stream("Go.", session=SESSION)) as events:
        async for event in events:
            kinds.append(event.kind)
            if event.kind == "approval_requested":
                assert not gate.is_set()
                assert any(e.kind == "approval_requested" for e in await stage.store.load(SESSION))
                gate.set()
    assert "approval_requested" in kinds


def test_runs_in_threads_of_their_own_share_an_agent() -> None:
    agent = Agent(ScriptedModel(default="Yes."), store=MemoryStore())
    found: list[str] = []

    def ask(number: int) -> None:
        found.append(agent.run_sync("Well?", session=f"s{number}").status)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["completed"] * 8


async def test_an_error_names_the_run_in_progress() -> None:
    stage = Stage()
    agent = stage.agent(["One."])
    stream = agent.run_stream("Go.", session=SESSION, run_id="r1")
    await stream.next_event()
    with pytest.raises(AgentError, match="r1 is in progress"):
        await agent.run("Go.", session=SESSION)
    await stream.aclose()


@pytest.mark.spec("L-7")
async def test_cancelled_again_while_a_tool_is_being_stopped() -> None:
    """Ctrl-C twice: the tool that takes its time to end is not left running behind a run that is over."""
    stage = Stage()
    ended: list[str] = []

    @tool(timeout=None)
    async def slow_to_end() -> str:
        """Clean up for a while when it is stopped."""
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(20):
                await asyncio.sleep(0.005)
            ended.append("cleaned up")
        return "never"

    agent = Agent(
        ScriptedModel([Turn(tool_calls=[call("slow_to_end")])]), tools=[slow_to_end], store=stage.store
    )
    reached = asyncio.Event()

    async def consume() -> None:
        async for event in agent.run_stream("Go.", session=SESSION):
            if event.kind == "tool_started":
                reached.set()

    task = asyncio.create_task(consume())
    await reached.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent.loop.sessions.runs == {}
    assert other_tasks() == set()
    await check_closed(stage.store)
