"""The default store: one SQLite file, many sessions, several processes.

Write-ahead log with full synchronisation: an acknowledged append survives power loss. One thread writes;
appends that wait at the same time share one transaction, and each succeeds or fails by itself.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from ...contract import (
    AgentError,
    Clock,
    Control,
    Entry,
    Lease,
    SessionDigest,
    StoredEntry,
    digest,
    encode,
    read_envelope,
)
from .. import _sql
from .._base import (
    absolute,
    check_batch,
    check_control,
    check_session_id,
    fenced,
    hides,
    leased,
    moved_on,
    not_found,
    remember,
    tail_of,
    uncut,
)
from .._blank import blobs_in, title_of
from .._sql import Row, Script, SqlStore
from .._upcast import decode_rows, first_version_is_current
from .._worker import Job, Worker
from ._file import (
    Connection,
    FileId,
    file_id,
    load_apsw,
    open_reader,
    open_writer,
    taken_away,
    translate,
)

T = TypeVar("T")
BUSY_TIMEOUT = 10.0
"""Seconds to wait for another process's lock before ``SessionBusy``."""

_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class SqliteStore(SqlStore):
    """Opened on first use. Any event loop of any thread may use it; a forked child opens its own."""

    def __init__(
        self, path: str | Path, *, clock: Clock | None = None, busy_timeout: float = BUSY_TIMEOUT
    ) -> None:
        super().__init__(clock)
        self.path = absolute(path)
        self._writer = Writer(self.path, busy_timeout)
        self._reader = Reader(self.path, busy_timeout)
        self._writing = Worker("turnlog-sqlite-writer", self._writer.run_group)
        self._reading = Worker("turnlog-sqlite-reader")
        _open_stores.add(self)

    @uncut
    def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        *,
        expected_tail: int,
        lease: Lease | None = None,
        digest: SessionDigest | None = None,
        blobs: Sequence[bytes] = (),
        release: bool = False,
    ) -> asyncio.Future[None]:
        check_batch(session_id, batch, expected_tail)
        until = 0.0 if lease is None or release else self._now() + lease.ttl
        tail = tail_of(batch)
        job = AppendJob(
            self._writer, session_id, batch, expected_tail, tail, lease, until, digest, blobs, release
        )
        return self._writing.submit(job, uncut=True)

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        return await self._reading.do(partial(self._reader.read, session_id, after, upto))

    async def read_spans(self, session_id: str, spans: Sequence[tuple[int, int]]) -> list[StoredEntry]:
        return await self._reading.do(partial(self._reader.read_spans, session_id, spans))

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        return await self._reading.do(partial(self._reader.load, session_id, after))

    async def post(self, control: Control) -> None:
        check_control(control)
        await self._tell(_sql.POST, (control.id, control.session_id, encode(control)))

    @uncut
    def claim(self, session_id: str, *, owner: str, ttl: float) -> asyncio.Future[Lease]:
        check_session_id(session_id)
        now = self._now()

        def script() -> Script[Lease]:
            rows = yield _sql.FIND_SESSION, (session_id,)
            if not rows:
                yield from self._make(session_id)
                rows = yield _sql.FIND_SESSION, (session_id,)
            row = Row._make(rows[0])
            if row.owner is not None and row.owner != owner and row.lease_until > now:
                raise leased(session_id, row.owner, row.lease_until - now)
            yield _CLAIM, (row.epoch + 1, owner, now + ttl, row.key)
            return Lease(session_id=session_id, owner=owner, epoch=row.epoch + 1, ttl=ttl, tail=row.tail)

        return self._writing.submit(Job(partial(self._writer.change, script(), True)), uncut=True)

    async def close(self) -> None:
        """Give file and threads back. A later call opens the file again."""
        await self._reading.stop(self._reader.close)
        await self._writing.stop(self._writer.close)

    # What SQLite does its own way

    async def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return await self._reading.do(partial(self._reader.rows, sql, values))

    async def _tell(self, sql: str, values: Sequence[Any] = (), *, brief: bool = False) -> list[Any]:
        def script() -> Script[list[Any]]:
            return (yield sql, values)

        return await self._change(script, brief=brief)

    async def _change(self, script: Callable[[], Script[T]], *, brief: bool = False) -> T:
        return await self._writing.do(partial(self._writer.change, script(), brief))

    async def _change_for_good(self, script: Callable[[], Script[bool]]) -> None:
        await self._change(script)
        await self._reading.do(self._reader.close)  # a reader of old pages would keep them in the log
        await self._writing.do(self._writer.wipe)

    def _make(self, session_id: str) -> Script[None]:
        yield MAKE_SESSION, (session_id,)

    def _drop_blobs(self, names: set[str]) -> Script[None]:
        gone = set(names)
        if names:
            for (body,) in (yield "SELECT body FROM entries WHERE {naming}", ()):
                gone -= blobs_in(body)
        for name in gone:
            yield "DELETE FROM blobs WHERE name = ?", (name,)

    def _dropped(self, keys: Sequence[int]) -> Script[None]:
        yield "UPDATE last_key SET key = max(key, ?)", (max(keys),)

    def _forget(self) -> None:
        for engine in (self._writer, self._reader):
            engine.forget()
        for worker in (self._writing, self._reading):
            worker.forget()


