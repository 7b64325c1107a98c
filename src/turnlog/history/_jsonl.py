"""A folder with one readable file per session. What append returned survives the death of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ..contract import Clock, Lease, SessionDigest, SessionInfo, StoredEntry, Tail, digest
from ._base import Listed, Query, StoreBase, absolute, check_batch, check_session_id
from ._jsonl_file import check_lines
from ._jsonl_folder import Folder
from ._worker import Worker

BUSY_TIMEOUT = 10.0


class JsonlStore(StoreBase):
    """Opened on first use; usable from any event loop, and from several processes at once."""

    def __init__(
        self, folder: str | Path, *, clock: Clock | None = None, busy_timeout: float = BUSY_TIMEOUT
    ) -> None:
        super().__init__(clock)
        self.folder = Path(absolute(folder))
        self._files = Folder(self.folder, busy_timeout)
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
        await self._worker.do(
            partial(self._files.append, session_id, tuple(batch), expected_tail, lease, until)
        )

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        check_session_id(session_id)
        return await self._worker.do(partial(self._files.read, session_id, after, upto))

    async def tail(self, session_id: str) -> Tail | None:
        check_session_id(session_id)
        return await self._worker.do(partial(self._files.tail, session_id))

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        found = await self._worker.do(self._files.sessions)
        return [Listed(info, False) for info in found if query.fits_place(info)][:limit]

    async def _unfolded(self) -> list[SessionInfo]:
        return []

    async def _keep_digest(self, info: SessionInfo, digest: SessionDigest) -> None:
        return None

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        check_lines(first)
        await self._worker.do(partial(self._files.fork, source, at, target, tuple(first)))

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        await self._worker.do(partial(self._files.erase, session_id, dict(bodies)))

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{digest(data)}"
        await self._worker.do(partial(self._files.put_blob, name, data))
        return name

    async def get_blob(self, name: str) -> bytes:
        return await self._worker.do(partial(self._files.get_blob, name))

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        epoch = await self._worker.do(partial(self._files.claim, session_id, owner, ttl, self._now()))
        return Lease(session_id=session_id, owner=owner, epoch=epoch, ttl=ttl)

    async def renew(self, lease: Lease) -> None:
        await self._worker.do(partial(self._files.renew, lease, self._now() + lease.ttl))

    async def release(self, lease: Lease) -> None:
        await self._worker.do(partial(self._files.release, lease))

    async def close(self) -> None:
        await self._worker.stop(self._files.forget)
