"""A session that one provider began, another goes on with, and the first takes up again: for all pairs."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from models.speakers import SPEAKERS, Said, Speaker, Voice, on_air
from turnlog import Agent, tool
from turnlog.contract import Image, ImagePart, text_part
from turnlog.events import TextDelta
from turnlog.history import MemoryStore
from turnlog.testing import FixedClock, FixedIds, check_request
from turnlog.tools import ToolError
from turnlog.widgets import MemoryNotebookWidget

SESSION = "s1"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
NOTE = "the user counts from zero"

FIRST = Said(
    text="Looking around.",
    thinking="The picture may matter.",
    calls=[
        ("look", {"place": "north"}),
        ("shoot", {}),
        ("divide", {"a": 1, "b": 0}),
        ("notebook_write", {"name": "habit", "text": NOTE}),
    ],
    number=1,
)
SECOND = Said(text="All is quiet there.", thinking="One call failed.", number=2)
UNHEARD = Said(text="Well, it all began long ago.", number=3)
WAITING = Said(
    text="I wait.", thinking="Rain takes time.", calls=[("wait", {}), ("look", {"place": "sky"})], number=4
)
THIRD = Said(
    text="I look again.", thinking="Others looked before me.", calls=[("look", {"place": "east"})], number=5
)
FOURTH = Said(text="East is quiet too.", thinking="Nothing new.", number=6)
FIFTH = Said(text="I am back.", thinking="Home again.", calls=[("look", {"place": "home"})], number=7)
SIXTH = Said(text="And all is well.", number=8)

STORY = [
    "What is in this picture?",
    PIXEL,
    FIRST.text,
    "north: all quiet",
    "b is 0",
    NOTE,
    SECOND.text,
    "Tell me everything.",
    UNHEARD.text[:3],
    "The answer above was interrupted",
    "Wait for the rain.",
    WAITING.text,
    "What did you see?",
    THIRD.text,
    "east: all quiet",
    FOURTH.text,
    "And now?",
    FIFTH.text,
    "home: all quiet",
]
"""What the last request tells, in the order in which it happened."""


@dataclass
class Stage:
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: FixedClock = field(default_factory=FixedClock)
    ids: FixedIds = field(default_factory=FixedIds)

    def agent(self, voice: Voice) -> Agent:
        @tool(timeout=None)
        async def look(place: str) -> str:
            """Look at a place."""
            return f"{place}: all quiet"

        @tool(timeout=None)
        async def shoot() -> list[Any]:
            """Take a picture."""
            return [text_part("a picture"), ImagePart(payload=Image(mime_type="image/png", data=SHOT))]

        @tool(timeout=None)
        async def divide(a: float, b: float) -> float:
            """Divide a by b."""
            raise ToolError("b is 0; nothing can be divided by it")

        @tool(timeout=None)
        async def wait() -> str:
            """Wait for the rain."""
            await asyncio.Event().wait()
            return "never"

        return Agent(
            voice.model,
            tools=[look, shoot, divide, wait],
            widgets=[MemoryNotebookWidget()],
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            instructions="You are brief.",
        )


async def begin(agent: Agent, voice: Voice) -> None:
    """Thoughts, calls at once, one that fails, pictures; then two turns that are broken off."""
    voice.will_say(FIRST, SECOND)
    picture = ImagePart(payload=Image(mime_type="image/png", data=PIXEL))
    result = await agent.run([text_part("What is in this picture?"), picture], session=SESSION)
    assert result.status == "completed", result.last_error
    voice.will_say(voice.speaker.stalled(UNHEARD))
    async for event in agent.run_stream("Tell me everything.", session=SESSION):
        if isinstance(event, TextDelta):
            await agent.abort(event.run_id, "the user left")
    voice.will_say(WAITING)
    leaving: asyncio.Task[bool] | None = None
    async for event in agent.run_stream("Wait for the rain.", session=SESSION):
        if event.kind == "tool_started" and leaving is None:
            leaving = asyncio.create_task(leave(agent, event.run_id))
    assert leaving is not None and await leaving


async def leave(agent: Agent, run_id: str) -> bool:
    """Abort once the tool had time to begin."""
    await asyncio.sleep(0.005)
    return await agent.abort(run_id, "the user left")


async def go_on(agent: Agent, voice: Voice, text: str, *answers: Said) -> None:
    voice.will_say(*answers)
    result = await agent.run(text, session=SESSION)
    assert result.status == "completed", result.last_error
    assert (
        result.final_assistant_message is not None and result.final_assistant_message.text == answers[-1].text
    )


def check_body(voice: Voice, body: Any) -> None:
    check_request(voice.speaker.protocol, body, model=voice.speaker.model_id)
    voice.speaker.official(body)


def told(body: Any) -> str:
    return json.dumps(body.get("messages") or body.get("contents") or body.get("input"), ensure_ascii=False)


def check_story(body: Any, until: str) -> None:
    """All that was said and done is there, once and in order."""
    text, at = told(body), 0
    for words in STORY[: STORY.index(until) + 1]:
        found = text.find(words, at)
        assert found >= 0, f"{words!r} is not there, or too early"
        at = found
    assert text.count(PIXEL) == text.count(SHOT) == 1
    assert text.count(UNHEARD.text[:3]) == 1 and UNHEARD.text[5:] not in text  # what was shown, and no more
    assert text.count("# [Live Screen]") == 1 and text.count(NOTE) == 2  # the call's arguments, the screen


def own(voice: Voice, *answers: Said) -> list[Any]:
    return [item for said in answers for item in voice.speaker.own(said)]


def pairs() -> list[Any]:
    return [
        pytest.param(first, second, id=f"{first.protocol} to {second.protocol}")
        for first in SPEAKERS
        for second in SPEAKERS
    ]


@pytest.mark.spec("P-9", "R-4", "M-7", "P-6", "W-2")
@pytest.mark.parametrize(("first", "second"), pairs())
async def test_there_and_back(first: Speaker, second: Speaker) -> None:
    stage = Stage()
    async with AsyncExitStack() as stack:
        a: Voice = await stack.enter_async_context(on_air(first, stage.ids, stage.clock))
        b: Voice = await stack.enter_async_context(on_air(second, stage.ids, stage.clock))
        agent_a, agent_b = stage.agent(a), stage.agent(b)
        await begin(agent_a, a)
        await go_on(agent_b, b, "What did you see?", THIRD, FOURTH)
        await go_on(agent_a, a, "And now?", FIFTH, SIXTH)
    for voice in (a, b):
        for body in voice.bodies:
            check_body(voice, body)
    assert [len(voice.bodies) for voice in (a, b)] == [6, 2]

    begun = (FIRST, SECOND, WAITING)
    same = first is second
    assert b.speaker.thoughts(b.bodies[0]) == (own(b, *begun) if same else [])
    assert b.speaker.thoughts(b.bodies[1]) == own(b, *(begun if same else ()), THIRD)
    theirs = (THIRD, FOURTH) if same else ()
    assert a.speaker.thoughts(a.bodies[4]) == own(a, *begun, *theirs)
    assert a.speaker.thoughts(a.bodies[5]) == own(a, *begun, *theirs, FIFTH)
    if not same:
        for foreign in (*own(a, *begun), *(said.signature for said in begun)):
            assert json.dumps(foreign) not in told(b.bodies[1])
        for said in (THIRD, FOURTH):
            assert said.thinking not in told(a.bodies[5]) and f'"{said.signature}"' not in told(a.bodies[5])
    check_story(b.bodies[1], "east: all quiet")
    check_story(a.bodies[5], "home: all quiet")


@pytest.mark.spec("P-9", "R-4")
async def test_one_session_through_all_of_them_twice() -> None:
    stage = Stage()
    async with AsyncExitStack() as stack:
        voices: list[Voice] = [
            await stack.enter_async_context(on_air(speaker, stage.ids, stage.clock)) for speaker in SPEAKERS
        ]
        agents = [stage.agent(voice) for voice in voices]
        await begin(agents[0], voices[0])
        number = 10
        for lap in (1, 2):
            for agent, voice in zip(agents, voices, strict=True):
                place = f"{voice.speaker.protocol} {lap}"
                calls = [("look", {"place": place}), ("divide", {"a": 1, "b": 0})]
                thinking = f"thought of {place}"
                asked = Said(text=f"text of {place}", thinking=thinking, calls=calls, number=number)
                await go_on(
                    agent, voice, f"ask {place}", asked, Said(text=f"end of {place}", number=number + 1)
                )
                number += 2
    for voice in voices:
        for body in voice.bodies:
            check_body(voice, body)
        assert f"{voice.speaker.protocol} 2: all quiet" in told(voice.bodies[-1])
        for other in voices:
            text = told(voice.bodies[-1])
            assert (
                f"{other.speaker.protocol} 1: all quiet" in text
                and f"end of {other.speaker.protocol} 1" in text
            )
            mine = other is voice
            assert (f"thought of {other.speaker.protocol} 1" in text) is mine
