"""The contract kit, played by a server that speaks Chat Completions; and the official client in between."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import openai
import pytest

from models.adapters_under_test import make_model
from models.good_answers import ARGUMENTS, GOOD, TEXT
from models.recorded import collect, outcome_of
from turnlog.contract import AgentError
from turnlog.models import Model, load_model
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model

REFUSALS: dict[str, tuple[int, str, str]] = {
    "ModelRateLimited": (429, "rate_limit_exceeded", "Rate limit reached"),
    "ModelOverloaded": (503, "server_overloaded", "The engine is currently overloaded"),
    "ModelServerError": (500, "server_error", "The server had an error"),
    "ModelAuthError": (401, "invalid_api_key", "Incorrect API key provided"),
    "ModelNotFound": (404, "model_not_found", "The model `m` does not exist"),
    "ModelContextOverflow": (400, "context_length_exceeded", "maximum context length is 8 tokens"),
    "ModelBadRequest": (400, "invalid_value", "Invalid value for 'temperature'"),
}


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode({"id": "x", "choices": [choice]}) + b"\n\n"


def pieces(words: str) -> list[str]:
    return [words[at : at + 5] for at in range(0, len(words), 5)]


def played(case: ModelCase) -> LoopbackAnswer:
    if case.ending == "error":
        status, code, message = REFUSALS[case.error_code]
        headers = {} if case.retry_after is None else {"retry-after": f"{case.retry_after:g}"}
        return LoopbackAnswer.json({"error": {"message": message, "code": code}}, status, headers)
    events = [event({"role": "assistant", "content": ""})]
    events += [event({"reasoning_content": piece}) for piece in pieces(case.thinking)]
    events += [event({"content": piece}) for piece in pieces(case.text)]
    for index, call in enumerate(case.calls):
        function = {"name": call.name, "arguments": ""}
        events.append(event({"tool_calls": [{"index": index, "id": call.id, "function": function}]}))
        events += [
            event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in pieces(call.args_text)
        ]
    if case.ending in ("cut", "hang"):
        body = b"".join(events[:-1])
        then = "stall" if case.ending == "hang" else "close"
        return LoopbackAnswer.sse(body + b"\n", cut_at=len(body), then=then, pieces=64)
    return LoopbackAnswer.sse(b"".join([*events, event({}, case.ending), b"data: [DONE]\n\n"]))


async def wire(server: Loopback, model: Model) -> Wired:
    async def finish() -> None:
        await model.close()
        await server.__aexit__(None, None, None)

    return Wired(
        model,
        closed=server.no_connections,
        finish=finish,
        sent=lambda: [request.body for request in server.requests],
    )


@pytest.mark.spec("P-8")
async def test_the_contract_kit() -> None:
    async def make(case: ModelCase) -> Wired:
        server = await Loopback(played(case)).__aenter__()
        return await wire(server, load_model("openai-chat:m", base_url=server.url))

    report = await check_model(make)
    assert report.skipped == {}


@pytest.mark.spec("P-10")
@pytest.mark.parametrize("kind", ["openai", "azure"])
async def test_an_official_client_that_brings_authentication(kind: str) -> None:
    good = LoopbackAnswer.sse(b"".join(GOOD["openai-chat"]))
    refused = LoopbackAnswer.json({"error": {"message": "slow down"}}, 429, {"retry-after": "3"})
    cut = LoopbackAnswer.sse(good.body, cut_at=300)
    async with Loopback(good, refused, cut) as server:
        if kind == "azure":
            client = openai.AsyncAzureOpenAI(
                azure_endpoint=server.url, azure_ad_token="entra-token", api_version="2025-01-01"
            )
        else:
            client = openai.AsyncOpenAI(api_key="entra-token", base_url=f"{server.url}/v1")
        model = OpenAIChatModel("m", client=client, max_tokens=7, extra_body={"top_k": 3})
        found = outcome_of(await collect(model))
        assert (found.text, found.calls, found.finish) == (TEXT, [("get_weather", ARGUMENTS)], "tool_calls")
        error = outcome_of(await collect(model)).error
        assert (error.error_code, error.retry_after) == ("ModelRateLimited", 3)
        assert outcome_of(await collect(model)).error.error_code == "ModelServerError"
        assert len(server.requests) == 3, "an adapter never tries again by itself"
        first = server.requests[0]
        assert first.headers["authorization"] == "Bearer entra-token"
        assert (first.json["max_tokens"], first.json["top_k"], first.json["stream"]) == (7, 3, True)
        where = "/openai/deployments/m/chat/completions" if kind == "azure" else "/v1/chat/completions"
        assert first.path.startswith(where)
        await client.close()


@pytest.mark.spec("P-10", "E-2")
async def test_a_client_of_another_kind_is_refused() -> None:
    error = outcome_of(await collect(make_model("openai-chat", client=object()))).error  # type: ignore[arg-type]
    assert error.error_code == "ConfigInvalid"
    assert "httpx2.AsyncClient" in error.message


@pytest.mark.spec("P-10")
async def test_an_error_mapper_of_ones_own() -> None:
    class Odd(Exception):
        pass

    async def fail(_: object) -> None:
        raise Odd("odd")

    async with httpx2.AsyncClient(event_hooks={"request": [fail]}) as client:
        model = OpenAIChatModel(
            "m",
            base_url="http://127.0.0.1:1",
            client=client,
            error_mapper=lambda error: (
                AgentError("ModelOverloaded", "mapped") if isinstance(error, Odd) else None
            ),
        )
        assert outcome_of(await collect(model)).error.error_code == "ModelOverloaded"
