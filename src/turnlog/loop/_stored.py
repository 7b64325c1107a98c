"""Work on a stored session, from any process that can open the store: hide and erase what entries hold,
explain, fork, decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from turnlog import context
from turnlog.approvals import Decision, make_decision
from turnlog.context import ContextOptions, ContextView, ProjectionContext
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    CompactionSummaryEntry,
    Entry,
    FoldEntry,
    IdSource,
    JsonObject,
    Lease,
    ModelCallFailed,
    ModelCallFailedEntry,
    PendingApproval,
    RunEnded,
    Secrets,
    Store,
    ToolDeferred,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolStartedEntry,
    Value,
    WidgetEventEntry,
    decode,
)
from turnlog.history import (
    Session,
    SessionState,
    SnapshotStore,
    decode_snapshot,
    fork,
    pending_in,
    purge,
    purge_scope,
    redaction_of,
    same_snapshot,
    visible_entries,
)
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import check_schema
from turnlog.widgets import Widget

from ._folds import Folds, MadeWith, find_widgets, key_of
from ._lease import WAIT_ADVICE, SessionLease, Work

if TYPE_CHECKING:
    from turnlog.observe import Span

OnBusy = Literal["refuse", "wait"]


async def purge_entries(
    store: Store,
    session_id: str,
    entry_ids: Sequence[str],
    *,
    by: str,
    reason: str | None = None,
    on_busy: OnBusy = "refuse",
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Entry:
    """Erase what these entries hold from the store's own files, with the copies of it; as
    :func:`turnlog.history.purge`. It cannot be undone. The entry that is returned names all that is gone.

    While a run is in progress in a session that has one of them it is refused as ``SessionBusy``, or waits
    for the run with ``on_busy="wait"``: what a run has in memory, it would write again.
    """
    while True:
        async with AsyncExitStack() as held:
            leases: dict[str, Lease] = {}
            # In one order everywhere, so that two who wait do not wait for each other.
            for member in sorted(await purge_scope(store, session_id, entry_ids)):
                lease = await held.enter_async_context(_hold(store, member, "purge", on_busy))
                assert lease.lease is not None
                leases[member] = lease.lease
            if not leases.keys() >= set(await purge_scope(store, session_id, entry_ids)):
                continue  # a fork was made while others were waited for, and may have a run of its own
            return await purge(
                store,
                session_id,
                entry_ids,
                by=by,
                reason=reason,
                clock=clock or SystemClock(),
                ids=ids or SystemIds(),
                leases=leases,
            )


async def redact_entries(
    store: Store,
    session_id: str,
    entry_ids: Sequence[str],
    *,
    by: str,
    reason: str | None = None,
    on_busy: OnBusy = "refuse",
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Entry:
    """Hide what these entries hold, and the copies of it, from every view, export and future context.

    The bytes stay in the store. A fork that was made before does not know of it. Refused as ``SessionBusy``
    while a run is in progress in the session, or waits for it with ``on_busy="wait"``.
    """
    session = await Session.open(
        store, session_id, clock=clock or SystemClock(), ids=ids or SystemIds(), create=False
    )
    async with _hold(store, session_id, "redact", on_busy) as held:
        session.lease = held.lease
        await session.refresh()
        hidden, trimmed = redaction_of(session.entries, entry_ids)
        session.redact(hidden, reason, by, trimmed=trimmed)
        return (await session.commit())[-1]


def _hold(store: Store, session_id: str, work: Work, on_busy: OnBusy) -> SessionLease:
    return SessionLease(
        store, session_id, clock=SystemClock(), work=work, on_busy=on_busy, advice=WAIT_ADVICE
    )


SnapshotFinding: TypeAlias = Literal["none", "same", "other", "wrong"]


async def check_snapshot(
    store: Store, session_id: str, *, widgets: Sequence[Widget[Any]] = ()
) -> SnapshotFinding:
    """Compare the snapshot beside a session's log with what the log folds to. ``"other"`` is one that cannot
    be compared here, damaged, of another version or with widgets that are not known; ``"wrong"`` is one that
    differs: it is dropped, and the log is as sound as before. Raises what reading the store raises."""
    data = await store.read_snapshot(session_id) if isinstance(store, SnapshotStore) else None
    if not data or not isinstance(store, SnapshotStore):
        return "none"
    snapshot = decode_snapshot(data)
    if snapshot is None:
        return "other"
    log: list[Entry] = await store.load(session_id)
    try:
        made = decode(snapshot.key.encode(), MadeWith)
    except AgentError:
        return "other"
    known = find_widgets([name for name, _, _ in made.widgets], widgets, all_of_them=False)
    session = Session(store, session_id, log[: snapshot.seq], clock=SystemClock(), ids=SystemIds())
    folds = Folds(session, lambda: ProjectionContext(made.options), known)
    if key_of(folds.context, folds.host) != snapshot.key:
        return "other"
    found = folds.take_snapshot()
    if found is not None and same_snapshot(found, snapshot):
        return "same"
    with suppress(AgentError):  # a store that can only be read keeps it; nobody uses it
        await store.write_snapshot(session_id, log[-1].seq, log[-1].hash, b"")
    return "wrong"


def explain(
    entries: Sequence[Entry], call_index: int = -1, *, options: ContextOptions | None = None
) -> ContextView:
    """What the model saw at the ``call_index``-th call of the log, from 1; -1 is the last.

    What was redacted since is not shown again. Raises ``ContextInvalidInput`` when there is no such call.
    """
    return context.explain(visible_entries(entries), call_index, options=options)


async def fork_session(
    store: Store,
    source: str,
    *,
    at: int | None = None,
    target: str | None = None,
    summary: str | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> str:
    """Fork ``source`` after entry ``at`` (default: its newest) and return the new session's id.

    A run that was under way there stays behind: in the fork its open calls are skipped and it is over. What
    a run writes in one batch with the step that follows is not parted from it: the fork then begins before.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    if isinstance(at, int):
        at = _edge_of(await store.load(source), at)
    return await fork(
        store,
        source,
        at,
        target,
        clock=clock,
        ids=ids,
        summary=summary,
        settle=lambda branch: _leave_behind(branch, source),
    )


