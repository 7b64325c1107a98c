"""What it costs to go on after a crash, against reading the same log.

A process makes a session of 10,000 entries (one run of tool rounds) and dies inside a tool: the run is open,
the tool has started and has no result, and SQLite's write-ahead log was never folded into its file. The JSONL
file gets half a batch behind its last complete one as well, as a crash in the middle of a write leaves it.

Every round takes fresh copies of what the crash left. Reading is CPU from a new store to the entries that
``load`` gives. Recovery is CPU from a new store and agent to the moment in which the tool that was cut off
runs again (log read, state rebuilt, the dead process's lease taken over, the new attempt written durably),
and on to the next model's answer, for which the context is made: that is put off until it is needed, so the
first figure alone says too little. The lease has run out before. Garbage is collected before each, so that
none pays for what another left.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from turnlog import Agent, tool
from turnlog.contract import (
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    LoopLimits,
    StreamDone,
    StreamStart,
    TextChunk,
)
from turnlog.history import open_store
from turnlog.loop import SessionOptions
from turnlog.models import Model, ModelRequest

ENTRIES = 10_000
ROUND = 4
"""Entries of a tool round: the call of the model, its answer, the tool's start, its result."""
ROUNDS = 7
LEASE = 5.0
STORES = {"SQLite": "sqlite:{}/log.db", "JSONL": "jsonl:{}/log"}


class Caller(Model):
    """Calls the tool once more each time it is asked, until ``rounds`` are done."""

    provider_id = "bench"
    specification = "bench"
    rounds = 0

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield StreamStart(model_id="bench")
        number = request.metadata.model_call_index
        if number <= self.rounds:
            yield TextChunk(text_delta=f"Room {number} comes next; I look at what is on its shelves.")
            yield CallStart(tool_call_id="0", tool_name="look")
            yield CallArgs(tool_call_id="0", args_text_delta=f'{{"place": "room {number}"}}')
            yield CallEnd(tool_call_id="0")
            yield StreamDone(finish_reason="tool_calls")
        else:
            yield TextChunk(text_delta="done")
            yield StreamDone(finish_reason="stop")


def make_agent(url: str, rounds: int, on_look: Callable[[str], None]) -> Agent:
    @tool(idempotent=True)
    async def look(place: str) -> str:
        """Look at a place."""
        on_look(place)
        return f"In {place} there are books, maps and a lamp. " * 4

    model = Caller("bench")
    model.rounds = rounds
    return Agent(
        model,
        tools=[look],
        store=url,
        limits=LoopLimits(max_iterations=100_000),
        sessions=SessionOptions(lease_ttl=LEASE),
    )


def crash(url: str) -> None:
    """In a process of its own: fill the session, and die inside the last tool."""
    rounds = ENTRIES // ROUND

    def die(place: str) -> None:
        if place == f"room {rounds}":
            os._exit(9)

    asyncio.run(make_agent(url, rounds, die).run("Look at every room.", session="long"))


def leave_half_a_batch(folder: Path) -> None:
    for file in folder.rglob("*.jsonl"):
        whole = file.read_bytes().split(b"\n")
        with file.open("ab") as torn:
            torn.write(whole[-3][: len(whole[-3]) // 2])


async def read(url: str) -> tuple[float, int]:
    gc.collect()
    start = time.process_time()
    store = open_store(url)
    entries = await store.load("long")
    spent = time.process_time() - start
    await store.close()
    return spent, len(entries)


async def recover(url: str) -> tuple[float, float]:
    """CPU seconds to the tool that runs again, and to the model's next answer."""
    reached: list[float] = []
    gc.collect()
    start = time.process_time()
    agent = make_agent(url, 0, lambda place: reached.append(time.process_time()))
    async for event in agent.resume_stream("long"):
        if event.kind == "model_delta" and len(reached) == 1:
            reached.append(time.process_time())
    await agent.close()
    to_tool, to_answer = reached
    return to_tool - start, to_answer - start


def measure(name: str, folder: Path) -> list[tuple[str, str, str]]:
    url = STORES[name]
    crashed = folder / "crashed"
    crashed.mkdir(parents=True)
    child = subprocess.run([sys.executable, "-m", __spec__.name, url.format(crashed)], check=False)
    assert child.returncode == 9, "the process ended before it could crash"
    leave_half_a_batch(crashed)
    time.sleep(LEASE)
    readings: list[float] = []
    recoveries: list[tuple[float, float]] = []
    count = 0
    for number in range(ROUNDS):
        copies = [folder / f"{number}-{what}" for what in ("read", "recover")]
        for copy in copies:
            shutil.copytree(crashed, copy)
        reading, count = asyncio.run(read(url.format(copies[0])))
        readings.append(reading)
        recoveries.append(asyncio.run(recover(url.format(copies[1]))))
    found: list[tuple[str, str, str]] = []
    for at, (until, goal) in enumerate((("the tool runs again", "under 1.5x"), ("the next answer", ""))):
        spent = [recovery[at] for recovery in recoveries]
        ratio = statistics.median(ours / plain for ours, plain in zip(spent, readings, strict=True))
        best = f"best: {min(spent) * 1e3:.0f} against {min(readings) * 1e3:.0f} ms"
        words = f"recovery of {count:,} entries, {name}, until {until}, CPU against reading"
        found.append((words, f"{ratio:.2f}x ({best})", goal))
    return found


def rows() -> list[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory() as name:
        return [row for store in STORES for row in measure(store, Path(name) / store)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        crash(sys.argv[1])
    else:
        for row in rows():
            print(" | ".join(row))
