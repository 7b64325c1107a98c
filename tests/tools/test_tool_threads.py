"""Sync tools: in threads, off the loop, bounded, and given up when they hang."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from turnlog.contract import ToolCallRequest
from turnlog.testing import VirtualClock
from turnlog.tools import ToolAnswer, ToolContext, ToolExecutor, ToolRegistry, tool

USER: contextvars.ContextVar[str] = contextvars.ContextVar("USER", default="nobody")


def executor(*tools: Any, **options: Any) -> tuple[ToolExecutor, VirtualClock]:
    clock = VirtualClock()
    return ToolExecutor(ToolRegistry(tools), clock, **options), clock


def start(runner: ToolExecutor, name: str, number: int = 1, **arguments: Any) -> asyncio.Task[ToolAnswer]:
    call = ToolCallRequest(
        tool_name=name, tool_call_id=f"call_{number}", raw_arguments="", arguments=arguments
    )
    return asyncio.create_task(runner.execute(call, ToolContext()))


async def until(condition: Any) -> None:
    """Threads report in their own time; the test's time limit is the bound."""
    while not condition():  # noqa: ASYNC110  (a thread cannot set an asyncio event)
        await asyncio.sleep(0.002)


async def test_a_sync_tool_never_blocks_the_loop() -> None:
    go = threading.Event()

    @tool
    def block() -> str:
        assert go.wait(60)
        return threading.current_thread().name

    runner, _ = executor(block)
    running = start(runner, "block")
    await until(lambda: runner.running)
    go.set()  # only a loop that still turns gets here
    answer = await running
    assert (answer.status, answer.content) == ("success", "turnlog-tool")


async def test_context_variables_are_seen_and_stay_inside() -> None:
    @tool
    def who() -> str:
        found = USER.get()
        USER.set("thread")
        return found

    USER.set("eve")
    runner, _ = executor(who)
    assert (await start(runner, "who")).content == "eve"
    assert USER.get() == "eve"


async def test_three_hundred_stuck_threads_starve_nobody() -> None:
    go = threading.Event()

    @tool(timeout=1)
    def stuck() -> None:
        go.wait(60)

    @tool
    def fine() -> str:
        return "fine"

    runner, clock = executor(stuck, fine, max_threads=100)
    try:
        for batch in range(3):
            running = [start(runner, "stuck", batch * 100 + n) for n in range(100)]
            await clock.advance(1)
            answers = [await each for each in running]
            assert {answer.error_code for answer in answers} == {"ToolTimeout"}
            assert "it may still have effects" in answers[0].text
        assert runner.abandoned == 300
        assert (await start(runner, "fine")).content == "fine"
        assert await asyncio.to_thread(lambda: "the loop's own threads are free") != ""
    finally:
        go.set()
    await until(lambda: runner.abandoned == 0)


async def test_too_many_stuck_threads_are_refused_in_words() -> None:
    go = threading.Event()

    @tool(timeout=1)
    def stuck() -> None:
        go.wait(60)

    runner, clock = executor(stuck, max_stuck_threads=2)
    try:
        for number in range(2):
            running = start(runner, "stuck", number)
            await clock.advance(1)
            await running
        answer = await start(runner, "stuck", 3)
        assert "2 earlier calls hang in their threads" in answer.text
    finally:
        go.set()
    await until(lambda: runner.abandoned == 0)


async def test_no_more_than_the_limit_at_a_time() -> None:
    lock = threading.Lock()
    now = most = 0

    @tool
    def count() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.003)
        with lock:
            now -= 1

    runner, _ = executor(count, max_threads=3)
    answers = await asyncio.gather(*(start(runner, "count", number) for number in range(30)))
    assert {answer.status for answer in answers} == {"success"}
    assert 1 <= most <= 3


async def test_a_call_that_waits_for_a_thread_can_be_stopped_and_never_runs() -> None:
    go = threading.Event()
    ran: list[int] = []

    @tool
    def one(which: int) -> None:
        ran.append(which)
        go.wait(60)

    runner, clock = executor(one, max_threads=1, cancel_grace=0.5)
    first, second, third = (start(runner, "one", n, which=n) for n in range(3))
    await until(lambda: ran)
    assert runner.cancel("call_1")
    await clock.settle()
    assert (await second).error_code == "ToolCancelled"
    go.set()
    assert (await third).status == (await first).status == "success"
    assert ran == [0, 2]


async def test_a_sync_tool_can_look_whether_it_was_told_to_stop() -> None:
    @tool(timeout=5)
    def watchful(ctx: ToolContext) -> str:
        for step in range(20_000):
            if ctx.cancelled:
                return f"stopped cleanly after {min(step, 1)}"
            threading.Event().wait(0.002)
        return "never told"

    runner, clock = executor(watchful)
    running = start(runner, "watchful")
    await clock.advance(5)
    answer = await running
    assert answer.error_code == "ToolTimeout"
    assert "stopped cleanly after 1" in answer.text
    assert runner.abandoned == 0


async def test_a_thread_that_outlives_its_caller_is_harmless() -> None:
    go, done = threading.Event(), threading.Event()
    heard: list[str | None] = []

    @tool
    def slow(ctx: ToolContext) -> str:
        go.wait(60)
        ctx.progress("too late")
        ctx.emit("todo", "late")
        done.set()
        return "too late"

    clock = VirtualClock()
    runner = ToolExecutor(ToolRegistry([slow]), clock, cancel_grace=1)
    call = ToolCallRequest(tool_name="slow", tool_call_id="c", raw_arguments="{}")
    ctx = ToolContext(on_progress=lambda text, data: heard.append(text))
    running = asyncio.create_task(runner.execute(call, ctx))
    await clock.settle()
    running.cancel()
    await clock.advance(1)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert runner.abandoned == 1
    go.set()
    await until(lambda: done.is_set() and runner.abandoned == 0)
    await clock.settle()
    assert heard == []


def test_an_executor_serves_several_loops_one_after_another() -> None:
    go = threading.Event()

    @tool
    def add(a: int) -> int:
        return a + 1

    @tool(timeout=0.01)
    def stuck() -> None:
        go.wait(60)

    runner = ToolExecutor(ToolRegistry([add, stuck]), cancel_grace=0.01, max_threads=1)

    async def once() -> list[Any]:
        running = [start(runner, "stuck"), start(runner, "add", 2, a=1)]
        return [(await each).text for each in running]

    try:
        assert [asyncio.run(once())[1] for _ in range(3)] == ["2", "2", "2"]
    finally:
        go.set()  # the threads end after their loops did


async def test_generators_and_awaitables_of_sync_functions() -> None:
    @tool
    def lines() -> Iterator[str]:
        yield "a\n"
        yield "b\n"

    async def later() -> str:
        return threading.current_thread().name

    runner, _ = executor(lines, tool(name="wrapped")(lambda: later()))  # noqa: PLW0108  (sync, and its result is awaited)
    assert (await start(runner, "lines")).content == "a\nb\n"
    assert (await start(runner, "wrapped")).content == "MainThread"
