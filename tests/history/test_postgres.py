"""PostgreSQL keeps the store promise; and what is its own: versions, passwords, loops, groups, erasing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from history.postgres_log import Log
from loop.scenarios import SESSION, TRACES, Stage
from postgres_server import GUEST, GUEST_PASSWORD, PostgresServer
from turnlog.contract import AgentError, SessionHeader, scrub
from turnlog.history import PostgresStore, open_store, verify
from turnlog.history.postgres import _loop as postgres_loop
from turnlog.testing import FixedClock, check_trace

GOLDEN = Path(__file__).parent.parent / "golden" / "traces"


async def connect(postgres: PostgresServer, store: PostgresStore) -> psycopg.AsyncConnection[Any]:
    """A connection beside the store's, in its schema."""
    link = await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True)
    await link.execute(f"SET search_path TO {store.address.schema}".encode())
    return link


async def begun(store: PostgresStore, title: str | None = None) -> Log:
    log = Log()
    await store.append(log.session_id, log.header(title), expected_tail=0)
    return log


@pytest.mark.spec("H-6", "H-11")
@pytest.mark.parametrize("trace", ["G-2", "G-4", "G-7", "G-9", "G-17"])
async def test_runs_write_the_same_bytes_as_in_memory(postgres_url: str, trace: str) -> None:
    async with PostgresStore(postgres_url) as store:
        stage = Stage(store=store)
        await TRACES[trace][1](stage)
        check_trace(GOLDEN / f"{trace.lower()}_{TRACES[trace][0]}.jsonl", await store.load(SESSION))
        assert await verify(store, SESSION) == []


# ── tables ──


async def test_many_that_open_an_empty_database_at_once_make_one_set_of_tables(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(8)]
    logs = await asyncio.gather(*map(begun, stores))
    assert len(await stores[0].sessions()) == len(logs)
    for store in stores:
        await store.close()


@pytest.mark.spec("H-8")
async def test_tables_of_a_newer_version_are_refused_untouched(
    postgres: PostgresServer, postgres_url: str
) -> None:
    async with PostgresStore(postgres_url) as store:
        await begun(store)
        async with await connect(postgres, store) as link:
            await link.execute("UPDATE format SET version = 99")
    async with PostgresStore(postgres_url) as newer:
        for act in (newer.sessions(), newer.append("s", Log("s").header(), expected_tail=0)):
            with pytest.raises(AgentError, match=r"newer turnlog \(format 99.*upgrade turnlog") as refused:
                await act
            assert refused.value.code == "SessionMigrationFailed"
        async with await connect(postgres, newer) as link:
            found = await (
                await link.execute("SELECT count(*), max(version) FROM sessions, format")
            ).fetchall()
    assert found == [(1, 99)]


async def test_tables_live_in_a_schema_of_their_own(postgres: PostgresServer) -> None:
    one, two = PostgresStore(postgres.url()), PostgresStore(postgres.url(), schema="chosen_by_hand")
    assert two.address.schema == "chosen_by_hand"
    log = await begun(one)
    assert await two.tail(log.session_id) is None
    async with await connect(postgres, one) as link:
        found = await (
            await link.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        ).fetchall()
    assert found == []
    for store in (one, two):
        await store.close()


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: PostgresServer) -> None:
    name = f"latin_{postgres.database}"
    store = PostgresStore(postgres.url().replace(f"/{postgres.database}?", f"/{name}?"))
    async with await connect(postgres, store) as link:
        await link.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0".encode())
    with pytest.raises(AgentError, match=r"ConfigInvalid.*LATIN1.*UTF8"):
        await store.sessions()
    await store.close()


async def test_appends_are_synchronous_also_where_the_server_says_otherwise(postgres: PostgresServer) -> None:
    url = f"{postgres.url()}&options=-csynchronous_commit%3Doff"
    async with PostgresStore(url) as store:
        log = await begun(store)
        lease = await store.claim(log.session_id, owner="me", ttl=60)
        await store.append(log.session_id, log.notes("x"), expected_tail=1, lease=lease)
        side = store._side()
        for pool in (side._writing, side._pool):
            rows = await pool.do("read", lambda link: link.rows(b"SHOW synchronous_commit", ()))
            assert rows == [("on",)]


