"""A log as a file to carry away, and back in again: one JSON object per line; and a log that branches off."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence

import msgspec

from ..contract import (
    SCHEMA_VERSION,
    AgentError,
    BranchSummary,
    Clock,
    Entry,
    EntryPayload,
    Envelope,
    ErrorInfo,
    IdSource,
    Message,
    MessagePart,
    RunEnded,
    SessionHeader,
    SessionHeaderEntry,
    Store,
    StoredEntry,
    ToolCall,
    ToolOutcome,
    ToolResults,
    ToolStartedEntry,
    encode,
    expected_hash,
    read_envelope,
    tool_result_part,
)
from ..system import SystemClock, SystemIds
from ._appends import named_blobs, seal_entries
from ._purge import blank_body, trim_body
from ._session import Session, log_written
from ._upcast import decode_log, header_version
from ._views import AgentState, redacted_ids, visible_entries


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
        shown = visible_entries(entries)
        for name in dict.fromkeys(name for entry in shown for name in sorted(named_blobs(entry))):
            data = base64.b64encode(await store.get_blob(name)).decode()
            lines.append(encode(_BlobLine(blob=name, data=data)))
    return b"\n".join(lines) + b"\n"


async def import_jsonl(
    store: Store,
    data: bytes,
    *,
    trust: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> str:
    """Put an exported log into ``store``; returns the session's id.

    Everything is checked before anything is written. A session that is there already is continued when
    the import is the same log grown longer; a log that differs is refused. The past that a fork shares
    with other sessions is kept once, under those sessions.

    An export can be made by anyone, so its open run ends here as aborted and what was approved in it is void;
    entries that say so follow the log. With ``trust`` the run stays open, to be resumed. A session of which
    only the past that a fork shares came along never stays open: its run continues elsewhere, or in the fork.
    """
    rows, blobs = _read_lines(data)
    _check_chain(rows)
    entries = decode_log(rows[-1][0].session_id, [row.body for _, row in rows])
    for content in blobs.values():
        await store.put_blob(content)
    parts = _by_session(rows)
    before: str | None = None
    for session_id, batch in parts:
        closing: list[StoredEntry] = []
        if not trust or session_id != parts[-1][0]:
            closing = _close(session_id, entries[: batch[-1].seq], clock or SystemClock(), ids or SystemIds())
        await _merge(store, session_id, batch, closing, before, list(blobs.values()))
        before = session_id
    return parts[-1][0]


def _close(session_id: str, entries: Sequence[Entry], clock: Clock, ids: IdSource) -> list[StoredEntry]:
    """What follows an imported log whose run is open: results that say so, and the run's end."""
    state = AgentState.from_entries(entries)
    payloads: list[EntryPayload] = []
    if not state.pending_tool_calls and state.current_run_id is None:
        return []
    if _version(entries) != SCHEMA_VERSION:
        payloads.append(SessionHeader(schema_version=SCHEMA_VERSION))
    now, run_id = clock.now(), state.current_run_id
    if calls := state.pending_tool_calls:
        payloads.append(_void(calls, entries, run_id or "", now))
    if run_id is not None:
        error = ErrorInfo(code="RunAborted", message=_ENDED, retryable=False, category="loop")
        payloads.append(RunEnded(status="aborted", error=error))
    return seal_entries(
        session_id,
        payloads,
        clock=clock,
        ids=ids,
        after=entries[-1],
        run_id=run_id,
        meta={"imported": True},
    )


_ENDED = "the log was imported with this run open, so it ended here; import it with trust to continue it"


def _void(calls: Sequence[ToolCall], entries: Sequence[Entry], run_id: str, now: str) -> ToolResults:
    started = {entry.payload.tool_call_id for entry in entries if isinstance(entry, ToolStartedEntry)}
    parts: list[MessagePart] = []
    outcomes: list[ToolOutcome] = []
    for call in calls:
        began = call.tool_call_id in started
        text = (
            "The log was imported while this call ran: whether it took effect is not known."
            if began
            else "This call was not run: the log was imported before it started; decisions on it are void."
        )
        parts.append(tool_result_part(call.tool_call_id, text, is_error=True))
        outcomes.append(
            ToolOutcome(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                status="unknown" if began else "skipped",
                error_code="ToolOutcomeUnknown" if began else "RunAborted",
            )
        )
    message = Message(run_id=run_id, role="tool", parts=parts, timestamp=now)
    return ToolResults(message=message, outcomes=outcomes)


