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
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

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
from .._base import (
    KNOWN_SESSIONS,
    check_batch,
    check_control,
    check_session_id,
    fenced,
    leased,
    no_blob,
    not_found,
)
from .._listing import Listed, Query, StoreBase, exact_time
from .._upcast import decode_log, first_version_is_current
from ._address import read_url

if TYPE_CHECKING:
    from ._loop import LoopSide

TIMEOUT = 30.0
"""Seconds that one statement may take."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait for another transaction's lock before ``SessionBusy``."""

_MANY = 500

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
        await self._side().append(session_id, batch, expected_tail, lease, digest, blobs)

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        return await self._side().read(session_id, after, upto)

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        """The log after entry ``after``, decoded and migrated to the current schema."""
        side = self._side()
        if after and session_id not in self._current:
            head = await side.bodies(session_id, 0, 1)
            if not head or not first_version_is_current(head[0]):
                return (await self.load(session_id))[after:]
            if len(self._current) >= KNOWN_SESSIONS:
                self._current.clear()
            self._current.add(session_id)
        bodies = await side.bodies(session_id, after, None)
        if len(bodies) < _MANY:
            return decode_log(session_id, bodies, after=after)
        # A long log takes a while, in which the event loop has others to serve.
        return await asyncio.to_thread(decode_log, session_id, bodies, after=after)

    async def tail(self, session_id: str) -> Tail | None:
        return await self._side().tail(session_id)

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        return await self._side().list(query, limit)

    async def _unfolded(self) -> list[SessionInfo]:
        return await self._side().infos(_sql.UNFOLDED)

    async def _keep_digests(self, folded: Sequence[tuple[SessionInfo, SessionDigest]]) -> None:
        with suppress(AgentError):  # a server that can only be read is folded by each process
            await self._side().keep_digests(folded)

    async def _waiting(self) -> list[SessionInfo]:
        return await self._side().infos(_sql.WAITING)

    async def _due(self, limit: int, now: str) -> list[str]:
        return await self._side().due(limit, now)

    async def wake(self, session_id: str, at: str | None) -> None:
        if not await self._side().wake(session_id, None if at is None else exact_time("at", at)):
            raise not_found(session_id)

    async def post(self, control: Control) -> None:
        """Also notifies who waits in ``wait_for_post``, or for a change of the session."""
        check_control(control)
        await self._side().post(control)

    async def posted(self, session_id: str | None = None) -> list[Control]:
        return await self._side().posted(session_id)

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        await self._side().answer(control_id, encode(answer))

    async def take_answer(self, control_id: str) -> JsonObject | None:
        body = await self._side().take_answer(control_id)
        return None if body is None else decode(body, JsonObject)

    async def withdraw(self, control_id: str) -> bool:
        return await self._side().withdraw(control_id)

    async def holder(self, session_id: str) -> LeaseHolder | None:
        return await self._side().holder(session_id)

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        await self._side().fork(source, at, target, first)

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        """Also writes the tables anew (``VACUUM FULL``), which locks out everybody meanwhile. What the
        server's write-ahead log, its standbys and backups keep is beyond reach."""
        self._digests.clear()
        await self._side().erase(session_id, dict(bodies))

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        """Also writes the tables anew, as ``erase`` does."""
        await self._side().delete(session_id, forks == "delete", lease)

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{hash_of(data)}"
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

    async def wait_for_post(self, timeout: float) -> None:
        """Until a control may have been posted to any session, ``timeout`` seconds at most."""
        await self._side().wait_for_post(timeout)

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
        from ._loop import LoopSide, Origin  # the driver loads here

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
