"""What a stored turn costs in steps: turns of the event loop, tasks, and jobs of the store's threads.

Nothing here looks at a clock. The counts may fall; where one rises, every turn became slower.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, tool
from turnlog.contract import (
    SCHEMA_VERSION,
    AgentError,
    EntryPayload,
    Message,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    RunEvent,
    SessionHeader,
    Store,
    StoredEntry,
    text_part,
    user_message,
)
from turnlog.history import MemoryStore, Session, SqliteStore, seal_entries, verify
from turnlog.history._worker import Job, Worker
from turnlog.history.sqlite._store import AppendJob
from turnlog.loop import Hooks
from turnlog.loop._lease import SessionLease
from turnlog.models import ModelRequest
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import ScriptedModel, Turn

SESSION = "s1"
TIME = "2026-01-01T00:00:00.000Z"


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts its turns and the tasks that are made in it."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.tasks = 0

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        self.tasks += 1
        return super().create_task(coro, **options)

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


class CountingWorker(Worker):
    def __init__(self, name: str, seen: Counter[str], kind: str, *args: Any) -> None:
        super().__init__(name, *args)
        self._seen = seen
        self._kind = kind

    def submit(self, job: Job, *, uncut: bool = False) -> asyncio.Future[Any]:
        self._seen["appends" if isinstance(job, AppendJob) else self._kind] += 1
        return super().submit(job, uncut=uncut)


class CountingStore(SqliteStore):
    """The SQLite store with its own threads, whose jobs are counted by what they are for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.seen = Counter[str]()
        self._writing = CountingWorker("counted writer", self.seen, "lease", self._writer.run_group)
        self._reading = CountingWorker("counted reader", self.seen, "reads")


@tool
async def look(place: str) -> str:
    """Look around."""
    return f"books in {place}"


def with_one_call(request: ModelRequest) -> Turn:
    if request.messages[-1].role == "tool":
        return Turn(text="There are books.")
    return Turn(tool_calls=[{"name": "look", "arguments": {"place": "the hall"}}])


def without_a_call(_: ModelRequest) -> Turn:
    return Turn(text="Hello.")


def conversation(entries: int) -> list[StoredEntry]:
    """A log of words and answers."""
    model = ModelInvocationDescriptor(provider_id="scripted", specification="scripted", model="scripted")
    asked = ModelInput(message=user_message("More.", run_id="r", timestamp=TIME), source="host")
    said = Message(run_id="r", role="assistant", parts=[text_part("Yes.")], timestamp=TIME)
    answered = ModelOutput(
        message=said, invocation=model, model_call_index=1, attempt=1, finish_reason="stop"
    )
    payloads: list[EntryPayload] = [SessionHeader(schema_version=SCHEMA_VERSION)]
    payloads += [asked, answered] * (entries // 2)
    return seal_entries(SESSION, payloads, clock=SystemClock(), ids=SystemIds())


def count_turns(store: CountingStore, model: Any, entries: int) -> dict[str, int]:
    """The least that each was of three turns in a warm session: on a slow machine the look for posted
    requests, which is made every few seconds, falls into one of them."""
    loop = CountingLoop()

    async def work() -> dict[str, int]:
        await store.append(SESSION, conversation(entries), expected_tail=0)
        agent = Agent(ScriptedModel([model] * 20), tools=[look], store=store)
        await agent.run("Hello?", session=SESSION)
        counts = list[Counter[str]]()
        for _ in range(3):
            store.seen.clear()
            turns, tasks = loop.turns, loop.tasks
            await agent.run("And again?", session=SESSION)
            made = Counter({"turns": loop.turns - turns, "tasks": loop.tasks - tasks})
            counts.append(made + store.seen)
        assert await verify(store, SESSION) == []
        await store.close()
        least = {name: min(each[name] for each in counts) for each in counts for name in each}
        return {name: count for name, count in least.items() if count}

    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


def test_a_stored_turn_takes_few_steps(tmp_path: Path) -> None:
    counts = count_turns(CountingStore(tmp_path / "s.db"), without_a_call, 100)
    # One job claims the session. The question goes with the intent to call the model, the answer is written
    # before the end of the run is decided, and the lease is given back with that end.
    assert counts.pop("turns") <= 9
    assert counts == {"appends": 3, "lease": 1}


@pytest.mark.parametrize("entries", [100, 10_000])
def test_a_turn_with_a_call_takes_few_steps_however_long_the_log_is(tmp_path: Path, entries: int) -> None:
    counts = count_turns(CountingStore(tmp_path / "s.db"), with_one_call, entries)
    assert counts.pop("turns") <= 17
    assert counts == {"tasks": 2, "appends": 5, "lease": 1}


# ── what the shorter way must still keep ──


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "s.db")


