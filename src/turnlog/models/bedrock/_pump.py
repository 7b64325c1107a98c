"""A blocking iterator, read in a thread of its own and awaited here."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

_AHEAD = 256
_DRAIN_SECONDS = 0.05


class _Failure(NamedTuple):
    error: BaseException


class _End:
    pass


class Pump:
    """``open_stream`` runs in the thread; its result is the first item, then come the stream's own.

    The thread reads at most so far ahead. ``close`` breaks the connection, so that a read that waits for
    the network ends; it never blocks. A thread that cannot be reached dies with the process.
    """

    def __init__(self, open_stream: Callable[[], tuple[Any, Iterable[Any]]]) -> None:
        self._open_stream = open_stream
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._items: deque[Any] = deque()
        self._room = threading.Semaphore(_AHEAD)
        self._closed = False
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="turnlog-bedrock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def next(self) -> Any:
        """The next item. Raises ``StopAsyncIteration`` at the end, or what the thread raised."""
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        item = self._items.popleft()
        self._room.release()
        if isinstance(item, _Failure):
            raise item.error
        if isinstance(item, _End):
            raise StopAsyncIteration
        return item

    async def drain(self) -> None:
        """Wait a moment for the end, which is nearly always here, so that the connection can be kept."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while True:
                    await self.next()

    def close(self) -> None:
        self._closed = True
        self._room.release()
        if self._thread.is_alive():
            _shut_down(self._stream)

    # ── in the thread ──

    def _run(self) -> None:
        last: Any = _End()
        try:
            opened, stream = self._open_stream()
            self._stream = stream
            try:
                if self._put(opened):
                    for item in stream:
                        if not self._put(item):
                            break
            finally:
                close = getattr(stream, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # whatever it is, whoever waits must hear of it
            last = _Failure(error)
        self._put(last)

    def _put(self, item: Any) -> bool:
        self._room.acquire()
        if self._closed:
            self._room.release()
            return False
        self._items.append(item)
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is gone, and with it whoever waited
            self._closed = True
            return False
        return True


def _shut_down(stream: Any) -> None:
    """End the connection below a stream that another thread may be reading.

    Closing would wait for that reader. botocore and urllib3 keep the socket to themselves; where it is not
    found the reader ends with the next event or at its read timeout.
    """
    raw = getattr(stream, "_raw_stream", None)
    raw = getattr(raw, "_raw_stream", raw)
    connection = getattr(raw, "_connection", None)
    sock = getattr(connection, "sock", None)
    if sock is None:
        reader = getattr(getattr(getattr(raw, "_fp", None), "fp", None), "raw", None)
        sock = getattr(reader, "_sock", None)
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
