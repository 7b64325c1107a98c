"""A botocore client from the event loop: its blocking stream in a thread of its own, what it raises as our
errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from turnlog.contract import AgentError, encode, scrub

from .._faults import map_fault, map_stream_fault

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
        self._awaited = False
        self._closed = False
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="turnlog-bedrock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return bool(self._items)

    async def some(self) -> list[Any]:
        """The items that are here, at least one. Raises ``StopAsyncIteration`` behind the last, or what the
        thread raised."""
        while not self._items:
            self._ready.clear()
            self._awaited = True
            if not self._items:  # in this order: the thread either finds us waiting, or is found out here
                await self._ready.wait()
            self._awaited = False
        items: list[Any] = []
        while self._items and not isinstance(self._items[0], _Failure | _End):
            items.append(self._items.popleft())
            self._room.release()
        if items:
            return items
        last = self._items.popleft()
        self._room.release()
        if isinstance(last, _Failure):
            raise last.error
        raise StopAsyncIteration

    async def drain(self) -> None:
        """Wait a moment for the end, which is nearly always here, so that the connection can be kept."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while True:
                    await self.some()

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
        except BaseException as error:  # any failure must reach the waiting reader
            last = _Failure(error)
        self._put(last)

    def _put(self, item: Any) -> bool:
        self._room.acquire()
        if self._closed:
            self._room.release()
            return False
        self._items.append(item)
        try:
            if self._awaited:
                self._awaited = False
                self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the event loop is closed, and the waiting reader with it
            self._closed = True
        self._closed = self._closed or self._loop.is_closed()
        return not self._closed


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


_BY_NAME: Mapping[str, tuple[str, str]] = {
    "NoCredentialsError": ("ModelAuthError", "no AWS credentials; give the client some, or configure AWS"),
    "PartialCredentialsError": ("ModelAuthError", "the AWS credentials are not complete"),
    "CredentialRetrievalError": ("ModelAuthError", "the AWS credentials could not be fetched"),
    "TokenRetrievalError": ("ModelAuthError", "the AWS login has expired; log in again"),
    "UnauthorizedSSOTokenError": ("ModelAuthError", "the AWS login has expired; log in again"),
    "SSOTokenLoadError": ("ModelAuthError", "there is no AWS login; log in first"),
    "ProfileNotFound": ("ModelAuthError", "the AWS profile does not exist"),
    "NoRegionError": ("ConfigInvalid", "no AWS region; pass region=…, or a client that has one"),
    "ParamValidationError": ("ModelBadRequest", "botocore refused the request before sending it"),
    "EndpointConnectionError": (
        "ModelUnreachable",
        "no connection to Bedrock; check the region and network",
    ),
    "ConnectTimeoutError": ("ModelTimeout", "no connection to Bedrock in time"),
    "ProxyConnectionError": ("ModelUnreachable", "no connection to the proxy"),
    "SSLError": ("ModelUnreachable", "the TLS handshake with Bedrock failed"),
    "ReadTimeoutError": ("ModelTimeout", "Bedrock sent nothing for the client's read_timeout"),
    "ConnectionClosedError": ("ModelServerError", "Bedrock closed the connection"),
    "ResponseStreamingError": ("ModelServerError", "the connection broke in the middle of the answer"),
    "IncompleteReadError": ("ModelServerError", "the connection broke in the middle of the answer"),
    "ProtocolError": ("ModelServerError", "the connection broke in the middle of the answer"),
    "HTTPClientError": ("ModelServerError", "the connection to Bedrock failed"),
    "HTTPError": ("ModelServerError", "the connection to Bedrock failed"),
    "ConnectionError": ("ModelServerError", "the connection to Bedrock failed"),
    "OSError": ("ModelServerError", "the connection to Bedrock failed"),
    "ParserError": ("ModelProtocolError", "an event of the answer is damaged"),
    "ResponseParserError": ("ModelProtocolError", "the answer cannot be read"),
}
"""Name of an exception class, or of one it derives from → (code, what happened)."""


def explain(error: BaseException) -> AgentError | None:
    """The error that ``error`` stands for; None for one that is not a client's."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "ClientError" in names:
        return _refusal(error, in_stream="EventStreamError" in names)
    for name in names:
        if name in _BY_NAME:
            code, what = _BY_NAME[name]
            return AgentError(code, f"bedrock: {what}: {scrub(str(error))}", cause=error)
    return None


def _refusal(error: BaseException, *, in_stream: bool) -> AgentError:
    response = cast("dict[str, Any]", getattr(error, "response", None) or {})
    said: dict[str, Any] = response.get("Error") or {}
    found = {"code": said.get("Code"), "message": said.get("Message") or said.get("message")}
    found = {name: value for name, value in found.items() if value}
    meta: dict[str, Any] = response.get("ResponseMetadata") or {}
    status = meta.get("HTTPStatusCode")
    # In a running stream botocore makes up a status: the word decides.
    if in_stream or not isinstance(status, int):
        return map_stream_fault(found, "bedrock")
    return map_fault(status, meta.get("HTTPHeaders") or {}, encode(found), "bedrock")
