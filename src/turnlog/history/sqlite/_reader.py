"""The reading half of the SQLite store; everything here runs on its thread."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from ...contract import AgentError, Control, Entry, LeaseHolder, SessionInfo, StoredEntry, Tail
from .. import _sql
from .._base import not_found
from .._listing import Listed, Query
from .._upcast import decode_rows, first_version_is_current
from ._file import Connection, FileId, file_id, load_apsw, open_reader, taken_away, translate

_HIDDEN = "SELECT 1 FROM sessions NOT INDEXED WHERE id = ? AND tail_seq > 0"
_DUE = _sql.DUE.format(now="?")
_abandoned: list[Any] = []
"""Connections of a parent process: closing one in the child could release the parent's locks."""


class Reader:
    def __init__(self, path: str, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._connection: Connection | None = None
        self._file: FileId | None = None

    def read(self, session_id: str, after: int, upto: int | None) -> list[StoredEntry]:
        make = StoredEntry._make
        rows = self._rows(session_id, _sql.READ_ENTRIES, after, upto)
        for seq, id, kind, body in rows:
            if type(body) is not bytes or type(id) is not str or type(kind) is not str:
                raise self._damaged(f"entry {seq} of session {session_id!r} cannot be read", seq)
        return [make(row) for row in rows]

    def _damaged(self, what: str, seq: int | None = None) -> AgentError:
        """A page that was overwritten reads as values that nobody wrote."""
        return AgentError(
            "SessionCorrupt",
            f"{self._path} is damaged: {what}; restore the file from a backup, or save what is readable with "
            "`sqlite3 FILE .recover`",
            meta={"path": self._path} | ({"seq": seq} if seq is not None else {}),
        )

    def load(self, session_id: str, after: int) -> list[Entry]:
        if after:
            head = self._rows(session_id, _sql.READ_BODIES, 0, 1)
            if head and not first_version_is_current(head[0][0]):
                return self.load(session_id, 0)[after:]
        with self._translated():
            return decode_rows(session_id, partial(self._bodies, session_id, after), after=after)

    def tail(self, session_id: str) -> Tail | None:
        row = self._one(_sql.FIND_SESSION, (session_id,))
        if row is None or row[1] == 0:
            return None
        return Tail(seq=row[1], id=row[2], hash=row[3])

    def list(self, query: Query, limit: int | None) -> list[Listed]:
        sql, values = _sql.list_sessions(query, limit)
        return [_sql.read_row(row) for row in self._all(sql, values) if type(row[0]) is str]

    def rows(self, sql: str) -> list[SessionInfo]:
        return [_sql.read_row(row).info for row in self._all(sql, ()) if type(row[0]) is str]

    def due(self, limit: int, now: str, time: float) -> list[str]:
        return [row[0] for row in self._all(_DUE, (time, now, limit))]

    def posted(self, session_id: str | None) -> list[Control]:
        rows = self._all(_sql.POSTED, ()) if session_id is None else self._all(_sql.POSTED_TO, (session_id,))
        return [_sql.read_control(row[0]) for row in rows]

    def holder(self, session_id: str, now: float) -> LeaseHolder | None:
        owner, epoch, until = self._one(_sql.FIND_HOLDER, (session_id,)) or (None, 0, 0.0)
        if owner is None or until <= now:
            return None
        return LeaseHolder(owner=owner, epoch=epoch, seconds_left=until - now)

    def blob(self, name: str) -> bytes | None:
        row = self._one(_sql.GET_BLOB, (name,))
        return None if row is None else row[0]

    def close(self) -> None:
        if self._file != file_id(self._path):
            self.forget()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        _abandoned.append(self._connection)
        self._connection = None

    def _bodies(self, session_id: str, after: int) -> Iterable[tuple[bytes]]:
        spans = self._spans(session_id, after, None)
        return chain.from_iterable(self._execute(_sql.READ_BODIES, span) for span in spans)

    def _rows(self, session_id: str, sql: str, after: int, upto: int | None) -> list[Any]:
        rows: list[Any] = []
        for span in self._spans(session_id, after, upto):
            rows += self._all(sql, span)
        return rows

    def _spans(self, session_id: str, after: int, upto: int | None) -> Iterator[tuple[int, int]]:
        last = _sql.LAST_SEQ if upto is None else upto
        for key, first, end in self._segments(session_id):
            low, high = max(after, first), min(last, end)
            if low < high:
                yield _sql.place(key, low), _sql.place(key, high)

    def _segments(self, session_id: str) -> Iterator[tuple[int, int, int]]:
        """(session key, after, up to) of each log that this session's log is made of, oldest first."""
        lineage = self._find_lineage(session_id)
        for place, (key, forked_at) in enumerate(lineage):
            end = lineage[place + 1][1] if place + 1 < len(lineage) else _sql.LAST_SEQ
            yield key, forked_at, end

    def _find_lineage(self, session_id: str) -> list[tuple[int, int]]:
        row = self._one(_sql.FIND_SESSION, (session_id,))
        if row is None and self._one(_HIDDEN, (session_id,)) is not None:
            raise self._damaged(f"session {session_id!r} is in it and not found by its id")
        if row is None or row[1] == 0:
            raise not_found(session_id)
        key, parent, forked_at = row[0], row[4], row[5]
        lineage = [(key, forked_at)]
        while parent is not None:
            key = parent
            parent, further = self._one(_sql.FIND_LINEAGE, (key,)) or (None, 0)
            # A fork of a fork may leave its parent before the parent left its own.
            if further < forked_at:
                lineage.append((key, further))
                forked_at = further
        return lineage[::-1]

    def _one(self, sql: str, values: Sequence[Any]) -> Any:
        found = self._all(sql, values)
        return found[0] if found else None

    def _all(self, sql: str, values: Sequence[Any]) -> list[Any]:
        with self._translated():
            return list(self._execute(sql, values))

    def _execute(self, sql: str, values: Sequence[Any]) -> Iterable[Any]:
        if self._connection is None:
            self._connection = open_reader(self._path, self._busy_timeout)
            if self._connection is None:
                return ()
            self._file = file_id(self._path)
        elif self._file != file_id(self._path):
            self.forget()
            raise taken_away(self._path, "read")
        return self._connection.execute(sql, values)

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except load_apsw().Error as error:
            raise translate(error, self._path, "read") from error


def gone(session_id: str, seq: int) -> AgentError:
    return AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")