_CLAIM = "UPDATE sessions SET epoch = ?, owner = ?, lease_until = ? WHERE key = ?"


def _after_fork() -> None:
    # Locks and threads stay with the parent process; using its connections here could damage the file.
    for store in list(_open_stores):
        store._forget()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ── the two connections; everything below runs on their threads ──

_GROUP_LIMIT = 512
MAKE_SESSION = (
    "INSERT INTO sessions (key, id) SELECT max((SELECT key FROM last_key), "
    "coalesce((SELECT max(key) FROM sessions), 0)) + 1, ? WHERE true ON CONFLICT DO NOTHING"
)
_HIDDEN = "SELECT 1 FROM sessions NOT INDEXED WHERE id = ? AND tail_seq > 0"
_MOVE = {
    (fresh, leased, release): _sql.move_tail(
        digest=fresh, lease="released" if leased and release else "renewed" if leased else "none"
    )
    for fresh in (False, True)
    for leased in (False, True)
    for release in (False, True)
}
_abandoned: list[Any] = []
"""Connections of a parent process: closing one in the child could release the parent's locks."""


@cache
def _say(sql: str) -> str:
    return sql.format(now="?", lock="", soon="", from_soon="", naming="instr(body, 'sha256-')")


def _play(connection: Connection, script: Script[T]) -> T:
    rows: Any = None
    try:
        while True:
            sql, values = script.send(rows)
            rows = connection.execute(_say(sql), values).fetchall()
    except StopIteration as end:
        return end.value


