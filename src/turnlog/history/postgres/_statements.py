"""The tables and statements that are PostgreSQL's own; the rest is shared with SQLite in ``_sql``.

Whatever is done often is one statement, hence one round trip and one transaction, and no lock outlives it: a
client that stops in the middle holds up nobody.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ...contract import AgentError
from .. import _sql
from ._address import Address

if TYPE_CHECKING:
    from ._link import Link

_NOW = "COALESCE(%(now)b::float8, extract(epoch FROM clock_timestamp())::float8)"
"""The store's clock where one was handed in, else the server's: workers' clocks need not agree."""

_SOON = f"c AS MATERIALIZED (SELECT {_NOW} AS now, set_config('synchronous_commit', 'off', true))"
"""For leases alone, which need not survive a crash of the server by themselves: what an append makes durable
includes the claim before it. The setting ends with the transaction."""


_DIALECT = {
    "now": _NOW.replace("%(now)b", "?"),
    "lock": " FOR UPDATE",
    "naming": "position(convert_to('sha256-', 'UTF8') IN body) > 0",
    "soon": "WITH c AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)) ",
    "from_soon": " FROM c",
}


@cache
def say(sql: str) -> bytes:
    """A statement of ``_sql`` as PostgreSQL has it, every value in binary."""
    return sql.format(**_DIALECT).replace("?", "%b").encode()


@cache
def guarded(sql: str) -> bytes:
    """A statement that reads entries, which finds none where the session has another key than the one that
    was remembered: it was deleted, and perhaps made anew."""
    before, order, after = sql.partition(" ORDER BY ")
    return say(f"{before} AND EXISTS (SELECT 1 FROM sessions WHERE id = ? AND key = ?){order}{after}")


_DIGEST = "status = %(status)b, is_open = %(is_open)b, pending = %(pending)b, digest = %(digest)b"


@cache
def append_one(*, leased: bool, first: bool, rows: int = 0) -> bytes:
    """One batch, if the tail (and the lease) is the expected one. Its row count is 0 where it is not.

    With ``rows``, so many entries are values of their own (``id1``, ``kind1``, ``body1``, …), which the
    driver packs faster than arrays.
    """
    naming = ", title = %(title)b, created_at = %(created_at)b" if first else ""
    renewing = f", lease_until = {_NOW} + %(ttl)b" if leased else ""
    guard = " AND epoch = %(epoch)b AND owner = %(owner)b" if leased else ""
    numbers = range(1, rows + 1)
    each = ", ".join(f"(%(id{n})b::text, %(kind{n})b::text, %(body{n})b::bytea, {n})" for n in numbers)
    arrays = "unnest(%(ids)b::text[], %(kinds)b::text[], %(bodies)b::bytea[]) WITH ORDINALITY"
    return f"""
WITH moved AS (
  UPDATE sessions SET tail_seq = %(tail_seq)b, tail_id = %(tail_id)b, tail_hash = %(tail_hash)b,
    updated_at = %(updated_at)b, {_DIGEST}{naming}{renewing}
  WHERE id = %(session)b AND tail_seq = %(expected)b::bigint{guard} RETURNING key)
INSERT INTO entries (place, id, kind, body)
SELECT moved.key << 32 | (%(expected)b::bigint + e.n), e.id, e.kind, e.body
FROM moved, {f"(VALUES {each})" if rows else arrays} AS e (id, kind, body, n)""".encode()


APPEND_NEW = b"""
WITH made AS (
  INSERT INTO sessions (id, tail_seq, tail_id, tail_hash, updated_at, title, created_at, status, is_open,
    pending, digest)
  VALUES (%(session)b, %(tail_seq)b, %(tail_id)b, %(tail_hash)b, %(updated_at)b, %(title)b, %(created_at)b,
    %(status)b, %(is_open)b, %(pending)b, %(digest)b)
  ON CONFLICT (id) DO UPDATE SET tail_seq = excluded.tail_seq, tail_id = excluded.tail_id,
    tail_hash = excluded.tail_hash, updated_at = excluded.updated_at, title = excluded.title,
    created_at = excluded.created_at, status = excluded.status, is_open = excluded.is_open,
    pending = excluded.pending, digest = excluded.digest
  WHERE sessions.tail_seq = 0 RETURNING key)
INSERT INTO entries (place, id, kind, body)
SELECT made.key << 32 | e.n, e.id, e.kind, e.body
FROM made, unnest(%(ids)b::text[], %(kinds)b::text[], %(bodies)b::bytea[])
  WITH ORDINALITY AS e (id, kind, body, n)"""
"""The first batch of a session that nobody claimed before."""

