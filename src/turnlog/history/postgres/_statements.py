"""The statements that are PostgreSQL's own; the rest is shared with SQLite in ``_sql``.

Whatever is done often is one statement, hence one round trip and one transaction, and no lock outlives it: a
client that stops in the middle holds up nobody.
"""

from __future__ import annotations

from functools import cache

from .. import _sql
from .._base import ANSWER_KEPT

_NOW = "COALESCE(%(now)b::float8, extract(epoch FROM clock_timestamp())::float8)"
"""The store's clock where one was handed in, else the server's: workers' clocks need not agree."""

_SOON = f"c AS MATERIALIZED (SELECT {_NOW} AS now, set_config('synchronous_commit', 'off', true))"
"""For leases alone, which need not survive a crash of the server by themselves: what an append makes durable
includes the claim before it. The setting ends with the transaction."""


@cache
def shared(sql: str) -> bytes:
    """A statement of ``_sql`` with PostgreSQL's placeholders, every value in binary."""
    return sql.replace("?", "%b").encode()


@cache
def guarded(sql: str) -> bytes:
    """A statement that reads entries, which finds none where the session has another key than the one that
    was remembered: it was deleted, and perhaps made anew."""
    before, order, after = sql.partition(" ORDER BY ")
    return shared(f"{before} AND EXISTS (SELECT 1 FROM sessions WHERE id = ? AND key = ?){order}{after}")


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

RENEW = f"""
WITH {_SOON}
UPDATE sessions s SET lease_until = c.now + %(ttl)b FROM c
WHERE s.id = %(session)b AND s.epoch = %(epoch)b AND s.owner = %(owner)b""".encode()

RELEASE = f"""
WITH {_SOON}
UPDATE sessions s SET owner = NULL, lease_until = 0 FROM c
WHERE s.id = %(session)b AND s.epoch = %(epoch)b AND s.owner = %(owner)b""".encode()

_NOW_FIRST = _NOW.replace("%(now)b", "?")
DUE = shared(_sql.DUE.format(now=_NOW_FIRST))
HOLDER = shared(f"SELECT owner, epoch, lease_until - {_NOW_FIRST} FROM sessions WHERE id = ?")
SECONDS_LEFT = shared(f"SELECT lease_until - {_NOW_FIRST} FROM sessions WHERE key = ?")
ANSWER = shared(_sql.ANSWER.replace("answered_at = ?", f"answered_at = {_NOW_FIRST}"))
DROP_ANSWERS = shared(_sql.DROP_ANSWERS.replace("< ?", f"< {_NOW_FIRST} - {ANSWER_KEPT}"))
POST = shared(f"WITH made AS ({_sql.POST} RETURNING 1) SELECT pg_notify(?, ?), (SELECT count(*) FROM made)")
LOCK_SESSION = b"SELECT key, tail_seq FROM sessions WHERE id = %b FOR UPDATE"
LOCK_SESSIONS = b"SELECT 1 FROM sessions WHERE key = ANY(%b) FOR UPDATE"
DELETE_SESSIONS = b"DELETE FROM sessions WHERE key = ANY(%b)"
DELETE_CONTROLS = b"DELETE FROM controls WHERE session = ANY(%b)"
NAMING_BODIES = b"""
SELECT body FROM entries WHERE place > %b AND place <= %b
  AND position(convert_to('sha256-', 'UTF8') IN body) > 0"""
LOCK_BLOBS = "LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE"
"""Nobody adds bytes meanwhile, and the entries that name what was added before are seen."""

FIND_EPOCH = b"SELECT epoch FROM sessions WHERE id = %b"

MAKE_FORK = b"""
INSERT INTO sessions (id, tail_seq, tail_id, tail_hash, updated_at, title, created_at, parent, forked_at)
VALUES (%(session)b, %(tail_seq)b, %(tail_id)b, %(tail_hash)b, %(updated_at)b, %(title)b, %(created_at)b,
  %(parent)b, %(forked_at)b)
ON CONFLICT (id) DO UPDATE SET tail_seq = excluded.tail_seq, tail_id = excluded.tail_id,
  tail_hash = excluded.tail_hash, updated_at = excluded.updated_at, title = excluded.title,
  created_at = excluded.created_at, parent = excluded.parent, forked_at = excluded.forked_at
WHERE sessions.tail_seq = 0 RETURNING key"""
ADD_ENTRIES = b"""
INSERT INTO entries (place, id, kind, body)
SELECT %(key)b::bigint << 32 | (%(expected)b::bigint + e.n), e.id, e.kind, e.body
FROM unnest(%(ids)b::text[], %(kinds)b::text[], %(bodies)b::bytea[])
  WITH ORDINALITY AS e (id, kind, body, n)"""

DROP_UNUSED_BLOBS = b"""
DELETE FROM blobs b USING unnest(%b::text[]) AS gone (name)
WHERE b.name = gone.name
  AND NOT EXISTS (SELECT 1 FROM entries e
    WHERE position(convert_to('blob:' || gone.name, 'UTF8') IN e.body) > 0
      OR position(convert_to('"artifact":"' || gone.name, 'UTF8') IN e.body) > 0)"""

NOTIFY = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify(%b, %b)"
