"""What one piece of the network brought is still shown event by event, and a run can stop between two."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from types import FrameType
from typing import Any

import pytest

from models.streams_in_pieces import PROTOCOLS, place_of, speaking
from turnlog import Agent, events
from turnlog.contract import (
    CallArgs,
    Chunk,
    ModelCallFailed,
    RetryPolicy,
    RunEvent,
    StreamDone,
    StreamStart,
    TextChunk,
    TextDelta,
    ThinkingChunk,
    ThinkingDelta,
    ToolCallArgsDelta,
)
from turnlog.history import MemoryStore, verify
from turnlog.loop import Hooks, replay
from turnlog.loop._events import Hub
from turnlog.models import Model, ModelRequest
from turnlog.models._base import batched

WORDS = ["alpha ", "beta ", "gamma ", "omega"]


class Burst(Model):
    """Says all its words in one piece."""

    provider_id = "test"
    specification = "test"

    @batched
    async def _stream(self, request: ModelRequest) -> AsyncGenerator[list[Chunk], None]:
        said: list[Chunk] = [TextChunk(text_delta=word) for word in WORDS]
        yield [StreamStart(model_id="m"), *said, StreamDone(finish_reason="stop")]


def word_of(event: RunEvent) -> str | None:
    delta: Any = getattr(event, "delta", None)
    return (delta.payload.text_delta or None) if delta is not None and delta.kind == "text" else None


async def failure_in(store: MemoryStore) -> ModelCallFailed:
    entries = await store.load("s")
    (failed,) = [entry.payload for entry in entries if entry.kind == "model_call_failed"]
    assert isinstance(failed, ModelCallFailed)
    assert await verify(store, "s") == []
    report = await replay(store, "s")
    assert report.identical, report.difference
    return failed


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_deltas_of_one_piece_are_events_of_their_own_in_order(protocol: str) -> None:
    seen: list[str] = []
    numbers: list[int] = []
    async with speaking(protocol, WORDS) as model, Agent(model, store="memory:") as agent:
        async with agent.run_stream("Go.", session="s") as run:
            async for event in run:
                numbers.append(event.seq)
                if (word := word_of(event)) is not None:
                    seen.append(word)
                    assert run.snapshot is not None and run.snapshot.text == "".join(seen)
        assert (await run.result()).text == "".join(WORDS)
    assert seen == WORDS
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_abort_between_two_events_of_one_piece_ends_the_run_there(protocol: str) -> None:
    store, seen = MemoryStore(), list[str]()
    async with speaking(protocol, WORDS) as model, Agent(model, store=store) as agent:
        async with agent.run_stream("Go.", session="s") as run:
            async for event in run:
                if (word := word_of(event)) is not None:
                    seen.append(word)
                    if len(seen) == 2:
                        await run.abort("enough")
        result = await run.result(check=False)
    assert seen == WORDS[:2] and result.status == "aborted"
    failed = await failure_in(store)
    assert failed.partial == "alpha beta " and failed.error.message == "enough"


async def test_leaving_between_two_events_keeps_what_was_shown() -> None:
    store = MemoryStore()
    async with Agent(Burst("m"), store=store) as agent, agent.run_stream("Go.", session="s") as run:
        async for event in run:
            if word_of(event) == WORDS[0]:
                break
    failed = await failure_in(store)
    assert failed.partial == WORDS[0]
    assert failed.shown == 2, "the start of the stream, and one word"


async def test_a_hook_that_fails_at_one_event_of_a_piece_ends_the_run_before_the_next() -> None:
    store, seen, watched = MemoryStore(), list[str](), list[str]()

    def refuse(event: RunEvent) -> None:
        if (word := word_of(event)) is not None:
            watched.append(word)
            if word == WORDS[1]:
                raise ValueError("not this word")

    async with Agent(Burst("m"), store=store, hooks=Hooks(on_event=[refuse])) as agent:
        async with agent.run_stream("Go.", session="s") as run:
            seen = [word async for event in run if (word := word_of(event)) is not None]
        assert (await run.result(check=False)).status == "failed"
    assert watched == seen == WORDS[:2]
    assert (await failure_in(store)).partial == "alpha beta "


async def test_a_hook_may_abort_a_run_that_nobody_reads_between_two_events() -> None:
    store = MemoryStore()

    async def stop(event: RunEvent) -> None:
        if word_of(event) == WORDS[2]:
            await agent.abort(event.run_id, "enough")

    async with Agent(Burst("m"), store=store, hooks=Hooks(on_event=[stop])) as agent:
        result = await agent.run("Go.", session="s", check=False)
    assert result.status == "aborted"
    assert (await failure_in(store)).partial == "alpha beta gamma "


async def test_watchers_of_a_background_run_see_every_event_of_a_piece() -> None:
    async with Agent(Burst("m"), store="memory:") as agent:
        run = await agent.start("Go.", session="s")
        seen = [word async for event in run.events() if (word := word_of(event)) is not None]
        assert (await run.result()).text == "".join(WORDS)
    assert seen == WORDS


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_unreadable_event_of_a_piece_fails_the_call_after_the_events_before_it(
    protocol: str,
) -> None:
    at = place_of(protocol, WORDS, WORDS[2])
    seen: list[str] = []
    once = RetryPolicy(max_attempts=1)
    async with (
        speaking(protocol, WORDS, broken_at=at) as model,
        Agent(model, store="memory:", retry=once) as agent,
        agent.run_stream("Go.", session="s") as run,
    ):
        async for event in run:
            if (word := word_of(event)) is not None:
                seen.append(word)
            elif event.kind == "error":
                seen.append(event.error.code)
        result = await run.result(check=False)
    assert seen[:3] == [*WORDS[:2], "ModelProtocolError"]
    assert result.status == "failed"


async def _calls(count: int) -> int:
    """Frames of turnlog that a run enters or resumes."""
    seen = 0

    def note(frame: FrameType, what: str, arg: Any) -> None:
        nonlocal seen
        seen += what == "call" and "/turnlog/" in frame.f_code.co_filename

    async with (
        speaking("openai-chat", ["word "] * count) as model,
        Agent(model, store="memory:") as agent,
        agent.run_stream("Go.", session="s") as run,
    ):
        sys.setprofile(note)
        try:
            shown = [event async for event in run if word_of(event)]
        finally:
            sys.setprofile(None)
    assert len(shown) == count
    return seen


async def test_an_event_more_in_a_piece_costs_few_calls() -> None:
    # What else runs now and then, as the look for controls, is in no fewest of three.
    few, many = [min([await _calls(count) for _ in range(3)]) for count in (40, 240)]
    assert (many - few) / 200 <= 10


# ── what is kept of a run for those who come late ──


def _event(number: int, delta: Any) -> RunEvent:
    kind = {"text": events.TextDelta, "thinking": events.ThinkingDelta}.get(delta.kind, events.ToolCallDelta)
    place = {"session_id": "s", "run_id": "r", "timestamp": delta.timestamp}
    return kind(seq=number, **place, model_call_index=1, attempt=1, delta=delta)


def _shown(count: int) -> list[RunEvent]:
    """Events of text, thoughts and two calls in turn, with pieces that end a part and numbers left out."""
    told: list[RunEvent] = []
    for at in range(count):
        place: dict[str, Any] = {"run_id": "r", "seq": at + 1, "timestamp": f"t{at // 3}"}
        data = {"origin": "x"} if at % 41 == 0 else None
        match at // 30 % 3:
            case 0:
                payload: Any = TextChunk(text_delta=f"{at} ", provider_data=data)
                delta: Any = TextDelta(payload=payload, **place)
            case 1:
                payload = ThinkingChunk(text_delta=f"{at} ", provider_data=data)
                delta = ThinkingDelta(payload=payload, **place)
            case _:
                payload = CallArgs(
                    tool_call_id=f"call_{at % 2 if at % 7 == 0 else 0}", args_text_delta=f"{at}"
                )
                delta = ToolCallArgsDelta(payload=payload, **place)
        told.append(_event(1_000 + at + at // 50 * 10, delta))
    return told


async def _seen(hub: Hub, after: int) -> list[RunEvent]:
    return [event async for event in hub.events(after)]


@pytest.mark.parametrize("together", [1, 7, 500])
async def test_a_late_watcher_sees_every_event_as_it_was(together: int) -> None:
    told, hub = _shown(500), Hub()
    for at in range(0, len(told), together):
        if together == 1:
            hub.add(told[at])
        else:
            hub.publish(told[at : at + together])
    hub.close()
    assert (hub.first, hub.last) == (told[0].seq, told[-1].seq)
    for after in (0, told[0].seq, told[29].seq, told[77].seq, told[250].seq + 3, told[-1].seq):
        assert await _seen(hub, after) == [event for event in told if event.seq > after]


async def test_a_watcher_that_reads_slowly_misses_nothing_that_is_kept_meanwhile() -> None:
    told, hub, seen = _shown(400), Hub(), list[RunEvent]()
    for event in told[:100]:
        hub.add(event)
    left = iter(told[100:])
    async for event in hub.events(0):
        seen.append(event)
        for _ in range(3):
            if (more := next(left, None)) is not None:
                hub.add(more)
        if len(seen) == len(told):
            break
    assert seen == told


async def test_a_long_run_keeps_its_newest_events() -> None:
    told, hub = _shown(25_000), Hub()
    for event in told:
        hub.add(event)
    hub.close()
    kept = await _seen(hub, 0)
    assert kept == told[-len(kept) :] and 9_000 <= len(kept) <= 20_100
    assert hub.first == kept[0].seq


async def test_what_is_kept_of_a_text_is_little_more_than_the_text() -> None:
    """Counted in objects: of a thousand pieces hardly an event, a delta or a chunk is left."""
    hub = Hub()
    for at in range(1_000):
        chunk = TextChunk(text_delta="word ")
        hub.add(_event(at + 1, TextDelta(run_id="r", seq=at + 1, payload=chunk, timestamp="t")))
    kept = sum(isinstance(one, events.TextDelta) for one in (*hub._events, *hub._packed))
    assert kept <= 100 and len(hub._packed) < 10
