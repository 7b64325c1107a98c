"""What a Gemini request says, checked against the official client's types."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from models.anthropic_wire import WEATHER, results, says, thought
from models.google_wire import HELLO, ask, calls, check_official, google, piece, sse
from turnlog.contract import (
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    RequestMetadata,
    SpecificTool,
    ToolSpec,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.models.google._turns import NO_SIGNATURE
from turnlog.models.wire import NO_RESULT
from turnlog.testing import Loopback, LoopbackAnswer

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PARIS = {"name": "weather", "args": {"city": "Paris"}}


async def contents(*messages: Message, **kw: Any) -> Any:
    body = await ask(messages, **kw)
    check_official(body)
    roles = [content["role"] for content in body["contents"]]
    assert roles[0] == "user" and roles[-1] == "user"
    assert all(first != second for first, second in pairwise(roles))
    return [content["parts"] for content in body["contents"]]


def own(text: str, **data: Any) -> Any:
    return thinking_part(text, {"origin": "google", **data})


# ── conversations ──


async def test_the_smallest_request() -> None:
    assert await ask(HELLO) == {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


@pytest.mark.spec("P-9")
async def test_sides_alternate() -> None:
    note = Message(run_id="r", role="system", parts=[text_part("Be brief.")], timestamp="t")
    assert await contents(
        says("Hi."), says("There."), user_message("a"), note, user_message("b"), says("c")
    ) == [
        [{"text": "Begin."}],
        [{"text": "Hi."}, {"text": "There."}],
        [{"text": "a"}, {"text": "<system>\nBe brief.\n</system>"}, {"text": "b"}],
        [{"text": "c"}],
        [{"text": "Continue."}],
    ]
    assert await contents() == [[{"text": "Begin."}]]


@pytest.mark.spec("P-9")
async def test_empty_text_is_left_out() -> None:
    assert await contents(user_message("a"), says(""), user_message([text_part(""), text_part("b")])) == [
        [{"text": "a"}, {"text": "b"}]
    ]


@pytest.mark.spec("P-5")
async def test_calls_and_results_pair_by_place_and_name() -> None:
    history = [
        user_message("w?"),
        says("Let me see.", calls("c1"), calls("c2", "{}", "now"), calls("c3", "{}", "now")),
        results(
            ("c1", "sunny"), ("c2", {"time": [1, None]}), tool_result_part("c3", "broken", is_error=True)
        ),
    ]
    assert await contents(*history) == [
        [{"text": "w?"}],
        [
            {"text": "Let me see."},
            {"functionCall": PARIS},
            {"functionCall": {"name": "now", "args": {}}},
            {"functionCall": {"name": "now", "args": {}}},
        ],
        [
            {"functionResponse": {"name": "weather", "response": {"output": "sunny"}}},
            {"functionResponse": {"name": "now", "response": {"output": {"time": [1, None]}}}},
            {"functionResponse": {"name": "now", "response": {"error": "broken"}}},
        ],
    ]


@pytest.mark.spec("P-9")
async def test_results_are_completed_ordered_and_moved_up() -> None:
    history = [
        user_message("w?"),
        says(calls("c1"), calls("c2", "{}", "now")),
        user_message("wait"),
        results(("c2", "noon")),
    ]
    assert (await contents(*history))[2] == [
        {"functionResponse": {"name": "weather", "response": {"error": NO_RESULT}}},
        {"functionResponse": {"name": "now", "response": {"output": "noon"}}},
        {"text": "wait"},
    ]


async def test_arguments_go_back_to_the_letter() -> None:
    raw = '{"n": 1.10, "big": 123456789012345678901}'
    async with Loopback(LoopbackAnswer.sse(sse(piece({"text": "ok"}, finish="STOP")))) as server:
        model = google(server)
        _ = [delta async for delta in model.stream([*HELLO, says(calls("c1", raw))])]
        await model.close()
    assert f'"args":{raw}'.encode() in server.requests[0].body


async def test_arguments_that_never_parsed() -> None:
    found = await contents(*HELLO, says(calls("c1", '{"city": ')), results(("c1", "no")))
    assert found[1] == [{"functionCall": {"name": "weather", "args": {"INVALID_JSON": '{"city": '}}}]


# ── what Google made goes back to Google ──


@pytest.mark.spec("M-7", "P-6")
async def test_own_thoughts_and_signatures_go_back_as_they_came() -> None:
    block = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "Y29kZQ=="}
    answer = says(
        own("Hm."),
        own("So.", signature="dGhpbms="),
        text_part("Hello", {"origin": "google"}),
        text_part("", {"origin": "google", "signature": "dGV4dA=="}),
        text_part("", {"origin": "google", "block": block}),
        calls("c1", id="x1", signature="Y2FsbA=="),
        calls("c2", id="x2"),
    )
    found = await contents(user_message("w?"), answer, results(("c1", "a"), ("c2", "b")))
    assert found[1:] == [
        [
            {"text": "Hm.", "thought": True},
            {"text": "So.", "thoughtSignature": "dGhpbms=", "thought": True},
            {"text": "Hello"},
            {"text": "", "thoughtSignature": "dGV4dA=="},
            block,
            {"functionCall": {**PARIS, "id": "x1"}, "thoughtSignature": "Y2FsbA=="},
            {"functionCall": {**PARIS, "id": "x2"}},
        ],
        [
            {"functionResponse": {"name": "weather", "id": "x1", "response": {"output": "a"}}},
            {"functionResponse": {"name": "weather", "id": "x2", "response": {"output": "b"}}},
        ],
    ]


def signs(signed: str, signature: str) -> Any:
    return own("", signature=signature, signs=signed)


@pytest.mark.spec("M-7", "P-6")
async def test_a_signature_goes_back_on_the_part_that_it_signs() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    answer = says(
        "Hello",
        signs("nothing", "bm8="),
        signs("text", "dGV4dA=="),
        text_part("there", {"origin": "google"}),
        signs("text", "Y29kZQ=="),
        text_part("", {"origin": "google", "block": code}),
        signs("call", "Y2FsbA=="),
        calls("c1", id="x1"),
        calls("c2", id="x2"),
    )
    whole = await contents(user_message("w?"), answer, results(("c1", "a"), ("c2", "b")))
    assert whole[1] == [
        {"text": "Hello"},
        {"text": "", "thoughtSignature": "bm8="},
        {"text": "there", "thoughtSignature": "dGV4dA=="},
        {**code, "thoughtSignature": "Y29kZQ=="},
        {"functionCall": {**PARIS, "id": "x1"}, "thoughtSignature": "Y2FsbA=="},
        {"functionCall": {**PARIS, "id": "x2"}},
    ]
    wrong = says(signs("text", "dGV4dA=="), calls("c1"), "and on", calls("c2"))
    found = await contents(user_message("w?"), wrong, results(("c1", "a"), ("c2", "b")))
    assert "thoughtSignature" not in str(found[1]), "what it signed is gone"


@pytest.mark.spec("M-7", "P-9")
@pytest.mark.parametrize("origin", ["anthropic", "openai-responses"])
async def test_what_others_made_stays_away(origin: str) -> None:
    answer = says(
        thinking_part("Hm.", {"origin": origin, "signature": "s"}),
        thinking_part("unmarked"),
        text_part("", {"origin": origin, "block": {"type": "server_tool_use"}}),
        text_part("Hello", {"origin": origin, "citations": [1]}),
    )
    assert (await contents(*HELLO, answer))[1] == [{"text": "Hello"}]


@pytest.mark.spec("P-9")
async def test_signatures_hold_only_on_their_platform() -> None:
    answer = says(
        own("Hm."),
        text_part("Hi", {"origin": "google", "signature": "s"}),
        calls("c1", id="x", signature="s"),
    )
    config = {"platform": "vertex", "model_id": "gemini-3-pro"}
    found = await contents(*HELLO, answer, results(("c1", "a")), config=config)
    assert found[1] == [{"text": "Hi"}, {"functionCall": PARIS, "thoughtSignature": NO_SIGNATURE}]
    assert "id" not in found[2][0]["functionResponse"]


@pytest.mark.spec("P-9")
@pytest.mark.parametrize(
    ("model", "signed"),
    [
        ("gemini-3-flash-preview", True),
        ("gemini-3.1-pro-preview", True),
        ("gemini-flash-latest", True),
        ("models/gemini-3-pro", True),
        ("gemini-2.5-pro", False),
        ("gemini-2.0-flash", False),
        ("gemini-1.5-pro", False),
        ("gemma-3-27b-it", False),
    ],
)
async def test_a_foreign_call_says_that_nobody_signed_it(model: str, signed: bool) -> None:
    answer = says(calls("c1"), calls("c2"))
    found = await contents(*HELLO, answer, config={"model_id": model})
    mark = {"thoughtSignature": NO_SIGNATURE} if signed else {}
    assert found[1] == [{"functionCall": PARIS, **mark}, {"functionCall": PARIS}]


# ── images and files ──


async def test_images_and_files_of_a_user() -> None:
    parts = [
        ImagePart(payload=Image(mime_type="image/png", data=PIXEL)),
        ImagePart(payload=Image(mime_type="image/jpeg", url="https://example.org/a.jpg")),
        ImagePart(payload=Image(mime_type="image/jpeg", url="gs://bucket/a.jpg")),
        ImagePart(payload=Image(mime_type="application/pdf", url=f"data:application/pdf;base64,{PIXEL}")),
        ImagePart(payload=Image(mime_type="image/gif", data="R0lGODlh")),
        ImagePart(payload=Image(mime_type="image/png", url="blob:sha256-00")),
        FileRefPart(payload=FileRef(path="notes.txt", mime_type="text/plain", size=12)),
    ]
    assert (await contents(user_message(parts)))[0] == [
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://example.org/a.jpg"}},
        {"fileData": {"mimeType": "image/jpeg", "fileUri": "gs://bucket/a.jpg"}},
        {"inlineData": {"mimeType": "application/pdf", "data": PIXEL}},
        {"text": "[image (image/gif): not shown, this model takes no images]"},
        {"text": "[image (image/png): its data is not available]"},
        {"text": "[file: notes.txt (text/plain, 12 bytes)]"},
    ]


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-3-pro"])
async def test_images_of_a_result(model: str) -> None:
    shot = ImagePart(payload=Image(mime_type="image/png", data=PIXEL))
    lost = ImagePart(payload=Image(mime_type="image/png", url="blob:sha256-00"))
    history = [
        *HELLO,
        says(calls("c1"), calls("c2")),
        results(("c1", [text_part("see"), shot, lost]), ("c2", [shot])),
    ]
    found = (await contents(*history, config={"model_id": model}))[2]
    picture = {"inlineData": {"mimeType": "image/png", "data": PIXEL}}
    said = {"name": "weather", "response": {"output": "see\n[image (image/png): its data is not available]"}}
    silent = {"name": "weather", "response": {"output": ""}}
    if model == "gemini-3-pro":
        assert found == [
            {"functionResponse": {**said, "parts": [picture]}},
            {"functionResponse": {**silent, "parts": [picture]}},
        ]
    else:
        note = {"text": "[image of the result of weather]"}
        assert found == [
            {"functionResponse": said},
            {"functionResponse": silent},
            note,
            picture,
            note,
            picture,
        ]


# ── tools ──


async def test_tools_and_instructions() -> None:
    note = Message(run_id="r", role="system", parts=[text_part("Be kind.")], timestamp="t")
    body = await ask([note, *HELLO], [WEATHER], "Be brief.")
    check_official(body)
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]}
    declared = body["tools"][0]["functionDeclarations"][0]
    assert declared["parametersJsonSchema"] == WEATHER.parameter_schema
    assert (declared["name"], declared["description"]) == ("weather", WEATHER.description)
    assert "toolConfig" not in body


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (SpecificTool(name="weather"), {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    ],
)
async def test_tool_choice(choice: Any, said: dict[str, Any]) -> None:
    body = await ask(HELLO, [WEATHER], tool_choice=choice)
    check_official(body)
    assert body["toolConfig"] == {"functionCallingConfig": said}
    assert "toolConfig" not in await ask(HELLO, tool_choice=choice)


@pytest.mark.spec("P-9")
async def test_names_are_made_fit() -> None:
    odd = ToolSpec(name="1 tool/with:marks", description="", parameter_schema={})
    history = [*HELLO, says(calls("c1", "{}", odd.name)), results(("c1", "x"))]
    body = await ask(history, [odd], tool_choice=SpecificTool(name=odd.name))
    check_official(body)
    name = body["tools"][0]["functionDeclarations"][0]["name"]
    assert body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"] == [name]
    assert body["contents"][1]["parts"][0]["functionCall"]["name"] == name
    assert body["contents"][2]["parts"][0]["functionResponse"]["name"] == name
    assert name[0] == "_" and name.replace("_", "").replace("-", "").isalnum()


async def test_tools_that_run_at_google() -> None:
    config: dict[str, Any] = {"server_tools": [{"codeExecution": {}}], "model_id": "gemini-3-pro"}
    body = await ask(HELLO, [WEATHER], config=config)
    check_official(body)
    assert body["tools"][1] == {"codeExecution": {}}
    assert body["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in await ask(HELLO, config=config)
    assert "toolConfig" not in await ask(HELLO, [WEATHER], config={**config, "model_id": "gemini-2.5-pro"})


# ── settings ──


@pytest.mark.spec("P-10")
async def test_settings() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "max_tokens": 100,
        "stop_sequences": ["END"],
        "seed": 7,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "response_schema": schema,
        "generation_config": {"responseModalities": ["TEXT"]},
        "safety_settings": {"HARM_CATEGORY_HARASSMENT": "BLOCK_NONE"},
        "service_tier": "flex",
        "labels": {"team": "a"},
    }
    body = await ask(HELLO, config=config)
    check_official(body)
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 40,
        "maxOutputTokens": 100,
        "stopSequences": ["END"],
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
        "responseModalities": ["TEXT"],
    }
    assert body["safetySettings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    assert (body["serviceTier"], body["labels"]) == ("flex", {"team": "a"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"thinking": 2048}, {"includeThoughts": True, "thinkingBudget": 2048}),
        ({"thinking": 0}, {"thinkingBudget": 0}),
        ({"thinking": "disabled"}, {"thinkingBudget": 0}),
        ({"thinking": "dynamic"}, {"includeThoughts": True, "thinkingBudget": -1}),
        ({"thinking": "high"}, {"includeThoughts": True, "thinkingLevel": "HIGH"}),
        ({"thinking": "low", "include_thoughts": False}, {"includeThoughts": False, "thinkingLevel": "LOW"}),
        ({"thinking": {"thinkingBudget": 5}}, {"includeThoughts": True, "thinkingBudget": 5}),
        ({"include_thoughts": True}, {"includeThoughts": True}),
    ],
)
async def test_thinking(fields: dict[str, Any], said: dict[str, Any]) -> None:
    body = await ask(HELLO, config=fields)
    check_official(body)
    assert body["generationConfig"] == {"thinkingConfig": said}


async def test_what_is_cached_holds_instructions_and_tools() -> None:
    body = await ask(HELLO, [WEATHER], "Be brief.", config={"cached_content": "cachedContents/1"})
    assert body == {
        "cachedContent": "cachedContents/1",
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
    }


async def test_extra_fields_are_laid_over() -> None:
    config: dict[str, Any] = {
        "temperature": 0.5,
        "extra_body": {"generationConfig": {"topK": 3}, "store": False},
    }
    body = await ask(HELLO, config=config, generationConfig={"seed": 1})
    assert body["generationConfig"] == {"temperature": 0.5, "topK": 3}
    assert body["store"] is False
    mine = [{"role": "user", "parts": [{"text": "mine"}]}]
    assert (await ask(HELLO, config={"extra_body": {"contents": mine}}))["contents"] == mine


# ── a wire that only grows ──


@pytest.mark.spec("C-3", "P-11")
async def test_a_longer_history_begins_with_the_bytes_of_the_shorter() -> None:
    answer = LoopbackAnswer.sse(sse(piece({"text": "ok"}, finish="STOP")))
    turns = [
        user_message("w?"),
        says(own("Hm.", signature="s"), "See.", calls("c1"), calls("c2", signature="s")),
        results(("c1", "a"), ("c2", {"b": 1})),
        says("Sunny."),
        user_message("thanks"),
        says("Bye."),
        user_message("more"),
    ]
    before = json.dumps([turn.parts for turn in turns], default=str)
    place = RequestMetadata(session_id="s1", run_id="r1")
    async with Loopback(answer) as server:
        model, fresh = google(server, model_id="gemini-3-pro"), google(server, model_id="gemini-3-pro")
        for end in (1, 3, 5, 7):
            for one in (model, fresh if end == 7 else model):
                _ = [d async for d in one.stream(turns[:end], [WEATHER], "Be brief.", request_metadata=place)]
        await model.close()
        await fresh.close()
    bodies = [request.body for request in server.requests]
    assert bodies[0] == bodies[1]
    for shorter, longer in zip(bodies[:-1:2], bodies[2::2], strict=False):
        assert longer.startswith(shorter.removesuffix(b"]}]}"))
    assert bodies[-1] == bodies[-2]
    assert json.dumps([turn.parts for turn in turns], default=str) == before


async def test_unmarked_thinking_is_nobodys() -> None:
    assert (await contents(*HELLO, says(thought("Hm."), "a")))[1] == [{"text": "a"}]
