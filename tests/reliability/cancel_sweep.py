"""Cancelling something at its first await, at its second, at every one it has."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class _Count:
    def __init__(self) -> None:
        self.awaits = 0


@types.coroutine
def _cancelled_at(
    work: Coroutine[Any, Any, Any], places: frozenset[int], count: _Count
) -> Generator[Any, Any, Any]:
    """Drive ``work`` by hand; its task is cancelled as it suspends for the n-th time."""
    try:
        waits_for = work.send(None)
        while True:
            count.awaits += 1
            if count.awaits in places:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
    except StopIteration as done:
        return done.value


async def cancel_at(work: Coroutine[Any, Any, Any], *places: int) -> tuple[str, int]:
    """Run ``work`` in a task that is cancelled at these awaits: how it ended, and how many awaits it had."""
    count = _Count()

    async def run() -> None:
        await _cancelled_at(work, frozenset(places), count)

    task = asyncio.create_task(run(), name="swept")
    await asyncio.wait([task])
    if task.cancelled():
        return "cancelled", count.awaits
    task.result()
    return "finished", count.awaits


async def sweep(case: Callable[[tuple[int, ...]], Awaitable[int]], *, twice: bool = False) -> int:
    """Call ``case`` with every place in turn (``twice``: with every pair of neighbours near it), until there
    are no more. ``case`` returns how many awaits there were. Returns how many cases were run."""
    cases, place = 0, 1
    while True:
        pairs = [(place, place + step) for step in (1, 2, 3)] if twice else [(place,)]
        awaits = 0
        for places in pairs:
            awaits = max(awaits, await case(places))
            cases += 1
        if awaits < place:
            return cases
        place += 1
