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
    """A command that a warden of the keeper runs; see ``Process`` for what it promises.

    Its streams are plain descriptors that the event loop watches: a loop that ends while it runs leaves
    nothing behind that would have to be closed by that loop.
    """

    def __init__(self, process_id: str, shown: str, max_output: int | None) -> None:
        self.id = process_id
        self.end: ProcessEnd | None = None
        self.loop = asyncio.get_running_loop()
        self._shown = shown
        self._allowed = max_output
        self._pieces: deque[ProcessOutput] = deque()
        self._held = 0
        self._is_read = self._is_dropped = self._is_held = False
        self._news = asyncio.Event()  # of output, and of streams that closed
        self._started: asyncio.Future[None] = self.loop.create_future()
        self._ended = asyncio.Event()
        self._why: EndReason | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._channel: socket.socket | None = None
        self._told_rest = b""
        self._readers: dict[int, Literal["stdout", "stderr"]] = {}
        self._stdin: int | None = None
        self._writing = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._after: list[Callable[[], None]] = []

    async def start(
        self, hand_over: Callable[[list[int]], None], spec: dict[str, Any], *more: socket.socket
    ) -> None:
        """Have a warden run ``spec``; ``hand_over`` sends its channel, its streams and ``more``. Raises
        ``AgentError``."""
        self._channel, theirs = socket.socketpair()
        (stdin, self._stdin), (stdout, out), (stderr, err) = (os.pipe() for _ in range(3))
        self._readers = {stdout: "stdout", stderr: "stderr"}
        try:
            hand_over([theirs.fileno(), stdin, out, err, *(each.fileno() for each in more)])
            with contextlib.suppress(OSError):  # the warden is gone, which the channel tells
                self._channel.sendall(json.dumps(spec).encode() + b"\n")
            for fd in (self._channel.fileno(), self._stdin, *self._readers):
                os.set_blocking(fd, False)
            self.loop.add_reader(self._channel, self._read_channel)
            self._hold(False)
        except BaseException:
            self.abandon()
            raise
        finally:
            theirs.close()
            for fd in (stdin, out, err):
                os.close(fd)
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
                if self._is_held and self._held < _HELD // 2:
                    self._hold(False)
                yield piece
            if not self._readers:
                return
            self._news.clear()
            await self._news.wait()

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        async with self._writing:
            while self._stdin is not None and self.end is None:
                try:
                    left = left[os.write(self._stdin, left) :]
                    if not left:
                        return
                except BlockingIOError:
                    await self._wait_for_room(self._stdin)
                except OSError:
                    self._close_input()  # it stopped reading
        raise AgentError("RuntimeExecutionError", f"the standard input of {self._shown} is closed")

    async def close_stdin(self) -> None:
        async with self._writing:
            self._close_input()

    async def _wait_for_room(self, fd: int) -> None:
        self._room = room = self.loop.create_future()
        self.loop.add_writer(fd, lambda: room.done() or room.set_result(None))
        try:
            await room
        finally:
            if self._stdin is not None:
                self.loop.remove_writer(fd)

    def _close_input(self) -> None:
        if self._stdin is not None:
            fd, self._stdin = self._stdin, None
            if not self.loop.is_closed():
                self.loop.remove_writer(fd)
            os.close(fd)
            if self._room is not None and not self._room.done():
                self._room.set_result(None)

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
            with contextlib.suppress(OSError):
                self._channel.sendall(b"%d\n" % number)

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

    def __del__(self) -> None:
        for fd in self._readers:  # of one that ended while it was held, and was let go
            os.close(fd)

    def abandon(self) -> None:
        """Let go of its streams; what still runs is killed."""
        self._close_input()
        for fd in list(self._readers):
            self._close_reader(fd)
        self._close_channel()
        if self.end is None:
            self._finish(None, "killed")

    # ── what happens to it ──

    def _stop(self, reason: EndReason) -> None:
        if self.end is None and self._why is None and self._channel is not None:
            self._why = reason
            with contextlib.suppress(OSError):
                self._channel.shutdown(
                    socket.SHUT_WR
                )  # the warden ends everything, and tells when it is gone

    def _read_channel(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(100_000)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._told_rest = (self._told_rest + data).split(b"\n")
        for line in lines:
            self._told(json.loads(line))
        if not data:
            self._told(None)

    def _close_channel(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            if not self.loop.is_closed():
                self.loop.remove_reader(channel)
            channel.close()

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
        self._close_input()
        self._close_channel()
        self._ended.set()
        for call in self._after:
            call()

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, 64 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_reader(fd)
            return
        if self._allowed is not None:
            if len(data) > self._allowed:
                self._stop("output")
                data = data[: self._allowed]
            self._allowed -= len(data)
        if data and not self._is_dropped:
            self._pieces.append(ProcessOutput(stream=self._readers[fd], data=data))
            self._held += len(data)
            if self._held > _HELD:
                self._hold(True)
            self._news.set()

    def _close_reader(self, fd: int) -> None:
        del self._readers[fd]
        if not self.loop.is_closed():
            self.loop.remove_reader(fd)
        os.close(fd)
        self._news.set()

    def _hold(self, held: bool) -> None:
        self._is_held = held
        for fd in self._readers:
            if held:
                self.loop.remove_reader(fd)
            else:
                self.loop.add_reader(fd, self._read, fd)

    def _drop(self) -> None:
        self._is_dropped = True
        self._pieces.clear()
        self._held = 0
        self._hold(False)


def _start_error(message: dict[str, Any]) -> AgentError:
    text = f"cannot {message['error']}: {message['text']}"
    code = "RuntimePermissionDenied" if message["errno"] in (1, 13) else "RuntimeExecutionError"
    return AgentError(code, text)