APPEND_MANY = f"""
WITH b AS (
  SELECT * FROM unnest(%(sessions)b::text[], %(expected)b::text::bigint[], %(tail_seqs)b::text::bigint[],
    %(tail_ids)b::text[], %(tail_hashes)b::text[], %(updated_ats)b::text[], %(epochs)b::text::bigint[],
    %(owners)b::text[], %(ttls)b::text::float8[], %(statuses)b::text[], %(opens)b::text::boolean[],
    %(pendings)b::text::integer[], %(digests)b::bytea[])
  WITH ORDINALITY AS b (session, expected, tail_seq, tail_id, tail_hash, updated_at, epoch, owner, ttl,
    status, is_open, pending, digest, n)),
moved AS (
  UPDATE sessions s SET tail_seq = b.tail_seq, tail_id = b.tail_id, tail_hash = b.tail_hash,
    updated_at = b.updated_at, lease_until = COALESCE({_NOW} + b.ttl, s.lease_until),
    status = b.status, is_open = b.is_open, pending = b.pending, digest = b.digest
  FROM b WHERE s.id = b.session AND s.tail_seq = b.expected
    AND (b.epoch IS NULL OR (s.epoch = b.epoch AND s.owner = b.owner))
  RETURNING s.key, b.n),
added AS (
  INSERT INTO entries (place, id, kind, body)
  SELECT moved.key << 32 | e.seq, e.id, e.kind, e.body
  FROM moved JOIN unnest(%(batches)b::text::bigint[], %(seqs)b::text::bigint[], %(ids)b::text[],
    %(kinds)b::text[], %(bodies)b::bytea[]) AS e (batch, seq, id, kind, body) ON e.batch = moved.n)
SELECT n FROM moved""".encode()
"""Batches of different sessions in one transaction; says which of them (from 1) were written."""

CLAIM = f"""
WITH {_SOON},
taken AS (
  UPDATE sessions s SET epoch = s.epoch + 1, owner = %(owner)b, lease_until = c.now + %(ttl)b
  FROM c WHERE s.id = %(session)b
    AND (s.owner IS NULL OR s.owner = %(owner)b OR s.lease_until <= c.now)
  RETURNING s.epoch),
made AS (
  INSERT INTO sessions (id, epoch, owner, lease_until)
  SELECT %(session)b, 1, %(owner)b, c.now + %(ttl)b FROM c
  WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE id = %(session)b)
  ON CONFLICT (id) DO NOTHING RETURNING epoch)
SELECT epoch, NULL::text, NULL::float8 FROM taken
UNION ALL SELECT epoch, NULL, NULL FROM made
UNION ALL SELECT NULL, s.owner, s.lease_until - c.now FROM sessions s, c
  WHERE s.id = %(session)b AND NOT EXISTS (SELECT 1 FROM taken)""".encode()
"""(epoch, -, -) of the new lease; or (-, owner, seconds) of the one that runs; or nothing: try again."""

POST = f"WITH made AS ({_sql.POST} RETURNING 1) SELECT pg_notify(?, ?), (SELECT count(*) FROM made)"
MAKE_SESSION = "INSERT INTO sessions (id) VALUES (?) ON CONFLICT DO NOTHING"
LOCK_BLOBS = "LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE"
"""Nobody adds bytes meanwhile, and the entries that name what was added before are seen."""
DROP_UNUSED_BLOBS = """
DELETE FROM blobs b USING unnest(?::text[]) AS gone (name)
WHERE b.name = gone.name
  AND NOT EXISTS (SELECT 1 FROM entries e
    WHERE position(convert_to('blob:' || gone.name, 'UTF8') IN e.body) > 0
      OR position(convert_to('"artifact":"' || gone.name, 'UTF8') IN e.body) > 0)"""

DROP_SNAPSHOT = b"DELETE FROM snapshots WHERE session = (SELECT key FROM sessions WHERE id = %b)"
NOTIFY = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify(%b, %b)"

# Tables, and how they come about: step by step, one process at a time

