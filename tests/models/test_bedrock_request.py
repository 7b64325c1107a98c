"""What is handed to ``converse_stream``: botocore checks its shape, these tests its meaning."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

import pytest
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from models.anthropic_wire import HELLO, WEATHER, calls, results, says, thought
from models.bedrock_wire import CLAUDE, ask, session
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
from turnlog.models import CacheConfig, ModelRequest
from turnlog.models._turns import FoldCache
from turnlog.models.bedrock import BedrockConfig
from turnlog.models.bedrock._model import build_arguments

PNG = base64.b64encode(b"png").decode()
NOVA = "amazon.nova-lite-v1:0"
MISTRAL = "mistral.mistral-large-2407-v1:0"
POINT = {"cachePoint": {"type": "default"}}


def unmarked(blocks: list[Any]) -> list[Any]:
    return [block for block in blocks if "cachePoint" not in block]


async def turns_of(messages: list[Message], **kw: Any) -> list[tuple[str, list[Any]]]:
    body = await ask(messages, **kw)
    return [(turn["role"], unmarked(turn["content"])) for turn in body["messages"]]


def signed(words: str, vendor: str = "anthropic", **data: Any) -> Any:
    return thinking_part(words, {"origin": "bedrock", "vendor": vendor, **data})


async def test_settings_are_sent() -> None:
    config = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "additional_request_fields": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        "additional_response_paths": ["/stop_sequence"],
        "guardrail": {"guardrailIdentifier": "g1", "guardrailVersion": "DRAFT"},
        "performance": {"latency": "optimized"},
        "service_tier": "priority",
        "effort": "low",
    }
    body = await ask(HELLO, system="Be brief.", config=config, requestMetadata={"team": "a"})
    assert body["inferenceConfig"] == {
        "maxTokens": 9,
        "temperature": 0.5,
        "topP": 0.9,
        "stopSequences": ["END"],
    }
    assert body["additionalModelRequestFields"]["thinking"]["budget_tokens"] == 1024
    assert body["guardrailConfig"]["guardrailIdentifier"] == "g1"
    assert (body["serviceTier"], body["performanceConfig"]) == (
        {"type": "priority"},
        {"latency": "optimized"},
    )
    assert (body["outputConfig"], body["requestMetadata"]) == ({"effort": "low"}, {"team": "a"})
    assert unmarked(body["system"]) == [{"text": "Be brief."}]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None),
        ("auto", None),
        ("required", {"any": {}}),
        (SpecificTool(name="weather"), {"tool": {"name": "weather"}}),
    ],
)
async def test_tool_choice(choice: Any, sent: Any) -> None:
    body = await ask(HELLO, [WEATHER], tool_choice=choice)
    tool = body["toolConfig"]["tools"][0]["toolSpec"]
    assert tool["inputSchema"]["json"] == WEATHER.parameter_schema
    assert body["toolConfig"].get("toolChoice") == sent


async def test_no_tool_is_shown_where_none_may_be_called() -> None:
    assert "toolConfig" not in await ask(HELLO, [WEATHER], tool_choice="none")
    history = [*HELLO, says(calls("c1")), results(("c1", "x"))]
    for body in (await ask(history, [WEATHER], tool_choice="none"), await ask(history)):
        assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["no_tool"]


async def test_tools() -> None:
    strict = ToolSpec(
        name="a.b",
        description=" ",
        parameter_schema={"type": "object", "properties": {}, "additionalProperties": False},
        strict=True,
    )
    body = await ask(HELLO, [strict], config={"system_tools": ["nova_code_interpreter"]})
    first, second, point = body["toolConfig"]["tools"]
    assert first["toolSpec"]["strict"] is True
    assert "description" not in first["toolSpec"]
    assert second == {"systemTool": {"name": "nova_code_interpreter"}}
    assert point == POINT


async def test_a_round_of_tools() -> None:
    first = calls("c1", '{"city":"Paris"}', origin="bedrock", id="tooluse_x")
    second = calls("c:2", "{", "odd name")
    history = [*HELLO, says("Looking.", first, second), results(("c1", {"t": 1}), ("c:2", "bad"))]
    turns = await turns_of([*history, user_message("and?")])
    said, one, two = turns[1][1]
    assert said == {"text": "Looking."}
    assert one["toolUse"] == {"toolUseId": "tooluse_x", "name": "weather", "input": {"city": "Paris"}}
    assert two["toolUse"]["input"] == {"INVALID_JSON": "{"}
    first_result, second_result, text = turns[2][1]
    assert first_result["toolResult"] == {"toolUseId": "tooluse_x", "content": [{"text": '{"t":1}'}]}
    assert second_result["toolResult"]["toolUseId"] == two["toolUse"]["toolUseId"]
    assert text == {"text": "and?"}


async def test_results_of_all_kinds() -> None:
    parts = [
        text_part("see"),
        ImagePart(payload=Image(mime_type="image/png", data=PNG)),
        FileRefPart(payload=FileRef(path="a.txt")),
    ]
    history = [
        *HELLO,
        says(calls("c1"), calls("c2")),
        results(tool_result_part("c1", parts, is_error=True), tool_result_part("c2", " ")),
    ]
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    first, second = (await turns_of(history))[2][1]
    assert first["toolResult"]["status"] == "error"
    assert first["toolResult"]["content"] == [{"text": "see"}, image, {"text": "[file: a.txt]"}]
    assert second["toolResult"]["content"] == [{"text": "(no output)"}]
    first, _ = (await turns_of(history, config={"model_id": MISTRAL}))[2][1]
    assert "status" not in first["toolResult"]
    assert [list(block) for block in first["toolResult"]["content"]] == [["text"]] * 4


async def test_images() -> None:
    images = [
        Image(mime_type="image/png", data=PNG),
        Image(mime_type="", url=f"data:image/gif;base64,{PNG}"),
        Image(mime_type="image/png", url="https://example.com/a.png"),
        Image(mime_type="image/tiff", data=PNG),
        Image(mime_type="image/png", url="blob:sha256-00"),
        Image(mime_type="image/png", data=""),
        Image(mime_type="image/png", data="a"),
    ]
    message = user_message([ImagePart(payload=image) for image in images])
    blocks = (await turns_of([message]))[0][1]
    assert [block["image"]["format"] for block in blocks[:2]] == ["png", "gif"]
    assert all("text" in block for block in blocks[2:])
    blind = (await turns_of([message], config={"model_id": "amazon.nova-micro-v1:0"}))[0][1]
    assert all("text" in block for block in blind)


async def test_what_a_vendor_wrote_goes_back_to_it_alone() -> None:
    secret = base64.b64encode(b"hidden").decode()
    search = {"toolUse": {"toolUseId": "t", "name": "n", "input": {}, "type": "server_tool_use"}}
    citation = {"title": "t", "sourceContent": [{"text": "s"}]}
    mine = {"origin": "bedrock", "vendor": "anthropic"}
    answer = says(
        signed("hm", signature="sig"),
        signed("", redacted=secret),
        signed("unsigned"),
        thought("of Anthropic itself", signature="sig"),
        text_part("", {**mine, "block": search}),
        text_part("cited", {**mine, "citations": [citation]}),
        " ",
    )
    history = [*HELLO, answer, user_message("?")]
    assert (await turns_of(history))[1][1] == [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "sig"}}},
        {"reasoningContent": {"redactedContent": secret}},
        search,
        {"citationsContent": {"content": [{"text": "cited"}], "citations": [citation]}},
    ]
    assert (await turns_of(history, config={"model_id": NOVA}))[1][1] == [{"text": "cited"}]


async def test_results_and_text_are_parted_where_a_model_takes_no_mixture() -> None:
    history = [*HELLO, says(calls("c1")), results(("c1", "x")), user_message("go on")]
    assert [role for role, _ in await turns_of(history)] == ["user", "assistant", "user"]
    parted = await turns_of(history, config={"model_id": MISTRAL})
    assert [role for role, _ in parted] == ["user", "assistant", "user", "assistant", "user"]


async def test_cache_points() -> None:
    history = [*HELLO, says(calls("c1")), results(("c1", "x"))]
    body = await ask(history, [WEATHER], "Be brief.")
    assert body["system"][-1] == body["toolConfig"]["tools"][-1] == POINT
    assert [turn["content"][-1] == POINT for turn in body["messages"]] == [True, False, True]
    nova = await ask(history, [WEATHER], "Be brief.", config={"model_id": NOVA})
    assert POINT not in nova["toolConfig"]["tools"]
    for config in ({"cache_config": CacheConfig(strategy="off")}, {"model_id": MISTRAL}):
        assert "cachePoint" not in str(await ask(history, [WEATHER], "Be brief.", config=config))
    hour = await ask(HELLO, config={"cache_config": CacheConfig(ttl="1h")})
    assert hour["messages"][0]["content"][-1] == {"cachePoint": {"type": "default", "ttl": "1h"}}


MESSAGES = st.sampled_from(
    [
        user_message("question"),
        user_message([ImagePart(payload=Image(mime_type="image/png", data=PNG))]),
        user_message(" "),
        says("answer"),
        says(signed("t", signature="s"), "answer"),
        says(calls("x"), calls("y")),
        says("\n", calls("z", "{")),
        says(thinking_part("foreign")),
        results(("y", "one")),
        results(("x", "two"), ("z", {"a": 1})),
        Message(run_id="", role="system", parts=[text_part("rule")], timestamp=""),
    ]
)


def built(messages: list[Message], cache: FoldCache[Any], model_id: str) -> Any:
    request = ModelRequest(
        messages=tuple(messages),
        tool_specs=(WEATHER,),
        system_prompt="Be brief.",
        tool_choice=None,
        metadata=RequestMetadata(session_id="s", run_id="r"),
        config=BedrockConfig(model_id=model_id),
        params={},
    )
    return build_arguments(request, cache)[0]


@pytest.mark.spec("P-6")
def test_a_thinking_budget_is_left_out_where_claude_refuses_it_and_the_reason_told() -> None:
    config = BedrockConfig(
        model_id=CLAUDE,
        additional_request_fields={"thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 5},
    )

    def fields(*messages: Message) -> tuple[Any, str | None]:
        request = ModelRequest(
            messages=messages,
            tool_specs=(WEATHER,),
            system_prompt=None,
            tool_choice=None,
            metadata=RequestMetadata(session_id="s", run_id="r"),
            config=config,
            params={},
        )
        body, why = build_arguments(request, FoldCache())
        return body["additionalModelRequestFields"], why

    question = user_message("weather?", run_id="")
    thinks, calls_only = says(signed("hm", signature="s"), calls("x")), says(calls("x"))
    assert fields(question, thinks, results(("x", "sun"))) == (config.additional_request_fields, None)
    assert fields(question, calls_only, results(("x", "sun")), says("sun"), question)[1] is None
    lost, why = fields(question, calls_only, results(("x", "sun")))
    assert lost == {"top_k": 5}
    assert why is not None and why.startswith("thinking is off until the next user message")


@given(
    st.lists(MESSAGES, max_size=14),
    st.lists(st.integers(0, 14), max_size=6),
    st.sampled_from([CLAUDE, MISTRAL]),
)
def test_any_history_is_a_request_and_kept_turns_change_nothing(
    history: list[Message], cuts: list[int], model_id: str
) -> None:
    cache: FoldCache[Any] = FoldCache()
    for cut in cuts:
        built(history[:cut], cache, model_id)
    body = built(history, cache, model_id)
    assert body == built(history, FoldCache(), model_id)
    shape = session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape
    report = ParamValidator().validate(body, shape)
    assert not report.has_errors(), report.generate_report()
    turns = [(turn["role"], unmarked(turn["content"])) for turn in body["messages"]]
    assert turns[0][0] == turns[-1][0] == "user"
    assert all(first[0] != second[0] for first, second in pairwise(turns))
    open_calls: list[str] = []
    for _, blocks in turns:
        assert [b["toolResult"]["toolUseId"] for b in blocks if "toolResult" in b] == open_calls
        open_calls = [b["toolUse"]["toolUseId"] for b in blocks if "toolUse" in b]
        assert all(block["text"].strip() for block in blocks if "text" in block)
    assert str(body).count("cachePoint") <= 4
