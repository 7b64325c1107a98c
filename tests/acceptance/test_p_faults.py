"""P. Models: what becomes of a provider's errors, and the kit that every adapter is held to."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from acceptance.wires import (
    ANTHROPIC,
    CHAT,
    CONVERSE,
    GEMINI,
    HELLO,
    KEY,
    NO_THINKING,
    RESPONSES,
    Protocol,
    Says,
    every,
    line_to,
)
from turnlog import AgentError, load_model
from turnlog.contract import CODES, StreamDone, TextChunk, encode
from turnlog.models import Model
from turnlog.testing import Loopback, LoopbackAnswer, ModelCase, ScriptedModel, Wired, check_model

# ── P-4 ──

SLOW = {"retry-after": "7"}
FAULTS: dict[str, dict[str, tuple[int, str, str]]] = {
    "openai-chat": {
        "ModelRateLimited": (429, "rate_limit_exceeded", "Rate limit reached for requests"),
        "ModelOverloaded": (503, "server_overloaded", "The engine is currently overloaded"),
        "ModelServerError": (500, "server_error", "The server had an error"),
        "ModelAuthError": (401, "invalid_api_key", "Incorrect API key provided"),
        "ModelQuotaExceeded": (429, "insufficient_quota", "You exceeded your current quota, check your plan"),
        "ModelNotFound": (404, "model_not_found", "The model `m` does not exist"),
        "ModelContextOverflow": (400, "context_length_exceeded", "maximum context length is 8 tokens"),
        "ModelBadRequest": (400, "invalid_request_error", "Unknown parameter: 'x'"),
        "ModelContentFiltered": (400, "content_filter", "The response was filtered"),
    },
    "anthropic-messages": {
        "ModelRateLimited": (429, "rate_limit_error", "This request would exceed your rate limit"),
        "ModelOverloaded": (529, "overloaded_error", "Overloaded"),
        "ModelServerError": (500, "api_error", "Internal server error"),
        "ModelAuthError": (401, "authentication_error", "invalid x-api-key"),
        "ModelQuotaExceeded": (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the API",
        ),
        "ModelNotFound": (404, "not_found_error", "model: m"),
        "ModelContextOverflow": (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
        "ModelBadRequest": (400, "invalid_request_error", "max_tokens: Field required"),
    },
    "gemini": {
        "ModelRateLimited": (429, "RESOURCE_EXHAUSTED", "Resource has been exhausted, try again later"),
        "ModelOverloaded": (503, "UNAVAILABLE", "The model is overloaded"),
        "ModelServerError": (500, "INTERNAL", "An internal error has occurred"),
        "ModelAuthError": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
        "ModelNotFound": (404, "NOT_FOUND", "models/m is not found for API version v1beta"),
        "ModelContextOverflow": (
            400,
            "INVALID_ARGUMENT",
            "The input token count (9) exceeds the maximum number of tokens allowed (8)",
        ),
        "ModelBadRequest": (400, "INVALID_ARGUMENT", "Invalid JSON payload received"),
    },
    "bedrock-converse": {
        "ModelRateLimited": (429, "ThrottlingException", "Too many requests, please wait"),
        "ModelOverloaded": (503, "ServiceUnavailableException", "Bedrock is unable to process your request"),
        "ModelServerError": (500, "InternalServerException", "An unexpected error occurred"),
        "ModelAuthError": (403, "AccessDeniedException", "You don't have access to the model"),
        "ModelNotFound": (404, "ResourceNotFoundException", "Could not resolve the foundation model"),
        "ModelContextOverflow": (400, "ValidationException", "Input is too long for requested model."),
        "ModelBadRequest": (400, "ValidationException", "The value at toolConfig is not valid"),
    },
}
FAULTS["openai-responses"] = FAULTS["openai-chat"]


@every
@pytest.mark.spec("P-4")
async def test_every_refusal_becomes_its_code(protocol: Protocol) -> None:
    for code, fault in FAULTS[protocol.name].items():
        async with line_to(
            protocol, protocol.refusal(*fault, headers=SLOW if "Rate" in code else None)
        ) as line:
            deltas = await line.ask()
        assert [delta.kind for delta in deltas] == ["start", "error"] or [d.kind for d in deltas] == ["error"]
        error = deltas[-1].payload
        assert (error.error_code, error.retryable) == (code, CODES[code].retryable), fault
        assert error.retry_after == (7 if "Rate" in code else None)
        assert fault[2] in error.message, "in the provider's own words"


@every
@pytest.mark.spec("P-4")
async def test_every_broken_line_becomes_its_code(protocol: Protocol) -> None:
    says = Says("A long answer that is never finished.")

    async def ends(answer: LoopbackAnswer, **options: Any) -> Any:
        async with line_to(protocol, answer, **options) as line:
            return (await line.ask())[-1].payload

    cut = await ends(protocol.cut(says, 3))
    assert cut.error_code in ("ModelServerError", "ModelProtocolError") and cut.retryable
    nonsense = await ends(
        LoopbackAnswer(body=b"<html>It works!</html>", headers={"content-type": "text/html"})
    )
    assert nonsense.error_code in CODES and nonsense.error_code.startswith("Model")
    async with Loopback(protocol.answer(says)) as server:
        address = server.url
    model = protocol.load(address)  # nobody listens there any more
    gone = [delta async for delta in model.stream(HELLO)][-1].payload
    await model.close()
    assert (gone.error_code, gone.retryable) == ("ModelUnreachable", True) and address[7:] in gone.message
    if protocol is not CONVERSE:  # its client, handed in, has time limits of its own
        silent = await ends(protocol.answer(says, cut_at=-1, then="stall"), timeout_first_byte=0.05)
        assert (silent.error_code, silent.retryable) == ("ModelTimeout", True)


@every
@pytest.mark.spec("P-4", "P-10")
async def test_no_exception_of_a_client_comes_out_and_a_mapper_sees_it_first(protocol: Protocol) -> None:
    class Odd(Exception):
        pass

    class Breaking(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            raise Odd("nobody knows this")

    class Client:
        def converse_stream(self, **arguments: Any) -> Any:
            raise Odd("nobody knows this")

    def mapper(error: BaseException) -> AgentError | None:
        return AgentError("ModelOverloaded", "mapped") if isinstance(error, Odd) else None

    async with httpx2.AsyncClient(transport=Breaking()) as http:
        client: Any = Client() if protocol is CONVERSE else http
        options = {**protocol.options, "client": client}
        options |= {} if protocol is CONVERSE else {"base_url": "http://127.0.0.1:9", "api_key": KEY}
        plain = [d async for d in load_model(protocol.model, **options).stream(HELLO)]
        mapped = [d async for d in load_model(protocol.model, **options, error_mapper=mapper).stream(HELLO)]
    assert plain[-1].payload.error_code == "ModelUnknownError" and not plain[-1].payload.retryable
    assert (mapped[-1].payload.error_code, mapped[-1].payload.message) == ("ModelOverloaded", "mapped")


# ── P-8 ──


def played(protocol: Protocol, case: ModelCase) -> LoopbackAnswer | None:
    if case.ending == "error":
        headers = {} if case.retry_after is None else {"retry-after": f"{case.retry_after:g}"}
        return protocol.refusal(*FAULTS[protocol.name][case.error_code], headers=headers)
    lengths = {CHAT: "length", RESPONSES: "max_output_tokens", GEMINI: "MAX_TOKENS"}
    end = lengths.get(protocol, "max_tokens") if case.ending == "length" else ""
    calls = tuple((call.name, call.args_text) for call in case.calls)
    try:
        says = Says(case.text, case.thinking, calls, end)
        if case.ending in ("cut", "hang"):
            events = {CHAT: 3, RESPONSES: 3, ANTHROPIC: 4, GEMINI: 2, CONVERSE: 4}[protocol]
            return protocol.cut(says, events, "stall" if case.ending == "hang" else "close")
        return protocol.answer(says)
    except ValueError:
        return None  # Gemini's arguments are an object of the protocol and always parse


@every
@pytest.mark.spec("P-8")
async def test_our_adapters_pass_the_public_kit(protocol: Protocol) -> None:
    async def make(case: ModelCase) -> Wired | None:
        answer = played(protocol, case)
        if answer is None:
            return None
        server = await Loopback(answer).__aenter__()

        async def finish() -> None:
            await server.__aexit__(None, None, None)

        return Wired(
            protocol.load(server.url, **NO_THINKING.get(protocol, {})),
            closed=server.no_connections,
            finish=finish,
            sent=lambda: [request.body for request in server.requests],
        )

    report = await check_model(make)
    assert list(report.skipped) == (["answer: bad_arguments"] if protocol is GEMINI else [])
    for topic in (
        "answer: text",
        "answer: cut_call",
        "history: a LiveScreen section after the question",
        "history: unknown optional fields",
        "history: a question without attachments",
        "closed in the middle",
        "cancelled",
    ):
        assert topic in report.passed


class Whole(ScriptedModel):
    """Keeps its text back until all of it is there."""

    async def _stream(self, request: Any) -> Any:
        kept = ""
        async for chunk in super()._stream(request):
            if isinstance(chunk, TextChunk):
                kept += chunk.text_delta
                continue
            if isinstance(chunk, StreamDone) and kept:
                yield TextChunk(text_delta=kept)
            yield chunk


class Sure(ScriptedModel):
    """Takes an answer that was cut for a whole one."""

    async def _stream(self, request: Any) -> Any:
        last: Any = None
        async for last in super()._stream(request):
            yield last
        if not isinstance(last, StreamDone):
            yield StreamDone(finish_reason="stop")


class Picky(ScriptedModel):
    """Refuses a history that has what it does not expect."""

    words = ""

    async def _stream(self, request: Any) -> Any:
        if self.words in encode(list(request.messages)).decode():
            raise ValueError("unexpected")
        async for chunk in super()._stream(request):
            yield chunk


@pytest.mark.spec("P-8")
@pytest.mark.parametrize(
    ("kind", "words", "complaint"),
    [
        (Whole, "", "answer: text"),
        (Sure, "", "answer: cut"),
        (Picky, "[LiveScreen]", "LiveScreen"),
        (Picky, '"mood"', "unknown optional fields"),
    ],
    ids=["no increments", "cut taken for whole", "LiveScreen refused", "unknown fields refused"],
)
async def test_the_kit_names_what_an_adapter_gets_wrong(kind: Any, words: str, complaint: str) -> None:
    def make(case: ModelCase) -> Model | None:
        model = kind(default=case.as_turn())
        model.words = words
        return model

    with pytest.raises(AssertionError, match=re.escape(complaint)):
        await check_model(make, limit=5)
