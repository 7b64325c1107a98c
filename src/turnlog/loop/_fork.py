"""A fork that can be run: the shared past may end in the middle of a run, the fork does not."""

from __future__ import annotations

from turnlog.contract import AgentError, Clock, IdSource, ModelCallFailed, RunEnded, Store
from turnlog.history import Session, fork
from turnlog.system import SystemClock, SystemIds


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

    A run that was under way there stays behind: in the fork its open calls are skipped and it is over.
    """
    clock, ids = clock or SystemClock(), ids or SystemIds()
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
