"""Deltas in, one message out: joining, order, parsing, usage, snapshots, duplicates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.assembly import DeltaFilter, MessageAssembler
from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    DoneDelta,
    ErrorDelta,
    MessageDelta,
    StartDelta,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    TextDelta,
    ThinkingChunk,
    ThinkingDelta,
    TokenUsage,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallStartDelta,
    UsageDelta,
)

KINDS: dict[type, type] = {
    StreamStart: StartDelta,
    TextChunk: TextDelta,
    ThinkingChunk: ThinkingDelta,
    CallStart: ToolCallStartDelta,
    CallArgs: ToolCallArgsDelta,
    CallEnd: ToolCallEndDelta,
    TokenUsage: UsageDelta,
    StreamDone: DoneDelta,
    StreamError: ErrorDelta,
}


def deltas(*chunks: Any, run_id: str = "r") -> list[MessageDelta]:
    return [
        KINDS[type(chunk)](run_id=run_id, seq=number, payload=chunk, timestamp="t")
        for number, chunk in enumerate(chunks, 1)
    ]


def assemble(*chunks: Any) -> MessageAssembler:
    assembler = MessageAssembler("r")
    for delta in deltas(*chunks):
        assembler.consume(delta)
    return assembler


def text(value: str, **more: Any) -> TextChunk:
    return TextChunk(text_delta=value, **more)


def thought(value: str, **more: Any) -> ThinkingChunk:
    return ThinkingChunk(text_delta=value, **more)


def call(id: str, name: str, *args: str, end: bool = True) -> list[Any]:
    found: list[Any] = [CallStart(tool_call_id=id, tool_name=name)]
    found += [CallArgs(tool_call_id=id, args_text_delta=piece) for piece in args]
    return [*found, CallEnd(tool_call_id=id)] if end else found


START = StreamStart(model_id="m")
DONE = StreamDone(finish_reason="stop")


@pytest.mark.spec("D-6")
def test_runs_of_text_and_thinking_join_and_keep_their_order() -> None:
    chunks = [thought("hm"), thought(", so"), text("It "), text("is."), thought("really?"), text(" Yes.")]
    parts = assemble(START, *chunks, DONE).finish().message.parts
    assert [(part.kind, part.payload.text) for part in parts] == [
        ("thinking", "hm, so"),
        ("text", "It is."),
        ("thinking", "really?"),
        ("text", " Yes."),
    ]


@pytest.mark.spec("M-7", "D-6")
def test_provider_data_ends_the_part_it_belongs_to() -> None:
    first, second = {"origin": "a", "signature": "1"}, {"origin": "a", "signature": "2"}
    chunks = [thought("one"), thought("", provider_data=first), thought("two", provider_data=second)]
    parts = assemble(START, *chunks, text("x"), DONE).finish().message.parts
    assert [(p.payload.text, p.payload.provider_data) for p in parts] == [
        ("one", first),
        ("two", second),
        ("x", None),
    ]


@pytest.mark.spec("M-7")
def test_an_opaque_block_is_a_part_of_its_own() -> None:
    block = {"origin": "a", "block": {"type": "redacted"}}
    parts = assemble(START, thought("", provider_data=block), text("x"), DONE).finish().message.parts
    assert [(p.kind, p.payload.text, p.payload.provider_data) for p in parts] == [
        ("thinking", "", block),
        ("text", "x", None),
    ]


@pytest.mark.spec("D-3", "D-6")
def test_interleaved_calls_stay_apart_in_the_order_they_started() -> None:
    assembler = assemble(
        START,
        CallStart(tool_call_id="a", tool_name="f"),
        CallStart(tool_call_id="b", tool_name="g"),
        CallArgs(tool_call_id="b", args_text_delta='{"y":'),
        CallArgs(tool_call_id="a", args_text_delta='{"x": 1}'),
        CallArgs(tool_call_id="b", args_text_delta=" 2}"),
        CallEnd(tool_call_id="b"),
        CallEnd(tool_call_id="a"),
        StreamDone(finish_reason="tool_calls"),
    )
    found = [part.payload for part in assembler.finish().message.tool_calls]
    assert [(c.tool_call_id, c.arguments) for c in found] == [("a", {"x": 1}), ("b", {"y": 2})]


@pytest.mark.spec("D-6", "M-2")
@pytest.mark.parametrize(
    "raw", ['{"a": 1', "not json", "[1]", '{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', '"text"']
)
def test_unparsable_arguments_are_kept_raw_with_the_reason(raw: str) -> None:
    done = assemble(START, *call("a", "f", raw), DONE).finish()
    (part,) = done.message.tool_calls
    assert part.payload.arguments is None
    assert part.payload.raw_args_text == raw
    assert done.parse_errors["a"]
    assert done.message.meta is not None and done.message.meta["parse_errors"] == done.parse_errors


@pytest.mark.spec("M-5", "D-6")
def test_many_parse_errors_fit_into_meta() -> None:
    broken = [item for n in range(60) for item in call(f"call_{n:020}", "f", "{" + "x" * 4000)]
    done = assemble(START, *broken, DONE).finish()
    assert len(done.parse_errors) == 60
    assert done.message.meta is not None and len(done.message.meta["parse_errors"]) < 60


@pytest.mark.spec("D-7")
def test_the_last_usage_wins_and_is_in_meta() -> None:
    early = TokenUsage(input_tokens=5, output_tokens=0, total_tokens=5)
    late = TokenUsage(input_tokens=5, output_tokens=9, total_tokens=14, cached_input_tokens=3)
    done = assemble(START, early, text("x"), late, DONE).finish()
    assert done.usage == late
    assert done.message.meta == {
        "usage": {"inputTokens": 5, "outputTokens": 9, "totalTokens": 14, "cachedInputTokens": 3}
    }


@pytest.mark.spec("D-8")
def test_an_error_produces_no_message() -> None:
    assembler = assemble(START, text("half"), StreamError(error_code="ModelServerError", message="gone"))
    with pytest.raises(AgentError) as caught:
        assembler.finish()
    assert caught.value.code == "ModelProtocolError"
    assert assembler.error is not None and assembler.error.message == "gone"


@pytest.mark.spec("D-5")
def test_a_stream_without_its_end_has_no_finished_message() -> None:
    with pytest.raises(AgentError, match="has not ended"):
        assemble(START, *call("a", "f", "{}")).finish()


@pytest.mark.spec("D-11", "D-5")
def test_a_snapshot_shows_what_was_there_and_never_an_open_call() -> None:
    assembler = MessageAssembler("r")
    shots = []
    chunks = [START, text("He"), text("llo"), *call("a", "f", '{"x"', ": 1}"), text(" there"), DONE]
    for delta in deltas(*chunks):
        assembler.consume(delta)
        shots.append(assembler.snapshot())
    assert [shot.text for shot in shots[:3]] == ["", "He", "Hello"]
    assert [len(shot.message().tool_calls) for shot in shots] == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert shots[2].text == "Hello", "a snapshot does not change when more arrives"
    assert shots[-1].message().parts == assembler.finish().message.parts


@pytest.mark.spec("D-11")
def test_a_snapshot_does_no_work_per_fragment() -> None:
    """Counted, not timed: taking one looks at open parts alone, however much they hold."""

    class Counted(list[str]):
        looked = 0

        def __iter__(self) -> Any:
            Counted.looked += 1
            return super().__iter__()

        def __getitem__(self, key: Any) -> Any:
            Counted.looked += 1
            return super().__getitem__(key)

    assembler = assemble(START, *(text("x") for _ in range(1000)))
    for builder in assembler._builders:
        builder.fragments = Counted(builder.fragments)
    shots = [assembler.snapshot() for _ in range(100)]
    assert Counted.looked == 0
    assert shots[0].text == "x" * 1000
    assert Counted.looked > 0


@pytest.mark.spec("D-8")
def test_what_is_delivered_again_is_dropped() -> None:
    first = deltas(StreamStart(model_id="m", model_call_index=1, attempt=1), text("a"), text("b"))
    second = deltas(StreamStart(model_id="m", model_call_index=1, attempt=2), text("a"))
    seen = DeltaFilter()
    assert [seen.accept(delta) for delta in [*first, *first, *second, *second]] == [
        True,
        True,
        True,
        False,
        False,
        False,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.spec("D-8")
def test_a_place_may_be_given_by_the_event_that_carries_the_delta() -> None:
    seen = DeltaFilter()
    (delta,) = deltas(text("a"))
    assert seen.accept(delta, model_call_index=2, attempt=1)
    assert not seen.accept(delta, model_call_index=2, attempt=1)
    assert seen.accept(delta, model_call_index=3, attempt=1)


pieces = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text(max_size=8)),
        st.tuples(st.just("thinking"), st.text(max_size=8)),
    ),
    max_size=30,
)


@pytest.mark.spec("D-6", "D-11")
@given(pieces)
def test_nothing_is_lost_or_reordered(given_pieces: list[tuple[str, str]]) -> None:
    chunks = [text(value) if kind == "text" else thought(value) for kind, value in given_pieces]
    assembler = assemble(START, *chunks, DONE)
    parts = assembler.finish().message.parts
    for kind in ("text", "thinking"):
        joined = "".join(value for found, value in given_pieces if found == kind)
        assert "".join(p.payload.text for p in parts if p.kind == kind) == joined
    assert all(a.kind != b.kind for a, b in pairwise(parts))
    assert assembler.snapshot().message().parts == parts
