"""Files that were changed, cut short or locked behind a store's back, seen from a whole run."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from reliability.crash_world import SCENARIOS, SESSION, STORES, World
from turnlog import Agent
from turnlog.contract import AgentError, Entry, Store
from turnlog.history import JsonlStore, SqliteStore, open_store, verify
from turnlog.testing import ScriptedModel, check_session

FLIPS = 250


@pytest.fixture(params=["jsonl", "sqlite"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, list[Entry]]:
    """A finished session on a store that was closed: (kind of store, folder, its entries)."""
    folder = tmp_path / "made"
    folder.mkdir()
    world = World(folder=folder, url=STORES[request.param](folder), scenario=SCENARIOS["parallel"])

    async def live() -> list[Entry]:
        await world.live()
        store = open_store(world.url)
        entries = await store.load(SESSION)
        await store.close()
        return entries

    return request.param, folder, asyncio.run(live())


def data_file(kind: str, folder: Path) -> Path:
    return folder / "jsonl" / f"{SESSION}.jsonl" if kind == "jsonl" else folder / "turnlog.db"


async def look(url: str, entries: list[Entry]) -> str:
    """How a log that should be ``entries`` reads now: ``found`` damaged, ``harmless``, or ``silent``."""
    store = open_store(url)
    try:
        loaded = await store.load(SESSION)
        problems = await verify(store, SESSION)
    except AgentError:
        return "found"
    finally:
        await store.close()
    if problems:
        return "found"
    return "harmless" if loaded == entries else "silent"


@pytest.mark.spec("H-5")
def test_a_flipped_bit_is_found_or_does_not_matter(
    made: tuple[str, Path, list[Entry]], tmp_path: Path
) -> None:
    kind, folder, entries = made
    source = random.Random(kind)
    size = data_file(kind, folder).stat().st_size
    seen: Counter[str] = Counter()
    for number in range(FLIPS):
        copy = tmp_path / f"flipped-{number}"
        shutil.copytree(folder, copy)
        path = data_file(kind, copy)
        data = bytearray(path.read_bytes())
        place = source.randrange(size)
        data[place] ^= 1 << source.randrange(8)
        path.write_bytes(data)
        outcome = asyncio.run(look(STORES[kind](copy), entries))
        assert outcome != "silent", f"bit at {place} of {size} changed the log and nobody noticed"
        seen[outcome] += 1
        shutil.rmtree(copy)
    assert seen["found"] > 0
    if kind == "jsonl":  # it has no byte that means nothing
        assert seen["found"] == FLIPS


@pytest.mark.spec("H-5", "E-2")
async def test_a_run_on_a_damaged_log_is_refused_and_changes_nothing(
    made: tuple[str, Path, list[Entry]],
) -> None:
    kind, folder, _ = made
    path = data_file(kind, folder)
    data = path.read_bytes()
    place = data.index(b"paid 4")
    path.write_bytes(data[:place] + b"paid 9" + data[place + 6 :])
    store = open_store(STORES[kind](folder))
    problems = await verify(store, SESSION)
    assert problems and any(problem.seq is not None for problem in problems)
    if kind == "jsonl":
        agent = Agent(ScriptedModel(["never"]), store=store)
        with pytest.raises(AgentError, match="restore the file from a backup") as caught:
            await agent.run("More?", session=SESSION)
        assert caught.value.code == "SessionCorrupt"
        assert path.read_bytes() == data[:place] + b"paid 9" + data[place + 6 :]
    await store.close()


@pytest.mark.spec("H-5", "H-10")
def test_a_jsonl_file_cut_anywhere_is_a_shorter_log_that_can_be_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    world = World(folder=folder, url=STORES["jsonl"](folder), scenario=SCENARIOS["parallel"])
    asyncio.run(world.live())
    whole = data_file("jsonl", folder).read_bytes()
    ends = {at + 1 for at in range(len(whole)) if whole[at : at + 1] == b"\n"}
    source = random.Random(1)
    cuts = ends | {end - 1 for end in ends} | {source.randrange(len(whole)) for _ in range(15)}

    async def go_on(cut: int) -> None:
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(folder, copy)
        data_file("jsonl", copy).write_bytes(whole[:cut])
        (copy / "outside.jsonl").unlink()
        again = World(folder=copy, url=STORES["jsonl"](copy), scenario=SCENARIOS["parallel"])
        await again.live()
        store = open_store(again.url)
        await check_session(store, SESSION)
        await store.close()
        shutil.rmtree(copy)

    for cut in sorted(cuts):
        asyncio.run(go_on(cut))


@pytest.mark.spec("H-5", "H-10")
def test_an_sqlite_log_cut_anywhere_is_a_shorter_log_that_can_be_gone_on_with(tmp_path: Path) -> None:
    """The write-ahead log, copied while its writer was alive, cut at and between its frames."""
    folder = tmp_path / "made"
    folder.mkdir()
    scenario = SCENARIOS["parallel"]

    async def live_and_copy() -> None:
        held = SqliteStore(folder / "turnlog.db")
        await held.put_blob(b"")  # a second connection: the log is not folded into the file on close
        await World(folder=folder, url=STORES["sqlite"](folder), scenario=scenario).live()
        shutil.copytree(folder, tmp_path / "copied")
        await held.close()

    asyncio.run(live_and_copy())
    whole = (tmp_path / "copied" / "turnlog.db-wal").read_bytes()
    frames = range(32, len(whole), 4096 + 24)
    source = random.Random(2)
    cuts = [*source.sample(list(frames), 12), *(source.randrange(len(whole)) for _ in range(12))]

    async def go_on(cut: int) -> None:
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "copied", copy, ignore=shutil.ignore_patterns("*-shm", "outside.jsonl"))
        (copy / "turnlog.db-wal").write_bytes(whole[:cut])
        again = World(folder=copy, url=STORES["sqlite"](copy), scenario=scenario)
        await again.live()
        store = open_store(again.url)
        await check_session(store, SESSION)
        await store.close()
        shutil.rmtree(copy)

    for cut in cuts:
        asyncio.run(go_on(cut))


# ── locked by another ──


def hold_jsonl(folder: Path) -> Callable[[], None]:
    descriptor = os.open(folder / "jsonl" / f"{SESSION}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return lambda: os.close(descriptor)


def hold_sqlite(folder: Path) -> Callable[[], None]:
    connection = apsw.Connection(str(folder / "turnlog.db"))
    connection.execute("BEGIN IMMEDIATE")
    return connection.close


def impatient(kind: str, folder: Path) -> Store:
    if kind == "jsonl":
        return JsonlStore(folder / "jsonl", busy_timeout=0.05)
    return SqliteStore(folder / "turnlog.db", busy_timeout=0.05)


@pytest.mark.spec("H-4", "L-8", "H-10")
@pytest.mark.parametrize(("kind", "hold"), [("jsonl", hold_jsonl), ("sqlite", hold_sqlite)])
async def test_a_store_that_stays_locked_ends_the_run_and_it_goes_on_later(
    kind: str, hold: Callable[[Path], Callable[[], None]], tmp_path: Path
) -> None:
    """Somebody else's lock, taken in the middle of a run and kept: no entry is lost, no tool runs twice."""
    world = World(folder=tmp_path, url=STORES[kind](tmp_path), scenario=SCENARIOS["one_tool"])
    agent = world.agent(impatient(kind, tmp_path))
    let_go: Callable[[], None] | None = None
    events = []
    async for event in agent.run_stream("Go.", session=SESSION):
        events.append(event)
        if event.kind == "tool_started":
            let_go = hold(tmp_path)
    assert let_go is not None
    result = events[-1].result
    assert (result.status, result.last_error.code) == ("failed", "SessionBusy")
    assert world.outside.record().effects
    let_go()
    await agent.close()
    await world.live()
    await world.check()
