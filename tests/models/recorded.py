"""Recorded exchanges, played to an adapter whole, in pieces and cut; and what must come out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2

from models.adapters_under_test import ENDS_IN_ERROR, NOT_READ, known_protocols, make_model
from spec_report import shared_folder
from turnlog.contract import MessageDelta, user_message
from turnlog.models import Model
from turnlog.testing import Loopback, LoopbackAnswer

FOLDER = shared_folder() / "data" / "streams"


@cache
def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_bytes())


@cache
def exchange_names() -> list[str]:
    """The files of all exchanges that some adapter of ours reads."""
    if not FOLDER.is_dir():
        return []
    known = set(known_protocols())
    names = [f"{path.parent.name}/{path.name}" for path in sorted(FOLDER.glob("*/*.json"))]
    return [name for name in names if load(name)["protocol"] in known]


def body_of(exchange: dict[str, Any]) -> bytes:
    response = exchange["response"]
    if response.get("body_base64"):
        return base64.b64decode(response["body_base64"])
    return (response.get("body_text") or "").encode()


# ── playing ──


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes], failure: Exception | None) -> None:
        self._pieces = pieces
        self._failure = failure

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._failure is not None:
            raise self._failure


class PlayingTransport(httpx2.AsyncBaseTransport):
    """Answers every request in process with the same pieces; ends with ``failure`` when one is given."""

    def __init__(
        self, status: int, headers: dict[str, str], pieces: Sequence[bytes], failure: Exception | None = None
    ) -> None:
        self._answer = (status, headers, pieces, failure)
        self.requests: list[httpx2.Request] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        status, headers, pieces, failure = self._answer
        return httpx2.Response(status, headers=headers, stream=_Pieces(pieces, failure))


async def play_over_http(exchange: dict[str, Any], **fields: Any) -> list[MessageDelta]:
    """The body over a real connection, whole unless ``fields`` of the answer say otherwise."""
    response = exchange["response"]
    fields.setdefault("pieces", response.get("chunk_lengths") or None)
    answer = LoopbackAnswer(
        body=body_of(exchange), status=response["status"], headers=response["headers"], **fields
    )
    async with Loopback(answer) as server:
        model = make_model(exchange["protocol"], server.url)
        deltas = await collect(model)
        await model.close()
    return deltas


async def play_pieces(
    exchange: dict[str, Any], pieces: Sequence[bytes], failure: Exception | None = None
) -> list[MessageDelta]:
    """The body in process, in ``pieces``."""
    response = exchange["response"]
    transport = PlayingTransport(response["status"], response["headers"], pieces, failure)
    async with httpx2.AsyncClient(transport=transport) as client:
        return await collect(make_model(exchange["protocol"], client=client))


async def collect(model: Model, text: str = "hello", **options: Any) -> list[MessageDelta]:
    return [delta async for delta in model.stream([user_message(text)], **options)]


# ── what came out ──


@dataclass
class Outcome:
    """A stream, added up."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ended_calls: int = 0
    usage: Any = None
    finish: str | None = None
    error: Any = None


def outcome_of(deltas: Sequence[MessageDelta]) -> Outcome:
    found = Outcome()
    args: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for delta in deltas:
        match delta.kind:
            case "text":
                found.text += delta.payload.text_delta
            case "thinking":
                found.reasoning += delta.payload.text_delta
            case "tool_call_start":
                names[delta.payload.tool_call_id] = delta.payload.tool_name
                args[delta.payload.tool_call_id] = []
            case "tool_call_args":
                args[delta.payload.tool_call_id].append(delta.payload.args_text_delta)
            case "tool_call_end":
                found.ended_calls += 1
            case "usage":
                found.usage = delta.payload
            case "done":
                found.finish = delta.payload.finish_reason
            case "error":
                found.error = delta.payload
            case _:
                pass
    found.calls = [(name, "".join(args[key])) for key, name in names.items()]
    return found


def bare(deltas: Sequence[MessageDelta]) -> list[tuple[str, Any]]:
    """Deltas without their times; the ids of calls are the same on every run here."""
    return [(delta.kind, delta.payload) for delta in deltas]


# ── what should have ──

FINISH: dict[str, dict[str, set[str]]] = {
    "openai-chat": {
        "stop": {"stop", "tool_calls", "refusal"},
        "eos": {"stop"},
        "length": {"length"},
        "tool_calls": {"tool_calls"},
        "content_filter": {"content_filter"},
    },
    "anthropic-messages": {
        "end_turn": {"stop"},
        "tool_use": {"tool_calls"},
        "max_tokens": {"length"},
        "stop_sequence": {"stop_sequence"},
        "pause_turn": {"pause"},
        "refusal": {"refusal"},
    },
    "openai-responses": {"incomplete:max_output_tokens": {"length"}},
    "gemini": {
        "STOP": {"stop", "tool_calls"},
        "MAX_TOKENS": {"length"},
        "SAFETY": {"content_filter"},
        "RECITATION": {"content_filter"},
        "UNEXPECTED_TOOL_CALL": {"tool_calls"},
        "FAKE_ENUM": {"other"},
    },
}
FINISH["mistral-chat"] = FINISH["openai-chat"]
"""Protocol → what a provider says → what ``done`` may say for it."""

CODES: dict[str, set[str]] = {
    "auth_401": {"ModelAuthError"},
    "auth_as_400": {"ModelAuthError"},
    "forbidden_403": {"ModelAuthError", "ModelContentFiltered"},
    "bad_request_400": {"ModelBadRequest"},
    "validation_422": {"ModelBadRequest"},
    "tool_use_failed_400": {"ModelBadRequest"},
    "not_found_404": {"ModelNotFound"},
    "rate_limit_429": {"ModelRateLimited"},
    "quota_429": {"ModelQuotaExceeded"},
    "overloaded_529": {"ModelOverloaded"},
    "server_503": {"ModelOverloaded"},
    "context_length": {"ModelContextOverflow"},
    "too_large_413": {"ModelContextOverflow"},
    "content_filter_400": {"ModelContentFiltered"},
}
"""What the index calls an error → the codes it may become."""


