"""How a server is reached: a process of the machine or of a runtime, or HTTP; messages are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from turnlog.contract import AgentError, Runtime, scrub

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_SAID = 4000
"""Bytes of what a server writes to stderr that are kept, for the message when it cannot be used."""
_PATIENCE = 2.0
"""Seconds for a server to end by itself once its input is closed, and again once it was told to."""
_JUNK = 1000
"""Lines in a row that are no messages before the connection is given up."""
_CHUNK = 1 << 16


class ServerLost(ConnectionError):
    """The connection ended, and why, as far as it is known."""


class Program(Protocol):
    """A server that was started."""

    def chunks(self) -> AsyncIterator[bytes]: ...

    async def write(self, data: bytes) -> None: ...

    async def stop(self) -> None: ...

    def said(self) -> str:
        """The end of what it wrote to stderr."""
        ...


class LocalProgram:
    """A process of this machine, in a group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said = b""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> LocalProgram:
        from mcp.client.stdio import get_default_environment

        given = {**get_default_environment(), **env}
        found = shutil.which(command[0], path=given.get("PATH"))  # npx is npx.cmd on some systems
        return cls(
            await asyncio.create_subprocess_exec(
                found or command[0],
                *command[1:],
                env=given,
                cwd=cwd,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        )

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_CHUNK):
            self._said = (self._said + data)[-_SAID:]

    async def chunks(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(_CHUNK):
            yield data

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for number in (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            if number is not None:
                self._signal(number)
            if await self._ended():
                break
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))  # what it started and left behind
        self._listening.cancel()
        transport: Any = getattr(self._process, "_transport", None)
        if transport is not None:  # a child of the server may hold the pipes open for ever
            with contextlib.suppress(Exception):
                transport.close()

    async def _ended(self) -> bool:
        # Not ``wait``: it also waits for pipes that a child may hold open.
        for _ in range(int(_PATIENCE / 0.02)):
            if self._process.returncode is not None:
                return True
            await asyncio.sleep(0.02)
        return False

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                self._process.send_signal(number)

    def said(self) -> str:
        return self._said.decode("utf-8", "replace").strip()


class RuntimeProgram:
    """A process of a runtime, behind its policy and in its sandbox."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._said = b""

    @classmethod
    async def start(
        cls, runtime: Runtime, command: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> RuntimeProgram:
        if runtime.status == "idle":
            await runtime.connect()
        return cls(await runtime.run(list(command), cwd=cwd, env=env))

    async def chunks(self) -> AsyncIterator[bytes]:
        async for piece in self._process.output():
            if piece.stream == "stdout":
                yield piece.data
            else:
                self._said = (self._said + piece.data)[-_SAID:]

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def stop(self) -> None:
        with contextlib.suppress(AgentError):
            await self._process.close_stdin()
        with contextlib.suppress(TimeoutError, AgentError):
            await asyncio.wait_for(self._process.wait(), _PATIENCE)
        with contextlib.suppress(AgentError):
            await self._process.kill()

    def said(self) -> str:
        return self._said.decode("utf-8", "replace").strip()


class Outcome:
    """Whether a connection has ended, and why, for the calls that it takes down with it."""

    def __init__(self) -> None:
        self.ended = False
        self.reason: str | None = None


@asynccontextmanager
async def over_pipes(program: Program, limit: int, outcome: Outcome) -> AsyncGenerator[TransportStreams]:
    """The streams of a client, over the standard input and output of ``program``, which is stopped at the
    end. A line is a message. One that is larger than ``limit`` bytes ends the connection."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    into, reader = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writer, outof = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        junk = 0
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async with into:
                try:
                    async for line in _lines(program.chunks(), limit):
                        try:
                            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        except ValueError:
                            junk += 1
                            if junk > _JUNK:
                                raise ServerLost(
                                    "it writes what is no message to its standard output"
                                ) from None
                            continue
                        junk = 0
                        await into.send(SessionMessage(message))
                except (ServerLost, AgentError) as error:
                    outcome.reason = str(error)
                finally:
                    outcome.ended = True

    async def write() -> None:
        async with outof:
            async for message in outof:
                text: str = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await program.write(text.encode() + b"\n")
                except (OSError, AgentError, RuntimeError):
                    await into.aclose()
                    return

    tasks = [asyncio.create_task(read()), asyncio.create_task(write())]
    try:
        yield reader, writer
    finally:
        stopping = asyncio.ensure_future(program.stop())
        with anyio.CancelScope(shield=True):
            await asyncio.wait({stopping})
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for stream in (into, reader, writer, outof):
            await stream.aclose()


async def _lines(chunks: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            line = b"".join([*held, part])
            held, size = [], 0
            if line.strip():
                yield line
        held.append(rest)
        size += len(rest)
        if size > limit:
            raise ServerLost(f"it sent a message of more than {limit // 1_000_000} MB")


@asynccontextmanager
async def over_http(
    url: str, headers: Mapping[str, str], limit: int, seconds: float
) -> AsyncGenerator[TransportStreams]:
    """The streams of a client over streamable HTTP. ``headers`` are sent to the address alone: a redirect
    elsewhere is not followed."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def bounded(response: httpx2.Response) -> None:
        size = response.headers.get("content-length", "")
        if size.isdigit() and int(size) > limit:
            raise ServerLost(f"it sent a message of more than {limit // 1_000_000} MB")

    timeout = httpx2.Timeout(seconds, read=None)
    async with (
        httpx2.AsyncClient(
            headers=dict(headers), timeout=timeout, event_hooks={"response": [bounded]}
        ) as http,
        streamable_http_client(url, http_client=http, max_sse_event_size=limit) as streams,
    ):
        yield streams


def in_words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if type(error).__name__ == "ValidationError" and callable(errors := getattr(error, "errors", None)):
        first = cast("list[Any]", errors())[0]
        return f"does not keep to the protocol: {'.'.join(map(str, first['loc']))}: {scrub(first['msg'])}"
    return scrub(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
