"""What the SQL stores share: tables, statements, and everything that is asked through them.

Work of several statements is a *script*: a generator that yields a statement with its values and is sent the
rows. It knows no driver, so SQLite runs it on a thread and PostgreSQL on a connection, each in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from ..contract import (
    AgentError,
    Control,
    JsonObject,
    Lease,
    LeaseHolder,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
    decode,
    digest,
    encode,
    read_envelope,
)
from ._base import (
    ANSWER_KEPT,
    NO_TAIL,
    NOT_DUE,
    Listed,
    Query,
    StoreBase,
    check_batch,
    check_free,
    exact_time,
    exists_already,
    fenced,
    fork_beyond,
    forks_left,
    is_repeat,
    moved_on,
    no_blob,
    no_entry,
    not_found,
    tail_of,
    with_digest,
)
from ._blank import blobs_in, title_of

T = TypeVar("T")
Script: TypeAlias = Generator[tuple[str, Sequence[Any]], list[Any], T]
Lineage: TypeAlias = list[tuple[int, int]]
"""(session key, forked at) of each log that a session's log is made of, oldest first."""

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

# Each database fills in ``{now}``, the store's time; ``{lock}``, which keeps a row for the transaction;
# ``{naming}``, which picks bodies that may name stored bytes; ``{soon}`` and ``{from_soon}``, which spare
# a lease the wait for the disk.

FIND_SESSION = (
    "SELECT key, tail_seq, tail_id, tail_hash, parent, forked_at, epoch, owner, lease_until "
    "FROM sessions WHERE id = ?"
)
_FIND_LOCKED = f"{FIND_SESSION}{{lock}}"
_FIND_LINEAGE = "SELECT parent, forked_at FROM sessions WHERE key = ?"
NAME_SESSION = "UPDATE sessions SET title = ?, created_at = ?, parent = ?, forked_at = ? WHERE key = ?"

_MOVE = "UPDATE sessions SET tail_seq = ?, tail_id = ?, tail_hash = ?, updated_at = ?"
_DIGEST = "status = ?, is_open = ?, pending = ?, digest = ?"


def move_tail(*, digest: bool, lease: Literal["none", "renewed", "released"]) -> str:
    leasing = {"none": "", "renewed": ", lease_until = ?", "released": ", owner = NULL, lease_until = ?"}
    guard = "" if lease == "none" else " AND epoch = ? AND owner = ?"
    return f"{_MOVE}{f', {_DIGEST}' if digest else ''}{leasing[lease]} WHERE key = ? AND tail_seq = ?{guard}"


_MOVE_TAIL = move_tail(digest=True, lease="none")
_KEEP_DIGEST = f"UPDATE sessions SET {_DIGEST} WHERE id = ? AND tail_seq = ? AND pending IS NULL"
ADD_ENTRY = "INSERT INTO entries (place, id, kind, body) VALUES (?, ?, ?, ?)"
_FIND_IDS = "SELECT id FROM entries WHERE place > ? AND place <= ? ORDER BY place"
READ_ENTRIES = (
    "SELECT place & 4294967295, id, kind, body FROM entries WHERE place > ? AND place <= ? ORDER BY place"
)
READ_BODIES = "SELECT body FROM entries WHERE place > ? AND place <= ? ORDER BY place"

_READ_BODY = "SELECT body FROM entries WHERE place = ?"
_REPLACE_BODY = "UPDATE entries SET body = ? WHERE place = ?"
_FAMILY = (
    "(WITH RECURSIVE line (key) AS (SELECT key FROM sessions WHERE key = ? "
    "UNION SELECT s.key FROM sessions s JOIN line ON s.parent = line.key) SELECT key FROM line)"
)
"""A session and all that were forked from it."""
_RENAME = f"UPDATE sessions SET title = ? WHERE key IN {_FAMILY}"
_FORGET_DIGESTS = (
    f"UPDATE sessions SET status = NULL, is_open = NULL, pending = NULL, digest = NULL WHERE key IN {_FAMILY}"
)
_FIND_FAMILY = (
    f"SELECT key, id, owner, lease_until - {{now}} FROM sessions WHERE key IN {_FAMILY} ORDER BY key{{lock}}"
)
_DROP_SESSIONS = f"DELETE FROM sessions WHERE key IN {_FAMILY}"
_NAMING_BODIES = "SELECT body FROM entries WHERE place > ? AND place <= ? AND {naming}"
_DROP_ENTRIES = "DELETE FROM entries WHERE place > ? AND place <= ?"

