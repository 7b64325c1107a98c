"""The contract kit, played by a server that speaks Responses; and the official client in between."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from models.good_answers import ARGUMENTS, GOOD, TEXT
from models.recorded import collect, outcome_of
from models.responses_wire import answer, created, ended, event, message, reasoning, sse, streamed
from turnlog.models import load_model
from turnlog.models.openai_responses import OpenAIResponsesModel
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model

REFUSALS: dict[str, tuple[int, str, str]] = {
    "ModelRateLimited": (429, "rate_limit_exceeded", "Rate limit reached"),
    "ModelOverloaded": (503, "server_overloaded", "The engine is currently overloaded"),
    "ModelServerError": (500, "server_error", "The server had an error"),
    "ModelAuthError": (401, "invalid_api_key", "Incorrect API key provided"),
    "ModelNotFound": (404, "model_not_found", "The model `m` does not exist"),
    "ModelContextOverflow": (400, "context_length_exceeded", "Your input exceeds the context window"),
    "ModelBadRequest": (400, "invalid_value", "Invalid value for 'temperature'"),
}


def items_of(case: ModelCase) -> list[dict[str, Any]]:
    items = [reasoning(case.thinking, encrypted_content="e")] if case.thinking else []
    items += [message(case.text)] if case.text else []
    for number, call in enumerate(case.calls):
        item = {"id": f"fc_{number}", "type": "function_call", "call_id": call.id, "name": call.name}
        items.append({**item, "arguments": call.args_text, "status": "completed"})
    return items


def played(case: ModelCase) -> LoopbackAnswer:
    if case.ending == "error":
        status, code, words = REFUSALS[case.error_code]
        headers = {} if case.retry_after is None else {"retry-after": f"{case.retry_after:g}"}
        return LoopbackAnswer.json({"error": {"message": words, "code": code}}, status, headers)
    items = items_of(case)
    if case.ending in ("cut", "hang"):
        events = [one for at, item in enumerate(items) for one in streamed(at, item)]
        deltas = [at for at, one in enumerate(events) if one["type"].endswith(".delta")]
        body = sse([*created(), *events[: deltas[-1]]])
        return LoopbackAnswer.sse(
            body + b"\n", cut_at=len(body), then="stall" if case.ending == "hang" else "close"
        )
    if case.ending == "length":
        cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return LoopbackAnswer.sse(sse(answer(*items, **cut)))
    return LoopbackAnswer.sse(sse(answer(*items)))


@pytest.mark.spec("P-8")
async def test_the_contract_kit() -> None:
    async def make(case: ModelCase) -> Wired:
        server = await Loopback(played(case)).__aenter__()
        model = load_model("openai:m", base_url=server.url)

        async def finish() -> None:
            await model.close()
            await server.__aexit__(None, None, None)

        return Wired(
            model,
            closed=server.no_connections,
            finish=finish,
            sent=lambda: [request.body for request in server.requests],
        )

    report = await check_model(make)
    assert report.skipped == {}


@pytest.mark.spec("P-10")
@pytest.mark.parametrize("kind", ["openai", "azure"])
async def test_an_official_client_that_brings_authentication(kind: str) -> None:
    good = LoopbackAnswer.sse(b"".join(GOOD["openai-responses"]))
    refused = LoopbackAnswer.json({"error": {"message": "slow down"}}, 429, {"retry-after": "3"})
    cut = LoopbackAnswer.sse(good.body, cut_at=300)
    async with Loopback(good, refused, cut) as server:
        if kind == "azure":
            client = openai.AsyncAzureOpenAI(
                azure_endpoint=server.url, azure_ad_token="entra-token", api_version="2025-01-01"
            )
        else:
            client = openai.AsyncOpenAI(api_key="entra-token", base_url=f"{server.url}/v1")
        model = OpenAIResponsesModel("m", client=client, max_tokens=70, extra_body={"top_k": 3})
        found = outcome_of(await collect(model))
        assert (found.text, found.calls, found.finish) == (TEXT, [("get_weather", ARGUMENTS)], "tool_calls")
        error = outcome_of(await collect(model)).error
        assert (error.error_code, error.retry_after) == ("ModelRateLimited", 3)
        assert outcome_of(await collect(model)).error.error_code == "ModelServerError"
        assert len(server.requests) == 3, "an adapter never tries again by itself"
        first = server.requests[0]
        assert first.headers["authorization"] == "Bearer entra-token"
        assert (first.json["max_output_tokens"], first.json["top_k"], first.json["stream"]) == (70, 3, True)
        assert first.path.startswith("/openai/responses" if kind == "azure" else "/v1/responses")
        await client.close()


@pytest.mark.spec("P-11", "D-10")
async def test_text_is_passed_on_while_the_answer_is_open() -> None:
    events = [*created(), *streamed(0, message("Hello, you."))]
    last = next(at for at, one in enumerate(events) if one["type"].endswith("text.delta"))
    body = sse(events[: last + 1])
    async with Loopback(LoopbackAnswer.sse(body + b"\n", cut_at=len(body), then="stall")) as server:
        model = OpenAIResponsesModel("m", base_url=server.url)
        stream = model.stream([])
        kinds = [(await anext(stream)).kind for _ in range(2)]
        assert kinds == ["start", "text"]
        await stream.aclose()
        await server.no_connections()
        await model.close()


@pytest.mark.spec("P-4")
async def test_a_server_that_counts_wrongly_is_still_heard() -> None:
    """An event that never comes holds the others back for a while, not for ever."""
    whole = [*created(), *streamed(0, message("Hello, you. " * 9)), ended()]
    numbered = [{**one, "sequence_number": at if at < 4 else at + 1} for at, one in enumerate(whole)]
    body = sse(numbered[:20])
    async with Loopback(LoopbackAnswer.sse(body + b"\n", cut_at=len(body), then="stall")) as server:
        model = OpenAIResponsesModel("m", base_url=server.url)
        stream = model.stream([])
        text = ""
        while len(text) < 20:
            delta = await anext(stream)
            text += delta.payload.text_delta if delta.kind == "text" else ""
        await stream.aclose()
        await model.close()


async def test_a_keepalive_keeps_the_answer_alive() -> None:
    body = sse([*created(), {"type": "keepalive"}, *streamed(0, message("Hi.")), event("x.y"), ended()])
    async with Loopback(LoopbackAnswer.sse(body, pieces=50, piece_delay=0.001)) as server:
        model = OpenAIResponsesModel("m", base_url=server.url, timeout_silence=5.0)
        found = outcome_of(await collect(model))
        assert (found.text, found.finish) == ("Hi.", "stop")
        await model.close()
