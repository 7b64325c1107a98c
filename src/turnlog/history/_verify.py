"""Reading a whole log with distrust: is every entry there, unchanged, and in its place?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..contract import (
    AgentError,
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    Entry,
    Envelope,
    ModelInputEntry,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    Store,
    StoredEntry,
    ToolResultsEntry,
    ToolStartedEntry,
    Value,
    content_digest,
    digest,
    expected_hash,
    read_envelope,
)
from ._appends import (
    check_approval_decision,
    check_approval_request,
    check_input,
    check_output,
    check_results,
    check_run_end,
    check_run_start,
    check_tool_start,
    named_blobs,
)
from ._blank import blank_payload
from ._state import SessionState
from ._upcast import decode_log
from ._views import redacted_ids


class Problem(Value, frozen=True, kw_only=True):
    """One thing that is wrong. ``code``: ``unreadable``, ``gap``, ``changed``, ``order``, ``schema``,
    ``pairing``, ``purge``, ``blob`` or ``tail``."""

    code: str
    message: str
    seq: int | None = None
    entry_id: str | None = None


async def verify(store: Store, session_id: str) -> list[Problem]:
    """Everything that is wrong with a session's log; empty when nothing is.

    Raises ``SessionNotFound`` for a session that does not exist, and nothing else.
    """
    try:
        stored = await store.read(session_id)
        tail = await store.tail(session_id)
    except AgentError as error:
        if error.code == "SessionNotFound":
            raise
        seq = error.meta.get("seq")
        return [Problem(code="unreadable", message=error.message, seq=seq if isinstance(seq, int) else None)]
    problems: list[Problem] = []
    envelopes = _check_chain(session_id, stored, problems)
    if tail is None or not stored or (tail.seq, tail.id) != (stored[-1].seq, stored[-1].id):
        last = f"{stored[-1].seq} ({stored[-1].id})" if stored else "none"
        said = f"{tail.seq} ({tail.id})" if tail else "none"
        problems.append(Problem(code="tail", message=f"the log ends with entry {last}, the store has {said}"))
    entries = _check_schema(session_id, stored, problems)
    if entries is not None:
        _check_pairing(entries, problems)
        await _check_purged(store, session_id, entries, envelopes, problems)
        await _check_blobs(store, entries, problems)
    return problems


def _check_chain(
    session_id: str, stored: Sequence[StoredEntry], problems: list[Problem]
) -> list[Envelope | None]:
    found: list[Envelope | None] = []
    previous: Envelope | None = None
    due = 1
    for row in stored:
        try:
            envelope = read_envelope(row.body)
        except AgentError as error:
            message = f"entry {row.seq} ({row.id}) cannot be read: {error.message}"
            problems.append(Problem(code="unreadable", message=message, seq=row.seq, entry_id=row.id))
            envelope = None
        else:
            if (row.seq, row.id, row.kind) != (envelope.seq, envelope.id, envelope.kind):
                message = f"entry {row.seq} is filed as {row[:3]}, and its own id is {envelope.id}"
                problems.append(Problem(code="changed", message=message, seq=row.seq, entry_id=row.id))
            elif problem := _check_place(envelope, previous, due):
                problems.append(problem)
        found.append(envelope)
        previous, due = envelope, row.seq + 1
    if found and found[-1] is not None and found[-1].session_id != session_id:
        message = f"the last entry belongs to session {found[-1].session_id!r}, not {session_id!r}"
        problems.append(Problem(code="order", message=message, seq=found[-1].seq, entry_id=found[-1].id))
    return found


async def check_unchanged(store: Store, session_id: str, since: int) -> None:
    """Check that the entries from ``since`` on are as they were written. Raises ``SessionCorrupt``."""
    previous: Envelope | None = None
    for row in await store.read(session_id, after=max(0, since - 2)):
        envelope = read_envelope(row.body)
        problem = None if previous is None and row.seq > 1 else _check_place(envelope, previous, row.seq)
        if problem is not None:
            raise AgentError(
                "SessionCorrupt",
                f"session {session_id!r}: {problem.message}, so what was approved in it does not count; "
                f"run turnlog verify {session_id}, and restore the log from a backup",
            )
        previous = envelope


def _check_place(envelope: Envelope, previous: Envelope | None, due: int) -> Problem | None:
    seq = envelope.seq

    def problem(code: str, message: str, at: int = seq) -> Problem:
        return Problem(code=code, message=message, seq=at, entry_id=envelope.id if at == seq else None)

    if seq > due:
        return problem("gap", f"entry {due} is missing; entry {seq} stands in its place", due)
    if seq < due:
        return problem("order", f"entry {seq} stands where entry {due} should")
    if previous is None and seq > 1:
        return None  # the one before is unreadable, which was said
    if envelope.parent_id != (previous.id if previous else None):
        return problem("order", f"entry {seq} follows {envelope.parent_id}, which is not before it")
    if expected_hash(envelope, previous.hash if previous else "") != envelope.hash:
        return problem(
            "changed", f"entry {seq} ({envelope.kind} {envelope.id}) was changed: its hash is wrong"
        )
    moved = previous is not None and previous.session_id != envelope.session_id
    if moved and envelope.kind not in ("branch_summary", "session_header"):
        return problem("order", f"entry {seq} is of another session than the one before, without a branch")
    return None


def _check_schema(
    session_id: str, stored: Sequence[StoredEntry], problems: list[Problem]
) -> list[Entry] | None:
    try:
        return decode_log(session_id, [row.body for row in stored])
    except AgentError as error:
        seq = error.meta.get("seq")
        if not any(problem.seq == seq and seq is not None for problem in problems):
            problems.append(
                Problem(code="schema", message=error.message, seq=seq if isinstance(seq, int) else None)
            )
        return None


def _check_pairing(entries: Sequence[Entry], problems: list[Problem]) -> None:
    state = SessionState()
    for entry in entries:
        try:
            _check_next(state, entry)
        except AgentError as error:
            message = f"entry {entry.seq} ({entry.kind} {entry.id}) cannot stand there: {error.message}"
            problems.append(Problem(code="pairing", message=message, seq=entry.seq, entry_id=entry.id))
        state.step(entry)


def _check_next(state: SessionState, entry: Entry) -> None:
    """The checks that the append of such an entry goes through. Most kinds may stand anywhere."""
    if isinstance(entry, ModelOutputEntry):
        check_output(state, entry.payload)
    elif isinstance(entry, ToolResultsEntry):
        check_results(state, entry.payload)
    elif isinstance(entry, ModelInputEntry):
        check_input(entry.payload.message)
    elif isinstance(entry, ToolStartedEntry):
        check_tool_start(state, entry.payload)
    elif isinstance(entry, RunStartedEntry):
        check_run_start(state, entry.run_id or "")
    elif isinstance(entry, RunEndedEntry):
        check_run_end(state)
    elif isinstance(entry, ApprovalRequestedEntry):
        check_approval_request(state, entry.payload)
    elif isinstance(entry, ApprovalDecidedEntry):
        check_approval_decision(state, entry.payload)


async def _check_purged(
    store: Store,
    session_id: str,
    entries: Sequence[Entry],
    envelopes: Sequence[Envelope | None],
    problems: list[Problem],
) -> None:
    """Content may be gone only where the log says so, and must be gone where it says it was erased."""
    purged = [
        entry
        for entry, envelope in zip(entries, envelopes, strict=True)
        if envelope and envelope.purged_digest
    ]
    said, listed = redacted_ids(entries), _listed(entries)
    for owner in {entry.session_id for entry in entries if _is_cut(entry)} - {session_id}:
        try:
            log = await store.load(owner)
        except AgentError:
            continue  # an import may have brought the branch without the rest of its parent
        said |= redacted_ids(log)
        listed = {**listed, **_listed(log)}
    for entry in purged:
        if entry.payload != blank_payload(entry.payload):
            message = f"entry {entry.seq} ({entry.id}) is marked as purged and has content"
            problems.append(Problem(code="changed", message=message, seq=entry.seq, entry_id=entry.id))
        elif entry.id not in said:
            message = (
                f"the content of entry {entry.seq} ({entry.id}) is gone, and no purge in the log names it"
            )
            problems.append(Problem(code="purge", message=message, seq=entry.seq, entry_id=entry.id))
    problems.extend(_check_trimmed(entries, envelopes, listed))
    gone = {entry.id for entry in purged}
    cut = {entry.id for entry in entries if _is_cut(entry)}
    for entry in entries:
        if isinstance(entry, PurgeEntry):
            left = [id for id in entry.payload.entry_ids if id not in gone]
            left += [id for id in entry.payload.trimmed or () if id not in cut]
            problems.extend(_unfinished(id, entry.seq) for id in left)


def _is_cut(entry: Entry) -> bool:
    return entry.purged_digest is not None or entry.trimmed_digest is not None


def _listed(entries: Sequence[Entry]) -> dict[str, list[tuple[str, int | None]]]:
    """What redactions and purges say stays of entries, the last word last; for a purge, with its place."""
    found: dict[str, list[tuple[str, int | None]]] = {}
    for entry in entries:
        if isinstance(entry, RedactionEntry | PurgeEntry):
            erased = entry.seq if isinstance(entry, PurgeEntry) else None
            for id, left in (entry.payload.trimmed or {}).items():
                found.setdefault(id, []).append((left, erased))
    return found


def _check_trimmed(
    entries: Sequence[Entry],
    envelopes: Sequence[Envelope | None],
    listed: dict[str, list[tuple[str, int | None]]],
) -> Iterator[Problem]:
    """Where copies were cut out, what stays is what the log says stays."""
    # A redaction that lists no copies hides them all the same, and an export leaves them out.
    unlisted = max(
        (e.seq for e in entries if isinstance(e, RedactionEntry) and not e.payload.trimmed), default=0
    )
    for entry, envelope in zip(entries, envelopes, strict=True):
        if envelope is None or envelope.trimmed_digest is None or envelope.purged_digest is not None:
            continue
        found, words = content_digest(envelope), listed.get(entry.id, [])
        places = [at for at, (left, _) in enumerate(words) if left == found]
        later = [erased for _, erased in words[places[-1] + 1 :] if erased] if places else []
        if not words and entry.seq > unlisted:
            message = f"a part of entry {entry.seq} ({entry.id}) is gone, and no purge in the log says so"
            yield Problem(code="purge", message=message, seq=entry.seq, entry_id=entry.id)
        elif words and not places:
            message = f"what a purge left of entry {entry.seq} ({entry.id}) was changed"
            yield Problem(code="changed", message=message, seq=entry.seq, entry_id=entry.id)
        elif later:
            yield _unfinished(entry.id, later[-1])


def _unfinished(id: str, seq: int) -> Problem:
    message = (
        f"a purge was logged in entry {seq} and not finished: entry {id} has what it names; purge it again"
    )
    return Problem(code="purge", message=message, seq=seq, entry_id=id)


async def _check_blobs(store: Store, entries: Sequence[Entry], problems: list[Problem]) -> None:
    for entry in entries:
        for name in sorted(named_blobs(entry)):
            try:
                intact = f"sha256-{digest(await store.get_blob(name))}" == name
                message = f"the bytes {name} that entry {entry.seq} names were changed"
            except AgentError as error:
                intact, message = False, f"entry {entry.seq} names bytes that are not there: {error.message}"
            if not intact:
                problems.append(Problem(code="blob", message=message, seq=entry.seq, entry_id=entry.id))
