"""Old logs, read as if they had been written today. Forward-only; the stored bytes are never touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from ..contract import (
    SCHEMA_VERSION,
    AgentError,
    Entry,
    JsonObject,
    SessionHeaderEntry,
    decode,
    encode,
)

Upcaster = Callable[[str, JsonObject], JsonObject]
"""(kind, payload of version n) in, payload of version n + 1 out. The envelope around it never changes."""


def _from_0(kind: str, payload: JsonObject) -> JsonObject:
    """Version 0, the drafts before the first release: the header's version was called ``version``, and a
    message of nothing but text had ``content`` in place of parts."""
    payload = dict(payload)
    if kind == "session_header" and "version" in payload:
        payload["schemaVersion"] = payload.pop("version")
    message = payload.get("message")
    if isinstance(message, dict) and "content" in message:
        lifted: JsonObject = dict(message)  # pyright: ignore[reportUnknownArgumentType]
        lifted["parts"] = [{"kind": "text", "payload": {"text": lifted.pop("content")}}]
        payload["message"] = lifted
    return payload


UPCASTERS: Mapping[int, Upcaster] = {0: _from_0}
"""From each version to the next. A new schema version adds a line here."""


@cache
def _decoder() -> Callable[[bytes], Entry]:
    return msgspec.json.Decoder(Entry).decode  # made when a log is first read: it takes milliseconds


_HEADER = b'"session_header"'


class Loaded(list[Entry]):
    """Entries as they were loaded, and how many bytes they have in the store."""

    size = 0


_USUAL_BYTES = 600
"""Of an entry, where a store does not tell."""


def size_of(entries: Sequence[Entry]) -> int:
    """How many bytes these take in their store."""
    return entries.size if isinstance(entries, Loaded) else _USUAL_BYTES * len(entries)


class _Version(msgspec.Struct, rename="camel"):
    schema_version: int | None = None
    version: int | None = None


class _Head(msgspec.Struct):
    kind: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_head = msgspec.json.Decoder(_Head).decode
_version = msgspec.json.Decoder(_Version).decode


def header_version(body: bytes) -> int | None:
    """The schema version a session header declares; None when this is no header."""
    try:
        head = _head(body)
        if head.kind != "session_header":
            return None
        found = _version(head.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if found.schema_version is not None:
        return found.schema_version
    return found.version if found.version is not None else 0


def first_version_is_current(body: bytes) -> bool:
    """Whether a log that starts with ``body`` needs no migration anywhere."""
    found = header_version(body)
    return found is None or found == SCHEMA_VERSION


def decode_log(session_id: str, bodies: Sequence[bytes], *, after: int = 0) -> list[Entry]:
    """Entries from stored bodies, older versions lifted to this one.

    A header applies to itself and to what follows it, up to the next header: a session that is continued
    by a newer version gets a header of that version first.
    """
    return decode_rows(session_id, lambda: zip(bodies, strict=False), after=after)


def decode_rows(
    session_id: str, fetch: Callable[[], Iterable[tuple[bytes]]], *, after: int = 0
) -> list[Entry]:
    """The same over rows of one column as they come from a database; ``fetch`` may be called twice."""
    entries = _decode_current(fetch())
    if entries is None:
        entries = _decode_slowly(session_id, [body for (body,) in fetch()], after)
    if entries and entries[-1].seq != after + len(entries):
        _refuse_gap(session_id, entries, after)
    return entries


def _decode_current(rows: Iterable[tuple[bytes]]) -> list[Entry] | None:
    """The fast road, for logs that are sound and of this version throughout; None for others."""
    read = _decoder()
    size = 0
    entries = Loaded()
    try:
        for (body,) in rows:
            size += len(body)
            entries.append(read(body))
    except Exception:  # whatever it was, the slow road names the entry
        return None
    entries.size = size
    for entry in entries:
        if type(entry) is SessionHeaderEntry and entry.payload.schema_version != SCHEMA_VERSION:
            return None
    return entries


def decode_bodies(bodies: Iterable[bytes]) -> list[Entry]:
    """Entries of this version, from any places of a log. Raises ``MsgspecError`` for others."""
    read = _decoder()
    return [read(body) for body in bodies]


def _decode_slowly(session_id: str, bodies: Sequence[bytes], after: int) -> list[Entry]:
    entries = Loaded()
    version = SCHEMA_VERSION
    for place, body in enumerate(bodies, after + 1):
        if not isinstance(body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AgentError(
                "SessionCorrupt",
                f"entry {place} of session {session_id!r} cannot be read: its store is damaged there; "
                "restore it from a backup",
                meta={"session_id": session_id, "seq": place},
            )
        if _HEADER in body[:200]:
            version = _checked_version(session_id, header_version(body))
        entries.append(_decode_one(session_id, upcast(body, version), place))
        entries.size += len(body)
    return entries


def _decode_one(session_id: str, body: bytes, seq: int) -> Entry:
    try:
        return decode(body, Entry)
    except AgentError as error:
        _checked_version(session_id, header_version(body))
        if error.code == "UnknownKind":
            raise AgentError(
                error.code, f"entry {seq} of session {session_id!r}: {error.message}", cause=error
            ) from error
        raise AgentError(
            "SessionCorrupt",
            f"entry {seq} of session {session_id!r} cannot be read: {error.message}; "
            "`turnlog verify` lists what else is damaged",
            cause=error,
            meta={"session_id": session_id, "seq": seq},
        ) from error


def upcast(body: bytes, version: int) -> bytes:
    """One stored body of ``version``, lifted to the current version."""
    if version == SCHEMA_VERSION:
        return body
    try:
        entry: JsonObject = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body  # the caller finds the damage and names the entry
    kind, payload = entry.get("kind"), entry.get("payload")
    if not isinstance(kind, str) or not isinstance(payload, dict):
        return body
    lifted: JsonObject = payload  # pyright: ignore[reportUnknownVariableType]
    for step in range(version, SCHEMA_VERSION):
        lifted = UPCASTERS[step](kind, lifted)
    return encode(entry | {"payload": lifted})


def _checked_version(session_id: str, version: int | None) -> int:
    if version is None:
        return SCHEMA_VERSION
    if version > SCHEMA_VERSION:
        raise AgentError(
            "SessionMigrationFailed",
            f"session {session_id!r} was written with schema version {version}, this turnlog reads up to "
            f"{SCHEMA_VERSION}; upgrade turnlog to read it (nothing was changed)",
            meta={"session_id": session_id, "found": version, "supported": SCHEMA_VERSION},
        )
    if version not in UPCASTERS and version != SCHEMA_VERSION:
        raise AgentError(
            "SessionMigrationFailed",
            f"session {session_id!r} has schema version {version}, which no migration is known for",
            meta={"session_id": session_id, "found": version, "supported": SCHEMA_VERSION},
        )
    return version


def _refuse_gap(session_id: str, entries: Sequence[Entry], after: int) -> None:
    for place, entry in enumerate(entries, after + 1):
        if entry.seq != place:
            raise AgentError(
                "SessionCorrupt",
                f"session {session_id!r}: entry {place} is missing, found entry {entry.seq} in its place",
                meta={"session_id": session_id, "seq": place},
            )
