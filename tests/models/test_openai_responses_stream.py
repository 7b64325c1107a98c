"""Answers of Responses servers, case by case: what each of them was seen to do."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from models.responses_wire import (
    CALL_ID,
    FAMILY,
    HELLO,
    SEARCH,
    USAGE,
    answer,
    created,
    cut_off,
    ended,
    event,
    function_call,
    hear,
    made,
    message,
    reasoning,
    said,
    sse,
    streamed,
    without,
)
from turnlog.contract import ToolCallPart, ToolSpec
from turnlog.models.wire import safe_name
from turnlog.testing import LoopbackAnswer

ARGS = '{"city":"Bern"}'


# ── text ──


@pytest.mark.spec("P-2", "P-5", "D-6")
async def test_several_messages_and_parts_stay_apart() -> None:
    two_parts = message("", id="msg_2")
    two_parts["content"] = [
        {"type": "output_text", "text": text, "annotations": []} for text in ("Two", "Three")
    ]
    heard = await hear(answer(message("One"), two_parts))
    assert said(heard) == [("text", "One"), ("text", "Two"), ("text", "Three")]
    assert heard.finish == "stop"
    assert heard.done is not None
    assert heard.done.provider_data == {"origin": FAMILY, "id": "resp_1", "model": "m"}


@pytest.mark.spec("P-5")
async def test_a_refusal_is_text_with_its_own_finish_reason() -> None:
    refused = message() | {"content": [{"type": "refusal", "refusal": "I won't."}]}
    heard = await hear(answer(refused))
    assert said(heard) == [("text", "I won't.")]
    assert heard.finish == "refusal"
    quiet = await hear([*created(), ended(refused)])
    assert (said(quiet), quiet.finish) == (said(heard), "refusal")


@pytest.mark.spec("P-5", "M-7")
async def test_citations_and_the_phase_are_kept_with_the_text() -> None:
    cited = message("As they say.", phase="final_answer")
    cited["content"][0]["annotations"] = [{"type": "url_citation", "url": "https://example.com"}]
    heard = await hear(answer(cited))
    data = {"phase": "final_answer", "annotations": cited["content"][0]["annotations"]}
    assert heard.shape == [("text", "As they say.", {"origin": FAMILY, **data})]
    plain = await hear(answer(message("As they say.")))
    assert plain.shape == [("text", "As they say.", None)], "nothing to keep, nothing kept"


@pytest.mark.spec("P-2")
@pytest.mark.parametrize(
    "events",
    [
        without(answer(message("Hello.")), kinds="delta"),
        without(answer(message("Hello.")), kinds="output_text"),
        without(answer(message("Hello.")), kinds="content_part"),
        without(answer(message("Hello.")), kinds="output_item.added"),
        without(answer(message("Hello.")), kinds="output_item"),
        without(answer(message("Hello.")), "output_index", "content_index"),
        without(answer(message("Hello.")), "item_id"),
        without(answer(message("Hello.")), "item_id", "output_index", "content_index"),
        [*created(), ended(message("Hello."))],
        [*created(), *streamed(0, message("Hello.")), ended()],
        answer(message("Hello."))[2:],
        [*answer(message("Hello.")), ended(message("Again."))],
    ],
)
@pytest.mark.parametrize("numbered", [True, False])
async def test_events_that_servers_leave_out(events: list[dict[str, Any]], numbered: bool) -> None:
    heard = await hear(events, numbered=numbered)
    assert said(heard) == [("text", "Hello.")]
    assert heard.finish == "stop"


@pytest.mark.spec("D-4")
@pytest.mark.parametrize(
    "odd",
    [
        {"type": "keepalive"},
        {"type": "ping", "cost": 1},
        event("some_new_thing.delta", delta="x", output_index=0),
        event("output_text.annotation.added", annotation={}, output_index=0),
        event("output_text.logprobs", output_index=0),
        event("reasoning_summary_text.delta", output_index=7, delta=None),
        event("content_part.done", output_index=9, part=None),
        event("output_item.added", output_index=8, item=None),
        event("queued", response={"status": "queued"}),
        event("output_text.delta", output_index=0, content_index=0, delta=7),
        {"type": "", "sequence_number": None},
    ],
)
async def test_odd_events_do_no_harm(odd: dict[str, Any]) -> None:
    whole = answer(message("Hello."))
    for at in range(len(whole)):
        heard = await hear([*whole[:at], odd, *whole[at:]], numbered=False)
        assert (said(heard), heard.finish) == ([("text", "Hello.")], "stop")


@pytest.mark.spec("M-4")
async def test_a_character_cut_in_two() -> None:
    item = message("a\U0001f600b")
    first, second = (
        b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"%b"}\n\n'
        % text
        for text in (b"a\\ud83d", b"\\ude00b")
    )
    whole = streamed(0, item)
    body = sse(whole[:2], numbered=False) + first + second + sse([whole[-1], ended(item)], numbered=False)
    assert said(await hear(body)) == [("text", "a\U0001f600b")]


# ── thinking ──


@pytest.mark.spec("M-7", "P-6", "D-6")
async def test_thoughts_are_shown_and_kept() -> None:
    thought = reasoning("**One**", "**Two**", encrypted_content="gAAA==", status=None)
    heard = await hear(answer(thought, message("Hi.")))
    first, last, text = heard.shape
    assert (first[:2], last[:2], text[:2]) == (
        ("thinking", "**One**"),
        ("thinking", "**Two**"),
        ("text", "Hi."),
    )
    assert first[2] == {"origin": FAMILY}
    assert last[2] is not None
    assert (last[2]["origin"], last[2]["host"], last[2]["model_id"]) == (FAMILY, "127.0.0.1", "m")
    assert last[2]["item"]["encrypted_content"] == "gAAA=="
    assert "One" not in json.dumps(last[2]), "the text is in the parts, not a second time in their data"
    assert last[2]["wire"]


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    "kind", ["reasoning_text", "reasoning_summary_text", "reasoning_summary", "reasoning"]
)
async def test_thinking_under_its_names(kind: str) -> None:
    place = {"output_index": 0, "item_id": "rs_1"}
    deltas = [event(f"{kind}.delta", **place, delta=piece) for piece in ("h", "m")]
    deltas.append(event(f"{kind}.delta", **place, delta={"text": "m"}))
    heard = await hear([*created(), *deltas, *streamed(1, message("Hi.")), ended()])
    assert said(heard) == [("thinking", "hmm"), ("text", "Hi.")]


@pytest.mark.spec("P-6")
async def test_a_thought_that_cannot_go_back_is_not_kept() -> None:
    heard = await hear(answer(reasoning("Hm."), message("Hi.")))
    assert heard.shape == [("thinking", "Hm.", None), ("text", "Hi.", None)]
    silent = await hear(answer(reasoning(), message("Hi.")))
    assert silent.shape == [("text", "Hi.", None)]
    stored = await hear(answer(reasoning(), message("Hi.")), config={"store": True})
    assert [data["item"]["id"] for _, _, data in stored.shape if "item" in data] == ["rs_1"]


# ── calls ──


@pytest.mark.spec("D-3", "D-5", "M-7", "M-8")
async def test_calls_and_their_ids() -> None:
    other = function_call('{"city":"Rome"}', id="fc_2", call_id=CALL_ID[:-1] + "y", caller={"type": "direct"})
    heard = await hear(answer(message("Both."), function_call(), other))
    assert made(heard) == [("weather", ARGS), ("weather", '{"city":"Rome"}')]
    assert heard.finish == "tool_calls"
    first, second = (part.payload for part in heard.parts if isinstance(part, ToolCallPart))
    assert first.tool_call_id == "call_0001"
    assert first.provider_data == {"origin": FAMILY, "id": CALL_ID, "item_id": "fc_1", "at": 1}
    assert second.provider_data is not None
    assert second.provider_data["fields"] == {"caller": {"type": "direct"}}


@pytest.mark.spec("P-2", "D-5")
@pytest.mark.parametrize(
    "events",
    [
        without(answer(function_call()), kinds="arguments.delta"),
        without(answer(function_call()), kinds="arguments.done"),
        without(answer(function_call()), kinds="arguments"),
        without(answer(function_call()), kinds="output_item.added"),
        without(answer(function_call()), kinds="output_item.done"),
        without(answer(function_call()), "output_index"),
        without(answer(function_call()), "item_id"),
        [*created(), ended(function_call())],
        [*created(), *streamed(0, function_call()), ended()],
        [*created(), *streamed(0, function_call())[:-1], ended()],
        [*created(), *streamed(0, function_call(status="in_progress")), ended()],
        [*created(), *streamed(3, function_call()), ended(function_call())],
    ],
)
async def test_calls_however_they_come(events: list[dict[str, Any]]) -> None:
    for numbered in (True, False):
        heard = await hear(events, numbered=numbered)
        assert made(heard) == [("weather", ARGS)]
        assert heard.finish == "tool_calls"


@pytest.mark.spec("D-5")
async def test_calls_that_interleave() -> None:
    items = [function_call(), function_call('{"city":"Rome"}', id="fc_2", call_id="call_2")]
    one, two = (streamed(at, item) for at, item in enumerate(items))
    mixed = [event for pair in zip(one, two, strict=True) for event in pair]
    assert made(await hear([*created(), *mixed, ended(*items)])) == [
        ("weather", ARGS),
        ("weather", '{"city":"Rome"}'),
    ]


@pytest.mark.spec("D-5")
async def test_two_calls_under_one_index_stay_two() -> None:
    items = [function_call(), function_call('{"city":"Rome"}', id="fc_2", call_id="call_2")]
    events = [one for item in items for one in streamed(0, item)]
    expected = [("weather", ARGS), ("weather", '{"city":"Rome"}')]
    assert made(await hear([*created(), *events, ended(*items)])) == expected
    assert made(await hear([*created(), *events, ended()])) == expected


@pytest.mark.spec("D-5")
async def test_two_calls_under_one_id() -> None:
    other = function_call('{"city":"Rome"}', id="fc_2")
    assert len(made(await hear(answer(function_call(), other)))) == 2
    again = function_call(id="fc_2")
    assert made(await hear(answer(function_call(), again))) == [("weather", ARGS)], (
        "one call, delivered twice"
    )


@pytest.mark.spec("P-2")
async def test_ids_that_change_from_event_to_event() -> None:
    events = answer(reasoning("Hm.", encrypted_content="e"), message("Hi."), function_call())
    turned = [{**one, "item_id": f"x{at}"} if "item_id" in one else one for at, one in enumerate(events)]
    for at, one in enumerate(turned):
        if "item" in one:
            turned[at] = {**one, "item": {**one["item"], "id": f"y{at}"}}
    heard = await hear(turned)
    assert said(heard) == [("thinking", "Hm."), ("text", "Hi.")]
    assert made(heard) == [("weather", ARGS)]


@pytest.mark.spec("D-5")
async def test_a_name_that_comes_late() -> None:
    events = answer(function_call())
    events[2]["item"] = {**events[2]["item"], "name": "", "call_id": None}
    assert made(await hear(events)) == [("weather", ARGS)]
    nameless = await hear(answer(function_call(name="")))
    assert nameless.error is not None
    assert nameless.error.error_code == "ModelProtocolError"


@pytest.mark.spec("D-5", "D-6")
async def test_arguments_that_disagree_are_never_run() -> None:
    events = answer(function_call())
    events[-2]["item"] = function_call('{"city":"Rome"}')
    heard = await hear(events)
    assert heard.error is not None
    assert heard.error.error_code == "ModelProtocolError"
    spelled = answer(function_call())
    spelled[-2]["item"] = function_call('{ "city": "Bern" }')
    assert made(await hear(spelled)) == [("weather", ARGS)]
    parsed = event("output_item.done", output_index=0, item=function_call() | {"arguments": {"city": "Bern"}})
    assert made(await hear([*created(), parsed, ended()])) == [("weather", ARGS)]
    broken = await hear(answer(function_call('{"city":')))
    assert made(broken) == [("weather", '{"city":')], "what does not parse comes through to the letter"


@pytest.mark.spec("P-9")
async def test_names_that_were_changed_for_the_wire_come_back() -> None:
    spec = ToolSpec(name="files.read all", description="", parameter_schema={})
    heard = await hear(answer(function_call("{}", name=safe_name(spec.name))), HELLO, [spec])
    assert made(heard) == [("files.read all", "{}")]


# ── items that are not ours ──


@pytest.mark.spec("M-7", "P-2")
@pytest.mark.parametrize(
    "item",
    [
        SEARCH,
        {"id": "ctc_1", "type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "SELECT 1"},
        {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aGk="},
        {"id": "x_1", "type": "something_new", "of": {"which": ["nothing", None, 1.5]}},
    ],
)
async def test_other_items_travel_verbatim(item: dict[str, Any]) -> None:
    heard = await hear(answer(message("See:"), item, message("Done.", id="msg_2")))
    assert said(heard) == [("text", "See:"), ("text", "Done.")]
    assert made(heard) == []
    assert heard.finish == "stop"
    assert [data["item"] for _, _, data in heard.shape if data and "item" in data] == [item]
    silent = await hear([*created(), event("output_item.added", output_index=0, item=item), ended(item)])
    assert [data["item"] for _, _, data in silent.shape] == [item]


# ── the end ──


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("something_new", "other")],
)
async def test_answers_that_were_cut_off(reason: str, finish: str) -> None:
    heard = await hear(cut_off(reason, message("Hel", status="incomplete")))
    assert (said(heard), heard.finish) == ([("text", "Hel")], finish)


@pytest.mark.spec("D-5", "P-5")
@pytest.mark.parametrize("status", ["incomplete", "completed", "in_progress"])
@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter", "something_new"])
async def test_a_call_that_was_cut_short_is_never_complete(status: str, reason: str) -> None:
    heard = await hear(
        cut_off(reason, function_call(), function_call('{"ci', status=status, id="fc_2", call_id="c2"))
    )
    assert heard.error is not None
    ends = [delta for delta in heard.deltas if delta.kind == "tool_call_end"]
    assert len(ends) <= 1
    expected = "ModelContentFiltered" if reason == "content_filter" else "ModelProtocolError"
    assert heard.error.error_code == expected
    assert not heard.error.retryable or reason == "something_new"
    if reason == "max_output_tokens":
        assert "raise max_tokens" in (heard.error.message or "")


@pytest.mark.spec("D-5")
async def test_a_complete_answer_with_an_incomplete_call_is_none() -> None:
    for events in (
        answer(function_call(status="incomplete")),
        [*created(), *streamed(0, function_call())[:2], ended()],
    ):
        heard = await hear(events)
        assert heard.error is not None
        assert heard.error.error_code == "ModelProtocolError"
        assert not [delta for delta in heard.deltas if delta.kind == "tool_call_end"]


@pytest.mark.spec("P-5", "D-5")
async def test_a_limit_that_the_server_does_not_tell() -> None:
    """llama.cpp calls an answer complete that reached max_output_tokens."""
    untold = answer(message("Hel"))
    del untold[-1]["response"]["incomplete_details"]
    assert (await hear(untold, config={"max_tokens": 5})).finish == "length"
    assert (await hear(untold, config={"max_tokens": 6})).finish == "stop"
    assert (await hear(answer(message("Hel")), config={"max_tokens": 5})).finish == "stop"
    call = answer(function_call())
    del call[-1]["response"]["incomplete_details"]
    heard = await hear(call, config={"max_tokens": 5})
    assert heard.error is not None
    assert heard.error.error_code == "ModelProtocolError"


FAULTS: list[tuple[dict[str, Any], str, bool]] = [
    ({"type": "error", "code": "server_error", "message": "boom"}, "ModelServerError", True),
    ({"type": "error", "code": "rate_limit_exceeded", "message": "boom"}, "ModelRateLimited", True),
    (
        {"type": "error", "error": {"type": "insufficient_quota", "message": "boom"}},
        "ModelQuotaExceeded",
        False,
    ),
    (
        {"type": "error", "error": {"code": "context_length_exceeded", "message": "boom"}},
        "ModelContextOverflow",
        False,
    ),
    ({"type": "response.error", "error": {"code": 503, "message": "boom"}}, "ModelOverloaded", True),
    ({"type": "", "error": {"message": "boom", "code": 502}}, "ModelServerError", True),
    ({"type": "", "detail": "boom: internal"}, "ModelServerError", True),
    (
        event("failed", response={"error": {"code": "server_error", "message": "boom"}}),
        "ModelServerError",
        True,
    ),
    (
        event(
            "failed", response={"error": {"code": "rate_limit_exceeded", "message": "boom, try again in 3s"}}
        ),
        "ModelRateLimited",
        True,
    ),
    (
        event("failed", response={"error": {"code": "invalid_prompt", "message": "boom"}}),
        "ModelBadRequest",
        False,
    ),
    (
        event("completed", response={"error": {"code": "server_error", "message": "boom"}}),
        "ModelServerError",
        True,
    ),
    (event("failed", response={"status": "failed", "error": None}), "ModelServerError", True),
    (event("cancelled", response={"status": "cancelled"}), "ModelServerError", True),
    (event("failed"), "ModelServerError", True),
]


@pytest.mark.spec("P-4", "D-4", "D-8")
@pytest.mark.parametrize(("bad", "code", "retryable"), FAULTS)
async def test_errors_in_the_stream(bad: dict[str, Any], code: str, retryable: bool) -> None:
    for numbered in (True, False):
        heard = await hear([*answer(message("a"))[:-1], bad], numbered=numbered)
        assert heard.error is not None
        assert (heard.error.error_code, heard.error.retryable) == (code, retryable)
        if "boom" in json.dumps(bad):
            assert "boom" in (heard.error.message or "")
        if "3s" in json.dumps(bad):
            assert heard.error.retry_after == 3


@pytest.mark.spec("D-4")
@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n", b": ping\n\n"])
async def test_an_answer_without_its_end_is_an_error(tail: bytes) -> None:
    whole = answer(message("Hello."), function_call())
    for last in range(len(whole)):
        heard = await hear(sse(whole[:last]) + tail)
        assert heard.error is not None
        assert (heard.error.error_code, heard.error.retryable) == ("ModelServerError", True)


@pytest.mark.spec("P-2")
async def test_done_after_the_end() -> None:
    heard = await hear(sse(answer(message("Hello."))) + b"data: [DONE]\n\n")
    assert (said(heard), heard.finish) == ([("text", "Hello.")], "stop")


# ── whole answers ──


@pytest.mark.spec("P-2")
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", ""])
@pytest.mark.parametrize("indent", [0, 2])
async def test_an_answer_that_was_not_streamed(kind: str, indent: int) -> None:
    response = ended(reasoning("Hm.", encrypted_content="e"), message("Hi."), function_call())["response"]
    body = msgspec.json.format(msgspec.json.encode(response), indent=indent)
    heard = await hear(LoopbackAnswer(body=body, headers={"content-type": kind} if kind else {}))
    assert said(heard) == [("thinking", "Hm."), ("text", "Hi.")]
    assert made(heard) == [("weather", ARGS)]
    assert heard.finish == "tool_calls"
    assert heard.usage is not None
    assert heard.usage.total_tokens == 15


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    ("response", "code"),
    [
        ({"object": "response", "status": "failed", "error": {"code": "server_error"}}, "ModelServerError"),
        ({"object": "response", "status": "queued", "output": []}, "ModelProtocolError"),
        ({"object": "response", "status": "cancelled", "output": []}, "ModelServerError"),
        ({"error": {"message": "no", "code": "model_not_found"}}, "ModelNotFound"),
        ({"hello": "world"}, "ModelServerError"),
    ],
)
async def test_a_document_that_is_no_answer(response: dict[str, Any], code: str) -> None:
    heard = await hear(LoopbackAnswer.json(response))
    assert heard.error is not None
    assert heard.error.error_code == code


@pytest.mark.spec("P-5")
async def test_a_whole_answer_that_was_cut_off() -> None:
    response = cut_off("max_output_tokens", message("Hel"))[-1]["response"]
    heard = await hear(LoopbackAnswer.json(response))
    assert (said(heard), heard.finish) == ([("text", "Hel")], "length")


# ── counts ──


@pytest.mark.spec("D-7", "O-2", "M-6", "P-5")
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 5, "reasoning_tokens": 2}),
        ({"input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 3}}, {"cache_write_tokens": 3}),
        ({"cost": 0.25}, {"cost": 0.25}),
        ({"cost_in_usd_ticks": 50_000_000}, {"cost": pytest.approx(0.005)}),
        ({"input_tokens_details": None, "output_tokens_details": None}, {"cached_input_tokens": None}),
        ({"total_tokens": None}, {"total_tokens": 15}),
    ],
)
async def test_usage_in_its_spellings(more: dict[str, Any], expected: dict[str, Any]) -> None:
    heard = await hear(answer(message(), usage={**USAGE, **more}))
    assert {name: getattr(heard.usage, name) for name in expected} == expected


async def test_no_usage() -> None:
    for usage in (None, {}, "none"):
        heard = await hear(answer(message(), usage=usage))
        assert (heard.usage, heard.finish) == (None, "stop")


@pytest.mark.spec("D-9")
async def test_raw_events_only_on_request() -> None:
    whole = answer(message("Hello."))
    assert all(delta.provider_raw is None for delta in (await hear(whole)).deltas)
    heard = await hear(whole, config={"include_raw": True})
    shown = [delta.provider_raw for delta in heard.deltas if delta.provider_raw]
    assert "response.output_text.done" in msgspec.json.encode(shown).decode()
