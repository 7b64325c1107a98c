"""Messages streams, case by case, over a real connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.anthropic_wire import HELLO, WEATHER, ask, begin, block, call, end, hear, sse, text, thinking
from turnlog.contract import ToolCallEndDelta, ToolSpec
from turnlog.testing import LoopbackAnswer

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "x", "n": 1.0}]}


async def test_text_and_usage() -> None:
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    heard = await hear(sse(begin(), *text(0, "Hel", "lo"), *end("end_turn", usage)))
    assert heard.finish == "stop"
    assert heard.message.text == "Hello"
    assert [delta.kind for delta in heard.deltas] == ["start", "usage", "text", "text", "usage", "done"]
    counts = heard.usage
    assert counts is not None
    assert (counts.input_tokens, counts.output_tokens, counts.total_tokens) == (123, 7, 130)
    assert (counts.cached_input_tokens, counts.cache_write_tokens, counts.reasoning_tokens) == (100, 20, 2)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop_sequence"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause"),
        ("something_new", "other"),
    ],
)
async def test_stop_reasons(reason: str, finish: str) -> None:
    heard = await hear(sse(begin(), *text(0, "so far"), *end(reason)))
    assert heard.finish == finish


async def test_a_refusal_says_why() -> None:
    details = {"type": "refusal", "category": "cyber"}
    heard = await hear(sse(begin(), *end("refusal", stop_details=details)))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelRefused", False)
    assert "cyber" in (heard.error.message or "")
    heard = await hear(sse(begin(), *text(0, "I would"), *end("refusal", stop_details=details)))
    assert heard.finish == "refusal"
    assert heard.done is not None
    assert heard.done.provider_data == {"origin": "anthropic", "stop_details": details}


async def test_a_full_window_is_an_overflow() -> None:
    heard = await hear(sse(begin(), *text(0, "so far"), *end("model_context_window_exceeded")))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelContextOverflow", False)


async def test_thinking_keeps_its_signature() -> None:
    body = sse(
        begin(),
        *thinking(0, "hmm", "sig-a"),
        *thinking(1, "", "sig-b"),
        *block(2, {"type": "redacted_thinking", "data": "xyz"}),
        *text(3, "yes"),
        *end("end_turn"),
    )
    heard = await hear(body)
    assert heard.shape == [
        ("thinking", "hmm", {"origin": "anthropic", "signature": "sig-a"}),
        ("thinking", "", {"origin": "anthropic", "signature": "sig-b"}),
        ("thinking", "", {"origin": "anthropic", "block": {"type": "redacted_thinking", "data": "xyz"}}),
        ("text", "yes", None),
    ]


async def test_unsigned_thinking_and_redacted_thinking_stay_two() -> None:
    plain = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "a"})
    body = sse(begin(), *plain, *block(1, {"type": "redacted_thinking", "data": "x"}), *end("end_turn"))
    heard = await hear(body)
    assert [(kind, words) for kind, words, _ in heard.shape] == [("thinking", "a"), ("thinking", "")]


async def test_parallel_calls_join_their_arguments() -> None:
    body = sse(
        begin(),
        *call(0, "weather", "", '{"city":', ' "Paris"}', id="toolu_a"),
        *call(1, "weather", id="toolu_b"),
        *end("tool_use"),
    )
    heard = await hear(body, HELLO, [WEATHER])
    assert heard.finish == "tool_calls"
    first, second = heard.message.tool_calls
    assert first.payload.raw_args_text == '{"city": "Paris"}'
    assert first.payload.arguments == {"city": "Paris"}
    assert first.payload.provider_data == {"origin": "anthropic", "id": "toolu_a"}
    assert (second.payload.raw_args_text, second.payload.arguments) == ("", {})


async def test_interleaved_blocks_stay_apart() -> None:
    first, second = call(0, "a", '{"x"', ":1}", id="toolu_a"), call(1, "b", '{"y"', ":2}", id="toolu_b")
    mixed = [event for pair in zip(first, second, strict=True) for event in pair]
    heard = await hear(sse(begin(), *mixed, *end("tool_use")))
    assert [(part.payload.tool_name, part.payload.arguments) for part in heard.message.tool_calls] == [
        ("a", {"x": 1}),
        ("b", {"y": 2}),
    ]


async def test_a_call_that_comes_whole_in_its_start() -> None:
    start = {"type": "tool_use", "id": "toolu_a", "name": "roll", "input": {"n": 6}}
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    body = sse(begin(), *block(0, {**start, "caller": caller}), *end("tool_use", container={"id": "c_1"}))
    heard = await hear(body)
    payload = heard.message.tool_calls[0].payload
    assert payload.arguments == {"n": 6}
    assert payload.provider_data == {
        "origin": "anthropic",
        "id": "toolu_a",
        "caller": caller,
        "container": "c_1",
    }


async def test_an_answer_inside_message_start() -> None:
    content = [{"type": "text", "text": "hi"}, {"type": "tool_use", "id": "t", "name": "a", "input": {}}]
    body = sse(begin(content=content, stop_reason="tool_use"), {"type": "message_stop"})
    heard = await hear(body)
    assert heard.finish == "tool_calls"
    assert heard.message.text == "hi"
    assert len(heard.message.tool_calls) == 1


async def test_an_answer_that_is_not_streamed() -> None:
    message = begin(content=[{"type": "text", "text": "hi"}], stop_reason="end_turn")["message"]
    heard = await hear(LoopbackAnswer.json(message))
    assert (heard.finish, heard.message.text) == ("stop", "hi")


async def test_an_error_in_place_of_an_answer() -> None:
    heard = await hear(
        LoopbackAnswer.json({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    )
    assert heard.error is not None
    assert heard.error.error_code == "ModelOverloaded"


async def test_server_tools_travel_verbatim_between_texts() -> None:
    body = sse(
        begin(),
        *text(0, "Let me look."),
        *block(1, SEARCH, {"type": "input_json_delta", "partial_json": '{"query": "x"}'}),
        *block(2, FOUND),
        *text(3, "Found."),
        *end("end_turn"),
    )
    heard = await hear(body)
    assert heard.message.text == "Let me look.Found."
    searched = {**SEARCH, "input": {"query": "x"}}
    assert [data and data.get("block") for _, _, data in heard.shape] == [None, searched, FOUND, None]


async def test_citations_stay_with_their_block() -> None:
    citation = {"type": "web_search_result_location", "url": "https://example.com", "cited_text": "c"}
    cited = block(
        1,
        {"type": "text", "text": "", "citations": []},
        {"type": "citations_delta", "citation": citation},
        {"type": "text_delta", "text": "cited"},
    )
    heard = await hear(sse(begin(), *text(0, "plain "), *cited, *text(2, " after"), *end("end_turn")))
    assert heard.shape == [
        ("text", "plain ", {"origin": "anthropic"}),
        ("text", "cited", {"origin": "anthropic", "citations": [citation]}),
        ("text", " after", None),
    ]


async def test_blocks_and_deltas_of_a_later_version_are_kept() -> None:
    grown = block(
        0,
        {"type": "compaction", "content": None},
        {"type": "compaction_delta", "content": "So "},
        {"type": "compaction_delta", "content": "far.", "encrypted": {"a": 1}},
    )
    odd = {"type": "content_block_delta", "index": 1, "delta": {"type": "mood_delta", "mood": "good"}}
    body = sse(
        begin(),
        {"type": "ping"},
        {"type": "weather"},
        *grown,
        *text(1, "hi")[:-1],
        odd,
        text(1)[-1],
        *end("end_turn"),
    )
    heard = await hear(body)
    assert heard.message.text == "hi"
    assert heard.shape[0][2]["block"] == {"type": "compaction", "content": "So far.", "encrypted": {"a": 1}}


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("overloaded_error", "ModelOverloaded", True),
        ("api_error", "ModelServerError", True),
        ("rate_limit_error", "ModelRateLimited", True),
        ("timeout_error", "ModelTimeout", True),
        ("authentication_error", "ModelAuthError", False),
        ("billing_error", "ModelQuotaExceeded", False),
        ("invalid_request_error", "ModelBadRequest", False),
    ],
)
async def test_errors_in_the_middle(kind: str, code: str, retryable: bool) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "No."}}
    heard = await hear(sse(begin(), *text(0, "so far")[:-1], error))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == (code, retryable)


async def test_an_error_of_another_shape_in_the_middle() -> None:
    body = sse(begin()) + b'data: {"error": {"message": "the engine is overloaded", "code": 503}}\n\n'
    heard = await hear(body)
    assert heard.error is not None
    assert heard.error.error_code == "ModelOverloaded"
    body = sse(begin()) + b'event: error\ndata: {"type": "error", "message": "Internal server error"}\n\n'
    heard = await hear(body)
    assert heard.error is not None
    assert heard.error.error_code == "ModelServerError"


# ── what was cut is never handed on ──

CUT: list[tuple[list[dict[str, Any]], str, bool]] = [
    ([begin(), *call(0, "a", '{"x": 1'), *end("max_tokens")], "ModelProtocolError", False),
    ([begin(), *call(0, "a", '{"x": 1}'), *end("max_tokens")], "ModelProtocolError", False),
    ([begin(), *call(0, "a", '{"x": 1'), *end("stop_sequence")], "ModelProtocolError", False),
    ([begin(), *call(0, "a", '{"x": 1'), *end("refusal")], "ModelContentFiltered", False),
    ([begin(), *call(0, "a", '{"x": 1}', stop=False), *end("tool_use")], "ModelProtocolError", True),
    ([begin(), *call(0, "a", '{"x"', stop=False), begin(), *end("tool_use")], "ModelProtocolError", True),
    (
        [begin(), *call(0, "a", "{", stop=False), *call(0, "b", "{}"), *end("tool_use")],
        "ModelProtocolError",
        True,
    ),
    ([begin(), *call(0, "a", '{"x": 1}')], "ModelServerError", True),
    ([begin(), *call(0, "a", '{"x": 1}'), end("tool_use")[0]], "ModelServerError", True),
    ([begin(), *call(0, "a", '{"x": 1}'), *end(None)], "ModelProtocolError", True),
]


@pytest.mark.parametrize("case", range(len(CUT)))
async def test_a_cut_call_has_no_end(case: int) -> None:
    events, code, retryable = CUT[case]
    heard = await hear(sse(*events))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == (code, retryable)
    assert not any(isinstance(delta, ToolCallEndDelta) for delta in heard.deltas)


async def test_a_length_stop_inside_a_call_says_what_to_raise() -> None:
    heard = await hear(sse(begin(), *call(0, "weather", '{"ci'), *end("max_tokens")))
    assert heard.error is not None
    assert "raise max_tokens" in (heard.error.message or "")
    assert "weather" in (heard.error.message or "")


async def test_text_after_a_call_may_be_cut() -> None:
    heard = await hear(sse(begin(), *call(0, "a", "{}"), *text(1, "and th"), *end("max_tokens")))
    assert heard.finish == "length"
    assert [part.kind for part in heard.parts] == ["tool_call", "text"]


@pytest.mark.parametrize(
    "events",
    [
        [begin(), {"type": "content_block_delta", "index": 4, "delta": {"type": "text_delta", "text": "x"}}],
        [begin(), *text(0, "a"), begin(), *text(0, "b"), *end("end_turn")],
        [begin(), *block(0, SEARCH, {"type": "input_json_delta", "partial_json": "{"}), *end("end_turn")],
    ],
)
async def test_what_no_server_may_send(events: list[dict[str, Any]]) -> None:
    heard = await hear(sse(*events))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelProtocolError", True)


async def test_a_stream_that_is_none() -> None:
    heard = await hear(b"data: hello\n\n")
    assert heard.error is not None
    assert "base_url" in (heard.error.message or "")


# ── compatible servers ──


async def test_a_server_without_message_start_and_with_the_wrong_stop_reason() -> None:
    heard = await hear(sse(*call(0, "a", "{}", id=""), *end("end_turn")))
    assert heard.finish == "tool_calls"
    assert heard.message.tool_calls[0].payload.provider_data == {"origin": "anthropic"}


async def test_a_second_message_start_before_any_content_changes_nothing() -> None:
    heard = await hear(sse(begin(), begin(), *text(0, "hi"), *end("end_turn")))
    assert heard.message.text == "hi"


async def test_a_text_block_that_never_stops() -> None:
    heard = await hear(sse(begin(), *text(0, "a")[:-1], *text(0, "b")[:-1], *end("end_turn")))
    assert heard.message.text == "ab"


async def test_a_character_cut_in_two() -> None:
    halves = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\u%s"}}'
    start, stop = sse(begin(), *text(0)[:-1]), sse(text(0)[-1], *end("end_turn"))
    body = start + b"".join(b"data: " + halves % half + b"\n\n" for half in (b"d83d", b"de00")) + stop
    heard = await hear(body)
    assert heard.message.text == "😀"


async def test_names_come_back_as_ours() -> None:
    spec = ToolSpec(name="files.read text", description="", parameter_schema={})
    wire_name = (await ask(HELLO, [spec]))["tools"][0]["name"]
    heard = await hear(
        sse(begin(), *call(0, wire_name, "{}"), *call(1, "other", "{}", id="toolu_2"), *end("tool_use")),
        HELLO,
        [spec],
    )
    assert [part.payload.tool_name for part in heard.message.tool_calls] == ["files.read text", "other"]


async def test_raw_events_on_request() -> None:
    heard = await hear(sse(begin(), *text(0, "hi"), *end("end_turn")), config={"include_raw": True})
    raw = [event for delta in heard.deltas if delta.provider_raw for event in delta.provider_raw["events"]]
    assert raw[0]["event"] == "message_start"
    assert json.dumps(raw).count("text_delta") == 1
