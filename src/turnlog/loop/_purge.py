"""Hiding and erasing what entries hold, while nobody else writes to the sessions that share them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Literal

from turnlog.contract import Clock, Entry, IdSource, Lease, Store
from turnlog.history import Session, purge, purge_scope, redaction_of
from turnlog.system import SystemClock, SystemIds

from ._lease import WAIT_ADVICE, SessionLease, Work

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
