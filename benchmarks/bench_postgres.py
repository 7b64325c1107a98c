"""What an append to PostgreSQL costs, against the same rows written by hand with the same driver.

By hand: one connection per session; the tail moved and four rows inserted, in one transaction of two
statements, and in a single statement. The server is a real one with fsync on, started here.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg

from turnlog.contract import SCHEMA_VERSION, Custom, SessionHeader, StoredEntry, seal
from turnlog.history import open_store
from turnlog.system import SystemIds

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from postgres_server import NoPostgres, PostgresServer, start_server

ENTRIES = 4
WORDS = "x" * 400
LOADS = ((1, 300), (16, 40), (64, 15))
ROUNDS = 5
GOAL = 1.3

TABLES = """
CREATE TABLE sessions (key BIGSERIAL PRIMARY KEY, id TEXT NOT NULL UNIQUE, tail_seq BIGINT NOT NULL DEFAULT 0,
  tail_id TEXT, tail_hash TEXT, updated_at TEXT) WITH (fillfactor = 50);
CREATE TABLE entries (place BIGINT PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  body BYTEA NOT NULL)
"""
MOVE = (
    b"UPDATE sessions SET tail_seq = %b, tail_id = %b, tail_hash = %b, updated_at = %b "
    b"WHERE key = %b AND tail_seq = %b"
)
ROWS = b"(%b::bigint, %b::text, %b::text, %b::bytea), " + b", ".join([b"(%b, %b, %b, %b)"] * (ENTRIES - 1))
ADD = b"INSERT INTO entries VALUES " + ROWS
BOTH = (
    b"WITH moved AS (" + MOVE + b" RETURNING key) "
    b"INSERT INTO entries SELECT row.* FROM moved, (VALUES " + ROWS + b") AS row"
)
IDS = SystemIds()
Worker = Callable[[str, int], Awaitable[None]]


class Log:
    """Sealed batches, made outside the measured time."""

    def __init__(self, session_id: str, batches: int) -> None:
        self.session_id = session_id
        self._seq, self._id, self._hash = 0, None, ""
        self.first = [self._make(SessionHeader(schema_version=SCHEMA_VERSION))]
        self.batches = [
            [self._make(Custom(name="note", data={"text": WORDS})) for _ in range(ENTRIES)]
            for _ in range(batches)
        ]

    def _make(self, payload: Any) -> StoredEntry:
        self._seq += 1
        sealed = seal(
            payload,
            id=IDS.entry(),
            previous_id=self._id,
            previous_hash=self._hash,
            session_id=self.session_id,
            seq=self._seq,
            timestamp="2026-01-01T00:00:00.000Z",
        )
        self._id, self._hash = sealed.entry.id, sealed.entry.hash
        return sealed.stored


async def timed(work: list[Awaitable[None]], appends: int) -> tuple[float, float]:
    """(wall, client CPU) in µs per append."""
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*work)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall / appends * 1e6, cpu / appends * 1e6


async def by_hand(dsn: str, sessions: int, appends: int, *, single: bool) -> tuple[float, float]:
    links: list[tuple[psycopg.AsyncConnection[Any], Log, int]] = []
    for _ in range(sessions):
        link = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        await link.execute("SET search_path TO bare")
        log = Log(IDS.session(), appends)
        cursor = await link.execute(
            "INSERT INTO sessions (id, tail_seq) VALUES (%s, 1) RETURNING key", (log.session_id,)
        )
        links.append((link, log, (await cursor.fetchall())[0][0]))

    async def write(link: psycopg.AsyncConnection[Any], log: Log, key: int) -> None:
        for batch in log.batches:
            last = batch[-1]
            move = (last.seq, last.id, "h" * 64, "2026-01-01T00:00:00.000Z", key, batch[0].seq - 1)
            rows = [value for s in batch for value in (key << 32 | s.seq, s.id, s.kind, s.body)]
            if single:
                await link.execute(BOTH, [*move, *rows], prepare=True)
            else:
                async with link.transaction():
                    await link.execute(MOVE, move, prepare=True)
                    await link.execute(ADD, rows, prepare=True)

    try:
        return await timed([write(*each) for each in links], sessions * appends)
    finally:
        for link, _, _ in links:
            await link.close()


async def by_store(url: str, sessions: int, appends: int) -> tuple[float, float]:
    store = open_store(url)
    logs = [Log(IDS.session(), appends) for _ in range(sessions)]
    for log in logs:
        await store.append(log.session_id, log.first, expected_tail=0)

    async def write(log: Log) -> None:
        for batch in log.batches:
            await store.append(log.session_id, batch, expected_tail=batch[0].seq - 1)

    try:
        return await timed([write(log) for log in logs], sessions * appends)
    finally:
        await store.close()


async def measure(server: PostgresServer) -> list[tuple[str, str, str]]:
    dsn = server.dsn
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        await link.execute("CREATE SCHEMA bare")
        await link.execute("SET search_path TO bare")
        await link.execute(TABLES.encode())
    url = server.url()
    rows: list[tuple[str, str, str]] = []
    for sessions, appends in LOADS:
        found: dict[str, list[tuple[float, float]]] = {"transaction": [], "statement": [], "store": []}
        for _ in range(ROUNDS):  # side by side: the disk is not the same from one second to the next
            found["transaction"].append(await by_hand(dsn, sessions, appends, single=False))
            found["statement"].append(await by_hand(dsn, sessions, appends, single=True))
            found["store"].append(await by_store(url, sessions, appends))
        middle = {
            name: (statistics.median(w for w, _ in each), statistics.median(c for _, c in each))
            for name, each in found.items()
        }
        for name, words in (
            ("transaction", "by hand, a transaction"),
            ("statement", "by hand, one statement"),
            ("store", "append"),
        ):
            wall, cpu = middle[name]
            rows.append((f"{sessions} sessions, {words}", f"{wall:.0f} µs", f"{cpu:.0f} µs CPU here"))
        ratio = middle["store"][0] / middle["transaction"][0]
        best = middle["store"][0] / min(middle["transaction"][0], middle["statement"][0])
        rows.append(("  append / transaction, / the better of both", f"{ratio:.2f} {best:.2f}", f"≤ {GOAL}"))
    return rows


def rows() -> list[tuple[str, str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="turnlog-bench-")) / "pg"
    os.chmod(folder.parent, 0o755)
    try:
        server = start_server(folder, os.getpid())
    except NoPostgres as error:
        return [("PostgreSQL", "none", str(error))]
    try:
        return asyncio.run(measure(server))
    finally:
        server.stop()
        folder.parent.rmdir()


if __name__ == "__main__":
    for name, figure, goal in rows():
        print(f"{name:<52} {figure:>12}   {goal}")
