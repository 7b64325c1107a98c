"""Running calls: time limits, stopping, retries, and tools that do everything wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tools.rig import Rig, call
from turnlog.tools import NOT_RUN, ToolAnswer, ToolContext, ToolError, tool


@pytest.fixture(autouse=True)
async def nothing_is_left(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task, and no complaint of asyncio about an exception that nobody read."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert left == set()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


# ── time ──


@tool(timeout=30)
async def hang() -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_tool_that_hangs_is_stopped_at_its_time_limit() -> None:
    rig = Rig(hang)
    running = rig.start("hang")
    await rig.clock.advance(29.9)
    assert not running.done()
    await rig.clock.advance(0.1)
    answer = await running
    assert (answer.status, answer.error_code, answer.elapsed_ms) == ("failed", "ToolTimeout", 30_000)
    assert answer.text == "'hang' did not finish within 30 s and was stopped; it may have taken effect"
    assert rig.clock.sleeping == 0
    assert (rig.executor.running, rig.executor.abandoned) == ([], 0)


async def test_limits_of_the_executor_and_none() -> None:
    @tool
    async def ordinary() -> None:
        await asyncio.Event().wait()

    @tool(timeout=None)
    async def patient() -> str:
        await release.wait()
        return "late"

    release = asyncio.Event()
    rig = Rig(ordinary, patient, timeout=7)
    first, second = rig.start("ordinary", "c1"), rig.start("patient", "c2")
    await rig.clock.advance(7)
    assert (await first).error_code == "ToolTimeout"
    await rig.clock.advance(1_000_000)
    assert rig.executor.running == ["c2"]
    release.set()
    assert (await second).content == "late"


async def test_a_quick_tool_needs_no_timer() -> None:
    @tool
    async def quick() -> str:
        return "ok"

    rig = Rig(quick)
    answer = await rig.run("quick")
    assert (answer.status, answer.content, answer.elapsed_ms, answer.is_error) == ("success", "ok", 0, False)


async def test_a_tool_that_swallows_cancellation_is_torn_down_after_the_grace_time() -> None:
    swallowed = 0

    @tool(timeout=10)
    async def deaf() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1

    rig = Rig(deaf, cancel_grace=5)
    running = rig.start("deaf")
    await rig.clock.advance(14.9)
    assert not running.done()
    await rig.clock.advance(0.1)
    answer = await running
    assert answer.error_code == "ToolTimeout"
    assert "it may still have effects" in answer.text
    assert (swallowed, rig.executor.abandoned) == (1, 0), "it was told once, and it is gone"


async def test_a_tool_that_catches_everything_is_never_woken_again() -> None:
    woken = 0
    over = False

    @tool(timeout=1)
    async def undead() -> None:
        nonlocal woken
        while not over:
            try:
                await asyncio.Event().wait()
            except BaseException:
                woken += 1

    rig = Rig(undead, cancel_grace=1)
    running = rig.start("undead")
    await rig.clock.advance(2)
    assert (await running).error_code == "ToolTimeout"
    assert (woken, rig.executor.abandoned) == (2, 0)
    await rig.clock.advance(100)
    gc.collect()
    assert woken == 2
    over = True  # the interpreter closes it when it ends


async def test_a_task_that_cannot_be_ended_is_reported_and_its_end_is_silent() -> None:
    free = asyncio.Event()

    async def inner() -> None:
        while not free.is_set():
            with contextlib.suppress(BaseException):
                await free.wait()
        raise RuntimeError("nobody reads this")

    @tool(timeout=1)
    async def undead() -> None:
        await asyncio.create_task(inner())

    rig = Rig(undead, cancel_grace=1)
    running = rig.start("undead")
    await rig.clock.advance(2)
    answer = await running
    assert answer.error_code == "ToolTimeout"
    assert rig.executor.abandoned == 1
    free.set()
    await rig.clock.settle()
    assert rig.executor.abandoned == 0


async def test_what_a_tool_says_when_it_is_stopped_is_told() -> None:
    @tool(timeout=1)
    async def polite() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "3 of 9 files copied"
        return ""

    @tool(timeout=1)
    async def clumsy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cleanup went wrong")

    @tool(timeout=1)
    async def partial() -> AsyncIterator[str]:
        yield "line 1\n"
        yield "line 2\n"
        await asyncio.Event().wait()

    rig = Rig(polite, clumsy, partial)
    running = [rig.start(name, name) for name in ("polite", "clumsy", "partial")]
    await rig.clock.advance(1)
    answers = [await each for each in running]
    assert {answer.error_code for answer in answers} == {"ToolTimeout"}
    assert "It answered when it was told to stop:\n3 of 9 files copied" in answers[0].text
    assert "It failed when it was told to stop: ValueError: cleanup went wrong" in answers[1].text
    assert answers[2].text.endswith("Output until then:\nline 1\nline 2\n")


@pytest.mark.parametrize("kind", ["deaf", "dirty"])
async def test_streams_that_do_not_end_are_torn_down_too(kind: str) -> None:
    @tool(timeout=1)
    async def deaf() -> AsyncIterator[str]:
        yield "some"
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    @tool(timeout=1)
    async def dirty() -> AsyncIterator[str]:
        yield "some"
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    rig = Rig(deaf, dirty, cancel_grace=1)
    running = rig.start(kind)
    await rig.clock.advance(2)
    answer = await running
    assert answer.error_code == "ToolTimeout"
    assert answer.text.endswith("Output until then:\nsome")
    assert rig.executor.abandoned == 0
    gc.collect()
    await rig.clock.settle()


# ── stopping ──


async def test_cancel_answers_within_the_grace_time() -> None:
    @tool
    async def deaf() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    rig = Rig(hang, deaf, cancel_grace=3)
    first, second = rig.start("hang", "c1"), rig.start("deaf", "c2")
    await rig.clock.settle()
    assert rig.executor.running == ["c1", "c2"]
    assert rig.executor.cancel("c1", "the user pressed stop")
    assert rig.executor.cancel("c2")
    assert not rig.executor.cancel("c3")
    await rig.clock.settle()
    answer = await first
    assert (answer.status, answer.error_code) == ("failed", "ToolCancelled")
    assert answer.text == "'hang' was stopped: the user pressed stop; it may have taken effect"
    assert not second.done()
    await rig.clock.advance(3)
    assert (await second).error_code == "ToolCancelled"


async def test_a_result_that_came_while_stopping_is_the_result() -> None:
    @tool
    async def commit() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await rig.clock.sleep(1)
        return "committed"

    rig = Rig(commit)
    running = rig.start("commit")
    await rig.clock.settle()
    rig.executor.cancel("call_1")
    await rig.clock.advance(1)
    answer = await running
    assert (answer.status, answer.content) == ("success", "committed")


async def test_close_stops_everything() -> None:
    rig = Rig(hang)
    running = [rig.start("hang", f"c{n}") for n in range(5)]
    await rig.clock.settle()
    await rig.executor.close()
    assert {(await each).error_code for each in running} == {"ToolCancelled"}


async def test_cancelling_the_caller_ends_the_tool_first() -> None:
    ended: list[str] = []

    @tool
    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await rig.clock.sleep(2)
            ended.append("tidy")

    rig = Rig(tidy)
    running = rig.start("tidy")
    await rig.clock.settle()
    running.cancel()
    await rig.clock.settle()
    assert not running.done()
    await rig.clock.advance(2)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["tidy"]


async def test_cancelling_the_caller_again_ends_it_at_once() -> None:
    @tool
    async def deaf() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    rig = Rig(deaf)
    running = rig.start("deaf")
    await rig.clock.settle()
    for _ in range(2):
        running.cancel()
        await rig.clock.settle()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert rig.executor.abandoned == 0


@pytest.mark.parametrize("turns", range(24))
async def test_cancelled_at_every_await(turns: int) -> None:
    """Wherever the caller is cancelled: no task left, no warning, the tool's cleanup has run."""
    state: list[str] = []

    @tool(timeout=5, idempotent=True, retries=1)
    async def steps(ctx: ToolContext) -> AsyncIterator[str]:
        state.append("in")
        try:
            for step in range(4):
                await asyncio.sleep(0)
                yield f"{step}"
            if ctx.attempt == 1:
                raise ToolError("again", retryable=True, retry_after=0)
        finally:
            state.append("out")

    rig = Rig(steps)
    running = rig.start("steps")
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert state.count("in") == state.count("out")
    assert rig.executor.running == []
    assert rig.clock.sleeping == 0


