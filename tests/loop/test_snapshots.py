"""A snapshot of the folds is a cache: a session that is opened from it is the one that its log makes, and
every snapshot that does not fit is passed over."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from slices import slice_of
from turnlog import Agent, tool
from turnlog.context import ContextInput, ContextOptions, ContextUpdateInput, ProjectionContext
from turnlog.contract import AgentError, Entry, Message, Store, encode, text_part
from turnlog.history import JsonlStore, MemoryStore, Session, SnapshotStore, SqliteStore, verify
from turnlog.history import _snapshot as snapshots
from turnlog.loop import SessionOptions, check_snapshot, fork_session
from turnlog.loop._folds import Folds
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn
from turnlog.widgets import MemoryNotebookWidget, RenderContext, TodoWidget, Widget, WorkspaceWidget

SMALL = ContextOptions(fold_at=1_500, min_freed_tokens=100, preview_at=400)
WORDS = ["river", "stone", "lantern", "harbour", "quarry", "meadow", "signal", "archive", "copper", "winter"]


@tool(idempotent=True, timeout=None)
async def look(place: str) -> str:
    """Look at a place."""
    chance = random.Random(place)
    return f"{place}: " + " ".join(chance.choice(WORDS) for _ in range(chance.choice([5, 60, 400])))


@tool(requires_approval=True, timeout=None)
async def send(text: str) -> str:
    """Send a text."""
    return f"sent {text}"


def widgets() -> list[Widget[Any]]:
    return [MemoryNotebookWidget(), TodoWidget(), WorkspaceWidget()]


class World:
    """One store, and agents that come and go: none keeps a session in memory between two runs."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store = store
        self.clock, self.ids = FixedClock(), FixedIds()
        self.options: dict[str, Any] = {"context": SMALL, "widgets": widgets(), **options}

    def agent(self, *turns: Any, warm_bytes: int = 0, every: int = 1, **options: Any) -> Agent:
        return Agent(
            ScriptedModel(turns, clock=self.clock, ids=self.ids),
            store=self.store,
            tools=[look, send],
            clock=self.clock,
            ids=self.ids,
            instructions="You are brief.",
            sessions=SessionOptions(warm_bytes=warm_bytes, snapshot_every=every),
            **{**self.options, **options},
        )

    async def turn(self, session: str, text: str, *turns: Any) -> None:
        await self.agent(*turns).run(text, session=session, check=False)

    async def grow(self, session: str, count: int, seed: int = 0) -> None:
        chance = random.Random(seed)
        for number in range(count):
            await take_turn(self, session, chance, number)

    async def kept(self, session: str) -> snapshots.Snapshot | None:
        assert isinstance(self.store, SnapshotStore)
        data = await self.store.read_snapshot(session)
        return snapshots.decode_snapshot(data) if data else None


async def take_turn(world: World, session: str, chance: random.Random, number: int) -> None:
    text = " ".join(chance.choice(WORDS) for _ in range(chance.choice([3, 10, 120])))
    call: dict[str, Any] = chance.choice(
        [
            {"name": "look", "arguments": {"place": f"place {number}"}},
            {"name": "look", "arguments": {"place": f"place {number}"}},
            {"name": "notebook_write", "arguments": {"name": chance.choice(WORDS), "text": text}},
            {"name": "todo_plan", "arguments": {"items": [{"text": word} for word in WORDS[: number % 7]]}},
            {"name": "nothing_like_it", "arguments": {}},
        ]
    )
    match chance.randrange(6):
        case 0:
            await world.turn(session, text, text.upper())
        case 1:
            await world.turn(session, text, Turn(text=text, cut=True), Turn(text=text, cut=True))
        case 2:
            two = {"name": "look", "arguments": {"place": f"other {number}"}}
            await world.turn(session, text, Turn(thinking="hm", tool_calls=[call, two]), "Done.")
        case _:
            await world.turn(session, text, Turn(tool_calls=[call]), f"So: {text[:40]}")


async def both(world: World, session: str) -> tuple[Folds, Folds]:
    """The session opened as a run would, and from its whole log."""
    sessions = world.agent().loop.sessions
    found = await sessions._open_cold(session, False, None)
    log = await Session.open(world.store, session, clock=world.clock, ids=world.ids, create=False)
    return found, Folds(log, sessions._context, sessions._widgets)