@pytest.mark.spec("M-4")
async def test_titles_and_ids_of_any_text(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        log = Log("späte Sitzung 🌒 %s ?")
        title = "NUL \0, quote ' and 🌒"
        await store.append(log.session_id, [*log.header(title), *log.notes("a\0b\u2028")], expected_tail=0)
        assert [(info.session_id, info.title) for info in await store.sessions()] == [(log.session_id, title)]
        entries = await store.load(log.session_id)
        assert isinstance(entries[0].payload, SessionHeader) and entries[0].payload.title == title
        assert await store.tail("no\0such") is None
        with pytest.raises(AgentError, match="SessionNotFound"):
            await store.read("no\ud800such")
        with pytest.raises(AgentError, match="SessionReadFailed"):
            await store.get_blob("no\0such")
        bad = [stored._replace(id="NUL \0") for stored in log.notes("x")]
        with pytest.raises(AgentError, match="InvalidEntry"):
            await store.append(log.session_id, bad, expected_tail=2)


# ── getting in ──


@pytest.mark.spec("E-2", "E-3")
@pytest.mark.parametrize("password", ["wrong-horse-battery", "pw", "p%40ss:w%2Frd!"])
async def test_a_wrong_password_is_said_without_the_password(postgres: PostgresServer, password: str) -> None:
    store = open_store(postgres.url(user=f"{GUEST}:{password}"))
    assert password not in repr(store)
    with pytest.raises(
        AgentError, match=r"ConfigInvalid.*password authentication failed.*PGPASSWORD"
    ) as failed:
        await store.sessions()
    error: BaseException | None = failed.value
    while error is not None:
        assert password not in repr(error) and password not in str(error)
        error = error.__cause__
    await store.close()


async def test_the_right_password_works_and_is_guarded(postgres: PostgresServer) -> None:
    async with PostgresStore(postgres.url(user=f"{GUEST}:{GUEST_PASSWORD}")) as store:
        await begun(store)
    assert GUEST_PASSWORD not in scrub(f"it is {GUEST_PASSWORD}")


@pytest.mark.spec("E-2", "E-3")
@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgresql://postgres@/nowhere?{}", "ConfigInvalid", "make the role and the database"),
        ("postgresql://stranger@/postgres?{}", "ConfigInvalid", "make the role and the database"),
        ("postgresql://postgres:pw1@127.0.0.1:1/x", "SessionReadFailed", "check that the server runs"),
        ("postgresql://postgres:pw1@/x?frob=1", "ConfigInvalid", "frob"),
        ("postgresql://postgres:pw1%zz@/x", "ConfigInvalid", "cannot be read"),
    ],
)
async def test_what_keeps_us_out_is_named(postgres: PostgresServer, url: str, code: str, said: str) -> None:
    store = open_store(url.format(f"host={postgres.folder}"))
    with pytest.raises(AgentError, match=said) as failed:
        await store.sessions()
    assert failed.value.code == code
    assert "pw1" not in str(failed.value) + repr(failed.value.cause)
    await store.close()


@pytest.mark.parametrize("url", ["postgresql://u:pw1@[::1/x", "postgresql://u:pw1@h/x?schema=Bad-Name"])
def test_a_wrong_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(AgentError, match="ConfigInvalid") as failed:
        open_store(url)
    assert "pw1" not in str(failed.value)


def test_without_the_driver_the_extra_to_install_is_named() -> None:
    script = """
import asyncio, sys
sys.modules["psycopg"] = None
from turnlog.history import open_store
store = open_store("postgresql://u@h/x")
try:
    asyncio.run(store.sessions())
except Exception as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.startswith("PluginMissing: ")
    assert "pip install 'turnlog[postgres]'" in done.stdout


# ── event loops, threads, processes ──


def test_any_event_loop_of_any_thread_may_use_it(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    log = asyncio.run(begun(store))
    failures: list[BaseException] = []

    def work() -> None:
        async def main() -> None:
            mine = await begun(store)
            for _ in range(5):
                await store.append(mine.session_id, mine.notes("x"), expected_tail=mine.seq - 1)
            assert await store.tail(log.session_id) is not None

        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(info.entries for info in asyncio.run(store.sessions())) == [1, 6, 6, 6, 6]
    asyncio.run(store.close())


async def test_a_store_that_nobody_closed_gives_its_connections_back(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = PostgresStore(postgres_url)
    await begun(store)
    schema = store.address.schema
    async with await connect(postgres, store) as link:
        del store
        gc.collect()
        for _ in range(200):
            rows = await link.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'turnlog' "
                "AND (query LIKE %s OR query LIKE '%%entries%%')",
                (f"%{schema}%",),
            )
            await asyncio.sleep(0.02)
            if (await rows.fetchall()) == [(0,)]:
                break
    gc.collect()  # no warning of a connection that was left open


async def test_a_forked_child_has_connections_of_its_own(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    log = await begun(store)
    script = """
