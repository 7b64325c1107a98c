"""Sessions stay in memory between their runs, as far as ``warm_bytes`` goes."""

from __future__ import annotations

import gc
import weakref

import pytest

from turnlog import Agent
from turnlog.history import MemoryStore
from turnlog.loop import SessionOptions
from turnlog.testing import ScriptedModel


class CountingStore(MemoryStore):
    """Knows which sessions were read from their first entry."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    async def load(self, session_id: str, *, after: int = 0):  # type: ignore[no-untyped-def]
        if after == 0:
            self.opened.append(session_id)
        return await super().load(session_id, after=after)


def agent_with(warm_bytes: int, store: MemoryStore | None = None) -> Agent:
    model = ScriptedModel(["Yes."] * 400)
    return Agent(model, store=store or MemoryStore(), sessions=SessionOptions(warm_bytes=warm_bytes))


async def one_session(agent: Agent, name: str, words: int = 10) -> int:
    """A turn, and what the session takes then."""
    await agent.run("word " * words, session=name)
    kept = agent.loop.sessions.kept.get(name)
    return 0 if kept is None else kept.memory


async def test_the_session_used_longest_ago_leaves_first() -> None:
    store = CountingStore()
    size = await one_session(agent_with(10**9), "probe")
    agent = agent_with(int(3.5 * size), store)
    for name in ("a", "b", "c"):
        await one_session(agent, name)
    await one_session(agent, "a")  # b is the oldest now
    await one_session(agent, "d")
    await one_session(agent, "e")
    store.opened.clear()
    await one_session(agent, "e")
    await one_session(agent, "d")
    assert store.opened == []
    await one_session(agent, "b")
    assert store.opened == ["b"]


@pytest.mark.parametrize("count", [5, 60, 130])
async def test_memory_is_bounded_whatever_the_number_of_sessions(count: int) -> None:
    size = await one_session(agent_with(10**9), "probe")
    limit = 40 * size
    agent = agent_with(limit)
    kept = agent.loop.sessions.kept
    for number in range(count):
        await one_session(agent, f"s{number}")
        assert kept.bytes <= limit
    assert kept.bytes == sum(kept[f"s{number}"].memory for number in range(count - len(kept), count))
    assert min(count, 35) <= len(kept) <= 41  # no other bound than the bytes


async def test_a_long_session_takes_the_place_of_many_short_ones() -> None:
    short = await one_session(agent_with(10**9), "probe")
    agent = agent_with(20 * short)
    for number in range(10):
        await one_session(agent, f"s{number}")
    kept = agent.loop.sessions.kept
    assert len(kept) == 10
    long = await one_session(agent, "long", words=short)
    assert 11 * short < long < 20 * short
    assert kept.get("long") is not None
    assert kept.get("s0") is None
    assert len(kept) < 10


async def test_the_session_used_last_stays_even_when_it_is_larger_than_all_there_is() -> None:
    store = CountingStore()
    agent = agent_with(1, store)
    await one_session(agent, "a")
    await one_session(agent, "b")
    store.opened.clear()
    await one_session(agent, "b")
    assert store.opened == []
    assert len(agent.loop.sessions.kept) == 1


async def test_0_keeps_none() -> None:
    agent = agent_with(0)
    await one_session(agent, "a")
    assert len(agent.loop.sessions.kept) == 0
    assert (await agent.run("Again?", session="a")).text == "Yes."


async def test_what_leaves_is_freed_at_once() -> None:
    agent = agent_with(1)
    await agent.run("Hello?", session="a")
    folds = agent.loop.sessions.kept["a"]
    gone = weakref.ref(folds.session)
    del folds
    gc.collect()
    gc.disable()  # nothing but reference counts
    try:
        await agent.run("Hello?", session="b")
        assert gone() is None
    finally:
        gc.enable()


async def test_a_session_that_a_run_uses_is_not_dropped() -> None:
    agent = agent_with(1)
    kept = agent.loop.sessions.kept
    async with agent.session("a").run_stream("Hello?") as run:
        await anext(aiter(run))
        await one_session(agent, "b")
        await one_session(agent, "c")
        assert kept.get("a") is not None
        assert kept.get("b") is None
        async for _ in run:
            pass
    assert kept.get("a") is not None
    assert kept.get("c") is None
