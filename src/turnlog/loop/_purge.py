"""Hiding and erasing entries, with the machine's own clock and ids."""

from __future__ import annotations

from collections.abc import Sequence

from turnlog.contract import Entry, Store
from turnlog.history import Session, purge
from turnlog.system import SystemClock, SystemIds


async def redact_entries(
    store: Store, session_id: str, entry_ids: Sequence[str], *, by: str, reason: str | None = None
) -> Entry:
    """Hide what these entries hold from every view, export and future context; the store keeps it."""
    session = await Session.open(store, session_id, clock=SystemClock(), ids=SystemIds(), create=False)
    logged = session.redact(entry_ids, reason, by)
    await session.commit()
    return logged


async def purge_entries(
    store: Store, session_id: str, entry_ids: Sequence[str], *, by: str, reason: str | None = None
) -> Entry:
    """Erase what these entries hold from the store's own files. It cannot be undone."""
    return await purge(
        store, session_id, entry_ids, by=by, reason=reason, clock=SystemClock(), ids=SystemIds()
    )