ADD_BLOB = "INSERT INTO blobs (name, data) VALUES (?, ?) ON CONFLICT DO NOTHING"
_GET_BLOB = "SELECT data FROM blobs WHERE name = ?"

_RENEW = (
    "{soon}UPDATE sessions SET lease_until = {now} + ?{from_soon} WHERE id = ? AND epoch = ? AND owner = ? "
    "RETURNING 1"
)
_RELEASE = (
    "{soon}UPDATE sessions SET owner = NULL, lease_until = 0{from_soon} "
    "WHERE id = ? AND epoch = ? AND owner = ?"
)
_HOLDER = "SELECT owner, epoch, lease_until - {now} FROM sessions WHERE id = ?"
_WAKE = "UPDATE sessions SET wake_at = ? WHERE id = ? AND tail_seq > 0 RETURNING 1"

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
_POSTED = "SELECT body FROM controls WHERE answer IS NULL ORDER BY place"
_POSTED_TO = "SELECT body FROM controls WHERE answer IS NULL AND session = ? ORDER BY place"
_ANSWER = "UPDATE controls SET answer = ?, answered_at = {now} WHERE id = ? AND answer IS NULL"
_DROP_ANSWERS = f"DELETE FROM controls WHERE answer IS NOT NULL AND answered_at < {{now}} - {ANSWER_KEPT}"
_TAKE_ANSWER = "DELETE FROM controls WHERE id = ? AND answer IS NOT NULL RETURNING answer"
_WITHDRAW = "DELETE FROM controls WHERE id = ? AND answer IS NULL"
_IS_ANSWERED = "SELECT 1 FROM controls WHERE id = ? AND answer IS NOT NULL"
_DROP_CONTROLS = "DELETE FROM controls WHERE session = ?"

SNAPSHOTS = """CREATE TABLE IF NOT EXISTS snapshots (
  session BIGINT NOT NULL PRIMARY KEY,
  seq BIGINT NOT NULL,
  data {bytes} NOT NULL
)"""
"""A cache: dropped with what it was made of, and made when it is missing."""
_READ_SNAPSHOT = "SELECT data FROM snapshots WHERE session = (SELECT key FROM sessions WHERE id = ?)"
_WRITE_SNAPSHOT = (
    "INSERT INTO snapshots (session, seq, data) VALUES (?, ?, ?) "
    "ON CONFLICT (session) DO UPDATE SET seq = excluded.seq, data = excluded.data"
)
DROP_SNAPSHOT = "DELETE FROM snapshots WHERE session = ?"
_DROP_SNAPSHOTS = f"DELETE FROM snapshots WHERE session IN {_FAMILY}"

_LIST = (
    "SELECT s.id, s.tail_seq, s.created_at, s.updated_at, s.title, p.id, s.forked_at, s.digest "
    "FROM sessions s LEFT JOIN sessions p ON p.key = s.parent WHERE s.tail_seq > 0"
)
_UNFOLDED = f"{_LIST} AND s.pending IS NULL"
_WAITING = f"{_LIST} AND s.pending > 0"
_DUE = (
    "SELECT id FROM sessions WHERE is_open AND status NOT IN "
    f"({', '.join(map(repr, NOT_DUE))}) AND (owner IS NULL OR lease_until <= {{now}}) "
    "AND (wake_at IS NULL OR wake_at <= ?) ORDER BY updated_at, id LIMIT ?"
)

DigestRow: TypeAlias = tuple[str | None, bool | None, int | None, bytes | None]
NO_DIGEST: DigestRow = (None, None, None, None)


def digest_row(found: SessionDigest | None) -> DigestRow:
    return (
        NO_DIGEST if found is None else (found.status, found.run_id is not None, found.pending, encode(found))
    )


