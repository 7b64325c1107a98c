"""Stores in front of another one: one that passes everything on, and one that fails on order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from turnlog.contract import (
    AgentError,
    Clock,
    Control,
    Entry,
    JsonObject,
    Lease,
    LeaseHolder,
    PendingApproval,
    SessionDigest,
    SessionInfo,
    Store,
    StoredEntry,
    Tail,
    owned_secrets,
)

T = TypeVar("T")


class WrappedStore:
    """Hands every call on to ``inner``, through ``_call``."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def secrets(self) -> Mapping[str, str]:
        return owned_secrets(self.inner)

    async def _call(self, method: str, act: Callable[[], Awaitable[T]]) -> T:
        return await act()

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
        def act() -> Awaitable[None]:
            return self.inner.append(
                session_id, batch, expected_tail=expected_tail, lease=lease, digest=digest, blobs=blobs
            )

        await self._call("append", act)

    async def read(self, session_id: str, *, after: int = 0, upto: int | None = None) -> list[StoredEntry]:
        return await self._call("read", lambda: self.inner.read(session_id, after=after, upto=upto))

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        return await self._call("load", lambda: self.inner.load(session_id, after=after))

    async def tail(self, session_id: str) -> Tail | None:
        return await self._call("tail", lambda: self.inner.tail(session_id))

    async def sessions(self, **filters: Any) -> list[SessionInfo]:
        return await self._call("sessions", lambda: self.inner.sessions(**filters))

    async def pending(self, *, limit: int | None = None) -> list[PendingApproval]:
        return await self._call("pending", lambda: self.inner.pending(limit=limit))

    async def wake(self, session_id: str, at: str | None) -> None:
        await self._call("wake", lambda: self.inner.wake(session_id, at))

    async def due(self, limit: int, *, now: str) -> list[str]:
        return await self._call("due", lambda: self.inner.due(limit, now=now))

    async def post(self, control: Control) -> None:
        await self._call("post", lambda: self.inner.post(control))

    async def posted(self, session_id: str | None = None) -> list[Control]:
        return await self._call("posted", lambda: self.inner.posted(session_id))

    async def answer_control(self, control_id: str, answer: JsonObject) -> None:
        await self._call("answer_control", lambda: self.inner.answer_control(control_id, answer))

    async def take_answer(self, control_id: str) -> JsonObject | None:
        return await self._call("take_answer", lambda: self.inner.take_answer(control_id))

    async def withdraw(self, control_id: str) -> bool:
        return await self._call("withdraw", lambda: self.inner.withdraw(control_id))

    async def holder(self, session_id: str) -> LeaseHolder | None:
        return await self._call("holder", lambda: self.inner.holder(session_id))

    async def fork(self, source: str, *, at: int, target: str, first: Sequence[StoredEntry]) -> None:
        await self._call("fork", lambda: self.inner.fork(source, at=at, target=target, first=first))

    async def erase(self, session_id: str, bodies: Mapping[int, bytes]) -> None:
        await self._call("erase", lambda: self.inner.erase(session_id, bodies))

    async def delete_session(
        self,
        session_id: str,
        *,
        forks: Literal["refuse", "delete"] = "refuse",
        lease: Lease | None = None,
    ) -> None:
        await self._call(
            "delete_session", lambda: self.inner.delete_session(session_id, forks=forks, lease=lease)
        )

    async def put_blob(self, data: bytes) -> str:
        return await self._call("put_blob", lambda: self.inner.put_blob(data))

    async def get_blob(self, name: str) -> bytes:
        return await self._call("get_blob", lambda: self.inner.get_blob(name))

    async def claim(self, session_id: str, *, owner: str, ttl: float) -> Lease:
        return await self._call("claim", lambda: self.inner.claim(session_id, owner=owner, ttl=ttl))

    async def renew(self, lease: Lease) -> None:
        await self._call("renew", lambda: self.inner.renew(lease))

    async def release(self, lease: Lease) -> None:
        await self._call("release", lambda: self.inner.release(lease))

    async def close(self) -> None:
        await self._call("close", self.inner.close)


When: TypeAlias = Literal["before", "after"]

StoreHook: TypeAlias = Callable[[When, str, int], Awaitable[None] | None]
"""Called with when, the method's name and the number of that call, before and after every store call.
A crash test kills its own process in it."""


@dataclass(frozen=True, kw_only=True)
class StoreFault:
    """What goes wrong at the ``nth`` call (from 1) of ``method``.

    ``before``: the call does nothing and raises. ``after``: the call takes effect, and raises all the same,
    as when an acknowledgement is lost. Without ``error`` it only waits ``delay`` seconds.
    """

    nth: int
    method: str = "append"
    when: When = "before"
    error: BaseException | None = None
    delay: float = 0.0


def fail_append(nth: int, *, when: When = "before", code: str = "SessionWriteFailed") -> StoreFault:
    error = AgentError(code, f"append {nth} was made to fail ({when} it took effect)")
    return StoreFault(nth=nth, when=when, error=error)


def fill_disk(nth: int) -> StoreFault:
    return StoreFault(
        nth=nth, error=AgentError("SessionWriteFailed", "the disk is full; nothing was written")
    )


def slow_append(nth: int, seconds: float) -> StoreFault:
    return StoreFault(nth=nth, delay=seconds)


class FaultStore(WrappedStore):
    """``inner`` with the faults of ``plan``; everything else is handed through.

    ``calls`` lists (method, number of that call) in the order they came.
    """

    def __init__(
        self,
        inner: Store,
        plan: Iterable[StoreFault] = (),
        *,
        hook: StoreHook | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, int]] = []
        self._plan = {(fault.method, fault.nth, fault.when): fault for fault in plan}
        self._counts: dict[str, int] = {}
        self._hook = hook
        self._sleep = clock.sleep if clock else asyncio.sleep

    async def _call(self, method: str, act: Callable[[], Awaitable[T]]) -> T:
        number = self._counts[method] = self._counts.get(method, 0) + 1
        self.calls.append((method, number))
        await self._strike("before", method, number)
        value = await act()
        await self._strike("after", method, number)
        return value

    async def _strike(self, when: When, method: str, number: int) -> None:
        if self._hook is not None:
            done: Any = self._hook(when, method, number)
            if inspect.isawaitable(done):
                await done
        fault = self._plan.get((method, number, when))
        if fault is None:
            return
        if fault.delay:
            await self._sleep(fault.delay)
        if fault.error is not None:
            raise fault.error
