"""Watching a session in PostgreSQL: told by a notice, found by a look where none comes."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from history.postgres_log import Log
from postgres_server import PostgresServer
from turnlog.contract import Entry
from turnlog.history import PostgresStore, _views, follow
from turnlog.history.postgres import _loop as postgres_bell
from turnlog.testing import VirtualClock


async def take(store: PostgresStore, session_id: str, count: int) -> list[Entry]:
    """``count`` entries, on a clock that stands still: whoever sleeps by it never wakes."""
    found: list[Entry] = []
    async for entry in follow(store, session_id, clock=VirtualClock()):
        found.append(entry)
        if len(found) == count:
            break
    return found


@pytest.fixture
def hints_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_views, "_HINTED", 3_600.0)


@pytest.mark.usefixtures("hints_alone")
async def test_a_follower_elsewhere_is_woken_by_a_notice(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as writer, PostgresStore(postgres_url) as reader:
        log = Log()
        following = asyncio.ensure_future(take(reader, log.session_id, 6))
        await asyncio.sleep(0.2)  # it waits for a session that is not there yet
        await writer.append(log.session_id, log.header(), expected_tail=0)
        for number in range(5):
            await writer.append(log.session_id, log.notes(str(number)), expected_tail=log.seq - 1)
        entries = await asyncio.wait_for(following, 120)
        assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("hints_alone")
async def test_many_follow_at_once_and_are_woken_by_their_own(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as writer, PostgresStore(postgres_url) as reader:
        logs = [Log() for _ in range(10)]
        following = [asyncio.ensure_future(take(reader, log.session_id, 2)) for log in logs]
        await asyncio.sleep(0.1)
        await asyncio.gather(
            *(
                writer.append(log.session_id, [*log.header(), *log.notes("x")], expected_tail=0)
                for log in logs
            )
        )
        found = await asyncio.wait_for(asyncio.gather(*following), 120)
        assert [entries[0].session_id for entries in found] == [log.session_id for log in logs]


async def test_without_notices_a_follower_looks_by_itself(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_views, "_HINTED", 0.2)
    monkeypatch.setattr(postgres_bell.Bell, "ring", lambda self, session_id: None)
    async with PostgresStore(postgres_url) as writer, PostgresStore(postgres_url) as reader:
        log = Log()
        following = asyncio.ensure_future(take(reader, log.session_id, 1))
        await asyncio.sleep(0.05)
        await writer.append(log.session_id, log.header(), expected_tail=0)
        assert len(await asyncio.wait_for(following, 120)) == 1


@pytest.mark.usefixtures("hints_alone")
async def test_a_listener_that_was_cut_off_listens_again(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "_RETRY", 0.05)
    async with PostgresStore(postgres_url) as writer, PostgresStore(postgres_url) as reader:
        log = Log()
        following = asyncio.ensure_future(take(reader, log.session_id, 2))
        await asyncio.sleep(0.2)
        await writer.append(log.session_id, log.header(), expected_tail=0)
        async with await _listen(postgres, reader) as link:
            await link.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s",
                (f"LISTEN turnlog_{reader.address.schema}",),
            )
        await asyncio.sleep(0.1)
        await writer.append(log.session_id, log.notes("x"), expected_tail=1)
        assert len(await asyncio.wait_for(following, 120)) == 2


async def _listen(postgres: PostgresServer, store: PostgresStore) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True)


async def test_notices_are_gathered_and_not_sent_for_every_append(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_bell, "GATHER", 600.0)  # one at once, and what was gathered at the end
    async with PostgresStore(postgres_url) as store:
        logs = [Log() for _ in range(10)]
        async with await _listen(postgres, store) as link:
            await link.execute(f"LISTEN turnlog_{store.address.schema}".encode())
            for log in logs:
                await store.append(log.session_id, log.header(), expected_tail=0)
            for _ in range(10):
                await asyncio.gather(
                    *(store.append(log.session_id, log.notes("x"), expected_tail=log.seq - 1) for log in logs)
                )
            await store.close()
            told: set[str] = set()
            count = 0
            async for notice in link.notifies(timeout=120):
                count += 1
                told.update(notice.payload.split("\n"))
                if told == {log.session_id for log in logs}:
                    break
        assert told == {log.session_id for log in logs}
        assert count <= 2


@pytest.mark.usefixtures("hints_alone")
async def test_more_sessions_than_a_notice_can_name(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as writer, PostgresStore(postgres_url) as reader:
        log = Log()
        following = asyncio.ensure_future(take(reader, log.session_id, 1))
        await asyncio.sleep(0.2)
        bell = writer._side()._bell
        bell._last = asyncio.get_running_loop().time()  # the next notice waits, and gathers
        for number in range(100):
            bell.ring(f"{number:0100d}")
        await writer.append(log.session_id, log.header(), expected_tail=0)
        assert len(await asyncio.wait_for(following, 120)) == 1
