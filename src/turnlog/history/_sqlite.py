"""The default store: one SQLite file, many sessions, several processes.

Write-ahead log with full synchronisation: an acknowledged append survives power loss. One thread writes;
appends that wait at the same time share one transaction, and each succeeds or fails by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..contract import Clock, Entry, Lease, SessionDigest, SessionInfo, StoredEntry, Tail, digest
from ._base import Listed, Query, StoreBase, absolute, check_batch, check_session_id, no_blob, tail_of
from ._blank import title_of
from ._sqlite_reader import Reader
from ._sqlite_writer import AppendJob, ForkOrder, Writer
from ._worker import Worker

BUSY_TIMEOUT = 10.0
"""Seconds to wait for another process's lock before ``SessionBusy``."""

_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


class SqliteStore(StoreBase):
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
        updated_at, hash = tail_of(batch)
        job = AppendJob(self._writer, session_id, batch, expected_tail, updated_at, hash)
        if lease is not None:
            job.lease, job.lease_until = lease, self._now() + lease.ttl
        await self._writing.submit(job)

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        return await self._reading.do(partial(self._reader.read, session_id, after, upto))

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        return await self._reading.do(partial(self._reader.load, session_id, after))

    async def tail(self, session_id: str) -> Tail | None:
        return await self._reading.do(partial(self._reader.tail, session_id))

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        found = await self._reading.do(self._reader.sessions)
        return [Listed(info, False) for info in found if query.fits_place(info)][:limit]

    async def _unfolded(self) -> list[SessionInfo]:
        return []

    async def _keep_digest(self, info: SessionInfo, digest: SessionDigest) -> None:
        return None

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        updated_at, hash = tail_of(first)
        title = next(map(title_of, (stored.body for stored in await self.read(source, upto=1))), None)
        order = ForkOrder(source, at, target, tuple(first), title, updated_at, hash)
        await self._write(partial(self._writer.fork, order))

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        await self._write(partial(self._writer.erase, session_id, dict(bodies)))
        await self._reading.do(self._reader.close)  # a reader of old pages would keep them in the log
        await self._writing.do(self._writer.wipe)

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{digest(data)}"
        await self._write(partial(self._writer.put_blob, name, data))
        return name

    async def get_blob(self, name: str) -> bytes:
        data = await self._reading.do(partial(self._reader.blob, name))
        if data is None:
            raise no_blob(name)
        return data

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        epoch = await self._lease(partial(self._writer.claim, session_id, owner, ttl, self._now()))
        return Lease(session_id=session_id, owner=owner, epoch=epoch, ttl=ttl)

    async def renew(self, lease: Lease) -> None:
        await self._lease(partial(self._writer.renew, lease, self._now() + lease.ttl))

    async def release(self, lease: Lease) -> None:
        await self._lease(partial(self._writer.release, lease))

    async def close(self) -> None:
        """Give file and threads back. A later call opens the file again."""
        await self._reading.stop(self._reader.close)
        await self._writing.stop(self._writer.close)

    async def _write(self, work: Any) -> Any:
        return await self._writing.do(partial(self._writer.alone, work))

    async def _lease(self, work: Any) -> Any:
        return await self._writing.do(partial(self._writer.briefly, work))

    def _forget(self) -> None:
        for engine in (self._writer, self._reader):
            engine.forget()
        for worker in (self._writing, self._reading):
            worker.forget()


def _after_fork() -> None:
    # Locks and threads stay with the parent process; using its connections here could damage the file.
    for store in list(_open_stores):
        store._forget()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
