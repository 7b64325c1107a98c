"""What a context costs: a step, a turn at any length of the session, all of it from nothing. Then the
strategies on recorded sessions; ``python -m benchmarks.context --help`` has their options."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.context.__main__ import main as report_strategies
from benchmarks.context.sessions import LogWriter

from turnlog.context import ContextOptions, Projection, input_sections, plan_fold, result_sections
from turnlog.contract import (
    Entry,
    Message,
    MessagePart,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutput,
    ToolCall,
    ToolCallPart,
    ToolResultsEntry,
    decode,
    encode,
    text_part,
)

TARGET = ModelInvocationDescriptor(
    provider_id="anthropic", specification="anthropic-messages", model="claude-opus-4-5"
)
LENGTHS = (10, 100, 1_000, 10_000, 20_000)
TURN = 4
"""Entries of a turn: what the user says, a call, its result, the answer."""
TURNS = 100
WHOLE = 10_000


def make_entries(count: int) -> list[Entry]:
    """A long session of ordinary turns, with the grains that a hall would have stored."""
    log = LogWriter()
    while len(log.entries) < count:
        number = len(log.entries)
        log.add_input(f"Look at module_{number}.py and tell me what fails in it.")
        call = ToolCall(
            tool_call_id=f"c{number}",
            tool_name="read_file",
            arguments={"path": f"src/module_{number}.py"},
            raw_args_text=f'{{"path":"src/module_{number}.py"}}',
        )
        log.add(_answer([text_part("I read it first."), ToolCallPart(payload=call)], "tool_calls"))
        text = f"def work_{number}(value_{number}):\n    return value_{number} + {number}\n" * 4
        log.add_result(call.tool_call_id, "read_file", text, is_error=False)
        log.add(_answer([text_part(f"Nothing fails in module_{number}.py.")], "stop"))
    return log.entries


def _answer(parts: list[MessagePart], reason: str) -> ModelOutput:
    message = Message(run_id="run", role="assistant", parts=parts, timestamp="")
    return ModelOutput(
        message=message, invocation=TARGET, model_call_index=1, attempt=1, finish_reason=reason
    )


def take(projection: Projection, entry: Entry) -> None:
    """All that the context has to do with one entry: its grains, the step, and the next request."""
    if isinstance(entry, ModelInputEntry):
        input_sections(projection, entry.payload.message)
    elif isinstance(entry, ToolResultsEntry):
        for part in entry.payload.message.tool_results:
            result_sections(projection, part.payload.content)
    projection.step(entry)
    if isinstance(entry, ModelInputEntry | ToolResultsEntry):
        plan_fold(projection, target=TARGET)
        projection.emit(TARGET)


def per_turn(entries: Sequence[Entry], length: int) -> float:
    """µs of a turn behind ``length`` entries that were never folded."""
    projection = Projection(ContextOptions(fold=False))
    for entry in entries[:length]:
        projection.step(entry)
    projection.emit(TARGET)
    found: list[float] = []
    for turn in range(TURNS):
        first = length + turn * TURN
        started = time.perf_counter_ns()
        for entry in entries[first : first + TURN]:
            take(projection, entry)
        found.append((time.perf_counter_ns() - started) / 1e3)
    return sorted(found)[TURNS // 2]


def per_step(entries: Sequence[Entry]) -> float:
    """µs of one append, grains and step, in the middle of all."""
    projection = Projection(ContextOptions(fold=False))
    found: list[float] = []
    for entry in entries:
        started = time.perf_counter_ns()
        take(projection, entry)
        found.append((time.perf_counter_ns() - started) / 1e3)
    return sorted(found)[len(found) // 2]


def from_nothing(entries: Sequence[Entry]) -> tuple[float, float]:
    """CPU ms to decode the entries, and to project them and make the first request."""
    bodies = [encode(entry) for entry in entries]
    decoding = projecting = float("inf")
    for _ in range(3):
        started = time.process_time()
        again: list[Entry] = [decode(body, Entry) for body in bodies]
        decoded = time.process_time()
        Projection.of(again).emit(TARGET)
        done = time.process_time()
        decoding, projecting = min(decoding, decoded - started), min(projecting, done - decoded)
    return decoding * 1e3, projecting * 1e3


def rows() -> list[tuple[str, str, str]]:
    entries = make_entries(LENGTHS[-1] + TURN * TURNS)
    found = [("append, with grains and request, p50", f"{per_step(entries[:WHOLE]):.1f} µs", "< 100 µs")]
    turns = [per_turn(entries, length) for length in LENGTHS]
    for length, cost in zip(LENGTHS, turns, strict=True):
        found.append((f"turn behind {length:,} entries, p50", f"{cost:.0f} µs", "flat"))
    found.append(("  longest / shortest", f"{turns[-1] / turns[0]:.1f} times", ""))
    decoding, projecting = from_nothing(entries[:WHOLE])
    found.append((f"{WHOLE:,} entries from nothing: decoding", f"{decoding:.0f} ms", ""))
    found.append(("  projecting, with the first request", f"{projecting:.0f} ms", "< 250 ms"))
    return found


if __name__ == "__main__":
    for name, figure, goal in rows():
        print(f"{name:<52} {figure:>12}   {goal}")
    report_strategies([])
