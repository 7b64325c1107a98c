"""Many followers of one session: what they get is made once, joined, bounded, and never lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")

from turnlog import Agent
from turnlog.contract import Entry
from turnlog.history import MemoryStore
from turnlog.models import ScriptedModel, Turn
from turnlog.server import _feed
from turnlog.server._feed import Feed, Feeds

LONG = Turn(text="x" * 400, chunk_size=1)


class CountingStore(MemoryStore):
    """Counts how often a log is read."""

    loads = 0

    async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
        self.loads += after == 0
        return await super().load(session_id, after=after)


@pytest.fixture
async def desk() -> AsyncIterator[tuple[Agent[Any], CountingStore, Feeds]]:
    store = CountingStore()
    async with Agent(ScriptedModel(["Hello.", *[LONG] * 9]), store=store) as agent:
        await agent.run("Hello?", session="s")
        feeds = Feeds(store, agent.loop, 1_000)
        yield agent, store, feeds
        feeds.close()


async def comes(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.001)


def numbers_in(chunks: list[bytes]) -> list[int]:
    return [int(each) for each in re.findall(rb"^id: (\d+)$", b"".join(chunks), re.M)]


async def all_of(feed: Feed, after: int, until: bytes = b'"kind":"run_ended"') -> list[bytes]:
    chunks: list[bytes] = []
    async with aclosing(feed.follow(after)) as follower:
        async for chunk in follower:
            chunks.append(chunk)
            if until in chunk:
                break
    return chunks[1:]  # the first greets


async def test_followers_share_what_is_written_and_get_many_deltas_in_one(
    desk: tuple[Agent[Any], CountingStore, Feeds],
) -> None:
    agent, _, feeds = desk
    feed = feeds.get("s", "entries")
    tail = (await agent.session("s").entries())[-1].seq * _feed.STRIDE
    reading = [asyncio.create_task(all_of(feed, tail)) for _ in range(50)]
    await comes(lambda: feed.followers == 50 and feed._task is not None)
    await agent.run("And now?", session="s")
    seen = await asyncio.gather(*reading)
    wanted = numbers_in(seen[0])
    assert len(wanted) > 400 and wanted == sorted(set(wanted))
    assert all(numbers_in(each) == wanted for each in seen)
    assert all(len(each) < 200 for each in seen)
    made = {id(chunk) for each in seen for chunk in each}
    assert len(made) < 2 * max(map(len, seen))  # and not fifty times as many


async def test_a_reader_who_is_too_slow_loses_deltas_and_no_entry(
    desk: tuple[Agent[Any], CountingStore, Feeds], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_feed, "_KEPT", 50)
    monkeypatch.setattr(_feed, "_AT_ONCE", 2_000)
    agent, _, feeds = desk
    feed = feeds.get("s", "entries")
    async with aclosing(feed.follow(0)) as slow, aclosing(feed.follow(0)) as other:
        chunks = [await anext(slow)]
        await anext(other)
        for turn in range(3):
            await agent.run(f"Question {turn}?", session="s")
        tail = (await agent.session("s").entries())[-1].seq
        await comes(lambda: feed._number >= tail * _feed.STRIDE)
        assert len(feed._frames) <= 100
        found: list[int] = []
        while not found or found[-1] < tail * _feed.STRIDE:
            chunks.append(await anext(slow))
            found = numbers_in(chunks)
    assert found == sorted(set(found))
    entries = [number // _feed.STRIDE for number in found if number % _feed.STRIDE == 0]
    assert entries == list(range(1, tail + 1))
    assert max(map(len, chunks)) < 10_000


async def test_those_who_come_late_read_the_log_once_for_all(
    desk: tuple[Agent[Any], CountingStore, Feeds],
) -> None:
    agent, store, feeds = desk
    feed = feeds.get("s", "events")
    await all_of(feed, 0)
    store.loads = 0
    first = asyncio.create_task(all_of(feed, 0))
    seen = await asyncio.gather(first, *[all_of(feed, 0) for _ in range(30)])
    assert all(numbers_in(each) == numbers_in(seen[0]) for each in seen)
    assert store.loads <= 2
    assert len(await agent.session("s").entries()) > 5


async def test_what_is_hidden_is_not_sent_to_those_who_come_later(
    desk: tuple[Agent[Any], CountingStore, Feeds],
) -> None:
    agent, _, feeds = desk
    feed = feeds.get("s", "events")
    async with aclosing(feed.follow(0)) as watching:
        await anext(watching)
        assert b"Hello?" in b"".join(await all_of(feed, 0))
        session = agent.session("s")
        asked = next(entry for entry in await session.entries() if entry.kind == "model_input")
        await session.redact([asked.id], by="me")
        tail = (await session.entries())[-1].seq
        await comes(lambda: feed._seq >= tail)
        assert b"Hello?" not in b"".join(await all_of(feed, 0))


async def test_a_quiet_stream_gets_a_comment_from_one_clock(
    desk: tuple[Agent[Any], CountingStore, Feeds], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_feed, "BEAT", 0.01)
    agent, _, feeds = desk
    tail = (await agent.session("s").entries())[-1].seq * _feed.STRIDE
    feed = feeds.get("s", "entries")
    seen = await asyncio.gather(*[all_of(feed, tail, b": still here") for _ in range(5)])
    assert all(each[-1] == b": still here\n\n" for each in seen)
