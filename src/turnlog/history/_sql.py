"""The tables and statements of the SQL stores, in what SQLite and PostgreSQL both speak.

An entry's key is one integer, ``session << 32 | seq``: a session's entries lie together and in order, and
no second index is needed to find them. Placeholders are ``?``; a dialect with another sign translates.
"""

from __future__ import annotations

from typing import Any

from ..contract import AgentError, Control, SessionDigest, SessionInfo, decode
from ._listing import NOT_DUE, Listed, Query, with_digest

SEQ_BITS = 32
LAST_SEQ = (1 << SEQ_BITS) - 1

TABLES = (
    """CREATE TABLE sessions (
  key {serial},
  id TEXT NOT NULL UNIQUE,
  tail_seq BIGINT NOT NULL DEFAULT 0,
  tail_id TEXT,
  tail_hash TEXT,
  title TEXT,
  created_at TEXT,
  updated_at TEXT,
  parent BIGINT REFERENCES sessions (key),
  forked_at BIGINT NOT NULL DEFAULT 0,
  epoch BIGINT NOT NULL DEFAULT 0,
  owner TEXT,
  lease_until DOUBLE PRECISION NOT NULL DEFAULT 0
)""",
    """CREATE TABLE entries (
  place {place},
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  body {bytes} NOT NULL
)""",
    """CREATE TABLE blobs (
  name TEXT NOT NULL PRIMARY KEY,
  data {bytes} NOT NULL
)""",
)

FIND_SESSION = (
    "SELECT key, tail_seq, tail_id, tail_hash, parent, forked_at, epoch, owner, lease_until "
    "FROM sessions WHERE id = ?"
)
FIND_LINEAGE = "SELECT parent, forked_at FROM sessions WHERE key = ?"
NAME_SESSION = "UPDATE sessions SET title = ?, created_at = ?, parent = ?, forked_at = ? WHERE key = ?"

_MOVE = (
    "UPDATE sessions SET tail_seq = ?, tail_id = ?, tail_hash = ?, updated_at = ?, "
    "status = ?, is_open = ?, pending = ?, digest = ?"
)
MOVE_TAIL = f"{_MOVE} WHERE key = ? AND tail_seq = ?"
MOVE_TAIL_LEASED = f"{_MOVE}, lease_until = ? WHERE key = ? AND tail_seq = ? AND epoch = ? AND owner = ?"
KEEP_DIGEST = (
    "UPDATE sessions SET status = ?, is_open = ?, pending = ?, digest = ? "
    "WHERE id = ? AND tail_seq = ? AND pending IS NULL"
)
ADD_ENTRY = "INSERT INTO entries (place, id, kind, body) VALUES (?, ?, ?, ?)"
FIND_IDS = "SELECT id FROM entries WHERE place > ? AND place <= ? ORDER BY place"
READ_ENTRIES = (
    "SELECT place & 4294967295, id, kind, body FROM entries WHERE place > ? AND place <= ? ORDER BY place"
)
READ_BODIES = "SELECT body FROM entries WHERE place > ? AND place <= ? ORDER BY place"

READ_BODY = "SELECT body FROM entries WHERE place = ?"
REPLACE_BODY = "UPDATE entries SET body = ? WHERE place = ?"
_FAMILY = (
    "(WITH RECURSIVE line (key) AS (SELECT key FROM sessions WHERE key = ? "
    "UNION SELECT s.key FROM sessions s JOIN line ON s.parent = line.key) SELECT key FROM line)"
)
"""A session and all that were forked from it."""
RENAME = f"UPDATE sessions SET title = ? WHERE key IN {_FAMILY}"
FORGET_DIGESTS = (
    f"UPDATE sessions SET status = NULL, is_open = NULL, pending = NULL, digest = NULL WHERE key IN {_FAMILY}"
)
FIND_FAMILY = f"SELECT key, id, owner, lease_until FROM sessions WHERE key IN {_FAMILY} ORDER BY key"
DROP_SESSION = "DELETE FROM sessions WHERE key = ?"
DROP_ENTRIES = "DELETE FROM entries WHERE place > ? AND place <= ?"

ADD_BLOB = "INSERT INTO blobs (name, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
GET_BLOB = "SELECT data FROM blobs WHERE name = ?"
DROP_BLOB = "DELETE FROM blobs WHERE name = ?"

