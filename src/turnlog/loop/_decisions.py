"""Recording a human's decision, from any process that can open the store."""

from __future__ import annotations

from typing import Any

from turnlog.approvals import check_decision
from turnlog.contract import AgentError, ApprovalDecided, ApprovalRequested, Clock, IdSource, Store
from turnlog.history import Session
from turnlog.system import SystemClock, SystemIds

from ._state import RunState

ACTIONS = ("approve", "deny", "modify", "abort")


async def waiting_calls(store: Store, session_id: str) -> list[ApprovalRequested]:
    """The calls that wait for a decision, as they were asked for."""
    state = RunState()
    for entry in await store.load(session_id):
        state.step(entry)
    return [call.requested for call in state.awaiting if call.requested is not None]


async def record_decision(
    store: Store,
    session_id: str,
    tool_call_id: str,
    action: str,
    *,
    by: str,
    arguments: dict[str, Any] | None = None,
    note: str | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> ApprovalDecided:
    """Append the decision.

    Raises ``ApprovalInvalid`` when the call does not wait or the decision does not fit it,
    ``ApprovalExpired`` after its time, ``SessionBusy`` while other calls of the same message still run.
    """
    if action not in ACTIONS:
        raise AgentError("ApprovalInvalid", f"{action!r} is not an action; say {', '.join(ACTIONS)}")
    clock, ids = clock or SystemClock(), ids or SystemIds()
    session = await Session.open(store, session_id, clock=clock, ids=ids, create=False)
    state = RunState()
    for entry in session.entries:
        state.step(entry)
    call = state.calls.get(tool_call_id)
    if call is None or not call.awaits_human or call.requested is None:
        waiting = ", ".join(c.call.tool_call_id for c in state.awaiting) or "none"
        raise AgentError(
            "ApprovalInvalid", f"call {tool_call_id} does not wait for a decision; waiting: {waiting}"
        )
    going = [
        c.call.tool_call_id
        for c in state.open_calls
        if not c.awaits_human and (c.may_have_run or c.decided is None)
    ]
    if going:
        # Whoever runs these expects to write next: a decision in between would cost it their results.
        raise AgentError(
            "SessionBusy",
            f"{', '.join(going)} of the same message have no result yet; decide once the run waits, "
            "or resume it first if its process is gone",
        )
    decided = ApprovalDecided(
        tool_call_id=tool_call_id,
        digest=call.requested.digest,
        action=action,  # pyright: ignore[reportArgumentType]
        decided_by=by,
        arguments=arguments,
        note=note,
    )
    check_decision(call.requested, decided, now=clock.now(), session_id=call.asked_in)
    session.decide_approval(decided)
    await session.commit()
    return decided
