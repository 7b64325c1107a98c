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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ...contract import Clock, Control, Entry, Lease, SessionDigest, StoredEntry
from .. import _sql
from .._base import check_batch, check_control, check_session_id, leased
from .._sql import Lineage, Script, SqlStore
from .._upcast import decode_log
from . import _statements as statements
from ._address import read_url

if TYPE_CHECKING:
    from ._loop import LoopSide

T = TypeVar("T")
TIMEOUT = 30.0
"""Seconds that one statement may take."""
LOCK_TIMEOUT = 10.0
"""Seconds to wait for another transaction's lock before ``SessionBusy``."""

_MANY = 500

_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_abandoned: list[Any] = []
"""Connections of a parent process, which are not ours to close."""


class PostgresStore(SqlStore):
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
        self._lineages: dict[str, Lineage] = {}
        self._sides: dict[asyncio.AbstractEventLoop, LoopSide] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _drop_all, self._sides)
        _open_stores.add(self)

    @property
    def secrets(self) -> Mapping[str, str]:
        # Every spelling of one password: the last is the password itself.
        spellings = dict.fromkeys(each.reveal() for each in reversed(self.address.passwords))
        label = f"the password of {self.address.label}"
        return {label if not place else f"{label} ({place})": each for place, each in enumerate(spellings)}

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
        rows = await self._side().read(session_id, _sql.READ_ENTRIES, after, upto)
        return [StoredEntry._make(row) for row in rows]

    async def _bodies(self, session_id: str, after: int, upto: int | None) -> list[bytes]:
        return [row[0] for row in await self._side().read(session_id, _sql.READ_BODIES, after, upto)]

    async def _decode(self, session_id: str, bodies: Sequence[bytes], after: int) -> list[Entry]:
        if len(bodies) < _MANY:
            return decode_log(session_id, bodies, after=after)
        # A long log takes a while, in which the event loop has others to serve.
        return await asyncio.to_thread(decode_log, session_id, bodies, after=after)

    async def post(self, control: Control) -> None:
        """Also notifies who waits in ``wait_for_post``, or for a change of the session."""
        check_control(control)
        await self._side().post(control)

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        await super().fork(source, at=at, target=target, first=first)
        self._side().ring(target)

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        """Also writes the tables anew (``VACUUM FULL``), which locks out everybody meanwhile. What the
        server's write-ahead log, its standbys and backups keep is beyond reach."""
        await super().erase(session_id, bodies)

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        """Also writes the tables anew, as ``erase`` does."""
        await super().delete_session(session_id, forks=forks, lease=lease)

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        epoch, holder, seconds = await self._side().claim(session_id, owner, ttl)
        if epoch is None:
            raise leased(session_id, holder, seconds)
        return Lease(session_id=session_id, owner=owner, epoch=epoch, ttl=ttl)

    async def wait_for_change(self, session_id: str, after: int, timeout: float) -> None:
        """Until the log may have grown past entry ``after``, ``timeout`` seconds at most."""
        await self._side().wait_for_change(session_id, after, self.tail, timeout)

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

    # What PostgreSQL does its own way

    async def _ask(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return await self._side().rows("read", sql, values)

    async def _tell(self, sql: str, values: Sequence[Any] = (), *, brief: bool = False) -> list[Any]:
        return await self._side().rows("write", sql, values)

    async def _change(self, script: Callable[[], Script[T]], *, brief: bool = False) -> T:
        return await self._side().change(script)

    async def _change_for_good(self, script: Callable[[], Script[bool]]) -> None:
        await self._side().change_for_good(script)

    def _make(self, session_id: str) -> Script[None]:
        yield statements.MAKE_SESSION, (session_id,)

    def _drop_blobs(self, names: set[str]) -> Script[None]:
        if names:
            yield statements.LOCK_BLOBS, ()
            yield statements.DROP_UNUSED_BLOBS, (sorted(names),)

    def _time(self) -> float | None:
        return self._now() if self._own_clock else None

    def _title(self, title: str | None) -> bytes | None:
        return None if title is None else title.encode()

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
            side = self._sides[loop] = LoopSide(self._origin, self._lineages, self._time)
        return side

    def _forget(self) -> None:
        _abandoned.append(dict(self._sides))
        self._sides.clear()
        self._lock = threading.Lock()


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
