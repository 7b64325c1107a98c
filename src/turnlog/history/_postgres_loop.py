"""The PostgreSQL store as one event loop has it: its connections, and what is asked through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..contract import AgentError, Lease, SessionInfo, StoredEntry, Tail
from . import _postgres_sql as statements
from . import _sql
from ._base import exists_already, fork_beyond, not_found, tail_of
from ._blank import title_of
from ._postgres_appends import WRITERS, AppendQueue, Batch, columns, has, heading, taken_id
from ._postgres_bell import Bell
from ._postgres_erase import erase
from ._postgres_link import Link, UniqueViolation
from ._postgres_pool import Origin, Pool

READERS = 3
"""Connections of a loop beside those that append."""
_KNOWN_SESSIONS = 10_000
_CLAIM_TRIES = 10

Lineage = list[tuple[int, int]]
"""(session key, forked at) of each log that a session's log is made of, oldest first."""


class LoopSide:
    def __init__(self, origin: Origin, lineages: dict[str, Lineage], now: Callable[[], float | None]) -> None:
        self._origin = origin
        self._lineages = lineages
        self._now = now
        self._pool = Pool(origin, READERS)
        self._writing = Pool(origin, WRITERS)
        self._bell = Bell(origin, self._pool)
        self._appends = AppendQueue(self._writing, now, self._bell.ring)

    # Writing

    async def append(
        self, session_id: str, batch: Sequence[StoredEntry], expected: int, lease: Lease | None
    ) -> None:
        await self._appends.append(Batch(session_id, batch, expected, lease))

    async def fork(self, source: str, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        title = next(map(title_of, await self.bodies(source, 0, 1)), None)
        await self._writing.do("write", partial(self._fork, source, at, target, first, title))
        self._bell.ring(target)

    async def _fork(
        self,
        source: str,
        at: int,
        target: str,
        first: Sequence[StoredEntry],
        title: str | None,
        link: Link,
    ) -> None:
        parent = await _find(link, source)
        if parent is None or parent[1] == 0:
            raise not_found(source)
        if not 0 < at <= parent[1]:
            raise fork_beyond(source, at, parent[1])
        updated_at, hash = tail_of(first)
        values: dict[str, Any] = {
            "session": target,
            "tail_seq": first[-1].seq,
            "tail_id": first[-1].id,
            "tail_hash": hash,
            "updated_at": updated_at,
            "parent": parent[0],
            "forked_at": at,
            "expected": at,
            **columns(first),
            **heading(first[0].body, title),
        }
        try:
            async with link.transaction():
                if rows := await link.rows(statements.MAKE_FORK, values):
                    await link.count(statements.ADD_ENTRIES, {**values, "key": rows[0][0]})
                    return
        except UniqueViolation as error:
            raise taken_id(target, error) from error
        held = await _find(link, target)
        if held is None or held[4] != parent[0] or not await has(link, held[0], first):
            raise exists_already(target)

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        owners = {seq: key for seq in bodies for key in [await self._owner(session_id, seq)]}
        places = {_sql.place(key, seq): bodies[seq] for seq, key in owners.items()}
        named = {key for seq, key in owners.items() if seq == 1}
        await self._writing.do("write", partial(erase, self._origin.address, session_id, places, named))

    async def put_blob(self, name: str, data: bytes) -> None:
        await self._writing.do("write", lambda link: link.count(_SHARED(_sql.ADD_BLOB), (name, data)))

    # Reading

    async def read(self, session_id: str, after: int, upto: int | None) -> list[StoredEntry]:
        rows = await self._pool.do("read", partial(self._rows, session_id, _sql.READ_ENTRIES, after, upto))
        return [StoredEntry._make(row) for row in rows]

    async def bodies(self, session_id: str, after: int, upto: int | None) -> list[bytes]:
        rows = await self._pool.do("read", partial(self._rows, session_id, _sql.READ_BODIES, after, upto))
        return [row[0] for row in rows]

    async def tail(self, session_id: str) -> Tail | None:
        row = await self._pool.do("read", partial(_find, session_id=session_id))
        return None if row is None or row[1] == 0 else Tail(seq=row[1], id=row[2], hash=row[3])

    async def sessions(self) -> list[SessionInfo]:
        rows = await self._pool.do("read", lambda link: link.rows(_SHARED(_sql.LIST_SESSIONS), ()))
        return [
            SessionInfo(
                session_id=id,
                entries=entries,
                created_at=created_at,
                updated_at=updated_at,
                title=None if title is None else title.decode(),
                parent_session_id=parent,
                forked_at=forked_at if parent is not None else None,
            )
            for id, entries, created_at, updated_at, title, parent, forked_at in rows
        ]

    async def get_blob(self, name: str) -> bytes | None:
        if not _is_text(name):
            return None
        rows = await self._pool.do("read", lambda link: link.rows(_SHARED(_sql.GET_BLOB), (name,)))
        return rows[0][0] if rows else None

    async def _rows(self, session_id: str, sql: str, after: int, upto: int | None, link: Link) -> list[Any]:
        lineage = await self._lineage(session_id, link)
        last = _sql.LAST_SEQ if upto is None else upto
        rows: list[Any] = []
        for place, (key, forked_at) in enumerate(lineage):
            end = lineage[place + 1][1] if place + 1 < len(lineage) else _sql.LAST_SEQ
            low, high = max(after, forked_at), min(last, end)
            if low < high:
                rows += await link.rows(_SHARED(sql), (_sql.place(key, low), _sql.place(key, high)))
        return rows

    async def _lineage(self, session_id: str, link: Link) -> Lineage:
        """It never changes once there are entries."""
        known = self._lineages.get(session_id)
        if known is not None:
            return known
        row = await _find(link, session_id)
        if row is None or row[1] == 0:
            raise not_found(session_id)
        key, parent, forked_at = row[0], row[4], row[5]
        lineage: Lineage = [(key, forked_at)]
        while parent is not None:
            key = parent
            found = await link.rows(_SHARED(_sql.FIND_LINEAGE), (key,))
            parent, further = found[0] if found else (None, 0)
            # A fork of a fork may leave its parent before the parent left its own.
            if further < forked_at:
                lineage.append((key, further))
                forked_at = further
        lineage.reverse()
        if len(self._lineages) >= _KNOWN_SESSIONS:
            self._lineages.clear()
        self._lineages[session_id] = lineage
        return lineage

    async def _owner(self, session_id: str, seq: int) -> int:
        """The session that really holds entry ``seq`` of this one: itself, or the one it was forked from."""
        lineage = await self._pool.do("read", partial(self._lineage, session_id))
        for key, forked_at in reversed(lineage):
            if seq > forked_at:
                return key
        raise AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")

    # Leases

    async def claim(self, session_id: str, owner: str, ttl: float) -> tuple[int | None, str, float]:
        """(epoch, …) of the new lease, or (None, holder, seconds left)."""
        values = {"now": self._now(), "session": session_id, "owner": owner, "ttl": ttl}
        for _ in range(_CLAIM_TRIES):  # nothing comes back when someone else made the session just now
            rows = await self._pool.do("write", lambda link: link.rows(statements.CLAIM, values))
            for row in rows:
                if row[0] is not None or (row[1] is not None and row[2] > 0):
                    return row
        raise AgentError("SessionBusy", f"session {session_id!r} is claimed by many at once; try again")

    async def renew(self, lease: Lease) -> int:
        """The epoch that the session is at, 0 for none."""
        values = {"now": self._now(), "ttl": lease.ttl, **_who(lease)}

        async def work(link: Link) -> int:
            if await link.count(statements.RENEW, values):
                return lease.epoch
            rows = await link.rows(statements.FIND_EPOCH, (lease.session_id,))
            found = rows[0][0] if rows else 0
            return found if found != lease.epoch else 0  # given back: nobody has this epoch

        return await self._pool.do("write", work)

    async def release(self, lease: Lease) -> None:
        values = {"now": None, **_who(lease)}
        await self._pool.do("write", lambda link: link.count(statements.RELEASE, values))

    # Watching

    async def wait_for_change(self, session_id: str, after: int, timeout: float) -> None:
        async def changed() -> bool:
            tail = await self.tail(session_id)
            return tail is not None and tail.seq > after

        await self._bell.wait(session_id, changed, timeout)

    async def close(self) -> None:
        await self._writing.close()
        await self._bell.close()
        await self._pool.close()

    def drop(self) -> None:
        for part in (self._bell, self._writing, self._pool):
            part.drop()


_SHARED = statements.shared


async def _find(link: Link, session_id: str) -> Any:
    if not _is_text(session_id):
        return None
    rows = await link.rows(_SHARED(_sql.FIND_SESSION), (session_id,))
    return rows[0] if rows else None


def _is_text(name: str) -> bool:
    """Whether the server could hold it at all."""
    try:
        return "\0" not in name and bool(name.encode())
    except UnicodeError:
        return False


def _who(lease: Lease) -> dict[str, Any]:
    return {"session": lease.session_id, "epoch": lease.epoch, "owner": lease.owner}


__all__ = ["LoopSide", "Origin"]
