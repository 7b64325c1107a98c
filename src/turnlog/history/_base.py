"""What all stores share: checks before a write, what they refuse, and with which words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from ..contract import AgentError, Control, Lease, StoredEntry, find_unjson, read_envelope

MAX_SESSION_ID = 180
"""Bytes of UTF-8 a session id may take: it becomes a file name in a JSONL store."""
KNOWN_SESSIONS = 10_000
"""Of how many sessions a store remembers things that it could look up again."""
ANSWER_KEPT = 86_400.0
"""Seconds that an answer to a control waits for somebody to collect it."""

_TIME, _HEAD = b'"timestamp":"', 800
_HASH, _HASH_AT, _HASH_END = b'"hash":"', 66, 74

K = TypeVar("K")
V = TypeVar("V")


def remember(cache: dict[K, V], key: K, value: V) -> None:
    """Keep what can be looked up again, of the last ``KNOWN_SESSIONS`` keys."""
    if len(cache) >= KNOWN_SESSIONS and key not in cache:
        del cache[next(iter(cache))]
    cache[key] = value


def absolute(path: str | Path) -> str:
    """The absolute path: a store stays where it was named when the program changes its working directory."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return str(path)


def sync_folder(folder: str | Path) -> None:
    """Make a new name in ``folder`` survive a power loss."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def check_control(control: Control) -> None:
    check_session_id(control.session_id)
    if not control.id:
        raise AgentError("InvalidEntry", "a control needs an id")
    if found := find_unjson(control.data):
        raise AgentError("InvalidEntry", f"the data of control {control.id!r}: {found}")


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
    if found < expected:
        why = "entries are missing: the session was deleted, or its store cut or put back; open it again"
    else:
        why = "someone else wrote to it: read the new entries and decide again"
    return AgentError(
        "SessionConcurrentWrite",
        f"session {session_id!r} ends at entry {found}, the writer expected {expected}; {why}",
        meta={"session_id": session_id, "expected_tail": expected, "found_tail": found},
    )


def fenced(lease: Lease, epoch: int) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"the lease of {lease.owner!r} on session {lease.session_id!r} (epoch {lease.epoch}) was lost: "
        f"the session is at epoch {epoch}; stop: another worker continues it",
        meta={"session_id": lease.session_id, "epoch": lease.epoch, "found_epoch": epoch, "fenced": True},
    )


def check_free(owner: str | None, seconds: float, session_id: str, lease: Lease | None) -> None:
    """Raise ``SessionBusy`` while somebody other than the holder of ``lease`` may write to the session."""
    ours = lease is not None and (lease.owner, lease.session_id) == (owner, session_id)
    if owner is not None and seconds > 0 and not ours:
        raise leased(session_id, owner, seconds)


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


def forks_left(session_id: str, forks: Sequence[str]) -> AgentError:
    named = ", ".join(map(repr, forks[:10])) + (f" and {len(forks) - 10} more" if len(forks) > 10 else "")
    return AgentError(
        "SessionBusy",
        f"session {session_id!r} cannot be deleted: {named} share its past; delete them first, or along with "
        'it (forks="delete")',
        retryable=False,
        meta={"session_id": session_id, "forks": list(forks[:100])},
    )


def fork_beyond(source: str, at: int, tail: int) -> AgentError:
    return AgentError(
        "InvalidEntry", f"session {source!r} cannot be forked at entry {at}: it has entries 1 to {tail}"
    )


def no_entry(session_id: str, seq: int) -> AgentError:
    return AgentError("InvalidEntry", f"session {session_id!r} has no entry {seq} to erase")


def no_blob(name: str) -> AgentError:
    return AgentError(
        "SessionReadFailed",
        f"the store holds no bytes named {name!r}; they were purged, or belong to another store",
        meta={"blob": name},
    )