def picture(folds: Folds) -> dict[str, Any]:
    """All that a next step could depend on."""
    context = folds.context
    assert isinstance(context, ProjectionContext)
    projection, target = context.projection, ScriptedModel(()).descriptor
    found: dict[str, Any] = {"state": folds.session.state, "usage": folds.session.state.total_usage}
    for name, asked in {"nobody": None, "target": target}.items():
        sent = projection.emit(asked, force=True)
        found[f"hash for {name}"] = sent.context_hash
        found[f"wire for {name}"] = [encode(message) for message in sent.messages]
        found[f"head for {name}"] = (sent.system_prompt, sent.tool_specs)
        found[f"sizes for {name}"] = sent.stats
    said = Message(run_id="", role="user", parts=[text_part(" ".join(WORDS * 30))], timestamp="")
    found["next request"] = encode(
        context.build_context(ContextInput(target=target, input_messages=[said])).entries_to_append
    )
    found["next fold"] = encode(
        context.compute_context_updates(
            ContextUpdateInput(target=target, manual=True, screen=folds.host.screen)
        ).entries_to_append
    )
    found["grains"] = context.input_sections(said)
    found["words"] = dict(projection.vocabulary.counts)
    found["texts"] = projection.vocabulary.texts
    found["live"] = context.live_ids
    found["calls"] = sorted(projection._calls)
    found["widgets"] = dict(folds.host.states)
    found["screen"] = (folds.host.screen(), folds.host.changes())
    found["next seq"] = folds.session.next_seq
    return found


async def check_same(world: World, session: str) -> bool:
    """Compare them; returns whether there was a snapshot that fits."""
    found, whole = await both(world, session)
    assert whole.session.is_whole
    left, right = picture(found), picture(whole)
    for name in right:
        assert left[name] == right[name], f"{session}: {name}"
    return found.session.snapshot is not None


# ── sessions of every shape ──


@pytest.mark.parametrize("part", range(2))
async def test_a_session_from_its_snapshot_is_the_one_its_log_makes(part: int) -> None:
    seed = 2 * slice_of(1_000) + part
    used = await walk(seed, 14)
    assert used > 2, f"seed {seed}: hardly any snapshot was used"


@pytest.mark.soak
async def test_many_sessions_from_their_snapshots_are_those_that_their_logs_make() -> None:
    for seed in range(60):
        await walk(seed, 40)


async def walk(seed: int, steps: int) -> int:
    """Do this and that to some sessions, and compare them on the way; returns how many snapshots fit."""
    chance = random.Random(seed)
    world = World(MemoryStore())
    names, used = ["s"], 0
    for number in range(steps):
        name = chance.choice(names)
        step = chance.randrange(12)
        tail = await world.store.tail(name)
        if tail is None or step < 7:
            await take_turn(world, name, chance, number)
        elif step == 7:
            names.append(await fork_session(world.store, name, clock=world.clock, ids=world.ids))
        elif step == 8:  # a run that waits for a human, and then goes its way
            call = {"name": "send", "arguments": {"text": "hello"}}
            await world.turn(name, "Send it.", Turn(tool_calls=[call]), "Sent.")
            await check_same(world, name)
            session = world.agent("It is sent.").session(name)
            for pending in await session.pending():
                await session.approve(pending.requested.tool_call_id, by="me")
            await session.resume(check=False)
        elif step == 9:
            named = [entry.id for entry in await world.store.load(name) if entry.kind == "model_input"]
            await world.agent().session(name).redact([chance.choice(named)], by="me")
            names.append(f"after {number}")
        elif step == 10:
            named = [entry.id for entry in await world.store.load(name) if entry.kind == "model_output"]
            if named:
                await world.agent().session(name).purge([chance.choice(named)], by="me")
            names.append(f"after {number}")
        else:  # by an agent that keeps it in memory meanwhile
            agent = world.agent(*["And so on."] * 3, warm_bytes=10**9)
            for _ in range(3):
                await agent.run(" ".join(chance.choices(WORDS, k=60)), session=name)
        for each in names if number % 6 == 5 else [name]:
            if await world.store.tail(each) is not None:
                fits = await check_same(world, each)
                assert await check_snapshot(world.store, each) == ("same" if fits else "none")
                assert await verify(world.store, each) == []
                used += fits
    return used


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made: dict[str, Callable[[], Any]] = {
        "memory": MemoryStore,
        "jsonl": lambda: JsonlStore(tmp_path / "logs"),
        "sqlite": lambda: SqliteStore(tmp_path / "log.db"),
    }
    async with made[request.param]() as opened:
        yield opened


