"""A store that lives as long as the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from ..contract import (
    AgentError,
    Clock,
    Lease,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
    digest,
    read_envelope,
)
from ._base import (
    NO_TAIL,
    NOT_DUE,
    Listed,
    Query,
    check_batch,
    check_free,
    check_session_id,
    done,
    exists_already,
    fork_beyond,
    forks_left,
    hides,
    is_repeat,
    moved_on,
    no_blob,
    not_found,
    tail_of,
    uncut,
    with_digest,
)
from ._blank import blobs_in, title_of
from ._rows import Controls, LeaseRow, RowStore

T = TypeVar("T")


@dataclass(slots=True)
class _Log:
    own: list[StoredEntry] = field(default_factory=list[StoredEntry])
    parent: str | None = None
    forked_at: int = 0
    created_at: str = ""
    updated_at: str = ""
    lease: LeaseRow = field(default_factory=LeaseRow)
    digest: SessionDigest | None = None
    snapshot: bytes | None = None

    @property
    def tail(self) -> int:
        return self.forked_at + len(self.own)


class MemoryStore(RowStore):
    """Nothing survives the process. Safe to use from several threads and event loops."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._logs: dict[str, _Log] = {}
        self._blobs: dict[str, bytes] = {}
        self._controls = Controls()
        self._lock = threading.Lock()

    @uncut
    def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        *,
        expected_tail: int,
        lease: Lease | None = None,
        digest: SessionDigest | None = None,
        blobs: Sequence[bytes] = (),
        release: bool = False,
    ) -> asyncio.Future[None]:
        check_batch(session_id, batch, expected_tail)
        self._append(session_id, batch, expected_tail, lease, digest, blobs, release)
        return done(None)

    def _append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        expected_tail: int,
        lease: Lease | None,
        digest: SessionDigest | None,
        blobs: Sequence[bytes],
        release: bool,
    ) -> None:
        updated_at, _ = tail_of(batch)
        with self._lock:
            log = self._logs.get(session_id) or _Log()
            log.lease.check(lease)
            if log.tail != expected_tail:
                there = log.own[max(expected_tail - log.forked_at, 0) :][: len(batch)]
                if expected_tail >= log.forked_at and is_repeat(batch, (stored.id for stored in there)):
                    return
                raise moved_on(session_id, expected_tail, log.tail)
            if lease is not None:
                log.lease.until = self._now() + lease.ttl
                if release:
                    log.lease.release(lease)
            log.own.extend(batch)
            log.created_at = log.created_at or read_envelope(batch[0].body).timestamp
            log.updated_at = updated_at
            log.digest = digest
            if hides(batch):
                log.snapshot = None
            self._logs[session_id] = log
            for data in blobs:
                self._put(data)

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        with self._lock:
            log = self._log(session_id)
            end = log.tail if upto is None else min(upto, log.tail)
            return self._slice(log, after, end)

    async def tail(self, session_id: str) -> Tail | None:
        with self._lock:
            log = self._logs.get(session_id)
            return None if log is None or log.tail == 0 else self._tail(log)

    async def _list(self, query: Query, limit: int | None) -> list[Listed]:
        with self._lock:
            rows = [
                Listed(self._info(id, log), log.digest is not None)
                for id, log in self._logs.items()
                if log.tail
            ]
        found = [row for row in rows if (query.fits if row.known else query.fits_place)(row.info)]
        found.sort(key=lambda row: (row.info.updated_at, row.info.session_id), reverse=True)
        return found[:limit]

    async def _unfolded(self) -> list[SessionInfo]:
        with self._lock:
            return [self._info(id, log) for id, log in self._logs.items() if log.tail and log.digest is None]

    async def _keep_digests(self, folded: Sequence[tuple[SessionInfo, SessionDigest]]) -> None:
        with self._lock:
            for info, digest in folded:
                log = self._logs.get(info.session_id)
                if log is not None and log.tail == info.entries and log.digest is None:
                    log.digest = digest

    async def _waiting(self) -> list[SessionInfo]:
        with self._lock:
            return [
                self._info(id, log) for id, log in self._logs.items() if log.digest and log.digest.pending
            ]

    async def _due(self, limit: int, now: str) -> list[str]:
        time = self._now()
        with self._lock:
            found = [
                (log.updated_at, id)
                for id, log in self._logs.items()
                if log.digest is not None
                and log.digest.run_id is not None
                and log.digest.status not in NOT_DUE
                and log.lease.lets_in(now, time)
            ]
        return [id for _, id in sorted(found)[:limit]]

    def _info(self, session_id: str, log: _Log) -> SessionInfo:
        info = SessionInfo(
            session_id=session_id,
            entries=log.tail,
            created_at=log.created_at,
            updated_at=log.updated_at,
            title=title_of(self._slice(log, 0, 1)[0].body),
            parent_session_id=log.parent,
            forked_at=log.forked_at if log.parent else None,
        )
        return with_digest(info, log.digest) if log.digest else info

    @uncut
    def claim(self, session_id: str, *, owner: str, ttl: float) -> asyncio.Future[Lease]:
        check_session_id(session_id)
        with self._lock:
            log = self._logs.get(session_id) or _Log()
            lease = log.lease.claim(session_id, owner, ttl, self._now())
            self._logs[session_id] = log
            return done(msgspec.structs.replace(lease, tail=self._tail(log)))

    async def _change_lease(
        self, session_id: str, change: Callable[[LeaseRow], T], *, make: bool = False
    ) -> T:
        with self._lock:
            log = (self._logs.get(session_id) or _Log()) if make else self._log(session_id)
            value = change(log.lease)
            if log.lease.epoch:
                self._logs[session_id] = log
            return value

    async def _lease(self, session_id: str) -> LeaseRow:
        with self._lock:
            log = self._logs.get(session_id)
            return LeaseRow() if log is None else copy(log.lease)

    async def _change_controls(self, change: Callable[[Controls], T]) -> T:
        with self._lock:
            return change(self._controls)

    async def _controls_now(self) -> Controls:
        with self._lock:
            return Controls(self._controls.rows.values())

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        check_batch(target, first, at)
        updated_at, _ = tail_of(first)
        with self._lock:
            log = self._log(source)
            if not 0 < at <= log.tail:
                raise fork_beyond(source, at, log.tail)
            held = self._logs.get(target)
            if held is not None and held.tail:
                if held.parent == source and is_repeat(first, (s.id for s in held.own[: len(first)])):
                    return
                raise exists_already(target)
            made = held or _Log()
            made.own, made.parent, made.forked_at = list(first), source, at
            made.created_at = read_envelope(first[0].body).timestamp
            made.updated_at = updated_at
            self._logs[target] = made

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        self._digests.clear()
        with self._lock:
            self._log(session_id)
            gone: set[str] = set()
            for seq, body in bodies.items():
                owner = self._owner(session_id, seq)
                place = seq - owner.forked_at - 1
                gone |= blobs_in(owner.own[place].body)
                owner.own[place] = owner.own[place]._replace(body=body)
            for log in self._logs.values():
                log.digest = log.snapshot = None  # they may hold words of what was erased
            self._drop_unused(gone)

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        now = self._now()
        with self._lock:
            self._log(session_id)
            family = [session_id]
            for member in family:
                family += [id for id, log in self._logs.items() if log.parent == member]
            if forks == "refuse" and len(family) > 1:
                raise forks_left(session_id, family[1:])
            for member in family:
                row = self._logs[member].lease
                check_free(row.owner, row.until - now, member, lease)
            logs = [self._logs.pop(member) for member in family]
            self._controls.drop(family)
            names = [blobs_in(stored.body) for log in logs for stored in log.own]
            self._drop_unused(set[str]().union(*names))

    async def read_snapshot(self, session_id: str) -> bytes | None:
        with self._lock:
            return self._log(session_id).snapshot

    async def write_snapshot(self, session_id: str, seq: int, hash: str, data: bytes) -> None:
        with self._lock:
            log = self._log(session_id)
            if log.tail == seq and read_envelope(self._slice(log, seq - 1, seq)[0].body).hash == hash:
                log.snapshot = data

    def _drop_unused(self, names: set[str]) -> None:
        kept = [stored.body for log in self._logs.values() for stored in log.own] if names else []
        for name in names:
            if not any(name in blobs_in(body) for body in kept):
                self._blobs.pop(name, None)

    async def put_blob(self, data: bytes) -> str:
        return self._put(data)

    def _put(self, data: bytes) -> str:
        name = f"sha256-{digest(data)}"
        self._blobs[name] = data
        return name

    async def get_blob(self, name: str) -> bytes:
        try:
            return self._blobs[name]
        except KeyError:
            raise no_blob(name) from None

    async def close(self) -> None:
        """Nothing to give back; the log stays for as long as the store is held."""

    def _log(self, session_id: str) -> _Log:
        log = self._logs.get(session_id)
        if log is None or log.tail == 0:
            raise not_found(session_id)
        return log

    def _tail(self, log: _Log) -> Tail:
        if log.tail == 0:
            return NO_TAIL
        last = self._slice(log, log.tail - 1, log.tail)[0]
        return Tail(seq=last.seq, id=last.id, hash=read_envelope(last.body).hash)

    def _slice(self, log: _Log, after: int, end: int) -> list[StoredEntry]:
        parts: list[list[StoredEntry]] = []
        while True:
            parts.append(log.own[max(after - log.forked_at, 0) : max(end - log.forked_at, 0)])
            if log.parent is None or after >= log.forked_at:
                return [stored for part in reversed(parts) for stored in part]
            end = min(end, log.forked_at)
            log = self._logs[log.parent]

    def _owner(self, session_id: str, seq: int) -> _Log:
        log = self._logs[session_id]
        while seq <= log.forked_at and log.parent is not None:
            log = self._logs[log.parent]
        if not log.forked_at < seq <= log.tail:
            raise AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")
        return log