def _edge_of(entries: Sequence[Entry], at: int) -> int:
    """``at``, or the entry before the batch that it would cut in two."""
    if not 0 < at < len(entries) or not SessionState.of(entries[:at]).is_open:
        return at
    while _is_begun(entries[at - 1]):
        at -= 1
    return at


def _is_begun(entry: Entry) -> bool:
    """Whether a run writes this entry in one batch with what follows: a call, a result, or its own end."""
    match entry:
        case ToolsChangeEntry() | FoldEntry() | WidgetEventEntry() | CompactionSummaryEntry():
            return True
        case ModelCallFailedEntry():
            return not entry.payload.error.code.startswith("Model")  # it was stopped with its run
        case ToolResultsEntry():
            return all(outcome.status == "skipped" for outcome in entry.payload.outcomes)
        case _:
            return False


def _leave_behind(branch: Session, source: str) -> None:
    """End the run in the branch, in the same write: nobody may ever find it open in two places."""
    state = branch.state
    if not state.is_open:
        return
    error = AgentError("RunAborted", f"the run stayed behind in session {source}").to_info()
    if (call := state.open_call) is not None:
        branch.fail_model_call(
            ModelCallFailed(model_call_index=call.model_call_index, attempt=call.attempt, error=error)
        )
    branch.fail_open_calls(
        "not run here: the session was forked before this call had its result", status="skipped"
    )
    branch.end_run(RunEnded(status="aborted", error=error, usage=state.usage))


CheckArguments: TypeAlias = Callable[[str, JsonObject], "list[str] | None"]
"""What is wrong with arguments for a tool; None where the tool is not known."""


class PendingAnswer(Value, frozen=True, kw_only=True):
    """A call that waits for an answer from outside, and what is asked."""

    session_id: str
    run_id: str | None
    asked: ToolDeferred

    @property
    def tool_call_id(self) -> str:
        return self.asked.tool_call_id

    @property
    def tool_name(self) -> str:
        return self.asked.tool_name

    @property
    def question(self) -> str:
        """The question to answer; the tool's reason where it has no question."""
        return self.asked.question or self.asked.reason


async def pending_answers(store: Store, session_id: str | None = None) -> list[PendingAnswer]:
    """The calls that wait for an answer from outside, in one session or in all of a store."""
    names = [session_id] if session_id is not None else []
    if session_id is None:
        names = [info.session_id for info in await store.sessions(status="awaiting_human")]
    found: list[PendingAnswer] = []
    for name in names:
        own = SessionState.of(visible_entries(await store.load(name)))
        below = await _children_in(store, name, own)
        children = {child for child, _ in below}
        found += [
            PendingAnswer(session_id=home, run_id=state.run_id, asked=call.deferred)
            for home, state in [(name, own), *(below if session_id is not None else ())]
            for call in state.open_calls
            if call.deferred is not None and call.child not in children
        ]
    return found


async def pending_calls(store: Store, session_id: str) -> list[PendingApproval]:
    """What waits for a human in a session, and in the children that its calls wait for, oldest first."""
    own = SessionState.of(visible_entries(await store.load(session_id)))
    found = pending_in(session_id, own)
    for child, state in await _children_in(store, session_id, own):
        found += pending_in(child, state)
    return sorted(found, key=lambda each: (each.requested_at, each.entry_id))


