"""Sealed entries for tests that write to a store directly."""

from __future__ import annotations

from typing import Any

from turnlog.contract import SCHEMA_VERSION, Custom, SessionHeader, StoredEntry, seal
from turnlog.system import SystemIds

IDS = SystemIds()


class Log:
    """What a writer of one session would append next."""

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id or IDS.session()
        self.seq = 0
        self._id: str | None = None
        self._hash = ""

    def header(self, title: str | None = None) -> list[StoredEntry]:
        return [self._make(SessionHeader(schema_version=SCHEMA_VERSION, title=title))]

    def notes(self, *texts: str) -> list[StoredEntry]:
        return [self._make(Custom(name="note", data={"text": text})) for text in texts]

    def _make(self, payload: Any) -> StoredEntry:
        self.seq += 1
        sealed = seal(
            payload,
            id=IDS.entry(),
            previous_id=self._id,
            previous_hash=self._hash,
            session_id=self.session_id,
            seq=self.seq,
            timestamp=f"2026-01-01T00:00:{self.seq % 60:02d}.000Z",
        )
        self._id, self._hash = sealed.entry.id, sealed.entry.hash
        return sealed.stored