class _Side:
    """One connection, opened when it is first used."""

    doing: Literal["read", "write"]

    def __init__(self, path: str, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._connection: Connection | None = None
        self._file: FileId | None = None

    def _connect(self) -> Connection | None:
        raise NotImplementedError

    def _open(self) -> Connection | None:
        if self._connection is None:
            self._connection = self._connect()
            self._file = file_id(self._path)
        elif self._file != file_id(self._path):
            # Closing it would remove the side files of the one that is there now, by their names.
            self.forget()
            raise taken_away(self._path, self.doing)
        return self._connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Iterable[Any]:
        connection = self._open()
        return () if connection is None else connection.execute(_say(sql), values)

    @contextmanager
    def translated(self) -> Generator[None]:
        try:
            yield
        except load_apsw().Error as error:
            raise translate(error, self._path, self.doing) from error

    def close(self) -> None:
        if self._file != file_id(self._path):
            self.forget()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        _abandoned.append(self._connection)
        self._connection = None


class Reader(_Side):
    doing = "read"

    def _connect(self) -> Connection | None:
        return open_reader(self._path, self._busy_timeout)

    def rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with self.translated():
            return list(self.execute(sql, values))

    def read(self, session_id: str, after: int, upto: int | None) -> list[StoredEntry]:
        with self.translated():
            rows = list(self._entries(session_id, _sql.READ_ENTRIES, after, upto))
        for seq, id, kind, body in rows:
            if type(body) is not bytes or type(id) is not str or type(kind) is not str:
                raise self._damaged(f"entry {seq} of session {session_id!r} cannot be read", seq)
        make = StoredEntry._make
        return [make(row) for row in rows]

    def read_spans(self, session_id: str, spans: Sequence[tuple[int, int]]) -> list[StoredEntry]:
        return [row for first, last in spans for row in self.read(session_id, first - 1, last or None)]

    def load(self, session_id: str, after: int) -> list[Entry]:
        with self.translated():
            if after:
                head = list(self._entries(session_id, _sql.READ_BODIES, 0, 1))
                if head and not first_version_is_current(head[0][0]):
                    return self.load(session_id, 0)[after:]
            fetch = partial(self._entries, session_id, _sql.READ_BODIES, after, None)
            return decode_rows(session_id, fetch, after=after)

    def _entries(self, session_id: str, sql: str, after: int, upto: int | None) -> Iterator[Any]:
        spans = _sql.spans(self._lineage(session_id), after, upto)
        return chain.from_iterable(self.execute(sql, span) for span in spans)

    def _lineage(self, session_id: str) -> _sql.Lineage:
        connection = self._open()
        if connection is None:
            raise not_found(session_id)
        try:
            return _play(connection, _sql.lineage_of(session_id))
        except AgentError as error:
            if error.code == "SessionNotFound" and connection.execute(_HIDDEN, (session_id,)).fetchone():
                what = f"session {session_id!r} is in it and not found by its id"
                raise self._damaged(what) from error
            raise

    def _damaged(self, what: str, seq: int | None = None) -> AgentError:
        """A page that was overwritten reads as values that nobody wrote."""
        return AgentError(
            "SessionCorrupt",
            f"{self._path} is damaged: {what}; restore the file from a backup, or save what is readable with "
            "`sqlite3 FILE .recover`",
            meta={"path": self._path} | ({"seq": seq} if seq is not None else {}),
        )


class AppendJob(Job):
    __slots__ = (
        "batch",
        "blobs",
        "digest",
        "expected_tail",
        "hash",
        "lease",
        "lease_until",
        "release",
        "session_id",
        "updated_at",
    )

    def __init__(
        self,
        writer: Writer,
        session_id: str,
        batch: Sequence[StoredEntry],
        expected_tail: int,
        tail: tuple[str, str],
        lease: Lease | None,
        lease_until: float,
        digest: SessionDigest | None,
        blobs: Sequence[bytes],
        release: bool,
    ) -> None:
        super().__init__(_nothing, writer.commit)
        self.session_id = session_id
        self.batch = batch
        self.expected_tail = expected_tail
        self.updated_at, self.hash = tail
        self.lease = lease
        self.lease_until = lease_until
        self.digest = digest
        self.blobs = blobs
        self.release = release


def _nothing() -> None: ...


class _Known:
    """What this connection wrote last to a session's row."""

    __slots__ = ("digest", "key", "tail")

    def __init__(self, key: int) -> None:
        self.key = key
        self.tail = -1
        self.digest: SessionDigest | None = None


class Writer(_Side):
    doing = "write"

    def __init__(self, path: str, busy_timeout: float) -> None:
        super().__init__(path, busy_timeout)
        self._known: dict[str, _Known] = {}

    def _connect(self) -> Connection:
        return open_writer(self._path, self._busy_timeout)

    def _ready(self) -> Connection:
        connection = self._open()
        assert connection is not None
        return connection

    def run_group(self, jobs: list[Job]) -> Iterable[list[Job]]:
        """Appends that stand side by side share a transaction; anything else runs alone, in its turn."""
        waiting: list[AppendJob] = []
        for job in jobs:
            if isinstance(job, AppendJob) and len(waiting) < _GROUP_LIMIT:
                waiting.append(job)
                continue
            if waiting:
                self.commit(waiting)
                yield list(waiting)
                waiting = []
            if isinstance(job, AppendJob):
                waiting.append(job)
            else:
                job.run([job])
                yield [job]
        if waiting:
            self.commit(waiting)
            yield list(waiting)

    def change(self, script: Script[T], brief: bool) -> T:
        """Run ``script`` in a transaction of its own; ``brief`` does not wait for the disk."""
        with self.translated():
            connection = self._ready()
            if brief:
                connection.execute("PRAGMA synchronous = NORMAL")
            try:
                connection.execute("BEGIN IMMEDIATE")
                value = _play(connection, script)
                connection.execute("COMMIT")
                return value
            except BaseException:
                self._roll_back()
                raise
            finally:
                if brief:
                    connection.execute("PRAGMA synchronous = FULL")

    def commit(self, jobs: Sequence[AppendJob]) -> None:
        """All of ``jobs`` in one transaction; each gets its own error where it has one."""
        try:
            connection = self._ready()
            connection.execute("BEGIN IMMEDIATE")
        except Exception as error:  # nobody gets in: it is the same for all
            for job in jobs:
                job.error = translate(error, self._path, "write")
            return
        try:
            for job in jobs:
                job.error = self._append(connection, job)
            connection.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            if len(jobs) > 1:  # each on its own, so that one that cannot be written harms no other
                for job in jobs:
                    self.commit([job])
            else:
                jobs[0].error = translate(error, self._path, "write")

    def _roll_back(self) -> None:
        self._known.clear()  # some may name sessions that now were never made
        connection = self._connection
        if connection is not None and connection.in_transaction:
            connection.execute("ROLLBACK")

    def _append(self, connection: Connection, job: AppendJob) -> AgentError | None:
        """Write one batch, or raise the reason, having written nothing."""
        batch, expected, lease = job.batch, job.expected_tail, job.lease
        known = self._known.get(job.session_id)
        if known is None:
            row = connection.execute(_sql.FIND_SESSION, (job.session_id,)).fetchone()
            if row is None and (expected or lease):
                return fenced(lease, 0) if lease else moved_on(job.session_id, expected, 0)
            if row is None:
                connection.execute(MAKE_SESSION, (job.session_id,))
            known = _Known(connection.last_insert_rowid() if row is None else row[0])
            remember(self._known, job.session_id, known)
        # A digest that is in the row already is not written again.
        fresh = job.digest is None or known.tail != expected or known.digest != job.digest
        last = batch[-1]
        values: list[Any] = [last.seq, last.id, job.hash, job.updated_at]
        if fresh:
            values += _sql.digest_row(job.digest)
        if lease is None:
            values += (known.key, expected)
        else:
            values += (job.lease_until, known.key, expected, lease.epoch, lease.owner)
        connection.execute(_MOVE[fresh, lease is not None, job.release], values)
        if connection.changes() == 0:
            row = connection.execute(_sql.FIND_SESSION, (job.session_id,)).fetchone()
            if row is None or row[0] != known.key:  # deleted meanwhile, and perhaps made anew
                del self._known[job.session_id]
                return self._append(connection, job)
            return _play(connection, _sql.refusal(job.session_id, batch, expected, lease))
        if expected == 0:
            first = read_envelope(batch[0].body)
            naming = (title_of(batch[0].body), first.timestamp, None, 0, known.key)
            connection.execute(_sql.NAME_SESSION, naming)
        base = known.key << _sql.SEQ_BITS
        connection.executemany(
            _sql.ADD_ENTRY, [(base | seq, id, kind, body) for seq, id, kind, body in batch]
        )
        if hides(batch):
            connection.execute(_sql.DROP_SNAPSHOT, (known.key,))
        for data in job.blobs:
            connection.execute(_sql.ADD_BLOB, (f"sha256-{digest(data)}", data))
        known.tail, known.digest = last.seq, job.digest
        return None

    def wipe(self) -> None:
        """Write the file anew and empty its log, so that nothing replaced remains in either."""
        apsw = load_apsw()
        try:
            connection = self._ready()
            connection.execute("VACUUM")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            problem = translate(error, self._path, "write")
            raise AgentError(
                problem.code,
                f"the content is erased, but old copies may remain in {self._path}: {problem.message}; "
                "purge again",
                cause=error,
                meta=problem.meta,
            ) from error

    def close(self) -> None:
        super().close()
        self._known.clear()

    def forget(self) -> None:
        super().forget()
        self._known = {}
