"""How streams end: exceptions, closing, cancelling; and characters that were cut in two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from models.yielding import (
    DONE,
    HELLO,
    START,
    Yielding,
    args,
    call_start,
    calls_of,
    check_grammar,
    drain,
    end,
    fails,
    text,
)
from turnlog.contract import (
    AgentError,
    Secret,
    StreamError,
    ThinkingChunk,
)
from turnlog.models import ModelRequest

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
