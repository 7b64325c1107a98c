"""What the contract kit asks of one finished stream, and of the request before it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import cast

import msgspec

from turnlog.contract import (
    CODES,
    AgentError,
    DeltaGrammar,
    DoneDelta,
    ErrorDelta,
    JsonObject,
    MessageDelta,
    StartDelta,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallStartDelta,
    UsageDelta,
    decode,
    encode,
    parse_arguments,
)

from ._model_cases import FOREIGN, ModelCase

_OUR_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


class Answer:
    """One finished stream, checked for what holds of every stream."""

    def __init__(self, deltas: list[MessageDelta]) -> None:
        self.deltas = deltas
        self.text: list[str] = []
        self.thinking = ""
        self.calls: dict[str, tuple[str, str]] = {}
        self.ended: list[str] = []
        self.usage: list[TokenUsage] = []
        self.error: AgentError | None = None
        self.finish_reason: str | None = None
        grammar = DeltaGrammar()
        for delta in deltas:
            broken = grammar.check(delta.kind, getattr(delta.payload, "tool_call_id", None), delta.seq)
            expect(broken is None, f"the delta grammar is broken: {broken}")
            expect(delta.provider_raw is None, "a delta carries providerRaw, which must be off by default")
            again: MessageDelta = decode(encode(delta), MessageDelta)
            expect(again == delta, f"a {delta.kind} delta does not read back")
            self._take(delta)
        expect(grammar.state == "ended", "the stream has no done and no error")

    def _take(self, delta: MessageDelta) -> None:
        match delta:
            case TextDelta():
                self.text += [delta.payload.text_delta] if delta.payload.text_delta else []
            case ThinkingDelta():
                self.thinking += delta.payload.text_delta
            case ToolCallStartDelta():
                _check_call_id(delta)
                self.calls[delta.payload.tool_call_id] = (delta.payload.tool_name, "")
            case ToolCallArgsDelta():
                name, text = self.calls[delta.payload.tool_call_id]
                self.calls[delta.payload.tool_call_id] = (name, text + delta.payload.args_text_delta)
            case ToolCallEndDelta():
                self.ended.append(delta.payload.tool_call_id)
            case UsageDelta():
                _check_usage(delta.payload, self.usage)
                self.usage.append(delta.payload)
            case DoneDelta():
                self.finish_reason = delta.payload.finish_reason
            case ErrorDelta():
                code = delta.payload.error_code
                expect(code in CODES, f"the error code {code!r} is not one of ours")
                self.error = AgentError(
                    code,
                    delta.payload.message or "",
                    retryable=delta.payload.retryable,
                    meta={"retry_after": delta.payload.retry_after},
                )
            case StartDelta():
                pass


def _check_call_id(delta: ToolCallStartDelta) -> None:
    call_id, data = delta.payload.tool_call_id, delta.payload.provider_data
    expect(bool(_OUR_ID.fullmatch(call_id)), f"{call_id!r} is not one of our call ids")
    expect(
        data is not None and bool(data.get("origin")),
        f"call {call_id} has no providerData with an origin; the provider's own id belongs there",
    )
    expect((data or {}).get("id") != call_id, "the provider's call id is used as ours")


def _check_usage(usage: TokenUsage, earlier: list[TokenUsage]) -> None:
    counts = (usage.input_tokens, usage.output_tokens, usage.total_tokens)
    expect(min(counts) >= 0, f"usage counts below zero: {counts}")
    if earlier:
        expect(
            usage.output_tokens >= earlier[-1].output_tokens,
            "usage is not cumulative: output tokens went down",
        )


def check_whole(answer: Answer, case: ModelCase) -> None:
    expect(answer.error is None, f"expected an answer, found {answer.error}")
    expect("".join(answer.text) == case.text, f"text is {''.join(answer.text)!r}, expected {case.text!r}")
    if case.text:
        expect(len(answer.text) > 1, "the text came in one piece; increments must be passed on as they come")
    expect(answer.thinking == case.thinking, f"thinking is {answer.thinking!r}, expected {case.thinking!r}")
    found = [_comparable(*answer.calls[call_id]) for call_id in answer.ended]
    expected = [_comparable(call.name, call.args_text) for call in case.calls]
    expect(sorted(found) == sorted(expected), f"calls are {found}, expected {expected}")
    expect(
        answer.finish_reason == case.ending,
        f"finishReason is {answer.finish_reason!r}, expected {case.ending!r}",
    )


def _comparable(name: str, args_text: str) -> tuple[str, str]:
    """A protocol may carry arguments parsed; what does not parse must come through to the letter."""
    arguments = parse_arguments(args_text).arguments
    return name, args_text if arguments is None else encode(sorted(arguments.items())).decode()


def check_cut(answer: Answer, case: ModelCase) -> None:
    expect(answer.error is not None, "a source that stopped without its end mark was taken as a whole answer")
    assert answer.error is not None
    expect(answer.error.retryable, f"a cut must be retryable, found {answer.error!r}")
    expect(answer.error.category == "model", f"a cut gave the code {answer.error.code}")
    expect(case.text.startswith("".join(answer.text)), f"text is {''.join(answer.text)!r}")
    expect(len(answer.ended) < max(1, len(case.calls)), "a call that was cut short was handed on as complete")


def check_error(answer: Answer, case: ModelCase) -> None:
    expect(answer.error is not None, "a refusal was taken as an answer")
    assert answer.error is not None
    expect(
        answer.error.code == case.error_code,
        f"the error is {answer.error.code} ({answer.error.message}), expected {case.error_code}",
    )
    expected = CODES[case.error_code].retryable
    expect(answer.error.retryable == expected, f"retryable is {answer.error.retryable}, expected {expected}")
    expect(bool(answer.error.message), "the error has no message")
    expect(
        answer.error.retry_after == case.retry_after or case.retry_after is None,
        f"retryAfter is {answer.error.retry_after}, expected {case.retry_after}",
    )


# ── what was sent ──

_NAME_KEYS = ("name", "tool_name", "toolName")
_ID_KEYS = ("id", "tool_call_id", "tool_use_id", "toolUseId", "call_id")
_WIRE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_sent(body: object) -> None:
    """What no provider takes, whatever its protocol: names of any form, calls without results, and what
    belongs to another provider."""
    found = msgspec.json.decode(body) if isinstance(body, bytes) else body
    text = msgspec.json.encode(found).decode()
    for word in FOREIGN:
        expect(word not in text, f"the request holds {word!r}, which only another provider understands")
    nodes = list(_nodes(found))
    for node in nodes:
        for key in _NAME_KEYS:
            name = node.get(key)
            expect(
                not isinstance(name, str) or _WIRE_NAME.fullmatch(name) is not None,
                f"the request names a tool {name!r}; providers take 64 letters, digits, _ and -",
            )
    ids = Counter(node[key] for node in nodes for key in _ID_KEYS if isinstance(node.get(key), str))
    for call_id, count in ids.items():
        expect(count > 1, f"the id {call_id!r} appears once: a call and its result are apart")
    if not ids:
        calls = sum(len(node["tool_calls"]) for node in nodes if isinstance(node.get("tool_calls"), list))
        calls += sum("functionCall" in node for node in nodes)
        results = sum(node.get("role") == "tool" or "functionResponse" in node for node in nodes)
        expect(calls == results, f"the request holds {calls} calls and {results} results")


def _nodes(value: object) -> Iterator[JsonObject]:
    """All objects inside a JSON value, but for schemas and arguments, which may hold anything."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _nodes(item)
    elif isinstance(value, dict):
        known = cast("JsonObject", value)
        yield known
        for key, inner in known.items():
            if key not in ("parameters", "input_schema", "inputSchema", "input", "args", "arguments", "json"):
                yield from _nodes(inner)