class Row(NamedTuple):
    """A session's own row, as ``FIND_SESSION`` reads it."""

    key: int
    tail_seq: int
    tail_id: str
    tail_hash: str
    parent: int | None
    forked_at: int
    epoch: int
    owner: str | None
    lease_until: float

    @property
    def tail(self) -> Tail:
        return Tail(seq=self.tail_seq, id=self.tail_id, hash=self.tail_hash) if self.tail_seq else NO_TAIL


class SqlStore(StoreBase):
    """What is the same in every SQL store, over a few ways to reach the database."""

    # What each database does its own way

    async def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a statement that reads."""
        raise NotImplementedError

    async def _tell(self, sql: str, values: Sequence[Any] = (), *, brief: bool = False) -> list[Any]:
        """One statement that writes, and its rows. ``brief``: for a lease, which a power loss may undo, as it
        ends every process that could hold one. What an append makes durable after it includes it."""
        raise NotImplementedError

    async def _change(self, script: Callable[[], Script[T]], *, brief: bool = False) -> T:
        """A script in one transaction; it may be started twice."""
        raise NotImplementedError

    async def _change_for_good(self, script: Callable[[], Script[bool]]) -> None:
        """``_change``, after which no copy of what was replaced remains in the database's own files. The
        script says whether it dropped stored bytes."""
        raise NotImplementedError

    def _make(self, session_id: str) -> Script[None]:
        """A row for the session, unless it has one."""
        raise NotImplementedError

    def _drop_blobs(self, names: set[str]) -> Script[None]:
        """Drop the stored bytes of these that no entry names any more."""
        raise NotImplementedError

    def _dropped(self, keys: Sequence[int]) -> Script[None]:
        """Sessions with these keys were deleted."""
        yield from ()

    def _time(self) -> float | None:
        """What ``{now}`` is; None for the database's own clock."""
        return self._now()

    def _title(self, title: str | None) -> Any:
        """A title as its column takes it."""
        return title

    # Questions about all sessions

    async def tail(self, session_id: str) -> Tail | None:
        rows = await self._ask(FIND_SESSION, (session_id,)) if is_text(session_id) else []
        row = Row._make(rows[0]) if rows else None
        return row.tail if row and row.tail_seq else None

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        return [read_row(row) for row in await self._ask(*list_sessions(query, limit)) if type(row[0]) is str]

    async def _unfolded(self) -> list[SessionInfo]:
        return [read_row(row).info for row in await self._ask(_UNFOLDED) if type(row[0]) is str]

    async def _waiting(self) -> list[SessionInfo]:
        return [read_row(row).info for row in await self._ask(_WAITING) if type(row[0]) is str]

    async def _keep_digests(self, folded: Sequence[tuple[SessionInfo, SessionDigest]]) -> None:
        def script() -> Script[None]:
            for info, found in folded:
                yield _KEEP_DIGEST, (*digest_row(found), info.session_id, info.entries)

        with suppress(AgentError):  # a store that can only be read is folded by each process
            await self._change(script, brief=True)

    async def _due(self, limit: int, now: str) -> list[str]:
        return [row[0] for row in await self._ask(_DUE, (self._time(), now, limit))]

    async def wake(self, session_id: str, at: str | None) -> None:
        time = None if at is None else exact_time("at", at)
        if not is_text(session_id) or not await self._tell(_WAKE, (time, session_id)):
            raise not_found(session_id)

    # Controls

    async def posted(self, session_id: str | None = None) -> list[Control]:
        if session_id is None:
            rows = await self._ask(_POSTED)
        else:
            rows = await self._ask(_POSTED_TO, (session_id,)) if is_text(session_id) else []
        return [decode(row[0], Control) for row in rows]

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        body, now = encode(answer), self._time()

        def script() -> Script[None]:
            yield _ANSWER, (body, now, control_id)
            yield _DROP_ANSWERS, (now,)

        await self._change(script)

    async def take_answer(self, control_id: str) -> JsonObject | None:
        rows = await self._tell(_TAKE_ANSWER, (control_id,))
        return decode(rows[0][0], JsonObject) if rows else None

    async def withdraw(self, control_id: str) -> bool:
        await self._tell(_WITHDRAW, (control_id,))
        return not await self._ask(_IS_ANSWERED, (control_id,))

    # Leases

    async def holder(self, session_id: str) -> LeaseHolder | None:
        rows = await self._ask(_HOLDER, (self._time(), session_id)) if is_text(session_id) else []
        if not rows or rows[0][0] is None or rows[0][2] <= 0:
            return None
        owner, epoch, seconds = rows[0]
        return LeaseHolder(owner=owner, epoch=epoch, seconds_left=seconds)

    async def renew(self, lease: Lease) -> None:
        if not await self._tell(_RENEW, (self._time(), lease.ttl, *_who(lease)), brief=True):
            rows = await self._ask(FIND_SESSION, (lease.session_id,))
            raise fenced(lease, Row._make(rows[0]).epoch if rows else 0)

    async def release(self, lease: Lease) -> None:
        await self._tell(_RELEASE, _who(lease), brief=True)

    # Stored bytes

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{digest(data)}"
        await self._tell(ADD_BLOB, (name, data))
        return name

    async def get_blob(self, name: str) -> bytes:
        rows = await self._ask(_GET_BLOB, (name,)) if is_text(name) else []
        if not rows:
            raise no_blob(name)
        return rows[0][0]

    # Snapshots

    async def read_snapshot(self, session_id: str) -> bytes | None:
        try:
            rows = await self._ask(_READ_SNAPSHOT, (session_id,)) if is_text(session_id) else []
        except AgentError:  # no writer has opened the database since snapshots came, or the log tells more
            return None
        return rows[0][0] if rows else None

    async def write_snapshot(self, session_id: str, seq: int, hash: str, data: bytes) -> None:
        def script() -> Script[None]:
            row = yield from existing(session_id, lock=True)
            if (row.tail_seq, row.tail_hash) == (seq, hash):
                yield _WRITE_SNAPSHOT, (row.key, seq, data)

        await self._change(script, brief=True)

    # Forking and erasing

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        title = next(map(title_of, (stored.body for stored in await self.read(source, upto=1))), None)
        await self._change(lambda: self._fork(source, at, target, first, title))

    def _fork(
        self, source: str, at: int, target: str, first: Sequence[StoredEntry], title: str | None
    ) -> Script[None]:
        past = yield from existing(source)
        if not 0 < at <= past.tail_seq:
            raise fork_beyond(source, at, past.tail_seq)
        yield from self._make(target)
        held = Row._make((yield _FIND_LOCKED, (target,))[0])
        if held.tail_seq:
            if held.parent == past.key and (yield from has(held.key, first)):
                return
            raise exists_already(target)
        created_at = read_envelope(first[0].body).timestamp
        yield NAME_SESSION, (self._title(title), created_at, past.key, at, held.key)
        updated_at, hash = tail_of(first)
        yield _MOVE_TAIL, (first[-1].seq, first[-1].id, hash, updated_at, *NO_DIGEST, held.key, 0)
        for seq, id, kind, body in first:
            yield ADD_ENTRY, (place(held.key, seq), id, kind, body)

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        self._digests.clear()
        changed = dict(bodies)
        await self._change_for_good(lambda: self._erase(session_id, changed))

    def _erase(self, session_id: str, bodies: Mapping[int, bytes]) -> Script[bool]:
        lineage = yield from lineage_of(session_id)
        names: set[str] = set()
        keys: set[int] = set()
        for seq, body in bodies.items():
            key = next((key for key, forked_at in reversed(lineage) if seq > forked_at), 0)
            old = yield _READ_BODY, (place(key, seq),)
            if not old or not 0 < seq <= LAST_SEQ:
                raise no_entry(session_id, seq)
            names |= blobs_in(old[0][0])
            keys.add(key)
            yield _REPLACE_BODY, (body, place(key, seq))
            if seq == 1:
                yield _RENAME, (self._title(title_of(body)), key)
        for key in keys:  # digests and snapshots may hold words of it
            yield _FORGET_DIGESTS, (key,)
            yield _DROP_SNAPSHOTS, (key,)
        yield from self._drop_blobs(names)
        return bool(names)

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        await self._change_for_good(lambda: self._delete(session_id, forks == "delete", lease))

    def _delete(self, session_id: str, forks: bool, lease: Lease | None) -> Script[bool]:
        top = (yield from existing(session_id, lock=True)).key
        family = yield _FIND_FAMILY, (self._time(), top)
        if len(family) > 1 and not forks:
            raise forks_left(session_id, [id for key, id, _, _ in family if key != top])
        names: set[str] = set()
        for key, id, owner, seconds in family:
            check_free(owner, seconds, id, lease)
            span = (place(key, 0), place(key, LAST_SEQ))
            for (body,) in (yield _NAMING_BODIES, span):
                names |= blobs_in(body)
            yield _DROP_ENTRIES, span
            yield _DROP_CONTROLS, (id,)
        yield _DROP_SNAPSHOTS, (top,)
        yield _DROP_SESSIONS, (top,)
        yield from self._dropped([key for key, _, _, _ in family])
        yield from self._drop_blobs(names)
        return bool(names)


