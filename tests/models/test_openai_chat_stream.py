"""Answers of Chat Completions servers, case by case: what each of them was seen to do."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat_wire import DONE, SSE, answer, call, chunk, deltas_of, event
from turnlog.contract import AgentError, ToolSpec
from turnlog.models.openai_chat._stream import ChatReader
from turnlog.models.wire import ToolNames, safe_name

TWO = [("f", '{"a":1}'), ("g", '{"b":2}')]

CALLS: dict[str, tuple[list[bytes], list[tuple[str, str]]]] = {
    "in fragments, interleaved": (
        [
            chunk(call("", name="f", index=0, id="1")),
            chunk(call("", name="g", index=1, id="2")),
            chunk(call('{"a"', index=0)),
            chunk(call('{"b"', index=1)),
            chunk(call(":1}", index=0)),
            chunk(call(":2}", index=1)),
        ],
        TWO,
    ),
    "each whole in one chunk": (
        [
            chunk(call('{"a":1}', name="f", index=0, id="1")),
            chunk(call('{"b":2}', name="g", index=1, id="2")),
        ],
        TWO,
    ),
    "one index for all, new ids": (
        [
            chunk(call('{"a":1}', name="f", index=0, id="1")),
            chunk(call('{"b":2}', name="g", index=0, id="2")),
        ],
        TWO,
    ),
    "one index, new ids, in fragments": (
        [
            chunk(call("", name="f", index=0, id="1")),
            chunk(call('{"a":1}', index=0)),
            chunk(call("", name="g", index=0, id="2")),
            chunk(call('{"b":2}', index=0)),
        ],
        TWO,
    ),
    "one index, no ids, new names": (
        [chunk(call('{"a":1}', name="f", index=0)), chunk(call('{"b":2}', name="g", index=0))],
        TWO,
    ),
    "one index, no ids, one name": (
        [chunk(call('{"a":1}', name="f", index=0)), chunk(call('{"a":2}', name="f", index=0))],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "neither index nor id": (
        [chunk(call('{"a":1}', name="f")), chunk(call('{"b":2}', name="g"))],
        TWO,
    ),
    "no index, ids": (
        [chunk(call('{"a":1}', name="f", id="1")), chunk(call('{"b":2}', name="g", id="2"))],
        TWO,
    ),
    "no index, ids in every fragment, interleaved": (
        [
            chunk(call('{"a"', name="f", id="1")),
            chunk(call('{"b"', name="g", id="2")),
            chunk(call(":1}", id="1")),
            chunk(call(":2}", id="2")),
        ],
        TWO,
    ),
    "name and id in every fragment": (
        [
            chunk(call("", name="f", index=0, id="1")),
            chunk(call('{"a"', name="f", index=0, id="1")),
            chunk(call(":1}", name="f", index=0, id="1")),
        ],
        TWO[:1],
    ),
    "empty names and ids later": (
        [
            chunk(call('{"a"', name="f", index=0, id="1")),
            chunk({"tool_calls": [{"index": 0, "id": "", "function": {"name": "", "arguments": ":1}"}}]}),
        ],
        TWO[:1],
    ),
    "nulls later": (
        [
            chunk(call('{"a"', name="f", index=0, id="1")),
            chunk({"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": ":1}"}}]}),
        ],
        TWO[:1],
    ),
    "the name after the arguments": (
        [chunk(call('{"a":1}', index=0, id="1")), chunk(call(None, name="f", index=0))],
        TWO[:1],
    ),
    "arguments as an object": ([chunk(call({"a": 1}, name="f", index=0, id="1"))], TWO[:1]),
    "no arguments": ([chunk(call(None, name="f", index=0, id="1"))], [("f", "")]),
    "empty arguments": ([chunk(call("", name="f", index=0, id="1")), chunk(call("", index=0))], [("f", "")]),
    "indexes from three": ([chunk(call('{"a":1}', name="f", index=3, id="1"))], TWO[:1]),
    "index as text": ([chunk(call('{"a":1}', name="f", index="0", id="1"))], TWO[:1]),
    "id as a number": ([chunk(call('{"a":1}', name="f", index=0, id=7))], TWO[:1]),
    "the same call twice": (
        [
            chunk(call('{"a":1}', name="f", index=0, id="1")),
            chunk(call('{"a":1}', name="f", index=0, id="1")),
        ],
        TWO[:1],
    ),
    "the same id, other arguments": (
        [
            chunk(call('{"a":1}', name="f", index=0, id="1")),
            chunk(call('{"a":2}', name="f", index=0, id="1")),
        ],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "several in one chunk": (
        [
            chunk(
                {
                    "tool_calls": [
                        {"id": "1", "function": {"name": "f", "arguments": '{"a":1}'}},
                        {"id": "2", "function": {"name": "g", "arguments": '{"b":2}'}},
                    ]
                }
            )
        ],
        TWO,
    ),
    "the old function_call": (
        [
            chunk({"function_call": {"name": "f", "arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ":1}"}}),
        ],
        TWO[:1],
    ),
    "arguments that do not parse": ([chunk(call('{"a":', name="f", index=0, id="1"))], [("f", '{"a":')]),
}


@pytest.mark.spec("D-3", "D-5", "P-5")
@pytest.mark.parametrize("kind", CALLS)
async def test_calls(kind: str) -> None:
    parts, expected = CALLS[kind]
    found = await answer(*parts, chunk(None, "tool_calls"), DONE)
    assert found.error is None
    assert found.calls == expected
    assert (found.finish, found.ended_calls) == ("tool_calls", len(expected))


@pytest.mark.spec("D-5", "M-7")
async def test_the_providers_id_is_kept_beside_ours() -> None:
    deltas = await deltas_of(
        chunk(call("{}", name="f", index=0, id="theirs")), chunk(None, "tool_calls"), DONE
    )
    start = next(delta for delta in deltas if delta.kind == "tool_call_start")
    assert start.payload.tool_call_id == "call_0001"
    assert start.payload.provider_data == {"origin": "openai-chat", "id": "theirs"}


@pytest.mark.spec("D-5", "P-5")
@pytest.mark.parametrize("reason", ["length", "max_tokens", "content_filter", "weird"])
async def test_a_call_that_was_cut_short_is_never_complete(reason: str) -> None:
    parts = [
        chunk(call('{"a":1}', name="f", index=0, id="1")),
        chunk(call('{"b"', name="g", index=1, id="2")),
    ]
    found = await answer(*parts, chunk(None, reason), DONE)
    assert found.finish is None
    assert found.ended_calls == 0
    assert found.error is not None
    if reason in ("length", "max_tokens"):
        assert (found.error.error_code, found.error.retryable) == ("ModelProtocolError", False)
        assert "raise max_tokens" in found.error.message


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    ("said", "finish"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("STOP", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "stop"),
        ("something_new", "other"),
        ("refusal", "refusal"),
    ],
)
async def test_finish_reasons_of_text(said: str, finish: str) -> None:
    found = await answer(chunk({"content": "a"}), chunk(None, said), DONE)
    assert (found.text, found.finish) == ("a", finish)


@pytest.mark.spec("P-5")
async def test_a_stop_sequence_is_named_where_the_server_says_so() -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}
    assert (
        await answer(chunk({"content": "a"}), event({"choices": [choice]}), DONE)
    ).finish == "stop_sequence"


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    ("said", "code"), [("error", "ModelServerError"), ("insufficient_system_resource", "ModelOverloaded")]
)
async def test_finish_reasons_that_are_none(said: str, code: str) -> None:
    found = await answer(chunk({"content": "a"}), chunk(None, said), DONE)
    assert (found.text, found.error.error_code) == ("a", code)


@pytest.mark.spec("D-4")
async def test_where_an_answer_ends() -> None:
    text, stop = chunk({"content": "a"}), chunk(None, "stop")
    usage = event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
    tool = chunk(call('{"a":1}', name="f", index=0, id="1"))
    assert (await answer(text, stop, DONE)).finish == "stop"
    assert (await answer(text, DONE)).finish == "stop"
    assert (await answer(text, stop)).finish == "stop"
    assert (await answer(tool, DONE)).finish == "tool_calls"
    assert (await answer(tool, chunk(None, "tool_calls"), usage)).finish == "tool_calls"
    assert (await answer(text)).error.error_code == "ModelServerError"
    assert (await answer(tool, chunk(None, "tool_calls"))).error is not None, (
        "a second call may have followed"
    )
    assert (await answer(tool, usage)).error is not None
    assert (await answer()).error is not None


@pytest.mark.spec("P-5")
@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm", "index": 0}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": "", "reasoning_content": "hm"},
    ],
)
async def test_thinking(delta: dict[str, Any]) -> None:
    found = await answer(chunk(delta), chunk({"content": "a"}), chunk(None, "stop"), DONE)
    assert (found.reasoning, found.text, found.finish) == ("hm", "a", "stop")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("<think>a<b</think>\n\nc</think>", "a<b", "c</think>"),
        ("\n<think>a", "a", ""),
        ("no <think>tags</think>", "", "no <think>tags</think>"),
        ("<thin air", "", "<thin air"),
        ("<think></think>x", "", "x"),
        ("<think>a</thin", "a</thin", ""),
    ],
)
async def test_think_tags_when_asked_for(text: str, thought: str, said: str, size: int) -> None:
    parts = [chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
    found = await answer(*parts, chunk(None, "stop"), DONE, think_tags=True)
    assert (found.reasoning, found.text) == (thought, said)
    plain = await answer(*parts, chunk(None, "stop"), DONE)
    assert (plain.reasoning, plain.text) == ("", text)


@pytest.mark.spec("M-7", "P-6")
async def test_thoughts_are_marked_where_the_server_wants_them_back() -> None:
    parts = [
        chunk({"reasoning_content": "hm"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "a"}),
        chunk(None, "stop"),
        DONE,
    ]
    deltas = await deltas_of(*parts, reasoning_back="reasoning_content")
    kinds = [delta.kind for delta in deltas]
    assert kinds == ["start", "thinking", "thinking", "thinking", "text", "done"]
    mark = deltas[3].payload.provider_data
    assert (mark["origin"], mark["field"], mark["model_id"]) == (
        "openai-chat",
        "reasoning_content",
        "recorded-model",
    )


@pytest.mark.spec("M-7", "P-6")
async def test_reasoning_details_are_kept_whole() -> None:
    def details(*items: dict[str, Any]) -> bytes:
        return chunk({"reasoning_details": list(items)})

    deltas = await deltas_of(
        details({"type": "reasoning.text", "text": "h", "index": 0, "format": "f", "signature": None}),
        details({"type": "reasoning.text", "text": "m", "index": 0, "signature": "sig"}),
        chunk({"content": "a"}),
        details({"type": "reasoning.encrypted", "data": "xyz", "index": 1}),
        chunk(None, "stop"),
        DONE,
        reasoning_back="reasoning_details",
    )
    kept = deltas[-2].payload.provider_data
    assert kept["details"] == [
        {"type": "reasoning.text", "text": "hm", "index": 0, "format": "f", "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]
    assert kept["wire"]


@pytest.mark.spec("P-5")
async def test_a_refusal_is_text_with_its_own_finish_reason() -> None:
    found = await answer(chunk({"refusal": "I "}), chunk({"refusal": "won't"}), chunk(None, "stop"), DONE)
    assert (found.text, found.finish) == ("I won't", "refusal")


USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@pytest.mark.spec("D-7", "P-5", "M-6")
@pytest.mark.parametrize(
    "parts",
    [
        [chunk({"content": "a"}), chunk(None, "stop"), event({"choices": [], "usage": USAGE})],
        [chunk({"content": "a"}), chunk(None, "stop", usage=USAGE)],
        [chunk({"content": "a"}), chunk(None, "stop"), event({"usage": USAGE})],
        [chunk({"content": "a"}, usage={**USAGE, "completion_tokens": 1}), chunk(None, "stop", usage=USAGE)],
        [chunk({"content": "a"}), chunk(None, "stop", x_groq={"id": "r", "usage": USAGE})],
        [
            chunk({"content": "a"}),
            event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}),
        ],
        [
            chunk({"content": "a"}, usage=None),
            chunk(None, "stop", usage={"input_tokens": 10.0, "output_tokens": 5}),
        ],
    ],
)
async def test_usage_wherever_it_comes(parts: list[bytes]) -> None:
    usage = (await answer(*parts, DONE)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 5, 15)


@pytest.mark.spec("P-5", "O-2")
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4}}, {"cached_input_tokens": 4}),
        ({"prompt_cache_hit_tokens": 4}, {"cached_input_tokens": 4}),
        ({"cached_tokens": 4}, {"cached_input_tokens": 4}),
        ({"prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}}, {"cache_write_tokens": 3}),
        ({"completion_tokens_details": {"reasoning_tokens": 2}}, {"reasoning_tokens": 2, "output_tokens": 5}),
        (
            {"completion_tokens_details": {"reasoning_tokens": 7}, "total_tokens": 22},
            {"output_tokens": 12, "total_tokens": 22},
        ),
        ({"cost": 0.25}, {"cost": 0.25}),
        ({"cost": {"total_cost": 0.5}}, {"cost": 0.5}),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, {"input_tokens": 10}),
    ],
)
async def test_usage_in_its_spellings(more: dict[str, Any], expected: dict[str, Any]) -> None:
    usage = (await answer(chunk({"content": "a"}), chunk(None, "stop", usage={**USAGE, **more}), DONE)).usage
    assert {name: getattr(usage, name) for name in expected} == expected


async def test_only_the_first_of_several_choices_counts() -> None:
    def choices(*texts: tuple[int, str]) -> bytes:
        return event({"choices": [{"index": at, "delta": {"content": text}} for at, text in texts]})

    other = event({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]})
    found = await answer(choices((1, "x"), (0, "a")), choices((0, "b")), other, chunk(None, "stop"), DONE)
    assert (found.text, found.finish) == ("ab", "stop")


WHOLE = {
    "id": "x",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "a",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                    {"id": "2", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                ],
            },
        }
    ],
    "usage": USAGE,
}


@pytest.mark.spec("P-2")
@pytest.mark.parametrize("headers", [{"content-type": "application/json"}, {}, SSE])
@pytest.mark.parametrize("indent", [0, 2])
async def test_an_answer_that_was_not_streamed(headers: dict[str, str], indent: int) -> None:
    body = msgspec.json.format(msgspec.json.encode(WHOLE), indent=indent)
    found = await answer(body, headers=headers)
    assert (found.text, found.reasoning, found.finish) == ("a", "hm", "tool_calls")
    assert found.calls == [("f", '{"a":1}')] * 2
    assert found.usage.total_tokens == 15


@pytest.mark.spec("P-4")
@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (event({"error": {"message": "boom", "type": "server_error"}}), "ModelServerError"),
        (event({"error": {"message": "boom", "code": 502}, "user_id": "u"}), "ModelServerError"),
        (
            event({"object": "error", "message": "boom", "type": "InternalServerError", "code": 500}),
            "ModelServerError",
        ),
        (
            b"event: error\n" + event({"error": {"message": "boom", "code": "tool_use_failed"}}),
            "ModelBadRequest",
        ),
        (
            chunk({"content": ""}, "error", error={"code": "server_error", "message": "boom"}),
            "ModelServerError",
        ),
        (
            event({"choices": [{"index": 0, "delta": {}, "error": {"code": 429, "message": "boom"}}]}),
            "ModelRateLimited",
        ),
        (event({"error": "boom, the model is overloaded"}), "ModelOverloaded"),
        (b'{"error":{"message":"boom","type":"server_error"}}\n\n', "ModelServerError"),
        (event({"detail": "boom: internal"}), "ModelServerError"),
    ],
)
async def test_errors_in_the_stream(bad: bytes, code: str) -> None:
    found = await answer(chunk({"content": "a"}), bad, DONE)
    assert (found.text, found.error.error_code) == ("a", code)
    assert "boom" in found.error.message


@pytest.mark.spec("D-4")
@pytest.mark.parametrize(
    "odd",
    [
        event({"choices": [{"index": 0, "delta": {"content": 7, "tool_calls": "x"}}]}),
        event({"choices": [{"index": 0, "delta": None}], "usage": "none"}),
        event({"choices": [None, {"delta": {}}], "created": "x"}),
        event({"choices": []}),
        event({"prompt_filter_results": [], "choices": []}),
        event({}),
        event({"choices": [{"index": 0, "delta": {"content": [7, {"type": "image_url"}, None]}}]}),
        event({"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]}),
    ],
)
async def test_odd_chunks_do_no_harm(odd: bytes) -> None:
    found = await answer(odd, chunk({"content": "a"}), odd, chunk(None, "stop"), DONE)
    assert (found.text, found.finish, found.error) == ("a", "stop", None)


@pytest.mark.spec("M-4")
async def test_a_character_cut_in_two() -> None:
    first = b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n'
    second = b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00b"}}]}\n\n'
    assert (await answer(first, second, chunk(None, "stop"), DONE)).text == "a😀b"


@pytest.mark.spec("P-9")
async def test_names_that_were_changed_for_the_wire_come_back() -> None:
    spec = ToolSpec(name="files.read all", description="", parameter_schema={})
    wire = safe_name(spec.name)
    assert wire != spec.name
    found = await answer(chunk(call("{}", name=wire, index=0)), chunk(None, "stop"), DONE, tool_specs=[spec])
    assert found.calls[0][0] == "files.read all"


@pytest.mark.spec("D-9")
async def test_raw_events_only_on_request() -> None:
    parts = [chunk({"content": "a"}), chunk(None, "stop"), DONE]
    assert all(delta.provider_raw is None for delta in await deltas_of(*parts))
    shown = [delta.provider_raw for delta in await deltas_of(*parts, include_raw=True) if delta.provider_raw]
    assert '"a"' in msgspec.json.encode(shown).decode()


_WORDS = """
    choices delta message content tool_calls function name arguments index id finish_reason usage
    prompt_tokens error reasoning_details type text x_groq refusal
"""
_KEYS = st.sampled_from(_WORDS.split())
_LEAVES = st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=3)
_ANY = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_CHOICE = st.fixed_dictionaries({}, optional={"index": _LEAVES, "delta": _ANY, "finish_reason": _ANY})
_CHUNK = st.fixed_dictionaries({}, optional={"choices": st.lists(_CHOICE, max_size=2) | _ANY, "usage": _ANY})


@pytest.mark.spec("D-4", "P-4")
@given(st.lists(_CHUNK | _ANY, max_size=4), st.booleans())
def test_nothing_a_server_says_breaks_the_reader(values: list[Any], done: bool) -> None:
    reader = ChatReader(ToolNames([]), "p", origin={"origin": "openai-chat"}, keep_reasoning=True)
    with contextlib.suppress(AgentError):
        for value in values:
            reader.push(json.dumps(value).encode())
        if done:
            reader.push(b"[DONE]")
        assert reader.finish()
