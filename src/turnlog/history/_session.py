"""One session: its log, the one state folded from it, and who listens.

An append is staged and folded, ``commit`` writes what is staged as one batch, and then it is passed to the
observers. Nothing else writes to a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import DEBUG, getLogger
from typing import Any, Protocol, TypeVar, cast, overload

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
    seal,
)
from ._appends import Appends, detach_images, scrub_payload
from ._base import begins, check_session_id, digest_of, not_found
from ._state import SLICE, SessionState
from ._upcast import Loaded
from ._views import HIDING, AgentState, Transcript, visible_entries
from ._worker import Uncut

T = TypeVar("T")

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
        """Start again from these: what may be seen of the log changed, or a write failed."""
        ...


class ReadOnly(Sequence[T]):
    """A list that can only be read, and grows with the one behind it."""

    __slots__ = ("_items",)

    def __init__(self, items: list[T]) -> None:
        self._items = items

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReadOnly):
            return self._items == cast("ReadOnly[T]", other)._items
        return self._items == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._items)


class Session(Appends):
    """One session's log. Appends are staged in memory, ``commit`` writes them as one batch.

    Belongs to one event loop at a time. ``state`` counts what is staged. ``entries`` is the committed log as
    it is; ``messages`` is a view with redactions applied.
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
    ) -> None:
        self.store = store
        self.session_id = session_id
        self.lease = lease
        self._clock = clock
        self._ids = ids
        self._header = header or SessionHeader(schema_version=SCHEMA_VERSION)
        self._entries: list[Entry] = list(entries)
        self.size = size_of(entries)
        """Bytes of the committed entries, as they are stored."""
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
        return ReadOnly(self._entries)

    @property
    def staged(self) -> list[Entry]:
        """What waits for ``commit``."""
        return [sealed.entry for sealed in (*self._writing, *self._staged)]

    @property
    def has_staged(self) -> bool:
        return bool(self._staged or self._writing)

    @property
    def tail_seq(self) -> int:
        return len(self._entries)

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
        first, target, dropped = max(self._claimed, len(self._entries)), self.next_seq - 1, self._dropped
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
            if len(self._entries) < target:
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
                        expected_tail=len(self._entries),
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
        written = self._entries[first:target]
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
        found = await self.store.load(self.session_id, after=len(self._entries))
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
        sealed = _seal_after(
            self._last(), payload, self.session_id, self._ids.entry(), now, run_id, meta, self.secrets
        )
        self._staged.append(sealed)
        self._take(sealed.entry)
        return sealed.entry

    def _take(self, entry: Entry) -> None:
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
        """What was staged and dropped has been folded in: start again from the log."""
        entries = [*self._entries, *self.staged]
        self.state = SessionState.of(entries)
        if self._subscribers:
            visible = visible_entries(entries)
            for subscriber in self._subscribers:
                subscriber.refold(visible)

    @property
    def next_seq(self) -> int:
        """The seq that the next entry gets."""
        return len(self._entries) + len(self._writing) + len(self._staged) + 1

    def _last(self) -> Entry | None:
        if self._staged or self._writing:
            return (self._staged or self._writing)[-1].entry
        return self._entries[-1] if self._entries else None

    def _ends_at(self, tail: Tail) -> bool:
        if not self._entries:
            return tail.seq == 0
        return _is_at(self._entries[-1], tail)

    def _known_ids(self) -> set[str]:
        for entry in self._entries[self._ids_upto :]:
            self._ids_seen.add(entry.id)
        self._ids_upto = len(self._entries)
        return self._ids_seen


_USUAL_BYTES = 600
"""Of an entry, where a store does not tell."""


def size_of(entries: Sequence[Entry]) -> int:
    """How many bytes these take in their store."""
    return entries.size if isinstance(entries, Loaded) else _USUAL_BYTES * len(entries)


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


def _seal_after(
    last: Entry | None,
    payload: EntryPayload,
    session_id: str,
    id: str,
    now: str,
    run_id: str | None,
    meta: JsonObject | None,
    secrets: Secrets,
) -> Sealed:
    """The entry that follows ``last``, without a secret in it."""
    place: dict[str, Any] = {
        "id": id,
        "previous_id": last.id if last else None,
        "previous_hash": last.hash if last else "",
        "session_id": session_id,
        "seq": last.seq + 1 if last else 1,
        "timestamp": now,
        "run_id": run_id,
    }
    sealed = seal(payload, **place, meta=meta)
    if secrets.may_be_in(sealed.stored.body):
        sealed = seal(scrub_payload(payload, secrets), **place, meta=secrets.scrub_json(meta))
    return sealed


def seal_entries(
    session_id: str,
    payloads: Sequence[EntryPayload],
    *,
    clock: Clock,
    ids: IdSource,
    after: Entry | None = None,
    run_id: str | None = None,
    meta: JsonObject | None = None,
    secrets: Secrets | None = None,
) -> list[StoredEntry]:
    """These payloads as the entries that follow ``after`` in a session's log, ready for ``Store.append``: for
    what is written without a session, as an import is."""
    made: list[StoredEntry] = []
    for payload in payloads:
        sealed = _seal_after(
            after, payload, session_id, ids.entry(), clock.now(), run_id, meta, secrets or Secrets()
        )
        made.append(sealed.stored)
        after = sealed.entry
    return made


def _bare(header: SessionHeader) -> SessionHeader:
    return SessionHeader(schema_version=header.schema_version)
