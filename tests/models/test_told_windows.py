"""A server of the user's own is asked for the window that it serves; whatever it says, no turn fails."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from models import anthropic_wire, chat_wire
from turnlog import Agent
from turnlog.contract import Entry, RetryPolicy
from turnlog.history import MemoryStore
from turnlog.loop import replay
from turnlog.models import Model, ProviderRouter
from turnlog.models.anthropic import AnthropicModel
from turnlog.models.http import _window
from turnlog.models.local import LocalModel, close_servers, find_weights
from turnlog.models.local._server import ServerSpec, ensure_server
from turnlog.models.local._weights import WeightsMissing
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.models.openai_responses import OpenAIResponsesModel
from turnlog.testing import Loopback, LoopbackAnswer, LoopbackRequest

KEY = "sk-own-5f8c3b1e9d7a42606e1b"
HELLO = LoopbackAnswer.sse(
    chat_wire.chunk({"content": "Hello."}) + chat_wire.chunk(None, "stop") + chat_wire.DONE
)
MESSAGE = anthropic_wire.sse(
    anthropic_wire.begin(), *anthropic_wire.text(0, "Hello."), *anthropic_wire.end("end_turn")
)
NOT_FOUND = LoopbackAnswer.json({"error": {"message": "not found"}}, status=404)
Page = Callable[[LoopbackRequest], LoopbackAnswer]


class Own:
    """Chat Completions, and pages about itself: path → JSON, or an answer as it is."""

    def __init__(self, pages: dict[str, Any] | None = None, other: LoopbackAnswer = NOT_FOUND) -> None:
        self.pages, self.other = pages or {}, other
        self.asked: list[str] = []

    def __call__(self, request: LoopbackRequest) -> LoopbackAnswer:
        if request.path.endswith("/chat/completions"):
            return HELLO
        self.asked.append(request.path)
        page = self.pages.get(request.path, self.other)
        return page if isinstance(page, LoopbackAnswer) else LoopbackAnswer.json(page)


async def two_turns(own: Own, model_id: str = "house", **config: Any) -> tuple[list[int | None], Model]:
    """The window that the log has at each of two calls. A replay makes the same log."""
    async with Loopback(own) as loopback:
        model = OpenAIChatModel(model_id, base_url=f"{loopback.url}/v1", api_key=KEY, **config)
        store = MemoryStore()
        async with Agent(model, store=store) as agent:
            for _ in range(2):
                assert (await agent.run("Hello?", session="s")).text == "Hello."
        await model.close()
        assert {request.headers.get("authorization") for request in loopback.requests} == {f"Bearer {KEY}"}
    report = await replay(store, "s")
    assert report.identical, report.difference
    return windows_in(await store.load("s")), model


def windows_in(entries: list[Entry]) -> list[int | None]:
    return [entry.payload.window for entry in entries if entry.kind == "model_call_started"]


def llama_cpp(slot: int, **meta: int) -> dict[str, Any]:
    card = {"id": "/models/house.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072, **meta}}
    return {
        "/v1/models": {"object": "list", "data": [card]},
        "/props": {"default_generation_settings": {"n_ctx": slot}, "total_slots": 4},
    }


def ollama(*running: dict[str, Any], parameters: str = 'stop "<|end|>"') -> dict[str, Any]:
    return {
        "/v1/models": {"object": "list", "data": [{"id": "house:latest"}, {"id": "other:7b"}]},
        "/api/ps": {"models": list(running)},
        "/api/show": {"parameters": parameters, "model_info": {"llama.context_length": 131_072}},
    }


SERVERS: dict[str, tuple[dict[str, Any], int]] = {
    "vllm": ({"/v1/models": {"data": [{"id": "house", "max_model_len": 8192}]}}, 8192),
    "vllm, several": (
        {
            "/v1/models": {
                "data": [{"id": "big", "max_model_len": 65536}, {"id": "house", "max_model_len": 8192}]
            }
        },
        8192,
    ),
    "vllm, an adapter of a model": (
        {
            "/v1/models": {
                "data": [
                    {"id": "big", "max_model_len": 16384},
                    {"id": "house", "parent": "big", "max_model_len": None},
                ]
            }
        },
        16384,
    ),
    "llama.cpp, one slot of several": (llama_cpp(2048), 2048),
    "llama.cpp, in its list": ({"/v1/models": llama_cpp(0, n_ctx=4096)["/v1/models"]}, 4096),
    "ollama, loaded": (
        ollama({"name": "other:7b", "context_length": 512}, {"name": "house:latest", "context_length": 4096}),
        4096,
    ),
    "ollama, set in its file": (ollama(parameters='stop "x"\nnum_ctx                        16384\n'), 16384),
    "lm studio": (
        {
            "/api/v0/models": {
                "data": [
                    {
                        "id": "house",
                        "state": "loaded",
                        "max_context_length": 131_072,
                        "loaded_context_length": 4096,
                    }
                ]
            }
        },
        4096,
    ),
    "litellm": (
        {
            "/v1/models": {"data": [{"id": "house"}, {"id": "other"}]},
            "/model/info": {
                "data": [
                    {"model_name": "house", "model_info": {"max_input_tokens": 32_768}},
                    {"model_name": "house", "model_info": {"max_input_tokens": 8_192}},
                    {"model_name": "other", "model_info": {"max_input_tokens": 4_096}},
                ]
            },
        },
        8_192,
    ),
}


@pytest.mark.spec("C-13")
@pytest.mark.parametrize("kind", SERVERS)
async def test_what_a_server_serves_is_known_before_the_first_call_and_asked_once(kind: str) -> None:
    pages, window = SERVERS[kind]
    own = Own(pages)
    told, model = await two_turns(own)
    assert told == [window, window]
    assert model.model_info().context_window == window
    assert len(own.asked) == len(set(own.asked)), f"no question was asked twice: {own.asked}"


async def test_a_model_that_is_loaded_by_its_first_call_is_asked_about_again() -> None:
    own = Own(ollama())
    running = {"models": [{"name": "house:latest", "model": "house:latest", "context_length": 4096}]}

    def serve(request: LoopbackRequest) -> LoopbackAnswer:
        if request.path.endswith("/chat/completions"):
            own.pages["/api/ps"] = running
        return own(request)

    async with Loopback(serve) as loopback:
        model = OpenAIChatModel("house", base_url=f"{loopback.url}/v1", api_key=KEY)
        store = MemoryStore()
        async with Agent(model, store=store) as agent:
            for _ in range(3):
                await agent.run("Hello?", session="s")
        await model.close()
    assert windows_in(await store.load("s")) == [None, 4096, 4096]
    assert own.asked.count("/api/ps") == 2


async def test_one_that_is_never_loaded_is_asked_about_three_times_and_no_more() -> None:
    pages = {"/api/v0/models": {"data": [{"id": "house", "state": "not-loaded", "max_context_length": 8192}]}}
    own = Own(pages)
    async with Loopback(own) as loopback:
        model = OpenAIChatModel("house", base_url=f"{loopback.url}/v1", api_key=KEY)
        async with Agent(model, store="memory:") as agent:
            for _ in range(5):
                await agent.run("Hello?", session="s")
        await model.close()
    assert own.asked.count("/api/v0/models") == 3


# ── servers that tell nothing, or nonsense ──


def everywhere(value: Any) -> dict[str, Any]:
    """The same figure wherever one is looked for."""
    return {
        "/v1/models": {"data": [{"id": "house", "max_model_len": value, "meta": {"n_ctx": value}}]},
        "/props": {"default_generation_settings": {"n_ctx": value}},
        "/api/ps": {"models": [{"name": "house", "context_length": value}]},
        "/api/show": {"parameters": f"num_ctx {value}"},
        "/api/v0/models": {"data": [{"id": "house", "state": "loaded", "loaded_context_length": value}]},
        "/model/info": {"data": [{"model_name": "house", "model_info": {"max_input_tokens": value}}]},
    }


NONSENSE: dict[str, Own] = {
    "no page": Own(),
    "huge": Own(everywhere(10**30)),
    "huge in 64 bits": Own(everywhere(2**62)),
    "negative": Own(everywhere(-8192)),
    "nothing": Own(everywhere(0)),
    "tiny": Own(everywhere(1)),
    "text": Own(everywhere("8192")),
    "true": Own(everywhere(True)),
    "fraction": Own(everywhere(8192.5)),
    "list": Own(everywhere([8192])),
    "object": Own(everywhere({"value": 8192})),
    "another shape": Own({path: ["data", {"data": 7}, None] for path in everywhere(0)}),
    "rows that are none": Own(
        {path: {"data": [7, None, "x"], "models": {"house": 7}} for path in everywhere(0)}
    ),
    "html": Own(other=LoopbackAnswer(body=b"<html>Sign in</html>", headers={"content-type": "text/html"})),
    "no text": Own(other=LoopbackAnswer(body=b"\xff\xfe\x00\x01" * 40)),
    "deep": Own(other=LoopbackAnswer(body=b'{"data":' + b"[" * 200_000)),
    "a flood": Own({"/v1/models": {**everywhere(8192)["/v1/models"], "more": "x" * 3_000_000}}),
    "empty": Own(other=LoopbackAnswer()),
    "forbidden": Own(other=LoopbackAnswer.json({"error": "who are you?"}, status=401)),
    "failing": Own(other=LoopbackAnswer.json({}, status=500)),
    "cut": Own(other=LoopbackAnswer(body=b'{"data": [{"id": "house"', framing="length", cut_at=9)),
    "reset": Own(other=LoopbackAnswer(body=b"{}", cut_at=-1, then="reset")),
    "silent": Own(other=LoopbackAnswer(body=b"{}", cut_at=-1, then="stall")),
    "stalling": Own(other=LoopbackAnswer(body=b'{"data": []}', cut_at=4, then="stall")),
}


@pytest.mark.spec("C-13", "E-3")
@pytest.mark.parametrize("kind", NONSENSE)
async def test_a_server_that_tells_nothing_or_nonsense_changes_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_window, "PATIENCE", 0.2)
    own = NONSENSE[kind]
    own.asked.clear()
    told, model = await two_turns(own)
    assert told == [None, None] and model.model_info().context_window is None
    assert own.asked, "it was asked"
    assert len(own.asked) == len(set(own.asked)), "and not again"


async def test_a_server_that_tells_less_than_the_prompt_takes_refuses_no_turn() -> None:
    """It may be wrong, and only a refusal counts: tools and instructions alone are more than it says."""
    own = Own(everywhere(600))
    async with Loopback(own) as loopback:
        model = OpenAIChatModel("house", base_url=f"{loopback.url}/v1", api_key=KEY)
        async with Agent(model, store="memory:", instructions="Be kind. " * 400) as agent:
            assert (await agent.run("Hello?")).text == "Hello."
        await model.close()


async def test_a_server_that_is_not_there_fails_the_call_and_not_the_question() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        model = OpenAIChatModel("house", base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        async with Agent(model, store="memory:") as agent:
            result = await agent.run("Hello?", check=False, retry=RetryPolicy(max_attempts=1))
    assert result.last_error is not None and result.last_error.code == "ModelUnreachable"


# ── who is asked, and with what ──


async def test_the_key_goes_to_the_same_host_only() -> None:
    async with Loopback(LoopbackAnswer.json(everywhere(8192)["/v1/models"])) as elsewhere:
        away = LoopbackAnswer(status=302, headers={"location": f"{elsewhere.url}/v1/models"})
        told, _ = await two_turns(Own(other=away))
        assert told == [None, None] and not elsewhere.requests


async def test_headers_of_the_configuration_go_along() -> None:
    async with Loopback(Own(everywhere(8192))) as loopback:
        model = OpenAIChatModel(
            "house", base_url=f"{loopback.url}/v1", extra_headers={"X-Tenant": "blue", "Accept": "*/*"}
        )
        async with Agent(model, store="memory:") as agent:
            await agent.run("Hello?")
        await model.close()
    assert [request.headers["x-tenant"] for request in loopback.requests] == ["blue", "blue"]


@pytest.mark.parametrize(
    "model",
    [
        OpenAIChatModel("house", api_key=KEY),
        OpenAIChatModel("house", api_key=KEY, base_url="https://openrouter.ai/api/v1"),
        OpenAIResponsesModel("house", api_key=KEY),
        AnthropicModel("house", api_key=KEY),
        AnthropicModel("house", api_key=KEY, base_url="https://api.deepseek.com/anthropic"),
        OpenAIChatModel("house", base_url="https://llm.example.com/v1", context_window=4_096, api_key=KEY),
        OpenAIChatModel("house", base_url="https://llm.example.com/v1", client=object()),
    ],
    ids=["openai", "openrouter", "responses", "anthropic", "deepseek", "configured", "another client"],
)
async def test_nobody_is_asked_at_a_public_address_or_where_the_window_is_given(model: Model) -> None:
    assert model.ask_window(model.descriptor) is None


async def test_a_router_asks_the_server_that_it_chose() -> None:
    first, second = Own(everywhere(8192)), Own(everywhere(4096))
    async with Loopback(first) as one, Loopback(second) as two:
        models = {
            "one": OpenAIChatModel("small", base_url=f"{one.url}/v1"),
            "two": OpenAIChatModel("house", base_url=f"{two.url}/v1"),
        }
        store = MemoryStore()
        async with Agent(ProviderRouter(models), store=store) as agent:
            await agent.run("Hello?", session="s")
        for model in models.values():
            await model.close()
    assert windows_in(await store.load("s")) == [8192]
    assert first.asked and not second.asked


async def test_the_messages_protocol_asks_for_no_more_output_than_a_fold_leaves_free() -> None:
    pages = Own(everywhere(4_096))

    def serve(request: LoopbackRequest) -> LoopbackAnswer:
        if request.path != "/v1/messages":
            return pages(request)
        return LoopbackAnswer.sse(MESSAGE)

    async with Loopback(serve) as loopback:
        model = AnthropicModel("house", base_url=loopback.url, api_key=KEY)
        async with Agent(model, store="memory:") as agent:
            assert (await agent.run("Hello?")).text == "Hello."
        await model.close()
    assert loopback.requests[0].headers["x-api-key"] == KEY
    assert loopback.requests[-1].json["max_tokens"] == 1_024


# ── a real server ──

try:
    WEIGHTS = find_weights("")
    WHY_NOT = "" if find_spec("xllamacpp") else "xllamacpp is not installed: pip install 'turnlog[local]'"
except WeightsMissing as missing:
    WEIGHTS, WHY_NOT = None, str(missing)
real = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture
def servers() -> Iterator[None]:
    yield
    close_servers()


@real
@pytest.mark.usefixtures("servers")
async def test_a_real_server_tells_what_it_serves_in_all_its_protocols() -> None:
    assert WEIGHTS is not None
    endpoint = await ensure_server(ServerSpec(weights=WEIGHTS, n_ctx=1024))
    kinds = ((OpenAIChatModel, "/v1"), (OpenAIResponsesModel, "/v1"), (AnthropicModel, ""))
    for kind, path in kinds:
        model = kind("any", base_url=endpoint.base_url + path, api_key=endpoint.api_key)
        asking = model.ask_window(model.descriptor)
        assert asking is not None
        await asking
        assert model.told_window(model.descriptor) == 1024, "and not the 8192 of the weights"
        await model.close()


@real
@pytest.mark.usefixtures("servers")
async def test_a_local_model_without_a_window_learns_what_its_weights_allow() -> None:
    model = LocalModel(n_ctx=0)
    assert model.model_info().context_window is None
    asking = model.ask_window(model.descriptor)
    assert asking is not None
    await asking
    assert model.told_window(model.descriptor) == model.model_info().context_window == 8192
    await model.close()
    known = LocalModel()
    assert known.ask_window(known.descriptor) is None, "that of the configuration is what it serves"
    assert known.told_window(known.descriptor) == 8192, "and is in the log"
