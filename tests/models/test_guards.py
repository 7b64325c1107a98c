"""What must not be said twice, shown, or counted against somebody: guards of the model room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any

import pytest

from turnlog import load_model
from turnlog.contract import (
    RequestMetadata,
    Secret,
    StreamDone,
    StreamStart,
    TextChunk,
    encode,
    user_message,
)
from turnlog.models import Model, ModelRequest, ProviderRouter
from turnlog.testing import Loopback, LoopbackAnswer, ScriptedModel, Turn

KEY = "k3Vx9Qw7Zp2Lm8Rt5Yb1Nc6"


class Chatty(Model[Any]):
    """Keeps what its provider sent, which is the key itself."""

    provider_id = "chatty"
    specification = "chatty"

    async def _stream(self, request: ModelRequest[Any]) -> AsyncIterator[Any]:
        yield StreamStart(model_id="m")
        if request.raw is not None:
            request.raw.append({"echoed": f"Bearer {KEY}"})
        yield TextChunk(text_delta="Hi.")
        yield StreamDone(finish_reason="stop")


async def test_what_the_provider_sent_is_kept_without_our_key() -> None:
    Secret(KEY)
    deltas = [delta async for delta in Chatty("m").stream([user_message("Hi.")], include_raw=True)]
    wire = encode(deltas).decode()
    assert "echoed" in wire and KEY not in wire


async def test_a_header_of_several_words_is_guarded_as_a_whole() -> None:
    value = f"first={KEY[::-1]}; second={KEY}"
    answer = LoopbackAnswer.json({"error": {"message": f"bad cookie {value}"}}, 401)
    async with Loopback(answer) as server:
        model = load_model(
            "openai-chat:m", base_url=server.url, api_key="none", extra_headers={"cookie": value}
        )
        deltas = [delta async for delta in model.stream([user_message("Hi.")])]
        await model.close()
    wire = encode(deltas).decode()
    assert "bad cookie" in wire and KEY[::-1] not in wire


def routed(*models: ScriptedModel, **options: Any) -> ProviderRouter:
    return ProviderRouter({model.descriptor.model: model for model in models}, **options)


async def ask(router: ProviderRouter, index: int) -> list[Any]:
    place = RequestMetadata(session_id="s", run_id="r", model_call_index=index)
    return [delta async for delta in router.stream([user_message("Hi.")], request_metadata=place)]


async def test_who_answers_a_call_is_chosen_once() -> None:
    """The choice is in the log before the call is made: the same call must not get another."""
    names = cycle(["a", "b"])
    router = routed(
        ScriptedModel(["a"], model_id="a", loop=True),
        ScriptedModel(["b"], model_id="b", loop=True),
        policy=lambda ctx: [next(names)],
    )
    for index in (1, 2, 3):
        target, _ = router.target_for(RequestMetadata(session_id="s", run_id="r", model_call_index=index))
        start = (await ask(router, index))[0]
        assert start.payload.target == target


@pytest.mark.parametrize(
    ("code", "counted"), [("ModelBadRequest", 0), ("ModelContextOverflow", 0), ("ModelAuthError", 5)]
)
async def test_what_is_wrong_with_the_request_is_not_held_against_the_provider(
    code: str, counted: int
) -> None:
    failing = ScriptedModel([Turn(error={"code": code, "message": "no"})], model_id="a", loop=True)
    router = routed(failing)
    for index in range(5):
        await ask(router, index + 1)
    assert router.health()["a"].failures_in_a_row == counted
