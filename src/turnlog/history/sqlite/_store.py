"""The default store: one SQLite file, many sessions, several processes.

Write-ahead log with full synchronisation: an acknowledged append survives power loss. One thread writes;
appends that wait at the same time share one transaction, and each succeeds or fails by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...contract import (
    AgentError,
    Clock,
    Control,
    Entry,
    JsonObject,
    Lease,
    LeaseHolder,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
    decode,
    encode,
)
from ...contract import digest as hash_of
from .. import _sql
from .._base import absolute, check_batch, check_control, check_session_id, no_blob, tail_of
from .._blank import title_of
from .._listing import Listed, Query, StoreBase, exact_time
from .._worker import Worker
from ._reader import Reader
from ._writer import AppendJob, ForkOrder, Writer, digest_row

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
        job.blobs = blobs
        if digest is not None:
            job.digest = digest_row(digest)
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
        return await self._reading.do(partial(self._reader.list, query, limit))

    async def _unfolded(self) -> list[SessionInfo]:
        return await self._reading.do(partial(self._reader.rows, _sql.UNFOLDED))

    async def _keep_digests(self, folded: Sequence[tuple[SessionInfo, SessionDigest]]) -> None:
        rows = [(*digest_row(digest), info.session_id, info.entries) for info, digest in folded]
        with suppress(AgentError):  # a store that can only be read is folded by each process
            await self._briefly(partial(self._writer.keep_digests, rows))

    async def _waiting(self) -> list[SessionInfo]:
        return await self._reading.do(partial(self._reader.rows, _sql.WAITING))

    async def _due(self, limit: int, now: str) -> list[str]:
        return await self._reading.do(partial(self._reader.due, limit, now, self._now()))

    async def wake(self, session_id: str, at: str | None) -> None:
        time = None if at is None else exact_time("at", at)
        await self._write(partial(self._writer.wake, session_id, time))

    async def post(self, control: Control) -> None:
        check_control(control)
        await self._write(partial(self._writer.post, control))

    async def posted(self, session_id: str | None = None) -> list[Control]:
        return await self._reading.do(partial(self._reader.posted, session_id))

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        await self._write(partial(self._writer.answer, control_id, encode(answer), self._now()))

    async def take_answer(self, control_id: str) -> JsonObject | None:
        body = await self._write(partial(self._writer.take_answer, control_id))
        return None if body is None else decode(body, JsonObject)

    async def withdraw(self, control_id: str) -> bool:
        return await self._write(partial(self._writer.withdraw, control_id))

    async def holder(self, session_id: str) -> LeaseHolder | None:
        return await self._reading.do(partial(self._reader.holder, session_id, self._now()))

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        updated_at, hash = tail_of(first)
        title = next(map(title_of, (stored.body for stored in await self.read(source, upto=1))), None)
        order = ForkOrder(source, at, target, tuple(first), title, updated_at, hash)
        await self._write(partial(self._writer.fork, order))

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        self._digests.clear()
        await self._write(partial(self._writer.erase, session_id, dict(bodies)))
        await self._wipe()

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        await self._write(partial(self._writer.delete, session_id, forks == "delete", lease, self._now()))
        await self._wipe()

    async def _wipe(self) -> None:
        await self._reading.do(self._reader.close)  # a reader of old pages would keep them in the log
        await self._writing.do(self._writer.wipe)

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{hash_of(data)}"
        await self._write(partial(self._writer.put_blob, name, data))
        return name

    async def get_blob(self, name: str) -> bytes:
        data = await self._reading.do(partial(self._reader.blob, name))
        if data is None:
            raise no_blob(name)
        return data

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        epoch = await self._briefly(partial(self._writer.claim, session_id, owner, ttl, self._now()))
        return Lease(session_id=session_id, owner=owner, epoch=epoch, ttl=ttl)

    async def renew(self, lease: Lease) -> None:
        await self._briefly(partial(self._writer.renew, lease, self._now() + lease.ttl))

    async def release(self, lease: Lease) -> None:
        await self._briefly(partial(self._writer.release, lease))

    async def close(self) -> None:
        """Give file and threads back. A later call opens the file again."""
        await self._reading.stop(self._reader.close)
        await self._writing.stop(self._writer.close)

    async def _write(self, work: Any) -> Any:
        return await self._writing.do(partial(self._writer.alone, work))

    async def _briefly(self, work: Any) -> Any:
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
