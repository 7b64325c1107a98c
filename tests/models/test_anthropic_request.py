"""What the adapter sends: every history becomes a request that Anthropic accepts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.anthropic_wire import (
    HELLO,
    WEATHER,
    anthropic,
    ask,
    calls,
    check_official,
    marks,
    results,
    says,
    thought,
    unmarked,
)
from turnlog.contract import (
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    RequestMetadata,
    SpecificTool,
    TextPart,
    ToolSpec,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.models import ModelRequest
from turnlog.models._turns import FoldCache
from turnlog.models.anthropic import AnthropicConfig, AnthropicModel
from turnlog.models.anthropic._model import build_body
from turnlog.testing import Loopback, LoopbackAnswer

PNG = "iVBORw0KGgo="


async def turns_of(messages: list[Message], **kw: Any) -> list[tuple[str, list[Any]]]:
    body = await ask(messages, **kw)
    check_official(body)
    return [(turn["role"], unmarked(turn["content"])) for turn in body["messages"]]


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# ── settings ──


async def test_a_plain_call() -> None:
    body = await ask(HELLO, system="Be brief.")
    check_official(body)
    assert body["model"] == "claude-sonnet-4-5"
    assert body["max_tokens"] == 32_000
    assert body["stream"] is True
    assert unmarked(body["system"]) == [said("Be brief.")]
    assert unmarked(body["messages"]) == [{"role": "user", "content": [said("hello")]}]
    assert not {"tools", "tool_choice", "thinking", "temperature"} & set(body)


async def test_settings_are_sent() -> None:
    config = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "max_tokens": 99,
        "stop_sequences": ["END"],
        "effort": "low",
        "user_id": "u1",
        "service_tier": "auto",
        "container": "c1",
        "extra_body": {"inference_geo": "eu"},
    }
    body = await ask(HELLO, config=config, speed="fast")
    check_official(body)
    assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0.5, 0.9, 4, 99)
    assert body["stop_sequences"] == ["END"]
    assert body["output_config"] == {"effort": "low"}
    assert body["metadata"] == {"user_id": "u1"}
    assert (body["inference_geo"], body["speed"], body["container"]) == ("eu", "fast", "c1")


@pytest.mark.parametrize(
    ("model_id", "most"),
    [
        ("claude-3-5-haiku-latest", 8_192),
        ("claude-3-haiku-20240307", 4_096),
        ("claude-opus-4-1", 32_000),
        ("claude-haiku-5-5", 32_000),
        ("some-local-model", 8_192),
    ],
)
async def test_max_tokens_by_model(model_id: str, most: int) -> None:
    assert (await ask(HELLO, config={"model_id": model_id}))["max_tokens"] == most


@pytest.mark.parametrize(
    ("given_as", "sent", "most"),
    [
        (2048, {"type": "enabled", "budget_tokens": 2048}, 34_048),
        (60_000, {"type": "enabled", "budget_tokens": 60_000}, 64_000),
        ("adaptive", {"type": "adaptive"}, 32_000),
        ({"type": "adaptive", "display": "omitted"}, {"type": "adaptive", "display": "omitted"}, 32_000),
    ],
)
async def test_thinking(given_as: Any, sent: Any, most: int) -> None:
    body = await ask(HELLO, config={"thinking": given_as})
    check_official(body)
    assert (body["thinking"], body["max_tokens"]) == (sent, most)


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": 100},
        {"thinking": "much"},
        {"thinking": True},
        {"thinking": 4000, "max_tokens": 3000},
        {"thinking": 4000, "temperature": 0.3},
        {"platform": "vertex"},
        {"base_url": "ftp://example.com"},
        {"no_such_field": 1},
    ],
)
def test_bad_configuration_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(AgentError) as caught:
        AnthropicModel("claude-sonnet-4-5", **fields)
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None),
        ("auto", {"type": "auto"}),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        (SpecificTool(name="weather"), {"type": "tool", "name": "weather"}),
    ],
)
async def test_tool_choice(choice: Any, sent: Any) -> None:
    body = await ask(HELLO, [WEATHER], tool_choice=choice)
    check_official(body)
    assert body.get("tool_choice") == sent
    one_by_one = await ask(HELLO, [WEATHER], tool_choice=choice, config={"parallel_tool_calls": False})
    if sent != {"type": "none"}:
        assert one_by_one["tool_choice"] == {**(sent or {"type": "auto"}), "disable_parallel_tool_use": True}


async def test_a_forced_tool_and_thinking_do_not_go_together() -> None:
    forced = {"tool_choice": "required", "specs": [WEATHER]}
    assert "thinking" not in await ask(HELLO, **forced, config={"thinking": 2048})
    by_default = {"model_id": "claude-sonnet-5", "thinking": "adaptive"}
    assert (await ask(HELLO, **forced, config=by_default))["thinking"] == {"type": "disabled"}
    assert not AnthropicModel("claude-fable-5-1").supports("forced_tool")
    assert AnthropicModel("claude-sonnet-4-5").supports("forced_tool")


async def test_tools() -> None:
    strict = ToolSpec(
        name="a b",
        description="d",
        parameter_schema={"type": "object", "properties": {}, "additionalProperties": False},
        strict=True,
    )
    server = {"type": "web_search_20250305", "name": "web_search"}
    config = {"server_tools": [server], "eager_tool_streaming": True}
    body = await ask(HELLO, [WEATHER, strict], config=config)
    check_official(body)
    first, second, third = unmarked(body["tools"])
    assert first["input_schema"] == WEATHER.parameter_schema
    assert first["eager_input_streaming"] is True
    assert second["strict"] is True
    assert second["name"].startswith("a_b_")
    assert third == server


async def test_a_history_with_calls_names_a_tool_even_when_none_is_offered() -> None:
    body = await ask([*HELLO, says(calls("c1")), results(("c1", "sunny"))])
    check_official(body)
    assert len(body["tools"]) == 1
    assert body["tool_choice"] == {"type": "none"}


# ── histories ──


async def test_a_round_of_tools() -> None:
    first, second = calls("c1", id="toolu_x"), calls("c2", args="")
    history = [*HELLO, says("Looking.", first, second), results(("c1", "sunny"), ("c2", {"t": 21}))]
    assert await turns_of([*history, user_message("and now?")], specs=[WEATHER]) == [
        ("user", [said("hello")]),
        (
            "assistant",
            [
                said("Looking."),
                {"type": "tool_use", "id": "toolu_x", "name": "weather", "input": {"city": "Paris"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "toolu_x", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "c2", "content": '{"t":21}'},
                said("and now?"),
            ],
        ),
    ]


async def test_arguments_go_back_as_they_were_written() -> None:
    raw = '{"b": 1.50, "a":  "é"}'
    async with Loopback(LoopbackAnswer.sse(b"")) as server:
        model = anthropic(server)
        history = [*HELLO, says(calls("c1", raw)), results(("c1", "ok"))]
        _ = [delta async for delta in model.stream(history)]
        await model.close()
        assert raw.encode() in server.requests[0].body


async def test_arguments_that_do_not_parse_are_wrapped() -> None:
    turns = await turns_of([*HELLO, says(calls("c1", '{"city": ')), results(("c1", "bad arguments"))])
    assert turns[1][1][0]["input"] == {"INVALID_JSON": '{"city": '}


async def test_orphans_are_completed_and_strays_left_out() -> None:
    history = [*HELLO, says(calls("c1"), calls("c2")), results(("c2", "late")), results(("c9", "stray"))]
    turns = await turns_of(history)
    first, second = turns[2][1]
    assert (first["tool_use_id"], first["is_error"]) == ("c1", True)
    assert second == {"type": "tool_result", "tool_use_id": "c2", "content": "late"}


async def test_ids_are_unique_and_allowed() -> None:
    one, two = calls("a:1/x", id="toolu_same"), calls("b", id="toolu_same")
    local = calls("c", id="call_0")
    turns = await turns_of([*HELLO, says(one, two, local, calls("d e"))])
    ids = [block["id"] for block in turns[1][1]]
    assert ids[0] == "toolu_same"
    assert ids[1:3] == ["b", "c"]
    assert len(set(ids)) == 4
    assert all(part.replace("_", "").replace("-", "").isalnum() for part in ids)
    assert [block["tool_use_id"] for block in turns[2][1]] == ids


async def test_results_of_all_kinds() -> None:
    parts = [
        text_part("see"),
        text_part(" "),
        ImagePart(payload=Image(mime_type="image/png", data=PNG)),
        FileRefPart(payload=FileRef(path="a.txt", size=3)),
    ]
    history = [
        *HELLO,
        says(calls("c1"), calls("c2"), calls("c3")),
        results(
            tool_result_part("c1", parts),
            tool_result_part("c2", "", is_error=True),
            tool_result_part("c3", "  "),
        ),
    ]
    first, second, third = (await turns_of(history))[2][1]
    assert first["content"] == [
        said("see"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        said("[file: a.txt (3 bytes)]"),
    ]
    assert second["is_error"] is True
    assert second["content"]
    assert third == {"type": "tool_result", "tool_use_id": "c3"}


async def test_images() -> None:
    images = [
        Image(mime_type="image/png", data=PNG),
        Image(mime_type="image/png", url="https://example.com/a.png"),
        Image(mime_type="", url=f"data:image/gif;base64,{PNG}"),
        Image(mime_type="image/tiff", data=PNG),
        Image(mime_type="image/png", url="blob:sha256-00"),
    ]
    turns = await turns_of([user_message([ImagePart(payload=image) for image in images])])
    blocks = turns[0][1]
    assert blocks[0]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
    assert blocks[1]["source"] == {"type": "url", "url": "https://example.com/a.png"}
    assert blocks[2]["source"] == {"type": "base64", "media_type": "image/gif", "data": PNG}
    assert ["image/tiff" in blocks[3]["text"], "not available" in blocks[4]["text"]] == [True, True]


async def test_empty_text_is_never_sent() -> None:
    history = [
        user_message([text_part(""), text_part(" \n"), text_part("hi")]),
        says("", calls("c1")),
        results(("c1", "x")),
        says("\n", calls("c2")),
        results(("c2", "y")),
        says("one", " ", "two"),
        user_message(""),
        user_message("go on"),
    ]
    turns = await turns_of(history, system=" ")
    assert turns[0] == ("user", [said("hi")])
    assert [block["type"] for block in turns[1][1]] == ["tool_use"]
    assert [block["type"] for block in turns[3][1]] == ["tool_use"]
    assert turns[5] == ("assistant", [said("one"), said(" "), said("two")])
    assert turns[6] == ("user", [said("go on")])


async def test_the_first_and_the_last_word_are_the_users() -> None:
    turns = await turns_of([says("Welcome."), user_message("hi"), says("Yes?")])
    assert [role for role, _ in turns] == ["user", "assistant", "user", "assistant", "user"]
    assert [role for role, _ in await turns_of([])] == ["user"]


async def test_system_messages() -> None:
    rule = Message(run_id="", role="system", parts=[text_part("Rule.")], timestamp="")
    body = await ask([rule, *HELLO, says("hi"), rule, user_message("so?")], system="Prompt.")
    check_official(body)
    assert unmarked(body["system"]) == [said("Prompt."), said("Rule.")]
    assert unmarked(body["messages"][2]["content"]) == [said("<system>\nRule.\n</system>"), said("so?")]


# ── what only Anthropic reads ──


async def test_thinking_goes_back_to_its_own_family_alone() -> None:
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    answer = says(
        thought("signed", signature="sig"),
        thought("", block=redacted),
        thought("unsigned"),
        thinking_part("foreign", {"origin": "openai-responses", "id": "rs_1"}),
        TextPart(payload=text_part("", {"origin": "google", "block": {"a": 1}}).payload),
        "So.",
    )
    turns = await turns_of([*HELLO, answer, user_message("and?")])
    assert turns[1][1] == [
        {"type": "thinking", "thinking": "signed", "signature": "sig"},
        redacted,
        said("So."),
    ]


async def test_unsigned_thinking_goes_back_where_it_is_wanted() -> None:
    answer = says(thinking_part("hm", {"origin": "anthropic"}), thinking_part("foreign"), "So.")
    turns = await turns_of([*HELLO, answer, user_message("?")], config={"unsigned_thinking": True})
    assert turns[1][1][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert len(turns[1][1]) == 2


async def test_a_paused_turn_goes_back_whole_and_last() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}}
    paused = says("Searching.", text_part("", {"origin": "anthropic", "block": search}))
    turns = await turns_of([*HELLO, paused])
    assert turns[-1] == ("assistant", [said("Searching."), search])


async def test_citations_and_callers_go_back() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    citation = {
        "type": "web_search_result_location",
        "url": "https://example.com",
        "title": "t",
        "encrypted_index": "e",
        "cited_text": "c",
    }
    answer = says(
        text_part("cited", {"origin": "anthropic", "citations": [citation]}),
        calls("c1", id="toolu_p", caller=caller, container="cont_1"),
    )
    body = await ask([*HELLO, answer, results(("c1", "6"))])
    check_official(body)
    cited, called = unmarked(body["messages"][1]["content"])
    assert cited["citations"] == [citation]
    assert called["caller"] == caller
    assert body["container"] == "cont_1"


async def test_a_budget_is_left_out_in_work_that_began_without_thinking() -> None:
    config = {"thinking": 2048}
    foreign = [*HELLO, says(calls("c1")), results(("c1", "x"))]
    assert "thinking" not in await ask(foreign, config=config)
    assert "thinking" not in await ask([*foreign, user_message("faster")], config=config)
    own = [*HELLO, says(thought("t", signature="s"), calls("c1")), results(("c1", "x"))]
    assert "thinking" in await ask(own, config=config)
    assert "thinking" in await ask([*own, says(calls("c2")), results(("c2", "y"))], config=config)
    assert "thinking" in await ask([*foreign, says("done"), user_message("next")], config=config)
    assert "thinking" in await ask(foreign, config={"thinking": "adaptive"})


# ── the wire only grows ──

MESSAGES = st.sampled_from(
    [
        user_message("question"),
        user_message([ImagePart(payload=Image(mime_type="image/png", data=PNG))]),
        user_message(" "),
        says("answer"),
        says(thought("t", signature="s"), "answer"),
        says(calls("x", id="toolu_1"), calls("y")),
        says("\n", calls("z", "{")),
        says(thinking_part("foreign")),
        results(("y", "one")),
        results(("x", "two"), ("z", {"a": 1})),
        Message(run_id="", role="system", parts=[text_part("rule")], timestamp=""),
    ]
)


def built(messages: list[Message], cache: FoldCache[Any]) -> bytes:
    config = AnthropicConfig(model_id="claude-sonnet-4-5")
    request = ModelRequest(
        messages=tuple(messages),
        tool_specs=(WEATHER,),
        system_prompt="Be brief.",
        tool_choice=None,
        metadata=RequestMetadata(session_id="s", run_id="r"),
        config=config,
        params={},
    )
    return build_body(request, cache)[0]


@given(st.lists(MESSAGES, max_size=14), st.lists(st.integers(0, 14), max_size=6))
def test_any_history_is_a_request_and_kept_bytes_change_nothing(
    history: list[Message], cuts: list[int]
) -> None:
    cache: FoldCache[Any] = FoldCache()
    for cut in cuts:
        built(history[:cut], cache)
    body = built(history, cache)
    assert body == built(history, FoldCache())
    plain = json.loads(body)
    check_official(plain)
    roles = [turn["role"] for turn in plain["messages"]]
    assert roles[0] == roles[-1] == "user"
    assert all(first != second for first, second in pairwise(roles))
    open_calls: list[str] = []
    for turn in plain["messages"]:
        answered = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
        assert answered == open_calls
        open_calls = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        assert all(block["text"] for block in turn["content"] if block["type"] == "text")
    assert len(marks(plain)) <= 4


def test_kept_bytes_are_bounded() -> None:
    cache: FoldCache[Any] = FoldCache(max_bytes=1000)
    built([user_message("x" * 5000)], cache)
    assert cache.size == 0
    built(HELLO, cache)
    assert 0 < cache.size <= 1000
