"""The SQLite store: its file, its errors, its threads."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from history.history_log import code_of, open_session
from turnlog.contract import AgentError, Custom, Store, StoredEntry, seal, user_message
from turnlog.history import MemoryStore, Session, SqliteStore, verify
from turnlog.system import SystemClock, SystemIds

IDS = SystemIds()


def notes(session_id: str, *texts: str, after: int = 0) -> list[StoredEntry]:
    """Entries that no session sealed together; stores do not look inside."""
    return [
        seal(
            Custom(name="note", data={"text": text}),
            id=IDS.entry(),
            previous_id=None,
            previous_hash="",
            session_id=session_id,
            seq=after + place,
            timestamp=SystemClock().now(),
        ).stored
        for place, text in enumerate(texts, 1)
    ]


def count_commits(path: Path) -> int:
    """Transactions in the write-ahead log: frames whose header says that they end one."""
    data = Path(f"{path}-wal").read_bytes()
    frame = 24 + int.from_bytes(data[8:12], "big")
    return sum(data[at + 4 : at + 8] != b"\0\0\0\0" for at in range(32, len(data), frame))


async def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.db"
    store = SqliteStore(path)
    assert await store.sessions() == []
    assert await store.tail("s1") is None
    with pytest.raises(AgentError, match="SessionNotFound"):
        await store.load("s1")
    assert not path.parent.exists()
    await store.append("s1", notes("s1", "a"), expected_tail=0)
    for name in ("log.db", "log.db-wal"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.close()
    assert sorted(os.listdir(path.parent)) == ["log.db"]


@pytest.mark.spec("H-6")
async def test_every_append_is_synced_in_full(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    await store.append("s1", notes("s1", "a"), expected_tail=0)
    connection: Any = store._writer._connection
    assert connection is not None

    def settings() -> list[Any]:
        names = ("journal_mode", "synchronous", "secure_delete", "application_id", "user_version")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await store._writing.do(settings) == ["wal", 2, 1, 0x74726E6C, 2]
    await store.close()


async def test_appends_that_wait_share_a_transaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    await store.append("warm", notes("warm", "a"), expected_tail=0)
    before = count_commits(tmp_path / "log.db")
    inside, gate = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        gate.wait()

    held = asyncio.ensure_future(store._writing.do(hold))
    assert await asyncio.to_thread(inside.wait, 120)
    names = [f"s{n}" for n in range(64)]
    appends = [asyncio.ensure_future(store.append(n, notes(n, "a", "b"), expected_tail=0)) for n in names]
    wrong = asyncio.ensure_future(store.append("warm", notes("warm", "x", after=9), expected_tail=9))
    clash = notes("clash", "x")
    clash = [clash[0]._replace(id=(await store.read("warm"))[0].id)]
    taken = asyncio.ensure_future(store.append("clash", clash, expected_tail=0))
    await asyncio.sleep(0.05)
    gate.set()
    await held
    outcomes = await asyncio.gather(*appends, wrong, taken, return_exceptions=True)
    assert outcomes[:64] == [None] * 64
    assert [getattr(error, "code", None) for error in outcomes[64:]] == [
        "SessionConcurrentWrite",
        "InvalidEntry",
    ]
    one_by_one = count_commits(tmp_path / "log.db") - before
    assert len(await store.sessions()) == 65
    assert one_by_one == 64  # the clash made all go alone
    gate.clear()
    inside.clear()
    held = asyncio.ensure_future(store._writing.do(hold))
    assert await asyncio.to_thread(inside.wait, 120)
    before = count_commits(tmp_path / "log.db")
    appends = [asyncio.ensure_future(store.append(n, notes(n, "c", after=2), expected_tail=2)) for n in names]
    await asyncio.sleep(0.05)
    gate.set()
    await asyncio.gather(held, *appends)
    assert count_commits(tmp_path / "log.db") - before == 1
    await store.close()


async def test_an_append_is_not_acknowledged_before_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store, other = SqliteStore(path, busy_timeout=30), apsw.Connection(str(path))
    await store.append("s1", notes("s1", "a"), expected_tail=0)
    other.execute("BEGIN IMMEDIATE")
    pending = asyncio.ensure_future(store.append("s1", notes("s1", "b", after=1), expected_tail=1))
    await asyncio.sleep(0.2)
    assert not pending.done()
    assert len(await store.read("s1")) == 1  # readers do not wait
    other.execute("ROLLBACK")
    await pending
    assert len(await store.read("s1")) == 2
    other.close()
    await store.close()


async def test_a_file_that_stays_locked_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = SqliteStore(path, busy_timeout=0.1)
    await store.append("s1", notes("s1", "a"), expected_tail=0)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(AgentError) as error:
        await store.append("s1", notes("s1", "b", after=1), expected_tail=1)
    assert (code_of(error), error.value.retryable) == ("SessionBusy", True)
    with pytest.raises(AgentError, match="SessionBusy"):
        await store.claim("s1", owner="a", ttl=1)
    other.execute("ROLLBACK")
    other.close()
    await store.append("s1", notes("s1", "b", after=1), expected_tail=1)
    await store.close()


@pytest.mark.spec("H-8")
async def test_a_file_of_a_newer_turnlog_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with SqliteStore(path) as store:
        await store.append("s1", notes("s1", "a"), expected_tail=0)
    with apsw.Connection(str(path)) as newer:
        newer.execute("PRAGMA user_version = 7")
    newer.close()
    before = path.read_bytes()
    async with SqliteStore(path) as store:
        for act in (store.sessions(), store.append("s1", notes("s1", "b", after=1), expected_tail=1)):
            with pytest.raises(AgentError, match=r"made by a newer turnlog.*upgrade turnlog") as error:
                await act
            assert code_of(error) == "SessionMigrationFailed"
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["text", "foreign", "truncated", "zeroed", "folder", "unreadable"])
async def test_what_is_not_our_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "log.db"
    expected = {"SessionCorrupt"}
    if damage == "text":
        path.write_text("hello, this is no database at all " * 50)
    elif damage == "foreign":
        foreign = apsw.Connection(str(path))
        foreign.execute("CREATE TABLE sessions (key); INSERT INTO sessions VALUES (1)")
        foreign.close()
    elif damage == "folder":
        path.mkdir()
        expected = {"SessionReadFailed", "SessionWriteFailed"}
    else:
        async with SqliteStore(path) as store:
            await store.append("s1", notes("s1", *("x" * 3000 for _ in range(40))), expected_tail=0)
        data = path.read_bytes()
        if damage == "truncated":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "zeroed":
            path.write_bytes(data[:4096] + b"\0" * (len(data) - 4096))
        else:
            path.write_bytes(b"\0" * len(data))
    before = path.read_bytes() if path.is_file() else b""
    async with SqliteStore(path) as store:
        for act in (store.load("s1"), store.append("s1", notes("s1", "b", after=40), expected_tail=40)):
            with pytest.raises(AgentError) as error:
                await act
            assert code_of(error) in expected
            assert str(path) in error.value.message
        if damage != "folder":
            assert [problem.code for problem in await verify(store, "s1")] == ["unreadable"]
    assert (path.read_bytes() if path.is_file() else b"") == before


FULL = """
import asyncio, resource, sys
from turnlog.contract import AgentError, user_message
from turnlog.history import Session, open_store, verify
from turnlog.system import SystemClock, SystemIds

