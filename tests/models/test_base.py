"""What the base makes of adapters that break the rules: one error delta, never a corrupt history."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallEnd,
    CallStart,
    DeltaGrammar,
    ErrorDelta,
    MessageDelta,
    RequestMetadata,
    Secret,
    SpecificTool,
    StreamDone,
    StreamError,
    StreamStart,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallStartDelta,
    decode,
    encode,
    user_message,
)
from turnlog.models import BUILT_IN, Model, ModelConfig, ModelRequest, load_model
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn

START = StreamStart(model_id="m")
DONE = StreamDone(finish_reason="stop")
HELLO = [user_message("hello")]


def text(value: str) -> TextChunk:
    return TextChunk(text_delta=value)


def call_start(key: str, name: str = "add", id: str | None = None) -> CallStart:
    data = None if id is None else {"origin": "x", "id": id}
    return CallStart(tool_call_id=key, tool_name=name, provider_data=data)


def args(key: str, value: str) -> CallArgs:
    return CallArgs(tool_call_id=key, args_text_delta=value)


def end(key: str) -> CallEnd:
    return CallEnd(tool_call_id=key)


class Yielding(Model):
    """A third-party adapter, for better or worse: yields what it is given, then raises if told to."""

    provider_id = "third"
    specification = "third-party"

    def __init__(self, *chunks: Any, raises: BaseException | None = None, **fields: Any) -> None:
        super().__init__("m", clock=FixedClock(), ids=FixedIds(), **fields)
        self.chunks = chunks
        self.raises = raises
        self.closed = False
        self.seen: list[ModelRequest] = []

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        self.seen.append(request)
        try:
            for chunk in self.chunks:
                yield chunk
            if self.raises is not None:
                raise self.raises
        finally:
            self.closed = True


async def drain(model: Model, **options: Any) -> list[MessageDelta]:
    return [delta async for delta in model.stream(HELLO, **options)]


def check_grammar(deltas: Sequence[MessageDelta]) -> None:
    grammar = DeltaGrammar()
    for delta in deltas:
        call_id = getattr(delta.payload, "tool_call_id", None)
        assert grammar.check(delta.kind, call_id, delta.seq) is None
        assert decode(encode(delta), MessageDelta) == delta
    assert grammar.state == "ended"


async def fails(model: Model, code: str = "ModelProtocolError") -> ErrorDelta:
    deltas = await drain(model)
    check_grammar(deltas)
    last = deltas[-1]
    assert isinstance(last, ErrorDelta)
    assert last.payload.error_code == code
    assert sum(delta.kind in ("done", "error") for delta in deltas) == 1
    return last


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


def calls_of(deltas: Sequence[MessageDelta]) -> list[tuple[str, str, str]]:
    """(our id, name, arguments) of every call that was completed."""
    found: dict[str, list[str]] = {}
    done: list[tuple[str, str, str]] = []
    for delta in deltas:
        match delta:
            case ToolCallStartDelta():
                found[delta.payload.tool_call_id] = [delta.payload.tool_name]
            case ToolCallArgsDelta():
                found[delta.payload.tool_call_id].append(delta.payload.args_text_delta)
            case ToolCallEndDelta():
                name, *pieces = found[delta.payload.tool_call_id]
                done.append((delta.payload.tool_call_id, name, "".join(pieces)))
            case _:
                pass
    return done


def call(key: str, value: str, id: str | None = None, name: str = "add") -> list[Any]:
    return [call_start(key, name, id), args(key, value), end(key)]


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


# ── exceptions ──


class ClientTimeout(Exception):
    """Stands for an exception type of some client library."""


@pytest.mark.spec("D-4", "E-1")
@pytest.mark.parametrize("before", [[], [START], [START, text("a")], [START, call_start("a")]])
@pytest.mark.parametrize(
    "error", [ClientTimeout("slow"), KeyError("x"), ExceptionGroup("two", [OSError("a")])]
)
async def test_an_exception_becomes_an_error_delta(before: list[Any], error: Exception) -> None:
    last = await fails(Yielding(*before, raises=error), "ModelUnknownError")
    assert type(error).__name__ in (last.payload.message or "")


async def test_an_agent_error_keeps_its_code_and_wait() -> None:
    error = AgentError("ModelRateLimited", "slow down", meta={"retry_after": 2.5})
    last = await fails(Yielding(START, raises=error), "ModelRateLimited")
    assert (last.payload.retryable, last.payload.retry_after) == (True, 2.5)


async def test_an_error_chunk_gets_what_follows_from_its_code() -> None:
    last = await fails(Yielding(START, StreamError(error_code="ModelOverloaded")), "ModelOverloaded")
    assert last.payload.retryable is True
    last = await fails(Yielding(START, StreamError(error_code="overloaded_error")), "ModelUnknownError")
    assert last.payload.message == "overloaded_error: no message"
    assert last.payload.retryable is False


async def test_an_error_mapper_comes_first() -> None:
    def mapper(error: BaseException) -> AgentError | None:
        return AgentError("ModelTimeout", "mapped") if isinstance(error, ClientTimeout) else None

    last = await fails(Yielding(START, raises=ClientTimeout(), error_mapper=mapper), "ModelTimeout")
    assert last.payload.message == "mapped"
    await fails(Yielding(START, raises=KeyError(), error_mapper=mapper), "ModelUnknownError")


@pytest.mark.parametrize("answer", [None, "text", KeyError])
async def test_a_mapper_that_fails_hides_nothing(answer: Any) -> None:
    def mapper(error: BaseException) -> Any:
        if answer is KeyError:
            raise KeyError("a bug in the mapper")
        return answer

    last = await fails(
        Yielding(START, raises=ClientTimeout("slow"), error_mapper=mapper), "ModelUnknownError"
    )
    assert "ClientTimeout: slow" in (last.payload.message or "")


@pytest.mark.spec("E-3")
async def test_no_secret_in_an_error() -> None:
    key = Secret("sk-very-secret-value")
    error = RuntimeError(f"refused: {key.reveal()}")
    last = await fails(Yielding(START, raises=error), "ModelUnknownError")
    assert last.payload.message == "RuntimeError: refused: [secret]"
    chunk = StreamError(error_code="ModelAuthError", message=f"bad key {key.reveal()}")
    last = await fails(Yielding(START, chunk), "ModelAuthError")
    assert last.payload.message == "bad key [secret]"


class Returning(Yielding):
    """``_stream`` is not a generator but a function: what it does happens at once."""

    def __init__(self, make: Callable[[ModelRequest], Any]) -> None:
        super().__init__()
        self.make = make

    def _stream(self, request: ModelRequest) -> Any:
        return self.make(request)


async def test_a_stream_function_that_raises_or_returns_nonsense() -> None:
    def refuse(request: ModelRequest) -> Any:
        raise ClientTimeout("no")

    await fails(Returning(refuse), "ModelUnknownError")
    await fails(Returning(lambda request: None), "ModelUnknownError")
    await fails(Returning(lambda request: [START, DONE]), "ModelUnknownError")


async def test_a_stream_that_must_be_awaited_first() -> None:
    inner = Yielding(START, text("a"), DONE)

    async def connect(request: ModelRequest) -> Any:
        return inner._stream(request)

    deltas = await drain(Returning(connect))
    assert [delta.kind for delta in deltas] == ["start", "text", "done"]
    assert inner.closed


# ── closing and cancelling ──


class Waiting(Yielding):
    """Yields its chunks, then waits for ever. ``at_close`` is what its cleaning up does."""

    def __init__(self, *chunks: Any, at_close: BaseException | None = None) -> None:
        super().__init__(*chunks)
        self.waiting = asyncio.Event()
        self.at_close = at_close

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            for chunk in self.chunks:
                yield chunk
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            self.closed = True
            if self.at_close is not None:
                raise self.at_close


@pytest.mark.spec("P-11")
async def test_cancelling_closes_the_source() -> None:
    model = Waiting(START, text("a"))
    task = asyncio.create_task(drain(model))
    await model.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.closed


@pytest.mark.spec("P-11")
@pytest.mark.parametrize("after", [1, 2])
async def test_closing_the_iterator_closes_the_source(after: int) -> None:
    model = Waiting(START, text("a"))
    stream = model.stream(HELLO)
    for _ in range(after):
        await anext(stream)
    await stream.aclose()
    assert model.closed
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_closing_before_the_first_delta_asks_nothing() -> None:
    model = Yielding(START, DONE)
    stream = model.stream(HELLO)
    await stream.aclose()
    assert model.seen == []


async def test_a_source_that_fails_to_close_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = Waiting(START, text("a"), at_close=OSError("already gone"))
    stream = model.stream(HELLO)
    await anext(stream)
    await stream.aclose()
    assert model.closed
    model = Waiting(START, DONE, at_close=OSError("already gone"))
    deltas = await drain(model)
    assert deltas[-1].kind == "done"
    assert [record.message for record in caplog.records] == ["closing a stream failed: OSError"] * 2


async def test_an_adapter_that_cancels_itself_fails_like_any_other() -> None:
    last = await fails(Yielding(START, raises=asyncio.CancelledError()), "ModelServerError")
    assert last.payload.retryable


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_must_stop_the_process_is_not_caught(error: type[BaseException]) -> None:
    stream = Yielding(START, raises=error()).stream(HELLO)
    await anext(stream)
    with pytest.raises(error):
        await anext(stream)


# ── text ──


async def pieces(*chunks: Any) -> list[str]:
    deltas = await drain(Yielding(START, *chunks, DONE))
    check_grammar(deltas)
    return [delta.payload.text_delta for delta in deltas if delta.kind in ("text", "thinking")]  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_character_cut_in_two_is_joined() -> None:
    assert "".join(await pieces(text("a\ud83d"), text("\ude00b"))) == "a😀b"
    thinking = [ThinkingChunk(text_delta="\ud83d"), ThinkingChunk(text_delta="\ude00")]
    assert "".join(await pieces(*thinking)) == "😀"
    deltas = await drain(
        Yielding(START, call_start("a"), args("a", '"\ud83d'), args("a", '\ude00"'), end("a"), DONE)
    )
    assert calls_of(deltas)[0][2] == '"😀"'


async def test_half_a_character_alone_is_replaced() -> None:
    assert await pieces(text("a\ude00b")) == ["a\ufffdb"]
    assert "".join(await pieces(text("a\ud83d"), text("b"))) == "a\ufffdb"
    assert "".join(await pieces(text("a\ud83d"))) == "a\ufffd"
    deltas = await drain(Yielding(START, call_start("a"), args("a", "\ud83d"), end("a"), DONE))
    assert calls_of(deltas)[0][2] == "\ufffd"


# ── requests and configuration ──


@pytest.mark.spec("P-1")
async def test_start_says_which_call_of_the_run_it_is() -> None:
    metadata = RequestMetadata(session_id="s", run_id="run_1", model_call_index=3, attempt=2)
    deltas = await drain(Yielding(START, DONE), request_metadata=metadata)
    assert {delta.run_id for delta in deltas} == {"run_1"}
    assert encode(deltas[0].payload) == b'{"modelId":"m","modelCallIndex":3,"attempt":2}'
    failed = await drain(Yielding(), request_metadata=metadata)
    assert encode(failed[0].payload) == b'{"modelId":"m","modelCallIndex":3,"attempt":2}'


@pytest.mark.spec("P-10")
async def test_parameters_of_a_call_win_over_the_configuration() -> None:
    model = Yielding(START, DONE, temperature=0.5, tool_choice="auto")
    await drain(model, temperature=1.0, seed=7, tool_choice=SpecificTool(name="add"))
    request = model.seen[0]
    assert request.config.temperature == 1.0
    assert request.params == {"seed": 7}
    assert request.tool_choice == SpecificTool(name="add")
    assert model.get_config().temperature == 0.5
    await drain(model)
    assert model.seen[1].config.temperature == 0.5
    assert model.seen[1].tool_choice == "auto"


def test_bad_parameters_raise_before_anything_is_sent() -> None:
    model = Yielding(START, DONE)
    with pytest.raises(AgentError, match="temperature is 9"):
        model.stream(HELLO, temperature=9)
    with pytest.raises(AgentError, match="takes a list of messages"):
        model.stream("hello")  # pyright: ignore[reportArgumentType]
    assert model.seen == []


@pytest.mark.spec("P-1")
def test_bad_configuration_raises_at_construction() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 3}, "temperature is 3"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": "high"}, r"Expected `float.*topP"),
        ({"wibble": 1}, r"no field 'wibble'; it has model_id, temperature"),
        ({"tool_choice": "sometimes"}, "toolChoice"),
        ({"stop_sequences": "END"}, "stopSequences"),
        ({"cache_config": {"strategy": "maybe"}}, r"cacheConfig\.strategy"),
    ]
    for fields, why in cases:
        with pytest.raises(AgentError, match=why) as caught:
            Yielding(START, **fields)
        assert caught.value.code == "ConfigInvalid"
    with pytest.raises(AgentError, match="model_id is empty"):
        ScriptedModel(model_id="")
    with pytest.raises(AgentError, match="takes a ModelConfig, not a dict"):
        Model.__init__(Yielding.__new__(Yielding), {"model_id": "m"})  # pyright: ignore[reportArgumentType]


@pytest.mark.spec("P-1")
async def test_update_config_holds_for_later_calls_only() -> None:
    model = Yielding(START, text("a"), DONE, max_tokens=10)
    stream = model.stream(HELLO)
    model.update_config(max_tokens=20)
    assert [delta.kind async for delta in stream] == ["start", "text", "done"]
    await drain(model)
    assert [request.config.max_tokens for request in model.seen] == [10, 20]
    with pytest.raises(AgentError, match="max_tokens is -1"):
        model.update_config(max_tokens=-1)
    assert model.get_config() == ModelConfig(model_id="m", max_tokens=20)


def test_model_info_and_features() -> None:
    model = Yielding()
    assert model.model_info().model_id == "m"
    assert model.supports("tools")
    assert not model.supports("telepathy")
    assert model.descriptor.specification == "third-party"


# ── the provider's own words ──


class Tapped(Yielding):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        for number, chunk in enumerate(self.chunks):
            if request.raw is not None:
                request.raw.append({"event": number, "key": "sk-very-secret-value"})
            yield chunk


@pytest.mark.spec("D-9")
async def test_provider_raw_is_off_by_default_and_never_holds_a_secret() -> None:
    Secret("sk-very-secret-value")
    model = Tapped(START, text("a"), call_start("a"), args("a", "{}"), end("a"), DONE)
    assert all(delta.provider_raw is None for delta in await drain(model))
    deltas = await drain(model, include_raw=True)
    assert [delta.provider_raw for delta in deltas] == [
        {"events": [{"event": number, "key": "[secret]"}]} for number in range(6)
    ]
    failed = await drain(Tapped(START, None, include_raw=True))
    assert failed[-1].provider_raw == {"events": [{"event": 1, "key": "[secret]"}]}


# ── the catalog ──


@pytest.mark.spec("P-3")
def test_an_unknown_prefix_lists_the_known_ones() -> None:
    with pytest.raises(AgentError, match="no model prefix 'antropic'") as caught:
        load_model("antropic:claude")
    assert caught.value.code == "ConfigInvalid"
    for prefix in BUILT_IN:
        assert prefix in caught.value.message


@pytest.mark.parametrize("name", ["scripted", "scripted:", "openai", "anthropic:"])
def test_a_name_without_a_model_says_how_to_write_it(name: str) -> None:
    prefix = name.partition(":")[0]
    with pytest.raises(AgentError, match=f"names no model; write {prefix}:MODEL"):
        load_model(name)


PLUGIN = """
from turnlog.models import ScriptedModel

