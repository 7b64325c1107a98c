"""The writing half of the SQLite store; everything here runs on its thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from ...contract import (
    AgentError,
    Control,
    Lease,
    SessionDigest,
    StoredEntry,
    digest,
    encode,
    read_envelope,
)
from .. import _sql
from .._base import (
    ANSWER_KEPT,
    check_free,
    exists_already,
    fenced,
    fork_beyond,
    forks_left,
    is_repeat,
    leased,
    moved_on,
    not_found,
    remember,
)
from .._blank import blobs_in, title_of
from .._worker import Job
from ._file import Connection, FileId, file_id, load_apsw, open_writer, taken_away, translate
from ._reader import _abandoned, gone  # pyright: ignore[reportPrivateUsage]

T = TypeVar("T")
_GROUP_LIMIT = 512
_MAKE_SESSION = (
    "INSERT INTO sessions (key, id) SELECT "
    "max((SELECT key FROM last_key), coalesce((SELECT max(key) FROM sessions), 0)) + 1, ?"
)


class AppendJob(Job):
    __slots__ = (
        "_writer",
        "batch",
        "blobs",
        "digest",
        "expected_tail",
        "hash",
        "lease",
        "lease_until",
        "session_id",
        "updated_at",
    )

    def __init__(
        self,
        writer: Writer,
        session_id: str,
        batch: Sequence[StoredEntry],
        expected_tail: int,
        updated_at: str,
        hash: str,
    ) -> None:
        super().__init__(_nothing)
        self._writer = writer
        self.session_id = session_id
        self.batch = batch
        self.expected_tail = expected_tail
        self.updated_at = updated_at
        self.hash = hash
        self.lease: Lease | None = None
        self.lease_until = 0.0
        self.digest: DigestRow = NO_DIGEST
        self.blobs: Sequence[bytes] = ()

    def run(self) -> None:
        try:
            self._writer.commit((self,))
        except BaseException as error:  # it belongs to whoever waits for the job
            self.error = error


def _nothing() -> None: ...


DigestRow: TypeAlias = tuple[str | None, bool | None, int | None, bytes | None]
NO_DIGEST: DigestRow = (None, None, None, None)


def digest_row(found: SessionDigest) -> DigestRow:
    return found.status, found.run_id is not None, found.pending, encode(found)


class ForkOrder(NamedTuple):
    source: str
    at: int
    target: str
    first: tuple[StoredEntry, ...]
    title: str | None
    updated_at: str
    hash: str


class _Row(NamedTuple):
    key: int
    tail_seq: int
    tail_id: str | None
    tail_hash: str | None
    parent: int | None
    forked_at: int
    epoch: int
    owner: str | None
    lease_until: float


class Writer:
    def __init__(self, path: str, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._connection: Connection | None = None
        self._file: FileId | None = None
        self._keys: dict[str, int] = {}

    # Jobs

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
                job.run()
                yield [job]
        if waiting:
            self.commit(waiting)
            yield list(waiting)

    def briefly(self, work: Callable[[], T]) -> T:
        """``alone`` for leases: a power loss may undo it, as it ends every process that could hold one. What
        an append makes durable after it includes it."""
        connection = self._open()
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            return self.alone(work)
        finally:
            connection.execute("PRAGMA synchronous = FULL")

    def alone(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a transaction of its own."""
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                value = work()
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except load_apsw().Error as error:
            raise translate(error, self._path, "write") from error
        return value

    def commit(self, jobs: Sequence[AppendJob]) -> None:
        """All of ``jobs`` in one transaction; each gets its own error where it has one."""
        try:
            connection = self._open()
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
            if len(jobs) == 1:
                jobs[0].error = self._explain(error, jobs[0])
                return
            for job in jobs:  # each on its own, so that one that cannot be written harms no other
                self.commit([job])

    def _roll_back(self) -> None:
        self._keys.clear()  # some may name sessions that now were never made
        connection = self._connection
        if connection is not None and connection.in_transaction:
            connection.execute("ROLLBACK")

    def _explain(self, error: Exception, job: AppendJob) -> AgentError:
        if isinstance(error, load_apsw().ConstraintError):
            return AgentError(
                "InvalidEntry",
                f"an entry for session {job.session_id!r} has an id that another entry of this store has; "
                "ids must be unique everywhere: check the id source",
                cause=error,
            )
        return translate(error, self._path, "write")

    # Appending

    def _append(self, connection: Connection, job: AppendJob) -> AgentError | None:
        """Write one batch, or say why not, having written nothing."""
        batch = job.batch
        last = batch[-1]
        key = self._keys.get(job.session_id)
        if key is None:
            row = self._find(job.session_id)
            if row is None and job.expected_tail == 0 and job.lease is None:
                key = self._make(job.session_id)
            elif row is None:
                return fenced(job.lease, 0) if job.lease else moved_on(job.session_id, job.expected_tail, 0)
            else:
                key = row.key
            remember(self._keys, job.session_id, key)
        moved = (last.seq, last.id, job.hash, job.updated_at, *job.digest)
        if job.lease is None:
            connection.execute(_sql.MOVE_TAIL, (*moved, key, job.expected_tail))
        else:
            guard = (key, job.expected_tail, job.lease.epoch, job.lease.owner)
            connection.execute(_sql.MOVE_TAIL_LEASED, (*moved, job.lease_until, *guard))
        if connection.changes() == 0:
            row = self._find(job.session_id)
            if row is None or row.key != key:  # deleted meanwhile, and perhaps made anew
                del self._keys[job.session_id]
                return self._append(connection, job)
            return self._why_not(job, row)
        if job.expected_tail == 0:
            first = read_envelope(batch[0].body)
            connection.execute(_sql.NAME_SESSION, (title_of(batch[0].body), first.timestamp, None, 0, key))
        self._insert(connection, key, batch)
        for data in job.blobs:
            self.put_blob(f"sha256-{digest(data)}", data)
        return None

    def _insert(self, connection: Connection, key: int, batch: Sequence[StoredEntry]) -> None:
        base = key << _sql.SEQ_BITS
        connection.executemany(
            _sql.ADD_ENTRY, [(base | seq, id, kind, body) for seq, id, kind, body in batch]
        )

    def _make(self, session_id: str) -> int:
        connection = self._open()
        connection.execute(_MAKE_SESSION, (session_id,))
        return connection.last_insert_rowid()

    def _why_not(self, job: AppendJob, row: _Row) -> AgentError | None:
        if job.lease is not None and (job.lease.epoch, job.lease.owner) != (row.epoch, row.owner):
            return fenced(job.lease, row.epoch)
        if job.expected_tail >= row.forked_at and self._has(row.key, job.batch):
            return None  # the same batch again: it was done
        return moved_on(job.session_id, job.expected_tail, row.tail_seq)

    def _has(self, key: int, batch: Sequence[StoredEntry]) -> bool:
        span = (_sql.place(key, batch[0].seq - 1), _sql.place(key, batch[-1].seq))
        return is_repeat(batch, (row[0] for row in self._open().execute(_sql.FIND_IDS, span).fetchall()))

    # Forks, purges, blobs

    def fork(self, order: ForkOrder) -> None:
        source = self._row(order.source)
        if not 0 < order.at <= source.tail_seq:
            raise fork_beyond(order.source, order.at, source.tail_seq)
        held = self._find(order.target)
        if held is not None and held.tail_seq:
            if held.parent == source.key and self._has(held.key, order.first):
                return
            raise exists_already(order.target)
        connection = self._open()
        key = held.key if held else self._make(order.target)
        created_at = read_envelope(order.first[0].body).timestamp
        connection.execute(_sql.NAME_SESSION, (order.title, created_at, source.key, order.at, key))
        last = order.first[-1]
        moved = (last.seq, last.id, order.hash, order.updated_at, *NO_DIGEST)
        connection.execute(_sql.MOVE_TAIL, (*moved, key, 0))
        self._insert(connection, key, order.first)

    def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        connection = self._open()
        names: set[str] = set()
        for seq, body in bodies.items():
            key = self._owner(session_id, seq)
            place = _sql.place(key, seq)
            old = connection.execute(_sql.READ_BODY, (place,)).fetchone()
            if old is None:
                raise gone(session_id, seq)
            names |= blobs_in(old[0])
            connection.execute(_sql.REPLACE_BODY, (body, place))
            connection.execute(_sql.FORGET_DIGESTS, (key,))  # which may hold words of it
            if seq == 1:
                connection.execute(_sql.RENAME, (title_of(body), key))
        self._drop_unused(names)

    def delete(self, session_id: str, forks: bool, lease: Lease | None, now: float) -> None:
        connection = self._open()
        row = self._find(session_id)
        if row is None or row.tail_seq == 0:
            raise not_found(session_id)
        family = connection.execute(_sql.FIND_FAMILY, (row.key,)).fetchall()
        if len(family) > 1 and not forks:
            raise forks_left(session_id, [id for key, id, _, _ in family if key != row.key])
        for _, id, owner, until in family:
            check_free(owner, until - now, id, lease)
        names: set[str] = set()
        for key, id, _, _ in family:
            span = (_sql.place(key, 0), _sql.place(key, _sql.LAST_SEQ))
            for (body,) in connection.execute(_sql.READ_BODIES, span):
                names |= blobs_in(body)
            connection.execute(_sql.DROP_ENTRIES, span)
            connection.execute(_sql.DROP_SESSION, (key,))
            connection.execute(_sql.DROP_CONTROLS, (id,))
            self._keys.pop(id, None)
        connection.execute("UPDATE last_key SET key = max(key, ?)", (max(key for key, _, _, _ in family),))
        self._drop_unused(names)

    def _drop_unused(self, names: set[str]) -> None:
        """Drop the stored bytes of these that no entry names any more."""
        connection = self._open()
        gone = set(names)
        if names:
            for (body,) in connection.execute("SELECT body FROM entries WHERE instr(body, 'sha256-')"):
                gone -= blobs_in(body)
        for name in gone:
            connection.execute(_sql.DROP_BLOB, (name,))

    def wipe(self) -> None:
        """Write the file anew and empty its log, so that nothing replaced remains in either."""
        apsw = load_apsw()
        try:
            connection = self._open()
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

    def put_blob(self, name: str, data: bytes) -> None:
        self._open().execute(_sql.ADD_BLOB, (name, data))

    # Digests, wake times, controls

    def keep_digests(self, rows: Sequence[Sequence[object]]) -> None:
        self._open().executemany(_sql.KEEP_DIGEST, rows)

    def wake(self, session_id: str, at: str | None) -> None:
        connection = self._open()
        connection.execute(_sql.WAKE, (at, session_id))
        if connection.changes() == 0:
            raise not_found(session_id)

    def post(self, control: Control) -> None:
        self._open().execute(_sql.POST, (control.id, control.session_id, encode(control)))

    def answer(self, control_id: str, answer: bytes, now: float) -> None:
        connection = self._open()
        connection.execute(_sql.ANSWER, (answer, now, control_id))
        connection.execute(_sql.DROP_ANSWERS, (now - ANSWER_KEPT,))

    def take_answer(self, control_id: str) -> bytes | None:
        row = self._open().execute(_sql.TAKE_ANSWER, (control_id,)).fetchone()
        return None if row is None else row[0]

    def withdraw(self, control_id: str) -> bool:
        connection = self._open()
        connection.execute(_sql.WITHDRAW, (control_id,))
        return connection.execute(_sql.IS_ANSWERED, (control_id,)).fetchone() is None

    # Leases

    def claim(self, session_id: str, owner: str, ttl: float, now: float) -> int:
        row = self._find(session_id)
        if row is None:
            self._make(session_id)
            row = self._row(session_id)
        if row.owner is not None and row.owner != owner and row.lease_until > now:
            raise leased(session_id, row.owner, row.lease_until - now)
        self._open().execute(_sql.CLAIM, (row.epoch + 1, owner, now + ttl, row.key, row.epoch))
        return row.epoch + 1

    def renew(self, lease: Lease, until: float) -> None:
        connection = self._open()
        connection.execute(_sql.RENEW, (until, lease.session_id, lease.epoch, lease.owner))
        if connection.changes() == 0:
            row = self._find(lease.session_id)
            raise fenced(lease, row.epoch if row else 0)

    def release(self, lease: Lease) -> None:
        self._open().execute(_sql.RELEASE, (lease.session_id, lease.epoch, lease.owner))

    # Rows and the connection

    def _owner(self, session_id: str, seq: int) -> int:
        """The session that really holds entry ``seq`` of this one: itself, or the one it was forked from."""
        row = self._row(session_id)
        if not 0 < seq <= row.tail_seq:
            raise gone(session_id, seq)
        key, parent, forked_at = row.key, row.parent, row.forked_at
        while seq <= forked_at and parent is not None:
            key = parent
            found = self._open().execute(_sql.FIND_LINEAGE, (key,)).fetchone()
            parent, forked_at = found if found is not None else (None, 0)
        return key

    def _find(self, session_id: str) -> _Row | None:
        row = self._open().execute(_sql.FIND_SESSION, (session_id,)).fetchone()
        return None if row is None else _Row._make(row)

    def _row(self, session_id: str) -> _Row:
        row = self._find(session_id)
        if row is None:
            raise not_found(session_id)
        return row

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = open_writer(self._path, self._busy_timeout)
            self._file = file_id(self._path)
        elif self._file != file_id(self._path):
            # Closing it would remove the side files of the one that is there now, by their names.
            self.forget()
            raise taken_away(self._path, "write")
        return self._connection

    def close(self) -> None:
        if self._file != file_id(self._path):
            self.forget()
        connection, self._connection = self._connection, None
        self._keys.clear()
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        _abandoned.append(self._connection)
        self._connection = None
        self._keys = {}


__all__ = ["AppendJob", "ForkOrder", "Writer"]
