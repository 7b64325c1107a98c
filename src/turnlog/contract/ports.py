"""Promises that two rooms share. What implements them lives in a room, or with the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from ._base import JsonObject, Value
from ._chain import StoredEntry
from .entries import ApprovalRequested, Entry
from .run import RunStatus


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


class SessionDigest(Value, frozen=True, kw_only=True):
    """What a log adds up to, kept beside it so that a list of sessions need not read logs.

    A cache, never the truth: a session without one is folded when it is asked for. ``pending`` counts the
    approvals that wait for a human; ``about`` is the beginning of the first visible user message. The status
    ``awaiting_human`` means that nothing can be done before a human decides or answers.
    """

    status: RunStatus
    run_id: str | None = None
    pending: int = 0
    title: str | None = None
    metadata: JsonObject | None = None
    about: str | None = None


class SessionInfo(Value, frozen=True, kw_only=True):
    """One session in a list. ``run_id`` names the open run; the rest is as its ``SessionDigest`` has it."""

    session_id: str
    entries: int
    created_at: str
    updated_at: str
    title: str | None = None
    parent_session_id: str | None = None
    forked_at: int | None = None
    status: RunStatus = "idle"
    run_id: str | None = None
    pending: int = 0
    metadata: JsonObject | None = None
    about: str | None = None

    @property
    def cursor(self) -> str:
        """Where the next page of a list begins: ``sessions(after=page[-1].cursor)``."""
        return f"{self.updated_at} {self.session_id}"


class PendingApproval(Value, frozen=True, kw_only=True):
    """A question that waits for a human."""

    entry_id: str
    session_id: str
    run_id: str | None
    requested_at: str
    requested: ApprovalRequested

    @property
    def tool_call_id(self) -> str:
        return self.requested.tool_call_id

    @property
    def tool_name(self) -> str:
        return self.requested.tool_name

    @property
    def arguments(self) -> JsonObject:
        return self.requested.arguments

    @property
    def digest(self) -> str:
        return self.requested.digest

    @property
    def reason(self) -> str | None:
        return self.requested.reason

    @property
    def expires_at(self) -> str | None:
        return self.requested.expires_at


ControlKind: TypeAlias = Literal["abort", "pause", "send", "decide", "answer", "event"]


class Control(Value, frozen=True, kw_only=True):
    """A request to the process that drives a session's run, queued beside the log."""

    id: str
    session_id: str
    kind: ControlKind
    data: JsonObject
    created_at: str


class Lease(Value, frozen=True, kw_only=True):
    """The right to write to a session. An append with an older epoch changes nothing."""

    session_id: str
    owner: str
    epoch: int
    ttl: float
    tail: Tail | None = None
    """Where the log ended when it was claimed, with seq 0 for an empty one; None where the store did not
    look."""


class LeaseHolder(Value, frozen=True, kw_only=True):
    """Who may write to a session now, and for how many seconds more unless the lease is renewed."""

    owner: str
    epoch: int
    seconds_left: float


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
        digest: SessionDigest | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        """Add ``batch``, whole or not at all, after the entry with seq ``expected_tail`` (0: none).

        A batch whose ids are all there already is taken as done (idempotent by entry id). ``digest`` is what
        the log adds up to with the batch, written together with it; without one the log is folded when it
        is next asked about. ``blobs`` are the bytes that the batch names, kept as ``put_blob`` does and no
        later than the batch: no purge can come in between. Raises ``SessionConcurrentWrite`` when the tail
        is another or the lease was lost, ``SessionWriteFailed`` when the medium refuses.
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

    async def sessions(
        self,
        *,
        status: RunStatus | None = None,
        since: str | None = None,
        until: str | None = None,
        title: str | None = None,
        metadata: JsonObject | None = None,
        parent: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[SessionInfo]:
        """The sessions that fit every filter given, the last changed first.

        ``since`` and ``until`` bound the time of the last change (ISO-8601 UTC as in entries, both ends
        included). ``title`` is a part of the title in any case; ``metadata`` are keys with the very values
        that the session has; ``parent`` is the session it was forked from. ``after`` is the ``cursor`` of
        the last session of the page before. A session whose log cannot be read is listed with what is known
        of it, when nothing but time, parent and page was asked for. Raises ``SessionReadFailed``, and
        ``ConfigInvalid`` for a filter that no session could ever fit.
        """
        ...

    async def pending(self, *, limit: int | None = None) -> list[PendingApproval]:
        """The approvals that wait for a human in all sessions, the oldest first. Raises
        ``SessionReadFailed``; a session whose log cannot be read is left out."""
        ...

    async def wake(self, session_id: str, at: str | None) -> None:
        """Let ``due`` leave the session out until ``at`` (ISO-8601 UTC); None: at once. Raises
        ``SessionNotFound``, ``SessionWriteFailed``."""
        ...

    async def due(self, limit: int, *, now: str) -> list[str]:
        """At most ``limit`` sessions, each once, whose open run can be continued by a worker: nobody holds a
        lease, the run is neither paused nor waiting for a human, and its wake time, if it has one, is not
        after ``now``. The one that waited longest comes first. Raises ``SessionReadFailed``."""
        ...

    async def post(self, control: Control) -> None:
        """Queue a request to the process that drives the session; what was posted survives as the log does.
        The same id again is taken as done. Raises ``InvalidEntry`` for data that JSON cannot hold and
        ``SessionWriteFailed``. Whether the session exists, or anybody drives it, is not looked at."""
        ...

    async def posted(self, session_id: str | None = None) -> list[Control]:
        """Controls that were not answered yet, the oldest first: of one session, or of all in one cheap
        query. Raises ``SessionReadFailed``."""
        ...

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        """Record what came of a control, which takes it out of the queue. One that was withdrawn or answered
        already stays as it is. An answer that nobody collects is dropped after a day. Raises
        ``SessionWriteFailed``."""
        ...

    async def take_answer(self, control_id: str) -> JsonObject | None:
        """The answer to a control, which is removed with it; None while there is none, or when the control
        is not known. Raises ``SessionReadFailed``, ``SessionWriteFailed``."""
        ...

    async def withdraw(self, control_id: str) -> bool:
        """Take a control out of the queue; False when it was answered already, so that the answer can still
        be taken. Raises ``SessionWriteFailed``."""
        ...

    async def holder(self, session_id: str) -> LeaseHolder | None:
        """Who holds the session's lease now; None when nobody does. Raises ``SessionReadFailed``."""
        ...

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        """Make ``target``, whose log is ``source``'s entries 1…``at`` and then ``first``."""
        ...

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        """Put these bodies in the place of the old ones, and let nothing of the old ones remain in the
        store's own files. Only a purge calls this."""
        ...

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        """Erase a session with the care of a purge: its entries, its controls, and the stored bytes that no
        other session names leave no copy in the store's own files.

        ``forks="delete"`` takes along every session that was forked from it. Raises ``SessionNotFound``;
        ``SessionBusy`` while somebody holds a lease on one of them other than ``lease``, and
        ``SessionBusy`` (not retryable, ``meta["forks"]`` names them) when forks share its past and are not
        to be taken along; ``SessionWriteFailed``.
        """
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


class Observer(Protocol):
    """Told of every entry after it was committed; traces, metrics and webhooks are made of this."""

    def on_entry(self, entry: Entry) -> None:
        """Called in the event loop of the run, in the order of the log. Return at once: hand slow work to a
        task or a thread. What it raises is logged and dropped."""
        ...
