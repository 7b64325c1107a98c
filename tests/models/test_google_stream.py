"""What a Gemini stream becomes, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from models.google_wire import COUNTS, HELLO, array, call, google, hear, piece, sse
from turnlog.contract import ToolCallPart, ToolSpec
from turnlog.testing import Loopback, LoopbackAnswer

OWN = {"origin": "google"}


def done(*parts: dict[str, Any], finish: str = "STOP") -> bytes:
    return sse(piece(*parts, finish=finish))


# ── text and thoughts ──


@pytest.mark.spec("D-6", "M-7")
async def test_thoughts_then_text() -> None:
    heard = await hear(
        sse(
            piece({"text": "Let me ", "thought": True}),
            piece({"text": "see.", "thought": True}),
            piece({"text": "It is "}),
            piece({"text": "four."}),
            piece({"text": ""}, finish="STOP"),
        )
    )
    assert heard.shape == [("thinking", "Let me see.", OWN), ("text", "It is four.", None)]
    assert heard.finish == "stop"
    assert heard.done is not None
    assert heard.done.provider_data == {"origin": "google", "id": "r1", "model": "gemini-x"}


@pytest.mark.spec("M-7", "P-6")
async def test_a_signed_part_is_joined_with_nothing() -> None:
    heard = await hear(
        sse(
            piece({"text": "Hello"}),
            piece({"text": " there"}),
            piece({"text": "", "thoughtSignature": "c2ln"}),
            piece({"text": "Bye."}),
            piece({"text": "Or not.", "thoughtSignature": "bW9y"}),
            piece({"text": "Bye."}, finish="STOP"),
        )
    )
    assert heard.shape == [
        ("text", "Hello there", None),
        ("thinking", "", {"origin": "google", "signature": "c2ln", "signs": "nothing"}),
        ("text", "Bye.", None),
        ("thinking", "", {"origin": "google", "signature": "bW9y", "signs": "text"}),
        ("text", "Or not.", OWN),
        ("text", "Bye.", None),
    ]


async def test_a_signed_thought() -> None:
    heard = await hear(done({"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"}, {"text": "So."}))
    assert heard.shape == [
        ("thinking", "Hm.", {"origin": "google", "signature": "c2ln"}),
        ("text", "So.", None),
    ]


async def test_vertex_marks_its_own() -> None:
    heard = await hear(done({"text": "Hm.", "thought": True}, {"text": "So."}), config={"platform": "vertex"})
    assert heard.shape[0] == ("thinking", "Hm.", {"origin": "google", "platform": "vertex"})


async def test_what_has_no_part_of_ours_travels_whole() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(1)"}}
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}}
    picture = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    heard = await hear(
        sse(
            piece({"text": "Running."}, {**code, "thoughtSignature": "c2ln"}),
            piece(result),
            piece({"text": "One."}),
            piece(picture, finish="STOP"),
        )
    )
    assert heard.shape == [
        ("text", "Running.", None),
        ("thinking", "", {**OWN, "signature": "c2ln", "signs": "text"}),
        ("text", "", {**OWN, "block": code}),
        ("text", "", {**OWN, "block": result}),
        ("text", "One.", OWN),
        ("text", "", {**OWN, "block": picture}),
    ]


async def test_empty_parts_are_nothing() -> None:
    heard = await hear(
        sse(piece({"text": ""}, {}), piece({"thought": True}), piece({"text": "ok"}, finish="STOP"))
    )
    assert heard.shape == [("text", "ok", None)]


async def test_another_candidate_is_not_read() -> None:
    second = {"index": 1, "content": {"parts": [{"text": "no"}]}, "finishReason": "STOP"}
    first = piece({"text": "yes"}, finish="STOP")
    first["candidates"].append(second)
    heard = await hear(sse(first))
    assert heard.shape == [("text", "yes", None)]


async def test_half_a_character() -> None:
    body = sse(
        piece({"text": "a"}), piece({"text": "\ud83d"}), piece({"text": "\ude00"}), piece(finish="STOP")
    )
    assert (await hear(body)).shape == [("text", "a\U0001f600", None)]


async def test_half_a_character_beside_a_call() -> None:
    body = done({"text": "\ud83d"}, call("now", {"a": "\ud83d\ude00"}))
    heard = await hear(body)
    made = heard.message.tool_calls[0].payload
    assert made.arguments == {"a": "\U0001f600"}


async def test_what_grounds_an_answer_comes_with_its_end() -> None:
    about = {"groundingMetadata": {"webSearchQueries": ["q"]}, "citationMetadata": {"citations": []}}
    heard = await hear(sse(piece({"text": "a"}), piece({"text": "b"}, finish="STOP", candidate=about)))
    assert heard.done is not None and heard.done.provider_data is not None
    assert heard.done.provider_data["grounding"] == {"webSearchQueries": ["q"]}


# ── calls ──


def made(parts: list[Any]) -> list[tuple[str, str, Any]]:
    return [
        (part.payload.tool_name, part.payload.raw_args_text, part.payload.provider_data)
        for part in parts
        if isinstance(part, ToolCallPart)
    ]


@pytest.mark.spec("D-3", "D-5", "M-7")
async def test_parallel_calls_without_ids() -> None:
    heard = await hear(
        sse(
            piece(
                call("weather", {"city": "Paris"}, thoughtSignature="c2ln"),
                call("weather", {"city": "Paris"}),
                call("now", {}),
                call("now"),
            ),
            piece({"text": ""}, finish="STOP"),
        )
    )
    assert made(heard.parts) == [
        ("weather", '{"city":"Paris"}', OWN),
        ("weather", '{"city":"Paris"}', OWN),
        ("now", "{}", OWN),
        ("now", "{}", OWN),
    ]
    assert heard.shape[0] == ("thinking", "", {"origin": "google", "signature": "c2ln", "signs": "call"})
    assert heard.finish == "tool_calls"
    assert len({part.payload.tool_call_id for part in heard.message.tool_calls}) == 4


async def test_ids_are_kept_and_a_repeated_call_is_one() -> None:
    heard = await hear(done(call("now", {}, id="x1"), call("now", {}, id="x1"), call("now", {}, id="x2")))
    assert [data["id"] for _, _, data in made(heard.parts)] == ["x1", "x2"]


async def test_arguments_keep_their_spelling_without_the_spaces_between() -> None:
    body = (
        b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {\n "n" : 1.10,'
    )
    body += b' "big": 123456789012345678901, "s": "a  \\u003d b"}}}]}, "finishReason": "STOP"}]}\n\n'
    heard = await hear(body.replace(b"\n ", b" "))
    assert made(heard.parts)[0][1] == '{"n":1.10,"big":123456789012345678901,"s":"a  \\u003d b"}'


@pytest.mark.spec("M-4")
async def test_a_key_that_appears_twice_is_refused() -> None:
    body = b'data: {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": '
    heard = await hear(body + b'{"a": 1, "a": 2}}}]}, "finishReason": "STOP"}]}\n\n')
    assert heard.message.tool_calls[0].payload.arguments is None


async def test_names_come_back_as_ours() -> None:
    spec = ToolSpec(name="3d.render it", description="", parameter_schema={})
    async with Loopback(LoopbackAnswer.sse(done({"text": "ok"}))) as server:
        model = google(server)
        _ = [delta async for delta in model.stream(HELLO, [spec])]
        wired = server.requests[0].json["tools"][0]["functionDeclarations"][0]["name"]
        await model.close()
    assert wired != spec.name and wired[0] == "_" and len(wired) <= 64
    heard = await hear(done(call(wired, {})), HELLO, [spec])
    assert made(heard.parts)[0][0] == "3d.render it"


async def test_a_call_without_a_name() -> None:
    heard = await hear(done({"functionCall": {"args": {"a": 1}}}))
    assert heard.error is not None and heard.error.error_code == "ModelProtocolError"


async def test_a_call_in_pieces_is_refused() -> None:
    begun = {"functionCall": {"name": "book", "willContinue": True}}
    heard = await hear(sse(piece(begun), piece({"functionCall": {}}, finish="STOP")))
    assert heard.error is not None and not heard.error.retryable
    assert "streamFunctionCallArguments" in (heard.error.message or "")


# ── ends ──


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("LANGUAGE", "other"),
        ("OTHER", "other"),
        ("SOMETHING_NEW", "other"),
    ],
)
async def test_finish_reasons(said: str, finish: str) -> None:
    heard = await hear(done({"text": "some"}, finish=said))
    assert heard.finish == finish


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    "said", ["MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS", "UNEXPECTED_TOOL_CALL"]
)
async def test_output_that_cannot_be_used_is_worth_another_try(said: str) -> None:
    body = sse(piece({"text": "x"}, finish=said, candidate={"finishMessage": "Malformed: print(f("}))
    heard = await hear(body)
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelProtocolError", True)
    assert "print(f(" in (heard.error.message or "")


async def test_a_tool_that_was_not_offered_is_called_all_the_same() -> None:
    heard = await hear(done(call("list_files", {}), finish="UNEXPECTED_TOOL_CALL"))
    assert heard.finish == "tool_calls"


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    ("said", "code"), [("MAX_TOKENS", "ModelProtocolError"), ("SAFETY", "ModelContentFiltered")]
)
async def test_a_call_at_which_the_answer_was_cut(said: str, code: str) -> None:
    heard = await hear(done(call("f", {"a": 1}), finish=said))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == (code, False)
    assert not any(delta.kind == "tool_call_end" for delta in heard.deltas)


async def test_the_last_finish_reason_counts() -> None:
    heard = await hear(sse(piece({"text": "a"}, finish="STOP"), piece({"text": "b"}, finish="MAX_TOKENS")))
    assert (heard.finish, heard.shape) == ("length", [("text", "ab", None)])


@pytest.mark.spec("P-4", "P-5")
async def test_a_blocked_prompt() -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "because"}
    heard = await hear(sse({"promptFeedback": feedback, "usageMetadata": COUNTS}))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelContentFiltered", False)
    assert "SAFETY" in (heard.error.message or "") and "because" in (heard.error.message or "")
    assert heard.usage is not None and heard.usage.input_tokens == 10


@pytest.mark.spec("D-4")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        sse(piece({"text": "a"})),
        sse(piece(call("f", {}))),
        sse({"usageMetadata": COUNTS}),
        sse({"promptFeedback": {"safetyRatings": []}}),
    ],
)
async def test_no_finish_reason_is_a_cut(body: bytes) -> None:
    heard = await hear(body)
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelServerError", True)


@pytest.mark.spec("P-4")
@pytest.mark.parametrize("wrapped", [False, True])
async def test_errors_that_come_as_a_list(wrapped: bool) -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}
    error = {
        "error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Too fast.", "details": [delay]}
    }
    heard = await hear(LoopbackAnswer.json([error] if wrapped else error, 429))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retry_after) == ("ModelRateLimited", 34.07)


async def test_an_error_in_the_middle_of_an_array() -> None:
    error = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded."}}
    heard = await hear(array(piece({"text": "a"}), error))
    assert heard.error is not None and heard.error.error_code == "ModelOverloaded"


# ── other forms of an answer ──


@pytest.mark.spec("P-2")
async def test_an_array_reads_like_events() -> None:
    pieces = [
        piece({"text": "a", "thought": True}),
        piece({"text": "b"}),
        piece(call("f", {"x": [1, {}]}), finish="STOP"),
    ]
    events, listed = await hear(sse(*pieces)), await hear(array(*pieces))
    assert [(d.kind, d.payload) for d in events.deltas] == [(d.kind, d.payload) for d in listed.deltas]
    unnamed = array(*pieces)
    untyped = await hear(LoopbackAnswer(body=unnamed.body))
    assert untyped.parts == events.parts
    assert made(listed.parts)[0][1] == '{"x":[1,{}]}'


@pytest.mark.spec("D-4")
async def test_an_array_that_was_never_closed() -> None:
    whole = array(piece({"text": "a"}), piece({"text": "b"}, finish="STOP"))
    for at in range(0, len(whole.body) - 2, 11):
        heard = await hear(LoopbackAnswer(body=whole.body[:at], headers=whole.headers))
        assert heard.error is not None and heard.error.retryable, at


async def test_a_proxy_that_says_it_is_done() -> None:
    heard = await hear(done({"text": "all"}) + b"data: [DONE]\n\n")
    assert (heard.shape, heard.finish) == ([("text", "all", None)], "stop")


async def test_a_whole_answer() -> None:
    heard = await hear(LoopbackAnswer.json(piece({"text": "all"}, finish="STOP")))
    assert (heard.shape, heard.finish) == ([("text", "all", None)], "stop")


@pytest.mark.spec("D-7")
async def test_usage() -> None:
    counts = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 80,
        "candidatesTokenCount": 7,
        "thoughtsTokenCount": 20,
        "toolUsePromptTokenCount": 30,
        "totalTokenCount": 157,
    }
    early = {"promptTokenCount": 100, "totalTokenCount": 100}
    heard = await hear(
        sse(
            piece({"text": "a"}, usageMetadata={"trafficType": "ON_DEMAND"}),
            piece({"text": "b"}, usageMetadata=early),
            piece({"text": "c"}, usageMetadata=early),
            piece(finish="STOP", usageMetadata=counts),
        )
    )
    usage = heard.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (130, 27, 157)
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (80, 20)
    assert [delta.kind for delta in heard.deltas].count("usage") == 2


async def test_an_answer_in_several_requests_is_one() -> None:
    broken_off = piece({"text": "one "}, finish="CONTINUATION", candidate={"continuationToken": "dG9r"})
    answers = [LoopbackAnswer.sse(sse(broken_off)), LoopbackAnswer.sse(done({"text": "two"}))]
    async with Loopback(*answers) as server:
        model = google(server)
        deltas = [delta async for delta in model.stream(HELLO)]
        await model.close()
    assert [delta.kind for delta in deltas] == ["start", "usage", "text", "usage", "text", "usage", "done"]
    assert "".join(d.payload.text_delta for d in deltas if d.kind == "text") == "one two"
    assert deltas[-2].payload.output_tokens == 10
    first, second = (request.json for request in server.requests)
    assert second == {**first, "continuationToken": "dG9r"}


async def test_what_was_sent_can_be_seen() -> None:
    heard = await hear(done({"text": "a"}), config={"include_raw": True})
    seen = [delta.provider_raw for delta in heard.deltas if delta.provider_raw]
    assert seen[0]["events"][0]["data"]["candidates"][0]["finishReason"] == "STOP"


@pytest.mark.spec("P-2")
@pytest.mark.parametrize("pieces", [None, 1, 7])
@pytest.mark.parametrize("headers", [{"content-type": "application/json"}, {}])
async def test_the_first_byte_tells_what_the_content_type_does_not(headers: Any, pieces: Any) -> None:
    parts = [piece({"text": "a\n\n"}), piece(call("f", {"a": 1}), finish="STOP")]
    listed = array(*parts).body
    for body in (sse(*parts), listed, b"\xef\xbb\xbf" + listed, b"\n" + listed):
        heard = await hear(LoopbackAnswer(body=body, headers=headers, pieces=pieces))
        assert (heard.error, heard.finish, heard.message.text) == (None, "tool_calls", "a\n\n")


@pytest.mark.spec("D-4")
async def test_a_finish_reason_that_says_nothing_ends_nothing() -> None:
    unsaid = piece({"text": "a"}, finish="FINISH_REASON_UNSPECIFIED")
    heard = await hear(sse(unsaid))
    assert heard.error is not None and heard.error.error_code == "ModelServerError"
    assert (await hear(sse(unsaid, piece({"text": "b"}, finish="STOP")))).message.text == "ab"


@pytest.mark.spec("P-4", "P-5")
async def test_finish_reasons_of_newer_models() -> None:
    assert (await hear(sse(piece({"text": "a"}, finish="MODEL_ARMOR")))).finish == "content_filter"
    heard = await hear(sse(piece(finish="MISSING_THOUGHT_SIGNATURE")))
    assert heard.error is not None
    assert (heard.error.error_code, heard.error.retryable) == ("ModelBadRequest", False)


@pytest.mark.spec("D-4")
async def test_types_that_are_none_leave_the_rest_readable() -> None:
    odd = piece({"text": "a", "thought": "no"}, call("f", {"a": "\ud83d"}), usageMetadata="none")
    odd["candidates"][0] |= {"citationMetadata": 7, "finishMessage": 3, "tokenCount": "x"}
    odd["candidates"].append(None)
    heard = await hear(sse(odd, piece({"text": "b"}, finish="STOP")))
    assert (heard.error, heard.finish, heard.message.text) == (None, "tool_calls", "ab")
