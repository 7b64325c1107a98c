"""How entries are sealed: hashes over payload digests, so a purge keeps the chain."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ._base import JsonObject, Value, check_meta, freeze
from ._codec import decode, encode
from .entries import ENTRY_TYPES, PAYLOAD_KINDS, Entry, EntryPayload
from .errors import AgentError


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
    trimmed_digest: str | None = None
    hash: str


@cache
def _header(kind: str) -> type[_Header]:
    return msgspec.defstruct(f"_{kind}", [], bases=(_Header,), tag=kind, frozen=True, kw_only=True)  # pyright: ignore[reportReturnType]


class Envelope(Value, frozen=True, kw_only=True):
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
    trimmed_digest: str | None = None
    hash: str


class _NewerEnvelope(Envelope, frozen=True, kw_only=True):
    """An envelope with fields this version does not know; they count for the hash all the same."""

    extra: dict[str, bytes]


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
    meta_digest: str | None,
    extra: Mapping[str, bytes] | None = None,
) -> str:
    """The hash of one entry: everything in it, and through ``previous`` everything before it."""
    parts: list[object] = [
        previous,
        id,
        parent_id,
        session_id,
        seq,
        kind,
        timestamp,
        run_id,
        payload_digest,
        meta_digest,
    ]
    if extra:
        parts += [[key, digest(extra[key])] for key in sorted(extra)]
    return digest(encode(parts, finite=True))


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
    """Give a payload its place in the log: the entry, and the bytes a store keeps.

    The entry is read back from those bytes, so that what is in memory is what is in the log, and nothing
    that could not be read again is ever written. It is frozen, so that it stays that way.
    """
    kind = kind_of(payload)
    raw = encode(payload)
    check_meta(meta, f"{kind} entry", "InvalidEntry")
    raw_meta = encode(meta) if meta else b""
    meta = decode(raw_meta, dict[str, Any]) if raw_meta else None
    payload = _read_back(raw, payload, kind)
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
        meta_digest=digest(raw_meta) if raw_meta else None,
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
    body = encode(_header(kind)(payload=msgspec.Raw(raw), **place))
    entry: Entry = ENTRY_TYPES[kind](payload=payload, **place)  # pyright: ignore[reportArgumentType]
    return Sealed(freeze(entry), StoredEntry(seq, id, kind, body))


def _read_back(raw: bytes, payload: EntryPayload, kind: str) -> EntryPayload:
    try:
        return decode(raw, type(payload))
    except AgentError as error:
        raise AgentError(
            "InvalidEntry",
            f"a {kind} entry could not be read again from what would be written: {error.message}; "
            "check the types of the fields it was made with",
            cause=error,
        ) from error


def kind_of(payload: EntryPayload) -> str:
    for cls in type(payload).__mro__:
        kind = PAYLOAD_KINDS.get(cls)
        if kind is not None:
            return kind
    raise TypeError(f"{type(payload).__name__} is not an entry payload")


_envelope = msgspec.json.Decoder(Envelope).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_envelope(body: bytes) -> Envelope:
    """The envelope in ``body``; raises ``SessionCorrupt`` when there is none."""
    try:
        return _envelope(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _read_newer(body, error)


def _read_newer(body: bytes, why: Exception) -> Envelope:
    try:
        fields = _fields(body)
        known = {name: fields.pop(name) for name in Envelope.__struct_encode_fields__ if name in fields}
        envelope = _envelope(encode(known))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AgentError("SessionCorrupt", f"an entry cannot be read: {why}", cause=error) from error
    place = {name: getattr(envelope, name) for name in envelope.__struct_fields__}
    return _NewerEnvelope(**place, extra={key: bytes(raw) for key, raw in fields.items()})


def expected_hash(envelope: Envelope, previous: str) -> str:
    """What ``envelope.hash`` must be if nothing in the entry or before it was changed."""
    known = envelope.purged_digest or envelope.trimmed_digest or content_digest(envelope)
    payload_digest, _, meta_digest = known.partition(":")
    return chain_hash(
        previous,
        id=envelope.id,
        parent_id=envelope.parent_id,
        session_id=envelope.session_id,
        seq=envelope.seq,
        kind=envelope.kind,
        timestamp=envelope.timestamp,
        run_id=envelope.run_id,
        payload_digest=payload_digest,
        meta_digest=meta_digest or None,
        extra=envelope.extra if isinstance(envelope, _NewerEnvelope) else None,
    )


def content_digest(envelope: Envelope) -> str:
    """The digest of the payload as it stands, and after a colon that of the meta where there is one.

    A purge keeps this as ``purged_digest`` (``trimmed_digest`` where it cut something out), so that neither
    is needed to verify the chain.
    """
    found = digest(bytes(envelope.payload))
    meta = bytes(envelope.meta)
    return f"{found}:{digest(meta)}" if meta else found
