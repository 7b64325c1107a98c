"""Erasing content for good: the explicit, logged exception to append-only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..contract import (
    AgentError,
    Clock,
    Entry,
    IdSource,
    JsonObject,
    Lease,
    Store,
    content_digest,
    encode,
    read_envelope,
)
from ._blank import blank_payload
from ._session import Session
from ._views import derived_ids

_TRIES = 10


async def purge(
    store: Store,
    session_id: str,
    entry_ids: Sequence[str],
    *,
    by: str,
    reason: str | None = None,
    clock: Clock,
    ids: IdSource,
    derived: bool = True,
    lease: Lease | None = None,
) -> Entry:
    """Erase the content of the named entries from the store's own files; returns the entry that logs it.

    Structure and pairing stay, and the digests that the hash chain needs. Entries that repeat the content
    (folds and summaries over it, tool starts and approvals of its calls) go with it unless ``derived`` is
    False. Stored bytes that nothing else names are erased too. Purging again after a crash finishes the
    work. Backups, a database server's own log, and what other processes hold in memory are beyond reach.
    """
    entries = await store.load(session_id)
    named = set(entry_ids)
    missing = sorted(named - {entry.id for entry in entries})
    if missing or not named:
        found = ", ".join(missing) or "none given"
        raise AgentError("InvalidEntry", f"nothing to purge: session {session_id!r} has no entry {found}")
    logged: Entry | None = None
    for member in await _family(store, session_id):
        own = entries if member == session_id else await store.load(member)
        shared = {entry.id for entry in own} & named
        if derived:
            shared |= derived_ids(own, shared)
        # What lies in an ancestor's log is logged and erased there, once.
        chosen = [entry for entry in own if entry.id in shared and entry.session_id == member]
        if chosen or member == session_id:
            listed = [id for id in shared if member == session_id] or [entry.id for entry in chosen]
            made = await _log(store, member, listed, by, reason, clock, ids, lease)
            logged = made if member == session_id else logged
        if chosen:
            bodies = {stored.seq: stored.body for stored in await store.read(member)}
            await store.erase(member, {entry.seq: blank_body(bodies[entry.seq], entry) for entry in chosen})
    if logged is None:
        raise AgentError("SessionNotFound", f"session {session_id!r} is not in this store any more")
    return logged


async def _family(store: Store, session_id: str) -> list[str]:
    """All sessions that may share entries with this one: forks and what they were forked from."""
    parents = {info.session_id: info.parent_session_id for info in await store.sessions()}

    def root(id: str) -> str:
        while (above := parents.get(id)) is not None:
            id = above
        return id

    top = root(session_id)
    return [session_id, *(id for id in parents if id != session_id and root(id) == top)]


async def _log(
    store: Store,
    session_id: str,
    entry_ids: Sequence[str],
    by: str,
    reason: str | None,
    clock: Clock,
    ids: IdSource,
    lease: Lease | None,
) -> Entry:
    lease = lease if lease and lease.session_id == session_id else None
    for attempt in range(_TRIES):
        session = await Session.open(store, session_id, clock=clock, ids=ids, create=False, lease=lease)
        session.append_purge(sorted(entry_ids), reason, by)
        try:
            return (await session.commit())[-1]
        except AgentError as error:
            if error.code != "SessionConcurrentWrite" or attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def blank_body(body: bytes, entry: Entry) -> bytes:
    """The stored form of ``entry`` without its content; what is blank already stays as it is."""
    envelope = read_envelope(body)
    if envelope.purged_digest is not None:
        return body
    place: JsonObject = {
        "kind": envelope.kind,
        "id": envelope.id,
        "parentId": envelope.parent_id,
        "sessionId": envelope.session_id,
        "seq": envelope.seq,
        "timestamp": envelope.timestamp,
        "runId": envelope.run_id,
        "payload": msgspec.Raw(encode(blank_payload(entry.payload))),
        "purgedDigest": content_digest(envelope),
        "hash": envelope.hash,
    }
    return encode({name: value for name, value in place.items() if value is not None})
