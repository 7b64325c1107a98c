"""The scripted model: what a script may say, and what comes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from turnlog import load_model
from turnlog.contract import (
    AgentError,
    ErrorDelta,
    MessageDelta,
    StreamDone,
    StreamStart,
    TextChunk,
    TokenUsage,
    ToolSpec,
    encode,
    user_message,
)
from turnlog.models import Model, ModelRequest
from turnlog.testing import (
    FixedClock,
    FixedIds,
    ScriptedCall,
    ScriptedError,
    ScriptedModel,
    Turn,
    VirtualClock,
)

HELLO = [user_message("hello")]


async def drain(model: Model, **options: Any) -> list[MessageDelta]:
    return [delta async for delta in model.stream(HELLO, **options)]


def said(deltas: list[MessageDelta], kind: str = "text") -> str:
    return "".join(getattr(delta.payload, "text_delta", "") for delta in deltas if delta.kind == kind)


def error_of(deltas: list[MessageDelta]) -> Any:
    assert isinstance(deltas[-1], ErrorDelta)
    return deltas[-1].payload


async def test_text_comes_in_several_chunks() -> None:
    deltas = await drain(ScriptedModel(["The answer is 42."]))
    assert said(deltas) == "The answer is 42."
    assert sum(delta.kind == "text" for delta in deltas) >= 3
    assert [delta.kind for delta in deltas][-2:] == ["usage", "done"]


async def test_one_turn_needs_no_list() -> None:
    assert said(await drain(ScriptedModel("hello"))) == "hello"
    assert said(await drain(ScriptedModel(Turn(text="hi")))) == "hi"
    assert said(await drain(ScriptedModel(lambda request: "made"))) == "made"


async def test_a_whole_turn() -> None:
    usage = TokenUsage(input_tokens=5, output_tokens=7, total_tokens=12, cached_input_tokens=2)
    turn = Turn(
        thinking="let me see",
        text="calling",
        tool_calls=[
            ScriptedCall(name="add", arguments={"a": 1}, id="toolu_1"),
            {"name": "broken", "raw_args": '{"a": '},
            {"name": "bare"},
        ],
        usage=usage,
        finish_reason="pause",
        chunk_size=4,
    )
    deltas = await drain(ScriptedModel([turn], clock=FixedClock(), ids=FixedIds()))
    assert said(deltas, "thinking") == "let me see"
    assert said(deltas) == "calling"
    starts: list[Any] = [delta.payload for delta in deltas if delta.kind == "tool_call_start"]
    assert [start.tool_call_id for start in starts] == ["call_0001", "call_0002", "call_0003"]
    assert starts[0].provider_data == {"origin": "scripted", "id": "toolu_1"}
    assert starts[1].provider_data["id"] == "scripted_1.1"
    args: dict[str, str] = {}
    for delta in deltas:
        if delta.kind == "tool_call_args":
            payload: Any = delta.payload
            args[payload.tool_call_id] = args.get(payload.tool_call_id, "") + payload.args_text_delta
    assert args == {"call_0001": '{"a":1}', "call_0002": '{"a": ', "call_0003": "{}"}
    assert deltas[-2].payload == usage
    assert deltas[-1].payload == StreamDone(finish_reason="pause")


async def test_errors_before_and_in_the_middle() -> None:
    raised = AgentError("ModelRateLimited", "wait", meta={"retry_after": 3})
    turns = [
        raised,
        Turn(text="abcdef", chunk_size=2, error={"code": "ModelOverloaded", "after": 2}),
        Turn(text="abc", error=ScriptedError(code="ModelTimeout", retryable=False, after=99)),
        Turn(error="ModelServerError"),
        Turn(error=raised),
    ]
    model = ScriptedModel(turns)
    first = await drain(model)
    assert [delta.kind for delta in first] == ["start", "error"]
    assert (error_of(first).error_code, error_of(first).retry_after) == ("ModelRateLimited", 3)
    second = await drain(model)
    assert said(second) == "abcd"
    assert (error_of(second).error_code, error_of(second).retryable) == ("ModelOverloaded", True)
    third = await drain(model)
    assert said(third) == "abc"
    assert error_of(third).retryable is False
    assert error_of(await drain(model)).error_code == "ModelServerError"
    assert error_of(await drain(model)).retry_after == 3


async def test_a_cut_stream_never_completes_its_last_call() -> None:
    deltas = await drain(ScriptedModel([Turn(text="abc", cut=True)]))
    assert said(deltas) == "abc"
    assert error_of(deltas).error_code == "ModelProtocolError"
    calls = [{"name": "one", "arguments": {"a": 1}}, {"name": "two", "arguments": {"b": 2}}]
    deltas = await drain(ScriptedModel([Turn(tool_calls=calls, cut=True)]))
    kinds = [delta.kind for delta in deltas]
    assert (kinds.count("tool_call_start"), kinds.count("tool_call_end")) == (2, 1)
    assert kinds[-1] == "error"


async def test_chunks_are_sent_as_they_are() -> None:
    chunks = [StreamStart(model_id="other"), TextChunk(text_delta="x"), StreamDone(finish_reason="length")]
    deltas = await drain(ScriptedModel([Turn(chunks=chunks)]))
    assert [delta.payload for delta in deltas] == chunks
    assert error_of(await drain(ScriptedModel([Turn(chunks=[])]))).error_code == "ModelProtocolError"
    plain = [{"kind": "start", "payload": {"modelId": "m"}}, {"kind": "text", "payload": {"textDelta": "x"}}]
    deltas = await drain(ScriptedModel([Turn(chunks=plain)]))
    assert [delta.kind for delta in deltas] == ["start", "text", "error"]


async def test_a_function_answers_the_request() -> None:
    def echo(request: ModelRequest) -> str:
        return f"you said {request.messages[-1].text}"

    async def slow(request: ModelRequest) -> Turn:
        await asyncio.sleep(0)
        return Turn(text="slow")

    def refuse(request: ModelRequest) -> AgentError:
        return AgentError("ModelAuthError", "no")

    model = ScriptedModel([echo, slow, refuse, lambda request: 5])  # pyright: ignore[reportArgumentType, reportUnknownLambdaType]
    assert said(await drain(model)) == "you said hello"
    assert said(await drain(model)) == "slow"
    assert error_of(await drain(model)).error_code == "ModelAuthError"
    assert "not a int" in error_of(await drain(model)).message


async def test_a_used_up_script_says_so() -> None:
    model = ScriptedModel(["one"])
    await drain(model)
    failure = error_of(await drain(model))
    assert failure.message == (
        "scripted: the script has 1 turn and this is call 2; add a turn, or set loop or default"
    )
    assert failure.retryable is False


async def test_loop_and_default() -> None:
    model = ScriptedModel(["a", "b"], loop=True)
    assert [said(await drain(model)) for _ in range(5)] == ["a", "b", "a", "b", "a"]
    model = ScriptedModel(["a"], default="z")
    assert [said(await drain(model)) for _ in range(3)] == ["a", "z", "z"]


async def test_requests_are_kept() -> None:
    model = ScriptedModel(["a", "b"])
    spec = ToolSpec(name="add", description="adds", parameter_schema={"type": "object"})
    await drain(model, tool_specs=[spec], system_prompt="be brief", temperature=0.5)
    await drain(model)
    assert model.calls == 2
    first = model.requests[0]
    assert first.messages == tuple(HELLO)
    assert first.tool_specs == (spec,)
    assert first.system_prompt == "be brief"
    assert first.config.temperature == 0.5


async def test_the_same_script_gives_the_same_bytes() -> None:
    async def record() -> list[bytes]:
        turns = [Turn(thinking="hm", text="hello there", tool_calls=[{"name": "add"}]), "bye"]
        model = ScriptedModel(turns, clock=FixedClock(), ids=FixedIds())
        return [encode(delta) for delta in await drain(model) + await drain(model)]

    first = await record()
    assert first == await record()
    assert b'"usage"' in b"".join(first)


async def test_delays_pass_on_the_models_clock() -> None:
    clock = VirtualClock()
    model = ScriptedModel([Turn(text="abc", chunk_size=1, delay=10)], clock=clock)
    task = asyncio.create_task(drain(model))
    await clock.advance(25)
    assert not task.done()
    await clock.advance(15)
    deltas = task.result()
    assert said(deltas) == "abc"
    assert deltas[1].timestamp == "2026-01-01T00:00:10.000Z"
    assert deltas[-1].timestamp == "2026-01-01T00:00:40.000Z"


def test_model_info_can_be_set() -> None:
    model = ScriptedModel(model_id="tiny", context_window=100, features={"text"})
    assert model.model_info().context_window == 100
    assert model.supports("text")
    assert not model.supports("tools")
    assert ScriptedModel().supports("forced_tool")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tool_calls": [{"nam": "add"}]}, r"toolCalls\[0\]: .*unknown field `nam`"),
        (
            {"tool_calls": [{"name": "a"}, {"arguments": {}}]},
            r"toolCalls\[1\]: .*missing required field `name`",
        ),
        ({"tool_calls": ["add"]}, r"toolCalls\[0\]: expected a ScriptedCall, found 'add'"),
        ({"tool_calls": [{"name": "a", "arguments": {}, "raw_args": ""}]}, "not both"),
        ({"error": {"code": "Oops"}}, "code 'Oops'"),
        ({"error": {}}, "missing required field `code`"),
        ({"chunk_size": 0}, "chunkSize is 0"),
        ({"finish_reason": "end_turn"}, "finishReason is 'end_turn'"),
        ({"chunks": [{"kind": "song", "payload": {}}]}, r"chunks\[0\]: expected \{kind, payload\}"),
        ({"chunks": [{"kind": "text", "payload": {"text": "a"}}]}, r"chunks\[0\]\.payload: .*unknown field"),
    ],
)
def test_a_wrong_turn_names_the_field(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(AgentError, match=why) as caught:
        Turn(**fields)
    assert caught.value.code == "ConfigInvalid"


JSON = """
{"modelId": "demo", "contextWindow": 1000, "default": "and so on", "turns": [
  {"thinking": "hm", "toolCalls": [{"name": "add", "arguments": {"a_b": 1}}],
   "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}},
  {"error": {"code": "ModelOverloaded", "retryAfter": 1.5}},
  "the end"
]}
"""

TOML = """
loop = true
turns = ["plain", {text = "from toml", chunkSize = 1, finishReason = "length"}]
"""


@pytest.mark.spec("P-3")
async def test_a_script_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(JSON)
    model = load_model(f"scripted:{path}", temperature=0.5)
    assert model.get_config().model_id == "demo"
    assert model.get_config().temperature == 0.5
    assert model.model_info().context_window == 1000
    kinds = [delta.kind for delta in await drain(model)]
    assert kinds[0] == "start"
    assert "tool_call_end" in kinds
    assert error_of(await drain(model)).retry_after == 1.5
    assert said(await drain(model)) == "the end"
    assert said(await drain(model)) == "and so on"

    path = tmp_path / "script.toml"
    path.write_text(TOML)
    model = load_model(f"scripted:{path}", model_id="renamed")
    assert model.get_config().model_id == "renamed"
    await drain(model)
    deltas = await drain(model)
    assert said(deltas) == "from toml"
    assert deltas[-1].payload == StreamDone(finish_reason="length")

    path = tmp_path / "list.json"
    path.write_text('["only"]')
    assert said(await drain(load_model(f"scripted:{path}"))) == "only"

    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "first"}\n\n"second"\n')
    model = load_model(f"scripted:{path}")
    assert [said(await drain(model)), said(await drain(model))] == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", '{"turns": [\n  "a",\n  oops\n]}', r"line 3 column 3"),
        ("a.jsonl", '"a"\n{"text": }', r"line 2: "),
        ("a.toml", 'turns = [\n"a\n]', r"line 2"),
        ("a.json", '"text"', "expected a list of turns"),
        ("a.json", '{"turns": "text"}', "turns: expected a list"),
        ("a.json", '{"turn": []}', "unknown field 'turn'"),
        ("a.json", '{"loop": 1}', "loop: expected bool, found 1"),
        ("a.json", '[{"text": "a"}, {"txt": "b"}]', r"turns\[1\]: .*unknown field `txt`"),
        ("a.json", '[{"text": 5}]', r"turns\[0\]: Expected `str \| null`, got `int` - at `\$\.text`"),
        ("a.json", '[{"toolCalls": [{"name": 5}]}]', r"turns\[0\]: toolCalls\[0\]: Expected `str`"),
        ("a.json", '[{"error": {"code": "Oops"}}]', r"turns\[0\]: .*'Oops'"),
        ("a.json", '{"default": 5}', r"default: Expected `object`, got `int`"),
        ("a.json", b"\xff", "cannot be read"),
    ],
)
def test_a_bad_file_names_the_line_or_the_field(tmp_path: Path, name: str, content: Any, why: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(AgentError, match=why) as caught:
        load_model(f"scripted:{path}")
    assert caught.value.code == "ConfigInvalid"
    assert str(path) in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"nowhere\.json: cannot be read"):
        load_model(f"scripted:{tmp_path}/nowhere.json")
