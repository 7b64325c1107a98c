"""The default store: one SQLite file, many sessions, several processes.

Write-ahead log with full synchronisation: an acknowledged append survives power loss. One thread writes;
appends that wait at the same time share one transaction, and each succeeds or fails by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ...contract import Clock, Control, Entry, Lease, SessionDigest, StoredEntry, encode
from .. import _sql
from .._base import absolute, check_batch, check_control, check_session_id, leased, tail_of
from .._blank import blobs_in
from .._sql import Row, Script, SqlStore
from .._worker import Worker
from ._engine import MAKE_SESSION, AppendJob, Reader, Writer

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

    async def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        *,
        expected_tail: int,
        lease: Lease | None = None,
        digest: SessionDigest | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        check_batch(session_id, batch, expected_tail)
        until = 0.0 if lease is None else self._now() + lease.ttl
        tail = tail_of(batch)
        await self._writing.submit(
            AppendJob(self._writer, session_id, batch, expected_tail, tail, lease, until, digest, blobs)
        )

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        return await self._reading.do(partial(self._reader.read, session_id, after, upto))

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        return await self._reading.do(partial(self._reader.load, session_id, after))

    async def post(self, control: Control) -> None:
        check_control(control)
        await self._tell(_sql.POST, (control.id, control.session_id, encode(control)))

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        now = self._now()

        def script() -> Script[int]:
            rows = yield _sql.FIND_SESSION, (session_id,)
            if not rows:
                yield from self._make(session_id)
                rows = yield _sql.FIND_SESSION, (session_id,)
            row = Row._make(rows[0])
            if row.owner is not None and row.owner != owner and row.lease_until > now:
                raise leased(session_id, row.owner, row.lease_until - now)
            yield _CLAIM, (row.epoch + 1, owner, now + ttl, row.key)
            return row.epoch + 1

        epoch = await self._change(script, brief=True)
        return Lease(session_id=session_id, owner=owner, epoch=epoch, ttl=ttl)

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
