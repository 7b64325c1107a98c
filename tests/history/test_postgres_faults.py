"""PostgreSQL that goes away in every phase: nothing acknowledged is lost, nothing is written twice, errors
say what happened, and the next call works."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from history.postgres_log import IDS, Log
from history.postgres_proxy import Proxy, Where
from postgres_server import NoPostgres, PostgresServer, start_server
from turnlog.contract import AgentError, digest
from turnlog.history import PostgresStore
from turnlog.history.postgres import _link as postgres_link
from turnlog.history.postgres import _pool as postgres_pool

WHERE: tuple[Where, ...] = ("before", "within", "after", "in the answer")


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[Proxy]:
    async with Proxy(postgres) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy, postgres: PostgresServer) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres.url(host=proxy.host))
    yield store
    await store.close()


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stays away is given up at once."""
    monkeypatch.setattr(postgres_pool, "_PATIENCE", 0.0)


async def begun(store: PostgresStore, *, leased: bool = False) -> tuple[Log, Any]:
    log = Log()
    lease = await store.claim(log.session_id, owner="me", ttl=60) if leased else None
    await store.append(log.session_id, log.header(), expected_tail=0, lease=lease)
    return log, lease


async def texts(store: PostgresStore, log: Log) -> list[str]:
    return [entry.payload.data["text"] for entry in (await store.load(log.session_id))[1:]]  # type: ignore[union-attr]


# ── appends ──


@pytest.mark.spec("H-4", "H-6")
@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("where", WHERE)
async def test_an_append_whose_connection_is_cut_is_written_once(
    store: PostgresStore, proxy: Proxy, where: Where, leased: bool
) -> None:
    log, lease = await begun(store, leased=leased)
    proxy.cut(b"marked", where)
    await store.append(log.session_id, log.notes("marked", "and on"), expected_tail=1, lease=lease)
    assert proxy.cuts == 1
    await store.append(log.session_id, log.notes("later"), expected_tail=3, lease=lease)
    assert await texts(store, log) == ["marked", "and on", "later"]


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("where", WHERE)
async def test_a_first_append_whose_connection_is_cut_is_written_once(
    store: PostgresStore, proxy: Proxy, where: Where
) -> None:
    await store.sessions()
    log = Log()
    proxy.cut(b"marked", where)
    await store.append(log.session_id, [*log.header("A title"), *log.notes("marked")], expected_tail=0)
    assert proxy.cuts == 1 and await texts(store, log) == ["marked"]


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("where", WHERE)
async def test_a_group_of_appends_whose_connection_is_cut_is_written_once(
    store: PostgresStore, proxy: Proxy, where: Where
) -> None:
    logs = [(await begun(store))[0] for _ in range(12)]
    proxy.cut(b"marked", where)
    await asyncio.gather(
        *(store.append(log.session_id, log.notes("marked"), expected_tail=1) for log in logs)
    )
    assert proxy.cuts == 1
    assert [await texts(store, log) for log in logs] == [["marked"]] * 12


@pytest.mark.spec("H-4", "L-8")
@pytest.mark.parametrize("where", WHERE)
async def test_an_append_that_is_cut_twice_fails_and_is_whole_or_not_there(
    store: PostgresStore, proxy: Proxy, where: Where
) -> None:
    log, _ = await begun(store)
    proxy.cut(b"marked", where, times=2)
    batch = log.notes("marked", "too")
    if where in ("before", "within"):
        with pytest.raises(AgentError, match=r"SessionWriteFailed: PostgreSQL at 127.0.0.1") as failed:
            await store.append(log.session_id, batch, expected_tail=1)
        assert "check that the server runs" in failed.value.message
        assert await texts(store, log) == []
        await store.append(log.session_id, batch, expected_tail=1)
    else:  # the second try found that the first had succeeded, and its answer held nothing of it
        with_error: list[AgentError] = []
        try:
            await store.append(log.session_id, batch, expected_tail=1)
        except AgentError as error:
            with_error.append(error)
        assert [error.code for error in with_error] in ([], ["SessionWriteFailed"])
    assert proxy.cuts == 2
    assert await texts(store, log) == ["marked", "too"]
    await store.append(log.session_id, log.notes("later"), expected_tail=3)


