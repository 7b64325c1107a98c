"""The contract kit, played by a server that speaks the Messages API."""

from __future__ import annotations

from typing import Any

import pytest

from models.anthropic_wire import anthropic, begin, call, end, sse, text, thinking
from turnlog.models import load_model
from turnlog.models.anthropic import AnthropicModel
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model

REFUSALS: dict[str, tuple[int, str, str]] = {
    "ModelRateLimited": (429, "rate_limit_error", "Too many requests."),
    "ModelOverloaded": (529, "overloaded_error", "Overloaded"),
    "ModelServerError": (500, "api_error", "Internal server error"),
    "ModelAuthError": (401, "authentication_error", "invalid x-api-key"),
    "ModelNotFound": (404, "not_found_error", "model: m"),
    "ModelContextOverflow": (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
    "ModelBadRequest": (400, "invalid_request_error", "max_tokens: Field required"),
}
STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def pieces(words: str) -> list[str]:
    return [words[at : at + 5] for at in range(0, len(words), 5)]


def played(case: ModelCase) -> LoopbackAnswer:
    if case.ending == "error":
        status, kind, message = REFUSALS[case.error_code]
        headers = {} if case.retry_after is None else {"retry-after": f"{case.retry_after:g}"}
        return LoopbackAnswer.json(
            {"type": "error", "error": {"type": kind, "message": message}}, status, headers
        )
    events: list[dict[str, Any]] = [begin()]
    index = 0
    if case.thinking:
        events += thinking(index, case.thinking, "sig")
        index += 1
    if case.text:
        events += text(index, *pieces(case.text))
        index += 1
    for one in case.calls:
        events += call(index, one.name, *pieces(one.args_text), id=one.id)
        index += 1
    if case.ending in STOPS:
        return LoopbackAnswer.sse(sse(*events, *end(STOPS[case.ending])))
    body = sse(*events[:-2])  # without the last piece and the block's end
    then = "stall" if case.ending == "hang" else "close"
    return LoopbackAnswer.sse(body + b"\n", cut_at=len(body), then=then, pieces=64)


async def make(case: ModelCase) -> Wired:
    server = await Loopback(played(case)).__aenter__()
    model = anthropic(server)

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
    report = await check_model(make)
    assert report.skipped == {}


def test_it_loads_by_name() -> None:
    model = load_model("anthropic:claude-opus-5-5", max_tokens=10, base_url="http://127.0.0.1:9")
    assert isinstance(model, AnthropicModel)
    info = model.model_info()
    assert (info.context_window, info.max_output_tokens) == (1_000_000, 128_000)
    assert model.supports("images")
    assert not model.supports("forced_tool")