class Odd(ScriptedModel):
    provider_id = "odd"

def make(name, **config):
    return Odd(["from a plugin"], model_id=name, **config)

def wrong(name, **config):
    return "not a model"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that adds prefixes, as installing it would."""
    (tmp_path / "odd_models.py").write_text(PLUGIN)
    info = tmp_path / "odd_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[turnlog.models]\nodd = odd_models:make\nwrong = odd_models:wrong\ngone = nowhere:make\n"
        "scripted = odd_models:make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_models", raising=False)


@pytest.mark.spec("P-3")
@pytest.mark.usefixtures("plugin")
async def test_another_package_adds_a_prefix_through_an_entry_point(tmp_path: Path) -> None:
    model = load_model("odd:m-1:latest", temperature=0.25)
    assert model.descriptor.provider_id == "odd"
    assert model.get_config().model_id == "m-1:latest"
    assert model.get_config().temperature == 0.25
    with pytest.raises(AgentError, match="odd"):
        load_model("nothing:m")
    with pytest.raises(AgentError, match="made a str, which is no Model"):
        load_model("wrong:m")
    with pytest.raises(AgentError, match="No module named 'nowhere'") as caught:
        load_model("gone:m")
    assert caught.value.code == "PluginMissing"
    script = tmp_path / "script.json"
    script.write_text('["built in"]')
    assert load_model(f"scripted:{script}").descriptor.provider_id == "scripted"


@pytest.mark.spec("D-1")
async def test_every_kind_of_delta_reads_back() -> None:
    turn = Turn(thinking="hm", text="hello", tool_calls=[{"name": "add", "arguments": {"a": 1}}])
    deltas = await drain(ScriptedModel([turn]))
    deltas += await drain(ScriptedModel([AgentError("ModelTimeout", "slow", meta={"retry_after": 1})]))
    assert {delta.kind for delta in deltas} == {
        "start", "text", "thinking", "tool_call_start", "tool_call_args", "tool_call_end",
        "usage", "done", "error",
    }  # fmt: skip
    for delta in deltas:
        assert decode(encode(delta), MessageDelta) == delta
        assert msgspec.json.decode(encode(delta))["kind"] == delta.kind
