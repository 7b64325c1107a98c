"""Appends to PostgreSQL: those that wait at the same time share one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from ...contract import AgentError, Lease, SessionDigest, StoredEntry, digest, read_envelope
from .. import _sql
from .._base import hides, tail_of
from .._blank import title_of
from .._sql import Script, digest_row
from . import _statements as statements
from ._link import Link
from ._pool import Pool
from ._statements import say

T = TypeVar("T")
WRITERS = 2
"""Groups on their way at the same time: one that waits for a lock does not hold up the next."""
_GROUP_LIMIT = 128
_GROUP_BYTES = 4_000_000
_DIGEST = ("status", "is_open", "pending", "digest")
_ROWS = 8  # each number of them is a statement of its own


@dataclass(slots=True, eq=False)
class Batch:
    """One append on its way."""

    session_id: str
    entries: Sequence[StoredEntry]
    expected: int
    lease: Lease | None
    digest: SessionDigest | None
    blobs: Sequence[bytes]
    updated_at: str = field(init=False)
    hash: str = field(init=False)
    size: int = field(init=False)
    future: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.updated_at, self.hash = tail_of(self.entries)
        self.size = sum(len(stored.body) for stored in self.entries)
        self.future = asyncio.get_running_loop().create_future()

    @property
    def is_new(self) -> bool:
        """The first batch of a session that may not be there yet."""
        return self.expected == 0 and self.lease is None

    @property
    def alone(self) -> bool:
        """Whether it shares no statement with others."""
        return self.expected == 0 or bool(self.blobs) or hides(self.entries)

    @property
    def rows(self) -> int:
        """How many entries go as values of their own; 0: as arrays."""
        return 0 if self.is_new or len(self.entries) > _ROWS else len(self.entries)

    def end(self, error: AgentError | None) -> None:
        if self.future.done():
            return  # the waiting caller was cancelled
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)

    def values(self, now: float | None) -> dict[str, Any]:
        last = self.entries[-1]
        values: dict[str, Any] = {
            "session": self.session_id,
            "expected": self.expected,
            "tail_seq": last.seq,
            "tail_id": last.id,
            "tail_hash": self.hash,
            "updated_at": self.updated_at,
            **dict(zip(_DIGEST, digest_row(self.digest), strict=True)),
        }
        if self.rows:
            for place, stored in enumerate(self.entries, 1):
                values[f"id{place}"] = stored.id
                values[f"kind{place}"] = stored.kind
                values[f"body{place}"] = stored.body
        else:
            values |= _columns(self.entries)
        if self.expected == 0:
            values |= _heading(self.entries[0].body)
        if self.lease is not None:
            values |= {"now": now, "ttl": self.lease.ttl}
            values |= {"epoch": self.lease.epoch, "owner": self.lease.owner}
        return values


def _columns(entries: Sequence[StoredEntry]) -> dict[str, Any]:
    return {
        "ids": [stored.id for stored in entries],
        "kinds": [stored.kind for stored in entries],
        "bodies": [stored.body for stored in entries],
    }


def _heading(body: bytes) -> dict[str, Any]:
    """What a session's row says of its first entry."""
    title = title_of(body)
    return {
        "title": None if title is None else title.encode(),
        "created_at": read_envelope(body).timestamp,
    }