async def test_a_long_session_opens_from_its_snapshot_and_reads_little(store: Store) -> None:
    world = World(store)
    await world.grow("s", 16)
    found, whole = await both(world, "s")
    assert found.session.snapshot is not None
    assert found.session.tail_seq == whole.session.tail_seq > 130
    assert any(entry.kind == "fold" for entry in whole.session.entries)
    assert len(found.session._entries) < 20
    for known, ids in (
        (found.session.state.call_ids, whole.session.state.call_ids),
        (found.session.state.run_ids, whole.session.state.run_ids),
    ):
        assert ids
        assert all(id in known for id in ids)
        assert "another" not in known
    assert len(found.session.snapshot.seqs) < whole.session.tail_seq // 4
    assert await check_same(world, "s")
    await world.turn("s", "And now?", "As before.")
    assert await check_same(world, "s")


async def test_what_came_after_the_snapshot_is_folded_in(store: Store) -> None:
    world = World(store)
    await world.grow("s", 4)
    before = await world.kept("s")
    for number in range(3):
        call = {"name": "look", "arguments": {"place": str(number)}}
        await world.agent(Turn(tool_calls=[call]), "Seen.", every=0).run("Look.", session="s")
    assert before is not None
    assert await world.kept("s") == before
    found, _ = await both(world, "s")
    assert found.session.tail_seq > before.seq + 20
    assert await check_same(world, "s")


# ── snapshots that do not fit ──


async def changed(world: World, session: str, change: Callable[[bytes], bytes]) -> None:
    """Put other bytes in the place of the snapshot."""
    assert isinstance(world.store, SnapshotStore)
    tail = await world.store.tail(session)
    data = await world.store.read_snapshot(session)
    assert tail is not None
    assert data is not None
    await world.store.write_snapshot(session, tail.seq, tail.hash, change(data))
    assert await world.store.read_snapshot(session) == change(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: b"\x00" * len(data),
        lambda data: data + b"more",
        lambda data: data.replace(WORDS[0].encode(), WORDS[0].upper().encode()),
    ],
    ids=["empty", "cut", "half", "a bit", "zeros", "longer", "other words"],
)
async def test_bytes_that_were_damaged_are_passed_over(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    world = World(JsonlStore(tmp_path / "logs"))
    await world.grow("s", 2)
    assert await check_same(world, "s")
    await changed(world, "s", change)
    assert not await check_same(world, "s")
    await world.turn("s", "And now?", "As before.")
    assert await check_same(world, "s")


def altered(**fields: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        snapshot = snapshots.decode_snapshot(data)
        assert snapshot is not None
        values = {name: getattr(snapshot, name) for name in snapshot.__struct_fields__}
        return snapshots.encode_snapshot(snapshots.Snapshot(**{**values, **fields}))

    return change


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "turnlog 0.0.9 / 1"},
        {"key": "of other options"},
        {"hash": "0" * 64},
        {"id": "another"},
        {"seq": 3},
        {"seq": 4_000},
        {"seqs": [1, 5_000]},
        {"seqs": []},
        {"state": b"\xc1"},
        {"context": b"\x90"},
        {"widgets": b"\x80"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_snapshot_of_something_else_is_passed_over(fields: dict[str, Any]) -> None:
    world = World(MemoryStore())
    await world.grow("s", 2)
    await changed(world, "s", altered(**fields))
    assert not await check_same(world, "s")


class Counter(Widget[int]):
    name: ClassVar[str] = "counter"
    description: ClassVar[str] = "Counts entries."
    told = "1"

    @property
    def version(self) -> str:
        return self.told

    def initial(self) -> int:
        return 0

    def reduce(self, state: int, entry: Entry) -> int:
        return state + 1

    def render_live_screen(self, ctx: RenderContext[int]) -> dict[str, str] | None:
        return {"Count": f"{ctx.state // 10}, {len(ctx.entries)} in view"}


class SavedCounter(Counter):
    def save_state(self, state: int) -> Any:
        return state

    def load_state(self, data: Any) -> int:
        return int(data)


class UnreadableCounter(SavedCounter):
    def load_state(self, data: Any) -> int:
        raise RuntimeError("no")


class UnsavedCounter(SavedCounter):
    def save_state(self, state: int) -> Any:
        raise RuntimeError("no")


async def test_other_options_and_other_widgets_read_the_log() -> None:
    world = World(MemoryStore(), widgets=[SavedCounter()])
    await world.grow("s", 4)
    assert await check_same(world, "s")
    newer = SavedCounter()
    newer.told = "2"
    for options in (
        {"context": ContextOptions(fold_at=1_501, min_freed_tokens=100, preview_at=400)},
        {"widgets": []},
        {"widgets": [newer]},
        {"widgets": [SavedCounter(), TodoWidget()]},
    ):
        other = World(world.store, **{**world.options, **options})
        assert not await check_same(other, "s")
    assert await check_same(world, "s")
    world.options["widgets"] = [WorkspaceWidget()]
    await world.grow("s", 1)
    assert await check_same(world, "s")
    world.options["widgets"] = [WorkspaceWidget({"look": "seen"})]
    assert not await check_same(world, "s")


@pytest.mark.parametrize(
    "widget", [Counter(), UnsavedCounter(), UnreadableCounter()], ids=lambda w: type(w).__name__
)
async def test_a_widget_that_cannot_save_or_load_its_state_costs_nothing_but_time(widget: Counter) -> None:
    world = World(MemoryStore(), widgets=[widget])
    await world.grow("s", 4)
    assert not await check_same(world, "s")
    assert (await world.kept("s") is None) == (not isinstance(widget, UnreadableCounter))


async def test_a_widget_that_saves_its_state_sees_no_history_wherever_it_was_opened_from() -> None:
    world = World(MemoryStore(), widgets=[SavedCounter()])
    await world.grow("s", 4)
    found, whole = await both(world, "s")
    assert found.session.snapshot is not None
    assert "0 in view" in str(found.host.screen()) == str(whole.host.screen())


async def test_an_agent_can_do_without() -> None:
    world = World(MemoryStore())
    for _ in range(3):
        await world.agent("Yes.", every=0).run("Well?", session="s")
    assert await world.kept("s") is None
    await world.grow("s", 1)
    sessions = world.agent(every=0).loop.sessions
    assert (await sessions._open_cold("s", False, None)).session.is_whole


# ── checking ──


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"hash": "0" * 64}, "wrong"),
        ({"seqs": [2]}, "wrong"),
        ({"call_ids": "call_9"}, "wrong"),
        ({"state": b"\xc1"}, "wrong"),
        ({"context": b"\x90"}, "wrong"),
        ({"widgets": b"\x80"}, "wrong"),
        ({"format": "turnlog 0.0.9 / 1"}, "other"),
        ({"key": "what nobody knows"}, "other"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else given,
)
async def test_a_wrong_snapshot_is_found_and_dropped_and_the_log_stays_sound(
    fields: dict[str, Any], finding: str
) -> None:
    world = World(MemoryStore())
    await world.grow("s", 3)
    assert await check_snapshot(world.store, "s") == "same"
    await changed(world, "s", altered(**fields))
    assert await check_snapshot(world.store, "s") == finding
    assert (await world.kept("s") is None) == (finding == "wrong" or "format" in fields)
    assert await verify(world.store, "s") == []
    assert not await check_same(world, "s")