def _version(entries: Sequence[Entry]) -> int | None:
    headers = [entry.payload for entry in entries if isinstance(entry, SessionHeaderEntry)]
    return headers[-1].schema_version if headers else None


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
            decode_log(envelope.session_id, [line])  # raises, with the reason
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


async def _merge(
    store: Store,
    session_id: str,
    batch: list[StoredEntry],
    closing: list[StoredEntry],
    parent: str | None,
    blobs: Sequence[bytes],
) -> None:
    first = batch[0].seq
    if await store.tail(session_id) is None:
        if parent is None:
            await store.append(session_id, batch + closing, expected_tail=first - 1, blobs=blobs)
        else:
            await store.fork(parent, at=first - 1, target=session_id, first=batch + closing)
        log_written(session_id, batch + closing)
        return
    there = await store.read(session_id, after=first - 1, upto=batch[-1].seq)
    for mine, theirs in zip(batch, there, strict=False):
        if read_envelope(mine.body).hash != read_envelope(theirs.body).hash:
            ours = b'"imported":true' in bytes(read_envelope(theirs.body).meta)
            why = (
                "where an earlier import ended its open run; import a session before its forks, or with trust"
                if ours
                else "import into another store"
            )
            raise AgentError(
                "InvalidEntry",
                f"the store has a session {session_id!r} that differs from the import from entry {mine.seq} "
                f"on; {why}",
                meta={"session_id": session_id, "seq": mine.seq},
            )
    if rest := batch[len(there) :]:
        await store.append(session_id, rest + closing, expected_tail=rest[0].seq - 1, blobs=blobs)
        log_written(session_id, rest + closing)


def _bad_line(number: int, message: str, cause: BaseException | None = None) -> AgentError:
    return AgentError(
        "SessionCorrupt", f"line {number} of the import: {message}", cause=cause, meta={"line": number}
    )


# A new session that shares another one's past


async def fork(
    store: Store,
    source: str,
    at: int | str | None = None,
    target: str | None = None,
    *,
    clock: Clock,
    ids: IdSource,
    summary: str | None = None,
    settle: Callable[[Session], None] | None = None,
) -> str:
    """Branch a session off ``source`` after entry ``at`` (a seq or an entry's id; the last one when None).

    Nothing is copied: the new log is the source's entries up to there, a ``branch_summary``, and what
    follows. A run that was open at that place is open in the branch too, unless ``settle``, given the branch,
    stages its end: that is written together with the branch or not at all. Returns the new session's id.
    """
    entries = await store.load(source)
    seq = _seq_of(entries, source, at)
    name = target or ids.session()
    branch = Session(store, name, entries[:seq], clock=clock, ids=ids)
    branch.append_branch_summary(
        BranchSummary(
            from_session_id=source, from_entry_id=entries[seq - 1].id, from_seq=seq, summary=summary
        )
    )
    if settle is not None:
        settle(branch)
    staged = branch.take_staged()
    await store.fork(source, at=seq, target=name, first=staged)
    log_written(name, staged)
    return name


def _seq_of(entries: list[Entry], source: str, at: int | str | None) -> int:
    if at is None:
        return len(entries)
    if isinstance(at, str):
        for entry in entries:
            if entry.id == at:
                return entry.seq
        raise AgentError("InvalidEntry", f"session {source!r} has no entry with the id {at!r} to fork at")
    if not 0 < at <= len(entries):
        raise AgentError(
            "InvalidEntry",
            f"session {source!r} cannot be forked at entry {at}: it has entries 1 to {len(entries)}",
        )
    return at
