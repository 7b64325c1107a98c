"""What the loop itself costs: per text delta, per tool round, and that neither grows with the session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from turnlog import Agent, tool
from turnlog.context import ContextOptions
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
from turnlog.history import MemoryStore
from turnlog.models import Model, ModelRequest

DELTAS = 20_000
ROUNDS = 200
LENGTHS = (10, 100, 1_000, 10_000)


class Burst(Model):
    """Yields ready-made chunks: what is left is our own work."""

    provider_id = "bench"
    specification = "bench"
    chunks: list[Chunk] = []

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield StreamStart(model_id="bench")
        for chunk in self.chunks:
            yield chunk
        yield StreamDone(finish_reason="stop")


class Caller(Model):
    """Calls a tool ``rounds`` times, then answers."""

    provider_id = "bench"
    specification = "bench"
    rounds = 0

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        yield StreamStart(model_id="bench")
        if request.metadata.model_call_index <= self.rounds:
            yield CallStart(tool_call_id="0", tool_name="look")
            yield CallArgs(tool_call_id="0", args_text_delta='{"place": "here"}')
            yield CallEnd(tool_call_id="0")
            yield StreamDone(finish_reason="tool_calls")
        else:
            yield TextChunk(text_delta="done")
            yield StreamDone(finish_reason="stop")


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is quiet"


async def bare_generator(chunks: list[Chunk]) -> AsyncIterator[Chunk]:
    for chunk in chunks:
        yield chunk


async def per_delta() -> tuple[float, float]:
    """µs per text delta from an adapter's chunk to the caller's event; and of the bare generator."""
    model = Burst("bench")
    model.chunks = [TextChunk(text_delta="word ") for _ in range(DELTAS)]
    agent = Agent(model, store=MemoryStore())
    best, bare = float("inf"), float("inf")
    for _ in range(5):
        start = time.process_time()
        async for _ in bare_generator(model.chunks):
            pass
        bare = min(bare, time.process_time() - start)
        count = 0
        start = time.process_time()
        async for event in agent.run_stream("go", session="deltas"):
            count += event.kind == "model_delta"
        best = min(best, time.process_time() - start)
        assert count == DELTAS + 2
    return best / DELTAS * 1e6, bare / DELTAS * 1e6


async def per_round(history: int) -> float:
    """ms per tool round in a session that has ``history`` turns already."""
    model = Caller("bench")
    agent = Agent(
        model,
        tools=[look],
        store=MemoryStore(),
        limits=LoopLimits(max_iterations=100_000),
        context=ContextOptions(fold=False),
    )
    model.rounds = max(history // 2, 1)
    await agent.run("fill", session="s")
    samples: list[float] = []
    model.rounds = ROUNDS
    for _ in range(3):
        start = time.process_time()
        await agent.run("go", session="s")
        samples.append((time.process_time() - start) / ROUNDS * 1e3)
    return min(samples)


async def measure() -> list[tuple[str, str, str]]:
    delta, bare = await per_delta()
    rows = [
        ("text delta, adapter's chunk to RunEvent", f"{delta:.2f} µs", "≤ 6 µs"),
        ("  the bare generator under it", f"{bare:.2f} µs", ""),
    ]
    rounds: list[float] = []
    for length in LENGTHS:
        cost = await per_round(length)
        rounds.append(cost)
        rows.append((f"tool round, memory store, {length} turns before", f"{cost:.3f} ms", "≤ 0.5 ms"))
    rows.append(("  longest / shortest history", f"{rounds[-1] / rounds[0]:.2f}x", "flat"))
    return rows


def rows() -> list[tuple[str, str, str]]:
    return asyncio.run(measure())


if __name__ == "__main__":
    for name, figure, goal in rows():
        print(f"{name:<52} {figure:>12}   {goal}")