# ── retries ──


async def test_failures_declared_retryable_are_tried_again_with_the_same_key() -> None:
    seen: list[tuple[int, str, float]] = []

    @tool(idempotent=True, retries=3, retry_on=(ConnectionError,))
    async def flaky(ctx: ToolContext, names: list[str]) -> str:
        seen.append((ctx.attempt, ctx.idempotency_key, rig.clock.monotonic()))
        ctx.emit("todo", "added", {"try": ctx.attempt})
        names.append("x")  # a fresh list each time
        match len(seen):
            case 1:
                raise ConnectionError("cut")
            case 2:
                raise ToolError("busy", retryable=True, retry_after=7)
            case _:
                return f"{len(names)}"

    rig = Rig(flaky)
    running = rig.start("flaky", names=["a"])
    await rig.clock.advance(60)
    answer = await running
    assert (answer.status, answer.content, answer.elapsed_ms) == ("success", "2", 7500)
    assert seen == [(1, "call_1", 0.0), (2, "call_1", 0.5), (3, "call_1", 7.5)]
    assert [event.data for event in answer.events] == [{"try": 3}]


async def test_retries_end_and_other_failures_are_not_retried() -> None:
    count = 0

    @tool(idempotent=True, retries=2)
    async def down() -> None:
        nonlocal count
        count += 1
        raise ToolError("still down", retryable=True)

    @tool(idempotent=True, retries=2)
    async def wrong() -> None:
        nonlocal count
        count += 1
        raise ValueError("wrong")

    rig = Rig(down, wrong)
    running = rig.start("down")
    await rig.clock.advance(60)
    answer = await running
    assert (count, answer.text, answer.retryable) == (3, "still down", False)
    assert (await rig.run("wrong")).text == "ValueError: wrong"
    assert count == 4


