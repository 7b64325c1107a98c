"""What a turn costs when a process takes turns over many sessions, and the memory that they take: from 10 to
1,000 sessions there must be no cliff, and memory stays within ``SessionOptions.warm_bytes``."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypedDict

from turnlog import Agent
from turnlog.contract import Store
from turnlog.history import fork, open_store
from turnlog.loop import SessionOptions
from turnlog.system import SystemClock, SystemIds

from .bench_loop import Caller, look

COUNTS = (10, 30, 64, 80, 200, 500, 1_000)
TURNS = 25
ROUNDS = 2


class Line(TypedDict):
    sessions: int
    first_ms: float
    """CPU of a turn in a session that this process has not opened yet."""
    turn_ms: float
    """CPU of a turn after that, the sessions in turn: the least of the rounds."""
    kept: int
    counted_mb: float
    """What the agent takes its idle sessions to need."""
    rss_mb: float
    """What the process has grown by."""


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


async def walk(store: Store, names: Sequence[str], warm_bytes: int | None) -> Line:
    options = SessionOptions() if warm_bytes is None else SessionOptions(warm_bytes=warm_bytes)
    model = Caller("bench")
    model.rounds = 1
    count = len(names)
    gc.collect()
    before = rss_mb()
    async with Agent(model, tools=[look], store=store, sessions=options) as agent:
        times: list[float] = []
        for _ in range(1 + ROUNDS):
            start = time.process_time()
            for name in names:
                await agent.run("and the next?", session=name)
            times.append((time.process_time() - start) / count * 1e3)
        gc.collect()
        kept = agent.loop.sessions.kept
        return Line(
            sessions=count,
            first_ms=round(times[0], 2),
            turn_ms=round(min(times[1:]), 2),
            kept=len(kept),
            counted_mb=round(kept.bytes / 1e6, 1),
            rss_mb=round(rss_mb() - before, 1),
        )


async def measure(count: int, turns: int, url: str, warm_bytes: int | None) -> Line:
    model = Caller("bench")
    model.rounds = 1
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(url.format(folder)) as store:
            async with Agent(model, tools=[look], store=store) as agent:
                for turn in range(turns):
                    await agent.run(f"what is at place {turn}?", session="source")
            names = [f"s{number}" for number in range(count)]
            for name in names:
                await fork(store, "source", target=name, clock=SystemClock(), ids=SystemIds())
            return await walk(store, names, warm_bytes)


def alone(count: int, turns: int, url: str, warm_bytes: int | None) -> Line:
    return asyncio.run(measure(count, turns, url, warm_bytes))


def measure_all(counts: Sequence[int], turns: int, url: str, warm_bytes: int | None) -> list[Line]:
    """Each in a process of its own: memory that one left behind would hide what the next one takes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        return [pool.submit(alone, count, turns, url, warm_bytes).result() for count in counts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of each session before")
    parser.add_argument("--store", default="sqlite:{}/log.db")
    parser.add_argument("--warm-bytes", type=int, help="SessionOptions.warm_bytes, else its default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    lines = measure_all(given.sessions, given.turns, given.store, given.warm_bytes)
    if given.json:
        print(json.dumps({"turns": given.turns, "store": given.store, "sessions": lines}))
        return
    print(f"sessions of {given.turns} turns, one turn in each, over and over")
    print("sessions  first ms  turn ms  kept  counted MB  RSS MB")
    for line in lines:
        print(
            f"{line['sessions']:8}  {line['first_ms']:8.2f}  {line['turn_ms']:7.2f}  {line['kept']:4}  "
            f"{line['counted_mb']:10.1f}  {line['rss_mb']:6.1f}"
        )


if __name__ == "__main__":
    main()
