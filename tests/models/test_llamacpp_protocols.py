"""Three adapters against a server that others wrote: llama.cpp speaks all their protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from models.anthropic_wire import Heard
from models.responses_wire import WEATHER, calls, results, says
from turnlog.contract import Message, SpecificTool, text_part, thinking_part, user_message
from turnlog.models import Model
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.local import close_servers, find_weights
from turnlog.models.local._server import ServerSpec, ensure_server
from turnlog.models.local._weights import WeightsMissing
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.models.openai_responses import OpenAIResponsesModel

try:
    WEIGHTS = find_weights("")
    WHY_NOT = "" if find_spec("xllamacpp") else "xllamacpp is not installed: pip install 'turnlog[local]'"
except WeightsMissing as missing:
    WEIGHTS, WHY_NOT = None, str(missing)

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses", "anthropic-messages"]),
]

ADAPTERS: dict[str, tuple[type[Model], str]] = {
    "openai-chat": (OpenAIChatModel, "/v1"),
    "openai-responses": (OpenAIResponsesModel, "/v1"),
    "anthropic-messages": (AnthropicModel, ""),
}
WINDOW = 1024


@pytest.fixture(scope="module", autouse=True)
def _stop_servers() -> Iterator[None]:
    yield
    close_servers()


@asynccontextmanager
async def served(protocol: str, **fields: Any) -> AsyncGenerator[Model, None]:
    """A model of its own: this server closes a connection after an answer without announcing it."""
    assert WEIGHTS is not None
    endpoint = await ensure_server(ServerSpec(weights=WEIGHTS, n_ctx=WINDOW))
    adapter, path = ADAPTERS[protocol]
    options = {"base_url": endpoint.base_url + path, "api_key": endpoint.api_key, "temperature": 0, **fields}
    model = adapter("local", **options)
    try:
        yield model
    finally:
        await model.close()


async def ask(protocol: str, messages: list[Message], *given: Any, **fields: Any) -> Heard:
    options = {name: fields.pop(name) for name in ("tool_choice",) if name in fields}
    async with served(protocol, max_tokens=8, **fields) as model, asyncio.timeout(120):
        return Heard([delta async for delta in model.stream(messages, *given, **options)])


@pytest.mark.spec("P-2", "D-7")
async def test_text_comes_piece_by_piece_with_its_counts(protocol: str) -> None:
    heard = await ask(protocol, [user_message("Write a very long story about a river.")], (), "You write.")
    assert heard.error is None
    assert heard.finish == "length"
    pieces = [delta for delta in heard.deltas if delta.kind == "text" and delta.payload.text_delta]
    assert len(pieces) > 2
    assert heard.message.text
    assert heard.usage is not None
    assert heard.usage.output_tokens == 8
    assert heard.usage.input_tokens > 10
    assert heard.usage.total_tokens == heard.usage.input_tokens + heard.usage.output_tokens


@pytest.mark.spec("P-2", "P-9")
async def test_a_history_of_every_kind_is_taken(protocol: str) -> None:
    history = [
        user_message("What is the weather in Paris?"),
        says(
            thinking_part("hm", {"origin": "someone-else", "signature": "s"}),
            text_part("", {"origin": "someone-else", "block": {}}),
            "Looking.",
            calls("c1", origin="someone-else", id="weird id/" + "x" * 80),
            "And again.",
            calls("c2", '{"city": '),
        ),
        results(("c1", "sunny")),
        says("Sunny."),
        says("Really."),
        Message(run_id="r", role="system", parts=[text_part("The user is happy.")], timestamp="t"),
        user_message("Say it again."),
    ]
    for choice in (None, "none", SpecificTool(name="weather")):
        heard = await ask(protocol, history, [WEATHER], "Be brief.", tool_choice=choice)
        # Forced calls are longer than the limit: then none is complete, and the answer is an error.
        if heard.error is not None:
            assert heard.error.error_code == "ModelProtocolError", heard.error
            assert "raise max_tokens" in (heard.error.message or "")
        else:
            assert heard.finish in ("stop", "length")


@pytest.mark.spec("P-11", "L-7")
async def test_an_answer_that_is_broken_off_leaves_the_server_free(protocol: str) -> None:
    async with served(protocol, max_tokens=700) as model, asyncio.timeout(120):
        stream = model.stream([user_message("Write a very long story about a river.")])
        seen = 0
        async for delta in stream:
            seen += delta.kind == "text"
            if seen == 3:
                break
        await stream.aclose()
        heard = Heard([one async for one in model.stream([user_message("Say hi.")], max_tokens=4)])
        assert heard.error is None, heard.error
        assert heard.usage is not None
        assert heard.usage.output_tokens <= 4


@pytest.mark.spec("P-4", "C-6")
async def test_a_prompt_that_does_not_fit(protocol: str) -> None:
    heard = await ask(protocol, [user_message("word " * 2 * WINDOW)])
    assert heard.error is not None
    assert heard.error.error_code == "ModelContextOverflow", heard.error
    assert not heard.error.retryable


@pytest.mark.spec("P-4")
async def test_a_wrong_key_is_said_to_be_one(protocol: str) -> None:
    heard = await ask(protocol, [user_message("hi")], api_key="wrong-key-of-no-worth")
    assert heard.error is not None
    assert heard.error.error_code == "ModelAuthError", heard.error
