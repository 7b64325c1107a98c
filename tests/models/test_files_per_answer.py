"""How many files of ``models`` a reader passes through who follows one answer, good or refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import turnlog.models
from models.adapters_under_test import make_model
from models.good_answers import GOOD
from models.recorded import collect
from turnlog.contract import ToolSpec
from turnlog.testing import Loopback, LoopbackAnswer

ROOM = Path(turnlog.models.__file__).parent
MOST = 18


async def files_of(protocol: str, *answers: LoopbackAnswer) -> set[str]:
    """The files that run while a model is made and asked for each of ``answers``."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    spec = ToolSpec(name="get_weather", description="", parameter_schema={"type": "object"})
    async with Loopback(*answers) as server:
        sys.setprofile(note)
        try:
            model = make_model(protocol, server.url)
            for _ in answers:
                await collect(model, tool_specs=[spec])
            await model.close()
        finally:
            sys.setprofile(None)
    found = {Path(name) for name in seen if name.startswith(str(ROOM))}
    return {path.relative_to(ROOM).as_posix() for path in found if path.name != "__init__.py"}


@pytest.mark.parametrize("protocol", ["anthropic-messages", "openai-chat", "openai-responses", "gemini"])
async def test_an_answer_passes_few_files(protocol: str) -> None:
    good = LoopbackAnswer.sse(b"".join(GOOD[protocol]))
    refused = LoopbackAnswer.json({"error": {"message": "slow down"}}, 429, {"retry-after": "1"})
    found = await files_of(protocol, good, refused)
    assert "_faults.py" in found and "_stream.py" in found
    assert len(found) <= MOST, sorted(found)
