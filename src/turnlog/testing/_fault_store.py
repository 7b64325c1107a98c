"""A store that fails on order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from turnlog.contract import AgentError, Clock, Store

from ._store_wrap import WrappedStore

T = TypeVar("T")
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
