"""The tables and statements of the SQL stores, in what SQLite and PostgreSQL both speak.

An entry's key is one integer, ``session << 32 | seq``: a session's entries lie together and in order, and
no second index is needed to find them. Placeholders are ``?``; a dialect with another sign translates.
"""

from __future__ import annotations

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
LIST_SESSIONS = (
    "SELECT s.id, s.tail_seq, s.created_at, s.updated_at, s.title, p.id, s.forked_at FROM sessions s "
    "LEFT JOIN sessions p ON p.key = s.parent WHERE s.tail_seq > 0 ORDER BY s.updated_at DESC, s.key DESC"
)
MAKE_SESSION = (
    "INSERT INTO sessions (id, title, created_at, updated_at, parent, forked_at) VALUES (?, ?, ?, ?, ?, ?)"
)
NAME_SESSION = "UPDATE sessions SET title = ?, created_at = ?, parent = ?, forked_at = ? WHERE key = ?"

MOVE_TAIL = (
    "UPDATE sessions SET tail_seq = ?, tail_id = ?, tail_hash = ?, updated_at = ? "
    "WHERE key = ? AND tail_seq = ?"
)
MOVE_TAIL_LEASED = (
    "UPDATE sessions SET tail_seq = ?, tail_id = ?, tail_hash = ?, updated_at = ?, lease_until = ? "
    "WHERE key = ? AND tail_seq = ? AND epoch = ? AND owner = ?"
)
ADD_ENTRY = "INSERT INTO entries (place, id, kind, body) VALUES (?, ?, ?, ?)"
FIND_IDS = "SELECT id FROM entries WHERE place > ? AND place <= ? ORDER BY place"
READ_ENTRIES = (
    "SELECT place & 4294967295, id, kind, body FROM entries WHERE place > ? AND place <= ? ORDER BY place"
)
READ_BODIES = "SELECT body FROM entries WHERE place > ? AND place <= ? ORDER BY place"

READ_BODY = "SELECT body FROM entries WHERE place = ?"
REPLACE_BODY = "UPDATE entries SET body = ? WHERE place = ?"
RENAME = (
    "UPDATE sessions SET title = ? WHERE key IN (WITH RECURSIVE line (key) AS (SELECT key FROM sessions "
    "WHERE key = ? UNION SELECT s.key FROM sessions s JOIN line ON s.parent = line.key) SELECT key FROM line)"
)
"""Of a session and of all that were forked from it, which took its title over."""

ADD_BLOB = "INSERT INTO blobs (name, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
GET_BLOB = "SELECT data FROM blobs WHERE name = ?"
REFERRED_TO = "SELECT 1 FROM entries WHERE instr(body, ?) OR instr(body, ?) LIMIT 1"
DROP_BLOB = "DELETE FROM blobs WHERE name = ?"

CLAIM = "UPDATE sessions SET epoch = ?, owner = ?, lease_until = ? WHERE key = ? AND epoch = ?"
RENEW = "UPDATE sessions SET lease_until = ? WHERE id = ? AND epoch = ? AND owner = ?"
RELEASE = "UPDATE sessions SET owner = NULL, lease_until = 0 WHERE id = ? AND epoch = ? AND owner = ?"


def place(session_key: int, seq: int) -> int:
    return session_key << SEQ_BITS | seq