import asyncio, os, sys
from turnlog.history import PostgresStore
store = PostgresStore(sys.argv[1])
async def look():
    return await store.tail(sys.argv[2])
assert asyncio.run(look())
if os.fork() == 0:
    assert asyncio.run(look())
    os._exit(0)
assert os.wait()[1] == 0
assert asyncio.run(look())
"""
    command = [sys.executable, "-W", "error", "-c", script, postgres_url, log.session_id]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    await store.close()


# ── groups ──


@pytest.mark.spec("H-4")
async def test_in_a_group_each_append_succeeds_or_fails_by_itself(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        logs = [await begun(store) for _ in range(9)]
        leases = [await store.claim(log.session_id, owner="me", ttl=60) for log in logs]
        taken = logs[0].notes("x")
        await store.append(logs[0].session_id, taken, expected_tail=1)
        await store.claim(logs[1].session_id, owner="me", ttl=60)  # fences the first lease off
        batches = [log.notes("y") for log in logs]
        batches[0] = taken  # done already
        batches[2] = [batches[2][0]._replace(id=taken[0].id)]  # an id that is taken
        batches[3] = [batches[3][0]._replace(seq=9)]  # not what comes next
        expected = [1, 1, 1, 8, 1, 1, 1, 1, 1]

        async def append(place: int, leased: bool) -> str:
            try:
                await store.append(
                    logs[place].session_id,
                    batches[place],
                    expected_tail=expected[place],
                    lease=leases[place] if leased else None,
                )
            except AgentError as error:
                return error.code
            return "done"

        found = await asyncio.gather(*(append(place, place != 4) for place in range(9)))
        lost, clash = "SessionConcurrentWrite", "InvalidEntry"
        assert found == ["done", lost, clash, lost, "done", "done", "done", "done", "done"]
        tails = [await store.tail(log.session_id) for log in logs]
        assert [tail.seq for tail in tails if tail] == [2, 1, 1, 1, 2, 2, 2, 2, 2]


async def test_appends_to_one_session_that_wait_together_keep_their_order(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        log = await begun(store)
        batches = [log.notes(str(n)) for n in range(20)]
        await asyncio.gather(
            *(store.append(log.session_id, batch, expected_tail=batch[0].seq - 1) for batch in batches)
        )
        assert [stored.seq for stored in await store.read(log.session_id)] == list(range(1, 22))


async def test_big_batches_and_long_ones(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        logs = [await begun(store) for _ in range(3)]
        for log in logs:
            assert log.seq == 1
        await asyncio.gather(
            *(
                store.append(log.session_id, log.notes("x" * 3_000_000, *"abc" * 30), expected_tail=1)
                for log in logs
            )
        )
        assert {len(await store.read(log.session_id)) for log in logs} == {92}


# ── leases ──


@pytest.mark.spec("H-4")
async def test_leases_go_by_the_servers_clock_or_the_one_handed_in(postgres_url: str) -> None:
    clock = FixedClock()
    async with PostgresStore(postgres_url, clock=clock) as store, PostgresStore(postgres_url) as other:
        lease = await store.claim("s1", owner="me", ttl=30)
        with pytest.raises(AgentError, match=r"SessionBusy.*held by 'me' for another \d+"):
            await store.claim("s1", owner="you", ttl=30)
        clock.advance(31)
        taken = await store.claim("s1", owner="you", ttl=30)
        assert taken.epoch == lease.epoch + 1
        with pytest.raises(AgentError, match="SessionConcurrentWrite"):
            await store.renew(lease)
        await other.claim("s1", owner="third", ttl=30)  # by the server's clock, it ran out long ago
        with pytest.raises(AgentError, match="SessionConcurrentWrite"):
            await store.renew(taken)


@pytest.mark.spec("H-4")
async def test_of_many_that_claim_at_once_one_has_it(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(6)]
    await stores[0].sessions()

    async def claim(place: int) -> bool:
        try:
            await stores[place].claim("s1", owner=f"worker {place}", ttl=60)
        except AgentError as error:
            assert error.code == "SessionBusy"  # noqa: PT017
            return False
        return True

    assert sorted(await asyncio.gather(*map(claim, range(6)))) == [False] * 5 + [True]
    for store in stores:
        await store.close()


# ── erasing ──


@pytest.mark.spec("H-9")
async def test_what_is_erased_is_in_no_file_of_the_tables(
    postgres: PostgresServer, postgres_url: str
) -> None:
    words = "erase these very words of mine"
    async with PostgresStore(postgres_url) as store:
        log = await begun(store, title=words)
        await store.append(log.session_id, log.notes(words, words * 500), expected_tail=1)
        blob = await store.put_blob(words.encode() * 10)
        await store.append(log.session_id, log.notes(f"blob:{blob}"), expected_tail=3)
        async with await connect(postgres, store) as link:
            await link.execute("ANALYZE sessions, entries, blobs")
            assert await files_with(link, postgres, words)
            bodies = {s.seq: s.body for s in await store.read(log.session_id)}
            blank = {
                seq: body.replace(words.encode(), b"-").replace(blob.encode(), b"-")
                for seq, body in bodies.items()
            }
            await store.erase(log.session_id, blank)
            assert await files_with(link, postgres, words) == []
        assert [info.title for info in await store.sessions()] == ["-"]
        with pytest.raises(AgentError, match="SessionReadFailed"):
            await store.get_blob(blob)


async def files_with(link: psycopg.AsyncConnection[Any], postgres: PostgresServer, words: str) -> list[Path]:
    """Files of the database, not of the server's write-ahead log, which is beyond a store's reach."""
    await link.execute("CHECKPOINT")  # all pages to their files, all files that were replaced removed
    rows = await link.execute("SELECT oid FROM pg_database WHERE datname = current_database()")
    folder = postgres.data / "base" / str((await rows.fetchall())[0][0])
    return [path for path in folder.iterdir() if words.encode() in path.read_bytes()]


async def test_an_old_transaction_that_still_sees_the_words_is_waited_for_and_then_told(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresStore(postgres_url) as store:
        log = await begun(store)
        await store.append(log.session_id, log.notes("hide me"), expected_tail=1)
        blank = (await store.read(log.session_id))[1].body.replace(b"hide me", b"-")
        async with await connect(postgres, store) as link:
            await link.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            async with link.transaction():
                await link.execute("SELECT count(*) FROM pg_class")
                with monkeypatch.context() as patch:
                    patch.setattr(postgres_loop, "_PATIENCE", 0.1)
                    with pytest.raises(AgentError, match=r"SessionBusy.*began before.*purge again"):
                        await store.erase(log.session_id, {2: blank})
                waiting = asyncio.ensure_future(store.erase(log.session_id, {2: blank}))
                await asyncio.sleep(0.1)
                assert not waiting.done()
            await waiting


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_a_title_that_is_erased_is_gone_from_every_branch(
    kind: str, tmp_path: Path, postgres_url: str
) -> None:
    store = open_store(postgres_url if kind == "postgres" else f"sqlite:{tmp_path}/log.db")
    log = Log()
    await store.append(log.session_id, log.header("secret plan"), expected_tail=0)
    for source, target in ((log.session_id, "branch"), ("branch", "twig")):
        await store.fork(source, at=log.seq, target=target, first=log.notes("x"))
    assert {info.title for info in await store.sessions()} == {"secret plan"}
    body = (await store.read(log.session_id))[0].body.replace(b"secret plan", b"-")
    await store.erase("twig", {1: body})
    assert {info.title for info in await store.sessions()} == {"-"}
    await store.close()