def check_outcome(exchange: dict[str, Any], found: Outcome) -> None:
    """Compare with what is plainly in the body."""
    expected = exchange["expected"] or {}
    failed = exchange["response"]["status"] >= 400 or expected.get("error") or expected.get("error_required")
    if failed or exchange["id"] in ENDS_IN_ERROR or exchange["id"] in NOT_READ:
        _check_error(exchange, expected, found)
        return
    if expected.get("finish_reason") == "refusal" and not expected.get("blocks"):
        assert found.error.error_code == "ModelRefused" and not found.error.retryable
        return
    assert found.error is None, found.error
    if exchange["expected"] is None:  # not streamed: the index says nothing of what is in it
        assert found.finish
        return
    shown = expected.get("text", "") + expected.get("refusal", "")
    assert found.text == shown
    if "reasoning" in expected:
        assert found.reasoning == expected["reasoning"]
    # Where arguments stream, the index lists every fragment; those without a name go on with the one before.
    calls = [call for call in expected.get("tool_calls") or [] if call["name"]]
    assert [name for name, _ in found.calls] == [call["name"] for call in calls]
    for (_, raw), call in zip(found.calls, calls, strict=True):
        if call["arguments"] is not None:
            _same_arguments(raw, call["arguments"])
    assert found.ended_calls == len(found.calls)
    said = expected.get("finish_reason")
    if isinstance(said, str):
        allowed = FINISH.get(exchange["protocol"], {}).get(said)
        assert allowed is None or found.finish in allowed, (said, found.finish)
    if found.calls:
        assert found.finish == "tool_calls"
    _check_usage(exchange["protocol"], expected.get("usage"), found)


def _check_error(exchange: dict[str, Any], expected: dict[str, Any], found: Outcome) -> None:
    assert found.error is not None and found.finish is None
    if expected.get("partial") and "text" in expected:
        assert found.text == expected["text"]
    for feature in exchange["features"]:
        kind, _, name = feature.partition(":")
        if kind == "error" and name in CODES:
            assert found.error.error_code in CODES[name], (name, found.error)
    if "retryable" in expected:
        assert found.error.retryable == expected["retryable"]
    if "retry_after_s" in expected:
        assert found.error.retry_after == expected["retry_after_s"]
    assert found.error.message


def _same_arguments(raw: str, expected: Any) -> None:
    if isinstance(expected, str):
        if raw == expected:
            return
        expected = json.loads(expected or "{}")
    assert json.loads(raw or "{}") == expected


def _check_usage(protocol: str, raw: Any, found: Outcome) -> None:
    if raw and protocol == "gemini":
        _check_gemini_usage(raw, found.usage)
    if raw and protocol == "openai-responses":
        _check_responses_usage(raw, found.usage)
    if not raw or protocol not in ("openai-chat", "mistral-chat"):
        return
    usage = found.usage
    assert usage is not None
    assert usage.input_tokens == raw["prompt_tokens"]
    assert usage.total_tokens == raw["total_tokens"]
    assert usage.output_tokens in (raw["completion_tokens"], raw["total_tokens"] - raw["prompt_tokens"])
    cached = (raw.get("prompt_tokens_details") or {}).get("cached_tokens")
    assert cached is None or usage.cached_input_tokens == cached


def _check_responses_usage(raw: Any, usage: Any) -> None:
    assert usage.input_tokens == raw["input_tokens"]
    assert usage.output_tokens == raw["output_tokens"]
    assert usage.total_tokens == raw["total_tokens"]
    assert usage.cached_input_tokens == raw["input_tokens_details"]["cached_tokens"]
    assert usage.reasoning_tokens == raw["output_tokens_details"]["reasoning_tokens"]


def _check_gemini_usage(raw: Any, usage: Any) -> None:
    assert usage.input_tokens == raw["promptTokenCount"] + raw.get("toolUsePromptTokenCount", 0)
    thought = raw.get("thoughtsTokenCount")
    assert usage.output_tokens == raw.get("candidatesTokenCount", 0) + (thought or 0)
    assert (usage.total_tokens, usage.reasoning_tokens) == (raw["totalTokenCount"], thought)
    assert usage.cached_input_tokens == raw.get("cachedContentTokenCount")


# ── where to cut ──

TERMINALS: dict[str, re.Pattern[bytes]] = {
    "openai-chat": re.compile(rb'"finish_reason":\s*"'),
    "mistral-chat": re.compile(rb'"finish_reason":\s*"'),
    "anthropic-messages": re.compile(rb'"type":\s*"message_stop"'),
    "openai-responses": re.compile(rb'"type":\s*"response\.(completed|incomplete|failed)"'),
    "gemini": re.compile(rb'"finishReason":\s*"'),
}
"""What marks the event that ends an answer. Before it a clean end of the body is a cut."""


def cut_points(exchange: dict[str, Any], limit: int = 16) -> list[int]:
    """Positions before the terminal event: borders of events, and a few inside them."""
    body = body_of(exchange)
    terminal = TERMINALS[exchange["protocol"]].search(body)
    if terminal is None:
        return []
    borders = [match.end() for match in re.finditer(rb"\r?\n\r?\n", body) if match.end() <= terminal.start()]
    if not borders:
        return []
    step = max(1, len(borders) // limit)
    chosen = sorted({*borders[::step], borders[-1]})
    inside = [at + 9 for at in chosen[::3] if at + 9 < terminal.start()]
    return [0, *chosen, *inside]
