"""A TCP proxy on loopback before a PostgreSQL server, which cuts connections at chosen points."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Literal

from postgres_server import PostgresServer

Where = Literal["before", "within", "after", "in the answer"]
"""Before the request is passed on; after half of it; after the server has done it and before its answer is
passed on (the acknowledgement is lost); after half of the answer."""


class Proxy:
    """``async with`` it. ``cut`` arms it: the next request that holds ``marker`` is cut, so often."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._listening: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._marker = b""
        self._where: Where = "before"
        self._left = 0
        self.cuts = 0
        self.frozen = False
        """Accepts and takes everything, and never answers."""

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"

    def cut(self, marker: bytes, where: Where, times: int = 1) -> None:
        self._marker, self._where, self._left = marker, where, times

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut everything, and refuse new connections."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.cut_all()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cut_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def __aenter__(self) -> Proxy:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError):
            there, upstream = await asyncio.open_unix_connection(str(self._server.socket))
            self._open |= {writer, upstream}
            armed: list[Where] = []
            answers = asyncio.ensure_future(_pass_answers(there, writer, armed))
            try:
                await self._pass_requests(reader, upstream, armed)
                if armed:
                    await asyncio.wait([answers])
            finally:
                for end in (writer, upstream):
                    self._open.discard(end)
                    end.transport.abort()
                await asyncio.wait([answers])

    async def _pass_requests(
        self, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter, armed: list[Where]
    ) -> None:
        while data := await reader.read(1 << 20):
            if self.frozen:
                continue
            if not self._left or self._marker not in data:
                upstream.write(data)
                await upstream.drain()
                continue
            self._left -= 1
            self.cuts += 1
            if self._where in ("after", "in the answer"):
                armed.append(self._where)
                upstream.write(data)
                await upstream.drain()
            elif self._where == "within":
                upstream.write(data[: len(data) // 2])
                await upstream.drain()
                await asyncio.sleep(0.02)  # the server has it
            return


async def _pass_answers(
    there: asyncio.StreamReader, writer: asyncio.StreamWriter, armed: list[Where]
) -> None:
    with suppress(OSError):
        while data := await there.read(1 << 20):
            if armed == ["after"]:
                return
            writer.write(data[: len(data) // 2] if armed else data)
            await writer.drain()
            if armed:
                return
    if not armed:
        writer.close()
