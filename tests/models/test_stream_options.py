"""What ``Model.stream`` takes beyond messages and tools, and how each provider is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from models import anthropic_wire, bedrock_wire, google_wire, responses_wire
from models.chat_wire import DONE, chunk
from models.recorded import collect, outcome_of
from turnlog.contract import AgentError, ModelParams, RequestMetadata, user_message
from turnlog.models import (
    CacheConfig,
    Model,
    ModelConfig,
    ModelRequest,
    PromptPart,
    ProviderRouter,
    ScriptedModel,
)
from turnlog.models.anthropic import AnthropicConfig, AnthropicModel
from turnlog.models.bedrock import BedrockModel
from turnlog.models.http import HttpModelConfig
from turnlog.models.openai_chat import OpenAIChatConfig, OpenAIChatModel, quirks_of
from turnlog.models.openai_chat._request import Form, RequestBuilder
from turnlog.testing import Loopback, LoopbackAnswer

SCHEMA: dict[str, Any] = {
    "title": "Weather report",
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city"],
}
TRACE = "0af7651916cd43dd8448eb211c80319c"


async def chat_request(base_url: str = "", **options: Any) -> Any:
    config = options.pop("config", {})
    body = chunk({"content": "ok"}) + chunk(None, "stop") + DONE
    async with Loopback(LoopbackAnswer.sse(body)) as server:
        model = OpenAIChatModel("gpt-5.2", base_url=server.url, **config)
        found = outcome_of(await collect(model, **options))
        await model.close()
        assert found.error is None
        return server.requests[0]


# ── an answer held to a schema ──


@pytest.mark.spec("P-1", "P-5")
async def test_a_schema_in_each_providers_words() -> None:
    chat = (await chat_request(output_schema=SCHEMA)).json["response_format"]
    held = {"name": chat["json_schema"]["name"], "schema": SCHEMA, "strict": False}
    assert chat == {"type": "json_schema", "json_schema": held}

    body = await responses_wire.ask([user_message("hi")], output_schema=SCHEMA)
    responses_wire.check_official(body)
    assert body["text"]["format"] == {"type": "json_schema", **held}

    body = await anthropic_wire.ask([user_message("hi")], output_schema=SCHEMA)
    anthropic_wire.check_official(body)
    closed = {**SCHEMA, "additionalProperties": False}
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": closed}}

    body = await google_wire.ask([user_message("hi")], output_schema=SCHEMA)
    google_wire.check_official(body)
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    assert body["generationConfig"]["responseJsonSchema"]["required"] == ["city"]

    answer = bedrock_wire.answer(
        bedrock_wire.converse(*bedrock_wire.text(0, "{}"), *bedrock_wire.end("end_turn"))
    )
    heard, body = await bedrock_wire.exchange(answer, output_schema=SCHEMA)
    assert heard.error is None, "botocore takes it"
    wired = body["outputConfig"]["textFormat"]
    assert wired["type"] == "json_schema"
    assert msgspec.json.decode(wired["structure"]["jsonSchema"]["schema"]) == closed


@pytest.mark.spec("P-1")
async def test_a_strict_schema_is_sent_as_one() -> None:
    strict = {**SCHEMA, "required": ["city", "days"], "additionalProperties": False}
    request = await chat_request(output_schema=strict)
    assert request.json["response_format"]["json_schema"]["strict"] is True


@pytest.mark.spec("P-1")
@pytest.mark.parametrize(
    "model",
    [
        AnthropicModel("claude-3-5-haiku-latest"),
        AnthropicModel("qwen3"),
        BedrockModel("amazon.nova-pro-v1:0"),
    ],
    ids=lambda model: model.descriptor.model,
)
def test_a_model_without_schemas_says_so(model: Model) -> None:
    assert not model.supports("output_schema")
    with pytest.raises(AgentError, match="cannot hold its answer to a schema"):
        model.stream([user_message("hi")], output_schema=SCHEMA)


@pytest.mark.parametrize("name", ["claude-sonnet-4-5", "claude-opus-4-1", "claude-opus-5", "claude-fable-5"])
def test_newer_models_take_a_schema(name: str) -> None:
    assert AnthropicModel(name).supports("output_schema")
    assert BedrockModel(f"us.anthropic.{name}-v1:0").supports("output_schema")


# ── prompts in parts, state, traces ──


@pytest.mark.spec("P-1")
async def test_a_prompt_in_parts_is_one_prompt_elsewhere() -> None:
    parts = [PromptPart(text="Rules.", cache=True), PromptPart(text="Today is Monday.")]
    sent = (await chat_request(system_prompt_content=parts)).json
    assert sent["messages"][0] == {"role": "system", "content": "Rules.\n\nToday is Monday."}
    body = await google_wire.ask([user_message("hi")], system_prompt_content=parts)
    assert [part["text"] for part in body["systemInstruction"]["parts"]] == ["Rules.", "Today is Monday."]
    answer = bedrock_wire.answer(
        bedrock_wire.converse(*bedrock_wire.text(0, "ok"), *bedrock_wire.end("end_turn"))
    )
    _, body = await bedrock_wire.exchange(answer, system_prompt_content=parts)
    assert [next(iter(block)) for block in body["system"]] == ["text", "cachePoint", "text"]


@pytest.mark.spec("P-1")
async def test_what_is_handed_in_reaches_the_adapter_through_a_router() -> None:
    model = ScriptedModel("ok")
    state = {"tenant": 7}
    router = ProviderRouter([model])
    parts = [PromptPart(text="a"), PromptPart(text="b")]
    stream = router.stream(
        [user_message("hi")], output_schema=SCHEMA, invocation_state=state, system_prompt_content=parts
    )
    assert [delta.kind async for delta in stream][-1] == "done"
    (request,) = model.requests
    assert request.invocation_state is state
    assert (request.output_schema, request.system_prompt) == (SCHEMA, "a\n\nb")
    assert [part.text for part in request.prompt_parts] == ["a", "b"]


@pytest.mark.spec("P-10", "O-1")
@pytest.mark.parametrize(
    ("trace", "sent"),
    [
        (TRACE, f"00-{TRACE}-"),
        (f"00-{TRACE}-b7ad6b7169203331-01", f"00-{TRACE}-b7ad6b7169203331-01"),
        ("a name of ours", None),
        ("0" * 32, None),
        (None, None),
    ],
)
async def test_a_trace_reaches_the_provider(trace: str | None, sent: str | None) -> None:
    metadata = RequestMetadata(session_id="s", run_id="r", trace_id=trace)
    headers = (await chat_request(request_metadata=metadata)).headers
    found = headers.get("traceparent")
    assert (found is None) if sent is None else found is not None and found.startswith(sent)


@pytest.mark.spec("P-7")
@pytest.mark.parametrize(("cache", "sent"), [(None, True), (CacheConfig(strategy="off"), False)])
def test_chat_names_its_cache_where_the_provider_has_one(cache: CacheConfig | None, sent: bool) -> None:
    request = ModelRequest(
        messages=(user_message("hi"),),
        tool_specs=(),
        system_prompt=None,
        tool_choice=None,
        metadata=RequestMetadata(session_id="s" * 70, run_id="r"),
        config=OpenAIChatConfig(model_id="gpt-5.2", cache_config=cache),
        params={},
    )
    for url, named in (("https://api.openai.com/v1", True), ("https://api.groq.com/openai/v1", False)):
        form = Form("h", "m", False, True, False, "off")
        body, _ = RequestBuilder().build(request, form, quirks_of(url, "gpt-5.2"))
        key = msgspec.json.decode(body).get("prompt_cache_key")
        assert (key is not None) == (named and sent)
        assert key is None or len(key) == 64


# ── parameters ──


@pytest.mark.spec("P-10")
async def test_parameters_are_typed_and_unknown_names_refused() -> None:
    params = ModelParams(temperature=0.5, max_tokens=9, thinking="low", extra={"top_k": 3})
    sent = (await chat_request(**params.to_fields())).json
    assert (sent["temperature"], sent["reasoning_effort"], sent["top_k"]) == (0.5, "low", 3)
    with pytest.raises(TypeError, match="temprature"):
        ModelParams(temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(msgspec.ValidationError, match="temprature"):
        msgspec.convert({"temprature": 0.5}, ModelParams)


def test_a_models_configuration_has_its_own_type() -> None:
    model = AnthropicModel("claude-sonnet-4-5", thinking=2048)
    config: AnthropicConfig = model.get_config()
    assert config.thinking == 2048
    assert isinstance(config, HttpModelConfig) and isinstance(config, ModelConfig)


# ── thinking that cannot be asked for ──


@pytest.mark.spec("P-6")
async def test_thinking_that_is_left_out_is_told() -> None:
    wire = anthropic_wire
    lost = [*wire.HELLO, wire.says(wire.calls("c1")), wire.results(("c1", "ok"))]
    kept = [
        *wire.HELLO,
        wire.says(wire.thought("hm", signature="s"), wire.calls("c1")),
        wire.results(("c1", "ok")),
    ]
    body = wire.sse(wire.begin(), *wire.text(0, "ok"), *wire.end("end_turn"))
    config = {"thinking": 2048}
    for history, told in ((lost, True), (kept, False), (wire.HELLO, False)):
        heard = await wire.hear(body, history, config=config)
        reason = heard.deltas[0].payload.reason  # type: ignore[union-attr]
        assert (reason is not None and "thinking is off" in reason) == told
    heard = await wire.hear(body, wire.HELLO, [wire.WEATHER], config=config, tool_choice="required")
    assert "forced tool call" in heard.deltas[0].payload.reason  # type: ignore[union-attr]
