"""Histories of every shape, as every adapter sends them, against the rules of its protocol."""

from __future__ import annotations

from typing import Any

import pytest

from models.speakers import SPEAKERS, Said, Speaker, Voice, on_air
from turnlog.contract import Message, SpecificTool, ToolSpec
from turnlog.testing import FixedClock, FixedIds, check_request
from turnlog.testing._model_cases import ask, histories, tools

HISTORIES = histories()
ODD = ToolSpec(
    name="3 odd/names, each:longer than sixty-four characters, which nobody allows",
    description="",
    parameter_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "node": {"$ref": "#/$defs/Node", "description": "a tree"},
            "count": {"type": "integer", "exclusiveMinimum": 0},
            "kind": {"const": "x"},
        },
        "required": ["node"],
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    },
    strict=True,
)


async def sent(speaker: Speaker, messages: list[Message], specs: list[ToolSpec], **options: Any) -> Any:
    voice: Voice
    async with on_air(speaker, FixedIds(), FixedClock()) as voice:
        voice.will_say(Said(text="Three it is."))
        deltas = [delta async for delta in voice.model.stream(messages, specs, "Be brief.", **options)]
        assert deltas[-1].kind == "done", deltas[-1]
        return voice.bodies[0]


@pytest.mark.spec("P-9")
@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.protocol)
@pytest.mark.parametrize("name", HISTORIES)
async def test_any_history(speaker: Speaker, name: str) -> None:
    for specs in (tools(), []):
        body = await sent(speaker, HISTORIES[name], specs)
        check_request(speaker.protocol, body, model=speaker.model_id)
        speaker.official(body)


@pytest.mark.spec("P-5", "P-9")
@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.protocol)
@pytest.mark.parametrize(
    "choice",
    [None, "auto", "none", "required", SpecificTool(name="add"), SpecificTool(name=ODD.name)],
    ids=str,
)
async def test_any_tools(speaker: Speaker, choice: Any) -> None:
    body = await sent(speaker, [ask()], [*tools(), ODD], tool_choice=choice)
    check_request(speaker.protocol, body, model=speaker.model_id)
    speaker.official(body)
