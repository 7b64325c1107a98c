"""Recording a human's decision, from any process that can open the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from turnlog.approvals import Decision, make_decision
from turnlog.contract import AgentError, ApprovalDecided, Clock, IdSource, JsonObject, PendingApproval, Store
from turnlog.history import Session, SessionState, pending_in, visible_entries
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import check_schema

from ._lease import SessionLease

CheckArguments: TypeAlias = Callable[[str, JsonObject], "list[str] | None"]
"""What is wrong with arguments for a tool; None where the tool is not known."""


async def pending_calls(store: Store, session_id: str) -> list[PendingApproval]:
    """What waits for a human in a session, oldest first."""
    return pending_in(session_id, SessionState.of(visible_entries(await store.load(session_id))))


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
) -> ApprovalDecided:
    """Append the decision.

    Arguments to run instead are checked by ``check`` where it knows the tool, else against the schema that
    the log has of it; what is wrong is said, and the question stays open.

    Raises ``ApprovalInvalid`` when the call does not wait or the decision does not fit it,
    ``ApprovalExpired`` after its time, ``SessionBusy`` while other calls of the same message still run, or
    while a run elsewhere holds the session: that run is not disturbed.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
    session = await Session.open(store, session_id, clock=clock, ids=ids, create=False)
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
