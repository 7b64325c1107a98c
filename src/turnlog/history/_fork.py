"""A new session that shares another one's past."""

from __future__ import annotations

from collections.abc import Callable

from ..contract import AgentError, BranchSummary, Clock, Entry, IdSource, Store
from ._session import Session


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
    await store.fork(source, at=seq, target=name, first=branch.take_staged())
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
