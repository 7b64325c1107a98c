"""One small, whole answer per protocol: text, then a call of ``get_weather``. Written by hand.

Each is the list of its events, so that faults can be put between and into them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from models.bedrock_wire import call, end, frame, text

ARGUMENTS = '{"city":"Zürich"}'
TEXT = "Let me look \u2014 2\u2028lines."


def _sse(value: Any, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _sse(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}
    )


def _chat_call(args: str, **more: Any) -> bytes:
    function = {"arguments": args, **({"name": more.pop("name")} if "name" in more else {})}
    return _chat({"tool_calls": [{"index": 0, "function": function, **more}]})


def _anthropic(kind: str, **fields: Any) -> bytes:
    return _sse({"type": kind, **fields}, kind)


def _block(kind: str, index: int, **fields: Any) -> bytes:
    return _anthropic(kind, index=index, **fields)


def _responses(number: int, kind: str, **fields: Any) -> bytes:
    return _sse({"type": kind, "sequence_number": number, **fields}, kind)


_CALL_ITEM = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "get_weather"}
_MESSAGE_ITEM = {"id": "msg_1", "type": "message", "role": "assistant"}
_TEXT_PART = {"type": "output_text", "text": TEXT, "annotations": []}
_RESPONSE = {"id": "resp_1", "object": "response", "model": "m"}
_OUTPUT = [
    {**_MESSAGE_ITEM, "status": "completed", "content": [_TEXT_PART]},
    {**_CALL_ITEM, "status": "completed", "arguments": ARGUMENTS},
]
_RESPONSES_USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}

GOOD: dict[str, list[bytes]] = {
    "openai-chat": [
        _chat({"role": "assistant", "content": ""}),
        _chat({"content": TEXT[:9]}),
        _chat({"content": TEXT[9:]}),
        _chat_call("", id="call_1", type="function", name="get_weather"),
        _chat_call(ARGUMENTS[:8]),
        _chat_call(ARGUMENTS[8:]),
        _chat({}, "tool_calls"),
        _sse(
            {
                "id": "chatcmpl-1",
                "choices": [],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        ),
        b"data: [DONE]\n\n",
    ],
    "anthropic-messages": [
        _anthropic(
            "message_start",
            message={
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "usage": {"input_tokens": 10, "output_tokens": 1},
            },
        ),
        _block("content_block_start", 0, content_block={"type": "text", "text": ""}),
        _block("content_block_delta", 0, delta={"type": "text_delta", "text": TEXT[:9]}),
        _block("content_block_delta", 0, delta={"type": "text_delta", "text": TEXT[9:]}),
        _block("content_block_stop", 0),
        _block(
            "content_block_start",
            1,
            content_block={"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}},
        ),
        _block("content_block_delta", 1, delta={"type": "input_json_delta", "partial_json": ARGUMENTS[:8]}),
        _block("content_block_delta", 1, delta={"type": "input_json_delta", "partial_json": ARGUMENTS[8:]}),
        _block("content_block_stop", 1),
        _anthropic("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
        _anthropic("message_stop"),
    ],
    "openai-responses": [
        _responses(0, "response.created", response={**_RESPONSE, "status": "in_progress", "output": []}),
        _responses(
            1,
            "response.output_item.added",
            output_index=0,
            item={**_MESSAGE_ITEM, "status": "in_progress", "content": []},
        ),
        _responses(
            2,
            "response.content_part.added",
            item_id="msg_1",
            output_index=0,
            content_index=0,
            part={**_TEXT_PART, "text": ""},
        ),
        _responses(
            3, "response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=TEXT[:9]
        ),
        _responses(
            4, "response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=TEXT[9:]
        ),
        _responses(
            5, "response.output_text.done", item_id="msg_1", output_index=0, content_index=0, text=TEXT
        ),
        _responses(
            6,
            "response.content_part.done",
            item_id="msg_1",
            output_index=0,
            content_index=0,
            part=_TEXT_PART,
        ),
        _responses(7, "response.output_item.done", output_index=0, item=_OUTPUT[0]),
        _responses(
            8,
            "response.output_item.added",
            output_index=1,
            item={**_CALL_ITEM, "status": "in_progress", "arguments": ""},
        ),
        _responses(
            9, "response.function_call_arguments.delta", item_id="fc_1", output_index=1, delta=ARGUMENTS[:8]
        ),
        _responses(
            10, "response.function_call_arguments.delta", item_id="fc_1", output_index=1, delta=ARGUMENTS[8:]
        ),
        _responses(
            11, "response.function_call_arguments.done", item_id="fc_1", output_index=1, arguments=ARGUMENTS
        ),
        _responses(12, "response.output_item.done", output_index=1, item=_OUTPUT[1]),
        _responses(
            13,
            "response.completed",
            response={**_RESPONSE, "status": "completed", "output": _OUTPUT, "usage": _RESPONSES_USAGE},
        ),
    ],
    "gemini": [
        _sse({"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT[:9]}]}, "index": 0}]}),
        _sse({"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT[9:]}]}, "index": 0}]}),
        _sse(
            {
                "candidates": [
                    {
                        "content": {
                            "role": "model",
                            "parts": [{"functionCall": {"name": "get_weather", "args": {"city": "Zürich"}}}],
                        },
                        "finishReason": "STOP",
                        "index": 0,
                    }
                ],
                "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
                "modelVersion": "m",
                "responseId": "r1",
            }
        ),
    ],
    "bedrock-converse": [
        frame("messageStart", {"role": "assistant"}),
        *(frame(*event) for event in text(0, TEXT[:9], TEXT[9:])),
        *(frame(*event) for event in call(1, "get_weather", ARGUMENTS[:8], ARGUMENTS[8:])),
        *(frame(*event) for event in end("tool_use")),
    ],
}
"""Protocol → the events of its answer."""

TAIL = {"openai-chat": 3, "bedrock-converse": 2}
"""Protocol → how many of its last events may be missing from an answer that still counts; else one."""

IN_BAND: dict[str, bytes] = {
    "openai-chat": _sse({"error": {"message": "Overloaded", "type": "overloaded_error", "code": None}}),
    "anthropic-messages": _sse(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"
    ),
    "openai-responses": _sse(
        {"type": "error", "code": "server_overloaded", "message": "Overloaded", "sequence_number": 3}, "error"
    ),
    "gemini": _sse({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}),
    "bedrock-converse": frame("serviceUnavailableException", {"message": "Busy."}, exception=True),
}
"""Protocol → how it says in the middle of a stream that the server is overloaded."""
