"""A runtime in memory: files in a dict, commands from a script."""

from __future__ import annotations

import asyncio
import posixpath
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TypeAlias

from turnlog.contract import (
    AgentError,
    Clock,
    Command,
    EndReason,
    ExecutionEnv,
    FileInfo,
    JsonObject,
    ProcessEnd,
    ProcessOutput,
    ProcessResult,
    RuntimeStatus,
)
from turnlog.runtime import drain
from turnlog.system import SystemClock

_BUFFER = 16
"""Pieces of output that wait for a reader before the process is held up."""


class FakeProcess:
    """A scripted command under way. Its script calls ``out`` and ``err``, reads ``stdin``, and returns an
    exit code."""

    def __init__(
        self, process_id: str, command: Command, script: FakeScript, cwd: str, env: Mapping[str, str]
    ) -> None:
        self.id = process_id
        self.command = command
        self.cwd = cwd
        self.env = dict(env)
        self.end: ProcessEnd | None = None
        self.signals: list[int] = []
        self._pieces: asyncio.Queue[ProcessOutput | None] = asyncio.Queue(_BUFFER)
        self._stdin: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._stdin_open = True
        self._ended = asyncio.Event()
        self._is_read = False
        self._written = 0
        self._limit: int | None = None
        self._task = asyncio.create_task(self._play(script), name=f"fake process {process_id}")

    def limit(self, clock: Clock, seconds: float | None, output: int | None) -> None:
        self._limit = output
        if seconds is not None:
            self._timer = asyncio.create_task(self._time_out(clock, seconds))
            self._task.add_done_callback(lambda _: self._timer.cancel())

    # ── for the script ──

    async def out(self, text: str | bytes) -> None:
        await self._put("stdout", text)

    async def err(self, text: str | bytes) -> None:
        await self._put("stderr", text)

    async def stdin(self) -> AsyncIterator[bytes]:
        while (data := await self._stdin.get()) is not None:
            yield data

    async def _put(self, stream: str, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self._written += len(data)
        if self._limit is not None and self._written > self._limit:
            self._finish(None, "output")
            await asyncio.Event().wait()  # until the task is cancelled
        await self._pieces.put(ProcessOutput(stream="stdout" if stream == "stdout" else "stderr", data=data))

    # ── for the reader ──

    async def output(self) -> AsyncIterator[ProcessOutput]:
        self._is_read = True
        while True:
            if self._ended.is_set() and self._pieces.empty():
                return
            taking = asyncio.ensure_future(self._pieces.get())
            ending = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait({taking, ending}, return_when=asyncio.FIRST_COMPLETED)
                if taking.done() and (piece := taking.result()) is not None:
                    yield piece
            finally:
                for each in (taking, ending):
                    each.cancel()

    async def write(self, data: bytes) -> None:
        if not self._stdin_open or self.end is not None:
            raise AgentError("RuntimeExecutionError", f"the standard input of process {self.id} is closed")
        self._stdin.put_nowait(data)

    async def close_stdin(self) -> None:
        if self._stdin_open:
            self._stdin_open = False
            self._stdin.put_nowait(None)

    async def wait(self) -> ProcessEnd:
        if not self._is_read:
            async for _ in self.output():
                pass
        await self._ended.wait()
        assert self.end is not None
        return self.end

    async def signal(self, number: int) -> None:
        """As a program without a handler of its own, it ends; ``signals`` keeps what was sent."""
        if number not in signal.valid_signals():
            raise AgentError("RuntimeExecutionError", f"{number} is not the number of a signal")
        if self.end is None:
            self.signals.append(number)
            self._finish(None, "killed")

    async def kill(self) -> None:
        self._finish(None, "killed")
        await asyncio.wait({self._task})

    async def __aenter__(self) -> FakeProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()

    async def _play(self, script: FakeScript) -> None:
        if isinstance(script, str):
            await self.out(script)
            self._finish(0)
        elif isinstance(script, FakeOutput):
            if script.stdout:
                await self.out(script.stdout)
            if script.stderr:
                await self.err(script.stderr)
            self._finish(script.exit_code)
        else:
            self._finish(await script(self))

    async def _time_out(self, clock: Clock, seconds: float) -> None:
        await clock.sleep(seconds)
        self._finish(None, "timed_out")

    def _finish(self, code: int | None, reason: EndReason = "exited") -> None:
        if self.end is None:
            self.end = ProcessEnd(exit_code=code, reason=reason)
            self._ended.set()
            if reason != "exited":
                self._task.cancel()


class FakeOutput:
    """A command that writes this and exits."""

    def __init__(self, stdout: str = "", stderr: str = "", exit_code: int = 0) -> None:
        self.stdout, self.stderr, self.exit_code = stdout, stderr, exit_code


FakeScript: TypeAlias = str | FakeOutput | Callable[[FakeProcess], Awaitable[int]]
"""What a command does: text it writes, a ``FakeOutput``, or a function of the process that returns its exit
code."""


class FakeRuntime:
    """Files in memory and commands from a script, for tests of tools that need a runtime.

    ``commands`` maps a command, written as a shell would take it, to its script; one that is not there is
    answered as a shell does, with exit code 127. ``calls`` lists what was run. Paths outside of the policy's
    writable roots can be read and not written; ``..`` leads nowhere.
    """

    def __init__(
        self,
        files: Mapping[str, bytes | str] | None = None,
        commands: Mapping[str, FakeScript] | None = None,
        *,
        policy: ExecutionEnv | None = None,
        sandbox: str | None = "fake",
        clock: Clock | None = None,
        broken: bool = False,
    ) -> None:
        self.files = {
            _inside(path): text.encode() if isinstance(text, str) else text
            for path, text in (files or {}).items()
        }
        self.commands: dict[str, FakeScript] = dict(commands or {})
        self.calls: list[Command] = []
        self.status: RuntimeStatus = "idle"
        self.policy = policy or ExecutionEnv()
        self.sandbox = sandbox
        self._clock: Clock = clock or SystemClock()
        self._broken = broken
        self._processes: list[FakeProcess] = []

    def capabilities(self) -> frozenset[str]:
        return frozenset({"run", "stdin", "files"})

    async def connect(self) -> None:
        if self._broken:
            self.status = "failed"
            raise AgentError("RuntimeUnavailable", "this fake runtime was made to fail")
        self.status = "ready"

    async def close(self) -> None:
        self.status = "closed"
        for process in self._processes:
            await process.kill()
        self._processes.clear()

    async def __aenter__(self) -> FakeRuntime:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── commands ──

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> FakeProcess:
        self._check_ready()
        self.calls.append(command)
        words = command if isinstance(command, str) else " ".join(command)
        if not words.strip():
            raise AgentError("RuntimeExecutionError", "the command is empty; give a program to run")
        script = self.commands.get(words)
        if script is None:
            script = FakeOutput(stderr=f"{words.split()[0]}: command not found\n", exit_code=127)
        limits = [limit for limit in (timeout, self.policy.timeout) if limit is not None]
        variables = {**self.policy.variables, **(env or {})}
        process = FakeProcess(f"p{len(self.calls)}", command, script, _inside(cwd or "."), variables)
        process.limit(self._clock, min(limits, default=None), self.policy.max_output)
        self._processes = [each for each in self._processes if each.end is None] + [process]
        return process

    async def execute(
        self,
        command: Command,
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        keep: int = 1_000_000,
    ) -> ProcessResult:
        return await drain(await self.run(command, cwd=cwd, env=env, timeout=timeout), stdin=stdin, keep=keep)

    # ── files ──

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        data = self.files.get(self._checked(path))
        if data is None:
            raise AgentError("RuntimeExecutionError", f"there is no file {path!r}")
        return data[offset : None if limit is None else offset + limit]

    async def write(self, path: str, data: bytes) -> None:
        place = self._checked(path)
        if not any(_is_below(place, _inside(root)) for root in self.policy.writable_roots):
            raise AgentError("RuntimePermissionDenied", f"{path!r} is outside of the writable folders")
        limit = self.policy.max_file_size
        if limit is not None and len(data) > limit:
            raise AgentError("RuntimePermissionDenied", f"{path!r}: {len(data)} bytes, the limit is {limit}")
        self.files[place] = bytes(data)

    async def remove(self, path: str) -> None:
        if self.files.pop(self._checked(path), None) is None:
            raise AgentError("RuntimeExecutionError", f"there is no file {path!r}")

    async def stat(self, path: str) -> FileInfo | None:
        place = self._checked(path)
        if place in self.files:
            return FileInfo(path=place, kind="file", size=len(self.files[place]))
        is_folder = place == "." or any(_is_below(each, place) for each in self.files)
        return FileInfo(path=place, kind="directory") if is_folder else None

    async def list_files(self, path: str = ".") -> list[FileInfo]:
        place = self._checked(path)
        if (await self.stat(path)) is None or place in self.files:
            raise AgentError("RuntimeExecutionError", f"there is no folder {path!r}")
        start = "" if place == "." else f"{place}/"
        names = {each[len(start) :].split("/")[0] for each in self.files if each.startswith(start)}
        found = [await self.stat(start + name) for name in sorted(names)]
        return [each for each in found if each is not None]

    async def get_init_data(self) -> JsonObject:
        return {"workspace": "/workspace", "sandbox": self.sandbox}

    async def get_hints(self) -> JsonObject:
        return {}

    def _checked(self, path: str) -> str:
        self._check_ready()
        return _inside(path)

    def _check_ready(self) -> None:
        if self.status != "ready":
            raise AgentError("RuntimeNotReady", f"the runtime is {self.status}; connect it first")


def _inside(path: str) -> str:
    """The path below the workspace. Raises ``RuntimePermissionDenied`` when it leads out of it."""
    place = posixpath.normpath(posixpath.join("/workspace", path))
    if not _is_below(place, "/workspace"):
        raise AgentError("RuntimePermissionDenied", f"{path!r} is outside of the workspace")
    return posixpath.relpath(place, "/workspace")


def _is_below(path: str, folder: str) -> bool:
    return folder == "." or path == folder or path.startswith(folder.rstrip("/") + "/")
