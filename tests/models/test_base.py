"""What the base makes of adapters that break the rules: one error delta, never a corrupt history."""

from __future__ import annotations

from typing import Any

import pytest

from models.yielding import (
    DONE,
    START,
    Yielding,
    args,
    call,
    call_start,
    calls_of,
    check_grammar,
    drain,
    end,
    fails,
    text,
)
from turnlog.contract import (
    ErrorDelta,
    MessageDelta,
    StreamDone,
    StreamError,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    ToolCallEndDelta,
    ToolCallStartDelta,
    decode,
)

BROKEN: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "without saying it is done"),
    "no start": ([text("a")], "before start"),
    "done first": ([DONE], "before start"),
    "usage first": ([TokenUsage(input_tokens=1, output_tokens=1, total_tokens=2)], "before start"),
    "call first": ([call_start("a")], "before start"),
    "thinking first": ([ThinkingChunk(text_delta="a")], "before start"),
    "second start": ([START, START], "second start"),
    "no terminal": ([START, text("a")], "without saying it is done"),
    "args without call": ([START, args("a", "{}")], "never started"),
    "end without call": ([START, end("a")], "never started"),
    "args after end": ([START, call_start("a"), end("a"), args("a", "{}")], "has ended"),
    "end twice": ([START, call_start("a"), end("a"), end("a")], "has ended"),
    "start twice": ([START, call_start("a"), call_start("a")], "starts twice"),
    "start again after end": ([START, call_start("a"), end("a"), call_start("a")], "starts twice"),
    "missing end": ([START, call_start("a"), args("a", '{"a": 1}'), DONE], "has no end"),
    "one of two ends missing": (
        [START, call_start("a"), call_start("b"), end("a"), DONE],
        "call 'b' (add) has no end",
    ),
    "call without name": ([START, call_start("a", "")], "no tool name"),
    "not a chunk": ([START, {"text": "a"}], "yielded a dict"),
    "a delta": (
        [
            decode(
                b'{"kind":"text","runId":"","seq":1,"payload":{"textDelta":""},"timestamp":""}', MessageDelta
            )
        ],
        "yielded a TextDelta",
    ),
    "none": ([START, None], "yielded a NoneType"),
    "text that is none": ([START, text(None)], "expected text, found NoneType"),  # pyright: ignore[reportArgumentType]
    "text that is bytes": ([START, text(b"a")], "expected text, found bytes"),  # pyright: ignore[reportArgumentType]
    "thinking that is a number": ([START, ThinkingChunk(text_delta=1)], "expected text, found int"),  # pyright: ignore[reportArgumentType]
    "args that are parsed": ([START, call_start("a"), args("a", {"a": 1})], "expected text, found dict"),  # pyright: ignore[reportArgumentType]
    "name that is a number": ([START, call_start("a", 5)], "Expected `str`, got `int`"),  # pyright: ignore[reportArgumentType]
    "usage that is text": (
        [START, TokenUsage(input_tokens="1", output_tokens=1, total_tokens=2)],  # pyright: ignore[reportArgumentType]
        "Expected `int`",
    ),
    "usage that is not finite": (
        [START, TokenUsage(input_tokens=1, output_tokens=1, total_tokens=2, cost=float("nan"))],
        "not finite",
    ),
    "provider data that is not JSON": (
        [START, TextChunk(text_delta="a", provider_data={"x": object()})],
        "does not hold what it should",
    ),
    "a provider's own finish reason": (
        [START, StreamDone(finish_reason="end_turn")],
        "'end_turn' is not one",
    ),
}


@pytest.mark.spec("D-2", "D-3", "D-4")
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_stream_ends_as_one_error_delta(name: str) -> None:
    chunks, why = BROKEN[name]
    model = Yielding(*chunks)
    last = await fails(model)
    assert why in (last.payload.message or "")
    assert last.payload.retryable is True
    assert model.closed


@pytest.mark.spec("D-2")
@pytest.mark.parametrize(
    "late", [text("more"), DONE, START, StreamError(error_code="ModelTimeout"), call_start("a"), None]
)
async def test_nothing_after_a_terminal_is_even_read(late: object) -> None:
    model = Yielding(START, text("a"), DONE, late)
    deltas = await drain(model)
    check_grammar(deltas)
    assert [delta.kind for delta in deltas] == ["start", "text", "done"]
    assert model.closed