CLAIM = "UPDATE sessions SET epoch = ?, owner = ?, lease_until = ? WHERE key = ? AND epoch = ?"
RENEW = "UPDATE sessions SET lease_until = ? WHERE id = ? AND epoch = ? AND owner = ?"
RELEASE = "UPDATE sessions SET owner = NULL, lease_until = 0 WHERE id = ? AND epoch = ? AND owner = ?"

WAKE = "UPDATE sessions SET wake_at = ? WHERE id = ? AND tail_seq > 0"
FIND_HOLDER = "SELECT owner, epoch, lease_until FROM sessions WHERE id = ?"

CONTROLS = (
    """CREATE TABLE controls (
  place {serial},
  id TEXT NOT NULL UNIQUE,
  session TEXT NOT NULL,
  body {bytes} NOT NULL,
  answer {bytes},
  answered_at DOUBLE PRECISION
)""",
    "CREATE INDEX controls_waiting ON controls (place) WHERE answer IS NULL",
)
POST = "INSERT INTO controls (id, session, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
POSTED = "SELECT body FROM controls WHERE answer IS NULL ORDER BY place"
POSTED_TO = "SELECT body FROM controls WHERE answer IS NULL AND session = ? ORDER BY place"
ANSWER = "UPDATE controls SET answer = ?, answered_at = ? WHERE id = ? AND answer IS NULL"
DROP_ANSWERS = "DELETE FROM controls WHERE answer IS NOT NULL AND answered_at < ?"
TAKE_ANSWER = "DELETE FROM controls WHERE id = ? AND answer IS NOT NULL RETURNING answer"
WITHDRAW = "DELETE FROM controls WHERE id = ? AND answer IS NULL"
IS_ANSWERED = "SELECT 1 FROM controls WHERE id = ? AND answer IS NOT NULL"
DROP_CONTROLS = "DELETE FROM controls WHERE session = ?"

_LIST = (
    "SELECT s.id, s.tail_seq, s.created_at, s.updated_at, s.title, p.id, s.forked_at, s.digest "
    "FROM sessions s LEFT JOIN sessions p ON p.key = s.parent WHERE s.tail_seq > 0"
)
UNFOLDED = f"{_LIST} AND s.pending IS NULL"
WAITING = f"{_LIST} AND s.pending > 0"
DUE = (
    "SELECT id FROM sessions WHERE is_open AND status NOT IN "
    f"({', '.join(map(repr, NOT_DUE))}) AND (owner IS NULL OR lease_until <= {{now}}) "
    "AND (wake_at IS NULL OR wake_at <= ?) ORDER BY updated_at, id LIMIT ?"
)


def list_sessions(query: Query, limit: int | None) -> tuple[str, list[Any]]:
    """The statement for a list of sessions, with what SQL can tell of the filters, and its values."""
    conditions = {
        " AND s.updated_at >= ?": query.since,
        " AND s.updated_at <= ?": query.until,
        " AND p.id = ?": query.parent,
        " AND (s.pending IS NULL OR s.status = ?)": query.status,
    }
    given = {text: value for text, value in conditions.items() if value is not None}
    sql, values = _LIST + "".join(given), list[Any](given.values())
    if query.after is not None:
        sql += " AND (s.updated_at, s.id) < (?, ?)"
        values += query.after
    sql += " ORDER BY s.updated_at DESC, s.id DESC"
    return (sql, values) if limit is None else (f"{sql} LIMIT ?", [*values, limit])


def read_row(row: Any) -> Listed:
    """A row of the statements that list sessions."""
    id, entries, created_at, updated_at, title, parent, forked_at, digest = row
    info = SessionInfo(
        session_id=id,
        entries=entries,
        created_at=created_at or "",
        updated_at=updated_at or "",
        title=title.decode() if isinstance(title, bytes) else title,
        parent_session_id=parent,
        forked_at=forked_at if parent is not None else None,
    )
    try:
        return Listed(info, False) if digest is None else Listed(with_digest(info, _digest(digest)), True)
    except AgentError:  # of a newer version; the log tells
        return Listed(info, False)


def _digest(body: bytes) -> SessionDigest:
    return decode(body, SessionDigest)


def read_control(body: bytes) -> Control:
    return decode(body, Control)


def place(session_key: int, seq: int) -> int:
    return session_key << SEQ_BITS | seq
