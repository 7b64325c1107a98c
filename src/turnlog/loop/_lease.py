"""The right to write to a session, held while a run is in progress.

Every entry of a run is written under its lease. A process that was stopped for too long finds its lease
taken and can write nothing more; one that died leaves a lease that runs out, or that is taken over at once
where it can be seen that its process is gone.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache, partial
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from turnlog.contract import AgentError, Clock, Lease, Store
from turnlog.history import begins
from turnlog.observe import get_logger

T = TypeVar("T")
OnBusy: TypeAlias = Literal["refuse", "wait", "outlast"]
"""When another holds the session: refuse at once; wait for as long as it takes; or wait only for a lease
that nobody renews any more."""

LEASE_TTL = 30.0
"""Seconds that a lease outlives its holder."""

Work: TypeAlias = Literal["run", "compact", "control", "decide", "purge", "redact"]

_BRIEF = ("control", "decide", "purge", "redact")
"""Work that is done in a moment: callers wait for it, also with ``on_busy="refuse"``."""
_BRIEF_PATIENCE = 10.0
WAIT_ADVICE = "wait in line: on_busy='wait', on the command line --wait"

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
_TAKEOVERS = 20
_log = get_logger("loop")


def check_writing(on_busy: str, ttl: float) -> float:
    if on_busy not in ("refuse", "wait"):
        raise AgentError("ConfigInvalid", f"on_busy is {on_busy!r}; it may be 'refuse' or 'wait'")
    if not isinstance(ttl, int | float) or not 0.1 <= ttl <= 3600:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AgentError(
            "ConfigInvalid",
            f"lease_ttl is {ttl!r}; it may be 0.1 to 3600 seconds, and 15 to 30 suit most: a process that is "
            "stopped for longer loses its session",
        )
    return ttl


class _Cancellable(Protocol):
    def cancel(self) -> object: ...


class SessionLease:
    """``async with`` it: claimed inside, renewed every third of ``ttl``, given back at the end.

    Entering raises ``SessionBusy`` as ``on_busy`` says. ``on_lost`` is called once when another took the
    session over; until then and after, the store refuses what is written under a lost lease.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        *,
        clock: Clock,
        ttl: float = LEASE_TTL,
        owner: str | None = None,
        on_busy: OnBusy = "refuse",
        on_lost: Callable[[AgentError], None] | None = None,
        work: Work = "run",
        advice: str = "give the agent sessions=SessionOptions(on_busy='wait') to wait in line",
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._clock = clock
        self._ttl = ttl
        self._given_owner = owner
        self._owner = ""
        self._on_busy: OnBusy = on_busy
        self._on_lost = on_lost
        self._work = work
        self._advice = advice
        self._lease: Lease | None = None
        self._renewing: _Cancellable | None = None

    @property
    def lease(self) -> Lease | None:
        """What appends are made with; None outside of ``async with``, and once it was given back."""
        return self._lease

    async def __aenter__(self) -> SessionLease:
        self._owner = self._given_owner or new_owner(self._work)
        try:
            self._lease = await self._claim()
        except BaseException:
            forget_owner(self._owner)
            raise
        self._renew_later(self._lease)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._lease
        try:
            if lease is not None:
                self._stop_renewing()
                await _to_its_end(self._give_back(lease))
        finally:
            self.returned()

    def returned(self) -> None:
        """It was given back together with entries: nothing is left to do at the end."""
        self._lease = None
        self._stop_renewing()
        forget_owner(self._owner)

    def _stop_renewing(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self._store.release(lease)
        except AgentError as error:  # it runs out by itself
            _log.debug("%s: the lease was not given back: %s", self._session_id, error.message)

    def _renew_later(self, lease: Lease) -> None:
        """By a timer where the clock has timers: most runs end before it is due, and need no task."""
        later: Any = getattr(self._clock, "call_later", None)
        if later is None:
            self._start_renewing(lease, self._ttl / 3)
        else:
            self._renewing = later(self._ttl / 3, partial(self._start_renewing, lease))

    def _start_renewing(self, lease: Lease, after: float = 0.0) -> None:
        self._renewing = asyncio.get_running_loop().create_task(
            self._renew(lease, after), name=f"turnlog lease {self._session_id}"
        )

    async def _renew(self, lease: Lease, after: float) -> None:
        if after:
            await self._clock.sleep(after)
        try:
            await self._store.renew(lease)
        except AgentError as error:
            if error.code == "SessionConcurrentWrite":
                if self._on_lost is not None:
                    self._on_lost(lost(self._session_id, error))
                return
            # The store cannot be reached, by others neither; the next append reports it.
            _log.debug("%s: the lease was not renewed: %s", self._session_id, error.message)
        self._renew_later(lease)

    # Claiming

    async def _claim(self) -> Lease:
        pause, takeovers, patience = _FIRST_PAUSE, 0, _BRIEF_PATIENCE
        seen: tuple[object, float] | None = None  # holder, and when its lease runs out
        while True:
            try:
                return await self._claim_as(self._owner)
            except AgentError as error:
                if error.code != "SessionBusy":
                    raise
                busy = error
            holder, left = busy.meta.get("owner"), busy.retry_after or 0.0
            if isinstance(holder, str) and takeovers < _TAKEOVERS and is_dead(holder):
                takeovers += 1
                await self._take_over(holder)
                continue
            ends = self._clock.monotonic() + left
            refuses = self._on_busy == "refuse" or (
                self._on_busy == "outlast" and _renewed(seen, holder, ends)
            )
            if refuses and (patience <= 0 or not isinstance(holder, str) or work_of(holder) not in _BRIEF):
                raise self._refusal(busy) from busy
            seen = seen or (holder, ends)
            await self._clock.sleep(pause * (0.5 + random.random()))  # not all at the same moment
            patience -= pause
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def _claim_as(self, owner: str) -> Lease:
        """A claim that is cancelled and succeeds all the same would lock everybody out."""
        begin = begins(self._store.claim)
        if begin is None:
            claim = self._store.claim(self._session_id, owner=owner, ttl=self._ttl)
            return await _to_its_end(claim, undo=self._store.release)
        claimed = begin(self._session_id, owner=owner, ttl=self._ttl)
        try:
            return await claimed
        except asyncio.CancelledError:
            if claimed.exception() is None:
                await _to_its_end(self._store.release(claimed.result()))
            raise

    async def _take_over(self, holder: str) -> None:
        """A dead process's lease is given back in its name; then it is free, for us or for a faster one."""
        _log.debug("%s: %s is gone; its lease is free", self._session_id, describe(holder))
        try:
            await self._store.release(await self._claim_as(holder))
        except AgentError as error:
            if error.code != "SessionBusy":
                raise

    def _refusal(self, busy: AgentError) -> AgentError:
        holder = busy.meta.get("owner")
        if not isinstance(holder, str):
            return busy
        return AgentError(
            "SessionBusy",
            f"session {self._session_id} is in use by {describe(holder)}; wait for it to finish, or "
            f"{self._advice}",
            meta=busy.meta,
        )


def lost(session_id: str, error: AgentError) -> AgentError:
    return AgentError(
        "SessionConcurrentWrite",
        f"session {session_id} was taken over by another process; this run stops and writes nothing more "
        "(it was stopped or cut off for longer than its lease lasts)",
        cause=error,
        meta=error.meta,
    )


def _renewed(seen: tuple[object, float] | None, holder: object, ends: float) -> bool:
    """Whether someone is alive behind a lease: it is another one, or it runs out later than it did."""
    return seen is not None and (holder != seen[0] or ends > seen[1] + 0.25)


async def _to_its_end(
    work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]] | None = None
) -> T:
    """``work``, whole even when it is cancelled meanwhile; then what it did is undone."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if undo is not None and not task.cancelled() and task.exception() is None:
            await undo(task.result())
        raise


_live: dict[str, asyncio.AbstractEventLoop | None] = {}
"""Names that leases of this process go by at the moment, each with the event loop that keeps it up."""


def new_owner(work: str = "run") -> str:
    """``host/pid/start/space/work-mark``, different every time; ``start`` and ``space`` tell a process number
    from the same number used again, after a restart or in another container."""
    pid = os.getpid()
    owner = f"{_host()}/{pid}/{_started(pid) or 0}/{_space()}/{work}-{os.urandom(4).hex()}"
    try:
        _live[owner] = asyncio.get_running_loop()
    except RuntimeError:
        _live[owner] = None
    return owner


def forget_owner(owner: str) -> None:
    _live.pop(owner, None)


def is_dead(owner: str) -> bool:
    """Whether ``owner`` is known to be gone. False also means: nobody here can know."""
    try:
        host, number, start, space, _ = owner.rsplit("/", 4)
        pid = int(number)
    except ValueError:
        return False
    if (host, space) != (_host(), _space()) or os.name != "posix":
        return False
    if pid == os.getpid():
        return start == str(_started(pid) or 0) and not _is_kept_up(owner)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's; /proc may still have it
    now = _started(pid)
    return now is not None and str(now) != start


def _is_kept_up(owner: str) -> bool:
    loop = _live.get(owner)
    return owner in _live and (loop is None or not loop.is_closed())


def work_of(owner: str) -> str:
    """What the session is held for; empty where the name does not contain it."""
    return owner.rpartition("/")[2].rpartition("-")[0]


def describe(owner: str) -> str:
    """For people: ``process 4711 on host``, and what it does there where that is no run."""
    try:
        host, pid, _, _, _ = owner.rsplit("/", 4)
    except ValueError:
        return repr(owner)
    work = work_of(owner)
    return f"process {pid} on {host}" + (f" ({work})" if work not in ("", "run") else "")


@cache
def _host() -> str:
    return socket.gethostname().replace("/", "-")


@cache
def _space() -> str:
    """This start of this machine, and within it the room in which process numbers mean the same."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()[:8]
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "-"


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; -1 for one that has ended and is not yet
    collected; None where the system does not provide it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])
