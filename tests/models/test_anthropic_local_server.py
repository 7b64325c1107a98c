"""The adapter against a server that others wrote: llama.cpp speaks the Messages API too."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from models.anthropic_wire import WEATHER, Heard, calls, results, says, thought
from turnlog.contract import Message, user_message
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.local import close_servers, find_weights
from turnlog.models.local._server import ServerSpec, ensure_server
from turnlog.models.local._weights import WeightsMissing

try:
    WEIGHTS = find_weights("")
    WHY_NOT = "" if find_spec("xllamacpp") else "xllamacpp is not installed: pip install 'turnlog[local]'"
except WeightsMissing as missing:
    WEIGHTS, WHY_NOT = None, str(missing)

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module", autouse=True)
def _stop_servers() -> Iterator[None]:
    yield
    close_servers()


async def ask(messages: list[Message], *options: Any) -> Heard:
    """One call over a connection of its own.

    This server closes a connection after a streamed answer without announcing it, so a call that follows
    at once on the same connection may find it gone.
    """
    assert WEIGHTS is not None
    endpoint = await ensure_server(ServerSpec(weights=WEIGHTS, n_ctx=2048))
    model = AnthropicModel("local", base_url=endpoint.base_url, api_key=endpoint.api_key, max_tokens=12)
    heard = Heard([delta async for delta in model.stream(messages, *options)])
    await model.close()
    return heard


async def test_a_real_server_takes_our_requests_and_we_its_answers() -> None:
    history = [
        user_message("What is the weather in Paris?"),
        says(thought("t", signature="s"), "Looking.", calls("c1")),
        results(("c1", "sunny")),
        user_message("Say it again."),
    ]
    heard = await ask(history, [WEATHER], "Be brief.")
    assert heard.finish in ("stop", "length"), heard.error
    assert heard.message.text
    assert heard.usage is not None
    assert heard.usage.input_tokens > 20


async def test_a_real_server_says_that_a_prompt_is_too_long() -> None:
    heard = await ask([user_message("word " * 3000)])
    assert heard.error is not None
    assert heard.error.error_code == "ModelContextOverflow", heard.error