@pytest.mark.spec("D-4")
async def test_a_stream_that_stops_is_retryable_and_names_the_model() -> None:
    last = await fails(Yielding(START, text("half an ans")))
    assert last.payload.retryable
    assert "m: the stream stopped" in (last.payload.message or "")


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    "chunks",
    [
        [START, call_start("a"), args("a", '{"path": "/')],
        [START, call_start("a"), args("a", '{"path": "/"}')],
        [START, call_start("a"), args("a", '{"path": "/"}'), DONE],
        [START, call_start("a"), args("a", "{}"), StreamDone(finish_reason="length")],
        [START, call_start("a"), end("a"), call_start("b"), args("b", "{"), DONE],
    ],
)
async def test_a_call_that_was_cut_short_never_ends(chunks: list[Any]) -> None:
    deltas = await drain(Yielding(*chunks))
    check_grammar(deltas)
    assert isinstance(deltas[-1], ErrorDelta)
    started = {delta.payload.tool_call_id for delta in deltas if isinstance(delta, ToolCallStartDelta)}
    ended = {delta.payload.tool_call_id for delta in deltas if isinstance(delta, ToolCallEndDelta)}
    assert started - ended


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("length", "ModelProtocolError"),
        ("content_filter", "ModelContentFiltered"),
        ("refusal", "ModelContentFiltered"),
    ],
)
@pytest.mark.parametrize("raw", ["", "{}", '{"path": "/"}', '{"path": "/'])
async def test_a_call_that_a_limit_cut_short_looks_complete_and_is_not(
    reason: str, code: str, raw: str
) -> None:
    stopped = [START, text("a"), *call("a", raw), StreamDone(finish_reason=reason)]
    last = await fails(Yielding(*stopped), code)
    assert "inside a call of 'add'" in (last.payload.message or "")
    assert last.payload.retryable is False
    whole = [START, *call("a", "{}"), text("and th"), StreamDone(finish_reason=reason)]
    assert (await drain(Yielding(*whole)))[-1].kind == "done"


@pytest.mark.spec("D-5")
async def test_the_same_call_delivered_twice_is_one_call() -> None:
    chunks = [*call("a", '{"x": 1}', "t1"), *call("b", '{"x": 1}', "t1")]
    deltas = await drain(Yielding(START, *chunks, DONE))
    check_grammar(deltas)
    assert calls_of(deltas) == [("call_0001", "add", '{"x": 1}')]


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    "again",
    ['{"x":1,"y":true}', '{ "y" : true , "x" : 1 }', '{"y":true,"x":1}\n'],
)
async def test_spelling_does_not_make_a_second_call(again: str) -> None:
    chunks = [*call("a", '{"x":1,"y":true}', "t1"), *call("b", again, "t1")]
    assert len(calls_of(await drain(Yielding(START, *chunks, DONE)))) == 1


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    "second",
    [
        call("b", '{"x": 2}', "t1"),
        call("b", '{"x": 1}', "t1", name="sub"),
        call("b", '{"x": true}', "t1"),
        call("b", '{"x": 1.0}', "t1"),
        call("b", "{", "t1"),
        call("b", '{"x": 1}', "t2"),
        call("b", '{"x": 1}', None),
        call("b", '{"x": 1}', ""),
    ],
)
async def test_calls_that_differ_stay_two_calls(second: list[Any]) -> None:
    deltas = await drain(Yielding(START, *call("a", '{"x": 1}', "t1"), *second, DONE))
    check_grammar(deltas)
    found = calls_of(deltas)
    assert [entry[0] for entry in found] == ["call_0001", "call_0002"]
    assert found[1][1:] == (second[0].tool_name, second[1].args_text_delta)


@pytest.mark.spec("D-5")
async def test_three_with_one_id_keep_each_different_one() -> None:
    chunks = [*call("a", "{}", "t"), *call("b", '{"n":1}', "t"), *call("c", '{"n":1}', "t")]
    deltas = await drain(Yielding(START, *chunks, DONE))
    check_grammar(deltas)
    assert [entry[2] for entry in calls_of(deltas)] == ["{}", '{"n":1}']


@pytest.mark.spec("D-3", "D-5")
@pytest.mark.parametrize(("second", "count"), [("1}", 1), ("2}", 2)])
async def test_a_repeat_may_interleave_with_the_first(second: str, count: int) -> None:
    chunks = [
        call_start("a", id="t"),
        args("a", '{"x":'),
        call_start("b", id="t"),
        args("b", '{"x":'),
        args("b", second),
        end("b"),
        args("a", "1}"),
        end("a"),
    ]
    deltas = await drain(Yielding(START, *chunks, DONE))
    check_grammar(deltas)
    assert len(calls_of(deltas)) == count


@pytest.mark.spec("D-3")
async def test_interleaved_calls_keep_their_own_arguments() -> None:
    chunks = [call_start("a", id="1"), call_start("b", id="2"), args("b", "[B"), args("a", "[A")]
    chunks += [args("b", "]"), end("b"), args("a", "]"), end("a")]
    deltas = await drain(Yielding(START, *chunks, DONE))
    check_grammar(deltas)
    assert sorted(calls_of(deltas)) == [("call_0001", "add", "[A]"), ("call_0002", "add", "[B]")]


@pytest.mark.spec("D-5")
async def test_a_held_repeat_that_is_cut_is_dropped_with_the_stream() -> None:
    chunks = [*call("a", "{}", "t"), call_start("b", id="t"), args("b", '{"x')]
    for ending in ([], [DONE]):
        deltas = await drain(Yielding(START, *chunks, *ending))
        check_grammar(deltas)
        assert isinstance(deltas[-1], ErrorDelta)
        assert len(calls_of(deltas)) == 1


@pytest.mark.spec("M-8", "D-5")
async def test_call_ids_are_ours_and_the_providers_goes_into_provider_data() -> None:
    deltas = await drain(Yielding(START, *call("0", "{}", "toolu_abc"), DONE))
    start = next(delta for delta in deltas if isinstance(delta, ToolCallStartDelta))
    assert start.payload.tool_call_id == "call_0001"
    assert start.payload.provider_data == {"origin": "x", "id": "toolu_abc"}