def existing(session_id: str, *, lock: bool = False) -> Script[Row]:
    statement = _FIND_LOCKED if lock else FIND_SESSION
    rows = (yield statement, (session_id,)) if is_text(session_id) else []
    if not rows or rows[0][1] == 0:
        raise not_found(session_id)
    return Row._make(rows[0])


def lineage_of(session_id: str) -> Script[Lineage]:
    """It never changes once there are entries."""
    row = yield from existing(session_id)
    parent, forked_at = row.parent, row.forked_at
    lineage = [(row.key, forked_at)]
    while parent is not None:
        key = parent
        found = yield _FIND_LINEAGE, (key,)
        parent, further = found[0] if found else (None, 0)
        # A fork of a fork may leave its parent before the parent left its own.
        if further < forked_at:
            lineage.append((key, further))
            forked_at = further
    return lineage[::-1]


def has(key: int, batch: Sequence[StoredEntry]) -> Script[bool]:
    """Whether these very entries are in the log already."""
    rows = yield _FIND_IDS, (place(key, batch[0].seq - 1), place(key, batch[-1].seq))
    return is_repeat(batch, (row[0] for row in rows))


def refusal(
    session_id: str, batch: Sequence[StoredEntry], expected_tail: int, lease: Lease | None
) -> Script[AgentError | None]:
    """Why an append changed nothing; None where the batch is there already."""
    rows = yield FIND_SESSION, (session_id,)
    if not rows:
        return fenced(lease, 0) if lease else moved_on(session_id, expected_tail, 0)
    row = Row._make(rows[0])
    if lease is not None and (lease.epoch, lease.owner) != (row.epoch, row.owner):
        return fenced(lease, row.epoch)
    if expected_tail >= row.forked_at and (yield from has(row.key, batch)):
        return None
    return moved_on(session_id, expected_tail, row.tail_seq)


