"""The contract kit for models: run it against an adapter of yours.

::

    def make_model(case: ModelCase) -> Model | None:
        return MyModel("m", client=my_fake_client(case))

    print(await check_model(make_model))

``make_model`` gets one :class:`ModelCase` after another and returns a model whose provider answers like
that; for an adapter behind HTTP, a loopback server with canned bytes. It returns None for a case that the
protocol does not have; the report lists what was skipped for that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from turnlog.contract import (
    AgentError,
    Message,
    MessageDelta,
    RequestMetadata,
    SpecificTool,
    TextDelta,
    encode,
)
from turnlog.models import Model

from ._model_answers import Answer, check_cut, check_error, check_sent, check_whole, expect
from ._model_cases import (
    CASES,
    MakeModel,
    ModelCase,
    ModelReport,
    Wired,
    ask,
    build,
    histories,
    odd_call,
    odd_tool,
    tools,
)

_BY_NAME = {case.name: case for case in CASES}
_METADATA = RequestMetadata(session_id="s_check", run_id="run_check", model_call_index=2, attempt=3)


async def check_model(make_model: MakeModel, *, limit: float = 30.0) -> ModelReport:
    """Raise ``AssertionError``, naming the check, for the first promise of ``Model`` that is broken.

    ``limit`` is how many seconds any single answer may take.
    """
    report = ModelReport()
    kit = _Kit(make_model, report, limit)
    for case in CASES:
        await kit.run(f"answer: {case.name}", case.name, lambda wired, case=case: kit.answer(wired, case))
    for name, messages in histories().items():
        await kit.run(f"history: {name}", "text", lambda wired, m=messages: kit.history(wired, m))
    await kit.run("a tool with a name of any form", "text", kit.names)
    await kit.run("prompt, tools and choices", "text", kit.options)
    await kit.run("configuration", "text", kit.configuration)
    await kit.run("place in the run", "text", kit.place)
    await kit.run("two streams at once", "tool_call", kit.two_at_once)
    await kit.run("closed before it began", "text", kit.never_started)
    await kit.run("closed in the middle", "hang", kit.closed_early)
    await kit.run("cancelled", "hang", kit.cancelled)
    return report


class _Kit:
    def __init__(self, make_model: MakeModel, report: ModelReport, limit: float) -> None:
        self._make = make_model
        self._report = report
        self._limit = limit

    async def run(self, name: str, case_name: str, check: Callable[[Wired], Awaitable[None]]) -> None:
        case = _BY_NAME[case_name]
        with _watch_connections() as connections:
            wired = await build(self._make, case)
        if wired is None:
            if case.required:
                raise AssertionError(f"{name}: every model must be able to play {case_name!r}: {case.about}")
            self._report.skipped[name] = f"no model for the case {case_name!r} ({case.about})"
            return
        try:
            if connections:
                raise AssertionError(f"constructing the model connected to {connections[0]}")
            async with asyncio.timeout(self._limit):
                await check(wired)
        except TimeoutError as error:
            raise AssertionError(f"{name}: not done after {self._limit:g} seconds") from error
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__} came out: {error}") from error
        finally:
            await wired.model.close()
            if wired.finish is not None:
                await wired.finish()
        self._report.passed.append(name)

    # ── what is asked of every answer ──

    async def drain(self, model: Model, messages: Sequence[Message] = (), **options: Any) -> Answer:
        given, offered = list(messages) or [ask()], tools()
        before = encode([given, offered])
        stream = model.stream(given, offered, "You add numbers.", **options)
        answer = Answer([delta async for delta in stream])
        expect(encode([given, offered]) == before, "the model changed the messages or tools it was given")
        return answer

    async def answer(self, wired: Wired, case: ModelCase) -> None:
        if case.ending == "hang":
            await self._first_text(wired.model, case)
            return
        answer = await self.drain(wired.model, request_metadata=_METADATA)
        if case.ending == "error":
            check_error(answer, case)
        elif case.ending == "cut":
            check_cut(answer, case)
        elif case.ending == "length" and case.calls:
            expect(
                answer.error is not None, "a call that the length limit cut short was handed on as complete"
            )
        else:
            check_whole(answer, case)

    async def history(self, wired: Wired, messages: list[Message]) -> None:
        answer = await self.drain(wired.model, messages)
        expect(answer.error is None, f"the history was refused: {answer.error}")
        self._look(wired)

    async def names(self, wired: Wired) -> None:
        stream = wired.model.stream(odd_call(), [*tools(), odd_tool()])
        answer = Answer([delta async for delta in stream])
        expect(answer.error is None, f"it was refused: {answer.error}")
        self._look(wired)

    def _look(self, wired: Wired) -> None:
        """Check the newest request, where the kit was given a way to see it."""
        if wired.sent is None:
            self._report.skipped["what is sent"] = (
                "make_model returned no way to see requests; return Wired(model, sent=…) to have them checked"
            )
            return
        bodies = wired.sent()
        expect(bool(bodies), "sent() shows no request although an answer came")
        check_sent(bodies[-1])

    async def options(self, wired: Wired) -> None:
        model = wired.model
        choices: list[Any] = [None, "auto", "none"]
        if model.supports("forced_tool"):
            choices += ["required", SpecificTool(name="add")]
        for choice in choices:
            answer = await self.drain(model, tool_choice=choice)
            expect(answer.error is None, f"tool_choice={choice!r}: {answer.error}")
        bare = Answer([delta async for delta in model.stream([ask()])])
        expect(bare.error is None, f"without prompt and tools: {bare.error}")

    async def configuration(self, wired: Wired) -> None:
        model = wired.model
        before = model.get_config()
        expect(bool(before.model_id), "get_config().model_id is empty")
        info, descriptor = model.model_info(), model.descriptor
        expect(
            bool(info.provider_id and info.specification), "model_info() lacks its provider or specification"
        )
        expect(
            (info.provider_id, info.specification) == (descriptor.provider_id, descriptor.specification),
            "model_info() and descriptor name different providers",
        )
        expect(model.supports("text"), "supports('text') is false")
        expect(not model.supports(cast("Any", "no such feature")), "supports() says yes to anything")
        model.update_config(max_tokens=77)
        expect(model.get_config().max_tokens == 77, "update_config(max_tokens=77) did not hold")
        expect(before.max_tokens != 77, "update_config changed a configuration that was handed out")
        for fields in ({"no_such_field": 1}, {"max_tokens": 0}):
            try:
                model.update_config(**fields)
            except AgentError as error:
                expect(error.code == "ConfigInvalid", f"update_config(**{fields}) raised {error.code}")
            else:
                raise AssertionError(f"update_config(**{fields}) was taken")
        expect(model.get_config().max_tokens == 77, "a refused update changed the configuration")
        answer = await self.drain(model)
        expect(answer.error is None, f"after update_config: {answer.error}")

    async def place(self, wired: Wired) -> None:
        answer = await self.drain(wired.model, request_metadata=_METADATA)
        start: Any = answer.deltas[0].payload
        expect({delta.run_id for delta in answer.deltas} == {"run_check"}, "a delta lacks the run's id")
        expect(bool(start.model_id), "start.modelId is empty")
        expect(
            (start.model_call_index, start.attempt) == (2, 3),
            f"start says call {start.model_call_index}, attempt {start.attempt} instead of 2 and 3",
        )
        expect(all(delta.timestamp for delta in answer.deltas), "a delta has no timestamp")

    async def two_at_once(self, wired: Wired) -> None:
        first, second = await asyncio.gather(self.drain(wired.model), self.drain(wired.model))
        third = await self.drain(wired.model)
        ids = [call_id for answer in (first, second, third) for call_id in answer.calls]
        expect(len(ids) == 3, f"three answers with one call each gave {len(ids)} calls")
        expect(len(set(ids)) == 3, f"call ids repeat over several answers of one model: {ids}")

    # ── closing ──

    async def never_started(self, wired: Wired) -> None:
        stream = wired.model.stream([ask()], tools())
        await stream.aclose()
        await stream.aclose()

    async def closed_early(self, wired: Wired) -> None:
        stream = await self._first_text(wired.model, _BY_NAME["hang"])
        await stream.aclose()
        await self._closed("closed in the middle", wired)
        answer = await self.drain_some(wired.model)
        expect(bool(answer), "the model cannot be used again after a stream was closed early")

    async def cancelled(self, wired: Wired) -> None:
        reached = asyncio.Event()

        async def consume() -> None:
            async for delta in wired.model.stream([ask()], tools()):
                if isinstance(delta, TextDelta):
                    reached.set()

        task = asyncio.create_task(consume())
        waiter = asyncio.create_task(reached.wait())
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        expect(reached.is_set(), "the stream ended before any text came")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        expect(task.cancelled(), "cancelling the consumer did not cancel the stream")
        await self._closed("cancelled", wired)

    async def drain_some(self, model: Model) -> list[MessageDelta]:
        stream = model.stream([ask()], tools())
        try:
            return [await anext(stream)]
        finally:
            await stream.aclose()

    async def _first_text(self, model: Model, case: ModelCase) -> Any:
        stream = model.stream([ask()], tools())
        async for delta in stream:
            if isinstance(delta, TextDelta) and delta.payload.text_delta:
                expect(
                    case.text.startswith(delta.payload.text_delta),
                    f"the first text is {delta.payload.text_delta!r}, the answer is {case.text!r}",
                )
                return stream
        raise AssertionError("the stream ended; text must be passed on while the source is open")

    async def _closed(self, name: str, wired: Wired) -> None:
        if wired.closed is None:
            self._report.skipped[f"{name}: the source too"] = (
                "make_model returned a bare model; return Wired(model, closed=…) to have this seen"
            )
            return
        try:
            async with asyncio.timeout(min(5.0, self._limit / 2)):
                await wired.closed()
        except TimeoutError as error:
            raise AssertionError("the stream was closed but its source stayed open") from error


@contextmanager
def _watch_connections() -> Generator[list[str]]:
    """The addresses that anything connects to meanwhile."""
    seen: list[str] = []
    original = socket.socket.connect

    def connect(self: socket.socket, address: Any, /) -> None:
        seen.append(str(address))
        original(self, address)

    socket.socket.connect = connect
    try:
        yield seen
    finally:
        socket.socket.connect = original
