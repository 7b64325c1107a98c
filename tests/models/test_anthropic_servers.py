"""What Anthropic itself and servers that speak its protocol do out of order, one oddity at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.anthropic_wire import begin, block, call, end, hear, sse, text, thinking
from turnlog.contract import ToolCallPart
from turnlog.testing import LoopbackAnswer

JSON = {"content-type": "application/json"}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
WHOLE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "hi\n\nthere"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 5},
}


def numbered(events: list[dict[str, Any]], index: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**event, "index": index} if event["type"] in kinds else event for event in events]


DELTA, STOP = "content_block_delta", "content_block_stop"


@pytest.mark.parametrize("kinds", [(DELTA,), (DELTA, STOP)])
async def test_deltas_with_the_number_of_the_next_block(kinds: tuple[str, ...]) -> None:
    events = [
        *numbered(text(0, "a", "b"), 1, kinds),
        *numbered(thinking(1, "hm", "sig"), 2, kinds),
        *numbered(call(2, "f", '{"a"', ":1}"), 3, kinds),
        *text(3, "c"),
    ]
    heard = await hear(sse(begin(), *events, *end("tool_use")))
    assert heard.error is None
    assert [part.kind for part in heard.parts] == ["text", "thinking", "tool_call", "text"]
    assert [shape[1] for shape in heard.shape] == ["ab", "hm", "c"]
    assert heard.message.tool_calls[0].payload.arguments == {"a": 1}


@pytest.mark.spec("D-5")
async def test_misnumbered_arguments_join_no_other_call() -> None:
    """With two calls open nobody can say whose they are; to a text they cannot belong."""
    stray = {"type": DELTA, "index": 7, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    two = [*call(0, "f", stop=False), *call(1, "g", id="toolu_2", stop=False), stray]
    for events in (two, [*text(0, "a")[:-1], stray], [*text(0, "a")[:-1], {**stray, "index": 0}]):
        heard = await hear(sse(begin(), *events, *end("tool_use")))
        assert heard.error is not None
        assert (heard.error.error_code, heard.error.retryable) == ("ModelProtocolError", True)


async def test_deltas_in_a_block_of_another_kind_are_not_lost() -> None:
    between = {"type": "text_delta", "text": "b"}
    start = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    args = [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"a":', "1}")]
    events = [
        *block(0, {"type": "text", "text": ""}, {"type": "thinking_delta", "thinking": "hm"}),
        *block(1, {"type": "thinking", "thinking": ""}, {"type": "text_delta", "text": "a"}),
        *block(2, start, args[0], between, args[1]),
    ]
    heard = await hear(sse(begin(), *events, *end("tool_use")))
    assert [shape[:2] for shape in heard.shape] == [("thinking", "hm"), ("text", "a"), ("text", "b")]
    assert heard.message.tool_calls[0].payload.arguments == {"a": 1}


@pytest.mark.spec("D-5", "P-5")
@pytest.mark.parametrize(("reason", "finish"), [("max_tokens", "length"), ("refusal", "refusal")])
async def test_a_search_that_was_cut_by_the_limit(reason: str, finish: str) -> None:
    cut = block(1, SEARCH, {"type": "input_json_delta", "partial_json": '{"query": "wea'})
    heard = await hear(sse(begin(), *text(0, "Let me see."), *cut, *end(reason)))
    assert (heard.finish, heard.message.text) == (finish, "Let me see.")
    assert len(heard.parts) == 1


@pytest.mark.parametrize("reason", ["tool_use", "end_turn"])
async def test_the_finish_reason_is_what_the_answer_holds(reason: str) -> None:
    assert (await hear(sse(begin(), *text(0, "a"), *end(reason)))).finish == "stop"
    assert (await hear(sse(begin(), *call(0, "f", "{}"), *end(reason)))).finish == "tool_calls"


@pytest.mark.spec("P-2")
@pytest.mark.parametrize("pieces", [None, 1, 7])
@pytest.mark.parametrize("headers", [JSON, {}, {"content-type": "text/plain"}])
async def test_the_first_byte_tells_what_the_content_type_does_not(headers: Any, pieces: Any) -> None:
    stream = sse(begin(), *text(0, "hi\n\n", "there"), *end("end_turn"))
    document = json.dumps(WHOLE, indent=2).replace('"stop_reason"', '\n\n"stop_reason"').encode()
    for body in (stream, document, b"\xef\xbb\xbf" + document, b"\n " + document):
        heard = await hear(LoopbackAnswer(body=body, headers=headers, pieces=pieces))
        assert (heard.error, heard.finish) == (None, "stop")
        assert heard.message.text == "hi\n\nthere"
        assert heard.usage is not None and heard.usage.output_tokens == 5


@pytest.mark.spec("D-4")
async def test_a_whole_answer_that_was_cut() -> None:
    document = json.dumps(WHOLE).encode()
    for at in (1, len(document) // 2, len(document) - 1):
        heard = await hear(LoopbackAnswer(body=document[:at], headers=JSON))
        assert heard.error is not None
        assert (heard.error.error_code, heard.error.retryable) == ("ModelProtocolError", True)


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"detail": "the server is overloaded"}, "ModelOverloaded"),
        ({"message": "Too many requests", "code": 429}, "ModelRateLimited"),
        ({"error": "internal error"}, "ModelServerError"),
        ({"type": "error", "error": {"type": "api_error", "message": "x"}}, "ModelServerError"),
    ],
)
async def test_failures_that_come_with_status_200(document: dict[str, Any], code: str) -> None:
    heard = await hear(LoopbackAnswer.json(document))
    assert heard.error is not None and heard.error.error_code == code


@pytest.mark.spec("D-4", "M-4")
async def test_types_that_are_none_and_fields_of_a_later_version() -> None:
    odd = [
        {"type": "ping", "index": None, "delta": "x", "usage": 7, "message": []},
        {"type": "content_block_start", "index": "0", "content_block": {"type": "text", "text": None}},
        {"type": DELTA, "index": 0, "delta": {"type": "text_delta", "text": "a", "new": {"x": 1}}, "new": 1},
        {"type": STOP, "index": 0},
        {"type": "content_block_whatever", "index": 5},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_details": 3}, "usage": None},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 1}},
    ]
    heard = await hear(sse(begin(content=None, id=7), *odd))
    assert (heard.error, heard.finish, heard.message.text) == (None, "stop", "a")


@pytest.mark.spec("M-7")
async def test_what_streams_in_many_pieces_is_joined_once() -> None:
    pieces = [f"{at:04d}" for at in range(500)]
    thought = [{"type": "signature_delta", "signature": piece} for piece in pieces]
    later = [{"type": "later_delta", "content": piece} for piece in pieces]
    events = [
        *block(0, {"type": "thinking", "thinking": "hm"}, *thought),
        *block(1, {"type": "compaction", "content": "so far: "}, *later),
        *text(2, "a"),
    ]
    heard = await hear(sse(begin(), *events, *end("end_turn")))
    assert heard.shape[0][2]["signature"] == "".join(pieces)
    assert heard.shape[1][2]["block"] == {"type": "compaction", "content": "so far: " + "".join(pieces)}
    assert not any(isinstance(part, ToolCallPart) for part in heard.parts)
