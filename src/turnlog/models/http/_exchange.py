"""One request and its answer, read piece by piece under limits of time and size."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias

import msgspec

from turnlog.contract import MASK, AgentError, JsonObject, scrub

from .._faults import in_words, map_fault
from ._read import MAX_EVENT, ServerEvent, SilenceWatch, SSEReader, inflater
from ._transport import Answer, TimeLimits, TransportError, words_of

_ERROR_BODY_LIMIT = 256 * 1024
_ERROR_BODY_SECONDS = 10.0
_JSON_BODY_LIMIT = 64 * 1024 * 1024
_DRAIN_SECONDS = 0.05
_SHOWN_START = 400
_COMMENTS_LAST = 4
"""A server that sends comments alone is alive for so many times ``timeout_silence``."""

_BOM = b"\xef\xbb\xbf"


Send: TypeAlias = Callable[[], Awaitable[Answer]]
"""Sends one request and gives its answer as soon as the headers are there, the body unread."""


class Exchange:
    """``async with`` it: the request is sent, a refusal is raised, the answer is there to be read.

    After ``__aenter__`` the status is below 300. ``sse``, ``lines`` and ``pieces`` read the
    answer; leaving the block closes the connection at once, unless ``finished`` was called and the rest of
    the answer is already here, so that the connection can serve the next call.
    """

    def __init__(self, send: Send, url: str, limits: TimeLimits, provider: str) -> None:
        self._send = send
        self._url = url
        self._limits = limits
        self._provider = provider
        self._answer: Answer | None = None
        self._open: list[AsyncGenerator[Any, None]] = []
        self._finished = False
        self._heard = False
        self._start = bytearray()
        self._read_bytes = 0
        self.status = 0
        self.headers: Mapping[str, str] = {}

    # ── opening and closing ──

    async def __aenter__(self) -> Exchange:
        self._watch = SilenceWatch(self._limits.timeout_first_byte)
        try:
            self._watch.begin()
            answer = self._answer = await self._send()
            self._watch.done()
            self.status, self.headers = answer.status, answer.headers
            if self.status >= 300:
                raise await self._refusal()
            log_response(self._url, self.status, self.headers)
        except BaseException as error:
            await self._close()
            failure = self._explain(error)
            if failure is error:
                raise
            raise failure from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._finished and (kind is None or kind is GeneratorExit):
                await self._drain()
        finally:
            await self._close()

    def finished(self) -> None:
        """The protocol says nothing more will come: the connection may be kept."""
        self._finished = True

    async def _drain(self) -> None:
        """Read the end of a finished answer, which is nearly always here already, to keep the connection."""
        assert self._answer is not None
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self._answer.read():
                    pass

    async def _close(self) -> None:
        self._watch.stop()
        try:
            for generator in self._open:
                await generator.aclose()
        finally:
            if self._answer is not None:
                await self._answer.close()

    async def _refusal(self) -> AgentError:
        """What the server refused and why; a reason that is cut, or too slow in coming, is read as it is."""
        self._watch.restart(min(_ERROR_BODY_SECONDS, self._limits.timeout_silence))
        body = bytearray()
        pieces = self.pieces()
        self._open.append(pieces)
        with suppress(AgentError):
            async for piece in pieces:
                body += piece
                if len(body) > _ERROR_BODY_LIMIT:
                    break
        said = bytes(body[:_ERROR_BODY_LIMIT])
        log_response(self._url, self.status, self.headers, said)
        return map_fault(self.status, self.headers, said, self._provider)

    # ── reading ──

    @property
    def kind(self) -> str:
        """What the answer's content type says: ``sse``, ``json``, ``ndjson``, ``html`` or ``other``."""
        said = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if said == "text/event-stream":
            return "sse"
        if said in ("application/json", "text/json") or said.endswith("+json"):
            return "json"
        if said in ("application/x-ndjson", "application/jsonl", "application/json-lines"):
            return "ndjson"
        return "html" if said in ("text/html", "application/xhtml+xml") else "other"

    @property
    def request_id(self) -> str | None:
        for name in ("x-request-id", "request-id", "x-amzn-requestid", "cf-ray"):
            if value := self.headers.get(name):
                return value
        return None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes as they come, decompressed; raises what the connection's end means."""
        assert self._answer is not None
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        inflate = None if encoding in ("identity", "") else inflater(encoding)
        read, watch = self._answer.read, self._watch
        try:
            while True:
                watch.begin()
                piece = await read()
                watch.done()
                if not piece:
                    return
                if watch.limit == self._limits.timeout_first_byte != self._limits.timeout_silence:
                    watch.restart(self._limits.timeout_silence)
                for plain in (piece,) if inflate is None else inflate(piece):
                    if self._read_bytes < _SHOWN_START:
                        self._start += plain[: _SHOWN_START - self._read_bytes]
                    self._read_bytes += len(plain)
                    yield plain
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = self._explain(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            watch.done()

    async def sse(self, **limits: int) -> AsyncGenerator[list[ServerEvent], None]:
        """The events of each piece that held any; last, what an unfinished event holds (it may be cut).

        A server that answers with a JSON document instead of a stream yields it as one event. Raises a
        clear error for an answer that is neither: a proxy's page, a line of text, nothing at all.
        """
        if self.kind == "html":
            raise await self._not_a_stream()
        reader = SSEReader(**limits)
        feed = reader.feed
        pieces = self.pieces()
        self._open.append(pieces)
        plain: list[bytes] | None = [] if self.kind != "sse" else None
        size = 0
        head = b""
        now = asyncio.get_running_loop().time
        quiet_since: float | None = None
        patience = _COMMENTS_LAST * self._limits.timeout_silence
        async for piece in pieces:
            if plain is not None:  # the content type promises no events; the first byte decides
                if not plain:
                    head, piece = _opening(head + piece)
                    if not piece:
                        continue
                if plain or piece[:1] in b"{[":
                    plain.append(piece)
                    size += len(piece)
                    if size > _JSON_BODY_LIMIT:
                        raise _too_large(_JSON_BODY_LIMIT)
                    continue
                plain = None
            events = feed(piece)
            if events and events[-1][0] != "ping":
                self._heard, quiet_since = True, None
                yield events
                continue
            if not events and not reader.idle:  # an event that is still growing
                quiet_since = None
                continue
            time = now()
            quiet_since = quiet_since or time
            if time - quiet_since > patience:
                raise AgentError(
                    "ModelTimeout",
                    f"{self._url} sent nothing but comments and pings for {in_words(patience)}, "
                    f"{_COMMENTS_LAST} times timeout_silence; raise that if it may",
                )
            if events:
                self._heard = True
                yield events
                quiet_since += now() - time  # the consumer's own time does not count
        if plain:
            self._heard = True
            yield [("", b"".join(plain))]
        elif events := reader.end():
            yield events
        elif not self._heard:
            raise self.unfinished()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of a body that has one JSON value in each; last, one that no line end closed."""
        if self.kind == "html":
            raise await self._not_a_stream()
        pieces = self.pieces()
        self._open.append(pieces)
        rest = b""
        async for piece in pieces:
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > MAX_EVENT:
                raise _too_large(MAX_EVENT)
            for line in filter(bytes.strip, whole):
                self._heard = True
                yield line
        if rest.strip():
            yield rest

    def unfinished(self, why: str = "before the answer was complete") -> AgentError:
        """The error of an answer that has no end, with the server's words where it said little else."""
        said = " ".join(bytes(self._start).decode("utf-8", "replace").split())
        if not self._start:
            return AgentError("ModelServerError", f"{self._provider} answered {self.status} and sent nothing")
        if not self._heard and self.kind != "sse":
            return AgentError(
                "ModelProtocolError",
                f"{self._provider} answered {self.status} with no event of a stream, but: {_short(said)!r}; "
                "the answer was cut, or base_url leads to another server",
            )
        text = f"{self._provider}: the connection ended {why}"
        if self._read_bytes <= len(self._start):
            text += f"; all it sent was {_short(said)!r}"
        return AgentError("ModelServerError", text)

    # ── what failures mean ──

    async def _not_a_stream(self) -> AgentError:
        page = bytearray()
        pieces = self.pieces()
        self._open.append(pieces)
        async for piece in pieces:
            page += piece
            if len(page) > 2048:
                break
        start = " ".join(page.decode("utf-8", "replace").split())[:200]
        return AgentError(
            "ModelProtocolError",
            f"{self._url} answered with an HTML page instead of an event stream: {scrub(start)!r}; "
            "a proxy or login page is in between, or base_url is wrong",
            retryable=False,
        )

    def _explain(self, error: BaseException) -> BaseException:
        """The error to raise for ``error``; itself when it is not the connection's."""
        if isinstance(error, asyncio.CancelledError):
            if not self._watch.took_effect():
                return error
            return self._timeout(error)
        if not isinstance(error, (TransportError, OSError)):
            return error
        return explain_transport(error, self._url, self.status > 0, self._limits)

    def _timeout(self, error: BaseException) -> AgentError:
        limit = self._watch.limit
        what = (
            "sent nothing more" if limit == self._limits.timeout_silence and self.status else "sent no byte"
        )
        name = "timeout_silence" if what == "sent nothing more" else "timeout_first_byte"
        return AgentError(
            "ModelTimeout", f"{self._url} {what} for {limit:g} seconds; raise {name} if it may", cause=error
        )


def _opening(begun: bytes) -> tuple[bytes, bytes]:
    """(what may still become a byte order mark, the answer from its first byte that is no white space)."""
    if len(begun) < len(_BOM) and _BOM.startswith(begun):
        return begun, b""
    return b"", begun.removeprefix(_BOM).lstrip()


def _too_large(limit: int) -> AgentError:
    return AgentError("ModelProtocolError", f"the answer is larger than {limit} bytes", retryable=False)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…"


def explain_transport(
    error: TransportError | OSError, url: str, answered: bool, limits: TimeLimits
) -> AgentError:
    """One of our codes for what the transport raised."""
    fault = error.fault if isinstance(error, TransportError) else "cut"
    said = str(error) if isinstance(error, TransportError) else words_of(error)
    match fault:
        case "connect_timeout":
            return AgentError(
                "ModelTimeout",
                f"no connection to {url} within {limits.timeout_connect:g} seconds; "
                "check the address and the network, or raise timeout_connect",
                cause=error,
            )
        case "timeout":
            return AgentError("ModelTimeout", f"{url} took too long: {said}", cause=error)
        case "connect":
            hint = "is the server running, and are base_url and the proxy settings right?"
            return AgentError("ModelUnreachable", f"no connection to {url}: {said}; {hint}", cause=error)
        case "tls":
            hint = "the TLS handshake failed: check the certificate, the clock and https:// in base_url"
            return AgentError(
                "ModelUnreachable", f"no connection to {url}: {said}; {hint}", cause=error, retryable=False
            )
        case "request":
            return AgentError("ConfigInvalid", f"cannot send to {url}: {said}", cause=error)
        case "cut":
            when = "in the middle of the answer" if answered else "before it answered"
            return AgentError("ModelServerError", f"{url} closed the connection {when}: {said}", cause=error)


# ── debug records, off unless TURNLOG_DEBUG names `provider` ──

_debug = logging.getLogger("turnlog.provider")
_SHOWN_HEADERS = frozenset(
    {"accept", "content-type", "content-length", "user-agent", "retry-after", "retry-after-ms", "date"}
)
_BODY_LIMIT = 20_000


def debug_is_on() -> bool:
    switched = os.environ.get("TURNLOG_DEBUG")
    return bool(switched) and bool({"provider", "all", "*"} & {word.strip() for word in switched.split(",")})


def log_request(url: str, headers: Mapping[str, str], body: bytes) -> None:
    if debug_is_on():
        _write("request", url, {"headers": _safe(headers), "body": _shown(body)})


def log_response(url: str, status: int, headers: Mapping[str, str], body: bytes | None = None) -> None:
    if debug_is_on():
        fields: JsonObject = {"status": status, "headers": _safe(headers)}
        if body is not None:
            fields["body"] = _shown(body)
        _write("response", url, fields)


def _write(what: str, url: str, fields: JsonObject) -> None:
    """One record, its fields as JSON in the text and as attributes for structured handlers."""
    if not _debug.isEnabledFor(logging.DEBUG):
        _debug.setLevel(logging.DEBUG)
    if not _debug.hasHandlers():  # no logging is set up, and the user who switched this on wants to see it
        _debug.addHandler(logging.StreamHandler())
    text = msgspec.json.encode(fields).decode()
    _debug.debug("%s %s %s", what, scrub(url), text, extra=fields)


def _safe(headers: Mapping[str, str]) -> dict[str, str]:
    """Names of all headers; values only of those that cannot hold a key."""
    shown: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        harmless = name in _SHOWN_HEADERS or "ratelimit" in name or name.endswith("request-id")
        shown[name] = scrub(value) if harmless else MASK
    return shown


def _shown(body: bytes) -> str:
    text = scrub(body[:_BODY_LIMIT].decode("utf-8", "replace"))
    return text if len(body) <= _BODY_LIMIT else f"{text}… ({len(body)} bytes)"
