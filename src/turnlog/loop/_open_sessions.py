"""The sessions that an agent has open: one run at a time in each, over all processes, and those used last
kept in memory, in step with their logs."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from turnlog.approvals import Approvals
from turnlog.assembly import MessageAssembler
from turnlog.context import ContextManager, ContextOptions
from turnlog.contract import (
    AgentError,
    Clock,
    Control,
    Entry,
    IdSource,
    JsonObject,
    Observer,
    PurgeEntry,
    RunInput,
    Runtime,
    Secrets,
    Store,
)
from turnlog.history import Session, SessionState, Snapshot, SnapshotStore, encode_snapshot, open_snapshot
from turnlog.models import Model
from turnlog.observe import get_logger
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import Executor, Registry
from turnlog.widgets import Widget, WidgetHost

from ._events import Hub
from ._folds import Folds, key_of
from ._lease import LEASE_TTL, OnBusy, SessionLease, Work, check_writing
from ._options import check_kind, check_named
from ._ports import AbortScope, Fact, Hooks, RunInterrupted, Said, append_fact, inside
from ._runner import Runner
from ._world import Steering

if TYPE_CHECKING:
    from ._handoff import Handoff

_REAL_TIME = SystemClock()
_WARM_BYTES = 256_000_000
_WORTH_KEEPING = 64
"""Entries since its last snapshot that a session which leaves memory is written down for."""
_UNREAD = 10.0
"""Seconds that a stream may go unread before a run that waits behind it gives up."""

_log = get_logger("loop")

Kept: TypeAlias = tuple[str, Snapshot]
"""The snapshot of a session, by its name."""


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How an agent takes sessions. A session where another run is in progress, here or in another process, is
    refused as ``SessionBusy``, or waited for with ``on_busy="wait"``. ``lease_ttl`` is how many seconds a
    session stays closed to other machines after its process died. ``warm_bytes`` is the memory that the
    sessions used last may take between their runs, in bytes; 0 keeps none. ``snapshot_every`` is after how
    many entries a snapshot of a session's folds is written beside its log, so that it opens without reading
    all of it; 0 writes and reads none."""

    on_busy: Literal["refuse", "wait"] = "refuse"
    lease_ttl: float = LEASE_TTL
    warm_bytes: int = _WARM_BYTES
    snapshot_every: int = 200


class RunReader(Protocol):
    """What drives a run in this process."""

    @property
    def is_read(self) -> bool:
        """False between two steps, while the caller does something else."""
        ...

    async def aclose(self) -> None:
        """End the run when nobody is reading it."""
        ...


@dataclass(slots=True, eq=False)
class OpenRun:
    """A run of this process, from the moment it is in line until its session is free again."""

    run_id: str
    session_id: str
    scope: AbortScope = field(default_factory=AbortScope)
    steering: Steering = field(default_factory=Steering)
    hub: Hub = field(default_factory=Hub)
    held: SessionLease | None = None
    runner: Runner | None = None
    reader: RunReader | None = None
    """The stream that drives it, once it is open."""
    home: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    over: Future[None] = field(default_factory=Future[None])
    answered: bool = False
    """The model answered before the run was taken over."""
    leaving: bool = False
    """Its stream was dropped and is being closed."""