async def test_a_tool_that_is_not_idempotent_runs_once() -> None:
    count = 0

    @tool
    async def pay() -> None:
        nonlocal count
        count += 1
        raise ToolError("unclear", retryable=True)

    answer = await Rig(pay).run("pay")
    assert (count, answer.text) == (1, "unclear")


async def test_cancel_while_waiting_to_try_again() -> None:
    @tool(idempotent=True, retries=5)
    async def down() -> None:
        raise ToolError("down", retryable=True, retry_after=100)

    rig = Rig(down)
    running = rig.start("down")
    await rig.clock.advance(1)
    rig.executor.cancel("call_1", "enough")
    await rig.clock.settle()
    assert (await running).text == "'down': enough"


# ── after a crash ──


async def test_reconcile_asks_what_happened() -> None:
    sent: list[str] = []

    async def happened(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        return f"sent {arguments['to']} under {ctx.idempotency_key}"

    def cannot_say(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        return None

    def did_not(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        return NOT_RUN

    def fails(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        raise OSError("mail server down")

    async def hangs(ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        await asyncio.Event().wait()

    async def ask(reconcile: Any) -> ToolAnswer | None:
        @tool(reconcile=reconcile, timeout=10)
        async def mail(to: str, ctx: ToolContext) -> str:
            sent.append(ctx.idempotency_key)
            return f"mailed {to}, try {ctx.attempt}"

        rig = Rig(mail)
        ctx = ToolContext(tool_call_id="call_9", tool_name="mail", idempotency_key="key_9", clock=rig.clock)
        request = call("mail", "call_9", to="eve")
        running = asyncio.create_task(rig.executor.reconcile(request, ctx))
        await rig.clock.settle()
        if not running.done():
            await asyncio.wait({running}, timeout=0.2 if reconcile is hangs else 120)
        await rig.clock.advance(20)
        return await running

    found = await ask(happened)
    assert found is not None
    assert (found.status, found.content) == ("success", "sent eve under key_9")
    assert await ask(cannot_say) is None
    assert await ask(fails) is None
    assert await ask(hangs) is None
    assert await ask(None) is None
    assert sent == [], "asking runs nothing"
    again = await ask(did_not)
    assert again is not None
    assert again.content == "mailed eve, try 2"
    assert sent == ["key_9"]


def test_words_for_calls_that_did_not_run() -> None:
    assert (ToolAnswer.denied("No.").status, ToolAnswer.denied("No.").error_code) == ("denied", "ToolDenied")
    assert ToolAnswer.skipped("Aborted.").is_error
    unknown = ToolAnswer.unknown("pay")
    assert (unknown.status, unknown.error_code) == ("unknown", "ToolOutcomeUnknown")
    assert "may or may not" in unknown.text
