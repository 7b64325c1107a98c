"""What the SQLite store costs beyond its bytes: a turn appended, a long log loaded, many sessions at once."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from turnlog.contract import (
    Entry,
    EntryPayload,
    Message,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    StoredEntry,
    ToolCall,
    ToolCallPart,
    ToolOutcome,
    ToolResults,
    seal,
    text_part,
    tool_result_part,
    user_message,
)
from turnlog.history import SqliteStore
from turnlog.system import SystemIds

ROUNDS = 40
TURNS = 50
LOADED = 20_000
TIME = "2026-01-01T00:00:00.000Z"
MODEL = ModelInvocationDescriptor(provider_id="openai", specification="openai-chat", model="gpt-5.2")
INSERT = "INSERT INTO entries (place, id, kind, body) VALUES (?, ?, ?, ?)"
MOVE = (
    "UPDATE sessions SET tail_seq = ?, tail_id = ?, tail_hash = ?, updated_at = ? "
    "WHERE key = ? AND tail_seq = ?"
)


def _payloads(turn: int) -> list[EntryPayload]:
    """A user's words, a call, its result, an answer."""

    def said(role: Any, parts: list[Any]) -> Message:
        return Message(run_id="run_1", role=role, parts=parts, timestamp=TIME)

    def output(parts: list[Any]) -> ModelOutput:
        return ModelOutput(
            message=said("assistant", parts),
            invocation=MODEL,
            model_call_index=turn,
            attempt=1,
            finish_reason="stop",
        )

    id, raw = f"call_{turn}", '{"city":"Lisbon","days":3}'
    call = ToolCall(
        tool_call_id=id, tool_name="forecast", arguments={"city": "Lisbon", "days": 3}, raw_args_text=raw
    )
    outcome = ToolOutcome(tool_call_id=id, tool_name="forecast", status="success", elapsed_ms=12)
    return [
        ModelInput(message=user_message("What is the weather like? " * 8, run_id="run_1", timestamp=TIME)),
        output([text_part("Let me look that up."), ToolCallPart(payload=call)]),
        ToolResults(
            message=said("tool", [tool_result_part(id, "Sunny, 24 degrees. " * 20)]), outcomes=[outcome]
        ),
        output([text_part("It will be sunny for the next three days. " * 10)]),
    ]


def make_turns(session_id: str, count: int) -> list[list[StoredEntry]]:
    ids, turns = SystemIds(), list[list[StoredEntry]]()
    previous_id, previous_hash, seq = None, "", 0
    for turn in range(count):
        batch: list[StoredEntry] = []
        for payload in _payloads(turn):
            seq += 1
            made = seal(
                payload,
                id=ids.entry(),
                previous_id=previous_id,
                previous_hash=previous_hash,
                session_id=session_id,
                seq=seq,
                timestamp=TIME,
                run_id="run_1",
            )
            previous_id, previous_hash = made.entry.id, made.entry.hash
            batch.append(made.stored)
        turns.append(batch)
    return turns


def _bare(path: Path, turns: list[list[StoredEntry]]) -> Callable[[int], None]:
    """The same rows into the same tables, from one thread, with nothing around it."""
    connection: Any = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("INSERT INTO sessions (id) VALUES ('bare')")
    key = connection.last_insert_rowid()

    def write(turn: int) -> None:
        batch = turns[turn]
        last = batch[-1]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(MOVE, (last.seq, last.id, "h" * 64, TIME, key, last.seq - 4))
        connection.executemany(INSERT, [(key << 32 | s.seq, s.id, s.kind, s.body) for s in batch])
        connection.execute("COMMIT")

    return write


async def append_cost(folder: Path) -> tuple[float, float, float]:
    """One turn of four entries in one transaction: CPU microseconds of bare apsw and of ours, each the best
    of many rounds; and the middle one of the rounds' ratios. A round does both, one after the other, so that
    a busy machine disturbs both alike."""
    stores = [SqliteStore(folder / "bare.db"), SqliteStore(folder / "ours.db")]
    for store in stores:
        await store.append("warm", make_turns("warm", 1)[0], expected_tail=0)
    await stores[0].close()
    bare_turns, turns = make_turns("bare", ROUNDS * TURNS), make_turns("ours", ROUNDS * TURNS)
    write, store = _bare(folder / "bare.db", bare_turns), stores[1]
    bare: list[float] = []
    ours: list[float] = []
    for first in range(0, ROUNDS * TURNS, TURNS):
        start = time.process_time()
        for turn in range(first, first + TURNS):
            write(turn)
        bare.append(time.process_time() - start)
        start = time.process_time()
        for turn in range(first, first + TURNS):
            await store.append("ours", turns[turn], expected_tail=4 * turn)
        ours.append(time.process_time() - start)
    await store.close()
    ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))
    return min(bare) / TURNS * 1e6, min(ours) / TURNS * 1e6, ratio


async def load_cost(folder: Path) -> tuple[float, float]:
    """CPU milliseconds to load a log of 20,000 entries: decoding its bodies alone, ours from the file."""
    store = SqliteStore(folder / "load.db")
    rows = [row for batch in make_turns("long", LOADED // 4) for row in batch]
    await store.append("long", rows, expected_tail=0)
    bodies = [row.body for row in rows]
    decode = msgspec.json.Decoder(Entry).decode
    alone = ours = float("inf")
    for _ in range(5):
        start = time.process_time()
        entries = [decode(body) for body in bodies]
        alone = min(alone, time.process_time() - start)
        del entries
        start = time.process_time()
        loaded = await store.load("long")
        ours = min(ours, time.process_time() - start)
        assert len(loaded) == LOADED
        del loaded
    await store.close()
    return alone * 1e3, ours * 1e3


async def group_rate(folder: Path, sessions: int = 64, turns: int = 60) -> float:
    """Turns a second, each durable before it is acknowledged, from many sessions at once."""
    store = SqliteStore(folder / "group.db")
    logs = {f"s{n}": make_turns(f"s{n}", turns) for n in range(sessions)}

    async def write(name: str) -> None:
        for turn, batch in enumerate(logs[name]):
            await store.append(name, batch, expected_tail=4 * turn)

    start = time.perf_counter()
    await asyncio.gather(*map(write, logs))
    rate = sessions * turns / (time.perf_counter() - start)
    await store.close()
    return rate


def rows() -> list[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare, ours, ratio = asyncio.run(append_cost(folder))
        alone, loaded = asyncio.run(load_cost(folder))
        rate = max(asyncio.run(group_rate(Path(tempfile.mkdtemp(dir=name)))) for _ in range(3))
    return [
        (
            "append of a turn, SQLite, CPU against bare apsw",
            f"{ratio:.2f}x (best: {ours:.0f} against {bare:.0f} us)",
            "at most 1.5x",
        ),
        (
            f"load of {LOADED:,} entries, CPU against decoding alone",
            f"{loaded / alone:.2f}x ({loaded:.0f} against {alone:.0f} ms)",
            "at most 1.2x",
        ),
        ("durable turns a second, 64 sessions", f"{rate:,.0f}", "at least 10,000"),
    ]


if __name__ == "__main__":
    for row in rows():
        print(" | ".join(row))