async def main(url):
    store = open_store(url)
    session = await Session.open(store, "s1", clock=SystemClock(), ids=SystemIds())
    session.append_model_input(user_message("before"))
    await session.commit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    failed = 0
    for number in range(60):
        session.append_model_input(user_message(f"{number} " + "x" * 20_000))
        try:
            await session.commit()
        except AgentError as error:
            assert error.code == "SessionWriteFailed", error
            failed += 1
    kept = len(session.entries)
    assert failed and kept < 62, (failed, kept)
    try:
        await store.put_blob(b"y" * 400_000)
    except AgentError as error:
        assert error.code == "SessionWriteFailed", error
    else:
        sys.exit("a blob larger than the disk was stored")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await store.load("s1") == session.entries
    session.append_model_input(user_message("after"))
    await session.commit()
    await store.close()
    again = open_store(url)
    assert await again.load("s1") == session.entries
    assert await verify(again, "s1") == []
    await again.close()
    print(kept)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("url", ["sqlite:{}/log.db", "jsonl:{}/logs"])
async def test_a_full_disk_loses_nothing(tmp_path: Path, url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", FULL, url.format(tmp_path)]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, "")


async def _turns(store: Store, session_id: str, count: int) -> Session:
    session = await Session.open(store, session_id, clock=SystemClock(), ids=IDS)
    for number in range(count):
        session.append_model_input(user_message(f"turn {number}"))
        await session.commit()
    return session


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts open files the Linux way")
def test_one_store_serves_several_event_loops_in_turn(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    open_files = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        asyncio.run(_turns(store, f"s{number}", 2))
    assert len(os.listdir("/proc/self/fd")) <= open_files + 12
    assert len(asyncio.run(store.sessions())) == 20
    asyncio.run(store.close())
    assert len(os.listdir("/proc/self/fd")) <= open_files + 1


def test_one_store_serves_several_event_loops_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            session = asyncio.run(_turns(store, f"s{number}", 10))
            assert asyncio.run(verify(store, session.session_id)) == []
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [info.entries for info in asyncio.run(store.sessions())] == [11] * 6
    asyncio.run(store.close())


async def test_a_store_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    import gc

    def running() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("turnlog-sqlite")]

    before = set(running())  # those of other tests may end meanwhile
    store = SqliteStore(tmp_path / "log.db")
    await _turns(store, "s1", 1)
    await store.tail("s1")
    mine = set(running()) - before
    assert len(mine) == 2
    del store
    gc.collect()
    for thread in mine:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in mine)


