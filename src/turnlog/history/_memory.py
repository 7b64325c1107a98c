"""A store that lives as long as the process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..contract import (
    AgentError,
    Clock,
    Control,
    JsonObject,
    Lease,
    LeaseHolder,
    SessionDigest,
    SessionInfo,
    StoredEntry,
    Tail,
    digest,
    read_envelope,
)
from ._base import (
    ANSWER_KEPT,
    check_batch,
    check_control,
    check_free,
    check_session_id,
    exists_already,
    fenced,
    fork_beyond,
    forks_left,
    is_repeat,
    leased,
    moved_on,
    no_blob,
    not_found,
    tail_of,
)
from ._blank import blobs_in, title_of
from ._listing import NOT_DUE, Listed, Query, StoreBase, exact_time, with_digest


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
    digest: SessionDigest | None = None
    wake_at: str | None = None

    @property
    def tail(self) -> int:
        return self.forked_at + len(self.own)


@dataclass(slots=True)
class _Posted:
    control: Control
    answer: JsonObject | None = None
    answered: float = 0.0


class MemoryStore(StoreBase):
    """Nothing survives the process. Safe to use from several threads and event loops."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._logs: dict[str, _Log] = {}
        self._blobs: dict[str, bytes] = {}
        self._controls: dict[str, _Posted] = {}
        self._lock = threading.Lock()

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
            log.digest = digest
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
            if log is None or log.tail == 0:
                return None
            last = self._slice(log, log.tail - 1, log.tail)[0]
        return Tail(seq=last.seq, id=last.id, hash=read_envelope(last.body).hash)

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
                and (log.owner is None or log.until <= time)
                and (log.wake_at is None or log.wake_at <= now)
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

    async def wake(self, session_id: str, at: str | None) -> None:
        with self._lock:
            self._log(session_id).wake_at = None if at is None else exact_time("at", at)

    async def holder(self, session_id: str) -> LeaseHolder | None:
        now = self._now()
        with self._lock:
            log = self._logs.get(session_id)
            if log is None or log.owner is None or log.until <= now:
                return None
            return LeaseHolder(owner=log.owner, epoch=log.epoch, seconds_left=log.until - now)

    # Controls

    async def post(self, control: Control) -> None:
        check_control(control)
        with self._lock:
            self._controls.setdefault(control.id, _Posted(control))

    async def posted(self, session_id: str | None = None) -> list[Control]:
        with self._lock:
            return [
                each.control
                for each in self._controls.values()
                if each.answer is None and session_id in (None, each.control.session_id)
            ]

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        now = self._now()
        with self._lock:
            found = self._controls.get(control_id)
            if found is not None and found.answer is None:
                found.answer, found.answered = answer, now
            old = [
                id
                for id, each in self._controls.items()
                if each.answer is not None and each.answered < now - ANSWER_KEPT
            ]
            for id in old:
                del self._controls[id]

    async def take_answer(self, control_id: str) -> JsonObject | None:
        with self._lock:
            found = self._controls.get(control_id)
            if found is None or found.answer is None:
                return None
            del self._controls[control_id]
            return found.answer

    async def withdraw(self, control_id: str) -> bool:
        with self._lock:
            found = self._controls.get(control_id)
            if found is not None and found.answer is None:
                del self._controls[control_id]
            return found is None or found.answer is None

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
                log.digest = None  # it may hold words of what was erased
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
                check_free(self._logs[member].owner, self._logs[member].until - now, member, lease)
            logs = [self._logs.pop(member) for member in family]
            for id in [id for id, each in self._controls.items() if each.control.session_id in family]:
                del self._controls[id]
            names = [blobs_in(stored.body) for log in logs for stored in log.own]
            self._drop_unused(set[str]().union(*names))

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
