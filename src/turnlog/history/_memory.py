"""A store that lives as long as the process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..contract import AgentError, Clock, Lease, SessionInfo, StoredEntry, Tail, digest, read_envelope
from ._base import (
    StoreBase,
    check_batch,
    check_session_id,
    exists_already,
    fenced,
    fork_beyond,
    is_repeat,
    leased,
    moved_on,
    no_blob,
    not_found,
    tail_of,
)
from ._blank import blobs_in, title_of


@dataclass(slots=True)
class _Log:
    own: list[StoredEntry] = field(default_factory=list[StoredEntry])
    parent: str | None = None
    forked_at: int = 0
    created_at: str = ""
    updated_at: str = ""
    epoch: int = 0
    owner: str | None = None
    until: float = 0.0

    @property
    def tail(self) -> int:
        return self.forked_at + len(self.own)


class MemoryStore(StoreBase):
    """Nothing survives the process. Safe to use from several threads and event loops."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._logs: dict[str, _Log] = {}
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()

    async def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        *,
        expected_tail: int,
        lease: Lease | None = None,
    ) -> None:
        check_batch(session_id, batch, expected_tail)
        updated_at, _ = tail_of(batch)
        with self._lock:
            log = self._logs.get(session_id) or _Log()
            if lease is not None and (lease.epoch, lease.owner) != (log.epoch, log.owner):
                raise fenced(lease, log.epoch)
            if log.tail != expected_tail:
                there = log.own[max(expected_tail - log.forked_at, 0) :][: len(batch)]
                if expected_tail >= log.forked_at and is_repeat(batch, (stored.id for stored in there)):
                    return
                raise moved_on(session_id, expected_tail, log.tail)
            if lease is not None:
                log.until = self._now() + lease.ttl
            log.own.extend(batch)
            log.created_at = log.created_at or read_envelope(batch[0].body).timestamp
            log.updated_at = updated_at
            self._logs[session_id] = log

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        with self._lock:
            log = self._log(session_id)
            end = log.tail if upto is None else min(upto, log.tail)
            return self._slice(log, after, end)

    async def tail(self, session_id: str) -> Tail | None:
        with self._lock:
            log = self._logs.get(session_id)
            if log is None or log.tail == 0:
                return None
            last = self._slice(log, log.tail - 1, log.tail)[0]
        return Tail(seq=last.seq, id=last.id, hash=read_envelope(last.body).hash)

    async def sessions(self) -> list[SessionInfo]:
        with self._lock:
            found = [
                SessionInfo(
                    session_id=session_id,
                    entries=log.tail,
                    created_at=log.created_at,
                    updated_at=log.updated_at,
                    title=title_of(self._slice(log, 0, 1)[0].body),
                    parent_session_id=log.parent,
                    forked_at=log.forked_at if log.parent else None,
                )
                for session_id, log in self._logs.items()
                if log.tail
            ]
        return sorted(found, key=lambda info: info.updated_at, reverse=True)

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
        with self._lock:
            self._log(session_id)
            gone: set[str] = set()
            for seq, body in bodies.items():
                owner = self._owner(session_id, seq)
                place = seq - owner.forked_at - 1
                gone |= blobs_in(owner.own[place].body)
                owner.own[place] = owner.own[place]._replace(body=body)
            kept = [stored.body for log in self._logs.values() for stored in log.own]
            for name in gone:
                if not any(name in blobs_in(body) for body in kept):
                    self._blobs.pop(name, None)

    async def put_blob(self, data: bytes) -> str:
        name = f"sha256-{digest(data)}"
        self._blobs[name] = data
        return name

    async def get_blob(self, name: str) -> bytes:
        try:
            return self._blobs[name]
        except KeyError:
            raise no_blob(name) from None

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        check_session_id(session_id)
        now = self._now()
        with self._lock:
            log = self._logs.setdefault(session_id, _Log())
            if log.owner is not None and log.owner != owner and log.until > now:
                raise leased(session_id, log.owner, log.until - now)
            log.epoch, log.owner, log.until = log.epoch + 1, owner, now + ttl
            return Lease(session_id=session_id, owner=owner, epoch=log.epoch, ttl=ttl)

    async def renew(self, lease: Lease) -> None:
        now = self._now()
        with self._lock:
            log = self._logs.get(lease.session_id)
            if log is None or log.epoch != lease.epoch or log.owner != lease.owner:
                raise fenced(lease, log.epoch if log else 0)
            log.until = now + lease.ttl

    async def release(self, lease: Lease) -> None:
        with self._lock:
            log = self._logs.get(lease.session_id)
            if log is not None and log.epoch == lease.epoch and log.owner == lease.owner:
                log.owner, log.until = None, 0.0

    async def close(self) -> None:
        """Nothing to give back; the log stays for as long as the store is held."""

    def _log(self, session_id: str) -> _Log:
        log = self._logs.get(session_id)
        if log is None or log.tail == 0:
            raise not_found(session_id)
        return log

    def _slice(self, log: _Log, after: int, end: int) -> list[StoredEntry]:
        own = log.own[max(after - log.forked_at, 0) : max(end - log.forked_at, 0)]
        if log.parent is None or after >= log.forked_at:
            return own
        return self._slice(self._logs[log.parent], after, min(end, log.forked_at)) + own

    def _owner(self, session_id: str, seq: int) -> _Log:
        log = self._logs[session_id]
        while seq <= log.forked_at and log.parent is not None:
            log = self._logs[log.parent]
        if not log.forked_at < seq <= log.tail:
            raise AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")
        return log