async def test_a_closed_store_opens_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    await _turns(store, "s1", 1)
    await store.close()
    await _turns(store, "s1", 1)
    assert len(await store.read("s1")) == 3
    await store.close()


FORKED = """
import asyncio, os, sys
from turnlog.contract import user_message
from turnlog.history import Session, SqliteStore, verify
from turnlog.system import SystemClock, SystemIds

async def turn(store, name):
    session = await Session.open(store, name, clock=SystemClock(), ids=SystemIds())
    session.append_model_input(user_message("hello"))
    await session.commit()

store = SqliteStore(sys.argv[1])
asyncio.run(turn(store, "parent"))
child = os.fork()
if child == 0:
    asyncio.run(turn(store, "child"))
    os._exit(0)
asyncio.run(turn(store, "parent"))
assert os.waitpid(child, 0)[1] == 0
assert {info.session_id: info.entries for info in asyncio.run(store.sessions())} == {"parent": 3, "child": 2}
assert asyncio.run(verify(store, "child")) == []
asyncio.run(store.close())
"""


def test_a_forked_process_opens_the_file_anew(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "log.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_tampered_row_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with SqliteStore(path) as store:
        await _turns(store, "s1", 3)
    raw = apsw.Connection(str(path))
    raw.execute("DELETE FROM entries WHERE place & 4294967295 = 3")
    raw.close()
    async with SqliteStore(path) as store:
        with pytest.raises(AgentError, match="entry 3 is missing") as error:
            await store.load("s1")
        assert code_of(error) == "SessionCorrupt"
        first, *_ = await verify(store, "s1")
        assert (first.code, first.seq) == ("gap", 3)


async def test_loading_costs_one_query_and_gives_what_memory_gives(tmp_path: Path) -> None:
    memory = MemoryStore()
    async with SqliteStore(tmp_path / "log.db") as store:
        session = await open_session(store)
        for number in range(50):
            session.append_model_input(user_message(f"{number}"))
        await session.commit()
        await memory.append("s1", await store.read("s1"), expected_tail=0)
        assert await store.load("s1") == await memory.load("s1")
        assert await store.load("s1", after=40) == (await memory.load("s1"))[40:]


async def test_a_file_that_was_changed_while_the_store_was_closed_is_read_as_it_is_now(
    tmp_path: Path,
) -> None:
    for name, sessions in (("log.db", ("s1", "s2")), ("other.db", ("s2", "s1"))):
        async with SqliteStore(tmp_path / name) as store:
            for session_id in sessions:
                await store.append(session_id, notes(session_id, f"{session_id} of {name}"), expected_tail=0)
    store = SqliteStore(tmp_path / "log.db")
    assert b"s1 of log.db" in (await store.read("s1"))[-1].body
    await store.close()
    (tmp_path / "other.db").replace(tmp_path / "log.db")
    assert b"s1 of other.db" in (await store.read("s1"))[-1].body
    await store.close()


async def test_a_file_that_no_writer_opened_since_snapshots_came_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    store = SqliteStore(path)
    await store.put_blob(b"made")
    await store.close()
    connection = apsw.Connection(str(path))
    connection.execute("DROP TABLE snapshots")
    connection.close()
    store = SqliteStore(path)
    assert await store.read_snapshot("s1") is None
    await store.close()
