"""What compatible servers and the proxies before them do with Chat Completions, one oddity at a time."""

from __future__ import annotations

from typing import Any

import pytest

from models.chat_wire import DONE, answer, call, chunk, event
from turnlog.contract import ToolSpec

WEATHER = [
    ToolSpec(name=name, description="", parameter_schema={"type": "object", "properties": {}})
    for name in ("get_weather", "get")
]
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

NAMES: dict[str, tuple[list[bytes], list[tuple[str, str]]]] = {
    "in pieces": (
        [
            chunk(call("", name="get_wea", index=0, id="1")),
            chunk(call("", name="ther", index=0)),
            chunk(call("{}", index=0)),
        ],
        [("get_weather", "{}")],
    ),
    "in pieces, with the id each time": (
        [
            chunk(call(None, name="get_wea", index=0, id="1")),
            chunk(call("{}", name="ther", index=0, id="1")),
        ],
        [("get_weather", "{}")],
    ),
    "in pieces, and no arguments": (
        [chunk(call(None, name="get_wea", index=0, id="1")), chunk(call(None, name="ther", index=0))],
        [("get_weather", "")],
    ),
    "whole in every fragment": (
        [
            chunk(call("", name="get_weather", index=0, id="1")),
            chunk(call("{", name="get_weather", index=0)),
            chunk(call("}", name="get_weather", index=0)),
        ],
        [("get_weather", "{}")],
    ),
    "one that begins like another": (
        [chunk(call("{}", name="get", index=0)), chunk(call("{}", name="get_weather", index=0))],
        [("get", "{}"), ("get_weather", "{}")],
    ),
    "the beginning of one, and no more": (
        [chunk(call("{}", name="get_wea", index=0, id="1"))],
        [("get_wea", "{}")],
    ),
}


@pytest.mark.spec("D-5")
@pytest.mark.parametrize("kind", NAMES)
async def test_names_of_tools(kind: str) -> None:
    parts, expected = NAMES[kind]
    found = await answer(*parts, chunk(None, "tool_calls"), DONE, tool_specs=WEATHER)
    assert (found.error, found.finish) == (None, "tool_calls")
    assert found.calls == expected


@pytest.mark.spec("D-5")
async def test_an_id_that_is_none_joins_no_calls() -> None:
    same = call("{}", name="f", id="null")
    found = await answer(chunk(same), chunk(same), chunk(None, "tool_calls"), DONE)
    assert found.calls == [("f", "{}"), ("f", "{}")]


@pytest.mark.spec("D-5")
@pytest.mark.parametrize("args", ["", '{"a"', '{"a":1'])
async def test_the_end_without_a_reason_completes_no_call(args: str) -> None:
    found = await answer(chunk(call(args, name="f", index=0, id="1")), DONE)
    assert (found.error.error_code, found.error.retryable) == ("ModelProtocolError", True)
    assert (found.finish, found.ended_calls) == (None, 0)


@pytest.mark.spec("D-5", "P-5")
@pytest.mark.parametrize("cut", ["length", "content_filter"])
@pytest.mark.parametrize("later", ["stop", "tool_calls"])
async def test_a_later_word_does_not_make_a_cut_answer_whole(cut: str, later: str) -> None:
    found = await answer(chunk({"content": "a"}), chunk(None, cut), chunk(None, later), DONE)
    assert found.finish == cut
    tool = chunk(call("{}", name="f", index=0, id="1"))
    found = await answer(tool, chunk(None, cut), chunk(None, later), DONE)
    assert found.error is not None and found.ended_calls == 0


@pytest.mark.spec("P-4", "P-5")
@pytest.mark.parametrize(
    ("said", "finish", "code"),
    [
        ("content_filter: RECITATION", "content_filter", None),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", None, "ModelProtocolError"),
        ("MALFORMED_FUNCTION_CALL", None, "ModelProtocolError"),
        ("PROHIBITED_CONTENT", "content_filter", None),
        ("max_output_tokens", "length", None),
        ("eos_token", "stop", None),
        ("abort", None, "ModelServerError"),
        ("timeout", None, "ModelTimeout"),
    ],
)
async def test_more_finish_reasons(said: str, finish: str | None, code: str | None) -> None:
    found = await answer(chunk({"content": "a"}), chunk(None, said), DONE)
    assert (found.text, found.finish) == ("a", finish)
    assert (found.error and found.error.error_code) == code
    assert code is None or found.error.retryable


