"""The contract kit for models: a sound model passes, and each broken promise is found and named."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from turnlog.contract import (
    AgentError,
    CallArgs,
    CallStart,
    StreamDone,
    TextChunk,
    ThinkingChunk,
    TokenUsage,
    encode,
)
from turnlog.models import Model, ModelConfig, ModelInfo, ModelRequest
from turnlog.models.wire import complete_calls
from turnlog.testing import ModelCase, ModelReport, ScriptedModel, Wired, check_model


class Played(ScriptedModel):
    """Plays any case, the silent one too, and knows when its source was closed."""

    def __init__(self, case: ModelCase) -> None:
        super().__init__(default=case.as_turn(), ids=None)
        self.case = case
        self.gone = asyncio.Event()

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            async for chunk in super()._stream(request):
                if self.case.ending == "hang" and isinstance(chunk, TokenUsage):
                    await asyncio.Event().wait()
                for sent in self.bend(chunk, request):
                    yield sent
        finally:
            self.gone.set()

    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        return [chunk]


def play(case: ModelCase) -> Wired:
    model = Played(case)
    return Wired(model, closed=model.gone.wait, sent=lambda: [{"messages": []}])


@pytest.mark.spec("P-8", "X-5")
async def test_a_sound_model_passes() -> None:
    report = await check_model(play)
    assert len(report.passed) > 40
    assert report.skipped == {}
    assert str(report) == f"{len(report.passed)} checks passed"


async def test_cases_a_protocol_lacks_are_reported() -> None:
    finished: list[str] = []

    async def make(case: ModelCase) -> Wired | Model | None:
        if case.name in ("thinking", "same_id"):
            return None

        async def finish() -> None:
            finished.append(case.name)

        return Wired(Played(case), finish=finish)

    report = await check_model(make)
    assert (
        report.skipped["answer: thinking"] == "no model for the case 'thinking' (thinks first, then answers)"
    )
    assert "return Wired(model, closed=…)" in report.skipped["cancelled: the source too"]
    assert "skipped answer: same_id" in str(report)
    assert "hang" in finished


async def check_fails(make: Callable[[ModelCase], Any], limit: float = 30.0) -> str:
    with pytest.raises(AssertionError) as caught:
        await check_model(make, limit=limit)
    return str(caught.value)


async def test_required_cases_and_wrong_factories() -> None:
    assert "every model must be able to play 'text'" in await check_fails(lambda case: None)
    assert "make_model gave a str for 'text'" in await check_fails(lambda case: "model")


class OnePiece(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        if isinstance(chunk, TextChunk):
            self.whole = getattr(self, "whole", "") + chunk.text_delta
            return []
        if isinstance(chunk, TokenUsage | StreamDone) and getattr(self, "whole", ""):
            text, self.whole = self.whole, ""
            return [TextChunk(text_delta=text), chunk]
        return [chunk]


class WrongText(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        return [TextChunk(text_delta=chunk.text_delta.upper())] if isinstance(chunk, TextChunk) else [chunk]


class NoThinking(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        return [] if isinstance(chunk, ThinkingChunk) else [chunk]


class NoOrigin(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        if isinstance(chunk, CallStart):
            return [CallStart(tool_call_id=chunk.tool_call_id, tool_name=chunk.tool_name)]
        return [chunk]


class MendsArguments(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        if isinstance(chunk, CallArgs):
            text = chunk.args_text_delta.replace("two", "2")
            return [CallArgs(tool_call_id=chunk.tool_call_id, args_text_delta=text)]
        return [chunk]


class WrongReason(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        return [StreamDone(finish_reason="other")] if isinstance(chunk, StreamDone) else [chunk]


class TakesCutsAsWhole(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        async for chunk in super()._stream(request):
            yield chunk
        if self.case.ending == "cut":
            yield StreamDone(finish_reason="stop")


class CutsAreFinal(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        async for chunk in super()._stream(request):
            yield chunk
        if self.case.ending == "cut":
            raise AgentError("ModelBadRequest", "gone")


class ForgetsToWait(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            async for chunk in super()._stream(request):
                yield chunk
        except AgentError as error:
            raise AgentError(error.code, error.message) from error


class AllUnknown(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            async for chunk in super()._stream(request):
                yield chunk
        except AgentError as error:
            raise RuntimeError(error.message) from error


class RefusesImages(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        if any(part.kind == "image" for message in request.messages for part in message.parts):
            raise AgentError("ModelBadRequest", "no images")
        async for chunk in super()._stream(request):
            yield chunk


class Meddles(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        request.messages[0].parts.clear()
        async for chunk in super()._stream(request):
            yield chunk


class LeaksRaw(Played):
    def __init__(self, case: ModelCase) -> None:
        super().__init__(case)
        self._config = msgspec.structs.replace(self._config, include_raw=True)

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        async for chunk in super()._stream(request):
            assert request.raw is not None
            request.raw.append({"a": 1})
            yield chunk


class CountsDown(Played):
    def bend(self, chunk: Any, request: ModelRequest) -> list[Any]:
        if isinstance(chunk, TokenUsage):
            return [chunk, TokenUsage(input_tokens=1, output_tokens=0, total_tokens=1)]
        return [chunk]


class ForgetsUpdates(Played):
    def update_config(self, **fields: Any) -> None:
        super().update_config(**fields)
        self._config = ModelConfig(model_id="m")


class TakesAnything(Played):
    def update_config(self, **fields: Any) -> None:
        if "no_such_field" not in fields:
            super().update_config(**fields)


class SaysYes(Played):
    def supports(self, feature: str) -> bool:
        return True


class Anonymous(Played):
    def model_info(self) -> ModelInfo:
        return ModelInfo(provider_id="", specification="", model_id="m")


class Connects(Played):
    def __init__(self, case: ModelCase) -> None:
        super().__init__(case)
        with socket.socket() as probe:
            probe.setblocking(False)
            with suppress(OSError):
                probe.connect(("127.0.0.1", 9))


class SwallowsCancel(Played):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        try:
            async for chunk in super()._stream(request):
                yield chunk
        except asyncio.CancelledError:
            yield StreamDone(finish_reason="stop")


class SharedIds:
    def entry(self) -> str:
        return "e"

    run = session = entry

    def call(self) -> str:
        return "call_always_the_same"


class SameIds(Played):
    def __init__(self, case: ModelCase) -> None:
        super().__init__(case)
        self._ids = SharedIds()


class Hurries(Played):
    """Reads everything before it passes anything on."""

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        for chunk in [chunk async for chunk in super()._stream(request)]:
            yield chunk


@pytest.mark.spec("P-8")
@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (OnePiece, "answer: text: the text came in one piece"),
        (WrongText, "answer: text: text is 'THE SUM"),
        (NoThinking, "answer: thinking: thinking is ''"),
        (NoOrigin, "answer: tool_call: call call_"),
        (MendsArguments, "answer: bad_arguments: calls are"),
        (WrongReason, "answer: text: finishReason is 'other', expected 'stop'"),
        (TakesCutsAsWhole, "answer: cut: a source that stopped without its end mark"),
        (CutsAreFinal, "answer: cut: a cut must be retryable"),
        (ForgetsToWait, "answer: rate_limited: retryAfter is None, expected 7"),
        (AllUnknown, "answer: rate_limited: the error is ModelUnknownError"),
        (RefusesImages, "history: an image: the history was refused"),
        (Meddles, "answer: text: the model changed the messages"),
        (LeaksRaw, "answer: text: a delta carries providerRaw"),
        (CountsDown, "answer: text: usage is not cumulative"),
        (ForgetsUpdates, "configuration: update_config(max_tokens=77) did not hold"),
        (TakesAnything, "configuration: update_config(**{'no_such_field': 1}) was taken"),
        (SaysYes, "configuration: supports() says yes to anything"),
        (Anonymous, "configuration: model_info() lacks its provider"),
        (Connects, "answer: text: constructing the model connected to ('127.0.0.1', 9)"),
        (SwallowsCancel, "cancelled: cancelling the consumer did not cancel the stream"),
        (SameIds, "answer: parallel_calls: "),
        (Hurries, "answer: hang: not done after 0.3 seconds"),
    ],
)
async def test_a_broken_promise_is_named(broken: Callable[[ModelCase], Played], expected: str) -> None:
    def make(case: ModelCase) -> Wired:
        model = broken(case)
        return Wired(model, closed=model.gone.wait)

    found = await check_fails(make, limit=0.3 if broken is Hurries else 30.0)
    assert found.startswith(expected)


async def test_a_source_that_stays_open_is_named() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    found = await check_fails(lambda case: Wired(Played(case), closed=never), limit=0.3)
    assert found == "closed in the middle: the stream was closed but its source stayed open"


async def test_an_exception_that_leaks_is_named() -> None:
    class Raises(Played):
        def model_info(self) -> ModelInfo:
            raise KeyError("oops")

    assert "KeyError came out" in await check_fails(Raises)


def test_a_report_reads_well() -> None:
    report = ModelReport(passed=["a"], skipped={"b": "no such case"})
    assert str(report) == "1 checks passed\nskipped b: no such case"


def careless(request: ModelRequest, repaired: tuple[str, ...]) -> dict[str, Any]:
    """A request in the words of Chat Completions, with no more care than ``repaired`` says."""
    wired: list[dict[str, Any]] = []
    for message in complete_calls(request.messages) if "pairs" in repaired else request.messages:
        for part in message.tool_calls:
            call = part.payload
            theirs = None if "ids" in repaired else (call.provider_data or {}).get("id")
            function = {"name": call.tool_name}
            one = {"id": theirs or call.tool_call_id, "function": function}
            wired.append({"role": "assistant", "tool_calls": [one]})
        wired += [
            {"role": "tool", "tool_call_id": part.payload.tool_call_id} for part in message.tool_results
        ]
    return {"messages": wired, "tools": [{"name": spec.name} for spec in request.tool_specs]}


@pytest.mark.spec("P-8")
@pytest.mark.parametrize(
    ("repaired", "expected"),
    [
        ((), "a call that was never answered: the id 'call_0' appears once"),
        (("pairs",), "another provider's history: the request holds 'weird id"),
        (("pairs", "ids"), "a tool with a name of any form: the request names a tool 'files.read"),
    ],
)
async def test_a_careless_request_is_named(repaired: tuple[str, ...], expected: str) -> None:
    def make(case: ModelCase) -> Wired:
        model = Played(case)
        return Wired(
            model,
            closed=model.gone.wait,
            sent=lambda: [encode(careless(request, repaired)) for request in model.requests],
        )

    with pytest.raises(AssertionError) as found:
        await check_model(make)
    assert expected in str(found.value)
