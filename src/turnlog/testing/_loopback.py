"""A server on 127.0.0.1 that plays given answers byte for byte, and breaks off where it is told to.

It speaks just enough HTTP/1.1 to test a client against what networks and providers really do: answers in
pieces of any size, late, cut, reset, stalled, under any status and headers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import msgspec


@dataclass(frozen=True, kw_only=True)
class LoopbackAnswer:
    """One HTTP answer as it goes over the wire.

    ``pieces`` are the sizes of the writes: a number for all of them, or a list whose last size repeats;
    with ``framing="chunked"`` each is an HTTP chunk. ``framing="length"`` announces the whole length,
    ``"close"`` says nothing and ends with the connection. ``cut_at`` stops after so many bytes of the body
    (-1: before the status line) and does ``then``: ``close`` the connection, ``reset`` it, ``stall`` with
    it open, or ``end`` the answer as if it were whole. ``delay`` is waited before the first byte,
    ``piece_delay`` between two writes.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pieces: int | Sequence[int] | None = None
    framing: Literal["chunked", "length", "close"] = "chunked"
    delay: float = 0.0
    piece_delay: float = 0.0
    cut_at: int | None = None
    then: Literal["close", "reset", "stall", "end"] = "close"

    @staticmethod
    def sse(body: bytes | str, **fields: Any) -> LoopbackAnswer:
        """An event stream."""
        raw = body.encode() if isinstance(body, str) else body
        return LoopbackAnswer(body=raw, headers={"content-type": "text/event-stream"}, **fields)

    @staticmethod
    def json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> LoopbackAnswer:
        """A JSON document."""
        return LoopbackAnswer(
            body=msgspec.json.encode(value),
            status=status,
            headers={"content-type": "application/json", **(headers or {})},
            framing="length",
        )

    def parts(self) -> list[bytes]:
        """The body, cut at ``cut_at`` and into ``pieces``."""
        body = self.body if self.cut_at is None else self.body[: max(self.cut_at, 0)]
        if self.pieces is None:
            return [body] if body else []
        sizes = [self.pieces] if isinstance(self.pieces, int) else list(self.pieces)
        found: list[bytes] = []
        at = 0
        while at < len(body):
            size = sizes[min(len(found), len(sizes) - 1)]
            found.append(body[at : at + size])
            at += size
        return found


@dataclass(frozen=True, kw_only=True)
class LoopbackRequest:
    """A request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


_ABOUT = ("/models", "/props", "/api/ps", "/model/info")
_NOTHING = LoopbackAnswer.json({"error": {"message": "not found"}}, status=404)


class Loopback:
    """Plays ``answers`` in order, the last one for ever; keeps the requests it got. One that is a function is
    given the request and makes the answer. What an agent asks a server about itself before its first call is
    left to such functions: no other answer is used up for it, and it is not among the requests::

        async with Loopback(LoopbackAnswer.sse("data: …\\n\\n", cut_at=100)) as server:
            model = OpenAIChatModel("m", base_url=server.url)
            ...
            assert server.requests[0].json["model"] == "m"

    ``open_connections`` counts the connections that the client has not closed yet, ``connections`` all of
    them.
    """

    def __init__(self, *answers: LoopbackAnswer | Callable[[LoopbackRequest], LoopbackAnswer]) -> None:
        self.answers = list(answers)
        self.requests: list[LoopbackRequest] = []
        self.connections = 0
        self._played = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._asked = asyncio.Event()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        assert self._server is not None, "enter the server with `async with` first"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def open_connections(self) -> int:
        return len(self._tasks)

    async def no_connections(self, within: float = 5.0) -> None:
        """Wait until the client has closed every connection; ``TimeoutError`` when it does not."""
        async with asyncio.timeout(within):
            await self._idle.wait()

    async def next_request(self, within: float = 5.0) -> LoopbackRequest:
        """Wait until another request has come; ``TimeoutError`` when none does."""
        self._asked.clear()
        async with asyncio.timeout(within):
            await self._asked.wait()
        return self.requests[-1]

    async def __aenter__(self) -> Loopback:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._idle.clear()
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                answer = self.answers[min(self._played, len(self.answers) - 1)]
                if request.method == "GET" and request.path.endswith(_ABOUT) and not callable(answer):
                    self.requests.pop()
                    if not await _play(_NOTHING, reader, writer):
                        break
                    continue
                self._asked.set()
                self._played += 1
                if callable(answer):
                    answer = answer(request)
                if not await _play(answer, reader, writer):
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()


async def _read_request(reader: asyncio.StreamReader) -> LoopbackRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return LoopbackRequest(method=method, path=path, headers=headers, body=body)


async def _play(answer: LoopbackAnswer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Write one answer; say whether the connection may carry another."""
    if answer.delay:
        await asyncio.sleep(answer.delay)
    if answer.cut_at is not None and answer.cut_at < 0:
        return await _break_off(answer, reader, writer)
    writer.write(_head(answer))
    for number, part in enumerate(answer.parts()):
        if number and answer.piece_delay:
            await asyncio.sleep(answer.piece_delay)
        writer.write(b"%x\r\n%b\r\n" % (len(part), part) if answer.framing == "chunked" else part)
        await writer.drain()
    if answer.cut_at is not None and answer.then != "end":
        return await _break_off(answer, reader, writer)
    if answer.framing == "chunked":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return answer.framing != "close"


async def _break_off(
    answer: LoopbackAnswer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    await writer.drain()
    if answer.then == "stall":
        await reader.read()  # until the client gives up
    elif answer.then == "reset":
        sock: socket.socket | None = writer.get_extra_info("socket")
        if sock is not None:  # linger for 0 seconds: closing sends RST
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    return False


def _head(answer: LoopbackAnswer) -> bytes:
    headers = dict(answer.headers)
    if answer.framing == "chunked":
        headers["transfer-encoding"] = "chunked"
    elif answer.framing == "length":
        whole = len(answer.body) if answer.then != "end" else sum(map(len, answer.parts()))
        headers["content-length"] = str(whole)
    else:
        headers["connection"] = "close"
    lines = [f"HTTP/1.1 {answer.status} Played", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
