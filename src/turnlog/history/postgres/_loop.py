"""The PostgreSQL store as one event loop has it: its connections, and what is asked through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...contract import (
    AgentError,
    Control,
    Lease,
    LeaseHolder,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
    encode,
)
from .. import _sql
from .._base import exists_already, fork_beyond, not_found, remember, tail_of
from .._blank import title_of
from .._listing import Listed, Query
from . import _statements as statements
from ._appends import WRITERS, AppendQueue, Batch, columns, digest_values, has, heading, taken_id
from ._bell import Bell
from ._erase import delete, erase, rewritten
from ._link import Link, UniqueViolation
from ._pool import Origin, Pool

READERS = 3
"""Connections of a loop beside those that append."""
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
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        expected: int,
        lease: Lease | None,
        digest: SessionDigest | None,
        blobs: Sequence[bytes],
    ) -> None:
        await self._appends.append(Batch(session_id, batch, expected, lease, digest, blobs))

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
        change = partial(erase, session_id, places, named)
        await self._writing.do("write", partial(rewritten, self._origin.address, change))

    async def delete(self, session_id: str, forks: bool, lease: Lease | None) -> None:
        change = partial(delete, session_id, forks, lease, self._now())
        if _is_text(session_id):
            await self._writing.do("write", partial(rewritten, self._origin.address, change))
            self._lineages.pop(session_id, None)
        else:
            raise not_found(session_id)

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

    async def list(self, query: Query, limit: int | None) -> list[Listed]:
        sql, values = _sql.list_sessions(query, limit)
        return [_sql.read_row(row) for row in await self._ask(_SHARED(sql), values)]

    async def infos(self, sql: str) -> list[SessionInfo]:
        return [_sql.read_row(row).info for row in await self._ask(_SHARED(sql), ())]

    async def due(self, limit: int, now: str) -> list[str]:
        return [row[0] for row in await self._ask(statements.DUE, (self._now(), now, limit))]

    async def keep_digests(self, folded: Sequence[tuple[SessionInfo, SessionDigest]]) -> None:
        rows = [(*digest_values(digest).values(), info.session_id, info.entries) for info, digest in folded]

        async def work(link: Link) -> None:
            async with link.transaction():
                for row in rows:
                    await link.count(_SHARED(_sql.KEEP_DIGEST), row)

        await self._pool.do("write", work)

    async def wake(self, session_id: str, at: str | None) -> bool:
        if not _is_text(session_id):
            return False
        changed = await self._pool.do("write", lambda link: link.count(_SHARED(_sql.WAKE), (at, session_id)))
        return bool(changed)

    async def holder(self, session_id: str) -> LeaseHolder | None:
        if not _is_text(session_id):
            return None
        rows = await self._ask(statements.HOLDER, (self._now(), session_id))
        if not rows or rows[0][0] is None or rows[0][2] <= 0:
            return None
        return LeaseHolder(owner=rows[0][0], epoch=rows[0][1], seconds_left=rows[0][2])

    # Controls

    async def post(self, control: Control) -> None:
        values = (control.id, control.session_id, encode(control), *self._bell.posting(control.session_id))
        await self._pool.do("write", lambda link: link.rows(statements.POST, values))
        self._bell.heard_post(control.session_id)

    async def posted(self, session_id: str | None) -> list[Control]:
        if session_id is None:
            rows = await self._ask(_SHARED(_sql.POSTED), ())
        else:
            rows = await self._ask(_SHARED(_sql.POSTED_TO), (session_id,)) if _is_text(session_id) else []
        return [_sql.read_control(row[0]) for row in rows]

    async def answer(self, control_id: str, answer: bytes) -> None:
        now = self._now()

        async def work(link: Link) -> None:
            await link.count(statements.ANSWER, (answer, now, control_id))
            await link.count(statements.DROP_ANSWERS, (now,))

        await self._pool.do("write", work)

    async def take_answer(self, control_id: str) -> bytes | None:
        rows = await self._pool.do("write", lambda link: link.rows(_SHARED(_sql.TAKE_ANSWER), (control_id,)))
        return rows[0][0] if rows else None

    async def withdraw(self, control_id: str) -> bool:
        async def work(link: Link) -> bool:
            await link.count(_SHARED(_sql.WITHDRAW), (control_id,))
            return not await link.rows(_SHARED(_sql.IS_ANSWERED), (control_id,))

        return await self._pool.do("write", work)

    async def _ask(self, sql: bytes, values: Sequence[Any]) -> list[Any]:
        return await self._pool.do("read", lambda link: link.rows(sql, values))

    async def get_blob(self, name: str) -> bytes | None:
        if not _is_text(name):
            return None
        rows = await self._pool.do("read", lambda link: link.rows(_SHARED(_sql.GET_BLOB), (name,)))
        return rows[0][0] if rows else None

    async def _rows(self, session_id: str, sql: str, after: int, upto: int | None, link: Link) -> list[Any]:
        known = session_id in self._lineages
        rows = await self._spans(session_id, sql, after, upto, link)
        if not rows and known:  # nothing to read, or the session is not the one that is remembered
            self._lineages.pop(session_id, None)
            rows = await self._spans(session_id, sql, after, upto, link)
        return rows

    async def _spans(self, session_id: str, sql: str, after: int, upto: int | None, link: Link) -> list[Any]:
        lineage = await self._lineage(session_id, link)
        last = _sql.LAST_SEQ if upto is None else upto
        own = (session_id, lineage[-1][0])
        rows: list[Any] = []
        for place, (key, forked_at) in enumerate(lineage):
            end = lineage[place + 1][1] if place + 1 < len(lineage) else _sql.LAST_SEQ
            low, high = max(after, forked_at), min(last, end)
            if low < high:
                span = (_sql.place(key, low), _sql.place(key, high))
                rows += await link.rows(statements.guarded(sql), (*span, *own))
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
        remember(self._lineages, session_id, lineage)
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

    async def wait_for_post(self, timeout: float) -> None:
        await self._bell.wait_for_post(timeout)

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
