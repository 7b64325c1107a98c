"""Refusals in the words of many providers, and what they are to us."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnlog.contract import CODES, AgentError, Secret
from turnlog.models._faults import map_fault, map_stream_fault


def fault(status: int, body: object = b"", **headers: str) -> AgentError:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return map_fault(status, named, raw, "someone", now=1_700_000_000.0)


def openai(message: str, kind: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


OVERFLOWS: list[tuple[int, object]] = [
    (
        400,
        openai(
            "This model's maximum context length is 128000 tokens. However, …",
            None,
            "context_length_exceeded",
        ),
    ),
    (400, openai("Your input exceeds the context window of this model.", "invalid_request_error")),
    (400, openai("Input tokens exceed the configured limit of 272000 tokens.", "invalid_request_error")),
    (
        429,
        openai(
            "Request too large for gpt-4 on tokens per min (TPM): Limit 10000, Requested 20000.", "tokens"
        ),
    ),
    (
        400,
        {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}},
    ),
    (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            },
        },
    ),
    (
        413,
        {
            "type": "error",
            "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"},
        },
    ),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "The input token count (9) exceeds the maximum number of tokens allowed (8).",
                "status": "INVALID_ARGUMENT",
            }
        },
    ),
    (400, {"message": "Input is too long for requested model."}),
    (400, {"message": "The model returned the following errors: Input tokens exceeded the limit"}),
    (
        400,
        openai(
            "the request exceeds the available context size. try increasing it",
            "exceed_context_size_error",
            400,
        ),
    ),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
    (400, openai("The decoder prompt (length 9000) is longer than the maximum model length of 4096.")),
    (400, {"message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"}),
    (400, openai("Please reduce the length of the messages or completion.", "invalid_request_error")),
    (
        413,
        openai(
            "Request too large for model `llama` … please reduce your message size and try again.", "tokens"
        ),
    ),
    (400, {"error": {"message": "This endpoint's maximum context length is 8192 tokens.", "code": 400}}),
    (400, {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    (400, openai("Invalid request: Your request exceeded model token limit: 8192")),
    (400, openai("Range of input length should be [1, 30720]", "invalid_request_error")),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097."}),
    (400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
    (400, {"error": {"code": "1261", "message": "Prompt 超长"}}),
    (
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    ),
    (500, openai("Context size has been exceeded.", "server_error")),
    (
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": '{"message":"prompt is too long: 3 tokens > 2 maximum"}'},
            }
        },
    ),
]

NOT_OVERFLOWS: list[tuple[int, object, str]] = [
    (
        400,
        openai("max_tokens is too large: 200000. This model supports at most 16384 completion tokens."),
        "ModelBadRequest",
    ),
    (
        429,
        openai(
            "Rate limit reached on tokens per min. Please try again in 1.4s.", "tokens", "rate_limit_exceeded"
        ),
        "ModelRateLimited",
    ),
    (
        400,
        openai("Invalid 'messages[0].content': expected a string", "invalid_request_error"),
        "ModelBadRequest",
    ),
    (429, {"message": "Too many tokens, please wait before trying again."}, "ModelRateLimited"),
]

OTHERS: list[tuple[int, object, str]] = [
    (
        401,
        openai("Incorrect API key provided: sk-x.", "invalid_request_error", "invalid_api_key"),
        "ModelAuthError",
    ),
    (403, openai("You are not allowed to sample from this model", "invalid_request_error"), "ModelAuthError"),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "API key not valid.",
                "status": "INVALID_ARGUMENT",
                "details": [{"reason": "API_KEY_INVALID"}],
            }
        },
        "ModelAuthError",
    ),
    (
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xx"},
        "ModelAuthError",
    ),
    (403, {"message": "The security token included in the request is invalid."}, "ModelAuthError"),
    (
        404,
        openai("The model `x` does not exist", "invalid_request_error", "model_not_found"),
        "ModelNotFound",
    ),
    (
        403,
        openai("Project `p` does not have access to model `x`", "invalid_request_error", "model_not_found"),
        "ModelNotFound",
    ),
    (400, {"message": "The provided model identifier is invalid."}, "ModelNotFound"),
    (400, {"error": {"message": "foo/bar is not a valid model ID", "code": 400}}, "ModelNotFound"),
    (
        400,
        {
            "object": "error",
            "message": "Invalid model: mistral-giant",
            "type": "invalid_model",
            "code": "1500",
        },
        "ModelNotFound",
    ),
    (404, {"error": "model 'llama9' not found, try pulling it first"}, "ModelNotFound"),
    (
        400,
        openai("The model `x` has been decommissioned", "invalid_request_error", "model_decommissioned"),
        "ModelNotFound",
    ),
    (402, openai("Insufficient Balance", "unknown_error", "invalid_request_error"), "ModelQuotaExceeded"),
    (
        429,
        openai(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        "ModelQuotaExceeded",
    ),
    (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the API.",
            },
        },
        "ModelQuotaExceeded",
    ),
    (
        403,
        {
            "code": "x",
            "error": "Your team has used all available credits or reached its monthly spending limit.",
        },
        "ModelQuotaExceeded",
    ),
    (
        429,
        {
            "error": {
                "code": 429,
                "message": "Quota exceeded for metric … limit: 15, per minute",
                "status": "RESOURCE_EXHAUSTED",
                "details": [{"retryDelay": "34.07s"}],
            }
        },
        "ModelRateLimited",
    ),
    (
        429,
        {
            "error": {
                "code": 429,
                "message": "You exceeded your current quota, please check your plan. Limit: PerDay",
                "status": "RESOURCE_EXHAUSTED",
            }
        },
        "ModelQuotaExceeded",
    ),
    (429, {"message": "Service tier capacity exceeded for this model."}, "ModelRateLimited"),
    (429, openai("The engine is currently overloaded", "engine_overloaded_error"), "ModelOverloaded"),
    (
        403,
        openai("Access denied: is your account in good standing?", None, "Arrearage"),
        "ModelQuotaExceeded",
    ),
    (400, openai("Budget has been exceeded! Max budget: 10", "budget_exceeded", "400"), "ModelQuotaExceeded"),
    (400, openai("Invalid model name passed in model=x", "invalid_request_error", "400"), "ModelNotFound"),
    (
        400,
        openai(
            "Invalid 'messages[3].tool_calls[0].id': string too long. Expected maximum length 40, found 64.",
            "invalid_request_error",
            "string_above_max_length",
        ),
        "ModelBadRequest",
    ),
    (
        504,
        {"error": {"code": 504, "message": "Please try again.", "status": "DEADLINE_EXCEEDED"}},
        "ModelTimeout",
    ),
    (503, b"upstream connect error", "ModelOverloaded"),
    (
        529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "ModelOverloaded",
    ),
    (
        500,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "ModelOverloaded",
    ),
    (500, openai("The server had an error", "server_error"), "ModelServerError"),
    (
        502,
        b"<html><head><style>b{}</style></head><body><h1>Bad gateway</h1></body></html>",
        "ModelServerError",
    ),
    (504, b"", "ModelServerError"),
    (520, b"", "ModelServerError"),
    (408, b"", "ModelTimeout"),
    (400, openai("The response was filtered …", None, "content_filter"), "ModelContentFiltered"),
    (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Output blocked by content filtering policy",
            },
        },
        "ModelContentFiltered",
    ),
    (
        400,
        openai("Content Exists Risk", "invalid_request_error", "invalid_request_error"),
        "ModelContentFiltered",
    ),
    (
        400,
        {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."},
        "ModelContentFiltered",
    ),
    (400, openai("Invalid value for 'temperature'", "invalid_request_error"), "ModelBadRequest"),
    (
        422,
        {"detail": [{"loc": ["body", "x"], "msg": "field required", "type": "missing"}]},
        "ModelBadRequest",
    ),
    (405, b"", "ModelBadRequest"),
    (418, b"", "ModelBadRequest"),
    (301, b"", "ModelBadRequest"),
]


@pytest.mark.spec("P-4", "E-1")
@pytest.mark.parametrize(("status", "body"), OVERFLOWS)
def test_overflow_in_whichever_words(status: int, body: object) -> None:
    error = fault(status, body)
    assert (error.code, error.retryable) == ("ModelContextOverflow", False)


@pytest.mark.spec("P-4", "E-1")
@pytest.mark.parametrize(("status", "body", "code"), NOT_OVERFLOWS + OTHERS)
def test_refusals(status: int, body: object, code: str) -> None:
    error = fault(status, body)
    assert error.code == code
    assert error.retryable == CODES[code].retryable
    assert error.message.startswith("someone answered")
    assert error.meta["status"] == status


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    "status", [*range(300, 309), *range(400, 432), 451, 498, 499, *range(500, 512), 520, 529, 598]
)
def test_every_status_has_a_code(status: int) -> None:
    error = fault(status, {"error": {"message": "no"}}, retry_after="3")
    assert error.code.startswith("Model")
    assert error.code != "ModelUnknownError"
    assert error.retryable == (status in (408, 429, 498, 499) or status >= 500)
    assert error.retry_after == 3


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, "ModelOverloaded"),
        (
            {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}},
            "ModelServerError",
        ),
        ({"error": {"message": "boom", "code": 502}}, "ModelServerError"),
        (
            {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500},
            "ModelServerError",
        ),
        ({"code": "insufficient_quota", "message": "You exceeded your current quota"}, "ModelQuotaExceeded"),
        (
            {"error": {"code": 499, "status": "CANCELLED", "message": "The operation was cancelled."}},
            "ModelServerError",
        ),
        ({"error": {"type": "rate_limit_error", "message": "slow down"}}, "ModelRateLimited"),
        ({"error": {"message": "prompt is too long: 3 tokens > 2"}}, "ModelContextOverflow"),
        ("llama runner process has terminated: exit status 2", "ModelServerError"),
        ({"error": {"message": "Compute error."}}, "ModelServerError"),
        ({"error": "POST predict: Post http://127.0.0.1:4/completion: EOF"}, "ModelServerError"),
        ({"code": "cyber_policy", "message": "not this"}, "ModelContentFiltered"),
        ("something odd happened", "ModelUnknownError"),
        (None, "ModelUnknownError"),
        ([1, 2], "ModelUnknownError"),
    ],
)
def test_errors_in_the_middle_of_a_stream(error: object, code: str) -> None:
    assert map_stream_fault(error, "someone").code == code


def test_a_tool_call_the_server_threw_away_may_be_tried_again() -> None:
    error = fault(400, openai("Failed to call a function.", "invalid_request_error", "tool_use_failed"))
    assert (error.code, error.retryable) == ("ModelBadRequest", True)


@pytest.mark.spec("P-4", "L-6")
@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry_after": "7"}, b"", 7.0),
        ({"retry_after": "0.5"}, b"", 0.5),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:50 GMT"}, b"", 30.0),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:00 GMT"}, b"", 0.0),
        ({"retry_after_ms": "1400", "retry_after": "2"}, b"", 1.4),
        ({"retry_after": "soon"}, b"", None),
        ({"retry_after": "-5"}, b"", None),
        ({"x_ratelimit_remaining_tokens": "0", "x_ratelimit_reset_tokens": "1m30.5s"}, b"", 90.5),
        ({"x_ratelimit_remaining_requests": "9", "x_ratelimit_reset_requests": "20m"}, b"", None),
        (
            {
                "anthropic_ratelimit_tokens_remaining": "0",
                "anthropic_ratelimit_tokens_reset": "2023-11-14T22:14:20Z",
            },
            b"",
            60.0,
        ),
        ({}, {"error": {"details": [{"@type": "…/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}}, 34.5),
        ({}, {"error": {"metadata": {"headers": {"X-RateLimit-Reset": "1700000012000"}}}}, 12.0),
        ({}, openai("Rate limit reached. Please try again in 7m54.5s."), 474.5),
        ({}, openai("Please try again in 350ms."), 0.35),
        ({}, openai("Please retry after 20 seconds."), 20.0),
        ({}, openai("Please wait."), None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], body: object, seconds: float | None) -> None:
    assert fault(429, body, **headers).retry_after == pytest.approx(seconds)


@pytest.mark.spec("E-3")
def test_a_key_in_a_refusal_is_cut_out() -> None:
    Secret("sk-canary-0123456789")
    error = fault(401, openai("Incorrect API key provided: sk-canary-0123456789"))
    assert "canary" not in str(error)
    assert "[secret]" in str(error)


@pytest.mark.spec("E-2")
def test_messages_say_what_to_do() -> None:
    assert "check the API key" in fault(401).message
    assert "set base_url to where it points" in fault(302, b"", location="https://else.where/v1").message
    assert "Bad gateway" in fault(502, b"<html><body>Bad gateway</body></html>").message
    assert len(fault(400, openai("x" * 10_000)).message) < 1000
