"""Promises that two rooms share. What implements them lives in a room, or with the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ._base import Value
from ._chain import StoredEntry
from ._entries import Entry


class Clock(Protocol):
    """Time, injected. ``now`` is ISO-8601 UTC text with milliseconds and a Z."""

    def now(self) -> str: ...

    def monotonic(self) -> float:
        """Seconds that never go back; for durations and limits."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class IdSource(Protocol):
    """New names, injected. Entry ids sort by time; all are unique everywhere."""

    def entry(self) -> str: ...

    def run(self) -> str: ...

    def call(self) -> str:
        """At most 40 characters of ``[A-Za-z0-9_-]``, which every provider takes."""
        ...

    def session(self) -> str: ...


class Tail(Value, frozen=True, kw_only=True):
    """Where a session's log ends."""

    seq: int
    id: str
    hash: str


class SessionInfo(Value, frozen=True, kw_only=True):
    session_id: str
    entries: int
    created_at: str
    updated_at: str
    title: str | None = None
    parent_session_id: str | None = None
    forked_at: int | None = None


class Lease(Value, frozen=True, kw_only=True):
    """The right to write to a session. An append with an older epoch changes nothing."""

    session_id: str
    owner: str
    epoch: int
    ttl: float


@runtime_checkable
class Store(Protocol):
    """Append, read, never change. Every method raises ``AgentError`` alone.

    What ``append`` returned has survived as the store's documentation says. An ``append`` that raised
    wrote either the whole batch or nothing; the caller reads the tail to know which.
    """

    async def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        *,
        expected_tail: int,
        lease: Lease | None = None,
    ) -> None:
        """Add ``batch``, whole or not at all, after the entry with seq ``expected_tail`` (0: none).

        A batch whose ids are all there already is taken as done (idempotent by entry id). Raises
        ``SessionConcurrentWrite`` when the tail is another or the lease was lost, ``SessionWriteFailed``
        when the medium refuses.
        """
        ...

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        """Entries with ``after < seq <= upto``, the shared past of a fork included.

        Raises ``SessionNotFound``, ``SessionCorrupt``, ``SessionReadFailed``.
        """
        ...

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        """``read``, decoded and migrated to the current schema."""
        ...

    async def tail(self, session_id: str) -> Tail | None:
        """Where the log ends, or None when there is no such session."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the last changed first."""
        ...

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        """Make ``target``, whose log is ``source``'s entries 1…``at`` and then ``first``."""
        ...

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        """Put these bodies in the place of the old ones, and let nothing of the old ones remain in the
        store's own files. Only a purge calls this."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep bytes once; returns ``sha256-…``."""
        ...

    async def get_blob(self, name: str) -> bytes:
        """Raises ``SessionReadFailed`` when it is gone."""
        ...

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        """Become the writer: a new epoch, older ones are fenced off. Raises ``SessionBusy`` while another
        owner's lease runs."""
        ...

    async def renew(self, lease: Lease) -> None:
        """Raises ``SessionConcurrentWrite`` when the lease was lost."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back; a lost one is not an error."""
        ...

    async def close(self) -> None: ...
