"""How entries are sealed: hashes over payload digests, so a purge keeps the chain."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from ._base import JsonObject, Value
from ._codec import encode
from ._entries import ENTRY_TYPES, PAYLOAD_KINDS, Entry, EntryPayload


class StoredEntry(NamedTuple):
    """An entry as a store keeps it. ``body`` is its whole wire JSON, never written differently again."""

    seq: int
    id: str
    kind: str
    body: bytes


class Sealed(NamedTuple):
    entry: Entry
    stored: StoredEntry


class _Header(Value, frozen=True, kw_only=True, tag_field="kind"):
    id: str
    parent_id: str | None = None
    session_id: str
    seq: int
    timestamp: str
    run_id: str | None = None
    payload: msgspec.Raw
    meta: JsonObject | None = None
    purged_digest: str | None = None
    hash: str


_HEADERS: dict[str, type[_Header]] = {
    kind: msgspec.defstruct(f"_{kind}", [], bases=(_Header,), tag=kind, frozen=True, kw_only=True)  # pyright: ignore[reportAssignmentType]
    for kind in ENTRY_TYPES
}


class Envelope(Value, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Any entry with its payload left as the bytes that were stored. Cheap to read, enough to verify."""

    kind: str
    id: str
    parent_id: str | None = None
    session_id: str
    seq: int
    timestamp: str
    run_id: str | None = None
    payload: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw(b"")
    purged_digest: str | None = None
    hash: str


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def chain_hash(
    previous: str,
    *,
    id: str,
    parent_id: str | None,
    session_id: str,
    seq: int,
    kind: str,
    timestamp: str,
    run_id: str | None,
    payload_digest: str,
    meta: bytes,
) -> str:
    """The hash of one entry: everything in it, and through ``previous`` everything before it."""
    parts = (
        previous,
        id,
        parent_id or "",
        session_id,
        str(seq),
        kind,
        timestamp,
        run_id or "",
        payload_digest,
        digest(meta) if meta else "",
    )
    return digest("\n".join(parts).encode())


def seal(
    payload: EntryPayload,
    *,
    id: str,
    previous_id: str | None,
    previous_hash: str,
    session_id: str,
    seq: int,
    timestamp: str,
    run_id: str | None = None,
    meta: JsonObject | None = None,
) -> Sealed:
    """Give a payload its place in the log: the entry, and the bytes a store keeps."""
    kind = kind_of(payload)
    raw = encode(payload)
    meta = meta or None
    hash = chain_hash(
        previous_hash,
        id=id,
        parent_id=previous_id,
        session_id=session_id,
        seq=seq,
        kind=kind,
        timestamp=timestamp,
        run_id=run_id,
        payload_digest=digest(raw),
        meta=encode(meta) if meta else b"",
    )
    place: dict[str, Any] = {
        "id": id,
        "parent_id": previous_id,
        "session_id": session_id,
        "seq": seq,
        "timestamp": timestamp,
        "run_id": run_id,
        "meta": meta,
        "hash": hash,
    }
    body = encode(_HEADERS[kind](payload=msgspec.Raw(raw), **place))
    entry: Entry = ENTRY_TYPES[kind](payload=payload, **place)  # pyright: ignore[reportArgumentType]
    return Sealed(entry, StoredEntry(seq, id, kind, body))


def kind_of(payload: EntryPayload) -> str:
    for cls in type(payload).__mro__:
        kind = PAYLOAD_KINDS.get(cls)
        if kind is not None:
            return kind
    raise TypeError(f"{type(payload).__name__} is not an entry payload")


_envelope = msgspec.json.Decoder(Envelope).decode


def read_envelope(body: bytes) -> Envelope:
    return _envelope(body)


def expected_hash(envelope: Envelope, previous: str) -> str:
    """What ``envelope.hash`` must be if nothing in the entry or before it was changed."""
    return chain_hash(
        previous,
        id=envelope.id,
        parent_id=envelope.parent_id,
        session_id=envelope.session_id,
        seq=envelope.seq,
        kind=envelope.kind,
        timestamp=envelope.timestamp,
        run_id=envelope.run_id,
        payload_digest=envelope.purged_digest or digest(bytes(envelope.payload)),
        meta=bytes(envelope.meta),
    )