async def test_the_lease_is_given_back_with_the_end_of_the_run(store: Store) -> None:
    """A hook that is told of the end finds the session free: no second write comes after it."""
    free: list[tuple[str, bool]] = []

    async def watch(event: RunEvent) -> None:
        free.append((event.kind, await store.holder(SESSION) is None))

    agent = Agent(ScriptedModel([without_a_call]), store=store, hooks=Hooks(on_event=[watch]))
    await agent.run("Hello?", session=SESSION)
    assert free[-1] == ("run_ended", True)
    assert {is_free for kind, is_free in free if kind == "model_delta"} == {False}
    await store.close()


async def test_what_another_process_wrote_meanwhile_is_read(store: Store) -> None:
    here = Agent(ScriptedModel(["One.", "Three."]), store=store)
    there = Agent(ScriptedModel(["Two."]), store=store)
    await here.run("1?", session=SESSION)
    await there.run("2?", session=SESSION)
    await here.run("3?", session=SESSION)
    assert await verify(store, SESSION) == []
    found = await Session.open(store, SESSION, clock=SystemClock(), ids=SystemIds(), create=False)
    assert [message.text for message in found.messages if message.role == "assistant"] == [
        "One.",
        "Two.",
        "Three.",
    ]
    await store.close()


async def test_a_session_that_was_deleted_and_made_anew_is_not_taken_for_the_old_one(store: Store) -> None:
    here = Agent(ScriptedModel(["One.", "Three."]), store=store)
    there = Agent(ScriptedModel(["Two."]), store=store)
    await here.run("1?", session=SESSION)
    await store.delete_session(SESSION)
    await there.run("2?", session=SESSION)  # as many entries as before, and other ones
    tail = await store.tail(SESSION)
    lease = await store.claim(SESSION, owner="me", ttl=30)
    assert lease.tail == tail and tail is not None
    await store.release(lease)
    await store.close()


async def test_a_lease_says_where_the_log_ended(store: Store) -> None:
    lease = await store.claim(SESSION, owner="me", ttl=30)
    assert lease.tail is not None and lease.tail.seq == 0
    await store.append(SESSION, conversation(10), expected_tail=0, lease=lease)
    lease = await store.claim(SESSION, owner="me", ttl=30)
    assert lease.tail == await store.tail(SESSION)
    await store.close()


async def test_a_claim_that_is_cancelled_leaves_the_session_free(store: Store) -> None:
    for turns in range(6):

        async def hold() -> None:
            async with SessionLease(store, SESSION, clock=SystemClock()):
                await asyncio.sleep(30)

        claiming = asyncio.ensure_future(hold())
        for _ in range(turns):
            await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert await store.holder(SESSION) is None
    await store.close()


async def test_nothing_can_be_written_under_a_lease_that_was_given_back_with_entries(store: Store) -> None:
    lease = await store.claim(SESSION, owner="me", ttl=30)
    session = await Session.open(store, SESSION, clock=SystemClock(), ids=SystemIds(), lease=lease)
    told: list[str] = []
    session.append_custom("first", {})
    await session.commit(returned=lambda: told.append("returned"))
    assert told == ["returned"]
    session.append_custom("second", {})
    with pytest.raises(AgentError, match="SessionConcurrentWrite"):
        await session.commit()
    assert len(session.entries) == 2
    await store.close()