async def test_a_snapshot_with_a_widget_that_is_not_known_is_not_judged() -> None:
    world = World(MemoryStore(), widgets=[SavedCounter()])
    await world.grow("s", 3)
    assert await check_snapshot(world.store, "s") == "other"
    assert await check_snapshot(world.store, "s", widgets=[SavedCounter()]) == "same"


# ── what holds no texts that must be gone ──


async def test_a_redaction_a_purge_and_a_deletion_drop_it(store: Store) -> None:
    world = World(store)
    assert isinstance(store, SnapshotStore)
    for name in ("redacted", "purged", "deleted"):
        await world.grow(name, 2)
        assert await world.kept(name) is not None
    branch = await fork_session(store, "purged", clock=world.clock, ids=world.ids)
    assert await store.read_snapshot(branch) is None
    await world.grow(branch, 1)
    assert await check_same(world, branch)

    first = next(entry.id for entry in await store.load("redacted") if entry.kind == "model_input")
    await world.agent().session("redacted").redact([first], by="me")
    assert await store.read_snapshot("redacted") is None
    first = next(entry.id for entry in await store.load("purged") if entry.kind == "model_input")
    await world.agent().session("purged").purge([first], by="me")
    assert await store.read_snapshot("purged") is None
    assert await store.read_snapshot(branch) is None
    await world.agent().session("deleted").delete()
    for name in ("redacted", "purged", branch):
        await world.grow(name, 1)
        assert await store.read_snapshot(name) is None, "nothing is written while something is hidden"
        assert not await check_same(world, name)
    if isinstance(store, JsonlStore):
        assert not list(store.folder.glob("*.snapshot*"))