def spans(lineage: Lineage, after: int, upto: int | None) -> list[tuple[int, int]]:
    """The places of entries ``after`` … ``upto`` in each log that a session's log is made of."""
    last = LAST_SEQ if upto is None else upto
    ends = [forked_at for _, forked_at in lineage[1:]] + [LAST_SEQ]
    bounds = [
        (key, max(after, first), min(last, end)) for (key, first), end in zip(lineage, ends, strict=True)
    ]
    return [(place(key, low), place(key, high)) for key, low, high in bounds if low < high]


def is_text(name: str) -> bool:
    """Whether a database could hold it at all."""
    try:
        return "\0" not in name and bool(name.encode())
    except UnicodeError:
        return False


def _who(lease: Lease) -> tuple[str, int, str]:
    return lease.session_id, lease.epoch, lease.owner


def list_sessions(query: Query, limit: int | None) -> tuple[str, list[Any]]:
    """The statement for a list of sessions, with the filters that SQL can apply, and its values."""
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
        return (
            Listed(info, False)
            if digest is None
            else Listed(with_digest(info, decode(digest, SessionDigest)), True)
        )
    except AgentError:  # of a newer version; the log itself is read
        return Listed(info, False)


def place(session_key: int, seq: int) -> int:
    return session_key << SEQ_BITS | seq
