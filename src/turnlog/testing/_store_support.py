"""What the checks of a store are made with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from turnlog.contract import (
    SCHEMA_VERSION,
    AgentError,
    Custom,
    EntryPayload,
    SessionHeader,
    Store,
    StoredEntry,
    seal,
)
from turnlog.system import SystemIds

IDS = SystemIds()
TIME = "2026-01-01T00:00:{:02d}.000Z"

Opened: TypeAlias = Callable[[], Awaitable[Store]]
"""Opens the store under test once more."""


class SealedLog:
    """Sealed entries for one session, as a writer makes them."""

    def __init__(self, session_id: str | None = None) -> None:
        self.session_id = session_id or IDS.session()
        self.seq = 0
        self._id: str | None = None
        self._hash = ""

    def make(self, *payloads: EntryPayload, run_id: str | None = None) -> list[StoredEntry]:
        batch: list[StoredEntry] = []
        for payload in payloads:
            self.seq += 1
            sealed = seal(
                payload,
                id=IDS.entry(),
                previous_id=self._id,
                previous_hash=self._hash,
                session_id=self.session_id,
                seq=self.seq,
                timestamp=TIME.format(self.seq % 60),
                run_id=run_id,
            )
            self._id, self._hash = sealed.entry.id, sealed.entry.hash
            batch.append(sealed.stored)
        return batch

    def header(self, title: str | None = None) -> list[StoredEntry]:
        return self.make(SessionHeader(schema_version=SCHEMA_VERSION, title=title))

    def notes(self, *texts: str) -> list[StoredEntry]:
        return self.make(*(note(text) for text in texts))

    def branch(self, session_id: str) -> SealedLog:
        copy = SealedLog(session_id)
        copy.seq, copy._id, copy._hash = self.seq, self._id, self._hash
        return copy


def note(text: str) -> Custom:
    return Custom(name="note", data={"text": text})


async def filled(store: Store, *texts: str) -> SealedLog:
    log = SealedLog()
    await store.append(log.session_id, [*log.header("A title"), *log.notes(*texts)], expected_tail=0)
    return log


def same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, expected {wanted!r}"[:2000])


async def refused(code: str, act: Awaitable[Any], what: str) -> AgentError:
    try:
        await act
    except AgentError as error:
        if error.code != code:
            raise AssertionError(f"{what} must raise {code}, raised {error}") from error
        return error
    except Exception as error:
        raise AssertionError(f"{what} must raise AgentError {code}, raised {error!r}") from error
    raise AssertionError(f"{what} must raise {code}, raised nothing")


async def write_notes(store: Store, session_id: str, who: str, count: int) -> list[str]:
    """Append one by one, reading and trying again when someone else was faster."""
    won: list[str] = []
    while len(won) < count:
        tail = await store.tail(session_id)
        log = SealedLog(session_id)
        log.seq = tail.seq if tail else 0
        batch = log.notes(f"{who}: {len(won)}")
        try:
            await store.append(session_id, batch, expected_tail=log.seq - 1)
        except AgentError as error:
            if error.code not in ("SessionConcurrentWrite", "SessionBusy"):
                raise
            continue
        won.append(batch[0].id)
    return won
