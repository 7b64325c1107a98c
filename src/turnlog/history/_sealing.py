"""Entries that are written without a session: what an import adds to a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..contract import Clock, Entry, EntryPayload, IdSource, JsonObject, StoredEntry, seal
from ._scrub import holds_secret, scrub_payload


def seal_entries(
    session_id: str,
    payloads: Sequence[EntryPayload],
    *,
    clock: Clock,
    ids: IdSource,
    after: Entry | None = None,
    run_id: str | None = None,
    meta: JsonObject | None = None,
) -> list[StoredEntry]:
    """These payloads as the entries that follow ``after`` in a session's log, ready for ``Store.append``."""
    made: list[StoredEntry] = []
    last: Entry | None = after
    for payload in payloads:
        place: dict[str, Any] = {
            "id": ids.entry(),
            "previous_id": last.id if last else None,
            "previous_hash": last.hash if last else "",
            "session_id": session_id,
            "seq": last.seq + 1 if last else 1,
            "timestamp": clock.now(),
            "run_id": run_id,
            "meta": meta,
        }
        sealed = seal(payload, **place)
        if holds_secret(sealed.stored.body):
            sealed = seal(scrub_payload(payload), **place)
        made.append(sealed.stored)
        last = sealed.entry
    return made
