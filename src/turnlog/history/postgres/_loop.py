"""The PostgreSQL store as one event loop has it: its connections, and what is asked through them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from ...contract import AgentError, Control, Lease, SessionDigest, StoredEntry, Tail, encode
from .. import _sql
from .._base import remember
from .._sql import Lineage, Script
from . import _statements as statements
from ._address import Address
from ._appends import WRITERS, AppendQueue, Batch, play
from ._link import Diagnostic, Doing, DriverError, Link, translate
from ._pool import Origin, Pool
from ._statements import say

T = TypeVar("T")
READERS = 3
"""Connections of a loop beside those that append."""
_CLAIM_TRIES = 10


class LoopSide:
    def __init__(self, origin: Origin, lineages: dict[str, Lineage], now: Callable[[], float | None]) -> None:
        self._origin = origin
        self._lineages = lineages
        self._now = now
        self._pool = Pool(origin, READERS)
        self._writing = Pool(origin, WRITERS)
        self._bell = Bell(origin, self._pool)
        self.ring = self._bell.ring
        self.wait_for_post = self._bell.wait_for_post
        self._appends = AppendQueue(self._writing, now, self._bell.ring)

    async def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        expected: int,
        lease: Lease | None,
        digest: SessionDigest | None,
        blobs: Sequence[bytes],
    ) -> None:
        await self._appends.append(Batch(session_id, batch, expected, lease, digest, blobs))

    async def rows(self, doing: Doing, sql: str, values: Sequence[Any]) -> list[Any]:
        return await self._pool.do(doing, lambda link: link.rows(say(sql), values))

    async def change(self, script: Callable[[], Script[T]]) -> T:
        async def work(link: Link) -> T:
            async with link.transaction():
                return await play(link, script())

        return await self._writing.do("write", work)

    async def change_for_good(self, script: Callable[[], Script[bool]]) -> None:
        await self._writing.do("write", partial(_rewritten, self._origin.address, script))

    async def read(self, session_id: str, sql: str, after: int, upto: int | None) -> list[Any]:
        """The rows of a statement that reads entries."""
        return await self._pool.do("read", partial(self._read, session_id, sql, after, upto))

    async def _read(self, session_id: str, sql: str, after: int, upto: int | None, link: Link) -> list[Any]:
        while True:
            lineage = self._lineages.get(session_id)
            known = lineage is not None
            if lineage is None:
                lineage = await play(link, _sql.lineage_of(session_id))
                remember(self._lineages, session_id, lineage)
            rows: list[Any] = []
            for span in _sql.spans(lineage, after, upto):
                rows += await link.rows(statements.guarded(sql), (*span, session_id, lineage[-1][0]))
            if rows or not known:
                return rows
            # Nothing to read, or the session is not the one that is remembered.
            self._lineages.pop(session_id, None)

    async def post(self, control: Control) -> None:
        values = (control.id, control.session_id, encode(control), *self._bell.posting(control.session_id))
        await self.rows("write", statements.POST, values)
        self._bell.heard_post(control.session_id)

    async def claim(self, session_id: str, owner: str, ttl: float) -> tuple[int | None, str, float]:
        """(epoch, …) of the new lease, or (None, holder, seconds left)."""
        values = {"now": self._now(), "session": session_id, "owner": owner, "ttl": ttl}
        for _ in range(_CLAIM_TRIES):  # nothing comes back when someone else made the session just now
            rows = await self._pool.do("write", lambda link: link.rows(statements.CLAIM, values))
            for row in rows:
                if row[0] is not None or (row[1] is not None and row[2] > 0):
                    return row
        raise AgentError("SessionBusy", f"session {session_id!r} is claimed by many at once; try again")

    async def wait_for_change(
        self, session_id: str, after: int, tail: Callable[[str], Any], timeout: float
    ) -> None:
        async def changed() -> bool:
            found: Tail | None = await tail(session_id)
            return found is not None and found.seq > after

        await self._bell.wait(session_id, changed, timeout)

    async def close(self) -> None:
        await self._writing.close()
        await self._bell.close()
        await self._pool.close()

    def drop(self) -> None:
        for part in (self._bell, self._writing, self._pool):
            part.drop()


# Telling others that a session grew, and hearing of it: LISTEN and NOTIFY, a hint that may be lost

GATHER = 0.02
"""Seconds between two notifications of a process."""
_MAX_PAYLOAD = 7_500  # bytes; the server takes 7,999
_EVERYTHING = "*"  # for "some of many"
_POSTS = "\t"  # no session has such an id: a control was posted
_IDLE = 30.0
_RETRY = 1.0
_WITHOUT = 0.2
"""Seconds between two looks while nothing can be heard."""


class Bell:
    """Belongs to one event loop."""

    def __init__(self, origin: Origin, pool: Pool) -> None:
        self._origin = origin
        self._pool = pool
        self._channel = f"turnlog_{origin.address.schema}"
        self._changed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._up: asyncio.Future[None] | None = None
        self._link: Link | None = None

    # Telling

    def ring(self, session_id: str) -> None:
        """A session grew."""
        self._wake(session_id)
        self._changed.add(session_id)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait = max(self._last + GATHER - loop.time(), 0.0)
            self._timer = loop.call_later(wait, self._tell_soon)

    def _tell_soon(self) -> None:
        self._last = asyncio.get_running_loop().time()
        self._timer = None
        self._pool.start(self._tell(self._take_changed()))

    def _take_changed(self) -> str:
        changed, self._changed = self._changed, set()
        payload = "\n".join(changed)
        return payload if len(payload.encode()) <= _MAX_PAYLOAD else _EVERYTHING

    async def _tell(self, payload: str) -> None:
        with suppress(AgentError):  # only a hint: subscribers also look at intervals
            await self._pool.run("write", partial(self._notify, payload))

    async def _notify(self, payload: str, link: Link) -> None:
        await link.rows(statements.NOTIFY, (self._channel, payload))

    def posting(self, session_id: str) -> tuple[str, str]:
        """Channel and payload of the notification that a control was posted."""
        return self._channel, f"{session_id}\n{_POSTS}"

    def heard_post(self, session_id: str) -> None:
        """What this process posted itself."""
        self._wake(session_id)
        self._wake(_POSTS)

    # Hearing

    async def wait_for_post(self, timeout: float) -> None:
        """Until a control may have been posted to any session, ``timeout`` seconds at most."""

        async def changed() -> bool:
            return False

        await self.wait(_POSTS, changed, timeout)

    async def wait(self, session_id: str, changed: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """Until something may have changed in the session, ``timeout`` seconds at most."""
        heard = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session_id, set()).add(heard)
        try:
            if not await self._listening():
                await asyncio.sleep(min(timeout, _WITHOUT))
            elif not await changed():  # before we listened
                await asyncio.wait([heard], timeout=timeout)
        finally:
            heard.cancel()
            rest = self._waiting[session_id]
            rest.discard(heard)
            if not rest:
                del self._waiting[session_id]

    async def _listening(self) -> bool:
        if self._listener is None or self._listener.done():
            self._up = asyncio.get_running_loop().create_future()
            self._listener = asyncio.get_running_loop().create_task(
                self._listen(), name="turnlog postgres listener"
            )
        if self._up is not None and not self._up.done():
            await asyncio.wait([self._up], timeout=_RETRY)
        return self._link is not None

    async def _listen(self) -> None:
        while True:
            try:
                link = await self._origin.connect()
                try:
                    await link.script(f"LISTEN {self._channel}")
                    self._report(link)
                    await self._hear(link)
                finally:
                    self._report(None)
                    link.drop()
            except (DriverError, AgentError, OSError):
                self._report(None)
            if not self._waiting:
                return
            await asyncio.sleep(_RETRY)

    async def _hear(self, link: Link) -> None:
        while True:
            async for notice in link.driver.notifies(timeout=_IDLE):
                for session_id in notice.payload.split("\n"):
                    if session_id == _EVERYTHING:
                        self._wake_all()
                    else:
                        self._wake(session_id)
            if not self._waiting:
                return

    def _report(self, link: Link | None) -> None:
        self._link = link
        if self._up is not None and not self._up.done():
            self._up.set_result(None)
        self._wake_all()

    def _wake(self, session_id: str) -> None:
        for heard in self._waiting.get(session_id, ()):
            if not heard.done():
                heard.set_result(None)

    def _wake_all(self) -> None:
        for session_id in self._waiting:
            self._wake(session_id)

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait([listener])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            await self._tell(self._take_changed())

    def drop(self) -> None:
        if self._link is not None:
            self._link.drop()


# Erasing content from the server's own files

_FIRST_NUMBER = re.compile(r"\d+")
_PATIENCE = 20.0
"""Seconds for transactions that began before to end: while one sees the old rows, the server keeps them."""
_TRIES = 3

_OTHERS = b"""
SELECT 1 WHERE pg_snapshot_xmin(pg_current_snapshot()) <= %(transaction)b::text::xid8
  OR EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND age(backend_xmin) >= age(%(transaction)b::text::xid8::xid))"""
"""Whether a transaction from before still runs: one that writes, in any database, or one here that reads."""


async def _rewritten(address: Address, script: Callable[[], Script[bool]], link: Link) -> None:
    """Make a change in one transaction, and leave no copy of what it replaced in the tables' files."""
    kept: list[int] = []

    def hear(said: Diagnostic) -> None:
        # "0 dead row versions cannot be removed yet" and more, in the language of the server.
        found = _FIRST_NUMBER.search(said.message_detail or "")
        kept.append(int(found.group()) if found else 0)

    async with link.unhurried(hear):
        async with link.transaction():
            blobs = await play(link, script())
            transaction = (await link.rows(b"SELECT pg_current_xact_id()::text", ()))[0][0]
        deadline = monotonic() + _PATIENCE
        tables = ["entries", "sessions", "controls", "snapshots"]
        for _ in range(_TRIES):
            await _outwait(transaction, deadline, link)
            kept.clear()
            await _vacuum(address, tables + ["blobs"] * blobs, link)
            if not any(kept):
                return
        raise AgentError(
            "SessionBusy",
            f"{address.label}: the content is erased, but a transaction that began before still sees the old "
            "rows, so the tables keep them; end it (pg_stat_activity shows it) and purge again",
        )


async def _outwait(transaction: str, deadline: float, link: Link) -> None:
    pause = 0.01
    while await link.rows(_OTHERS, {"transaction": transaction}):
        if monotonic() > deadline:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.2)


async def _vacuum(address: Address, tables: list[str], link: Link) -> None:
    """A plain vacuum frees the old bytes and leaves them where they are; only a new file has none of them."""
    try:
        for table in tables:
            await link.script(f"VACUUM (FULL, VERBOSE) {table}")
    except DriverError as error:
        problem = translate(error, address, "write")
        raise AgentError(
            problem.code,
            f"the content is erased, but old copies may remain in the tables: {problem.message}; purge again",
            cause=error,
        ) from error


__all__ = ["LoopSide", "Origin"]