@pytest.mark.spec("H-4")
async def test_connections_cut_at_random_lose_nothing_and_write_nothing_twice(
    store: PostgresStore, proxy: Proxy
) -> None:
    logs = [(await begun(store))[0] for _ in range(4)]
    done = asyncio.Event()

    async def trouble() -> None:
        while not done.is_set():
            await asyncio.sleep(0.05)
            proxy.cut_all()

    async def write(log: Log) -> None:
        for number in range(8):
            batch, expected = log.notes(f"{number}"), log.seq - 1
            while True:  # as a caller does: again until it is acknowledged
                try:
                    await store.append(log.session_id, batch, expected_tail=expected)
                    break
                except AgentError as error:
                    assert error.code == "SessionWriteFailed", error  # noqa: PT017

    cutting = asyncio.ensure_future(trouble())
    await asyncio.gather(*map(write, logs))
    done.set()
    await cutting
    assert [await texts(store, log) for log in logs] == [[str(n) for n in range(8)]] * 4


# ── everything else ──


@pytest.mark.spec("H-6")
@pytest.mark.parametrize("where", WHERE)
async def test_every_other_call_survives_a_cut(store: PostgresStore, proxy: Proxy, where: Where) -> None:
    log, lease = await begun(store, leased=True)
    await store.append(log.session_id, log.notes("one"), expected_tail=1, lease=lease)
    name = log.session_id.encode()
    blob = f"bytes {where}".encode()
    branch = Log("fork-" + IDS.session())
    branch.seq = 2
    first = branch.notes("branched")
    calls: list[tuple[bytes, Callable[[], Awaitable[Any]]]] = [
        (name, lambda: store.tail(log.session_id)),
        (b"", lambda: store.read(log.session_id)),
        (b"", lambda: store.load(log.session_id, after=1)),
        (b"", store.sessions),
        (name, lambda: store.renew(lease)),
        (name, lambda: store.release(lease)),
        (b"another", lambda: store.claim(log.session_id, owner="another", ttl=60)),
        (blob, lambda: store.put_blob(blob)),
        (b"sha256", lambda: store.get_blob(f"sha256-{digest(blob)}")),
        (b"branched", lambda: store.fork(log.session_id, at=2, target=branch.session_id, first=first)),
    ]
    for cuts, (marker, call) in enumerate(calls, 1):
        proxy.cut(marker, where)
        await call()
        assert proxy.cuts == cuts
    assert [info.entries for info in await store.sessions()] == [3, 2]
    assert [entry.seq for entry in await store.load(branch.session_id)] == [1, 2, 3]


@pytest.mark.spec("H-9")
async def test_an_erasure_that_is_cut_is_done_again(store: PostgresStore, proxy: Proxy) -> None:
    log, _ = await begun(store)
    await store.append(log.session_id, log.notes("hide me"), expected_tail=1)
    body = (await store.read(log.session_id))[1].body.replace(b"hide me", b"blanked")
    proxy.cut(b"blanked", "after")
    await store.erase(log.session_id, {2: body})
    assert proxy.cuts == 1 and await texts(store, log) == ["blanked"]
    proxy.cut(b"VACUUM", "before")
    with pytest.raises(AgentError, match=r"old copies may remain.*purge again"):
        await store.erase(log.session_id, {2: body})
    await store.erase(log.session_id, {2: body})


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.usefixtures("no_patience")
async def test_a_connection_that_is_cut_while_it_is_made(
    store: PostgresStore, proxy: Proxy, where: Where
) -> None:
    proxy.cut(b"user", where)
    with pytest.raises(AgentError, match=r"SessionReadFailed: PostgreSQL at 127.0.0.1"):
        await store.tail("s1")
    for marker in (b"SET search_path", b"pg_advisory", b"CREATE TABLE entries", b"UPDATE format"):
        proxy.cut(marker, where, times=2)
        try:
            await store.tail("s1")
        except AgentError as error:
            assert error.code == "SessionReadFailed"  # noqa: PT017
    proxy.cut(b"", "before", times=0)
    assert await store.tail("s1") is None
    await begun(store)


