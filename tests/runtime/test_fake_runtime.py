"""The runtime in memory keeps the promise of a runtime, and the kit finds runtimes that do not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnlog.contract import AgentError, ExecutionEnv, ProcessResult, Runtime, ToolCallRequest
from turnlog.runtime import drain
from turnlog.testing import FakeOutput, FakeProcess, FakeRuntime, VirtualClock, check_runtime
from turnlog.tools import ToolContext, ToolExecutor, ToolRegistry, tool


async def cat(process: FakeProcess) -> int:
    async for data in process.stdin():
        await process.out(data)
    return 0


async def sleep(process: FakeProcess) -> int:
    await asyncio.Event().wait()
    return 0


async def yes(process: FakeProcess) -> int:
    while True:
        await process.out("y\n" * 100)
        await asyncio.sleep(0)


async def greet(process: FakeProcess) -> int:
    await process.out(process.env.get("GREETING", "") + "\n")
    return 0


def make(kind: type[FakeRuntime] = FakeRuntime, **options: Any) -> FakeRuntime:
    runtime = kind(**options)

    async def note(process: FakeProcess) -> int:
        await process.out(runtime.files["kit/note.txt"])
        return 0

    runtime.commands.update(
        {
            "echo hello": "hello\n",
            "echo oops >&2; exit 3": FakeOutput(stderr="oops\n", exit_code=3),
            "cat": cat,
            "sleep 3600": sleep,
            "yes": yes,
            'echo "$GREETING"': greet,
            "cat kit/note.txt": note,
        }
    )
    return runtime


async def test_the_fake_runtime_passes_the_kit() -> None:
    passed = await check_runtime(make, broken=lambda: make(broken=True))
    assert len(passed) == 10


class Forgetful(FakeRuntime):
    async def close(self) -> None:
        self.status = "closed"


class Leaky(FakeRuntime):
    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data


class Blunt(FakeRuntime):
    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        return self.files[path][offset : None if limit is None else offset + limit]


class Restless(FakeRuntime):
    async def get_init_data(self) -> dict[str, Any]:
        return {"calls": object()}


class Late(FakeRuntime):
    async def run(self, command: Any, **options: Any) -> FakeProcess:
        process = await super().run(command, **options)
        if command == "cat":
            await process.out("early ")
        return process


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Forgetful, "close must kill what still runs"),
        (Leaky, "write to .*: expected RuntimePermissionDenied"),
        (Blunt, "read before connect: raised KeyError, not AgentError"),
        (Restless, "must stay the same"),
        (Late, "early"),
    ],
)
async def test_the_kit_finds_what_is_wrong(kind: type[FakeRuntime], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        await check_runtime(lambda: make(kind))


@pytest.mark.spec("T-5")
async def test_a_tool_runs_commands_and_streams_their_output() -> None:
    heard: list[str | None] = []

    @tool
    async def shell(command: str, runtime: Runtime, ctx: ToolContext) -> str:
        async with await runtime.run(command) as process:
            async for piece in process.output():
                ctx.progress(piece.data.decode())
            return f"exit code {(await process.wait()).exit_code}"

    async with make() as runtime:
        call = ToolCallRequest(
            tool_name="shell", tool_call_id="c", raw_arguments="", arguments={"command": "echo hello"}
        )
        ctx = ToolContext(runtime=runtime, on_progress=lambda text, data: heard.append(text))
        answer = await ToolExecutor(ToolRegistry([shell])).execute(call, ctx)
    assert (answer.content, heard) == ("exit code 0", ["hello\n"])
    assert runtime.calls == ["echo hello"]


async def test_limits_of_the_policy_hold() -> None:
    clock = VirtualClock(auto=True)
    policy = ExecutionEnv(timeout=30, max_output=1000, max_file_size=3, writable_roots=("out",))
    async with make(policy=policy, clock=clock) as runtime:
        done = await runtime.execute("sleep 3600", timeout=9999)
        assert (done.reason, clock.monotonic()) == ("timed_out", 30.0)
        assert (await runtime.execute("yes")).reason == "output"
        await runtime.write("out/a", b"abc")
        for path, data in (("out/b", b"abcd"), ("b", b"a")):
            with pytest.raises(AgentError) as caught:
                await runtime.write(path, data)
            assert caught.value.code == "RuntimePermissionDenied"


async def test_a_long_output_keeps_its_head_and_its_tail() -> None:
    async def count(process: FakeProcess) -> int:
        for number in range(1000):
            await process.out(f"{number}\n")
        return 0

    async with make(commands={"count": count}) as runtime:
        done = await drain(await runtime.run("count"), keep=40)
    assert isinstance(done, ProcessResult)
    assert done.stdout.startswith("0\n1\n2\n") and done.stdout.endswith("998\n999\n")
    assert done.truncated and "3,850 bytes left out here" in done.stdout


async def test_a_process_that_answers_while_it_is_spoken_to_does_not_lock_up() -> None:
    async with make() as runtime:
        done = await runtime.execute("cat", stdin=b"x" * 100)
        assert done.stdout == "x" * 100
        ended = await runtime.execute("echo hello", stdin=b"nobody reads this")
        assert ended.stdout == "hello\n"
