"""What all stores share: checks before a write, decoding after a read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..contract import AgentError, Clock, Entry, Lease, StoredEntry, read_envelope
from ..system import SystemClock
from ._upcast import decode_log, first_version_is_current

MAX_SESSION_ID = 180
"""Bytes of UTF-8 a session id may take: it becomes a file name in a JSONL store."""

_KNOWN_SESSIONS = 10_000
_TIME, _HEAD = b'"timestamp":"', 800
_HASH, _HASH_AT, _HASH_END = b'"hash":"', 66, 74


class StoreBase:
    """``load`` over ``read``, and the time leases are measured in."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._current: set[str] = set()

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        """The log after entry ``after``, decoded and migrated to the current schema."""
        if after == 0:
            return decode_log(session_id, [stored.body for stored in await self.read(session_id)])
        if session_id not in self._current:
            head = await self.read(session_id, upto=1)
            if not head or not first_version_is_current(head[0].body):
                # An old log: what version an entry has is told by the headers before it.
                return (await self.load(session_id))[after:]
            if len(self._current) >= _KNOWN_SESSIONS:
                self._current.clear()
            self._current.add(session_id)
        bodies = [stored.body for stored in await self.read(session_id, after=after)]
        return decode_log(session_id, bodies, after=after)

    def _now(self) -> float:
        from datetime import datetime

        return datetime.fromisoformat(self._clock.now()).timestamp()


def absolute(path: str | Path) -> str:
    """The path from here, wherever the program goes later: a store stays where it was named."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return str(path)


def check_session_id(session_id: str) -> None:
    if not isinstance(session_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AgentError("InvalidEntry", f"a session id is text, not a {type(session_id).__name__}")
    size = len(session_id.encode("utf-8", "replace"))
    if not 0 < size <= MAX_SESSION_ID or not session_id.isprintable():
        raise AgentError(
            "InvalidEntry",
            f"the session id {session_id[:40]!r} cannot be used: it must have 1 to {MAX_SESSION_ID} bytes "
            "and no control characters",
        )


def check_batch(session_id: str, batch: Sequence[StoredEntry], expected_tail: int) -> None:
    """Refuse a batch that could not be a piece of a log, before anything is written."""
    check_session_id(session_id)
    if not batch:
        raise AgentError("InvalidEntry", f"an append to session {session_id!r} holds no entry")
    ids: set[str] = set()
    place = expected_tail
    for seq, id, _, _ in batch:
        place += 1
        if seq != place:
            raise AgentError(
                "InvalidEntry",
                f"entry {id!r} has seq {seq}, but {place} comes next in session "
                f"{session_id!r}; seal entries one after the other from the expected tail",
            )
        ids.add(id)
    if len(ids) != len(batch):
        raise AgentError("InvalidEntry", f"an append to session {session_id!r} uses an entry id twice")


def tail_of(batch: Sequence[StoredEntry]) -> tuple[str, str]:
    """Timestamp and hash of a batch's last entry."""
    body = batch[-1].body
    # As ``seal`` writes it, the hash comes last and the time before the payload, however long that is.
    start = body.find(_TIME, 0, _HEAD) + len(_TIME)
    if start >= len(_TIME) and body[-_HASH_END:-_HASH_AT] == _HASH and body[-2:] == b'"}':
        stop = body.find(b'"', start, start + 64)
        if stop > 0:
            return body[start:stop].decode(), body[-_HASH_AT:-2].decode()
    envelope = read_envelope(body)
    return envelope.timestamp, envelope.hash


def is_repeat(batch: Sequence[StoredEntry], there: Iterable[str]) -> bool:
    """Whether the ids found in the log at the batch's places are the batch's own."""
    return [stored.id for stored in batch] == list(there)


def not_found(session_id: str) -> AgentError:
    return AgentError(
        "SessionNotFound",
        f"there is no session {session_id!r} in this store; check the id and the store, or create it",
        meta={"session_id": session_id},
    )


def moved_on(session_id: str, expected: int, found: int) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"session {session_id!r} ends at entry {found}, the writer expected {expected}; "
        "someone else wrote to it: read the new entries and decide again",
        meta={"session_id": session_id, "expected_tail": expected, "found_tail": found},
    )


def fenced(lease: Lease, epoch: int) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"the lease of {lease.owner!r} on session {lease.session_id!r} (epoch {lease.epoch}) was lost: "
        f"the session is at epoch {epoch}; stop, another worker goes on with it",
        meta={"session_id": lease.session_id, "epoch": lease.epoch, "found_epoch": epoch, "fenced": True},
    )


def leased(session_id: str, owner: str, seconds: float) -> AgentError:
    return AgentError(
        "SessionBusy",
        f"session {session_id!r} is held by {owner!r} for another {seconds:.1f} s; try again later",
        meta={"session_id": session_id, "owner": owner, "retry_after": max(seconds, 0.0)},
    )


def exists_already(session_id: str) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"session {session_id!r} exists already; choose another id for the fork",
        retryable=False,
        meta={"session_id": session_id},
    )


def fork_beyond(source: str, at: int, tail: int) -> AgentError:
    return AgentError(
        "InvalidEntry", f"session {source!r} cannot be forked at entry {at}: it has entries 1 to {tail}"
    )


def no_blob(name: str) -> AgentError:
    return AgentError(
        "SessionReadFailed",
        f"the store holds no bytes named {name!r}; they were purged, or belong to another store",
        meta={"blob": name},
    )
