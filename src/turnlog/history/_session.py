"""One session: its log, the one state folded from it, and who listens.

An append is staged and folded, ``commit`` writes what is staged as one batch, and then it is passed to the
observers. Nothing else writes to a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from logging import DEBUG, getLogger
from typing import Any, Protocol

import msgspec

from ..contract import (
    SCHEMA_VERSION,
    AgentError,
    Clock,
    Entry,
    EntryPayload,
    IdSource,
    JsonObject,
    Lease,
    Message,
    ModelInput,
    ModelOutput,
    Observer,
    Sealed,
    Secrets,
    SessionHeader,
    Store,
    StoredEntry,
    Tail,
    ToolCall,
    ToolResults,
    encode,
    owned_secrets,
)
from ._appends import Appends, detach_images, seal_after
from ._base import begins, check_session_id, digest_of, not_found
from ._snapshot import Snapshot, load_state, may_be_kept
from ._state import SLICE, SessionState
from ._upcast import size_of
from ._views import HIDING, AgentState, ReadOnly, Transcript, visible_entries
from ._worker import Uncut

_replace = msgspec.structs.replace
_log = getLogger("turnlog.history")


def log_written(session_id: str, written: Iterable[Entry | StoredEntry]) -> None:
    """A line for each entry; its fields are attributes of the record too, for structured handlers."""
    if not _log.isEnabledFor(DEBUG):
        return
    for entry in written:
        size = len(entry.body if isinstance(entry, StoredEntry) else encode(entry.payload))
        fields = {"session": session_id, "seq": entry.seq, "kind": entry.kind, "bytes": size, "id": entry.id}
        _log.debug("%s #%d %s (%d bytes) %s", *fields.values(), extra=fields)


class Subscriber(Protocol):
    """Keeps state that is derived from a session's entries: a context, widgets, a replay's comparison."""

    def step(self, entry: Entry) -> None:
        """Take in an entry that was staged. Raises to refuse it: a replay that differs does."""
        ...

    def refold(self, entries: Sequence[Entry]) -> None:
        """Start again from these: what may be seen of the log changed, or a write failed. Where the session
        relies on a snapshot, they are those after it."""
        ...


class Session(Appends):
    """One session's log. Appends are staged in memory, ``commit`` writes them as one batch.

    Belongs to one event loop at a time. ``state`` counts what is staged. ``entries`` is the committed log as
    it is; ``messages`` is a view with redactions applied. One that relies on a snapshot of its folds has only
    the end of its log in memory, and ``all_entries`` reads the rest from the store.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        entries: Sequence[Entry],
        *,
        clock: Clock,
        ids: IdSource,
        lease: Lease | None = None,
        header: SessionHeader | None = None,
        state: SessionState | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.store = store
        self.session_id = session_id
        self.lease = lease
        self._clock = clock
        self._ids = ids
        self._header = header or SessionHeader(schema_version=SCHEMA_VERSION)
        self._entries: list[Entry] = list(entries)
        self.snapshot = snapshot
        """What the folds can begin with in the place of the entries that are not in memory."""
        self._before = snapshot.seq - 1 if snapshot is not None else 0
        self._checked, self._keepable = self._before, True
        self.size = size_of(entries)
        """Bytes of the committed entries in memory, as they are stored."""
        self._staged: list[Sealed] = []
        self._writing: list[Sealed] = []
        self._blobs: dict[str, bytes] = {}
        self._turn = asyncio.Lock()
        self._dropped = 0
        self._claimed = 0
        self._ids_seen: set[str] = set()
        self._ids_upto = 0
        self._transcript = Transcript()
        self._subscribers: list[Subscriber] = []
        self.observers: Sequence[Observer] = ()
        """Told of every entry once it is committed."""
        self.secrets = Secrets(owned_secrets(store).values())
        """Never written to the log."""
        self.state = SessionState.of(self._entries) if state is None else state

    @classmethod
    async def open(
        cls,
        store: Store,
        session_id: str,
        *,
        clock: Clock,
        ids: IdSource,
        create: bool = True,
        lease: Lease | None = None,
        title: str | None = None,
        metadata: JsonObject | None = None,
        parent_session_id: str | None = None,
        parent_tool_call_id: str | None = None,
    ) -> Session:
        """Read the log of ``session_id``. A session that does not exist is made by its first commit, or
        refused as ``SessionNotFound`` with ``create=False``; title, metadata and parent go into its header.
        """
        check_session_id(session_id)
        header = SessionHeader(
            schema_version=SCHEMA_VERSION,
            title=title,
            metadata=metadata,
            parent_session_id=parent_session_id,
            parent_tool_call_id=parent_tool_call_id,
        )
        entries: list[Entry] = []
        try:
            entries = await store.load(session_id)
        except AgentError as error:
            if error.code != "SessionNotFound":
                raise
        if not entries and not create:
            raise not_found(session_id)
        state = await _fold(entries)
        return cls(store, session_id, entries, clock=clock, ids=ids, lease=lease, header=header, state=state)

    # Views

    @property
    def entries(self) -> Sequence[Entry]:
        """The committed log, unfiltered: a read-only view that grows with every commit."""
        self._check_whole()
        return ReadOnly(self._entries)

    @property
    def is_whole(self) -> bool:
        """Whether all of the log is in memory."""
        return self._before == 0

    async def all_entries(self) -> Sequence[Entry]:
        """The committed log, from the store where it is not in memory."""
        if self.is_whole:
            return self.entries
        return (await self.store.load(self.session_id))[: self.tail_seq]

    async def make_whole(self) -> None:
        """Read all of the log into memory, and fold it anew."""
        if not self.is_whole:
            self._entries, self._before, self.snapshot = await self.store.load(self.session_id), 0, None
            self._checked, self.size = 0, size_of(self._entries)
            self._refold()

    def _check_whole(self) -> None:
        if self._before:
            raise AgentError(
                "InvalidEntry",
                f"session {self.session_id!r} has only the entries from {self._before + 1} on in memory; "
                "read them with all_entries(), or open the session with Session.open",
            )

    @property
    def can_be_kept(self) -> bool:
        """Whether a snapshot of its folds may be made: nothing is staged, and nothing is hidden."""
        if self._keepable:
            fresh = self._entries[max(self._checked - self._before, 0) :]
            self._keepable, self._checked = may_be_kept(fresh), self.tail_seq
        return self._keepable and not self.has_staged and bool(self._entries)

    @property
    def last_entry(self) -> Entry:
        return self._entries[-1]

    def take_tail(self) -> None:
        """Fold what came after the snapshot that the session was opened with."""
        for entry in self._entries[1:]:
            self._take(entry)

    def rely_on(self, snapshot: Snapshot) -> None:
        """Let go of what stands before the last entry that ``snapshot`` covers: the store has it."""
        self._entries = self._entries[snapshot.seq - 1 - self._before :]
        self._ids_seen, self._ids_upto, self._transcript = set(), 0, Transcript()
        self.snapshot, self._before = snapshot, snapshot.seq - 1
        self.size = size_of(self._entries)

    @property
    def staged(self) -> list[Entry]:
        """What waits for ``commit``."""
        return [sealed.entry for sealed in (*self._writing, *self._staged)]

    @property
    def has_staged(self) -> bool:
        return bool(self._staged or self._writing)

    @property
    def tail_seq(self) -> int:
        return self._before + len(self._entries)

    @property
    def drops(self) -> int:
        """How often a write failed and what was staged was dropped."""
        return self._dropped

    @property
    def run_id(self) -> str | None:
        """The run that is open, if one is."""
        return self.state.current_run

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far, redactions applied; a read-only view."""
        self._check_whole()
        return ReadOnly(self._transcript.update(self._entries))

    @property
    def metadata(self) -> JsonObject:
        return self.state.metadata

    @property
    def title(self) -> str | None:
        return self.state.title

    @property
    def system_instruction(self) -> str | None:
        return self.state.system_prompt

    @property
    def open_calls(self) -> list[ToolCall]:
        """Calls without a result, in call order; staged entries counted."""
        return [call.call for call in self.state.open_calls]

    def view(self) -> AgentState:
        """The state as a value: status, open run, pending calls, last error, usage."""
        return AgentState.of(self.state)

    def subscribe(self, subscriber: Subscriber) -> None:
        """From here on ``subscriber`` takes in what is staged; what was before, it has seen already."""
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.remove(subscriber)

    # Writing

    async def commit(self, *, returned: Callable[[], None] | None = None) -> list[Entry]:
        """Write what is staged as one batch, whole or not at all, and return it.

        With ``returned`` the lease is given back in the same write, where the store can do that, and
        ``returned`` is called when it was.

        When it fails, what was staged is dropped and ``AgentError`` raised: log and memory agree. A commit
        that is cancelled finishes its write first, for the same reason. Commits that overlap wait for each
        other, and each entry is returned by one of them.
        """
        if not self._staged and not self._writing:
            return []
        first, target, dropped = max(self._claimed, self.tail_seq), self.next_seq - 1, self._dropped
        self._claimed = target
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            self._claimed = min(self._claimed, first)  # still staged, for a later commit
            raise
        try:
            if self._dropped != dropped:
                raise AgentError(
                    "SessionWriteFailed",
                    f"entries staged for session {self.session_id!r} came after a write that failed, and "
                    "were dropped with it",
                )
            if self.tail_seq < target:
                self._writing, self._staged = self._staged, []
                blobs, self._blobs = list(self._blobs.values()), {}
                # A future of its own, so that a run that is cancelled cannot cut a write in two.
                write: asyncio.Future[None]
                try:
                    begin = begins(self.store.append)
                    if begin is None or self.lease is None:
                        returned = None
                    append: Any = begin or self.store.append
                    done = append(
                        self.session_id,
                        [sealed.stored for sealed in self._writing],
                        expected_tail=self.tail_seq,
                        lease=self.lease,
                        digest=digest_of(self.state),
                        blobs=blobs,
                        **({"release": True} if returned is not None else {}),
                    )
                    write = asyncio.ensure_future(done)
                except Exception as error:  # a store that cannot be called so
                    write = asyncio.get_running_loop().create_future()
                    write.set_exception(error)
                await self._finish(write, returned)
        finally:
            self._turn.release()
        written = self._entries[first - self._before : target - self._before]
        self._tell(written)
        return written

    def _tell(self, written: Sequence[Entry]) -> None:
        log_written(self.session_id, written)
        for observer in self.observers:
            for entry in written:
                try:
                    observer.on_entry(entry)
                except Exception as error:  # what watches a run must not end it
                    _log.warning(
                        "%s: observer %r raised %s: %s",
                        self.session_id,
                        type(observer).__name__,
                        type(error).__name__,
                        error,
                    )

    async def refresh(self, tail: Tail | None = None) -> list[Entry]:
        """Read what others appended since; returns it. Nothing may be staged. ``tail`` is where the log ends,
        for one who knows: when that is where this session ends, nothing is read."""
        if self._staged or self._writing:
            raise AgentError(
                "InvalidEntry",
                f"session {self.session_id!r} has staged entries; commit or discard them first",
            )
        if tail is not None and self._ends_at(tail):
            return []
        if not self._entries and await self.store.tail(self.session_id) is None:
            return []
        found = await self.store.load(self.session_id, after=self.tail_seq)
        if self._before and not may_be_kept(found):
            await self.make_whole()
            return found
        self.size += size_of(found)
        for entry in found:
            self._entries.append(entry)
            self._take(entry)
        return found

    def append_recorded(
        self, payload: EntryPayload, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        """Stage a payload as it was recorded elsewhere, unchecked. For replaying a log, nothing else."""
        return self._stage(payload, meta, run_id=run_id)

    def take_staged(self) -> list[StoredEntry]:
        """Hand over what is staged to someone who writes it another way, as a fork does."""
        taken, self._staged = [sealed.stored for sealed in self._staged], []
        self._refold()
        return taken

    def discard(self) -> None:
        """Drop what is staged and not being written."""
        if self._staged:
            self._staged = []
            self._refold()

    def _stage(
        self, payload: EntryPayload, meta: JsonObject | None = None, *, run_id: str | None = None
    ) -> Entry:
        if self.state.schema_version == SCHEMA_VERSION:
            return self._seal(payload, run_id or self.state.current_run, meta)
        # First of all in a new session; in one of an older version, where this version begins.
        self._seal(self._header if self.next_seq == 1 else _bare(self._header), None, None)
        try:
            return self._seal(payload, run_id or self.state.current_run, meta)
        except BaseException:
            self.discard()
            raise

    def _seal(self, payload: EntryPayload, run_id: str | None, meta: JsonObject | None) -> Entry:
        now = self._clock.now()
        payload = self._with_place(payload, run_id, now)
        sealed = seal_after(
            self._last(), payload, self.session_id, self._ids.entry(), now, run_id, meta, self.secrets
        )
        self._staged.append(sealed)
        self._take(sealed.entry)
        return sealed.entry

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, HIDING):
            self._check_whole()
        self.state.step(entry)
        if not self._subscribers:
            return
        if isinstance(entry, HIDING):
            visible = visible_entries([*self._entries, *self.staged])
            for subscriber in self._subscribers:
                subscriber.refold(visible)
        else:
            for subscriber in self._subscribers:
                subscriber.step(entry)

    def _with_place(self, payload: EntryPayload, run_id: str | None, now: str) -> EntryPayload:
        """Run id and time where the message has none, image bytes out of the message."""
        if not isinstance(payload, ModelInput | ModelOutput | ToolResults):
            return payload
        message = detach_images(payload.message, self._blobs)
        if not message.run_id or not message.timestamp:
            message = _replace(
                message, run_id=message.run_id or run_id or "", timestamp=message.timestamp or now
            )
        return payload if message is payload.message else _replace(payload, message=message)

    async def _finish(self, write: asyncio.Future[None], returned: Callable[[], None] | None) -> None:
        """Wait for ``write`` to its end, however often that is cancelled: then log and memory agree."""
        interrupted = await _outlast(write) if not write.done() else await _give_way()
        if write.cancelled():  # by one who cancels every task there is; it may have arrived
            self._drop()
            raise asyncio.CancelledError
        if (error := write.exception()) is not None:
            arrived = asyncio.ensure_future(self._arrived(error, self._writing[-1].entry))
            interrupted = await _outlast(arrived) or interrupted
            if arrived.cancelled() or not arrived.result():
                self._drop()
                if isinstance(error, AgentError) or not isinstance(error, Exception):
                    raise error
                raise AgentError(  # a store that does not keep its promise
                    "SessionWriteFailed",
                    f"the store could not write to session {self.session_id!r}: "
                    f"{type(error).__name__}: {error}",
                    cause=error,
                ) from error
        self._entries.extend(sealed.entry for sealed in self._writing)
        self.size += sum(len(sealed.stored.body) for sealed in self._writing)
        self._writing = []
        if returned is not None:
            returned()
        if interrupted is not None:
            raise interrupted

    async def _arrived(self, error: BaseException, last: Entry) -> bool:
        """Whether a write that was reported as failed is in the log after all."""
        if isinstance(error, AgentError) and error.code == "SessionConcurrentWrite":
            return False
        try:
            tail = await self.store.tail(self.session_id)
        except Exception:
            return False
        return tail is not None and _is_at(last, tail)

    def _drop(self) -> None:
        self._dropped += 1
        self._claimed = 0
        self._staged = []
        self._writing = []
        self._blobs = {}
        self._refold()

    def _refold(self) -> None:
        """What was staged and dropped has been folded in: start again from the log, or from the snapshot."""
        entries = [*self._entries, *self.staged]
        if self.snapshot is not None:
            self.state, later = load_state(self.snapshot), entries[1:]
            for entry in later:
                self.state.step(entry)
            for subscriber in self._subscribers:
                subscriber.refold(later)
            return
        self.state = SessionState.of(entries)
        if self._subscribers:
            visible = visible_entries(entries)
            for subscriber in self._subscribers:
                subscriber.refold(visible)

    @property
    def next_seq(self) -> int:
        """The seq that the next entry gets."""
        return self.tail_seq + len(self._writing) + len(self._staged) + 1

    def _last(self) -> Entry | None:
        if self._staged or self._writing:
            return (self._staged or self._writing)[-1].entry
        return self._entries[-1] if self._entries else None

    def _ends_at(self, tail: Tail) -> bool:
        if not self._entries:
            return tail.seq == 0
        return _is_at(self._entries[-1], tail)

    def _known_ids(self) -> set[str]:
        self._check_whole()
        for entry in self._entries[self._ids_upto :]:
            self._ids_seen.add(entry.id)
        self._ids_upto = len(self._entries)
        return self._ids_seen


async def _fold(entries: Sequence[Entry]) -> SessionState:
    """The state of a log; a long one is folded in slices, between which others have their turn."""
    state = SessionState()
    for _ in state.take_slices(entries):
        if len(entries) > SLICE:
            await asyncio.sleep(0)
    return state


def _is_at(entry: Entry, tail: Tail) -> bool:
    return (tail.seq, tail.id, tail.hash) == (entry.seq, entry.id, entry.hash)


async def _outlast(task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until ``task`` is done; returns the last attempt to cancel the wait."""
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await (task if isinstance(task, Uncut) else asyncio.shield(task))
        except asyncio.CancelledError as error:
            interrupted = error
        except BaseException:
            break
    return interrupted


async def _give_way() -> asyncio.CancelledError | None:
    """One turn for others: a run that waits for nothing must not keep the event loop to itself."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        return error
    return None


def _bare(header: SessionHeader) -> SessionHeader:
    return SessionHeader(schema_version=header.schema_version)
