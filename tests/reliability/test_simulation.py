"""Interleavings: sessions, each played out by its seed, each checked to the last entry.

A run takes a tenth of ten thousand seeds, another tenth each time; `make soak` takes all of them and more.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter

import pytest

from slices import slice_of
from turnlog import tool
from turnlog.testing import Simulation, current_process, simulate
from turnlog.tools import Tool, ToolContext

SEEDS = 10_000
SLICES = 10
CHUNK = 125


@pytest.mark.spec("H-4", "H-10", "H-11", "T-3", "L-2", "L-3", "L-7", "L-8", "A-2")
@pytest.mark.parametrize("chunk", range(SEEDS // SLICES // CHUNK))
def test_every_seed_leaves_a_session_in_order(chunk: int) -> None:
    first = slice_of(SLICES) * (SEEDS // SLICES) + chunk * CHUNK
    failed: list[str] = []
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except AssertionError as error:
            failed.append(str(error))
    assert not failed, f"{len(failed)} of {CHUNK} seeds failed:\n" + "\n\n".join(failed[:3])


def test_a_seed_is_the_same_every_time_and_in_every_process() -> None:
    first = [simulate(seed) for seed in range(30)]
    assert [simulate(seed) for seed in range(30)] == first
    program = "from turnlog.testing import simulate\nprint([simulate(seed).trace for seed in range(30)])"
    for order_of_hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": order_of_hashes},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str([report.trace for report in first])


def test_seeds_differ_and_everything_happens_in_them() -> None:
    counts: Counter[str] = Counter()
    for seed in range(200, 460):  # the rarest thing is in one of a hundred
        counts += simulate(seed).counts
    for expected in (
        "aborted",
        "cancelled",
        "closed early",
        "decided abort",
        "decided approve",
        "decided deny",
        "decided modify",
        "error RunTimeout",
        "error SessionBusy",
        "error SessionWriteFailed",
        "edited",
        "killed",
        "paused",
        "run awaiting_human",
        "run completed",
        "run failed",
        "run paused",
        "steered",
        "abort from elsewhere: True",
        "decide from elsewhere: True",
        "pause from elsewhere: True",
        "send from elsewhere: True",
    ):
        assert counts[expected] > 0, f"{expected} never happened: {counts}"


def careless_tools() -> list[Tool]:
    """``pay`` must happen once, and is declared as if twice were as good."""

    def make(name: str, **options: bool) -> Tool:
        async def body(text: str, ctx: ToolContext) -> str:
            """Do it."""
            process = current_process()
            assert process is not None
            process.effect(ctx.idempotency_key)
            await process.simulation.pause(0.1)
            return "done"

        return tool(name=name, timeout=None, **options)(body)

    names = ("look", "post", "book", "send", "sulk", "quit")
    return [make("pay", idempotent=True), *(make(name) for name in names)]


def test_a_planted_bug_is_found_and_its_seed_finds_it_again() -> None:
    tools = careless_tools()
    found: list[int] = []
    for seed in range(150):
        try:
            simulate(seed, tools=tools)
        except AssertionError:
            found.append(seed)
    assert found
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"pay with key .* ran 2 times") as caught:
            simulate(found[0], tools=tools)
        assert f"again: turnlog.testing.simulate({found[0]})" in str(caught.value)


# ── the engine ──


def test_time_is_virtual_and_order_is_the_seeds() -> None:
    def order(seed: int) -> tuple[list[int], float]:
        ran: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(0)
            ran.append(number)

        async def main(simulation: Simulation) -> None:
            await asyncio.gather(*(one(number) for number in range(8)))
            await simulation.clock.sleep(86_400)

        simulation = Simulation(seed)
        simulation.run(main)
        return ran, simulation.clock.monotonic()

    assert order(1) == order(1)
    assert len({tuple(order(seed)[0]) for seed in range(10)}) > 5
    assert order(1)[1] >= 86_400


def test_what_can_never_go_on_is_said_so() -> None:
    async def main(simulation: Simulation) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="every task waits for ever"):
        Simulation(0).run(main)


def test_a_task_that_is_left_over_is_named() -> None:
    async def main(simulation: Simulation) -> None:
        simulation.kept = asyncio.create_task(asyncio.sleep(5), name="forgotten")  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="forgotten"):
        Simulation(0).run(main)


def test_a_killed_process_reaches_nothing_any_more() -> None:
    async def main(simulation: Simulation) -> str:
        process = simulation.process()

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            finally:
                process.effect("key")
                with pytest.raises(Exception, match="was killed"):
                    await process.store.tail("s1")

        task = process.spawn(work(), "work")
        await asyncio.sleep(1)
        process.kill()
        await asyncio.wait([task])
        assert simulation.effects == {}
        return "done"

    assert Simulation(0).run(main) == "done"