class WarmSessions:
    """The sessions in memory by name. Those that no run uses take ``limit`` bytes at most, by an estimate:
    the one that was used longest ago is dropped first, and the one used last is kept in any case."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._used: dict[str, Folds] = {}
        self._idle: OrderedDict[str, tuple[Folds, int]] = OrderedDict()
        self.bytes = 0
        """What those that no run uses take."""

    def __len__(self) -> int:
        return len(self._used) + len(self._idle)

    def __getitem__(self, session_id: str) -> Folds:
        with self._lock:
            folds = self._used.get(session_id)
            return folds if folds is not None else self._idle[session_id][0]

    def get(self, session_id: str) -> Folds | None:
        try:
            return self[session_id]
        except KeyError:
            return None

    def use(self, session_id: str, folds: Folds) -> None:
        """Keep ``folds``, which a run uses: it is not counted until the run lets it rest."""
        self.pop(session_id)
        self._used[session_id] = folds

    def pop(self, session_id: str) -> Folds | None:
        with self._lock:
            folds = self._used.pop(session_id, None)
            if (found := self._idle.pop(session_id, None)) is not None:
                folds, size = found
                self.bytes -= size
            return folds

    def rest(self, session_id: str) -> list[Folds]:
        """No run uses the session any more. Returns those that had to leave for it."""
        with self._lock:
            folds = self._used.pop(session_id, None)
            if folds is None:
                return []
            size = folds.memory
            self._idle[session_id] = folds, size
            self.bytes += size
            left: list[Folds] = []
            while self.bytes > self._limit and len(self._idle) > min(self._limit, 1):
                _, (oldest, size) = self._idle.popitem(last=False)
                self.bytes -= size
                oldest.close()
                left.append(oldest)
            return left


class OpenSessions:
    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: IdSource,
        context: Callable[[], ContextManager],
        widgets: Sequence[Widget[Any]],
        observers: Sequence[Observer],
        options: SessionOptions,
        secrets: Callable[[], Secrets] = Secrets,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._context = context
        self._widgets = widgets
        self._observers = observers
        self.secrets = secrets
        self._on_busy = options.on_busy
        self._lease_ttl = check_writing(options.on_busy, options.lease_ttl)
        self._lock = threading.Lock()
        self.lease_clock: Clock = _REAL_TIME
        self.kept = WarmSessions(check_count("warm_bytes", options.warm_bytes))
        self._every = check_count("snapshot_every", options.snapshot_every)
        self.runs: dict[str, OpenRun] = {}  # by session: forks share run ids with their parents
        self.unheard: dict[str, list[Said]] = {}
        self.untold: dict[str, list[Fact]] = {}
        self.listeners: list[Callable[[OpenRun], None]] = []
        """Told of each run before it begins, in the thread that begins it."""
        self.closed = False
        self._key: str | None = None
        """What the folds are made with, once it was looked at; empty where they cannot be kept."""

    async def enter(self, session_id: str, run_id: str) -> OpenRun:
        """One run at a time here, in the order they came; ``hold`` then sees to all other processes."""
        check_kind("session", session_id, str, "its name, as text")
        while True:
            with self._lock:
                self.check_open()
                other = self.runs.get(session_id)
                if other is not None and other.home.is_closed():
                    # Its event loop was closed: it can neither continue nor end.
                    self.kept.pop(session_id)
                    other = None
                if other is None:
                    opened = self.runs[session_id] = OpenRun(run_id, session_id)
                    opened.steering.waiting = self.unheard.pop(session_id, [])
                    opened.steering.facts = self.untold.pop(session_id, [])
                    for tell in self.listeners:
                        tell(opened)
                    return opened
            await self._wait_for(other)

    def check_open(self) -> None:
        if self.closed:
            raise AgentError("ConfigInvalid", "this agent was closed; make another to run on")

    async def _wait_for(self, other: OpenRun) -> None:
        if other.session_id in inside.get():
            raise AgentError(
                "SessionBusy",
                f"this code runs for session {other.session_id}, inside run {other.run_id}, and would wait "
                "for itself; use another session here",
                retryable=False,
            )
        if self._on_busy != "wait" and not other.leaving:
            raise AgentError(
                "SessionBusy",
                f"run {other.run_id} is in progress in session {other.session_id}; wait for it, abort it, "
                "send it the message with Agent.send, or give the agent "
                "sessions=SessionOptions(on_busy='wait')",
            )
        seen, since = other.hub.last, _REAL_TIME.monotonic()
        while not other.over.done() and not other.home.is_closed():
            done = asyncio.wrap_future(other.over)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(done), 0.5)
            if other.reader is None or other.reader.is_read or other.hub.last != seen:
                seen, since = other.hub.last, _REAL_TIME.monotonic()
            if _REAL_TIME.monotonic() - since > _UNREAD:
                raise AgentError(
                    "SessionBusy",
                    f"the stream of run {other.run_id} in session {other.session_id} is open and nobody "
                    "reads it; read it to its end, leave its 'async with' block, or abort the run",
                )

    def find(self, run_id: str) -> OpenRun | None:
        return next((run for run in self.runs.values() if run.run_id == run_id), None)

    async def hold(self, opened: OpenRun, on_busy: OnBusy = "refuse", work: Work = "run") -> None:
        """Become the session's writer. What is read from here on, nobody else changes."""
        held = self._lease_of(opened, "wait" if self._on_busy == "wait" else on_busy, work)
        try:
            with opened.scope:  # a run that waits in line can be aborted
                await held.__aenter__()
        except RunInterrupted as stop:
            raise stop.error from None
        opened.held = held

    def _lease_of(self, opened: OpenRun, on_busy: OnBusy, work: Work = "run") -> SessionLease:
        return SessionLease(
            self._store,
            opened.session_id,
            clock=self.lease_clock,
            ttl=self._lease_ttl,
            on_busy=on_busy,
            on_lost=opened.scope.request,
            work=work,
        )

    async def open(self, opened: OpenRun, *, create: bool, named: RunInput | None = None) -> Folds:
        """The session in step with its log; ``named`` gives a new one its title and metadata."""
        session_id = opened.session_id
        folds = self.kept.pop(session_id)  # back when it is in step with the log
        lease = opened.held.lease if opened.held is not None else None
        tail = lease.tail if lease is not None else None
        fresh = await folds.session.refresh(tail) if folds is not None else []
        if folds is None or any(isinstance(entry, PurgeEntry) for entry in fresh):
            # What was erased from the store is not kept in memory either.
            short = tail is not None and tail.seq < min(self._every, _WORTH_KEEPING)
            folds = await self._open_cold(session_id, create, named, short=short)
            folds.session.observers = self._observers
        if named is not None:
            check_named(folds.session, named)
        folds.session.secrets = self.secrets()
        folds.session.lease = lease
        self.kept.use(session_id, folds)
        return folds

    async def _open_cold(
        self, session_id: str, create: bool, named: RunInput | None, *, short: bool = False
    ) -> Folds:
        """From the snapshot of its folds where there is one that fits, else from the whole log. A ``short``
        log is not worth looking for one."""
        context = self._context
        if self._key is None and self._every:
            first = [self._context()]
            self._key = key_of(first[0], WidgetHost(self._widgets)) or ""

            def context() -> ContextManager:  # the one that told the key is used, and none is made in vain
                return first.pop() if first else self._context()

        opened = None
        if self._key and not short:
            opened = await open_snapshot(self._store, session_id, self._key)
        if opened is not None:
            session = Session(
                self._store,
                session_id,
                opened.tail,
                clock=self._clock,
                ids=self._ids,
                state=opened.state,
                snapshot=opened.snapshot,
            )
            try:
                folds = Folds(session, context, self._widgets, opened.entries)
                session.take_tail()
                return folds
            except Exception as error:  # of a widget, or bytes that only seem to fit: the log has everything
                _log.debug("%s: its snapshot is not used: %s", session_id, error)
        session = await Session.open(
            self._store,
            session_id,
            clock=self._clock,
            ids=self._ids,
            create=create,
            title=named.title if named is not None else None,
            metadata=named.session_metadata if named is not None else None,
            parent_session_id=named.parent_session_id if named is not None else None,
            parent_tool_call_id=named.parent_tool_call_id if named is not None else None,
        )
        return Folds(session, context, self._widgets)

    def _take_snapshots(self, folds: Folds | None, dropped: Sequence[Folds] = ()) -> list[Kept]:
        """The folds of a session that has grown far enough, and of those that leave memory."""
        if not self._every or not isinstance(self._store, SnapshotStore):
            return []
        due = [folds] if folds is not None and folds.is_due(self._every) else []
        due += [each for each in dropped if each.is_due(min(self._every, _WORTH_KEEPING))]
        taken = [(each.session.session_id, each.take_snapshot()) for each in due]
        return [(session_id, snapshot) for session_id, snapshot in taken if snapshot is not None]

    async def _write_snapshots(self, taken: Sequence[Kept]) -> None:
        for session_id, snapshot in taken:
            data = encode_snapshot(snapshot)
            try:
                assert isinstance(self._store, SnapshotStore)
                await self._store.write_snapshot(session_id, snapshot.seq, snapshot.hash, data)
            except AgentError as error:  # a cache: the log is there all the same
                _log.debug("%s: its snapshot was not written: %s", session_id, error.message)

    async def append_facts(self, folds: Folds, facts: Sequence[Fact]) -> list[Entry]:
        for fact in facts:
            append_fact(folds.session, fact)
        try:
            return await folds.session.commit()
        except BaseException:
            self.kept.pop(folds.session.session_id)
            raise

    async def deliver(self, session_id: str, fact: Fact) -> None:
        """Append what came of work beside runs: by the run in progress here, else between two runs. Where
        another process has the session it is kept for the next run here."""
        with self._lock:
            running = self.runs.get(session_id)
            if running is None or running.home.is_closed():
                opened = self.runs[session_id] = OpenRun(f"recap of {session_id}", session_id)
                opened.leaving = True  # a run that comes meanwhile waits, and is not refused
                opened.steering.closed = True
                opened.steering.facts = self.untold.pop(session_id, [])
                opened.steering.waiting = self.unheard.pop(session_id, [])
            else:
                opened = None
                running.steering.tell(fact)
        if opened is not None:
            opened.steering.tell(fact)
            await self.release(opened)

    async def release(self, opened: OpenRun) -> None:
        """The session is free for another run; what came too late for this one is appended or kept."""
        # A message that was posted is still in the store's queue; the next driver takes it from there.
        opened.steering.waiting = [said for said in opened.steering.waiting if said.control is None]
        if opened.held is not None and opened.held.lease is None:
            opened.held = None  # it was given back with the last entries
        folds = self.kept.get(opened.session_id)
        if folds is not None and folds.session.has_staged:
            self.kept.pop(opened.session_id)  # it has seen what is not in the log
        try:
            while opened.steering.facts:
                folds = await self.open(opened, create=False)
                if opened.held is None:  # no lease was ever held; another process may be the writer
                    opened.held = await self._lease_of(opened, "refuse").__aenter__()
                    continue
                await self.append_facts(folds, opened.steering.take_facts())
        except AgentError as error:
            words = "is kept for the next run" if opened.steering.facts else "was lost"
            _log.warning(
                "%s: input that arrived as a run ended %s: %s", opened.session_id, words, error.message
            )
        finally:
            if opened.steering.waiting:  # sent to a run that was let go: for the one that resumes it
                self.unheard[opened.session_id] = opened.steering.waiting
            if opened.steering.facts:
                self.untold[opened.session_id] = opened.steering.facts
            if (folds := self.kept.get(opened.session_id)) is not None:
                folds.session.lease = None
            taken: list[Kept] = []
            try:
                if opened.held is not None:
                    await opened.held.__aexit__(None, None, None)
            finally:
                if self.runs.get(opened.session_id) is opened:
                    taken = self._take_snapshots(folds)
                    taken += self._take_snapshots(None, self.kept.rest(opened.session_id))
                    del self.runs[opened.session_id]
                opened.hub.close()
                if not opened.over.done():
                    opened.over.set_result(None)
            await self._write_snapshots(taken)