_FIRST = (
    # A title may hold NUL, which no TEXT can; and ids compare by their bytes.
    """CREATE TABLE sessions (
  key BIGINT GENERATED BY DEFAULT AS IDENTITY (MAXVALUE 2147483647) PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  tail_seq BIGINT NOT NULL DEFAULT 0,
  tail_id TEXT,
  tail_hash TEXT,
  title BYTEA,
  created_at TEXT COLLATE "C",
  updated_at TEXT COLLATE "C",
  parent BIGINT REFERENCES sessions (key),
  forked_at BIGINT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0,
  owner TEXT COLLATE "C",
  lease_until DOUBLE PRECISION NOT NULL DEFAULT 0,
  pending BOOLEAN NOT NULL DEFAULT false,
  wake_at DOUBLE PRECISION
)""",
    # Room in each page for the new row version that every append makes.
    "ALTER TABLE sessions SET (fillfactor = 50)",
    # Nothing that an append changes is indexed: its new row version stays in the page.
    "CREATE INDEX sessions_pending ON sessions (key) WHERE pending",
    "CREATE INDEX sessions_wake_at ON sessions (wake_at) WHERE wake_at IS NOT NULL",
    """CREATE TABLE entries (
  place BIGINT PRIMARY KEY,
  id TEXT COLLATE "C" NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  body BYTEA NOT NULL
)""",
    """CREATE TABLE blobs (
  name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  data BYTEA NOT NULL
)""",
    # The planner's statistics would keep samples of content that a purge erased.
    "ALTER TABLE entries ALTER COLUMN body SET STATISTICS 0",
    "ALTER TABLE blobs ALTER COLUMN data SET STATISTICS 0",
    "ALTER TABLE sessions ALTER COLUMN title SET STATISTICS 0",
)

_SECOND = (
    "DROP INDEX sessions_pending, sessions_wake_at",
    "ALTER TABLE sessions DROP COLUMN pending, DROP COLUMN wake_at",
    """ALTER TABLE sessions ADD COLUMN status TEXT, ADD COLUMN is_open BOOLEAN, ADD COLUMN pending INTEGER,
  ADD COLUMN digest BYTEA, ADD COLUMN wake_at TEXT COLLATE "C"
""",
    "ALTER TABLE sessions ALTER COLUMN digest SET STATISTICS 0",
    # An append changes what is indexed here only where a run starts or ends, or a human is asked.
    "CREATE INDEX sessions_open ON sessions (key) WHERE is_open",
    "CREATE INDEX sessions_pending ON sessions (key) WHERE pending > 0",
    "CREATE INDEX sessions_unfolded ON sessions (key) WHERE pending IS NULL",
    *(
        statement.format(serial="BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", bytes="BYTEA").replace(
            " TEXT ", ' TEXT COLLATE "C" '
        )
        for statement in _sql.CONTROLS
    ),
    "ALTER TABLE controls ALTER COLUMN body SET STATISTICS 0, ALTER COLUMN answer SET STATISTICS 0",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _SECOND)
"""What leads from each version of the tables to the next; forward only."""

FORMAT_VERSION = len(MIGRATIONS)
_LOCK = 0x74726E6C  # "trnl"


async def prepare(link: Link, address: Address) -> None:
    """Check the version of the tables; make them, or bring them up to date, where that is needed."""
    found = await find_version(link)
    if found == FORMAT_VERSION:
        return
    _check(found, address)
    async with link.transaction():
        await link.rows(
            b"SELECT pg_advisory_xact_lock(%b, hashtext(%b))", (_LOCK, f"turnlog {address.schema}")
        )
        if not await link.rows(b"SELECT 1 FROM pg_namespace WHERE nspname = %b", (address.schema,)):
            await link.script(f"CREATE SCHEMA {address.schema}")
        found = await find_version(link)  # another process may have been faster
        _check(found, address)
        if found == 0:
            await link.script("CREATE TABLE format (version INTEGER NOT NULL)")
            await link.script("INSERT INTO format VALUES (0)")
        for step in MIGRATIONS[found:]:
            for statement in step:
                await link.script(statement)
        await link.rows(b"UPDATE format SET version = %b RETURNING version", (FORMAT_VERSION,))


async def make_snapshots(link: Link, address: Address) -> None:
    """The table of the cache, where it is missing: no version of the tables stands or falls with it."""
    if not (await link.rows(b"SELECT to_regclass('snapshots') IS NULL", ()))[0][0]:
        return
    async with link.transaction():
        await link.rows(
            b"SELECT pg_advisory_xact_lock(%b, hashtext(%b))", (_LOCK, f"turnlog {address.schema}")
        )
        await link.script(_sql.SNAPSHOTS.format(bytes="BYTEA"))
        await link.script("ALTER TABLE snapshots ALTER COLUMN data SET STATISTICS 0")


async def find_version(link: Link) -> int:
    """0 where there are no tables yet."""
    if (await link.rows(b"SELECT to_regclass('format') IS NULL", ()))[0][0]:
        return 0
    rows = await link.rows(b"SELECT max(version) FROM format", ())
    return rows[0][0] or 0


def _check(found: int, address: Address) -> None:
    if found > FORMAT_VERSION:
        raise AgentError(
            "SessionMigrationFailed",
            f"{address.label}: the tables in schema {address.schema} were made by a newer turnlog (format "
            f"{found}, this one knows up to {FORMAT_VERSION}); upgrade turnlog to use them "
            "(nothing was changed)",
            meta={"found": found, "supported": FORMAT_VERSION},
        )
