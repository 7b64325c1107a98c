"""A search over folded text answers in the same words and the same order, whatever keeps the log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import call
from turnlog import Agent
from turnlog.context import ContextOptions
from turnlog.history import open_store
from turnlog.loop import replay
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.context.made_up import converse

ASKED = converse(7)
QUERIES = [question["question"] for question in ASKED["questions"][:5]]
SMALL = ContextOptions(fold_at=1_500, min_freed_tokens=100)


async def answers_of(url: str) -> list[str]:
    """What each query brings back in a session that has been folded, and opened again."""
    clock, ids = FixedClock(), FixedIds()
    async with open_store(url) as store:
        parts: dict[str, Any] = {"store": store, "clock": clock, "ids": ids, "context": SMALL}
        agent = Agent(ScriptedModel(default=Turn(text="I see."), clock=clock, ids=ids), **parts)
        for text in ASKED["turns"][:25]:
            await agent.run(text, session="s1")
        turns = [Turn(tool_calls=[call("recall", query=query)]) for query in QUERIES]
        agent = Agent(ScriptedModel([*turns, Turn(text="Done.")], clock=clock, ids=ids), **parts)
        await agent.run("Look it all up.", session="s1")
        entries = await store.load("s1")
        assert any(entry.kind == "fold" for entry in entries)
        report = await replay(store, "s1", options=SMALL)
        assert report.identical, report.difference
    return [
        part.payload.content
        for entry in entries
        if entry.kind == "tool_results"
        for part in entry.payload.message.tool_results
    ]


@pytest.mark.spec("C-12", "H-5")
async def test_the_same_places_come_back_in_the_same_order(tmp_path: Path, postgres_url: str) -> None:
    memory = await answers_of("memory:")
    assert len(memory) == len(QUERIES)
    assert all(answer.count("\n#") >= 1 for answer in memory), "several places each, ranked"
    for url in (f"jsonl:{tmp_path}/logs", f"sqlite:{tmp_path}/log.db", postgres_url):
        assert await answers_of(url) == memory