def check_count(name: str, given: int) -> int:
    if type(given) is not int or given < 0:
        raise AgentError("ConfigInvalid", f"{name} is {given!r}; give a whole number from 0")
    return given


# ── what a loop is made of, and what it checks before it takes something in ──


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """What a loop is made of, fixed at construction. The loop never sees a configuration."""

    model: Model
    store: Store
    registry: Registry
    executor: Executor
    agent_name: str | None = None
    approvals: Approvals = field(default_factory=Approvals)
    options: ContextOptions = field(default_factory=ContextOptions)
    context: Callable[[], ContextManager] | None = None
    assembler: Callable[[str], MessageAssembler] = MessageAssembler
    """Makes what turns one stream into one message, given the run's id. A replay reads the log instead."""
    hooks: Hooks = field(default_factory=Hooks)
    runtime: Runtime | None = None
    widgets: Sequence[Widget[Any]] = ()
    observers: Sequence[Observer] = ()
    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=SystemIds)
    recap: Model | None = None
    sessions: SessionOptions = field(default_factory=SessionOptions)
    owners: Sequence[object] = ()
    """What may have secrets of its own, beside models and store."""
    handoffs: list[Handoff] = field(default_factory=list["Handoff"])
    """The agents that the conversation may be handed to; more may be added."""


