"""Turns of a real model over a window that holds a few of them: nothing overflows, no note is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import pytest

from turnlog import Agent
from turnlog.contract import encode
from turnlog.history import MemoryStore
from turnlog.loop import explain, replay
from turnlog.models import ModelRequest
from turnlog.models.local import LocalModel, close_servers, find_weights
from turnlog.models.local._weights import WeightsMissing
from turnlog.widgets import MemoryNotebookWidget

try:
    find_weights("")
    WHY_NOT = "" if find_spec("xllamacpp") else "xllamacpp is not installed: pip install 'turnlog[local]'"
except WeightsMissing as missing:
    WHY_NOT = str(missing)

WINDOW = 1024
MORE = (
    "It rained a lot in the town where I was born, and as far as I know nobody ever counted the drops. " * 3
)
NOTES = MemoryNotebookWidget()


class Watched(LocalModel):
    """The local model, with every request kept."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.requests: list[ModelRequest] = []

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.requests.append(request)
        async for chunk in super()._stream(request):
            yield chunk


@pytest.fixture(scope="module", autouse=True)
def servers() -> Any:
    yield
    close_servers()


def fact(n: int) -> str:
    return f"door {n} opens with {n * 7919 + 1000}"


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.spec("C-4", "C-6", "W-4", "P-2")
@pytest.mark.parametrize(
    ("turns", "least"),
    [pytest.param(12, 1), pytest.param(60, 5, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
async def test_many_turns_in_a_small_window(turns: int, least: int) -> None:
    model = Watched(n_ctx=WINDOW, max_tokens=8, temperature=0, seed=1)
    store = MemoryStore()
    agent = Agent(
        model,
        store=store,
        instructions="You answer in one short sentence.",
        widgets=[NOTES],
    )
    noted: list[str] = []
    seen = 0
    for turn in range(turns):
        if turn % 6 == 0:
            noted.append(fact(turn))
            await agent.append_widget_event("s", NOTES.write(f"door {turn}", fact(turn)))
        result = await agent.run(
            f"Tell me something about the number {turn} and the colour of rain. {MORE}",
            session="s",
            allowed_tools=[],
        )
        assert result.status == "completed", (turn, result.last_error)
        for request in model.requests[seen:]:
            text = encode(request.messages).decode()
            missing = [each for each in noted if each not in text]
            assert not missing, f"turn {turn}: the model was not shown {missing}"
        seen = len(model.requests)
    await agent.close()
    entries = await store.load("s")
    folds = [entry.payload for entry in entries if entry.kind == "fold"]
    assert len(folds) >= least
    reported = [
        entry.payload.message.meta["usage"]["inputTokens"]
        for entry in entries
        if entry.kind == "model_output"
    ]
    assert max(reported) < WINDOW
    whole = sum(
        len(encode(e.payload.message.parts)) for e in entries if e.kind in ("model_input", "model_output")
    )
    assert whole / 4 > turns / 30 * WINDOW, "the session is longer than its window"
    for call in (1, len(model.requests) // 2, -1):
        assert explain(entries, call).matches
    report = await replay(store, "s")
    assert report.identical, report.difference
