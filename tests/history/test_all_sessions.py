"""What a store answers for all sessions beyond what every store is checked for: older files, time, hints."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from history.history_log import STARTED, open_session
from history.postgres_log import Log
from postgres_server import PostgresServer
from turnlog.contract import AgentError, Control, SessionDigest, Store, user_message
from turnlog.history import JsonlStore, PostgresStore, SqliteStore, open_store, verify
from turnlog.history.jsonl._lock import locked
from turnlog.history.postgres import _statements
from turnlog.testing import FixedClock, FixedIds

OLD_TABLES = (
    """CREATE TABLE sessions (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  tail_seq BIGINT NOT NULL DEFAULT 0, tail_id TEXT, tail_hash TEXT, title TEXT, created_at TEXT,
  updated_at TEXT, parent BIGINT REFERENCES sessions (key), forked_at BIGINT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0, owner TEXT, lease_until DOUBLE PRECISION NOT NULL DEFAULT 0)""",
    """CREATE TABLE entries (place INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  body BLOB NOT NULL)""",
    "CREATE TABLE blobs (name TEXT NOT NULL PRIMARY KEY, data BLOB NOT NULL)",
    "PRAGMA application_id = 0x74726E6C",
    "PRAGMA user_version = 1",
)


async def _open_run(store: Store, session_id: str = "s1") -> None:
    session = await open_session(store, session_id, title="Old")
    session.start_run("r1", STARTED)
    session.append_model_input(user_message("Pay the bill"))
    await session.commit()


async def _old_file(path: Path) -> None:
    """A file as version 1 wrote it, with a session whose run is open."""
    new = SqliteStore(path.with_name("new.db"))
    await _open_run(new)
    rows = await new.read("s1")
    tail = await new.tail("s1")
    assert tail is not None
    await new.close()
    connection = apsw.Connection(str(path))
    for statement in OLD_TABLES:
        connection.execute(statement)
    times = ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:05.000Z")
    connection.execute(
        "INSERT INTO sessions (key, id, tail_seq, tail_id, tail_hash, title, created_at, updated_at) "
        "VALUES (1, 's1', ?, ?, ?, 'Old', ?, ?)",
        (tail.seq, tail.id, tail.hash, *times),
    )
    connection.executemany(
        "INSERT INTO entries VALUES (?, ?, ?, ?)", [(1 << 32 | r.seq, r.id, r.kind, r.body) for r in rows]
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()


@pytest.mark.spec("H-8", "H-15")
async def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    await _old_file(tmp_path / "old.db")
    async with SqliteStore(tmp_path / "old.db") as store:
        [info] = await store.sessions(status="preparing")
        assert (info.session_id, info.title, info.about, info.run_id) == ("s1", "Old", "Pay the bill", "r1")
        assert await store.due(5, now="2026-01-02T00:00:00Z") == ["s1"]
        session = await open_session(store, ids=FixedIds(prefix="later"))
        session.append_custom("note", {})
        await session.commit()
        await store.post(_control("c1"))
        assert [control.id for control in await store.posted()] == ["c1"]


_READ = """
import asyncio, os, sys
from turnlog.history import open_store
async def main():
    first = open_store("sqlite:" + sys.argv[2])  # loads what this user may load
    await first.claim("s1", owner="a", ttl=1)
    await first.sessions()
    await first.close()
    os.setuid(65534)
    store = open_store("sqlite:" + sys.argv[1])
    [info] = await store.sessions()
    print(info.about, len(await store.read("s1")), await store.posted(), len(await store.pending()))
    try:
        await store.claim("s1", owner="a", ttl=1)
    except Exception as error:
        print(error.code)
