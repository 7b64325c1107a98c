"""Many workers on many machines: sessions in PostgreSQL.

``postgresql://user@host:port/database``; the tables live in the schema ``turnlog``, or in the one that
``?schema=name`` says, and are made on first use. What ``append`` returned is committed synchronously.
Appends that wait at the same time share one statement, and each succeeds or fails by itself. Connect to the
server itself, or through a pooler in session mode: statements are prepared, and followers listen.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..contract import Clock, Entry, Lease, SessionDigest, SessionInfo, StoredEntry, Tail, digest
from ._base import Listed, Query, StoreBase, check_batch, check_session_id, fenced, leased, no_blob
from ._postgres_address import read_url
from ._upcast import decode_log, first_version_is_current

if TYPE_CHECKING:
    from ._postgres_loop import LoopSide

TIMEOUT = 30.0
"""Seconds that one statement may take."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait for another transaction's lock before ``SessionBusy``."""

_KNOWN_SESSIONS = 10_000

_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_abandoned: list[Any] = []
"""Connections of a parent process, which are not ours to close."""


class PostgresStore(StoreBase):
    """Opened on first use. Any event loop of any thread may use it; each has a few connections of its own.

    Leases are measured by the server's clock unless one is handed in.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        clock: Clock | None = None,
        timeout: float = TIMEOUT,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> None:
        super().__init__(clock)
        self.address = read_url(url, schema)
        self._timeout = timeout
        self._lock_timeout = lock_timeout
        self._own_clock = clock is not None
        self._origin: Any = None
        self._lineages: dict[str, list[tuple[int, int]]] = {}
        self._sides: dict[asyncio.AbstractEventLoop, LoopSide] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _drop_all, self._sides)
        _open_stores.add(self)

    def __repr__(self) -> str:
        return f"PostgresStore({self.address.label}, schema {self.address.schema})"

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
        await self._side().append(session_id, batch, expected_tail, lease)

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        return await self._side().read(session_id, after, upto)

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        """The log after entry ``after``, decoded and migrated to the current schema."""
        side = self._side()
        if after and session_id not in self._current:
            head = await side.bodies(session_id, 0, 1)
            if not head or not first_version_is_current(head[0]):
                return (await self.load(session_id))[after:]
            if len(self._current) >= _KNOWN_SESSIONS:
                self._current.clear()
            self._current.add(session_id)
        return decode_log(session_id, await side.bodies(session_id, after, None), after=after)

    async def tail(self, session_id: str) -> Tail | None:
        return await self._side().tail(session_id)

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        found = await self._side().sessions()
        return [Listed(info, False) for info in found if query.fits_place(info)][:limit]

    async def _unfolded(self) -> list[SessionInfo]:
        return []

    async def _keep_digest(self, info: SessionInfo, digest: SessionDigest) -> None:
        return None

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        await self._side().fork(source, at, target, first)

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        """Also writes the tables anew (``VACUUM FULL``), which locks out everybody meanwhile. What the
        server's write-ahead log, its standbys and backups keep is beyond reach."""
        await self._side().erase(session_id, dict(bodies))

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{digest(data)}"
        await self._side().put_blob(name, data)
        return name

    async def get_blob(self, name: str) -> bytes:
        data = await self._side().get_blob(name)
        if data is None:
            raise no_blob(name)
        return data

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        epoch, holder, seconds = await self._side().claim(session_id, owner, ttl)
        if epoch is None:
            raise leased(session_id, holder, seconds)
        return Lease(session_id=session_id, owner=owner, epoch=epoch, ttl=ttl)

    async def renew(self, lease: Lease) -> None:
        found = await self._side().renew(lease)
        if found != lease.epoch:
            raise fenced(lease, found)

    async def release(self, lease: Lease) -> None:
        await self._side().release(lease)

    async def wait_for_change(self, session_id: str, after: int, timeout: float) -> None:
        """Until the log may have grown past entry ``after``, ``timeout`` seconds at most."""
        await self._side().wait_for_change(session_id, after, timeout)

    async def close(self) -> None:
        """Give the connections back. A later call opens new ones."""
        loop = asyncio.get_running_loop()
        with self._lock:
            side = self._sides.pop(loop, None)
            others, rest = list(self._sides.items()), self._sides
            rest.clear()
        if side is not None:
            await side.close()
        for other, side in others:
            if other.is_closed():
                side.drop()
            else:
                asyncio.run_coroutine_threadsafe(side.close(), other)

    def _side(self) -> LoopSide:
        """What belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        return self._sides.get(loop) or self._new_side(loop)

    def _new_side(self, loop: asyncio.AbstractEventLoop) -> LoopSide:
        from ._postgres_loop import LoopSide, Origin  # the driver loads here

        with self._lock:
            for other in [other for other in self._sides if other.is_closed()]:
                self._sides.pop(other).drop()
            if self._origin is None:
                self._origin = Origin(self.address, self._timeout, self._lock_timeout)
            now = self._now if self._own_clock else _server_time
            side = self._sides[loop] = LoopSide(self._origin, self._lineages, now)
        return side

    def _forget(self) -> None:
        _abandoned.append(dict(self._sides))
        self._sides.clear()
        self._lock = threading.Lock()


def _server_time() -> None:
    return None


def _drop_all(sides: dict[asyncio.AbstractEventLoop, LoopSide]) -> None:
    for loop, side in list(sides.items()):
        if loop.is_running():
            loop.call_soon_threadsafe(side.drop)
        else:
            side.drop()


def _after_fork() -> None:
    # The sockets are shared with the parent process: a word from here would end its connections.
    for store in list(_open_stores):
        store._forget()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
