"""A runtime of your own: commands and files in a container, over ``docker exec``.

    docker run -d --name box --network none -v "$PWD:/workspace" python:3.13 sleep infinity
    python examples/docker_runtime.py box

The container is the sandbox here; what it may reach is told to ``docker run``. ``check_runtime`` of
``turnlog.testing`` holds this class to what every runtime promises (see ``tests/test_examples.py``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import posixpath
import shlex
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from turnlog.contract import (
    AgentError,
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

KINDS: dict[str, Literal["file", "directory", "link"]] = {"f": "file", "d": "directory", "l": "link"}


class DockerProcess:
    """A command under way. Killing the client leaves the command in the container, so its group is told."""

    def __init__(
        self, process_id: str, client: asyncio.subprocess.Process, runtime: DockerRuntime, mark: str
    ) -> None:
        self.id = process_id
        self.end: ProcessEnd | None = None
        self._client, self._runtime, self._mark = client, runtime, mark
        self._pieces: asyncio.Queue[ProcessOutput | None] = asyncio.Queue(16)
        self._why: EndReason | None = None
        self._is_read = self._is_dropped = False
        self._left = runtime.policy.max_output
        self._pumps = [
            asyncio.create_task(self._pump("stdout", client.stdout)),
            asyncio.create_task(self._pump("stderr", client.stderr)),
        ]
        self._waiter = asyncio.create_task(self._watch())
        self._timer: asyncio.TimerHandle | None = None

    def limit_time(self, seconds: float | None) -> None:
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, lambda: self._stop("timed_out"))

    async def _pump(self, stream: Literal["stdout", "stderr"], reader: asyncio.StreamReader | None) -> None:
        assert reader is not None
        while data := await reader.read(65536):
            if self._left is not None:
                if len(data) > self._left:
                    self._stop("output")
                data = data[: self._left]
                self._left -= len(data)
            if data and not self._is_dropped:
                await self._pieces.put(ProcessOutput(stream=stream, data=data))

    async def _watch(self) -> None:
        await asyncio.gather(*self._pumps)
        code = await self._client.wait()
        if self._timer is not None:
            self._timer.cancel()
        self.end = ProcessEnd(exit_code=None if self._why else code, reason=self._why or "exited")
        if self._is_dropped:
            while not self._pieces.empty():
                self._pieces.get_nowait()
        await self._pieces.put(None)

    def _stop(self, reason: EndReason) -> None:
        if self.end is None and self._why is None:
            self._why = reason
            self._drop()
            self._killing = asyncio.create_task(self._runtime.signal_group(self._mark, signal.SIGKILL))

    def _drop(self) -> None:
        self._is_dropped = True
        while not self._pieces.empty():
            self._pieces.get_nowait()

    async def output(self) -> AsyncIterator[ProcessOutput]:
        self._is_read = True
        while (piece := await self._pieces.get()) is not None:
            yield piece
        self._pieces.put_nowait(None)  # for whoever asks again

    async def write(self, data: bytes) -> None:
        stdin = self._client.stdin
        try:
            if stdin is None or stdin.is_closing() or self.end is not None:
                raise BrokenPipeError
            stdin.write(data)
            await stdin.drain()
        except OSError as error:
            raise AgentError("RuntimeExecutionError", "the standard input is closed") from error

    async def close_stdin(self) -> None:
        if self._client.stdin is not None:
            self._client.stdin.close()

    async def wait(self) -> ProcessEnd:
        if not self._is_read:
            self._drop()
        await asyncio.shield(self._waiter)
        assert self.end is not None
        return self.end

    async def signal(self, number: int) -> None:
        if number not in signal.valid_signals():
            raise AgentError("RuntimeExecutionError", f"{number} is not the number of a signal")
        if self.end is None:
            await self._runtime.signal_group(self._mark, number)

    async def kill(self) -> None:
        self._stop("killed")
        self._drop()
        await asyncio.shield(self._waiter)
        await self.close_stdin()

    async def __aenter__(self) -> DockerProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


class DockerRuntime:
    """Commands and files of ``workspace`` in a container that is running."""

    def __init__(
        self, container: str, workspace: str = "/workspace", policy: ExecutionEnv | None = None
    ) -> None:
        self.status: RuntimeStatus = "idle"
        self.policy = policy or ExecutionEnv()
        self.sandbox = f"docker:{container}"
        self._container, self._workspace = container, workspace
        self._ids = itertools.count(1)
        self._processes: list[DockerProcess] = []

    def capabilities(self) -> frozenset[str]:
        return frozenset({"run", "stdin", "files"})

    async def connect(self) -> None:
        try:
            code, _, said = await self._docker("true")
        except OSError as error:
            code, said = 1, str(error).encode()
        self.status = "failed" if code else "ready"
        if code:
            raise AgentError("RuntimeUnavailable", f"container {self._container!r}: {said.decode().strip()}")

    async def close(self) -> None:
        self.status = "closed"
        for process in self._processes:
            await process.kill()

    async def __aenter__(self) -> DockerRuntime:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> DockerProcess:
        self._check_ready()
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        if not words:
            raise AgentError("RuntimeExecutionError", "the command is empty; give a program to run")
        mark = f"/tmp/.turnlog-{uuid.uuid4().hex}"
        variables = {**self.policy.variables, **(env or {})}
        options = [
            "-i",
            "-w",
            self._place(cwd or "."),
            *(f"-e{key}={value}" for key, value in variables.items()),
        ]
        leader = ["setsid", "-w", "sh", "-c", 'echo $$ >"$0"; "$@"; code=$?; rm -f "$0"; exit $code', mark]
        client = await self._exec(*options, self._container, *leader, *words)
        process = DockerProcess(f"p{next(self._ids)}", client, self, mark)
        limits = [limit for limit in (timeout, self.policy.timeout) if limit is not None]
        process.limit_time(min(limits, default=None))
        self._processes = [each for each in self._processes if each.end is None] + [process]
        return process

    async def execute(
        self, command: Command, *, stdin: bytes | None = None, keep: int = 1_000_000, **options: Any
    ) -> ProcessResult:
        return await drain(await self.run(command, **options), stdin=stdin, keep=keep)

    async def signal_group(self, mark: str, number: int) -> None:
        """Its leader writes its number as the first thing it does."""
        wait = f"n=0; while [ ! -s {mark} ] && [ $n -lt 100 ]; do n=$((n + 1)); sleep 0.01; done; "
        await self._docker("sh", "-c", wait + f'kill -{number} -"$(cat {mark})"; rm -f {mark}')

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        cut = f" | head -c {limit}" if limit is not None else ""
        return await self._shell(f"[ -f {{0}} ] && tail -c +{offset + 1} {{0}}{cut}", path)

    async def write(self, path: str, data: bytes) -> None:
        roots = [self._place(root) for root in self.policy.writable_roots]
        if not any(is_below(self._place(path), root) for root in roots):
            raise AgentError("RuntimePermissionDenied", f"{path!r} is outside of the writable folders")
        script = "mkdir -p {1} && cat >{0}.$$ && mv {0}.$$ {0}"
        await self._shell(script, path, posixpath.dirname(self._place(path)), stdin=data)

    async def remove(self, path: str) -> None:
        await self._shell("if [ -d {0} ]; then rmdir {0}; else rm {0}; fi", path)

    async def stat(self, path: str) -> FileInfo | None:
        place = self._place(path)
        found = await self._shell("find {0} -maxdepth 0 -printf '%y %s\\n' 2>/dev/null || true", path)
        return self._info(place, *found.decode().split()) if found else None

    async def list_files(self, path: str = ".") -> list[FileInfo]:
        script = "[ -d {0} ] && find {0} -mindepth 1 -maxdepth 1 -printf '%y %s %p\\0'"
        lines = (await self._shell(script, path)).decode(errors="surrogateescape").split("\0")[:-1]
        rows = [line.split(" ", 2) for line in lines]
        return sorted((self._info(row[2], *row[:2]) for row in rows), key=lambda each: each.path)

    async def get_init_data(self) -> JsonObject:
        return {"workspace": self._workspace, "sandbox": self.sandbox}

    async def get_hints(self) -> JsonObject:
        return {}

    def _check_ready(self) -> None:
        if self.status != "ready":
            raise AgentError("RuntimeNotReady", f"the runtime is {self.status}; connect it first")

    def _place(self, path: str) -> str:
        whole = posixpath.normpath(posixpath.join(self._workspace, path))
        if not is_below(whole, self._workspace):
            raise AgentError("RuntimePermissionDenied", f"{path!r} is outside of the workspace")
        return whole

    def _info(self, place: str, kind: str, size: str) -> FileInfo:
        shown = posixpath.relpath(place, self._workspace)
        return FileInfo(path=shown, kind=KINDS.get(kind, "other"), size=int(size))

    async def _shell(self, script: str, path: str, *more: str, stdin: bytes = b"") -> bytes:
        self._check_ready()
        quoted = [shlex.quote(each) for each in (self._place(path), *more)]
        code, out, said = await self._docker("sh", "-c", script.format(*quoted), stdin=stdin)
        if code:
            raise AgentError("RuntimeExecutionError", f"{path!r}: {said.decode().strip() or 'not there'}")
        return out

    async def _docker(self, *words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        client = await self._exec("-i", self._container, *words)
        out, said = await client.communicate(stdin)
        return client.returncode or 0, out, said

    async def _exec(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            "docker", "exec", *words, stdin=pipe, stdout=pipe, stderr=pipe
        )


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


async def main(container: str, workspace: str) -> None:
    async with DockerRuntime(container, workspace) as runtime:
        await runtime.write("hello.txt", b"hello from outside\n")
        print((await runtime.execute("cat hello.txt; pwd")).stdout, end="")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], os.environ.get("WORKSPACE", "/workspace")))