async def test_a_process_that_has_not_heard_of_a_redaction_writes_none(store: Store) -> None:
    world = World(store)
    agent = world.agent("Yes.", "No.", warm_bytes=10**9, every=10_000)
    await agent.run("Well?", session="s")
    folds = agent.loop.sessions.kept["s"]
    named = next(entry.id for entry in await store.load("s") if entry.kind == "model_input")
    await world.agent().session("s").redact([named], by="me")
    snapshot = folds.take_snapshot()
    assert snapshot is not None
    await agent.loop.sessions._write_snapshots([("s", snapshot)])
    assert await world.kept("s") is None
    await agent.run("Well?", session="s")  # in memory it relied on that snapshot
    log = await store.load("s")
    assert agent.loop.sessions.kept["s"].session.is_whole
    assert picture(agent.loop.sessions.kept["s"])["state"] == (await both(world, "s"))[1].session.state
    assert log[-1].kind == "run_ended"


# ── a process that ends between the two writes ──


async def test_an_entry_without_its_snapshot_and_a_snapshot_without_its_entry(store: Store) -> None:
    world = World(store)
    await world.grow("s", 4)
    assert isinstance(store, SnapshotStore)
    data, tail = await store.read_snapshot("s"), await store.tail("s")
    assert data is not None
    assert tail is not None
    # Killed before the snapshot of the next turn was written: the older one is used.
    await world.agent("Yes.", every=0).run("Well?", session="s")
    assert await store.read_snapshot("s") == data
    assert await check_same(world, "s")
    # A snapshot of a log that does not end there is refused.
    ahead = altered(seq=tail.seq + 500, id="e", hash="f" * 64)(data)
    await store.write_snapshot("s", tail.seq + 500, "f" * 64, ahead)
    assert await store.read_snapshot("s") == data


class FailingStore(MemoryStore):
    failing = False

    async def append(self, *args: Any, **options: Any) -> None:
        if self.failing:
            raise AgentError("SessionWriteFailed", "the disk is full")
        await super().append(*args, **options)


async def test_a_write_that_fails_leaves_a_session_that_relies_on_a_snapshot_as_its_log_is() -> None:
    store = FailingStore()
    world = World(store)
    await world.grow("s", 12)
    agent = world.agent("Yes.", warm_bytes=10**9)
    await agent.run("Well?", session="s")
    folds = agent.loop.sessions.kept["s"]
    assert not folds.session.is_whole
    store.failing = True
    folds.session.append_model_input(Message(run_id="", role="user", parts=[text_part("lost")], timestamp=""))
    with pytest.raises(AgentError, match="the disk is full"):
        await folds.session.commit()
    store.failing = False
    left, right = picture(folds), picture((await both(world, "s"))[1])
    assert {name for name in right if left[name] != right[name]} == set()


async def test_what_is_not_in_memory_is_not_passed_off_as_the_log() -> None:
    world = World(MemoryStore())
    await world.grow("s", 4)
    found, whole = await both(world, "s")
    for read in (lambda: found.session.entries, lambda: found.session.messages):
        with pytest.raises(AgentError, match="all_entries"):
            read()
    assert await found.session.all_entries() == whole.session.entries
    with pytest.raises(AgentError, match="all_entries"):
        found.session.redact([whole.session.entries[3].id], None, "me")
    await found.session.make_whole()
    assert picture(found) == picture(whole)


async def test_recall_finds_what_a_fold_took_out_of_memory() -> None:
    world = World(MemoryStore())
    await world.turn("s", "The password of the harbour is Zanzibar.", "I see.")
    await world.grow("s", 12)
    found, _ = await both(world, "s")
    assert not found.session.is_whole
    asked = {"name": "recall", "arguments": {"query": "password harbour Zanzibar"}}
    model = world.agent(Turn(tool_calls=[asked]), "It is Zanzibar.")
    await model.run("What was the password?", session="s")
    log = await world.store.load("s")
    results = [entry for entry in log if entry.kind == "tool_results"][-1]
    assert "Zanzibar" in str(results.payload)


# ── stores of another day ──


async def test_a_file_without_the_table_is_read_without_it_and_gets_it_when_it_is_written_to(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    async with SqliteStore(path) as store:
        world = World(store)
        await world.grow("s", 3)
        await store._tell("DROP TABLE snapshots")
    async with SqliteStore(path) as store:
        world.store = store
        assert not await check_same(world, "s")  # nobody has written yet: the file is as it was
        await world.grow("s", 1)
        assert await check_same(world, "s")
