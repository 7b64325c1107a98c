"""Requests to Responses servers: histories of any origin, tools, and where servers differ."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import msgspec
import pytest

from models.recorded import PlayingTransport
from models.responses_wire import (
    CALL_ID,
    FAMILY,
    HELLO,
    WEATHER,
    answer,
    ask,
    calls,
    check_official,
    message,
    results,
    says,
    sse,
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
    ToolResultPart,
    ToolResultPayload,
    ToolSpec,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.models import CacheConfig, load_model
from turnlog.models.openai_responses import OpenAIResponsesModel
from turnlog.models.wire import NO_RESULT, safe_name
from turnlog.testing._model_cases import histories

OPENAI = "https://api.openai.com/v1"
PIXEL = "iVBORw0KGgo="
STRICT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


async def sent(*args: Any, **fields: Any) -> tuple[httpx2.Request, Any]:
    """The request that a call sends, to wherever ``base_url`` says; nothing leaves the process."""
    options = {name: fields.pop(name) for name in ("tool_choice", "request_metadata") if name in fields}
    transport = PlayingTransport(200, {"content-type": "text/event-stream"}, [sse(answer(message()))])
    async with httpx2.AsyncClient(transport=transport) as client:
        given = {"base_url": OPENAI, "api_key": "sk-test-key-of-no-worth", **fields}
        model = OpenAIResponsesModel(given.pop("model_id", "gpt-5.2"), client=client, **given)
        deltas = [delta async for delta in model.stream(*(args or (HELLO,)), **options)]
    assert deltas[-1].kind == "done", deltas[-1]
    request = transport.requests[0]
    return request, msgspec.json.decode(request.content)


def role(role: Any, *parts: Any) -> Message:
    return Message(run_id="r", role=role, parts=list(parts), timestamp="t")


# ── the call ──


@pytest.mark.spec("P-1", "P-10")
async def test_a_plain_request() -> None:
    request, body = await sent(
        HELLO,
        [WEATHER],
        "Be brief.",
        max_tokens=100,
        reasoning_effort="low",
        reasoning_summary="auto",
        verbosity="low",
        parallel_tool_calls=False,
        metadata={"team": "a"},
        service_tier="flex",
        extra_body={"top_logprobs": 2},
        extra_headers={"X-Trace": "t1"},
        organization="org-1",
        request_metadata=RequestMetadata(session_id="s1", run_id="r1"),
    )
    assert str(request.url) == f"{OPENAI}/responses"
    assert request.headers["authorization"] == "Bearer sk-test-key-of-no-worth"
    assert request.headers["openai-organization"] == "org-1"
    assert request.headers["x-trace"] == "t1"
    assert body == {
        "model": "gpt-5.2",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "instructions": "Be brief.",
        "max_output_tokens": 100,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "metadata": {"team": "a"},
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "prompt_cache_key": "s1",
        "top_logprobs": 2,
        "input": [{"role": "user", "content": "hello"}],
        "tools": [
            {
                "type": "function",
                "name": "weather",
                "description": WEATHER.description,
                "parameters": WEATHER.parameter_schema,
                "strict": False,
            }
        ],
    }
    check_official(body)


@pytest.mark.spec("P-6")
async def test_no_answer_leans_on_an_earlier_one() -> None:
    body = await ask([*HELLO, says("Hi."), user_message("And?")])
    assert "previous_response_id" not in body
    assert body["store"] is False
    stored = await ask(HELLO, config={"store": True})
    assert (stored["store"], stored.get("include")) == (True, None)
    asked = await ask(HELLO, config={"store": True, "encrypted_reasoning": True, "include": ["x"]})
    assert asked["include"] == ["x", "reasoning.encrypted_content"]


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (SpecificTool(name="weather"), {"type": "function", "name": "weather"}),
        (SpecificTool(name="a.b"), {"type": "function", "name": safe_name("a.b")}),
    ],
)
async def test_tool_choice(choice: Any, wire: Any) -> None:
    body = await ask(HELLO, [WEATHER], tool_choice=choice)
    assert body["tool_choice"] == wire
    check_official(body)
    assert "tool_choice" not in await ask(HELLO, tool_choice=choice)


@pytest.mark.spec("T-1", "P-9")
async def test_tools() -> None:
    odd = ToolSpec(name="files.read " + "x" * 80, description="d", parameter_schema={})
    strict = ToolSpec(name="s", description="d", strict=True, parameter_schema=STRICT)
    loose = ToolSpec(name="l", description="d", strict=True, parameter_schema=WEATHER.parameter_schema)
    search = {"type": "web_search"}
    body = await ask(HELLO, [WEATHER, odd, strict, loose], config={"server_tools": [search]})
    tools = body["tools"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tools[1]["name"])
    assert tools[1]["parameters"] == {"type": "object", "properties": {}}
    assert [tool.get("strict") for tool in tools] == [False, False, True, False, None]
    assert tools[-1] == search
    check_official(body)
    alone = await ask(HELLO, config={"server_tools": [search]}, tool_choice="required")
    assert (alone["tools"], alone["tool_choice"]) == ([search], "required")


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("model", "effort", "taken"),
    [
        ("gpt-4.1", None, True),
        ("gpt-4o-mini", None, True),
        ("gpt-5", None, False),
        ("gpt-5-mini", "minimal", False),
        ("gpt-5-chat-latest", None, True),
        ("gpt-5.2", None, False),
        ("gpt-5.2", "none", True),
        ("gpt-5", "none", False),
        ("o3", None, False),
        ("o4-mini", "high", False),
        ("codex-mini-latest", None, False),
    ],
)
async def test_temperature_only_where_it_is_allowed(model: str, effort: str | None, taken: bool) -> None:
    fields = {"model_id": model, "temperature": 0.5, "top_p": 0.9, "reasoning_effort": effort}
    body = (await sent(**fields))[1]
    assert (body.get("temperature"), body.get("top_p")) == ((0.5, 0.9) if taken else (None, None))
    elsewhere = await ask(HELLO, config=fields)
    assert elsewhere["temperature"] == 0.5, "another server's rules are not known"


@pytest.mark.spec("P-6")
@pytest.mark.parametrize(
    ("model", "asked"),
    [("gpt-5", True), ("o4-mini", True), ("gpt-4.1", False), ("gpt-4o", False), ("gpt-5-chat-latest", False)],
)
async def test_encrypted_thoughts_are_asked_of_models_that_think(model: str, asked: bool) -> None:
    body = (await sent(model_id=model))[1]
    assert body.get("include") == (["reasoning.encrypted_content"] if asked else None)
    forced = (await sent(model_id=model, encrypted_reasoning=not asked))[1]
    assert bool(forced.get("include")) is not asked


@pytest.mark.spec("P-7")
async def test_the_session_names_the_cached_prefix() -> None:
    def metadata(session: str) -> RequestMetadata:
        return RequestMetadata(session_id=session, run_id="r")

    assert "prompt_cache_key" not in await ask(HELLO)
    body = await ask(HELLO, request_metadata=metadata("s1"))
    assert body["prompt_cache_key"] == "s1"
    off = {"cache_config": CacheConfig(strategy="off")}
    assert "prompt_cache_key" not in await ask(HELLO, request_metadata=metadata("s1"), config=off)
    kept = {"cache_config": CacheConfig(ttl="24h")}
    body = await ask(HELLO, request_metadata=metadata("s" * 100), config=kept)
    assert (len(body["prompt_cache_key"]), body["prompt_cache_retention"]) == (64, "24h")
    check_official(body)


@pytest.mark.spec("P-2")
async def test_a_provider_that_refuses_what_it_does_not_have() -> None:
    metadata = RequestMetadata(session_id="s1", run_id="r")
    body = (await sent(base_url="https://api.groq.com/openai/v1", request_metadata=metadata))[1]
    assert not {"include", "prompt_cache_key"} & set(body)


async def test_a_format_for_the_answer() -> None:
    flat = {"type": "json_schema", "name": "n", "schema": STRICT, "strict": True}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": STRICT, "strict": True}}
    for given in (flat, nested):
        body = await ask(HELLO, config={"response_format": given})
        assert body["text"] == {"format": flat}
        check_official(body)


@pytest.mark.spec("P-10")
async def test_ones_own_words_replace_ours() -> None:
    body = await ask(HELLO, [WEATHER], config={"extra_body": {"input": "hi", "store": True}})
    assert (body["input"], body["store"], len(body["tools"])) == ("hi", True, 1)
    body = await ask(HELLO, [WEATHER], config={"extra_body": {"tools": []}}, background=True)
    assert (body["tools"], body["background"]) == ([], True)


@pytest.mark.spec("P-5", "E-2")
async def test_stop_sequences() -> None:
    with pytest.raises(AgentError, match="use openai-chat:") as error:
        OpenAIResponsesModel("gpt-5.2", base_url=OPENAI, stop_sequences=["END"])
    assert error.value.code == "ConfigInvalid"
    body = await ask(HELLO, config={"stop_sequences": ["END"]})
    assert body["stop"] == ["END"], "local servers take them"
    own = OpenAIResponsesModel("house", base_url="http://127.0.0.1:9/v1")
    assert own.supports("stop_sequences"), "what is sent is what the adapter says it can do"
    assert not OpenAIResponsesModel("gpt-5.2", base_url=OPENAI).supports("stop_sequences")


# ── where ──


@pytest.mark.spec("P-2")
@pytest.mark.parametrize(
    ("base", "fields", "url", "header"),
    [
        (OPENAI, {}, f"{OPENAI}/responses", "authorization"),
        ("http://127.0.0.1:8080/v1/", {}, "http://127.0.0.1:8080/v1/responses", "authorization"),
        ("https://x.example/v1/responses", {}, "https://x.example/v1/responses", "authorization"),
        ("https://r.openai.azure.com", {}, "https://r.openai.azure.com/openai/v1/responses", "api-key"),
        (
            "https://r.openai.azure.com/openai/v1",
            {},
            "https://r.openai.azure.com/openai/v1/responses",
            "api-key",
        ),
        (
            "https://r.openai.azure.com",
            {"api_version": "2025-04-01-preview"},
            "https://r.openai.azure.com/openai/responses?api-version=2025-04-01-preview",
            "api-key",
        ),
    ],
)
async def test_addresses(base: str, fields: dict[str, str], url: str, header: str) -> None:
    request, _ = await sent(base_url=base, **fields)
    assert str(request.url) == url
    assert "sk-test-key-of-no-worth" in request.headers[header]


@pytest.mark.spec("P-3")
def test_names_and_what_is_known_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = load_model("openai:gpt-5.2")
    info = model.model_info()
    assert (info.provider_id, info.specification, info.model_id) == ("openai", FAMILY, "gpt-5.2")
    assert (info.context_window, info.max_output_tokens) == (400_000, 128_000)
    assert model.supports("thinking")
    assert not model.supports("stop")
    other = load_model("openai:x", base_url="https://api.deepseek.com", context_window=7)
    assert (other.descriptor.provider_id, other.model_info().context_window) == ("deepseek", 7)
    assert not other.supports("images")
    assert other.model_info().provider_id == other.descriptor.provider_id


@pytest.mark.spec("E-2", "P-4")
async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    deltas = [delta async for delta in OpenAIResponsesModel("m", base_url=OPENAI).stream(HELLO)]
    assert deltas[-1].payload.error_code == "ModelAuthError"  # type: ignore[union-attr]
    assert "OPENAI_API_KEY" in deltas[-1].payload.message  # type: ignore[union-attr, operator]


# ── histories ──


@pytest.mark.spec("P-9", "M-7")
async def test_a_history_of_another_provider() -> None:
    history = [
        user_message("what is the weather?"),
        says(
            thinking_part("secret thoughts", {"origin": "anthropic", "signature": "abc"}),
            text_part("", {"origin": "anthropic", "block": {"type": "server_tool_use"}}),
            "Let me see.",
            calls("call_1", origin="anthropic", id="toolu_01"),
            "And again.",
            calls("call_2", '{"x": ', "bad name!", origin="anthropic", id="toolu_02"),
        ),
        results(("call_1", {"sky": "blue"}), tool_result_part("call_2", "no", is_error=True)),
        says(thinking_part("only thoughts")),
        says("Blue."),
        user_message("thanks"),
        role("system", text_part("The user is happy.")),
    ]
    body = await ask(history, [WEATHER], "Be brief.")
    assert body["input"] == [
        {"role": "user", "content": "what is the weather?"},
        {"type": "message", "role": "assistant", "content": "Let me see."},
        {"type": "message", "role": "assistant", "content": "And again."},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "weather",
            "arguments": '{"city": "Paris"}',
        },
        {"type": "function_call", "call_id": "call_2", "name": safe_name("bad name!"), "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"sky":"blue"}'},
        {"type": "function_call_output", "call_id": "call_2", "output": "Error: no"},
        {"type": "message", "role": "assistant", "content": "Blue."},
        {"role": "user", "content": "thanks"},
        {"role": "system", "content": "The user is happy."},
    ]
    check_official(body)


@pytest.mark.spec("P-9")
async def test_calls_that_were_never_answered() -> None:
    history = [*HELLO, says(calls("c1"), calls("c2")), results(("c2", "two"), ("c9", "nine")), *HELLO]
    outputs = [one for one in (await ask(history))["input"] if one.get("type") == "function_call_output"]
    assert [(one["call_id"], one["output"]) for one in outputs] == [
        ("c1", f"Error: {NO_RESULT}"),
        ("c2", "two"),
    ]


@pytest.mark.spec("P-9", "M-7", "M-8")
async def test_call_ids() -> None:
    own = {"origin": FAMILY, "item_id": "fc_1", "at": 0}
    history = [
        *HELLO,
        says(
            calls("c1", **own, id=CALL_ID),
            calls("c2", **own, id=CALL_ID),
            calls("c3", **own, id="call_1"),
            calls("c4", **own, id="weird id/with:characters " + "x" * 100),
            calls("c:5" + "x" * 90),
        ),
        results(("c1", "1"), ("c2", "2"), ("c3", "3"), ("c4", "4"), ("c:5" + "x" * 90, "5")),
    ]
    body = await ask(history)
    ids = [one["call_id"] for one in body["input"][1:]]
    last = safe_name("c:5" + "x" * 90)
    assert ids == [CALL_ID, "c2", "c3", "c4", last] * 2
    assert all(len(one) <= 64 for one in ids)
    assert not any("id" in one for one in body["input"][1:])
    check_official(body)


@pytest.mark.spec("P-5", "P-9")
async def test_images_and_files() -> None:
    inline = ImagePart(payload=Image(mime_type="image/png", data=PIXEL))
    linked = ImagePart(payload=Image(mime_type="image/png", url="https://example.com/a.png"))
    lost = ImagePart(payload=Image(mime_type="image/png", url="blob:sha256-00"))
    file = FileRefPart(payload=FileRef(path="a.txt", mime_type="text/plain", size=3))
    shown = [role("user", text_part("See:"), inline, linked, lost, file, text_part(""))]
    body = await ask(shown)
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
        {"type": "input_text", "text": "[image (image/png): its data is not available]"},
        {"type": "input_text", "text": "[file: a.txt (text/plain, 3 bytes)]"},
    ]
    check_official(body)
    blind = await ask(shown, config={"images": False})
    assert "input_image" not in str(blind)
    assert "takes no images" in str(blind)


@pytest.mark.spec("P-5", "P-9")
async def test_results_with_images() -> None:
    picture = ImagePart(payload=Image(mime_type="image/png", data=PIXEL))
    wire = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    result = ToolResultPart(
        payload=ToolResultPayload(tool_call_id="c1", is_error=False, content=[text_part("see"), picture])
    )
    bare = ToolResultPart(payload=ToolResultPayload(tool_call_id="c2", is_error=True, content=[picture]))
    history = [*HELLO, says(calls("c1"), calls("c2")), results(result, bare)]
    official = (await sent(history))[1]
    assert [one["output"] for one in official["input"][-2:]] == [
        [{"type": "input_text", "text": "see"}, wire],
        [{"type": "input_text", "text": "Error:"}, wire],
    ]
    check_official(official)
    other = await ask(history)
    assert [one.get("output") for one in other["input"][-3:]] == ["see", "Error: [see the image below]", None]
    assert other["input"][-1]["content"][1::2] == [wire, wire]
    check_official(other)
    blind = await ask(history, config={"images": False})
    assert "takes no images" in blind["input"][-2]["output"]
    told = await ask(history, config={"image_results": True})
    assert told["input"] == official["input"]


@pytest.mark.spec("P-9")
@pytest.mark.parametrize("name", histories())
async def test_every_history_fits_the_official_types(name: str) -> None:
    check_official(await ask(histories()[name], [WEATHER], "Be brief."))
    check_official((await sent(histories()[name], [WEATHER], "Be brief."))[1])


@pytest.mark.spec("P-9")
async def test_nothing_to_say() -> None:
    for messages in ([], [role("user", text_part(""))], [says(thinking_part("hm"))]):
        assert (await ask(messages))["input"] == [{"role": "user", "content": "Begin."}]


@pytest.mark.spec("C-3", "P-7")
async def test_the_wire_only_grows() -> None:
    history: list[Message] = []
    before = ""
    for turn in range(4):
        history += [user_message(f"question {turn}"), says(f"answer {turn}", calls(f"c{turn}"))]
        history.append(results((f"c{turn}", "ok")))
        wire = msgspec.json.encode((await ask(history))["input"]).decode()
        assert wire.startswith(before)
        before = wire[:-1]
