"""What tools raise, where they failed, and what they cannot keep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tools.rig import Rig
from turnlog.contract import AgentError, guard
from turnlog.tools import ToolError, tool


@pytest.fixture(autouse=True)
async def nothing_is_left(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No task, and no complaint of asyncio about an exception that nobody read."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert left == set()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@tool(timeout=30)
async def hang() -> str:
    await asyncio.Event().wait()
    return "never"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


RAISED: list[tuple[Callable[[], BaseException], str, str]] = [
    (lambda: ValueError("bad value"), "ToolExecutionError", "ValueError: bad value"),
    (lambda: SystemExit(3), "ToolExecutionError",
     "'{}' tried to end the program (SystemExit: 3); it has no result"),
    (KeyboardInterrupt, "ToolExecutionError",
     "'{}' tried to end the program (KeyboardInterrupt); it has no result"),
    (GeneratorExit, "ToolExecutionError", "GeneratorExit"),
    (asyncio.CancelledError, "ToolCancelled", "'{}' stopped itself before it had a result"),
    (TimeoutError, "ToolExecutionError", "TimeoutError"),
    (Unprintable, "ToolExecutionError", "Unprintable"),
    (lambda: ToolError("The disk is full."), "ToolExecutionError", "The disk is full."),
    (lambda: ToolError("No.", code="ToolDenied"), "ToolDenied", "No."),
    (
        lambda: AgentError("RuntimePermissionDenied", "/etc is read-only"),
        "RuntimePermissionDenied",
        "/etc is read-only",
    ),
    (
        lambda: BaseExceptionGroup("many", [ValueError("a"), ExceptionGroup("x", [KeyError("b")])]),
        "ToolExecutionError",
        "2 errors: ValueError: a; KeyError: 'b'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "words"), RAISED)
@pytest.mark.parametrize("kind", ["now", "later", "stream", "sync", "sync_stream"])
async def test_whatever_a_tool_raises_is_an_answer(
    make: Callable[[], BaseException], code: str, words: str, kind: str
) -> None:
    async def now() -> None:
        raise make()

    async def later() -> None:
        await asyncio.sleep(0)
        raise make()

    async def stream() -> AsyncIterator[str]:
        yield "some"
        raise make()

    def sync() -> None:
        raise make()

    def sync_stream() -> Any:
        yield "some"
        raise make()

    body = {"now": now, "later": later, "stream": stream, "sync": sync, "sync_stream": sync_stream}[kind]
    answer = await Rig(body).run(kind)
    assert (answer.status, answer.error_code, answer.is_error) == ("failed", code, True)
    assert answer.text == words.format(kind)
    assert answer.cause is not None


async def test_stop_iteration_out_of_a_sync_tool() -> None:
    @tool
    def broken() -> Any:
        return next(iter(()))

    assert (await Rig(broken).run("broken")).text == "StopIteration"


async def test_no_traceback_no_secret_and_no_endless_message() -> None:
    guard("sk-live-executor-secret")

    @tool
    async def leak() -> None:
        raise RuntimeError("key sk-live-executor-secret " + "x" * 100_000)

    answer = await Rig(leak).run("leak")
    assert answer.text.startswith("RuntimeError: key [secret] xxx")
    assert len(answer.text) < 4100
    assert "Traceback" not in answer.text


def _divide(number: int) -> float:
    return number / 0


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_traceback_is_kept_for_humans_and_starts_in_the_tool(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard("sk-live-executor-secret")

    @tool(name="fail")
    async def later() -> float:
        return _divide(3)

    @tool(name="fail")
    def now() -> float:
        return _divide(3)

    with caplog.at_level("DEBUG", logger="turnlog.tools"):
        answer = await Rig(later if kind == "async" else now).run("fail")
    assert answer.text == "ZeroDivisionError: division by zero"
    assert answer.traceback is not None
    frames = [line.strip() for line in answer.traceback.splitlines() if line.startswith("  File")]
    assert [frame.rsplit(" ", 1)[-1] for frame in frames] == [
        "later" if kind == "async" else "now",
        "_divide",
    ]
    assert answer.traceback.rstrip().endswith("ZeroDivisionError: division by zero")
    (record,) = [each for each in caplog.records if each.name == "turnlog.tools"]
    assert "call_1 of tool 'fail' failed" in record.getMessage() and "_divide" in record.getMessage()


async def test_a_traceback_is_bounded_scrubbed_and_left_out_where_it_says_nothing() -> None:
    guard("sk-live-executor-secret")

    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise KeyError("sk-live-executor-secret " + "x" * 100_000)

    @tool
    async def long() -> None:
        deep(3)

    @tool
    async def told() -> None:
        raise ToolError("at most seven days")

    @tool
    async def wrapped() -> None:
        try:
            _divide(1)
        except ZeroDivisionError as error:
            raise ToolError("cannot be shared") from error

    rig = Rig(long, told, wrapped)
    found = (await rig.run("long")).traceback
    assert found is not None and len(found) < 9000 and "sk-live" not in found
    assert (await rig.run("told")).traceback is None
    assert "_divide" in ((await rig.run("wrapped")).traceback or "")
    assert (await rig.run("nothing")).traceback is None


async def test_a_stopped_call_that_is_harmless_to_repeat_is_not_said_to_have_had_effects() -> None:
    @tool(timeout=1, idempotent=True)
    async def read() -> None:
        await asyncio.Event().wait()

    rig = Rig(read)
    running = rig.start("read")
    await rig.clock.advance(1)
    assert (await running).text == "'read' did not finish within 1 s and was stopped"


STUBBORN = """
import asyncio
from turnlog.contract import ToolCallRequest
from turnlog.tools import ToolContext, ToolExecutor, ToolRegistry, tool

@tool(timeout=0.01)
async def deaf() -> str:
    while True:
        try:
            await asyncio.sleep(3600)
        except:
            pass

@tool(timeout=0.01)
async def deaf_stream():
    while True:
        try:
            await asyncio.sleep(3600)
            yield "x"
        except:
            pass

async def main() -> None:
    executor = ToolExecutor(ToolRegistry([deaf, deaf_stream]), cancel_grace=0.01)
    for name in ("deaf", "deaf_stream"):
        call = ToolCallRequest(tool_name=name, tool_call_id=name, raw_arguments="{}")
        print((await executor.execute(call, ToolContext())).error_code)

asyncio.run(main())
print("the loop has ended", flush=True)
"""


async def test_a_tool_that_catches_everything_does_not_keep_the_interpreter() -> None:
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", STUBBORN],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (run.returncode, run.stdout.split("\n")[:3]) == (
        0,
        ["ToolTimeout", "ToolTimeout", "the loop has ended"],
    ), run.stderr


async def test_unknown_tools_and_missing_pieces() -> None:
    @tool(requires_agent=True)
    def needs_agent() -> None: ...

    rig = Rig(hang, needs_agent)
    answer = await rig.run("hng")
    assert (answer.error_code, answer.text) == (
        "ToolNotFound",
        "There is no tool 'hng'; did you mean 'hang'? The tools are: 'hang', 'needs_agent'.",
    )
    assert "There is no tool 'zzz'. The tools" in (await rig.run("zzz")).text
    assert "needs an agent" in (await rig.run("needs_agent")).text
