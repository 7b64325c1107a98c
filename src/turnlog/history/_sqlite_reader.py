"""The reading half of the SQLite store; everything here runs on its thread."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from ..contract import AgentError, Entry, SessionInfo, StoredEntry, Tail
from . import _sql
from ._base import not_found
from ._sqlite_file import Connection, FileId, file_id, load_apsw, open_reader, taken_away, translate
from ._upcast import decode_rows, first_version_is_current

_abandoned: list[Any] = []
"""Connections of a parent process: closing one in the child could release the parent's locks."""


class Reader:
    def __init__(self, path: str, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._connection: Connection | None = None
        self._file: FileId | None = None
        self._lineages: dict[str, list[tuple[int, int]]] = {}

    def read(self, session_id: str, after: int, upto: int | None) -> list[StoredEntry]:
        make = StoredEntry._make
        rows = self._rows(session_id, _sql.READ_ENTRIES, after, upto)
        return [make(row) for row in rows]

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

    def sessions(self) -> list[SessionInfo]:
        return [
            SessionInfo(
                session_id=id,
                entries=entries,
                created_at=created_at,
                updated_at=updated_at,
                title=title,
                parent_session_id=parent,
                forked_at=forked_at if parent is not None else None,
            )
            for id, entries, created_at, updated_at, title, parent, forked_at in self._all(
                _sql.LIST_SESSIONS, ()
            )
        ]

    def blob(self, name: str) -> bytes | None:
        row = self._one(_sql.GET_BLOB, (name,))
        return None if row is None else row[0]

    def close(self) -> None:
        if self._file != file_id(self._path):
            self.forget()
        connection, self._connection = self._connection, None
        self._lineages = {}  # another file may be there when it is opened again
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        _abandoned.append(self._connection)
        self._connection = None
        self._lineages = {}

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
        lineage = self._lineages.get(session_id)
        if lineage is None:
            lineage = self._lineages[session_id] = self._find_lineage(session_id)
        for place, (key, forked_at) in enumerate(lineage):
            end = lineage[place + 1][1] if place + 1 < len(lineage) else _sql.LAST_SEQ
            yield key, forked_at, end

    def _find_lineage(self, session_id: str) -> list[tuple[int, int]]:
        row = self._one(_sql.FIND_SESSION, (session_id,))
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

    def _one(self, sql: str, values: tuple[Any, ...]) -> Any:
        found = self._all(sql, values)
        return found[0] if found else None

    def _all(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        with self._translated():
            return list(self._execute(sql, values))

    def _execute(self, sql: str, values: tuple[Any, ...]) -> Iterable[Any]:
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