def check_humans(state: SessionState, session_id: str) -> None:
    """A new run ends one that was left open, but never what a human was asked or has decided."""
    if state.status == "preparing" and state.is_open:
        raise AgentError(
            "SessionBusy",
            f"run {state.run_id} was submitted to session {session_id} and nobody has driven it yet; resume "
            "it, abort it, or send it the message",
        )
    if state.status == "awaiting_human":
        waiting, words = state.awaiting, ("waits for a decision on", "decide it and resume, or abort it")
    elif state.is_open and (due := [call for call in state.open_calls if call.is_due]):
        waiting, words = (
            due,
            (
                "has yet to run what was approved,",
                f"resume it first (Agent.resume, or turnlog chat --session {session_id})",
            ),
        )
    else:
        return
    names = ", ".join(call.call.tool_call_id for call in waiting)
    raise AgentError("SessionBusy", f"session {session_id} {words[0]} {names}; {words[1]}")


def check_workspace(state: SessionState, reported: JsonObject) -> None:
    """What the open run was asked for, and what was approved, is meant for the folder in which it began.
    Raises ``ConfigInvalid`` when the runtime, which reports this of itself, works in another one."""
    recorded, here = (state.runtime_data or {}).get("workspace"), reported.get("workspace")
    if recorded is None or here is None or recorded == here:
        return
    raise AgentError(
        "ConfigInvalid",
        f"run {state.run_id} works in {recorded}, and the runtime of this agent in {here}; resume it with "
        f"its own workspace (on the command line --workspace {shlex.quote(str(recorded))}), or abort it",
    )


async def check_approved(state: SessionState, session_id: str, registry: Registry) -> None:
    """Raises ``ConfigInvalid`` when a human let a call run for which the agent has no tool: an answer to the
    call would use its approval up."""
    due = [call.call for call in state.open_calls if call.is_due and call.decided_in == session_id]
    if not due:
        return
    await registry.refresh()
    for call in due:
        if registry.get(call.tool_name) is None:
            raise AgentError(
                "ConfigInvalid",
                f"call {call.tool_call_id} was approved, and this agent has no tool {call.tool_name!r}; "
                f"resume run {state.run_id} with the tools it began with (on the command line --tools), or "
                "abort it",
            )


def take_message(opened: OpenRun, session: Session, control: Control) -> JsonObject | None:
    """Queue a message that was sent from elsewhere. It is answered once it is in the log."""
    seq = session.state.controls.get(control.id)
    if seq is not None:
        return {} if seq <= session.tail_seq else None
    if all(said.control != control.id for said in opened.steering.waiting):
        said = msgspec.convert(control.data["said"], Said)
        opened.steering.waiting.append(msgspec.structs.replace(said, control=control.id))
    return None
