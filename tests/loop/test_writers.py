"""One writer at a time: leases in one process, between processes, and of processes that stop or die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, tool
from turnlog.contract import AgentError, Lease, Store
from turnlog.history import MemoryStore, open_store, verify
from turnlog.loop import SessionOptions
from turnlog.loop._lease import SessionLease, describe, forget_owner, is_dead, new_owner
from turnlog.testing import FaultStore, FixedClock, ScriptedModel, Turn, VirtualClock
from turnlog.testing._fault_store import StoreFault

PROCESS = Path(__file__).parent / "writer_process.py"
SESSION = "s1"


def call(name: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=[{"name": name, "arguments": arguments}])


# ── the lease by itself ──


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.mark.spec("H-4")
async def test_a_lease_is_renewed_for_as_long_as_it_is_held(store: MemoryStore, clock: VirtualClock) -> None:
    async with SessionLease(store, SESSION, clock=clock, ttl=30):
        await clock.advance(1_000)
        with pytest.raises(AgentError, match="SessionBusy"):
            await store.claim(SESSION, owner="other", ttl=30)
    await store.claim(SESSION, owner="other", ttl=30)
    assert clock.sleeping == 0


@pytest.mark.spec("H-4")
async def test_a_lost_lease_is_told_once(store: MemoryStore, clock: VirtualClock) -> None:
    told: list[AgentError] = []
    async with SessionLease(store, SESSION, clock=clock, ttl=30, on_lost=told.append, owner="me") as held:
        await store.claim(SESSION, owner="me", ttl=600)  # as whoever takes over does
        await clock.advance(100)
        assert [error.code for error in told] == ["SessionConcurrentWrite"]
        assert "taken over by another process" in told[0].message
        assert isinstance(held.lease, Lease)
    with pytest.raises(AgentError, match="SessionBusy"):  # what was lost is not given back
        await store.claim(SESSION, owner="third", ttl=30)


async def test_a_store_that_is_away_for_a_while_costs_nothing(clock: VirtualClock) -> None:
    away = AgentError("SessionWriteFailed", "the server is away")
    inner = MemoryStore(clock=clock)
    plan = [StoreFault(nth=n, method="renew", error=away) for n in (1, 2)]
    plan.append(StoreFault(nth=1, method="release", error=away))
    told: list[AgentError] = []
    store = FaultStore(inner, plan)
    async with SessionLease(store, SESSION, clock=clock, ttl=30, on_lost=told.append):
        await clock.advance(100)
    assert told == []
    # It could not be given back, but this process knows that nobody here holds it.
    async with SessionLease(inner, SESSION, clock=clock, ttl=30):
        pass


@pytest.mark.spec("H-4", "E-2")
async def test_a_held_session_is_refused_or_waited_for(store: MemoryStore, clock: VirtualClock) -> None:
    async with SessionLease(store, SESSION, clock=clock, ttl=30):
        with pytest.raises(
            AgentError, match=rf"in use by process {os.getpid()} on .*SessionOptions\(on_busy='wait'\)"
        ):
            async with SessionLease(store, SESSION, clock=clock, ttl=30):
                pass
        waiting = asyncio.ensure_future(_enter_and_leave(store, clock, "wait"))
        await clock.advance(95)
        assert not waiting.done()
    await clock.advance(1)
    await waiting


async def _enter_and_leave(store: Store, clock: VirtualClock, on_busy: Any) -> None:
    async with SessionLease(store, SESSION, clock=clock, ttl=30, on_busy=on_busy):
        pass


async def test_a_lease_that_nobody_renews_is_outlasted_and_one_that_is_renewed_is_not(
    store: MemoryStore, clock: VirtualClock
) -> None:
    await store.claim(SESSION, owner="a machine far away", ttl=30)
    outlasting = asyncio.ensure_future(_enter_and_leave(store, clock, "outlast"))
    await clock.advance(29)
    assert not outlasting.done()
    await clock.advance(2)
    await outlasting
    async with SessionLease(store, SESSION, clock=clock, ttl=30):
        outlasting = asyncio.ensure_future(_enter_and_leave(store, clock, "outlast"))
        await clock.advance(12)
        with pytest.raises(AgentError, match="SessionBusy"):
            await outlasting


async def test_a_cancelled_claim_leaves_nothing_behind(clock: VirtualClock) -> None:
    inner = MemoryStore(clock=clock)
    slow = FaultStore(inner, [StoreFault(nth=1, method="claim", when="after", delay=5)], clock=clock)
    claiming = asyncio.ensure_future(_enter_and_leave(slow, clock, "refuse"))
    await clock.advance(1)
    claiming.cancel()
    await clock.advance(10)
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await inner.claim(SESSION, owner="other", ttl=30)


# ── who is dead ──


def test_only_what_is_known_to_be_dead_is_dead() -> None:
    mine = new_owner()
    assert mine != new_owner()
    assert not is_dead(mine)
    forget_owner(mine)
    assert is_dead(mine)  # a lease that this very process no longer holds
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    host, _, _, space, mark = new_owner().rsplit("/", 4)
    started = Path(f"/proc/{child.pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    owner = f"{host}/{child.pid}/{started}/{space}/{mark}"
    assert not is_dead(owner)
    assert describe(owner) == f"process {child.pid} on {host}"
    assert is_dead(f"{host}/{child.pid}/{int(started) - 1}/{space}/{mark}")  # the number was used again
    assert not is_dead(f"elsewhere/{child.pid}/1/{space}/{mark}")
    assert not is_dead(f"{host}/{child.pid}/1/another-room/{mark}")
    assert not is_dead("a worker with a name of its own")
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner)  # dead, though not yet collected
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    assert is_dead(owner)


# ── agents in one process ──


@tool(timeout=None)
async def pass_time() -> str:
    """Pass some time."""
    for _ in range(20):
        await asyncio.sleep(0)
    return "later"


def agent_on(store: Store, *script: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(script)), store=store, tools=[pass_time], **options)


@pytest.mark.spec("H-4")
async def test_two_agents_on_one_session_take_turns() -> None:
    store = MemoryStore()
    first = agent_on(store, call("pass_time"), "One.")
    refused = agent_on(store, "Never.")
    waits = agent_on(store, "Two.", sessions=SessionOptions(on_busy="wait"))
    async for event in first.run_stream("a", session=SESSION):
        if event.kind == "tool_started":
            with pytest.raises(AgentError, match=r"SessionBusy.*in use by process"):
                await refused.run("b", session=SESSION)
            waiting = asyncio.ensure_future(waits.run("c", session=SESSION))
    assert (await waiting).text == "Two."
    assert (await refused.run("b", session=SESSION)).text == "Never."
    assert await verify(store, SESSION) == []


@pytest.mark.spec("H-4", "L-12")
async def test_one_agent_takes_runs_in_the_order_they_came() -> None:
    store = MemoryStore()
    agent = agent_on(store, call("pass_time"), "1", "2", "3", "4", sessions=SessionOptions(on_busy="wait"))
    results = await asyncio.gather(*(agent.run(f"ask {n}", session=SESSION) for n in range(1, 5)))
    assert [result.text for result in results] == ["1", "2", "3", "4"]
    asked = [entry.payload.message.text for entry in await store.load(SESSION) if entry.kind == "model_input"]
    assert asked == ["ask 1", "ask 2", "ask 3", "ask 4"]


async def test_who_waits_in_line_can_be_aborted() -> None:
    store = MemoryStore()
    lease = await store.claim(SESSION, owner="a machine far away", ttl=600)
    agent = agent_on(store, "Never.", sessions=SessionOptions(on_busy="wait"))
    waiting = asyncio.ensure_future(agent.run("a", session=SESSION, run_id="r1", check=False))
    await asyncio.sleep(0.05)
    assert await agent.abort("r1", "enough")
    with pytest.raises(AgentError, match="RunAborted: enough"):
        await waiting
    await store.release(lease)
    assert await store.tail(SESSION) is None
    assert (await agent.run("a", session=SESSION, check=False)).status == "completed"


@pytest.mark.spec("H-4", "L-8")
async def test_a_run_whose_lease_is_taken_stops_and_writes_nothing_more() -> None:
    store = MemoryStore()

    @tool(timeout=None)
    async def hang() -> str:
        """Wait for what does not come."""
        store._logs[SESSION].lease.until = 0  # as after a long stop
        await store.claim(SESSION, owner="a machine far away", ttl=600)
        await asyncio.Event().wait()
        return "never"

    agent = Agent(
        ScriptedModel([call("hang"), "Never."]),
        store=store,
        tools=[hang],
        sessions=SessionOptions(lease_ttl=0.15),
    )
    result = await agent.run("a", session=SESSION, check=False)
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == "SessionConcurrentWrite"
    assert "lease" in result.last_error.message
    assert (await store.load(SESSION))[-1].kind == "tool_started"
    with pytest.raises(AgentError, match="SessionBusy"):
        await agent.run("b", session=SESSION)


async def test_runs_leave_no_lease_and_no_task_behind() -> None:
    store = MemoryStore(clock=FixedClock())
    agent = agent_on(store, "One.", call("pass_time"), "Two.", "Three.")
    await agent.run("a", session=SESSION)
    stream = agent.run_stream("b", session=SESSION)
    async for event in stream:
        if event.kind == "tool_started":
            break
    await stream.aclose()
    row = store._logs[SESSION].lease
    assert (row.owner, row.epoch) == (None, 2)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "lease" in task.get_name()]


async def test_a_session_that_is_not_there_is_not_made_by_asking() -> None:
    store = MemoryStore()
    with pytest.raises(AgentError, match="SessionNotFound"):
        await agent_on(store, "x").resume("nowhere")
    assert store._logs == {}


@pytest.mark.parametrize(("option", "value"), [("on_busy", "shout"), ("lease_ttl", 0), ("lease_ttl", 1e6)])
def test_wrong_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(AgentError, match=f"ConfigInvalid: {option} is"):
        agent_on(MemoryStore(), sessions=SessionOptions(**{option: value}))


# ── processes ──


@contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROCESS), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    for _ in range(10_000):
        if path.exists():
            return
        if child.poll() is not None:
            raise AssertionError(child.communicate()[1])
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")


@pytest.fixture(params=["sqlite", "jsonl", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "sqlite":
            return f"sqlite:{tmp_path}/log.db"
        case "jsonl":
            return f"jsonl:{tmp_path}/log"
        case _:
            return request.getfixturevalue("postgres_url")


@pytest.mark.spec("H-4")
async def test_six_processes_on_one_session_lose_nothing_and_say_nothing_twice(url: str) -> None:
    processes, count = 6, 4
    children = [process(url, SESSION, "turns", f"p{n}", count) for n in range(processes)]
    started = [child.__enter__() for child in children]
    try:
        said = [await asyncio.to_thread(child.communicate, timeout=200) for child in started]
    finally:
        for child in children:
            child.__exit__(None, None, None)
    assert [child.returncode for child in started] == [0] * processes, said
    async with open_store(url) as store:  # type: ignore[attr-defined]
        entries = await store.load(SESSION)
        assert await verify(store, SESSION) == []
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    asked = [entry.payload.message.text for entry in entries if entry.kind == "model_input"]
    heard = [entry.payload.message.text for entry in entries if entry.kind == "model_output"]
    wanted = {f"p{n} {turn}" for n in range(processes) for turn in range(count)}
    assert set(asked) == wanted and len(asked) == len(wanted)
    assert heard == [f"Heard {text}." for text in asked]


@tool(idempotent=True, timeout=None)
async def wait() -> str:
    """Wait."""
    return "waited"


@pytest.mark.spec("H-4", "H-10")
async def test_a_stopped_process_that_wakes_up_later_is_fenced_off(url: str, tmp_path: Path) -> None:
    with process(url, SESSION, "hold", tmp_path, 2.0) as child:
        await asyncio.to_thread(wait_for, tmp_path / "inside", child)
        child.send_signal(signal.SIGSTOP)
        try:
            agent = Agent(ScriptedModel(["Taken over."]), tools=[wait], store=url)
            result = await agent.resume(SESSION, check=False)
        finally:
            child.send_signal(signal.SIGCONT)
        assert result is not None and result.text == "Taken over."
        (tmp_path / "go").touch()
        out, errors = await asyncio.to_thread(child.communicate, timeout=200)
    answer = json.loads(out or errors)
    assert (answer["status"], answer["code"]) == ("failed", "SessionConcurrentWrite")
    assert "lease" in answer["said"]
    assert await verify(agent.store, SESSION) == []
    entries = await agent.store.load(SESSION)
    assert entries[-1].kind == "run_ended" and entries[-1].payload.status == "completed"
    assert sum(entry.kind == "tool_results" for entry in entries) == 1
    await agent.close()


@pytest.mark.spec("H-4", "H-10")
async def test_the_lease_of_a_killed_process_is_taken_over_at_once(url: str, tmp_path: Path) -> None:
    with process(url, SESSION, "hold", tmp_path, 3_600) as child:
        await asyncio.to_thread(wait_for, tmp_path / "inside", child)
        agent = Agent(ScriptedModel(["Taken over.", "And on."]), tools=[wait], store=url)
        with pytest.raises(AgentError, match=f"SessionBusy.*process {child.pid} on"):
            await agent.run("Me too.", session=SESSION)
        child.kill()
        child.wait()
        result = await agent.resume(SESSION)
    assert result is not None and result.text == "Taken over."
    assert (await agent.run("Go on.", session=SESSION)).text == "And on."
    assert await verify(agent.store, SESSION) == []
    await agent.close()