asyncio.run(main())
"""


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("old", [True, False])
async def test_a_store_in_a_folder_that_is_read_only_can_be_read(old: bool, tmp_path: Path) -> None:
    folder = Path("/tmp") / f"turnlog-read-only-{os.getpid()}-{old}"
    folder.mkdir()
    path = folder / "log.db"
    try:
        if old:
            await _old_file(path)
            (folder / "new.db").unlink()
        else:
            async with SqliteStore(path) as store:
                await _open_run(store)
        path.chmod(0o444)
        folder.chmod(0o555)
        out = await asyncio.to_thread(
            subprocess.check_output,
            [sys.executable, "-c", _READ, str(path), str(tmp_path / "other.db")],
            text=True,
        )
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert out.splitlines() == ["Pay the bill 3 [] 0", "SessionWriteFailed"]


@pytest.mark.spec("H-8", "H-15")
async def test_tables_of_the_first_version_are_brought_up_to_date(postgres: PostgresServer) -> None:
    import psycopg

    url = postgres.url()
    store = PostgresStore(url)
    schema = store.address.schema
    log = Log()
    batch = [*log.header("Old"), *log.notes("x")]
    async with await psycopg.AsyncConnection.connect(store.address.dsn.reveal(), autocommit=True) as other:
        await other.execute(f"CREATE SCHEMA {schema}".encode())
        await other.execute(f"SET search_path TO {schema}".encode())
        for statement in (
            "CREATE TABLE format (version INTEGER NOT NULL)",
            "INSERT INTO format VALUES (1)",
            *_statements.MIGRATIONS[0],
        ):
            await other.execute(statement.encode())
        await other.execute(
            "INSERT INTO sessions (id, tail_seq, tail_id, tail_hash, title, created_at, updated_at) "
            "VALUES (%s, 2, %s, 'h', 'Old', 'a', 'b')",
            (log.session_id, batch[-1].id),
        )
        for row in batch:
            await other.execute(
                "INSERT INTO entries VALUES (%s, %s, %s, %s)", (1 << 32 | row.seq, row.id, row.kind, row.body)
            )
    async with store:
        [info] = await store.sessions(status="idle")
        assert (info.session_id, info.title, info.pending) == (log.session_id, "Old", 0)
        digest = SessionDigest(status="failed", about="Told")
        await store.append(log.session_id, log.notes("y"), expected_tail=2, digest=digest)
        [info] = await store.sessions(status="failed")
        assert info.about == "Told"


def _control(id: str, session_id: str = "s1") -> Control:
    return Control(id=id, session_id=session_id, kind="send", data={}, created_at="2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_an_answer_that_nobody_collects_is_dropped_after_a_day(url: str, tmp_path: Path) -> None:
    clock = FixedClock()
    store = open_store(url.format(tmp_path), clock=clock)
    for id in ("c1", "c2", "c3"):
        await store.post(_control(id))
    await store.answer_control("c1", {"n": 1})
    clock.advance(23 * 3600)
    await store.answer_control("c2", {"n": 2})
    assert await store.take_answer("c2") == {"n": 2}
    clock.advance(2 * 3600)
    await store.answer_control("c3", {"n": 3})
    assert await store.take_answer("c1") is None
    assert await store.take_answer("c3") == {"n": 3}
    await store.close()


async def test_who_waits_for_a_control_hears_of_it_from_another_process(postgres_url: str) -> None:
    driver, client = PostgresStore(postgres_url), PostgresStore(postgres_url)
    waiting = [
        asyncio.ensure_future(driver.wait_for_post(60)),
        asyncio.ensure_future(driver.wait_for_change("s1", 0, 60)),
    ]
    for _ in range(2_000):
        if driver._side()._bell._link is not None:  # listening
            break
        await asyncio.sleep(0.01)
    await client.post(_control("c1"))
    await asyncio.wait_for(asyncio.gather(*waiting), 120)
    assert [control.id for control in await driver.posted()] == ["c1"]
    await driver.close()
    await client.close()


async def test_one_session_that_is_locked_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with JsonlStore(tmp_path, busy_timeout=200) as store:
        free, held = Log(), Log()
        for log in (free, held):
            await store.append(log.session_id, log.header(), expected_tail=0)
        with locked(str(tmp_path / f"{held.session_id}.lock")):
            late = asyncio.ensure_future(store.append(held.session_id, held.notes("x"), expected_tail=1))
            await asyncio.sleep(0.02)
            await asyncio.wait_for(store.append(free.session_id, free.notes("x"), expected_tail=1), 120)
            assert not late.done()
        await late
        assert len(await store.read(held.session_id)) == 2


@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_forks_of_forks_can_be_a_thousand_deep(url: str, tmp_path: Path) -> None:
    store = open_store(url.format(tmp_path))
    log = Log()
    await store.append(log.session_id, log.header(), expected_tail=0)
    source = log.session_id
    for depth in range(1_100):
        target = f"fork-{depth}"
        await store.fork(source, at=log.seq, target=target, first=log.notes("x"))
        source = target
    assert len(await store.read(source)) == 1_101
    assert len(await store.load(source, after=1_000)) == 101
    await store.close()


async def test_what_a_store_remembers_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from turnlog.history import _base
    from turnlog.history.jsonl import _folder

    monkeypatch.setattr(_base, "KNOWN_SESSIONS", 5)
    monkeypatch.setattr(_folder, "_KNOWN_LOGS", 5)
    for store in (SqliteStore(tmp_path / "log.db"), JsonlStore(tmp_path / "logs")):
        for _ in range(12):
            log = Log()
            await store.append(log.session_id, log.header(), expected_tail=0)
            assert len(await store.read(log.session_id)) == 1
        assert len(await store.sessions()) == 12
        assert max(_sizes(store)) <= 5
        await store.close()


def _sizes(store: Any) -> list[int]:
    """Of everything in the store, and in what it is made of, that has a size."""
    parts = [store, *(getattr(store, name, None) for name in ("_writer", "_reader", "_files"))]
    found = [value for part in parts if part is not None for value in vars(part).values()]
    return [len(value) for value in found if isinstance(value, dict | set | list)]


async def test_a_session_that_its_index_lost_is_not_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with SqliteStore(path) as store:
        await _open_run(store)
    connection: Any = apsw.Connection(str(path))
    [(page,)] = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name LIKE 'sqlite_autoindex_sessions%'"
    )
    [(size,)] = connection.execute("PRAGMA page_size")
    connection.close()
    data = bytearray(path.read_bytes())
    end = page * size
    data[end - 512 : end] = bytes(512)  # the sector in which the index has its last keys
    path.write_bytes(data)
    async with SqliteStore(path) as store:
        with pytest.raises(AgentError, match="not found by its id") as error:
            await store.append("s1", Log("s1").header(), expected_tail=0)
        assert error.value.code == "SessionCorrupt"
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT count(*) FROM sessions NOT INDEXED").fetchone() == (1,)


async def test_a_sector_of_zeros_is_named_wherever_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = Log("s1")
    async with SqliteStore(path) as store:
        await store.append("s1", [*log.header("t"), *log.notes(*["x" * 300] * 20)], expected_tail=0)
        await store.sessions()
    whole = path.read_bytes()
    problems = 0
    for at in range(0, len(whole), 512):
        if not any(whole[at : at + 512]):
            continue
        path.write_bytes(whole[:at] + bytes(512) + whole[at + 512 :])
        async with SqliteStore(path) as store:
            problems += bool(await verify(store, "s1"))
            asked = (store.load("s1"), store.sessions(), store.pending(), store.tail("s1"))
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                assert not isinstance(answer, BaseException) or answer.code == "SessionCorrupt"  # pyright: ignore
            with pytest.raises(AgentError) as error:
                await store.append("s1", Log("s1").header(), expected_tail=0)
            assert error.value.code in ("SessionCorrupt", "SessionConcurrentWrite")
    assert problems > 10
