"""Requests to Chat Completions servers: histories of any origin, tools, and where servers differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec
import pytest

from models.recorded import PlayingTransport
from turnlog.contract import (
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    RequestMetadata,
    SpecificTool,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
    ToolSpec,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.models import CacheConfig, load_model
from turnlog.models.openai_chat import OpenAIChatModel, quirks_of
from turnlog.models.wire import safe_name

OK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
LOCAL = "http://127.0.0.1:1/v1"
WEATHER = ToolSpec(
    name="weather",
    description="The weather.",
    parameter_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


async def sent(
    messages: Sequence[Message], specs: Sequence[ToolSpec] = (), prompt: str | None = None, **fields: Any
) -> Any:
    """The body that goes out for a call."""
    return (await requests(messages, specs, prompt, **fields))[1]


async def requests(
    messages: Sequence[Message], specs: Sequence[ToolSpec] = (), prompt: str | None = None, **fields: Any
) -> tuple[httpx2.Request, Any]:
    options = {
        name: fields.pop(name) for name in ("tool_choice", "request_metadata", "params") if name in fields
    }
    options.update(options.pop("params", {}))
    transport = PlayingTransport(200, {"content-type": "text/event-stream"}, [OK])
    async with httpx2.AsyncClient(transport=transport) as client:
        model = OpenAIChatModel(
            "m", client=client, **{"base_url": LOCAL, "api_key": "sk-test-key-of-no-worth", **fields}
        )
        deltas = [delta async for delta in model.stream(messages, specs, prompt, **options)]
    assert deltas[-1].kind == "done", deltas[-1]
    request = transport.requests[0]
    return request, msgspec.json.decode(request.content)


def message(role: Any, *parts: Any) -> Message:
    return Message(run_id="r", role=role, parts=list(parts), timestamp="t")


def call(number: int, name: str = "weather", args: str = '{"city":"Bern"}', **data: Any) -> ToolCallPart:
    try:
        parsed = msgspec.json.decode(args)
    except msgspec.DecodeError:
        parsed = None
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=f"call_{number}",
            tool_name=name,
            arguments=parsed,
            raw_args_text=args,
            provider_data=data or None,
        )
    )


@pytest.mark.spec("P-1", "P-10")
async def test_a_plain_request() -> None:
    request, body = await requests(
        [user_message("hi")],
        prompt="Be brief.",
        temperature=0.5,
        top_p=0.9,
        max_tokens=100,
        stop_sequences=["END"],
        seed=7,
        reasoning_effort="low",
        extra_body={"top_k": 5},
        extra_headers={"X-Trace": "t1"},
    )
    assert str(request.url) == f"{LOCAL}/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-test-key-of-no-worth"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["x-trace"] == "t1"
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "stop": ["END"],
        "seed": 7,
        "reasoning_effort": "low",
        "top_k": 5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    }


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("choice", "wire"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (SpecificTool(name="weather"), {"type": "function", "function": {"name": "weather"}}),
        (SpecificTool(name="a.b"), {"type": "function", "function": {"name": safe_name("a.b")}}),
    ],
)
async def test_tool_choice(choice: Any, wire: Any) -> None:
    body = await sent([user_message("hi")], [WEATHER], tool_choice=choice)
    assert body["tool_choice"] == wire
    assert "tool_choice" not in await sent([user_message("hi")], tool_choice=choice)


@pytest.mark.spec("T-1")
async def test_tools() -> None:
    odd = ToolSpec(name="files.read " + "x" * 80, description="d", parameter_schema={})
    strict = ToolSpec(
        name="s",
        description="d",
        strict=True,
        parameter_schema={
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    )
    loose = ToolSpec(name="l", description="d", strict=True, parameter_schema=WEATHER.parameter_schema)
    specs = [WEATHER, odd, strict, loose]
    functions = [tool["function"] for tool in (await sent([user_message("hi")], specs))["tools"]]
    assert functions[0] == {
        "name": "weather",
        "description": "The weather.",
        "parameters": WEATHER.parameter_schema,
    }
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", functions[1]["name"])
    assert functions[1]["parameters"] == {"type": "object", "properties": {}}
    body = await sent([user_message("hi")], specs, base_url="https://api.openai.com/v1")
    assert [tool["function"].get("strict") for tool in body["tools"]] == [None, None, True, False]


@pytest.mark.spec("P-9", "M-7")
async def test_a_history_of_another_provider() -> None:
    history = [
        user_message("what is the weather?"),
        message(
            "assistant",
            thinking_part("secret thoughts", {"origin": "anthropic", "signature": "abc"}),
            text_part("Let me see."),
            call(1, origin="anthropic", id="toolu_01"),
            call(2, name="bad name!", args='{"x": ', origin="anthropic", id="toolu_02"),
        ),
        message(
            "tool",
            tool_result_part("call_1", {"sky": "blue"}),
            tool_result_part("call_2", "no", is_error=True),
        ),
        message("assistant", thinking_part("only thoughts")),
        message("assistant", text_part("Blue.")),
        user_message("thanks"),
        message("system", text_part("The user is happy.")),
    ]
    wire = (await sent(history, [WEATHER]))["messages"]
    assert [one["role"] for one in wire] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "system",
    ]
    first, second = wire[1]["tool_calls"]
    assert wire[1]["content"] == "Let me see."
    assert first == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
    }
    assert second["function"]["arguments"] == '{"INVALID_JSON":"{\\"x\\": "}'
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", second["function"]["name"])
    assert wire[2] == {"role": "tool", "tool_call_id": "call_1", "content": '{"sky":"blue"}'}
    assert wire[3]["content"] == "Error: no"
    assert "thoughts" not in msgspec.json.encode(wire).decode()


@pytest.mark.spec("P-9")
async def test_calls_and_results_are_paired() -> None:
    history = [
        user_message("go"),
        message("assistant", call(1), call(2), call(3)),
        message("tool", tool_result_part("call_3", "three")),
        user_message("and?"),
        message("tool", tool_result_part("call_1", "one"), tool_result_part("call_9", "whose?")),
        message("assistant", call(4)),
    ]
    wire = (await sent(history, [WEATHER]))["messages"]
    shown = [(one["role"], one.get("tool_call_id"), str(one["content"])[:9]) for one in wire]
    assert shown == [
        ("user", None, "go"),
        ("assistant", None, "None"),
        ("tool", "call_1", "one"),
        ("tool", "call_2", "Error: No"),
        ("tool", "call_3", "three"),
        ("user", None, "and?"),
        ("assistant", None, "None"),
        ("tool", "call_4", "Error: No"),
    ]


IMAGE = ImagePart(payload=Image(mime_type="image/png", data="iVBO"))
LINK = ImagePart(payload=Image(mime_type="image/png", url="https://x.example/a.png"))
BLOB = ImagePart(payload=Image(mime_type="image/png", url="blob:sha256-abc"))
FILE = FileRefPart(payload=FileRef(path="/w/a.csv", mime_type="text/csv", size=12))


@pytest.mark.spec("P-5", "P-9")
async def test_images_and_files() -> None:
    content = (await sent([user_message([text_part("see"), IMAGE, LINK, BLOB, FILE])]))["messages"][0][
        "content"
    ]
    assert content == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
        {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
        {"type": "text", "text": "[image (image/png): its data is not available]"},
        {"type": "text", "text": "[file: /w/a.csv (text/csv, 12 bytes)]"},
    ]
    blind = (await sent([user_message([text_part("see"), IMAGE, FILE])], images=False))["messages"][0][
        "content"
    ]
    assert blind == (
        "see\n[image (image/png): not shown, this model takes no images]\n"
        "[file: /w/a.csv (text/csv, 12 bytes)]"
    )


@pytest.mark.spec("P-9")
async def test_images_in_results_follow_in_a_users_message() -> None:
    result = ToolResultPart(
        payload=ToolResultPayload(tool_call_id="call_1", is_error=False, content=[text_part("shot"), IMAGE])
    )
    history = [user_message("go"), message("assistant", call(1), call(2)), message("tool", result)]
    wire = (await sent(history, [WEATHER]))["messages"]
    assert [one["role"] for one in wire] == ["user", "assistant", "tool", "tool", "user"]
    assert wire[2]["content"] == "shot"
    assert wire[4]["content"][1]["image_url"]["url"].startswith("data:image/png")
    blind = (await sent(history, [WEATHER], images=False))["messages"]
    assert [one["role"] for one in blind] == ["user", "assistant", "tool", "tool"]
    assert "takes no images" in blind[2]["content"]


@pytest.mark.spec("P-2", "P-9")
async def test_mistral_has_ways_of_its_own() -> None:
    history = [
        user_message("go"),
        message("assistant", call(1)),
        message("tool", tool_result_part("call_1", "x")),
    ]
    url = "https://api.mistral.ai/v1"
    body = await sent(history, [WEATHER], base_url=url, tool_choice="required", seed=3)
    assert body["tool_choice"] == "any"
    assert body["random_seed"] == 3
    assert "stream_options" not in body
    assistant, tool = body["messages"][1:]
    assert "content" not in assistant
    assert re.fullmatch(r"[A-Za-z0-9]{9}", tool["tool_call_id"])
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"]


@pytest.mark.spec("P-2")
@pytest.mark.parametrize(
    ("url", "model", "field"),
    [
        ("https://api.openai.com/v1", "gpt-5.2", "max_completion_tokens"),
        ("https://api.groq.com/openai/v1", "llama", "max_completion_tokens"),
        ("https://api.deepseek.com", "deepseek-chat", "max_tokens"),
        ("https://me.openai.azure.com", "gpt-5-mini", "max_completion_tokens"),
        ("https://me.openai.azure.com", "my-deployment", "max_tokens"),
        (LOCAL, "gpt-oss", "max_tokens"),
    ],
)
async def test_the_limit_has_two_names(url: str, model: str, field: str) -> None:
    body = await sent([user_message("hi")], base_url=url, model_id=model, max_tokens=9)
    assert body[field] == 9
    body = await sent([user_message("hi")], base_url=url, max_tokens=9, max_tokens_field="max_tokens")
    assert body["max_tokens"] == 9


@pytest.mark.spec("P-2")
async def test_azure() -> None:
    request, _ = await requests(
        [user_message("hi")], base_url="https://me.openai.azure.com", api_version="2025-01-01"
    )
    assert request.url.raw_path == b"/openai/deployments/m/chat/completions?api-version=2025-01-01"
    assert request.headers["api-key"] == "sk-test-key-of-no-worth"
    assert "authorization" not in request.headers
    request, _ = await requests([user_message("hi")], base_url="https://me.openai.azure.com/openai/v1")
    assert request.url.raw_path == b"/openai/v1/chat/completions"


@pytest.mark.spec("P-6", "M-7")
async def test_thoughts_go_back_to_the_server_that_had_them() -> None:
    mark = {
        "origin": "openai-chat",
        "host": "api.deepseek.com",
        "model_id": "m",
        "field": "reasoning_content",
    }
    history = [
        user_message("go"),
        message("assistant", thinking_part("hm", mark), call(1)),
        message("tool", tool_result_part("call_1", "x")),
    ]
    url = "https://api.deepseek.com"
    assert (await sent(history, base_url=url))["messages"][1]["reasoning_content"] == "hm"
    assert "reasoning_content" not in (await sent(history, base_url=url, model_id="n"))["messages"][1]
    assert "reasoning_content" not in (await sent(history))["messages"][1]


@pytest.mark.spec("P-6")
async def test_signed_thoughts_go_back_only_while_the_wire_before_them_is_unchanged() -> None:
    url = "https://openrouter.ai/api/v1"
    delta = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz"}]}
    detail = msgspec.json.encode({"choices": [{"index": 0, "delta": delta}]})
    transport = PlayingTransport(
        200, {"content-type": "text/event-stream"}, [b"data: " + detail + b"\n\n" + OK]
    )
    first = user_message("go")
    async with httpx2.AsyncClient(transport=transport) as client:
        model = OpenAIChatModel("m", base_url=url, client=client)
        deltas = [delta async for delta in model.stream([first], [WEATHER], "Be brief.")]
        data = next(
            delta.payload.provider_data
            for delta in deltas
            if delta.kind == "thinking" and delta.payload.provider_data
        )
    answer = message("assistant", text_part("a"), thinking_part("", data))
    history = [first, answer, user_message("more")]
    said = (await sent(history, [WEATHER], "Be brief.", base_url=url))["messages"][2]
    assert said["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "xyz"}]
    changed = [user_message("go!"), answer, user_message("more")]
    assert (
        "reasoning_details" not in (await sent(changed, [WEATHER], "Be brief.", base_url=url))["messages"][2]
    )
    assert (
        "reasoning_details" not in (await sent(history, [WEATHER], "Be long.", base_url=url))["messages"][2]
    )
    assert "reasoning_details" not in (await sent(history, (), "Be brief.", base_url=url))["messages"][2]


async def test_a_signature_of_googles_goes_back_with_its_call() -> None:
    url = "https://generativelanguage.googleapis.com/v1beta/openai"
    data = {"origin": "openai-chat", "host": "generativelanguage.googleapis.com", "model_id": "m"}
    signature = {"google": {"thought_signature": "sig"}}
    history = [user_message("go"), message("assistant", call(1, **data, extra_content=signature))]
    assert (await sent(history, base_url=url))["messages"][1]["tool_calls"][0]["extra_content"] == signature
    assert "extra_content" not in (await sent(history))["messages"][1]["tool_calls"][0]


@pytest.mark.spec("C-3", "P-11")
async def test_the_wire_grows_and_is_the_same_with_a_fresh_model() -> None:
    history: list[Message] = []
    for number in range(6):
        history += [
            user_message(f"question {number}"),
            message("assistant", text_part("x"), call(number)),
            message("tool", tool_result_part(f"call_{number}", "result")),
            message("assistant", text_part(f"answer {number}")),
        ]
    transport = PlayingTransport(200, {"content-type": "text/event-stream"}, [OK])
    before = b""
    async with httpx2.AsyncClient(transport=transport) as client:
        kept = OpenAIChatModel("m", base_url=LOCAL, client=client)
        for end in range(1, len(history) + 1):
            if history[end - 1].tool_calls:
                continue  # the loop never asks between a call and its result
            meta = RequestMetadata(session_id="s", run_id="r")
            for model in (kept, OpenAIChatModel("m", base_url=LOCAL, client=client)):
                async for _ in model.stream(history[:end], [WEATHER], "Be brief.", request_metadata=meta):
                    pass
            with_cache, without = [request.content for request in transport.requests[-2:]]
            assert with_cache == without
            wire = msgspec.json.encode(msgspec.json.decode(with_cache)["messages"])[:-1]
            assert wire.startswith(before)
            before = wire


async def test_one_model_serves_several_sessions() -> None:
    transport = PlayingTransport(200, {"content-type": "text/event-stream"}, [OK])
    async with httpx2.AsyncClient(transport=transport) as client:
        model = OpenAIChatModel("m", base_url=LOCAL, client=client)
        for session in ("a", "b", "a", ""):
            meta = RequestMetadata(session_id=session, run_id="r")
            async for _ in model.stream([user_message(f"of {session}")], request_metadata=meta):
                pass
    said = [msgspec.json.decode(request.content)["messages"][0]["content"] for request in transport.requests]
    assert said == ["of a", "of b", "of a", "of "]


@pytest.mark.spec("P-10")
async def test_parameters_of_one_call() -> None:
    body = await sent([user_message("hi")], params={"temperature": 0.1, "top_k": 3, "model": "other"})
    assert (body["temperature"], body["top_k"], body["model"]) == (0.1, 3, "other")
    own = [{"role": "user", "content": "mine"}]
    body = await sent([user_message("hi")], [WEATHER], extra_body={"messages": own})
    assert body["messages"] == own
    assert body["tools"]


@pytest.mark.spec("P-7")
async def test_the_cache_key_is_the_session() -> None:
    meta = RequestMetadata(session_id="s1", run_id="r")
    fields: dict[str, Any] = {"request_metadata": meta, "cache_config": CacheConfig()}
    assert (await sent([user_message("hi")], base_url="https://api.openai.com/v1", **fields))[
        "prompt_cache_key"
    ] == "s1"
    assert "prompt_cache_key" not in await sent([user_message("hi")], **fields)


# ── configuration ──


@pytest.mark.spec("P-1", "P-3", "E-2")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"base_url": "api.openai.com"}, "base_url is 'api.openai.com'"),
        ({"base_url": "https://user:pass-word@x.example"}, "give it as api_key"),
        ({"base_url": "http://x.example:99999"}, "base_url"),
        ({"timeout_silence": 0}, "timeout_silence is 0"),
        ({"presence_penalty": 3}, "presence_penalty is 3"),
        ({"tempratur": 1}, "no field 'tempratur'"),
        ({"temperature": "hot"}, "float"),
        ({"extra_headers": {"x": "a\nb"}}, "extra_headers"),
    ],
)
def test_bad_configuration_is_refused_at_once(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError, match=re.escape(words)) as found:
        load_model("openai-chat:m", **fields)
    assert found.value.code == "ConfigInvalid"
    assert "pass-word" not in str(found.value)


@pytest.mark.spec("P-3", "E-2")
@pytest.mark.parametrize(
    ("url", "variable"),
    [
        (None, "OPENAI_API_KEY"),
        ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        ("https://eu.openai.azure.com", "AZURE_OPENAI_API_KEY"),
        ("https://vllm.example/v1", "OPENAI_API_KEY"),
    ],
)
async def test_a_missing_key_names_its_variable(
    url: str | None, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "OPENAI_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    model = load_model("openai-chat:m", **({"base_url": url} if url else {}))
    deltas = [delta async for delta in model.stream([user_message("hi")])]
    assert deltas[-1].payload.error_code == "ModelAuthError"
    assert variable in deltas[-1].payload.message


@pytest.mark.spec("P-3", "E-3")
async def test_key_and_address_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://vllm.example/v1/")
    model = OpenAIChatModel("m")
    assert model.descriptor.provider_id == "openai-compatible"
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert model.descriptor.provider_id == "openai"
    shown = repr(OpenAIChatModel("m", api_key="sk-canary-987654321").get_config())
    assert "canary" not in shown


def test_how_much_a_model_takes() -> None:
    info = OpenAIChatModel("openai/gpt-4.1-mini", base_url=LOCAL).model_info()
    assert (info.context_window, info.max_output_tokens) == (1_000_000, 32_768)
    info = OpenAIChatModel("unheard-of", base_url=LOCAL, context_window=4096).model_info()
    assert (info.context_window, info.max_output_tokens) == (4096, None)


def test_what_a_model_supports() -> None:
    assert OpenAIChatModel("m", base_url=LOCAL).supports("images")
    assert not OpenAIChatModel("m", base_url=LOCAL, images=False).supports("images")
    assert not OpenAIChatModel("m", base_url="https://api.deepseek.com").supports("images")
    assert quirks_of("https://evil-api.openai.com.example", "m").provider == "openai-compatible"
    assert (
        OpenAIChatModel("m", base_url="https://openrouter.ai/api/v1").model_info().provider_id == "openrouter"
    )
