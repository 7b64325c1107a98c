"""The JSON of the design documents, as small as they allow it, is read; so are the names we used before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnlog.contract import (
    AgentError,
    ErrorInfo,
    LoopLimits,
    Message,
    MessageDelta,
    MessagePart,
    RequestMetadata,
    RunInput,
    RunResult,
    TokenUsage,
    ToolCallPart,
    ToolChoice,
    ToolOutcome,
    ToolPolicy,
    ToolResults,
    ToolSpec,
    decode,
    encode,
    results_of,
)

USER = {
    "runId": "r1",
    "role": "user",
    "parts": [{"kind": "text", "payload": {"text": "hi"}}],
    "timestamp": "2026-01-01T00:00:00Z",
}
ANSWER = {**USER, "role": "assistant"}


def part(kind: str, **payload: Any) -> tuple[Any, dict[str, Any]]:
    return MessagePart, {"kind": kind, "payload": payload}


def delta(kind: str, **payload: Any) -> tuple[Any, dict[str, Any]]:
    return MessageDelta, {"runId": "r1", "seq": 1, "kind": kind, "payload": payload, "timestamp": "t"}


EXAMPLES: dict[str, tuple[Any, Any]] = {
    "message": (Message, USER),
    "message with meta": (Message, {**USER, "meta": {"usage": {"inputTokens": 1}, "trace": "t"}}),
    "system message": (Message, {**USER, "role": "system"}),
    "text": part("text", text="hi"),
    "thinking": part("thinking", text="hm"),
    "tool_call": part("tool_call", toolCallId="c1", toolName="add", arguments={"a": 1}),
    "tool_call with raw text": part(
        "tool_call", toolCallId="c1", toolName="add", arguments={"a": 1}, rawArgsText='{"a": 1}'
    ),
    "tool_result text": part("tool_result", toolCallId="c1", isError=False, content="3"),
    "tool_result object": part("tool_result", toolCallId="c1", isError=True, content={"error": "no"}),
    "tool_result parts": part(
        "tool_result", toolCallId="c1", isError=False, content=[{"kind": "text", "payload": {"text": "3"}}]
    ),
    "image data": part("image", mimeType="image/png", data="aGk="),
    "image url": part("image", mimeType="image/png", url="https://example.org/a.png"),
    "file_ref": part("file_ref", path="a.txt"),
    "file_ref whole": part("file_ref", path="a.txt", mimeType="text/plain", size=3),
    "start": delta("start", modelId="m", requestId="q1"),
    "text delta": delta("text", textDelta="hi"),
    "thinking delta": delta("thinking", textDelta="hm"),
    "tool_call_start": delta("tool_call_start", toolCallId="c1", toolName="add"),
    "tool_call_args": delta("tool_call_args", toolCallId="c1", argsTextDelta='{"a":'),
    "tool_call_end": delta("tool_call_end", toolCallId="c1"),
    "usage": delta("usage", inputTokens=1, outputTokens=2, totalTokens=3),
    "usage with cost": delta("usage", inputTokens=1, outputTokens=2, totalTokens=3, cost=0.1),
    "done": delta("done", finishReason="stop"),
    "error": delta("error", errorCode="ModelTimeout"),
    "error whole": delta("error", errorCode="ModelTimeout", message="slow", retryable=True),
    "delta with raw": (MessageDelta, {**delta("done", finishReason="stop")[1], "providerRaw": {"x": 1}}),
    "ToolSpec": (ToolSpec, {"name": "add", "parameterSchema": {"type": "object"}}),
    "ToolSpec whole": (
        ToolSpec,
        {"name": "add", "description": "Adds.", "parameterSchema": {"type": "object"}, "strict": True},
    ),
    "ToolChoice auto": (ToolChoice, "auto"),
    "ToolChoice required": (ToolChoice, "required"),
    "ToolChoice none": (ToolChoice, "none"),
    "ToolChoice one tool": (ToolChoice, {"name": "add"}),
    "requestMetadata": (RequestMetadata, {"sessionId": "s1", "runId": "r1", "traceId": "t1"}),
    "requestMetadata of a call": (RequestMetadata, {"sessionId": "s1", "runId": "r1", "modelCallIndex": 2}),
    "ToolPolicy": (ToolPolicy, {}),
    "ToolPolicy whole": (
        ToolPolicy,
        {
            "enabled": False,
            "allowList": ["add"],
            "maxParallel": 2,
            "maxCallsPerRun": 5,
            "requireApprovalByDefault": True,
        },
    ),
    "LoopLimits": (LoopLimits, {}),
    "LoopLimits whole": (LoopLimits, {"maxIterations": 3, "maxToolRounds": 2, "maxRunDurationMs": 1000}),
    "RunInput": (RunInput, {"inputMessages": [USER]}),
    "RunInput whole": (
        RunInput,
        {
            "sessionId": "s1",
            "runId": "r1",
            "inputMessages": [USER],
            "systemPromptOverride": "Be brief.",
            "allowedTools": ["add"],
            "toolOrder": ["add"],
            "toolPolicy": {"maxParallel": 2},
            "loopLimits": {"maxIterations": 3},
            "autoCreateSession": False,
            "runtimeInitData": {"cwd": "/work"},
            "runtimeHints": {"load": 1},
        },
    ),
    "RunResult": (RunResult, {"sessionId": "s1", "runId": "r1", "status": "aborted"}),
    "RunResult whole": (
        RunResult,
        {
            "sessionId": "s1",
            "runId": "r1",
            "status": "completed",
            "finalAssistantMessage": ANSWER,
            "lastError": {"code": "x", "message": "y", "retryable": False, "category": "model"},
            "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
        },
    ),
    "usage summary": (TokenUsage, {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3, "cost": 0.1}),
    "error value": (
        ErrorInfo,
        {"code": "ToolDenied", "message": "no", "retryable": False, "category": "tool"},
    ),
}
ALWAYS_WRITTEN = {"tool_call": {"rawArgsText": '{"a":1}'}, "ToolSpec": {"description": ""}}
"""What may be left out, and is filled in when it is read."""


@pytest.mark.spec("M-1", "M-2", "D-1")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_read_and_written_again(name: str) -> None:
    kind, plain = EXAMPLES[name]
    value = decode(json.dumps(plain), kind)
    written = json.loads(encode(value))
    if isinstance(plain, dict) and (added := ALWAYS_WRITTEN.get(name)):
        assert {**written.pop("payload", {}), **written}.items() >= added.items()
        assert decode(encode(value), kind) == value
        return
    assert written == plain


def test_a_call_without_its_raw_text_gets_that_of_its_arguments() -> None:
    bare = {
        "kind": "tool_call",
        "payload": {"toolCallId": "c", "toolName": "t", "arguments": {"b": [1, "ä"]}},
    }
    call = decode(json.dumps(bare), ToolCallPart).payload
    assert call.raw_args_text == '{"b":[1,"ä"]}'
    assert b'"rawArgsText":""' in encode(
        decode('{"toolCallId":"c","toolName":"t","arguments":{},"rawArgsText":""}', type(call))
    )
    with pytest.raises(AgentError, match="neither arguments nor their raw text"):
        decode('{"toolCallId":"c","toolName":"t","arguments":null}', type(call))


def test_ids_of_a_run_are_made_where_they_are_not_given() -> None:
    asked = decode(json.dumps(EXAMPLES["RunInput"][1]), RunInput)
    assert (asked.session_id, asked.run_id, asked.auto_create_session) == ("", "", True)
    assert asked.tool_policy == ToolPolicy() and asked.loop_limits == LoopLimits()


@pytest.mark.parametrize("kind", ["thinking", "tool_call", "tool_result"])
def test_a_known_part_in_the_wrong_place_is_not_called_a_newer_one(kind: str) -> None:
    inner = {"kind": kind, "payload": {"text": "x"}}
    body = {"kind": "tool_result", "payload": {"toolCallId": "c", "isError": False, "content": [inner]}}
    with pytest.raises(AgentError, match=f"a '{kind}' cannot stand here .*content") as error:
        decode(json.dumps(body), MessagePart)
    assert error.value.code == "InvalidMessage"


@pytest.mark.spec("M-6")
def test_results_have_a_typed_view() -> None:
    message = {
        "runId": "r1",
        "role": "tool",
        "timestamp": "t",
        "parts": [
            {"kind": "tool_result", "payload": {"toolCallId": "c1", "isError": False, "content": "3"}},
            {"kind": "tool_result", "payload": {"toolCallId": "c2", "isError": True, "content": {"why": 1}}},
        ],
    }
    outcomes = [
        ToolOutcome(tool_call_id="c1", tool_name="add", status="success", elapsed_ms=1500),
        ToolOutcome(tool_call_id="c2", tool_name="look", status="failed"),
    ]
    found = results_of(ToolResults(message=decode(json.dumps(message), Message), outcomes=outcomes))
    assert [(r.tool_name, r.tool_call_id, r.status, r.result, r.elapsed) for r in found] == [
        ("add", "c1", "success", [("", "3")], 1.5),
        ("look", "c2", "failed", [("", '{"why":1}')], None),
    ]