@pytest.mark.spec("E-2")
async def test_a_server_that_is_down_is_said_to_be_and_works_again_later(
    store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await proxy.stop()
    with pytest.raises(AgentError, match=r"SessionReadFailed: PostgreSQL at 127.0.0.1.*refused.*server runs"):
        await store.load("s1")
    with pytest.raises(AgentError, match=r"SessionWriteFailed: PostgreSQL at 127.0.0.1.*refused"):
        await store.append("s1", Log("s1").header(), expected_tail=0)
    await proxy.start()
    log, _ = await begun(store)
    await proxy.stop()
    monkeypatch.setattr(postgres_pool, "_PATIENCE", 0.2)
    with pytest.raises(AgentError, match="SessionWriteFailed"):
        await store.append(log.session_id, log.notes("one"), expected_tail=1)
    monkeypatch.setattr(postgres_pool, "_PATIENCE", 20.0)
    waiting = asyncio.ensure_future(store.append(log.session_id, log.notes("x"), expected_tail=2))
    log.seq -= 1
    reading = asyncio.ensure_future(store.tail(log.session_id))
    await asyncio.sleep(0.1)
    await proxy.start()
    tail = await reading
    assert tail is not None and tail.seq == 1
    with pytest.raises(AgentError, match=r"SessionConcurrentWrite.*ends at entry 1"):
        await waiting


async def test_a_server_that_accepts_and_says_nothing_is_given_up(
    proxy: Proxy, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "_GRACE", 0.2)
    url = postgres.url(host=proxy.host)
    patient = PostgresStore(url)
    log, _ = await begun(patient)
    store = PostgresStore(url + "&connect_timeout=2", timeout=0.3)
    while True:  # until it has a connection: on a busy machine 0.3 s may be too short for that
        try:
            assert await store.tail(log.session_id) is not None
            break
        except AgentError as error:
            if "timeout" not in error.message:
                raise
    monkeypatch.setattr(postgres_pool, "_PATIENCE", 0.0)
    proxy.frozen = True
    batch = log.notes("one")
    with pytest.raises(AgentError, match=r"SessionWriteFailed.*timeout"):
        await store.append(log.session_id, batch, expected_tail=1)
    proxy.frozen = False
    await patient.append(log.session_id, batch, expected_tail=1)
    assert await texts(patient, log) == ["one"]
    await store.close()
    await patient.close()


async def test_connections_that_the_server_ended_are_replaced(
    store: PostgresStore, postgres: PostgresServer
) -> None:
    log, _ = await begun(store)
    await asyncio.gather(*(store.tail(log.session_id) for _ in range(5)))
    async with await _psycopg(postgres, store) as other:
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'turnlog' AND datname = current_database()"
        )
    await store.append(log.session_id, log.notes("one"), expected_tail=1)
    assert await texts(store, log) == ["one"]


async def _psycopg(postgres: PostgresServer, store: PostgresStore) -> psycopg.AsyncConnection[Any]:
    link = await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True)
    await link.execute(f"SET search_path TO {store.address.schema}".encode())
    return link


@pytest.mark.spec("H-4")
async def test_a_lock_that_someone_holds_is_waited_for_and_stops_nobody_else(
    postgres: PostgresServer,
) -> None:
    store = PostgresStore(postgres.url(), lock_timeout=0.3)
    locked, free = (await begun(store))[0], (await begun(store))[0]
    async with await _psycopg(postgres, store) as other, other.transaction():
        await other.execute("UPDATE sessions SET epoch = epoch WHERE id = %s", (locked.session_id,))
        batch = locked.notes("one")
        busy = asyncio.ensure_future(store.append(locked.session_id, batch, expected_tail=1))
        both = asyncio.ensure_future(store.append(free.session_id, free.notes("1"), expected_tail=1))
        await both
        with pytest.raises(AgentError, match=r"SessionBusy.*lock"):
            await busy
    await store.append(locked.session_id, batch, expected_tail=1)
    assert (await texts(store, locked), await texts(store, free)) == (["one"], ["1"])
    await store.close()


@pytest.mark.spec("H-6")
async def test_what_was_acknowledged_survives_a_crash_of_the_server() -> None:
    folder = Path(tempfile.mkdtemp(prefix="turnlog-crash-")) / "pg"
    folder.parent.chmod(0o755)
    try:
        server = await asyncio.to_thread(start_server, folder, os.getpid())
    except NoPostgres as error:
        pytest.skip(f"no PostgreSQL: {error}")
    try:
        store = PostgresStore(server.url())
        log, lease = await begun(store, leased=True)
        async with await _psycopg(server, store) as other:
            rows = await other.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'turnlog'")
            pids = [row[0] for row in await rows.fetchall()]
        for number in range(30):
            if number == 15:
                os.kill(pids[0], signal.SIGKILL)  # the server ends all others, and recovers from its log
            batch = log.notes(f"{number}")
            await store.append(log.session_id, batch, expected_tail=log.seq - 1, lease=lease)
        assert await texts(store, log) == [str(number) for number in range(30)]
        await store.renew(lease)
        await store.close()
    finally:
        await asyncio.to_thread(server.stop)
        folder.parent.rmdir()
