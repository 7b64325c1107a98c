"""A forced tool choice as a schema, and the answer to it as a call. No model is needed here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    Chunk,
    SpecificTool,
    StreamDone,
    StreamStart,
    TextChunk,
    TokenUsage,
    ToolSpec,
)
from turnlog.models.local._model import answer_schema, as_call, forced_tools
from turnlog.models.wire import ToolNames, safe_name

ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    parameter_schema={
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Number"}, "b": {"$ref": "#/$defs/Number"}},
        "required": ["a", "b"],
        "$defs": {"Number": {"type": "integer"}},
    },
)
FIND = ToolSpec(name="find.files", description="Find files.", parameter_schema={})


async def told(texts: list[str], tools: list[ToolSpec], reason: str = "stop") -> list[Chunk]:
    async def answer() -> AsyncIterator[Chunk]:
        yield StreamStart(model_id="m")
        for text in texts:
            yield TextChunk(text_delta=text)
        yield TokenUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        yield StreamDone(finish_reason=reason)

    return [chunk async for chunk in as_call(answer(), tools, ToolNames(tools))]


def arguments(chunks: list[Chunk]) -> str:
    return "".join(chunk.args_text_delta for chunk in chunks if isinstance(chunk, CallArgs))


def wrapped(name: str, value: Any, indent: int | None = None) -> str:
    return json.dumps({"name": name, "arguments": value}, indent=indent)


@pytest.mark.spec("P-5")
def test_who_is_forced() -> None:
    assert forced_tools(None, [ADD]) == []
    assert forced_tools("auto", [ADD]) == []
    assert forced_tools("none", [ADD]) == []
    assert forced_tools("required", []) == []
    assert forced_tools("required", [ADD, FIND]) == [ADD, FIND]
    assert forced_tools(SpecificTool(name="add"), [ADD, FIND]) == [ADD]


def test_a_choice_that_is_not_offered_is_refused() -> None:
    with pytest.raises(AgentError, match=r"'sub', but the tools of this call are add") as caught:
        forced_tools(SpecificTool(name="sub"), [ADD])
    assert caught.value.code == "ModelBadRequest"


def test_one_tool_asks_for_its_arguments_alone() -> None:
    assert answer_schema([FIND]) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert answer_schema([ADD])["$defs"] == {"Number": {"type": "integer"}}


def test_several_tools_ask_for_a_name_and_keep_their_references() -> None:
    first, second = answer_schema([ADD, FIND])["anyOf"]
    assert first["properties"]["name"] == {"const": "add"}
    assert second["properties"]["name"] == {"const": safe_name("find.files")}, "as the server is told of it"
    found: Any = {"anyOf": [first, second]}
    for step in first["properties"]["arguments"]["properties"]["a"]["$ref"].removeprefix("#/").split("/"):
        found = found[int(step) if isinstance(found, list) else step]
    assert found == {"type": "integer"}


@pytest.mark.spec("P-5")
async def test_arguments_of_the_only_tool_stream_as_they_come() -> None:
    chunks = await told(['{"a"', ": 1, ", '"b": 2}'], [ADD])
    assert [type(chunk) for chunk in chunks] == [
        StreamStart,
        CallStart,
        CallArgs,
        CallArgs,
        CallArgs,
        TokenUsage,
        CallEnd,
        StreamDone,
    ]
    assert arguments(chunks) == '{"a": 1, "b": 2}'
    assert chunks[-1] == StreamDone(finish_reason="tool_calls")


values = st.dictionaries(st.text(), st.recursive(st.text() | st.integers() | st.none(), st.lists), max_size=3)


@given(value=values, indent=st.sampled_from([None, 0, 2]), size=st.integers(1, 9))
async def test_wrapped_arguments_come_out_whole_however_they_are_cut(
    value: dict[str, Any], indent: int | None, size: int
) -> None:
    text = wrapped(safe_name("find.files"), value, indent) + "\n"
    chunks = await told([text[at : at + size] for at in range(0, len(text), size)], [ADD, FIND])
    assert [chunk.tool_name for chunk in chunks if isinstance(chunk, CallStart)] == ["find.files"]
    assert json.loads(arguments(chunks)) == value
    assert arguments(chunks) == arguments(chunks).strip()
    assert not [chunk for chunk in chunks if isinstance(chunk, TextChunk)], "never as text"


@pytest.mark.spec("D-5")
@pytest.mark.parametrize("cut", [5, 30])
@pytest.mark.parametrize("reason", ["length", "other"])
async def test_a_call_that_was_cut_has_no_end(cut: int, reason: str) -> None:
    with pytest.raises(AgentError) as caught:
        await told([wrapped("add", {"a": 1, "b": 2})[:cut]], [ADD, FIND], reason)
    assert caught.value.code == "ModelProtocolError"
    assert caught.value.retryable is (reason != "length"), "the same limit would cut it again"


async def test_an_answer_without_a_call_is_no_answer() -> None:
    with pytest.raises(AgentError, match="before it named a tool"):
        await told([], [ADD, FIND])
    with pytest.raises(AgentError, match="before it named a tool"):
        await told([], [ADD])
