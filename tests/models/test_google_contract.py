"""The contract kit, played by a server that speaks generateContent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.google_wire import call, google, piece, sse
from turnlog.contract import parse_arguments
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, Wired, check_model

REFUSALS: dict[str, tuple[int, str, str]] = {
    "ModelRateLimited": (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted."),
    "ModelOverloaded": (503, "UNAVAILABLE", "The model is overloaded."),
    "ModelServerError": (500, "INTERNAL", "Internal error encountered."),
    "ModelAuthError": (403, "PERMISSION_DENIED", "Permission denied."),
    "ModelNotFound": (404, "NOT_FOUND", "models/m is not found."),
    "ModelContextOverflow": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (9) exceeds the maximum number of tokens allowed (8).",
    ),
    "ModelBadRequest": (400, "INVALID_ARGUMENT", "Request contains an invalid argument."),
}
STOPS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}


def pieces(words: str) -> list[str]:
    return [words[at : at + 5] for at in range(0, len(words), 5)]


def played(case: ModelCase) -> LoopbackAnswer | None:
    if case.ending == "error":
        status, kind, message = REFUSALS[case.error_code]
        headers = {} if case.retry_after is None else {"retry-after": f"{case.retry_after:g}"}
        error = {"error": {"code": status, "status": kind, "message": message}}
        return LoopbackAnswer.json(error, status, headers)
    events: list[dict[str, Any]] = [piece({"text": part, "thought": True}) for part in pieces(case.thinking)]
    events += [piece({"text": part}) for part in pieces(case.text)]
    for one in case.calls:
        if parse_arguments(one.args_text).arguments is None:
            return None  # arguments are an object of the protocol: they cannot fail to parse
        events.append(piece(call(one.name, json.loads(one.args_text or "{}"), id=one.id)))
    if case.ending in STOPS:
        return LoopbackAnswer.sse(sse(*events, piece(finish=STOPS[case.ending])))
    body = sse(*events)[:-20] if case.calls else sse(*events[:-1])
    then = "stall" if case.ending == "hang" else "close"
    return LoopbackAnswer.sse(body + b"\n", cut_at=len(body), then=then, pieces=64)


async def make(case: ModelCase) -> Wired | None:
    answer = played(case)
    if answer is None:
        return None
    server = await Loopback(answer).__aenter__()
    model = google(server)

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
    assert list(report.skipped) == ["answer: bad_arguments"], report.skipped
