"""The sessions that an agent has open: who runs in each, its lease, and its folds kept warm."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from turnlog.context import ContextOptions
from turnlog.contract import AgentError, Clock, Entry, IdSource, Message, PurgeEntry, RunInput, Store
from turnlog.history import Session
from turnlog.observe import get_logger
from turnlog.system import SystemClock
from turnlog.widgets import Widget

from ._abort import AbortScope, RunInterrupted
from ._facts import Fact, append_fact
from ._given import check_kind, check_named
from ._lease import OnBusy, SessionLease, check_writing
from ._live import Steering
from ._runner import Runner
from ._warm import WarmSession

_WARM_SESSIONS = 64
_log = get_logger("loop")
_REAL_TIME = SystemClock()
"""Leases are kept against other processes, whatever clock this one goes by; a simulation has one for all."""


@dataclass(slots=True)
class OpenRun:
    run_id: str
    session_id: str
    scope: AbortScope = field(default_factory=AbortScope)
    steering: Steering = field(default_factory=Steering)
    held: SessionLease | None = None
    runner: Runner | None = None
    home: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class OpenSessions:
    """One run at a time in a session, over all processes; the newest sessions stay in memory, in step with
    their logs."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: IdSource,
        options: ContextOptions,
        widgets: Sequence[Widget[Any]],
        on_busy: Literal["refuse", "wait"],
        lease_ttl: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._options = options
        self._widgets = widgets
        self._on_busy: Literal["refuse", "wait"] = on_busy
        self._lease_ttl = check_writing(on_busy, lease_ttl)
        self.lease_clock: Clock = _REAL_TIME
        self.warm: OrderedDict[str, WarmSession] = OrderedDict()
        self.runs: dict[str, OpenRun] = {}  # by session: forks share run ids with what they come from
        self.unheard: dict[str, list[Message]] = {}
        self.untold: dict[str, list[Fact]] = {}

    async def enter(self, session_id: str, run_id: str) -> OpenRun:
        """One run at a time here, in the order they came; ``hold`` then sees to all other processes."""
        check_kind("session", session_id, str, "its name, as text")
        while (other := self.runs.get(session_id)) is not None:
            if other.home.is_closed():  # it stopped in its tracks, and nobody is left to say so
                del self.runs[session_id]
                self.warm.pop(session_id, None)
                break
            if self._on_busy != "wait":
                raise AgentError(
                    "SessionBusy",
                    f"run {other.run_id} is going in session {session_id}; wait for it, abort it, send it "
                    "the message with Agent.send, or give the agent on_busy='wait'",
                )
            await other.over.wait()
        opened = self.runs[session_id] = OpenRun(run_id, session_id)
        opened.steering.waiting = self.unheard.pop(session_id, [])
        opened.steering.facts = self.untold.pop(session_id, [])
        return opened

    def find(self, run_id: str) -> OpenRun | None:
        return next((run for run in self.runs.values() if run.run_id == run_id), None)

    async def hold(self, opened: OpenRun, on_busy: OnBusy = "refuse") -> None:
        """Become the session's writer. What is read from here on, nobody else changes."""
        held = self._lease_of(opened, "wait" if self._on_busy == "wait" else on_busy)
        try:
            with opened.scope:  # who waits in line can be aborted
                await held.__aenter__()
        except RunInterrupted as stop:
            raise stop.error from None
        opened.held = held

    def _lease_of(self, opened: OpenRun, on_busy: OnBusy) -> SessionLease:
        return SessionLease(
            self._store,
            opened.session_id,
            clock=self.lease_clock,
            ttl=self._lease_ttl,
            on_busy=on_busy,
            on_lost=opened.scope.request,
        )

    async def open(self, opened: OpenRun, *, create: bool, named: RunInput | None = None) -> WarmSession:
        """The session in step with its log; ``named`` gives a new one its title and metadata."""
        session_id = opened.session_id
        warm = self.warm.pop(session_id, None)  # back when it is in step with the log
        fresh = await warm.session.refresh() if warm is not None else []
        if warm is None or any(isinstance(entry, PurgeEntry) for entry in fresh):
            # What was erased from the store is not kept in memory either.
            session = await Session.open(
                self._store,
                session_id,
                clock=self._clock,
                ids=self._ids,
                create=create,
                title=named.title if named is not None else None,
                metadata=named.session_metadata if named is not None else None,
            )
            warm = WarmSession(session, self._options, self._widgets)
            warm.catch_up()
        else:
            for entry in fresh:
                warm.step(entry)
        if named is not None:
            check_named(warm.session, named)
        warm.session.lease = opened.held.lease if opened.held is not None else None
        self.warm[session_id] = warm
        while len(self.warm) > _WARM_SESSIONS:
            self.warm.popitem(last=False)
        return warm

    async def append_facts(self, warm: WarmSession, facts: Sequence[Fact]) -> list[Entry]:
        for fact in facts:
            warm.step(append_fact(warm.session, fact))
        try:
            return await warm.session.commit()
        except BaseException:
            self.warm.pop(warm.session.session_id, None)
            raise

    async def release(self, opened: OpenRun) -> None:
        """The session is free for another run; what was told to this one too late to enter it is appended."""
        warm = self.warm.get(opened.session_id)
        if warm is not None and (warm.broken or warm.session.staged):
            del self.warm[opened.session_id]  # it has seen what is not in the log
        try:
            while opened.steering.facts:
                warm = await self.open(opened, create=False)
                if opened.held is None:  # it never became the session's writer, and another may be it
                    opened.held = await self._lease_of(opened, "refuse").__aenter__()
                    continue
                await self.append_facts(warm, opened.steering.take_facts())
        except AgentError as error:
            words = "waits for the next" if opened.steering.facts else "was lost"
            _log.warning("%s: what came as a run ended %s: %s", opened.session_id, words, error.message)
        finally:
            if opened.steering.waiting:  # said to a run that was let go: for whoever goes on with it
                self.unheard[opened.session_id] = opened.steering.waiting
            if opened.steering.facts:
                self.untold[opened.session_id] = opened.steering.facts
            if (warm := self.warm.get(opened.session_id)) is not None:
                warm.session.lease = None
            try:
                if opened.held is not None:
                    await opened.held.__aexit__(None, None, None)
            finally:
                self.runs.pop(opened.session_id, None)
                opened.over.set()
