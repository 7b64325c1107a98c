"""``history.fork`` with the machine's own clock and ids."""

from __future__ import annotations

from turnlog.contract import Clock, IdSource, Store
from turnlog.history import fork
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
    return await fork(
        store, source, at, target, clock=clock or SystemClock(), ids=ids or SystemIds(), summary=summary
    )
