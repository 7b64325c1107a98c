"""Erasing content for good: the explicit, logged exception to append-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..contract import (
    AgentError,
    Clock,
    Entry,
    EntryPayload,
    IdSource,
    JsonObject,
    Lease,
    Store,
    content_digest,
    encode,
    read_envelope,
)
from ._blank import blank_payload
from ._copies import copies_of
from ._session import Session
from ._state import SessionState
from ._views import trims_after

_TRIES = 10


@dataclass(frozen=True)
class _Part:
    """What a purge does to one session's own entries: bodies by seq, and what its log says of it. ``depth``:
    of how many sessions' entries its log is made."""

    bodies: dict[int, bytes]
    entry_ids: list[str]
    trimmed: dict[str, str]
    depth: int


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
    leases: Mapping[str, Lease] | None = None,
) -> Entry:
    """Erase the content of the named entries from the store's own files; returns the entry that logs it.

    Structure and pairing stay, and the digests that the hash chain needs. Copies of the content that our own
    code made go with it unless ``derived`` is False: folds and summaries over it, starts and approvals of its
    calls, results that brought it back, whole; screens of widgets, and the arguments of a call that an event
    repeats, are cut out of entries that stay. Stored bytes that nothing else refers to are erased too. What a
    model said of it is content of its own: name those entries as well.

    Purging again after a crash finishes the work. Backups, a database server's own log, and what other
    processes hold in memory are beyond reach. Raises ``SessionBusy`` for content of a call that has no result
    yet: it would run on with nothing.
    """
    named = await _known(store, session_id, entry_ids)
    parts: dict[str, _Part] = {}
    for member in await purge_scope(store, session_id, entry_ids):
        own = await store.load(member)
        _check_settled(member, own, named)
        parts[member] = await _plan(store, member, own, named, derived)
    # All are planned before anything is erased, and a fork goes before what it was forked from: what is gone
    # from a shared past no longer shows what was made of it.
    logged: Entry | None = None
    for member, part in parts.items():
        # Also where all of it lies in an ancestor's log: a process that has it in memory must learn of it.
        made = await _log(store, member, part, by, reason, clock, ids, (leases or {}).get(member))
        logged = made if member == session_id else logged
    for member, part in sorted(parts.items(), key=lambda item: -item[1].depth):
        if part.bodies:
            await store.erase(member, part.bodies)
    if logged is None:
        raise AgentError("SessionNotFound", f"session {session_id!r} is not in this store any more")
    return logged


async def _known(store: Store, session_id: str, entry_ids: Sequence[str]) -> set[str]:
    named = set(entry_ids)
    missing = sorted(named - {entry.id for entry in await store.load(session_id)})
    if missing or not named:
        found = ", ".join(missing) or "none given"
        raise AgentError("InvalidEntry", f"nothing to purge: session {session_id!r} has no entry {found}")
    return named


async def purge_scope(store: Store, session_id: str, entry_ids: Sequence[str]) -> list[str]:
    """The session itself, and all that share one of these entries: forks, and what they were forked from.

    Nobody may write to them meanwhile: what a run has in memory, it would write again.
    """
    named = set(entry_ids)
    parents = {info.session_id: info.parent_session_id for info in await store.sessions()}

    def root(id: str) -> str:
        while (above := parents.get(id)) is not None:
            id = above
        return id

    top = root(session_id)
    others = [id for id in parents if id != session_id and root(id) == top]
    return [
        session_id,
        *[id for id in others if any(entry.id in named for entry in await store.load(id))],
    ]


def _check_settled(session_id: str, entries: Sequence[Entry], named: set[str]) -> None:
    open_calls = [call.call.tool_call_id for call in SessionState.of(entries).open_calls]
    answered = next((entry.id for entry in reversed(entries) if entry.kind == "model_output"), "")
    if answered in named and open_calls:
        raise AgentError(
            "SessionBusy",
            f"{', '.join(open_calls)} in session {session_id!r} have no result yet and would run on "
            "without their arguments; resume or abort the run, then purge",
            retryable=False,
        )


async def _plan(store: Store, member: str, entries: Sequence[Entry], named: set[str], derived: bool) -> _Part:
    """What lies in an ancestor's log is logged and erased there, once."""
    shared = {entry.id for entry in entries} & named
    whole = shared | copies_of(entries, shared).whole if derived else shared
    bodies = {row.seq: row.body for row in await store.read(member)}
    depth = len({entry.session_id for entry in entries})
    part = _Part({}, [entry.id for entry in entries if entry.id in whole], {}, depth)
    for entry in entries:
        if entry.id in whole and entry.session_id == member:
            part.bodies[entry.seq] = blank_body(bodies[entry.seq], entry)
    for entry, left in trims_after(entries, whole, erased=True) if derived else ():
        if entry.session_id == member:
            part.bodies[entry.seq] = trimmed = trim_body(bodies[entry.seq], left)
            part.trimmed[entry.id] = content_digest(read_envelope(trimmed))
    return part


async def _log(
    store: Store,
    session_id: str,
    part: _Part,
    by: str,
    reason: str | None,
    clock: Clock,
    ids: IdSource,
    lease: Lease | None,
) -> Entry:
    for attempt in range(_TRIES):
        session = await Session.open(store, session_id, clock=clock, ids=ids, create=False, lease=lease)
        session.append_purge(sorted(part.entry_ids), reason, by, trimmed=part.trimmed or None)
        try:
            return (await session.commit())[-1]
        except AgentError as error:
            if error.code != "SessionConcurrentWrite" or error.meta.get("fenced") or attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def blank_body(body: bytes, entry: Entry) -> bytes:
    """The stored form of ``entry`` without its content; what is blank already stays as it is."""
    envelope = read_envelope(body)
    if envelope.purged_digest is not None:
        return body
    digest = envelope.trimmed_digest or content_digest(envelope)
    return _body(body, blank_payload(entry.payload), {"purgedDigest": digest})


def trim_body(body: bytes, payload: EntryPayload) -> bytes:
    """The stored form of an entry out of which something was cut; its meta stays."""
    envelope = read_envelope(body)
    digest = envelope.trimmed_digest or content_digest(envelope)
    meta = bytes(envelope.meta)
    kept: JsonObject = {"meta": msgspec.Raw(meta)} if meta else {}
    return _body(body, payload, {**kept, "trimmedDigest": digest})


def _body(body: bytes, payload: EntryPayload, more: JsonObject) -> bytes:
    envelope = read_envelope(body)
    place: JsonObject = {
        "kind": envelope.kind,
        "id": envelope.id,
        "parentId": envelope.parent_id,
        "sessionId": envelope.session_id,
        "seq": envelope.seq,
        "timestamp": envelope.timestamp,
        "runId": envelope.run_id,
        "payload": msgspec.Raw(encode(payload)),
        **more,
        "hash": envelope.hash,
    }
    return encode({name: value for name, value in place.items() if value is not None})
