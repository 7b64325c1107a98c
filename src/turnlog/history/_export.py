"""A log as a file to carry away, and back in again: one JSON object per line."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import msgspec

from ..contract import (
    SCHEMA_VERSION,
    AgentError,
    Envelope,
    Store,
    StoredEntry,
    encode,
    expected_hash,
    read_envelope,
)
from ._blank import blobs_in
from ._purge import blank_body, trim_body
from ._upcast import decode_log, header_version
from ._views import redacted_ids, visible_entries


class _BlobLine(msgspec.Struct, frozen=True):
    blob: str
    data: str


async def export_jsonl(store: Store, session_id: str, *, blobs: bool = True) -> bytes:
    """The log, one entry a line, byte for byte as it is stored; a fork's shared past is included.

    Redacted entries are exported without their content, and others without the copies of it that they hold,
    in the form a purge leaves. The stored bytes that entries name follow at the end, one
    ``{"blob", "data"}`` line each, unless ``blobs`` is False.
    """
    stored = await store.read(session_id)
    entries = decode_log(session_id, [row.body for row in stored])
    hidden = redacted_ids(entries)
    bodies = [row.body for row in stored]
    for at, (entry, shown) in enumerate(zip(entries, visible_entries(entries), strict=True)):
        if entry.id in hidden:
            bodies[at] = blank_body(bodies[at], entry)
        elif shown is not entry:
            bodies[at] = trim_body(bodies[at], shown.payload)
    lines = list(bodies)
    if blobs:
        for name in dict.fromkeys(name for body in bodies for name in sorted(_referenced(body))):
            data = base64.b64encode(await store.get_blob(name)).decode()
            lines.append(encode(_BlobLine(blob=name, data=data)))
    return b"\n".join(lines) + b"\n"


async def import_jsonl(store: Store, data: bytes) -> str:
    """Put an exported log into ``store``; returns the session's id.

    Everything is checked before anything is written. A session that is there already is continued when
    the import is the same log grown longer; a log that differs is refused. The past that a fork shares
    with other sessions is kept once, under those sessions.
    """
    rows, blobs = _read_lines(data)
    _check_chain(rows)
    decode_log(rows[-1][0].session_id, [row.body for _, row in rows])
    for content in blobs.values():
        await store.put_blob(content)
    before: str | None = None
    for session_id, batch in _by_session(rows):
        await _merge(store, session_id, batch, before)
        before = session_id
    return rows[-1][0].session_id


def _referenced(body: bytes) -> set[str]:
    return {name for name in blobs_in(body) if b"blob:" + name.encode() in body}


def _read_lines(data: bytes) -> tuple[list[tuple[Envelope, StoredEntry]], dict[str, bytes]]:
    rows: list[tuple[Envelope, StoredEntry]] = []
    blobs: dict[str, bytes] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        line = line.strip()
        if not line:
            continue
        if line.startswith(b'{"blob":'):
            name, content = _read_blob(line, number)
            blobs[name] = content
            continue
        try:
            envelope = read_envelope(line)
        except AgentError as error:
            raise _bad_line(number, error.message, error) from error
        version = header_version(line)
        if version is not None and version > SCHEMA_VERSION:
            decode_log(envelope.session_id, [line])  # says so
        rows.append((envelope, StoredEntry(envelope.seq, envelope.id, envelope.kind, line)))
    if not rows:
        raise AgentError(
            "SessionCorrupt", "the import holds no entry; it must be a JSONL export of a session"
        )
    return rows, blobs


def _read_blob(line: bytes, number: int) -> tuple[str, bytes]:
    try:
        found = msgspec.json.decode(line, type=_BlobLine)
        content = base64.b64decode(found.data, validate=True)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise _bad_line(number, str(error), error) from error
    return found.blob, content


def _check_chain(rows: Sequence[tuple[Envelope, StoredEntry]]) -> None:
    previous = ""
    for seq, (envelope, _) in enumerate(rows, 1):
        if envelope.seq != seq:
            raise _bad_line(seq, f"entry {seq} is missing; entry {envelope.seq} stands in its place")
        if expected_hash(envelope, previous) != envelope.hash:
            raise _bad_line(seq, f"entry {seq} ({envelope.id}) was changed: its hash is wrong")
        previous = envelope.hash


def _by_session(rows: Sequence[tuple[Envelope, StoredEntry]]) -> list[tuple[str, list[StoredEntry]]]:
    parts: list[tuple[str, list[StoredEntry]]] = []
    for envelope, stored in rows:
        if not parts or parts[-1][0] != envelope.session_id:
            parts.append((envelope.session_id, []))
        parts[-1][1].append(stored)
    return parts


async def _merge(store: Store, session_id: str, batch: list[StoredEntry], parent: str | None) -> None:
    first = batch[0].seq
    tail = await store.tail(session_id)
    if tail is None and parent is None:
        await store.append(session_id, batch, expected_tail=first - 1)
        return
    if tail is None and parent is not None:
        await store.fork(parent, at=first - 1, target=session_id, first=batch)
        return
    there = await store.read(session_id, after=first - 1, upto=batch[-1].seq)
    for mine, theirs in zip(batch, there, strict=False):
        if read_envelope(mine.body).hash != read_envelope(theirs.body).hash:
            raise AgentError(
                "InvalidEntry",
                f"the store has a session {session_id!r} that differs from the import from entry {mine.seq} "
                "on; import into another store",
                meta={"session_id": session_id, "seq": mine.seq},
            )
    if rest := batch[len(there) :]:
        await store.append(session_id, rest, expected_tail=rest[0].seq - 1)


def _bad_line(number: int, message: str, cause: BaseException | None = None) -> AgentError:
    return AgentError(
        "SessionCorrupt", f"line {number} of the import: {message}", cause=cause, meta={"line": number}
    )
