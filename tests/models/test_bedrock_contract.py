"""The contract kit, played by a server that speaks Converse to a botocore client."""

from __future__ import annotations

import pytest

from models.anthropic_wire import FixedClock, FixedIds
from models.bedrock_wire import CLAUDE, Events, answer, block, call, client_of, converse, end, text
from turnlog.models.bedrock import BedrockModel
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model

REFUSALS: dict[str, tuple[int, str, str]] = {
    "ModelRateLimited": (429, "ThrottlingException", "Too many requests."),
    "ModelOverloaded": (503, "ServiceUnavailableException", "Busy."),
    "ModelServerError": (500, "InternalServerException", "Oops."),
    "ModelAuthError": (403, "UnrecognizedClientException", "The security token is invalid."),
    "ModelNotFound": (404, "ResourceNotFoundException", "No such model."),
    "ModelContextOverflow": (400, "ValidationException", "Input is too long for requested model."),
    "ModelBadRequest": (400, "ValidationException", "A field is wrong."),
}
STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def pieces(words: str) -> list[str]:
    return [words[at : at + 5] for at in range(0, len(words), 5)]


def played(case: ModelCase) -> LoopbackAnswer:
    if case.ending == "error":
        status, kind, message = REFUSALS[case.error_code]
        headers = {"x-amzn-errortype": kind}
        if case.retry_after is not None:
            headers["retry-after"] = f"{case.retry_after:g}"
        return LoopbackAnswer.json({"message": message}, status, headers)
    events: Events = []
    index = 0
    if case.thinking:
        thoughts = [{"reasoningContent": {"text": piece}} for piece in pieces(case.thinking)]
        events += block(index, *thoughts, {"reasoningContent": {"signature": "sig"}})
        index += 1
    if case.text:
        events += text(index, *pieces(case.text))
        index += 1
    for one in case.calls:
        events += call(index, one.name, *pieces(one.args_text), id=one.id)
        index += 1
    if case.ending in STOPS:
        return answer(converse(*events, *end(STOPS[case.ending])))
    body = converse(*events[:-2])
    then = "stall" if case.ending == "hang" else "close"
    return answer(body + b"\0", cut_at=len(body), then=then, pieces=64)


async def make(case: ModelCase) -> Wired:
    server = await Loopback(played(case)).__aenter__()
    client = client_of(server.url)
    model = BedrockModel(CLAUDE, client=client, clock=FixedClock(), ids=FixedIds())

    async def finish() -> None:
        client.close()
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
