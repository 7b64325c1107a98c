"""A command under way on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Literal

from turnlog.contract import AgentError, EndReason, ProcessEnd, ProcessOutput

_HELD = 256 * 1024
"""Bytes of output that wait for a reader before the command is held up."""


class LocalProcess:
    """A command that a warden of the keeper runs; see ``Process`` for what it promises."""

    def __init__(self, process_id: str, shown: str, max_output: int | None) -> None:
        self.id = process_id
        self.end: ProcessEnd | None = None
        self.loop = asyncio.get_running_loop()
        self._shown = shown
        self._allowed = max_output
        self._pieces: deque[ProcessOutput] = deque()
        self._held = 0
        self._open_streams = 2
        self._is_read = self._is_dropped = False
        self._news = asyncio.Event()  # of output, and of streams that closed
        self._started: asyncio.Future[None] = self.loop.create_future()
        self._ended = asyncio.Event()
        self._why: EndReason | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._channel: asyncio.Transport | None = None
        self._readers: list[asyncio.ReadTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._after: list[Callable[[], None]] = []

    async def start(
        self, hand_over: Callable[[list[int]], None], spec: dict[str, Any], *more: socket.socket
    ) -> None:
        """Have a warden run ``spec``; ``hand_over`` sends its channel, its streams and ``more``. Raises
        ``AgentError``."""
        ours, theirs = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = pipes
        try:
            hand_over([theirs.fileno(), stdin, stdout, stderr, *(each.fileno() for each in more)])
        except BaseException:
            ours.close()
            for fd in (to_stdin, from_stdout, from_stderr):
                os.close(fd)
            raise
        finally:
            theirs.close()
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        # Before the streams are set up here: the warden starts the command meanwhile. It reads at once.
        with contextlib.suppress(OSError):  # it is gone, which the channel tells
            ours.sendall(json.dumps(spec).encode() + b"\n")
        ours.setblocking(False)
        self._channel, _ = await self.loop.create_connection(lambda: _Channel(self._told), sock=ours)
        for fd, stream in ((from_stdout, "stdout"), (from_stderr, "stderr")):
            reader, _ = await self.loop.connect_read_pipe(
                lambda stream=stream: _Stream(stream, self._received, self._closed), os.fdopen(fd, "rb", 0)
            )
            self._readers.append(reader)
        self._stdin, _ = await self.loop.connect_write_pipe(
            lambda: _Input(self._room), os.fdopen(to_stdin, "wb", 0)
        )
        try:
            await self._started
        except BaseException:
            self.abandon()
            raise

    def limit_time(self, seconds: float | None) -> None:
        if seconds is not None and self.end is None:
            self._timer = self.loop.call_later(seconds, self._stop, "timed_out")

    def when_ended(self, call: Callable[[], None]) -> None:
        self._after.append(call)

    # ── what a caller does ──

    async def output(self) -> AsyncIterator[ProcessOutput]:
        self._is_read = True
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._held -= len(piece.data)
                if self._held < _HELD // 2:
                    self._hold(False)
                yield piece
            if not self._open_streams:
                return
            self._news.clear()
            await self._news.wait()

    async def write(self, data: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing() and self.end is None:
            self._stdin.write(data)
            await self._room.wait()
            if not self._stdin.is_closing():
                return
        raise AgentError("RuntimeExecutionError", f"the standard input of {self._shown} is closed")

    async def close_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    async def wait(self) -> ProcessEnd:
        if not self._is_read:
            self._drop()
        await self._ended.wait()
        assert self.end is not None
        return self.end

    async def signal(self, number: int) -> None:
        if number not in signal.valid_signals():
            raise AgentError("RuntimeExecutionError", f"{number} is not the number of a signal")
        if self.end is None and self._channel is not None and self._why is None:
            self._channel.write(b"%d\n" % number)

    async def kill(self) -> None:
        self._stop("killed")
        await self._ended.wait()

    async def __aenter__(self) -> LocalProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.kill()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of its streams; what still runs is killed."""
        if self.loop.is_closed():
            return
        for transport in (*self._readers, self._stdin, self._channel):
            if transport is not None:
                transport.close()
        if self._timer is not None:
            self._timer.cancel()

    # ── what happens to it ──

    def _stop(self, reason: EndReason) -> None:
        if self.end is None and self._why is None and self._channel is not None:
            self._why = reason
            self._channel.write_eof()  # the warden ends everything, and tells when it is gone

    def _told(self, message: dict[str, Any] | None) -> None:
        if self.end is not None:
            return
        if not self._started.done():
            if message is None:
                self._started.set_exception(
                    AgentError("RuntimeExecutionError", f"{self._shown} was not started: its warden is gone")
                )
                self._finish(None, "killed")
            elif "error" in message:
                self._started.set_exception(_start_error(message))
                self._finish(None, "killed")
            else:
                self._started.set_result(None)
        elif message is None or message["status"] is None:
            told = message["reason"] if message is not None else "killed"
            self._finish(None, self._why or told)
        elif self._why is not None:
            self._finish(None, self._why)
        else:
            status = message["status"]
            self._finish(status if status >= 0 else 128 - status, "exited")

    def _finish(self, code: int | None, reason: EndReason) -> None:
        self.end = ProcessEnd(exit_code=code, reason=reason)
        if self._timer is not None:
            self._timer.cancel()
        for transport in (self._stdin, self._channel):
            if transport is not None:
                transport.close()
        self._ended.set()
        for call in self._after:
            call()

    def _received(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self._allowed is not None:
            if len(data) > self._allowed:
                self._stop("output")
                data = data[: self._allowed]
            self._allowed -= len(data)
        if data and not self._is_dropped:
            self._pieces.append(ProcessOutput(stream=stream, data=data))
            self._held += len(data)
            if self._held > _HELD:
                self._hold(True)
            self._news.set()

    def _closed(self) -> None:
        self._open_streams -= 1
        self._news.set()

    def _hold(self, held: bool) -> None:
        for reader in self._readers:
            if not reader.is_closing():
                reader.pause_reading() if held else reader.resume_reading()

    def _drop(self) -> None:
        self._is_dropped = True
        self._pieces.clear()
        self._held = 0
        self._hold(False)


def _start_error(message: dict[str, Any]) -> AgentError:
    text = f"cannot {message['error']}: {message['text']}"
    code = "RuntimePermissionDenied" if message["errno"] in (1, 13) else "RuntimeExecutionError"
    return AgentError(code, text)


class _Channel(asyncio.Protocol):
    def __init__(self, tell: Callable[[dict[str, Any] | None], None]) -> None:
        self._tell, self._rest = tell, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._tell(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(None)


class _Stream(asyncio.Protocol):
    def __init__(
        self, stream: Any, received: Callable[[Any, bytes], None], closed: Callable[[], None]
    ) -> None:
        self._stream, self._received, self._closed = stream, received, closed

    def data_received(self, data: bytes) -> None:
        self._received(self._stream, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed()


class _Input(asyncio.BaseProtocol):
    """Lets a writer wait while the command does not read; one that never reads again lets it go."""

    def __init__(self, room: asyncio.Event) -> None:
        self._room = room

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