async def home_of(store: Store, session_id: str, tool_call_id: str) -> str:
    """The session in which a call waits: this one, or the child that has it."""
    if await store.tail(session_id) is None:
        return session_id
    own = SessionState.of(await store.load(session_id))
    if tool_call_id not in own.calls:
        for child, state in await _children_in(store, session_id, own):
            if tool_call_id in state.calls:
                return child
    return session_id


def is_child(state: SessionState, session_id: str) -> bool:
    """Whether the session of ``state`` was made for a call of ``session_id``."""
    return state.metadata.get("parent_session") == session_id


async def _children_in(store: Store, session_id: str, state: SessionState) -> list[tuple[str, SessionState]]:
    """The sessions below the open calls of a run, and what their logs say."""
    found: list[tuple[str, SessionState]] = []
    due = [(session_id, state)]
    while due:
        parent, above = due.pop(0)
        for child in (call.child for call in above.open_calls if above.is_open):
            if child is None or await store.tail(child) is None:
                continue
            below = SessionState.of(visible_entries(await store.load(child)))
            if is_child(below, parent) and all(child != known for known, _ in found):
                due.append((child, below))
                found.append((child, below))
    return found


async def record_decision(
    store: Store,
    session_id: str,
    tool_call_id: str,
    action: Decision,
    *,
    by: str,
    arguments: dict[str, Any] | None = None,
    note: str | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    check: CheckArguments | None = None,
    secrets: Secrets | None = None,
) -> ApprovalDecided:
    """Append the decision; ``secrets`` are those of the session's agent, where the caller has it.

    Arguments to run instead are checked by ``check`` where it knows the tool, else against the schema that
    the log has of it; what is wrong is said, and the question stays open.

    Raises ``ApprovalInvalid`` when the call does not wait or the decision does not fit it,
    ``ApprovalExpired`` after its time, ``SessionBusy`` while other calls of the same message still run, or
    while a run elsewhere holds the session: that run is not disturbed.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    session = await Session.open(store, session_id, clock=clock, ids=ids, create=False)
    session.secrets = secrets or session.secrets
    now = clock.now()

    def decision() -> ApprovalDecided:
        return decide_on(
            session.state, tool_call_id, action, by=by, arguments=arguments, note=note, now=now, check=check
        )

    decision()  # what cannot be decided keeps nobody out
    advice = "decide once its run waits for it and is let go, or where it asks"
    async with SessionLease(store, session_id, clock=SystemClock(), work="decide", advice=advice) as held:
        session.lease = held.lease
        await session.refresh()
        decided = decision()
        session.decide_approval(decided)
        await session.commit()
    return decided


def decide_on(
    state: SessionState,
    tool_call_id: str,
    action: Decision,
    *,
    by: str,
    arguments: dict[str, Any] | None,
    note: str | None,
    now: str,
    check: CheckArguments | None = None,
) -> ApprovalDecided:
    """The decision, after every check against where the run stands; raises as :func:`record_decision`."""
    call = state.calls.get(tool_call_id)
    if call is None or not call.awaits_human or call.requested is None:
        waiting = ", ".join(c.call.tool_call_id for c in state.awaiting) or "none"
        raise AgentError(
            "ApprovalInvalid", f"call {tool_call_id} does not wait for a decision; waiting: {waiting}"
        )
    running = [
        c.call.tool_call_id for c in state.open_calls if not c.waits and (c.may_have_run or c.decided is None)
    ]
    if running:
        # The process that runs these writes next: a decision in between would cost it their results.
        raise AgentError(
            "SessionBusy",
            f"{', '.join(running)} of the same message have no result yet; decide once the run waits, "
            "or resume it first if its process is gone",
        )
    tool_name = call.requested.tool_name

    def find_problems(given: JsonObject) -> list[str]:
        problems = check(tool_name, given) if check is not None else None
        if problems is not None:
            return problems
        spec = next((tool for tool in state.tools or () if tool.name == tool_name), None)
        return check_schema(spec.parameter_schema, given) if spec is not None else []

    return make_decision(
        call.requested,
        action,
        by=by,
        arguments=arguments,
        note=note,
        now=now,
        session_id=call.asked_in,
        check=find_problems,
    )


async def trace_of(
    store: Store, session_id: str, *, content: bool = False, under: Span | None = None
) -> list[Span]:
    """The spans of a session and of the sub-agents that its calls began, in the order they ended, as
    ``OpenTelemetry`` sends them live. What is still open is left out."""
    from turnlog.observe import Span, SpanReader  # most programs make no traces

    reader, found = SpanReader(content=content, under=under), list[Span]()
    for entry in visible_entries(await store.load(session_id)):
        found.extend(reader.step(entry))
        child = entry.payload.child_session_id if isinstance(entry, ToolStartedEntry) else None
        if child is not None and await store.tail(child) is not None:
            found.extend(await trace_of(store, child, content=content, under=reader.newest_tool))
    return found
