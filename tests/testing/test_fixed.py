"""Clocks and ids that are the same on every run."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import turnlog.testing
from turnlog.testing import FixedClock, FixedIds, VirtualClock


@pytest.mark.spec("X-5")
async def test_fixed_clock_steps_at_every_reading() -> None:
    clock = FixedClock("2026-03-01T12:00:00Z", step=0.5)
    assert [clock.now() for _ in range(3)] == [
        "2026-03-01T12:00:00.000Z",
        "2026-03-01T12:00:00.500Z",
        "2026-03-01T12:00:01.000Z",
    ]
    assert clock.monotonic() == 1.5
    await clock.sleep(10)
    clock.advance(0.25)
    assert clock.now() == "2026-03-01T12:00:11.750Z"


def test_fixed_clock_never_drifts() -> None:
    clock = FixedClock(step=0.001)
    for _ in range(100_000):
        last = clock.now()
    assert last == "2026-01-01T00:01:39.999Z"


@pytest.mark.spec("X-5")
def test_fixed_ids_count_and_sort() -> None:
    ids = FixedIds()
    assert (ids.entry(), ids.run(), ids.call(), ids.session()) == (
        "entry_000001",
        "run_0001",
        "call_0001",
        "session_0001",
    )
    made = [ids.entry() for _ in range(1000)]
    assert made == sorted(made)
    later = FixedIds(prefix="b")
    assert later.entry() == "entry_b000001"
    assert later.entry() > made[-1]


async def test_virtual_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(60))
    await clock.settle()
    assert not task.done()
    assert clock.sleeping == 1
    await clock.advance(59.999)
    assert not task.done()
    await clock.advance(0.001)
    assert task.done()
    assert clock.now() == "2026-01-01T00:01:00.000Z"
    assert clock.sleeping == 0


async def test_advance_wakes_in_order_and_again_on_the_way() -> None:
    clock = VirtualClock()
    seen: list[tuple[str, float]] = []

    async def tick(name: str, every: float) -> None:
        for _ in range(3):
            await clock.sleep(every)
            seen.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(tick("slow", 3)), asyncio.create_task(tick("fast", 2))]
    await clock.advance(100)
    assert seen == [("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6), ("fast", 6), ("slow", 9)]
    assert clock.monotonic() == 100
    assert all(task.done() for task in tasks)


async def test_auto_time_jumps_once_everything_waits() -> None:
    clock = VirtualClock(auto=True)
    seen: list[str] = []

    async def work(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        for step in range(20):  # time must not move while somebody works
            seen.append(f"{name}{step}@{clock.monotonic():g}")
            await asyncio.sleep(0)

    await asyncio.gather(work("a", 3600), work("b", 86400), work("c", 1))
    assert seen == [
        f"{name}{step}@{at}" for name, at in [("c", 1), ("a", 3600), ("b", 86400)] for step in range(20)
    ]
    assert clock.now() == "2026-01-02T00:00:00.000Z"


async def test_a_cancelled_sleeper_does_not_move_time() -> None:
    clock = VirtualClock(auto=True)
    task = asyncio.create_task(clock.sleep(1_000_000))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await clock.sleep(5)
    assert clock.monotonic() == 5


async def test_timeouts_on_a_virtual_clock() -> None:
    clock = VirtualClock(auto=True)

    async def hang() -> None:
        await asyncio.Event().wait()

    hanging = asyncio.create_task(hang())
    timer = asyncio.create_task(clock.sleep(600))
    done, _ = await asyncio.wait({hanging, timer}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {timer}
    hanging.cancel()


async def test_grace_lets_threads_finish_first() -> None:
    clock = VirtualClock(auto=True, grace=0.5)

    def in_thread() -> float:
        return clock.monotonic()

    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(in_thread) == 0
    await sleeper


async def test_a_spinning_loop_is_named() -> None:
    clock = VirtualClock()
    stop = False

    async def spin() -> None:
        while not stop:  # noqa: ASYNC110  (it is the spinning that is tested)
            await asyncio.sleep(0)

    task = asyncio.create_task(spin())
    with pytest.raises(AssertionError, match="never became idle"):
        await clock.settle()
    stop = True
    await task


def test_one_clock_serves_one_loop_after_another() -> None:
    clock = VirtualClock(auto=True)
    asyncio.run(clock.sleep(5))
    asyncio.run(clock.sleep(5))
    assert clock.monotonic() == 10


def test_the_room_loads_its_parts_when_used() -> None:
    assert "ScriptedModel" in dir(turnlog.testing)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        turnlog.testing.nothing  # noqa: B018
    script = (
        "import sys, turnlog.testing; sys.exit(sorted({'turnlog.models', 'pytest'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200
    )
    assert (run.returncode, run.stderr) == (0, "")