class AppendQueue:
    """Belongs to one event loop. Batches of one session are written one after the other, in their order."""

    def __init__(self, pool: Pool, now: Callable[[], float | None], written: Callable[[str], None]) -> None:
        self._pool = pool
        self._now = now
        self._written = written
        self._waiting: list[Batch] = []
        self._under_way: set[str] = set()
        self._writers = 0
        self._starting = False

    async def append(self, batch: Batch) -> None:
        self._waiting.append(batch)
        if not self._starting and self._writers < WRITERS:
            # It starts when the loop comes round: what is appended in the same moment goes with it.
            self._starting = True
            self._writers += 1
            self._pool.start(self._write())
        await batch.future

    async def _write(self) -> None:
        self._starting = False
        try:
            while group := self._next_group():
                sessions = {batch.session_id for batch in group}
                self._under_way |= sessions
                try:
                    await self._write_group(group)
                except Exception as error:
                    words = f"the store failed in a way it should not: {error!r}"
                    for batch in group:
                        batch.end(AgentError("SessionWriteFailed", words, cause=error))
                except asyncio.CancelledError:  # the event loop is being shut down
                    for batch in group:
                        batch.future.cancel()
                    raise
                finally:
                    self._under_way -= sessions
        finally:
            self._writers -= 1

    def _next_group(self) -> list[Batch]:
        """The oldest batches that may go together: one of each session, and a session's first goes alone."""
        group: list[Batch] = []
        left: list[Batch] = []
        passed = set(self._under_way)
        size = 0
        for batch in self._waiting:
            alone = batch.alone
            full = len(group) >= _GROUP_LIMIT or size + batch.size > _GROUP_BYTES
            if batch.session_id in passed or (group and (alone or full or group[0].alone)):
                left.append(batch)
            else:
                group.append(batch)
                size += batch.size
            passed.add(batch.session_id)
        self._waiting = left
        return group

    async def _write_group(self, group: list[Batch]) -> None:
        if len(group) == 1:
            await self._write_alone(group[0])
            return
        try:
            missed = await self._pool.run("write", partial(self._append_many, group))
        except AgentError as error:
            if error.code not in ("InvalidEntry", "SessionBusy"):
                for batch in group:
                    batch.end(AgentError(error.code, error.message, cause=error.cause, meta=error.meta))
                return
            missed = group  # one of them is at fault, and harms no other
        left = set(missed)
        for batch in group:
            if batch not in left:
                self._done(batch)
        for batch in missed:
            await self._write_alone(batch)

    async def _write_alone(self, batch: Batch) -> None:
        try:
            await self._pool.run("write", partial(self._append_one, batch))
        except AgentError as error:
            batch.end(error)
        else:
            self._done(batch)

    def _done(self, batch: Batch) -> None:
        batch.end(None)
        self._written(batch.session_id)

    async def _append_one(self, batch: Batch, link: Link) -> None:
        if batch.is_new:
            sql = statements.APPEND_NEW
        else:
            leased, first = batch.lease is not None, batch.expected == 0
            sql = statements.append_one(leased=leased, first=first, rows=batch.rows)
        if batch.blobs or hides(batch.entries):
            async with link.transaction():
                if hides(batch.entries):
                    await link.count(statements.DROP_SNAPSHOT, (batch.session_id,))
                for data in batch.blobs:
                    await link.count(say(_sql.ADD_BLOB), (f"sha256-{digest(data)}", data))
                written = await link.count(sql, batch.values(self._now()))
        else:
            written = await link.count(sql, batch.values(self._now()))
        if not written:
            script = _sql.refusal(batch.session_id, batch.entries, batch.expected, batch.lease)
            if (error := await play(link, script)) is not None:
                raise error

    async def _append_many(self, group: list[Batch], link: Link) -> list[Batch]:
        """Write what can be written; returns the rest."""
        rows = await link.rows(statements.APPEND_MANY, _values_of(group, self._now()))
        written = {row[0] for row in rows}
        return [batch for place, batch in enumerate(group, 1) if place not in written]


def _values_of(group: list[Batch], now: float | None) -> dict[str, Any]:
    leases = [batch.lease for batch in group]
    statuses, opens, pendings, digests = zip(*(digest_row(batch.digest) for batch in group), strict=True)
    entries = [stored for batch in group for stored in batch.entries]
    places = [place for place, batch in enumerate(group, 1) for _ in batch.entries]
    return {
        "now": now,
        "sessions": [batch.session_id for batch in group],
        "expected": _numbers(batch.expected for batch in group),
        "tail_seqs": _numbers(batch.entries[-1].seq for batch in group),
        "tail_ids": [batch.entries[-1].id for batch in group],
        "tail_hashes": [batch.hash for batch in group],
        "updated_ats": [batch.updated_at for batch in group],
        "epochs": _numbers(lease.epoch if lease else None for lease in leases),
        "owners": [lease.owner if lease else None for lease in leases],
        "ttls": _numbers(lease.ttl if lease else None for lease in leases),
        "statuses": list(statuses),
        "opens": _numbers(opens),
        "pendings": _numbers(pendings),
        "digests": list(digests),
        "batches": _numbers(places),
        "seqs": _numbers(stored.seq for stored in entries),
        **_columns(entries),
    }


def _numbers(numbers: Any) -> str:
    """An array as the server writes it: much cheaper than one value after the other."""
    return "{" + ",".join("NULL" if number is None else str(number) for number in numbers) + "}"


async def play(link: Link, script: Script[T]) -> T:
    rows: Any = None
    try:
        while True:
            sql, values = script.send(rows)
            rows = await link.rows(say(sql), values)
    except StopIteration as end:
        return end.value
