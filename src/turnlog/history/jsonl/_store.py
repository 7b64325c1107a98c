"""A folder with one readable file per session. What append returned survives the death of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

from ...contract import (
    Clock,
    Lease,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
)
from ...contract import digest as hash_of
from .._base import NOT_DUE, Listed, Query, absolute, check_batch, check_session_id, remember, tail_of
from .._rows import Controls, LeaseRow, RowStore
from .._worker import Worker
from ._file import check_lines
from ._folder import Folder
from ._lock import Contended

T = TypeVar("T")
_NAP = 0.003

BUSY_TIMEOUT = 10.0


class JsonlStore(RowStore):
    """Opened on first use; usable from any event loop, and from several processes at once."""

    def __init__(
        self, folder: str | Path, *, clock: Clock | None = None, busy_timeout: float = BUSY_TIMEOUT
    ) -> None:
        super().__init__(clock)
        self.folder = Path(absolute(folder))
        self._files = Folder(self.folder)
        self._busy_timeout = busy_timeout
        self._worker = Worker("turnlog-jsonl")

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
        check_lines(batch)
        until = self._now() + lease.ttl if lease else 0.0
        await self._do(
            partial(self._files.append, session_id, tuple(batch), expected_tail, lease, until, tuple(blobs))
        )
        if digest is not None:  # kept in memory alone: other processes fold the file
            remember(self._digests, session_id, (batch[-1].seq, tail_of(batch)[0], digest))

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        check_session_id(session_id)
        return await self._do(partial(self._files.read, session_id, after, upto))

    async def tail(self, session_id: str) -> Tail | None:
        check_session_id(session_id)
        return await self._do(partial(self._files.tail, session_id))

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        found = [info for info in await self._unfolded() if query.fits_place(info)]
        found.sort(key=lambda info: (info.updated_at, info.session_id), reverse=True)
        return [Listed(info, False) for info in found[:limit]]

    async def _unfolded(self) -> list[SessionInfo]:
        return await self._do(self._files.sessions)

    async def _waiting(self) -> list[SessionInfo]:
        return []

    async def _due(self, limit: int, now: str) -> list[str]:
        found: list[str] = []
        for info in sorted(await self._fold_all(), key=lambda info: (info.updated_at, info.session_id)):
            if info.run_id is None or info.status in NOT_DUE:
                continue
            if (await self._lease(info.session_id)).lets_in(now, self._now()):
                found.append(info.session_id)
        return found[:limit]

    async def _change_lease(
        self, session_id: str, change: Callable[[LeaseRow], T], *, make: bool = False
    ) -> T:
        check_session_id(session_id)
        return await self._do(partial(self._files.change_lease, session_id, change, make))

    async def _lease(self, session_id: str) -> LeaseRow:
        check_session_id(session_id)
        return await self._do(partial(self._files.lease, session_id))

    async def _change_controls(self, change: Callable[[Controls], T]) -> T:
        return await self._do(partial(self._files.change_controls, change))

    async def _controls_now(self) -> Controls:
        return await self._do(self._files.controls)

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        check_lines(first)
        await self._do(partial(self._files.fork, source, at, target, tuple(first)))

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        self._digests.clear()
        await self._do(partial(self._files.erase, session_id, dict(bodies)))

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        check_session_id(session_id)
        await self._do(partial(self._files.delete, session_id, forks == "delete", lease, self._now()))

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{hash_of(data)}"
        await self._do(partial(self._files.put_blob, name, data))
        return name

    async def get_blob(self, name: str) -> bytes:
        return await self._do(partial(self._files.get_blob, name))

    async def read_snapshot(self, session_id: str) -> bytes | None:
        check_session_id(session_id)
        return await self._do(partial(self._files.read_snapshot, session_id))

    async def write_snapshot(self, session_id: str, seq: int, hash: str, data: bytes) -> None:
        check_session_id(session_id)
        await self._do(partial(self._files.write_snapshot, session_id, seq, hash, data))

    async def close(self) -> None:
        await self._worker.stop(self._files.forget)

    async def _do(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the store's thread; other jobs run while it waits for another process's lock."""
        deadline = monotonic() + self._busy_timeout
        while True:
            try:
                return await self._worker.do(work)
            except Contended:
                if monotonic() > deadline:
                    raise
            await asyncio.sleep(_NAP)
