"""A chat through a real server whose small window nobody knows: it is learned, and no turn fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models import chat_wire
from turnlog import Agent, tool
from turnlog.contract import encode
from turnlog.history import MemoryStore
from turnlog.loop import replay
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.testing import Loopback, LoopbackAnswer, LoopbackRequest
from turnlog.widgets import MemoryNotebookWidget

LLAMA_CPP = {
    "code": 400,
    "message": "the request exceeds the available context size. try increasing the context size or enable "
    "context shift",
    "type": "invalid_request_error",
}
OPENAI_COMPATIBLE = {
    "message": "This endpoint's maximum context length is exceeded. Please reduce the length of the input.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
"""Words of real servers; neither tells how long its window is."""

WORDS = (
    *("crate", "pallet", "harbour", "ledger", "winter", "copper", "lantern"),
    *("bridge", "signal", "orchard", "magnet", "velvet", "canyon"),
)


@tool(timeout=None)
async def archive(shelf: int) -> str:
    """Read what is on a shelf of the archive."""
    return f"shelf {shelf}\n" + "\n".join(
        f"file-{shelf}-{n}: {WORDS[(shelf + n) % 13]} {n * 37 + shelf}" for n in range(20 * (1 + shelf % 6))
    )


class SmallServer:
    """Chat Completions with a window that it tells nobody: it has no page about itself, and counts no tokens
    for its clients. Every third message of the user is answered with the archive's help."""

    def __init__(self, window: int, refusal: dict[str, Any], bytes_per_token: float = 3.2) -> None:
        self.window, self.refusal, self.bytes_per_token = window, refusal, bytes_per_token
        self.answered = self.refused = 0

    def __call__(self, request: LoopbackRequest) -> LoopbackAnswer:
        if not request.path.endswith("/chat/completions"):
            return LoopbackAnswer.json({"error": {"message": "not found"}}, status=404)
        body = request.json
        size = len(encode(body["messages"])) + len(encode(body.get("tools") or []))
        if size / self.bytes_per_token > self.window:
            self.refused += 1
            return LoopbackAnswer.json({"error": self.refusal}, status=400)
        self.answered += 1
        said = sum(message["role"] == "user" for message in body["messages"])
        if body["messages"][-1]["role"] == "user" and self.answered % 3 == 0:
            called = {"index": 0, "id": f"call_{self.answered}", "type": "function"}
            delta = chat_wire.call(f'{{"shelf": {self.answered}}}', name="archive", **called)
            return self._stream(chat_wire.chunk(delta), chat_wire.chunk(None, "tool_calls"))
        words = " ".join(WORDS[(self.answered * n + said) % 13] for n in range(60))
        return self._stream(
            chat_wire.chunk({"content": f"Noted {self.answered}: {words}."}), chat_wire.chunk(None, "stop")
        )

    def _stream(self, *events: bytes) -> LoopbackAnswer:
        return LoopbackAnswer.sse(b"".join(events) + chat_wire.DONE)


async def chat(server: SmallServer, turns: int, *, words: int) -> tuple[int, int]:
    """A chat of so many turns, none of which fails: (folds, how many of them because of a refusal)."""
    store = MemoryStore()
    async with Loopback(server) as loopback:
        model = OpenAIChatModel("house-model", base_url=f"{loopback.url}/v1", api_key="none")
        notes = MemoryNotebookWidget()
        async with Agent(model, store=store, tools=[archive], widgets=[notes], instructions="Help.") as agent:
            for turn in range(turns):
                text = " ".join(WORDS[(turn * n) % 13] for n in range(words + turn % 40))
                result = await agent.run(f"Message {turn} about {text}.", session="s1", check=False)
                assert result.status == "completed", f"turn {turn}: {result.error_code}"
        await model.close()
    report = await replay(store, "s1", widgets=[notes])
    assert report.identical, report.difference
    folds = [entry.payload for entry in await store.load("s1") if entry.kind == "fold"]
    return len(folds), sum(fold.reason == "overflow" for fold in folds)


@pytest.mark.spec("C-6", "C-13")
@pytest.mark.parametrize(
    ("window", "words", "refusal"),
    [(4_000, 60, LLAMA_CPP), (8_000, 160, OPENAI_COMPATIBLE), (32_000, 700, LLAMA_CPP)],
    ids=["4k", "8k", "32k"],
)
async def test_thirty_turns_in_a_window_that_nobody_knows(
    window: int, words: int, refusal: dict[str, Any]
) -> None:
    server = SmallServer(window, refusal)
    folds, forced = await chat(server, 30, words=words)
    assert folds > forced >= 1, "it was learned by a refusal, and then kept"
    assert server.refused <= 6


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.spec("C-6", "C-13")
@pytest.mark.parametrize("refusal", [LLAMA_CPP, OPENAI_COMPATIBLE], ids=["llama.cpp", "openai"])
@pytest.mark.parametrize("bytes_per_token", [2.4, 3.2, 4.5])
@pytest.mark.parametrize("window", [4_000, 8_000, 32_000])
async def test_two_hundred_turns_in_a_window_that_nobody_knows(
    window: int,
    bytes_per_token: float,
    refusal: dict[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    server = SmallServer(window, refusal, bytes_per_token)
    folds, forced = await chat(server, 200, words=60 if window < 10_000 else 300)
    assert folds > forced >= 1
    record_property("small windows", [200, server.answered, server.refused, folds])