async def test_a_finish_reason_that_is_the_word_null() -> None:
    found = await answer(chunk({"content": "a"}, "null"), chunk({"content": "b"}, "stop"))
    assert (found.text, found.finish) == ("ab", "stop")
    assert (await answer(chunk({"content": "a"}, "null"))).error is not None


WHOLE = {"role": "assistant", "content": "ab", "reasoning_content": "hm"}


@pytest.mark.parametrize("more", [{}, {"object": "chat.completion", "usage": USAGE}])
async def test_an_answer_that_is_said_again_at_its_end(more: dict[str, Any]) -> None:
    again = event({"choices": [{"index": 0, "message": WHOLE, "finish_reason": "stop"}], **more})
    streamed = [chunk({"reasoning_content": "hm"}), chunk({"content": "a"}), chunk({"content": "b"})]
    found = await answer(*streamed, again, DONE)
    assert (found.reasoning, found.text, found.finish) == ("hm", "ab", "stop")
    assert (await answer(again, DONE)).text == "ab"


async def test_calls_that_are_said_again_at_the_end() -> None:
    streamed = call("{}", name="f", index=0, id="1")
    message = {"role": "assistant", "content": None, **streamed}
    again = event({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    assert (await answer(chunk(streamed), again, DONE)).calls == [("f", "{}")]


async def test_one_answer_in_two_choices_of_a_chunk() -> None:
    tool = call("{}", name="f", index=0, id="1")
    both = event({"choices": [{"delta": {"content": "a"}}, {"delta": tool, "finish_reason": "tool_calls"}]})
    found = await answer(both, DONE)
    assert (found.text, found.calls, found.finish) == ("a", [("f", "{}")], "tool_calls")


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_text": "hm"},
        {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]},
    ],
)
async def test_thinking_under_more_names(delta: dict[str, Any]) -> None:
    found = await answer(chunk(delta), chunk({"content": "a"}, "stop"), DONE)
    assert (found.reasoning, found.text) == ("hm", "a")


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    ("bad", "code", "retryable"),
    [
        (b"event: error\ndata: the engine is overloaded\n\n", "ModelOverloaded", True),
        (b'event: error\ndata: {"status_code": 429, "msg": "slow down"}\n\n', "ModelRateLimited", True),
        (event({"base_resp": {"status_code": 1002, "status_msg": "x"}}), "ModelRateLimited", True),
        (
            event(
                {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}
            ),
            "ModelQuotaExceeded",
            False,
        ),
        (event({"base_resp": {"status_code": 1004, "status_msg": "login fail"}}), "ModelAuthError", False),
        (event({"code": 500, "msg": "internal"}), "ModelServerError", True),
        (chunk({"content": "b"}, error={"code": 502, "message": "x"}), "ModelServerError", True),
        (
            event({"choices": [{"delta": {"content": "b"}, "error": {"code": 502, "message": "x"}}]}),
            "ModelServerError",
            True,
        ),
    ],
)
async def test_more_errors_in_the_stream(bad: bytes, code: str, retryable: bool) -> None:
    found = await answer(chunk({"content": "a"}), bad, DONE)
    assert (found.text, found.finish) == ("a", None)
    assert (found.error.error_code, found.error.retryable) == (code, retryable)


@pytest.mark.parametrize("nothing", [{"error": None}, {"error": {}}, {"error": ""}, {"error": False}])
async def test_an_error_field_that_holds_none(nothing: dict[str, Any]) -> None:
    base = {"base_resp": {"status_code": 0, "status_msg": ""}}
    found = await answer(chunk({"content": "a"}, **nothing, **base), chunk(None, "stop", **nothing), DONE)
    assert (found.text, found.finish, found.error) == ("a", "stop", None)


@pytest.mark.spec("D-7")
@pytest.mark.parametrize("empty", [{"total_tokens": 0, "total_characters": 0}, dict.fromkeys(USAGE, 0)])
async def test_counts_of_nothing_replace_none(empty: dict[str, Any]) -> None:
    last = event({"choices": [], "usage": empty})
    found = await answer(chunk({"content": "a"}, usage=empty), chunk(None, "stop", usage=USAGE), last, DONE)
    assert found.usage.total_tokens == 15
