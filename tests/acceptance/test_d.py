"""D. Delta contract and assembly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import Agent
from turnlog.assembly import DeltaFilter, MessageAssembler
from turnlog.contract import (
    CallArgs,
    CallEnd,
    CallStart,
    MessageDelta,
    RequestMetadata,
    StreamDone,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    decode,
    encode,
    user_message,
)
from turnlog.models import Model, ModelRequest
from turnlog.testing import FixedClock, ScriptedModel, Turn

START, DONE = StreamStart(model_id="m"), StreamDone(finish_reason="stop")


class Own(Model[Any]):
    """A third-party model that yields whatever it was given."""

    provider_id = "own"
    specification = "own"

    def __init__(self, *chunks: Any, **fields: Any) -> None:
        super().__init__("own-1", clock=FixedClock(), **fields)
        self.chunks = chunks

    async def _stream(self, request: ModelRequest[Any]) -> AsyncIterator[Any]:
        for chunk in self.chunks:
            if request.raw is not None:
                request.raw.append({"sent": "as it came"})
            yield chunk


async def deltas_of(model: Model[Any], **options: Any) -> list[Any]:
    return [delta async for delta in model.stream([user_message("Hi.")], **options)]


def assembled(deltas: list[Any]) -> Any:
    assembler = MessageAssembler("r")
    for delta in deltas:
        assembler.consume(delta)
    return assembler.finish("2026-01-31T12:00:00.000Z")


def start(key: str, name: str = "look", **data: Any) -> CallStart:
    return CallStart(tool_call_id=key, tool_name=name, provider_data=data or None)


def args(key: str, text: str) -> CallArgs:
    return CallArgs(tool_call_id=key, args_text_delta=text)


def end(key: str) -> CallEnd:
    return CallEnd(tool_call_id=key)


@pytest.mark.spec("D-1")
async def test_a_delta_has_these_fields_and_the_kinds_are_closed() -> None:
    turn = Turn(
        text="a",
        thinking="b",
        tool_calls=[call("look", place="x")],
        usage=TokenUsage(input_tokens=1, output_tokens=1, total_tokens=2, cached_input_tokens=1),
    )
    deltas = await deltas_of(ScriptedModel([turn]))
    failed = await deltas_of(ScriptedModel([Turn(error={"code": "ModelRateLimited", "retryAfter": 3})]))
    kinds = {delta.kind for delta in [*deltas, *failed]}
    assert kinds == {cls.kind for cls in get_args(MessageDelta)}
    for delta in [*deltas, *failed]:
        assert decode(encode(delta), MessageDelta) == delta
        assert set(decode(encode(delta), dict)) == {"kind", "runId", "seq", "payload", "timestamp"}
    assert failed[-1].payload.retry_after == 3


@pytest.mark.spec("D-2", "D-3", "D-4")
@pytest.mark.parametrize(
    "chunks",
    [
        (),
        (START,),
        (START, TextChunk(text_delta="a")),
        (TextChunk(text_delta="a"), DONE),
        (START, START, DONE),
        (START, args("1", "{}"), DONE),
        (START, end("1"), DONE),
        (START, start("1"), args("1", "{}"), DONE),
        (START, start("1"), end("1"), args("1", "{}"), DONE),
        (START, start("1"), end("1"), end("1"), DONE),
        (START, start("1"), start("1"), end("1"), DONE),
        (START, "a text", DONE),
        (START, StreamDone(finish_reason="enough")),
    ],
)
async def test_a_stream_that_breaks_a_rule_is_one_error_and_no_history(chunks: tuple[Any, ...]) -> None:
    deltas = await deltas_of(Own(*chunks))
    assert deltas[0].kind == "start"
    assert [delta.kind for delta in deltas].count("start") == 1
    assert [delta.kind for delta in deltas if delta.kind in ("done", "error")] == ["error"]
    assert deltas[-1].payload.error_code == "ModelProtocolError"
    seqs = [delta.seq for delta in deltas]
    assert seqs == sorted(set(seqs))
    desk = Desk()
    result = await Agent(Own(*chunks), store=desk.store, clock=desk.clock).run(
        "Hi.", session="s", check=False
    )
    assert result.status == "failed"
    assert await desk.of_kind("model_output") == []


@pytest.mark.spec("D-2")
async def test_nothing_follows_the_terminal() -> None:
    deltas = await deltas_of(Own(START, TextChunk(text_delta="a"), DONE, TextChunk(text_delta="late"), DONE))
    assert [delta.kind for delta in deltas] == ["start", "text", "done"]


@pytest.mark.spec("D-4")
async def test_a_stream_without_a_terminal_may_be_tried_again() -> None:
    deltas = await deltas_of(Own(START, TextChunk(text_delta="a")))
    assert deltas[-1].payload.retryable is True


@pytest.mark.spec("D-3")
async def test_several_calls_may_interleave() -> None:
    chunks = [START, start("1"), start("2"), args("2", '{"place":'), args("1", '{"place":"x"}')]
    chunks += [args("2", '"y"}'), end("2"), end("1"), StreamDone(finish_reason="tool_calls")]
    message = assembled(await deltas_of(Own(*chunks))).message
    assert [part.payload.arguments for part in message.tool_calls] == [{"place": "x"}, {"place": "y"}]


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    "turn",
    [
        Turn(tool_calls=[call("look", place="x")], cut=True),
        Turn(tool_calls=[{"name": "look", "rawArgs": '{"place": "x"'}], finish_reason="length"),
        Turn(tool_calls=[call("look", place="x")], finish_reason="length"),
        Turn(chunks=[START, start("1"), args("1", '{"place": "x"}'), DONE]),
    ],
    ids=["ended", "length", "length after it", "no end"],
)
async def test_a_cut_call_is_never_run(turn: Turn) -> None:
    desk = Desk()
    await desk.agent(*[turn] * 10).run("Look.", session="s", check=False)
    assert desk.done == []
    assert not any(entry.payload.message.tool_calls for entry in await desk.of_kind("model_output"))


@pytest.mark.spec("D-5")
@pytest.mark.parametrize(
    ("second", "calls"),
    [('{"place":"x"}', 1), ('{ "place": "x" }', 1), ('{"place":"y"}', 2)],
)
async def test_calls_that_share_an_id_are_two_unless_they_are_the_same(second: str, calls: int) -> None:
    chunks = [START]
    for key, text in (("1", '{"place":"x"}'), ("2", second)):
        chunks += [start(key, id="theirs"), args(key, text), end(key)]
    deltas = await deltas_of(Own(*chunks, StreamDone(finish_reason="tool_calls")))
    found = assembled(deltas).message.tool_calls
    assert len(found) == calls
    assert len({part.payload.tool_call_id for part in found}) == calls
    for part in found:
        assert part.payload.tool_call_id != "theirs"
        assert part.payload.provider_data["id"] == "theirs"


@pytest.mark.spec("D-6")
async def test_runs_of_text_join_and_order_is_kept() -> None:
    chunks = [START, ThinkingChunk(text_delta="hm"), ThinkingChunk(text_delta="m"), TextChunk(text_delta="a")]
    chunks += [TextChunk(text_delta="b"), start("1"), args("1", "{"), args("1", "}"), end("1")]
    chunks += [TextChunk(text_delta="c"), ThinkingChunk(text_delta="x"), DONE]
    parts = assembled(await deltas_of(Own(*chunks))).message.parts
    assert [part.kind for part in parts] == ["thinking", "text", "tool_call", "text", "thinking"]
    assert [part.payload.text for part in parts if part.kind != "tool_call"] == ["hmm", "ab", "c", "x"]


@pytest.mark.spec("D-6")
async def test_arguments_that_do_not_parse_are_kept_told_and_no_crash() -> None:
    desk = Desk()
    agent = desk.agent(asks_for({"name": "look", "rawArgs": '{"place": x}'}), "Sorry.")
    assert (await agent.run("Look.", session="s")).text == "Sorry."
    [first, _] = await desk.of_kind("model_output")
    [part] = first.payload.message.tool_calls
    assert part.payload.raw_args_text == '{"place": x}'
    assert part.payload.tool_call_id in first.payload.message.meta["parse_errors"]
    [(is_error, content)] = results_in(desk.seen)
    assert is_error and "look" in content and desk.done == []


async def test_the_last_usage_counts_and_ends_up_in_meta_and_totals() -> None:
    def used(n: int) -> TokenUsage:
        return TokenUsage(input_tokens=n, output_tokens=n, total_tokens=2 * n)

    chunks = [START, used(1), TextChunk(text_delta="a"), used(5), used(9), DONE]
    desk = Desk()
    result = await desk.agent(Turn(chunks=chunks)).run("Hi.", session="s")
    [output] = await desk.of_kind("model_output")
    assert output.payload.message.meta["usage"]["inputTokens"] == 9
    assert result.usage is not None and result.usage.total_tokens == 18


@pytest.mark.spec("D-8")
async def test_an_error_is_no_message() -> None:
    desk = Desk()
    turn = Turn(text="half", error={"code": "ModelBadRequest", "message": "no"})
    result = await desk.agent(turn).run("Hi.", session="s", check=False)
    assert result.status == "failed"
    assert [message.role for message in await desk.agent().session("s").messages()] == ["user"]


@pytest.mark.spec("D-8")
async def test_deltas_that_come_again_are_dropped() -> None:
    place = RequestMetadata(session_id="s", run_id="r", model_call_index=2, attempt=1)
    deltas = await deltas_of(ScriptedModel(["Hello there, you."]), request_metadata=place)
    again = DeltaFilter()
    kept = [delta for delta in [*deltas[:3], *deltas, *deltas] if again.accept(delta)]
    assert kept == deltas


@pytest.mark.spec("D-9")
async def test_what_the_provider_sent_is_off_by_default_and_in_no_event_or_entry() -> None:
    assert all(delta.provider_raw is None for delta in await deltas_of(ScriptedModel(["Hi."])))
    desk = Desk()
    chunks = (START, TextChunk(text_delta="Hi."), DONE)
    debugged = Own(*chunks, include_raw=True)
    assert any(delta.provider_raw for delta in await deltas_of(debugged))
    agent = Agent(debugged, store=desk.store)
    wires: list[bytes] = []
    async with agent.run_stream("Hi.", session="s") as run:
        async for event in run:
            wires.append(encode(event))
    assert not any(b"providerRaw" in wire for wire in [*wires, encode(await desk.entries())])


@pytest.mark.spec("D-10")
async def test_one_stream_is_one_message_and_no_tool_starts_before_its_end() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("look", place="x"), text="Let me look around for a while."), "Quiet.")
    during: list[tuple[str, int]] = []
    async with agent.run_stream("Look.", session="s") as run:
        async for event in run:
            during.append((event.kind, len(desk.done)))
    last_piece = max(
        at for at, (kind, _) in enumerate(during) if kind == "model_delta" and at < len(during) // 2
    )
    assert during[last_piece][1] == 0
    kinds = [entry.kind for entry in await desk.entries()]
    assert kinds.index("model_output") < kinds.index("tool_started")
    assert kinds.count("model_output") == kinds.count("model_call_started") == 2


@pytest.mark.spec("D-11")
async def test_a_snapshot_can_be_taken_at_any_delta_and_its_cost_does_not_grow() -> None:
    import sys

    def work(length: int) -> int:
        assembler = MessageAssembler("r")
        for delta in stream[:length]:
            assembler.consume(delta)
        count = 0

        def seen(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(seen)
        try:
            assembler.snapshot()
        finally:
            sys.setprofile(None)
        return count

    stream = await deltas_of(Own(START, *[TextChunk(text_delta="x")] * 5_000, DONE))
    assert work(10) == work(5_000)
    assembler, said = MessageAssembler("r"), ""
    for delta in stream[:50]:
        assembler.consume(delta)
        said += delta.payload.text_delta if delta.kind == "text" else ""
        assert assembler.snapshot().text == said
