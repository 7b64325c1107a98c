"""Tools at their worst, inside whole runs: the run goes on, the history is in order, the next run works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from loop.scenarios import SESSION, call
from turnlog import Agent, tool
from turnlog.contract import AgentError, ToolPolicy
from turnlog.history import MemoryStore
from turnlog.testing import FixedIds, ScriptedModel, Turn, VirtualClock, check_session

RELEASE = threading.Event()


@tool(timeout=3.0)
async def hang() -> str:
    """Never come back."""
    await asyncio.Event().wait()
    return "never"


@tool(timeout=3.0)
async def ignore_cancel() -> str:
    """Never come back, whatever one says."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@tool(timeout=3.0)
def hang_in_a_thread() -> str:
    """Never come back from a thread."""
    RELEASE.wait(60)
    return "late"


@tool(timeout=3.0)
async def leave_a_task() -> str:
    """Start something that outlives the call."""
    TASKS.append(asyncio.create_task(asyncio.sleep(0.01), name="left behind by a tool"))
    return "started"


@tool(timeout=3.0)
def leave_a_thread() -> str:
    """Start a thread that outlives the call."""
    threading.Thread(target=RELEASE.wait, args=(60,), daemon=True).start()
    return "started"


@tool(timeout=3.0)
async def cancel_itself() -> str:
    """Raise what only others may."""
    raise asyncio.CancelledError


@tool(timeout=3.0)
def return_a_lock() -> Any:
    """Return what cannot be written down."""
    return threading.Lock()


TASKS: list[asyncio.Task[None]] = []


def raising(error: type[BaseException], *, sync: bool) -> Any:
    async def raise_it() -> str:
        """Raise something that ends programs."""
        raise error("out of here")

    def raise_it_now() -> str:
        """Raise something that ends programs, in a thread."""
        raise error("out of here")

    return tool(name="raise_it", timeout=3.0)(raise_it_now if sync else raise_it)


CASES: dict[str, tuple[Any, str, str | None]] = {
    "hang": (hang, "failed", "ToolTimeout"),
    "ignore cancel": (ignore_cancel, "failed", "ToolTimeout"),
    "hang in a thread": (hang_in_a_thread, "failed", "ToolTimeout"),
    "leave a task": (leave_a_task, "success", None),
    "leave a thread": (leave_a_thread, "success", None),
    "cancel itself": (cancel_itself, "failed", "ToolCancelled"),
    "return a lock": (return_a_lock, "failed", "ToolExecutionError"),
    **{
        f"{error.__name__} {'in a thread' if sync else 'in a task'}": (
            raising(error, sync=sync),
            "failed",
            "ToolExecutionError",
        )
        for error in (SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError)
        for sync in (False, True)
    },
}


def agent_with(given: Any, clock: VirtualClock, store: MemoryStore, turns: list[Any]) -> Agent:
    ids = FixedIds(prefix=turns[0] if isinstance(turns[0], str) else "")
    model = ScriptedModel(turns, clock=clock, ids=ids)
    return Agent(model, tools=[given, fine], store=store, clock=clock, ids=ids)


@tool(timeout=None)
async def fine() -> str:
    """Work."""
    return "fine"


@pytest.fixture(autouse=True)
def _let_threads_go() -> Any:
    RELEASE.clear()
    yield
    RELEASE.set()


@pytest.mark.spec("T-4", "L-7", "D-6")
@pytest.mark.parametrize("name", CASES)
async def test_the_run_goes_on_and_so_does_the_next(name: str) -> None:
    given, status, code = CASES[name]
    clock, store = VirtualClock(auto=True, grace=0.05 if status != "success" else 2.0), MemoryStore()
    turns = [Turn(tool_calls=[call(given.name), call("fine")]), "I see."]
    result = await agent_with(given, clock, store, turns).run("Go.", session=SESSION)
    assert result.status == "completed"
    outcomes = [
        (outcome.status, outcome.error_code)
        for entry in await store.load(SESSION)
        if entry.kind == "tool_results"
        for outcome in entry.payload.outcomes
    ]
    assert outcomes == [(status, code), ("success", None)]
    again = await agent_with(given, clock, store, ["Yes."]).run("Still there?", session=SESSION)
    assert again.text == "Yes."
    await check_session(store, SESSION)
    await asyncio.gather(*TASKS)
    TASKS.clear()


def abort(agent: Agent) -> None:
    agent.loop.sessions.runs[SESSION].scope.request(AgentError("RunAborted", "enough"))


@pytest.mark.spec("L-7")
@pytest.mark.parametrize("name", ["hang", "ignore cancel", "hang in a thread"])
async def test_an_abort_does_not_wait_for_them(name: str) -> None:
    given = CASES[name][0]
    clock, store = VirtualClock(auto=True, grace=0.05), MemoryStore()
    agent = agent_with(given, clock, store, [Turn(tool_calls=[call(given.name), call("fine")])])
    before = asyncio.all_tasks()
    async for event in agent.run_stream("Go.", session=SESSION):
        if event.kind == "tool_started":
            asyncio.get_running_loop().call_later(0.01, abort, agent)
    assert event.result.status == "aborted"
    assert clock.monotonic() < 60
    entries = await store.load(SESSION)
    assert [o.status for e in entries if e.kind == "tool_results" for o in e.payload.outcomes] == [
        "skipped",
        "skipped",
    ]
    await check_session(store, SESSION)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


@pytest.mark.spec("T-3", "T-4")
async def test_a_bad_tool_does_not_stop_those_beside_it() -> None:
    clock, store = VirtualClock(auto=True, grace=0.05), MemoryStore()
    ran: list[str] = []

    def beside(number: int) -> Callable[..., Any]:
        async def body() -> str:
            """Work beside it."""
            await asyncio.sleep(0)
            ran.append(f"beside_{number}")
            return "ok"

        return tool(name=f"beside_{number}", timeout=None, concurrent=True)(body)

    async def bad() -> str:
        """End the program."""
        raise SystemExit(1)

    others = [beside(number) for number in range(3)]
    worst = tool(name="bad", timeout=None, concurrent=True)(bad)
    calls = [call("beside_0"), call("bad"), call("beside_1"), call("beside_2")]
    ids = FixedIds()
    agent = Agent(
        ScriptedModel([Turn(tool_calls=calls), "Done."], clock=clock, ids=ids),
        tools=[*others, worst],
        store=store,
        clock=clock,
        ids=ids,
        tool_policy=ToolPolicy(max_parallel=4),
    )
    assert (await agent.run("Go.", session=SESSION)).status == "completed"
    assert sorted(ran) == ["beside_0", "beside_1", "beside_2"]
    await check_session(store, SESSION)
