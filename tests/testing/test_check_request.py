"""The rules of requests: a good one passes, and each thing done wrong is found and named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from turnlog.testing import check_request

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

GOOD: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": ""},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "openai-responses": {
        "model": "m",
        "store": False,
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look."},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
                ],
            },
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
            {"role": "user", "content": "Thanks."},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "f"},
    },
    "anthropic-messages": {
        "model": "m",
        "max_tokens": 5000,
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look."},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                    {"type": "tool_use", "id": "c2", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
                    {"type": "tool_result", "tool_use_id": "c2", "is_error": True, "content": "no"},
                    {"type": "text", "text": "Go on."},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "Look."}, {"inlineData": {"mimeType": "image/png", "data": PIXEL}}],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "g", "args": {}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": "f", "response": {"output": "one"}}},
                    {"functionResponse": {"name": "g", "response": {"error": "no"}}},
                    {"text": "Go on."},
                ],
            },
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "f", "description": "F.", "parametersJsonSchema": SCHEMA},
                    {"name": "g", "description": "G."},
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    },
    "bedrock-converse": {
        "system": [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}],
        "messages": [
            {
                "role": "user",
                "content": [{"text": "Look."}, {"image": {"format": "png", "source": {"bytes": PIXEL}}}],
            },
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
                    {"toolUse": {"toolUseId": "c1", "name": "f", "input": {"a": 1}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"text": "no"}]}}
                ],
            },
        ],
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": SCHEMA}}}],
            "toolChoice": {"tool": {"name": "f"}},
        },
    },
}

Change = Callable[[Any], Any]


def put(*path: Any) -> Change:
    """Put the last of ``path`` at the place that the others name."""
    *way, last, value = path

    def change(body: Any) -> None:
        for step in way:
            body = body[step]
        body[last] = value

    return change


def drop(*path: Any) -> Change:
    *way, last = path

    def change(body: Any) -> None:
        for step in way:
            body = body[step]
        del body[last]

    return change


def insert(*path: Any) -> Change:
    *way, at, value = path

    def change(body: Any) -> None:
        for step in way:
            body = body[step]
        body.insert(at, value)

    return change


LONG = "x" * 65
CALL = ("messages", 2, "tool_calls", 0)
TURN = ("messages", 1, "content")
MODEL = ("contents", 1, "parts")
USER = ("contents", 2, "parts")

WRONG: list[tuple[str, str, Change]] = [
    # Chat Completions
    ("openai-chat", "no model", put("model", "")),
    ("openai-chat", "no messages", put("messages", [])),
    ("openai-chat", "role 'bot'", put("messages", 0, "role", "bot")),
    ("openai-chat", "messages[6] is blank", put("messages", 6, "content", " ")),
    ("openai-chat", "unknown field thinking", put("messages", 5, "thinking", "Hm.")),
    ("openai-chat", "neither content nor calls", put("messages", 5, "content", None)),
    ("openai-chat", "c2", drop("messages", 4)),
    (
        "openai-chat",
        "answers no call",
        insert("messages", 7, {"role": "tool", "tool_call_id": "c1", "content": "x"}),
    ),
    ("openai-chat", "no open call", put("messages", 4, "tool_call_id", "c9")),
    ("openai-chat", "no result right after", insert("messages", 3, {"role": "user", "content": "Wait."})),
    ("openai-chat", "more than text", put("messages", 3, "content", [{"type": "image_url"}])),
    ("openai-chat", "appears twice", put("messages", 2, "tool_calls", 1, "id", "c1")),
    ("openai-chat", "the id of a call", put(*CALL, "id", "x" * 41)),
    ("openai-chat", "the name of a call", put(*CALL, "function", "name", "a.b")),
    ("openai-chat", "do not parse", put(*CALL, "function", "arguments", '{"a":')),
    ("openai-chat", "no JSON object", put(*CALL, "function", "arguments", "[1]")),
    ("openai-chat", "empty list of calls", put("messages", 5, "tool_calls", [])),
    ("openai-chat", "a text in messages[1]", put("messages", 1, "content", 0, "text", "")),
    (
        "openai-chat",
        "an image in messages[1]",
        put("messages", 1, "content", 1, "image_url", "url", "blob:1"),
    ),
    (
        "openai-chat",
        "not base64",
        put("messages", 1, "content", 1, "image_url", "url", "data:image/png;base64,?"),
    ),
    (
        "openai-chat",
        "image/svg",
        put("messages", 1, "content", 1, "image_url", "url", "data:image/svg;base64,QQ=="),
    ),
    ("openai-chat", "holds a part", put("messages", 0, "content", [{"type": "image_url"}])),
    ("openai-chat", "list of tools is empty", put("tools", [])),
    ("openai-chat", "no tool is named 'z'", put("tool_choice", "function", "name", "z")),
    ("openai-chat", "no schema of an object", put("tools", 0, "function", "parameters", {"type": "string"})),
    ("openai-chat", "leaves an object open", put("tools", 0, "function", "strict", True)),
    ("openai-chat", "stop sequences", put("stop", ["a", "b", "c", "d", "e"])),
    # Responses
    ("openai-responses", "no input", put("input", [])),
    ("openai-responses", "without an output", drop("input", 3)),
    ("openai-responses", "which no call before it has", drop("input", 2)),
    ("openai-responses", "without what followed", drop("input", 2)),
    ("openai-responses", "appears twice", insert("input", 4, GOOD["openai-responses"]["input"][3])),
    ("openai-responses", "stored nowhere", drop("input", 1, "encrypted_content")),
    ("openai-responses", "not rs_", put("input", 1, "id", "x1")),
    ("openai-responses", "the call_id", put("input", 2, "call_id", LONG)),
    ("openai-responses", "part of type 'input_text'", put("input", 4, "content", 0, "type", "input_text")),
    ("openai-responses", "part of type 'output_text'", put("input", 0, "content", 0, "type", "output_text")),
    ("openai-responses", "role 'tool'", put("input", 5, "role", "tool")),
    ("openai-responses", "is blank", put("input", 5, "content", "")),
    ("openai-responses", "no tool is named", put("tool_choice", "name", "z")),
    # Messages
    ("anthropic-messages", "max_tokens", drop("max_tokens")),
    ("anthropic-messages", "begins with the assistant", drop("messages", 0)),
    ("anthropic-messages", "ends with the assistant", drop("messages", 2)),
    ("anthropic-messages", "both user's", insert("messages", 0, {"role": "user", "content": "Hi."})),
    ("anthropic-messages", "role 'tool'", put("messages", 2, "role", "tool")),
    ("anthropic-messages", "is blank", put("messages", 0, "content", 0, "text", "\n")),
    ("anthropic-messages", "no content", put("messages", 0, "content", [])),
    ("anthropic-messages", "answered are ['c2']", drop("messages", 2, "content", 0)),
    (
        "anthropic-messages",
        "before the results",
        insert("messages", 2, "content", 0, {"type": "text", "text": "x"}),
    ),
    ("anthropic-messages", "without a signature", drop(*TURN, 0, "signature")),
    (
        "anthropic-messages",
        "ends with thinking",
        insert(*TURN, 3, GOOD["anthropic-messages"]["messages"][1]["content"][0]),
    ),
    ("anthropic-messages", "began with 'tool_use'", drop(*TURN, 0)),
    ("anthropic-messages", "the id of a call", put(*TURN, 1, "id", "a b")),
    ("anthropic-messages", "appears twice", put(*TURN, 1, "id", "c2")),
    ("anthropic-messages", "the name of a call", put(*TURN, 1, "name", LONG)),
    ("anthropic-messages", "no object", put(*TURN, 1, "input", "{}")),
    ("anthropic-messages", "says nothing", put("messages", 2, "content", 1, "content", "")),
    (
        "anthropic-messages",
        "holds a image block",
        put(*TURN, 1, GOOD["anthropic-messages"]["messages"][0]["content"][1]),
    ),
    (
        "anthropic-messages",
        "of type 'image/bmp'",
        put("messages", 0, "content", 1, "source", "media_type", "image/bmp"),
    ),
    ("anthropic-messages", "but no tools", drop("tools")),
    ("anthropic-messages", "no schema of an object", put("tools", 0, "input_schema", {})),
    ("anthropic-messages", "cache marks", put("tools", 0, "cache_control", {})),
    # Gemini
    ("gemini", "begins with the model", drop("contents", 0)),
    ("gemini", "ends with the model", drop("contents", 2)),
    ("gemini", "role 'assistant'", put("contents", 1, "role", "assistant")),
    ("gemini", "is empty", put("contents", 0, "parts", 0, "text", "")),
    ("gemini", "no parts", put("contents", 0, "parts", [])),
    ("gemini", "called were", drop(*USER, 0)),
    ("gemini", "called were", put(*USER, 0, "functionResponse", "name", "h")),
    ("gemini", "called were", put(*USER, 0, "functionResponse", "id", "x")),
    ("gemini", "before the responses", insert(*USER, 0, {"text": "x"})),
    ("gemini", "carries no signature", drop(*MODEL, 1, "thoughtSignature")),
    ("gemini", "a signature in", put(*MODEL, 1, "thoughtSignature", "not base64!")),
    ("gemini", "carries a thought", put("contents", 0, "parts", 0, "thought", True)),
    ("gemini", "the name of a call", put(*MODEL, 1, "functionCall", "name", "1f")),
    ("gemini", "no object", put(*MODEL, 1, "functionCall", "args", "{}")),
    ("gemini", "no object", put(*USER, 0, "functionResponse", "response", "one")),
    ("gemini", "the type of data", put("contents", 0, "parts", 1, "inlineData", "mimeType", "image/gif")),
    ("gemini", "not base64", put("contents", 0, "parts", 1, "inlineData", "data", "?")),
    (
        "gemini",
        "unknown field const",
        put("tools", 0, "functionDeclarations", 0, "parametersJsonSchema", "const", 1),
    ),
    ("gemini", "not all declared", put("toolConfig", "functionCallingConfig", "allowedFunctionNames", ["z"])),
    ("gemini", "mode that cannot", put("toolConfig", "functionCallingConfig", "mode", "AUTO")),
    ("gemini", "no function is declared", drop("tools")),
    ("gemini", "beside cachedContent", put("cachedContent", "c")),
    ("gemini", "unknown field system", put("system", "x")),
    # Converse
    ("bedrock-converse", "begins with the assistant", drop("messages", 0)),
    ("bedrock-converse", "is blank", put("messages", 0, "content", 0, "text", " ")),
    ("bedrock-converse", "answered are []", put("messages", 2, "content", [{"text": "x"}])),
    (
        "bedrock-converse",
        "without a signature",
        drop(*TURN, 0, "reasoningContent", "reasoningText", "signature"),
    ),
    (
        "bedrock-converse",
        "ends with thinking",
        insert(*TURN, 2, GOOD["bedrock-converse"]["messages"][1]["content"][0]),
    ),
    ("bedrock-converse", "the id of a call", put(*TURN, 1, "toolUse", "toolUseId", LONG)),
    ("bedrock-converse", "holds nothing", put("messages", 2, "content", 0, "toolResult", "content", [])),
    ("bedrock-converse", "has a status", put("messages", 2, "content", 0, "toolResult", "status", "bad")),
    ("bedrock-converse", "the format 'bmp'", put("messages", 0, "content", 1, "image", "format", "bmp")),
    (
        "bedrock-converse",
        "begins with a cache point",
        insert("messages", 0, "content", 0, {"cachePoint": {}}),
    ),
    ("bedrock-converse", "but no tools", drop("toolConfig")),
    ("bedrock-converse", "is blank", put("toolConfig", "tools", 0, "toolSpec", "description", "")),
    ("bedrock-converse", "no tool is named", put("toolConfig", "toolChoice", "tool", "name", "z")),
]


@pytest.mark.parametrize("protocol", GOOD)
def test_a_good_request(protocol: str) -> None:
    check_request(protocol, GOOD[protocol], model="gemini-3-pro")
    check_request(protocol, json.dumps(GOOD[protocol]).encode())


@pytest.mark.parametrize(("protocol", "words", "change"), WRONG, ids=[f"{one[0]}: {one[1]}" for one in WRONG])
def test_what_is_wrong_is_named(protocol: str, words: str, change: Change) -> None:
    body = copy.deepcopy(GOOD[protocol])
    if words == "cache marks":
        mark = {"cache_control": {"type": "ephemeral"}}
        body["system"] = [{"type": "text", "text": "x", **mark} for _ in range(4)]
    change(body)
    with pytest.raises(AssertionError) as caught:
        check_request(protocol, body, model="gemini-3-pro")
    assert words in str(caught.value)
    assert protocol in str(caught.value)


def test_everything_wrong_is_named_at_once() -> None:
    body = copy.deepcopy(GOOD["openai-chat"])
    body["messages"][6]["content"] = ""
    body["tool_choice"]["function"]["name"] = "z"
    with pytest.raises(AssertionError, match="is blank; no tool is named"):
        check_request("openai-chat", body)


def test_a_turn_that_the_provider_goes_on_with() -> None:
    body = copy.deepcopy(GOOD["anthropic-messages"])
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    body["messages"].append({"role": "assistant", "content": [{"type": "text", "text": "Let me."}, search]})
    check_request("anthropic-messages", body)


def test_a_protocol_without_rules() -> None:
    with pytest.raises(ValueError, match="no rules for the protocol 'telex'; there are some for openai-chat"):
        check_request("telex", {})
    with pytest.raises(AssertionError, match="no JSON object"):
        check_request("gemini", b"[]")
