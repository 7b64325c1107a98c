"""httpx2 as the client: the default, and what a client that is handed in speaks."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any, cast

import h11
import httpx2
import msgspec

from turnlog.contract import AgentError

from .._faults import map_fault
from ._transport import TransportError, words_of

_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=60.0)
_FAILURES = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)
_IN_PLAIN_WORDS = {
    "ReadError": "the connection broke while it was read",
    "WriteError": "the connection broke while the request was sent",
    "CloseError": "the connection broke while it was closed",
    "RemoteProtocolError": "the server broke off the connection",
}


@cache
def trusted() -> ssl.SSLContext:
    """The certificates of the machine, or of SSL_CERT_FILE; loaded once, as it takes tens of milliseconds."""
    return httpx2.create_ssl_context()


@cache
def _trusting_nobody() -> ssl.SSLContext:
    """For plain http: no certificate is loaded, so none would be accepted."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Httpx2Transport:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    @classmethod
    def make(cls, *, local: bool, plain: bool) -> Httpx2Transport:
        """With a client of its own. ``local``: for this machine alone; ``plain``: for http:// alone."""
        return cls(
            httpx2.AsyncClient(
                verify=_trusting_nobody() if local and plain else trusted(),
                trust_env=not local,  # a proxy of the environment never stands before one's own machine
                limits=_LIMITS,
                headers={"user-agent": "turnlog"},
            )
        )

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_connect: float
    ) -> Httpx2Answer:
        client = self._client
        try:
            request = client.build_request(
                "POST" if body else "GET",
                url,
                content=body or None,
                headers=headers,
                timeout=httpx2.Timeout(None, connect=timeout_connect),
            )
            return Httpx2Answer(await client.send(request, stream=True, follow_redirects=False))
        except _FAILURES as error:
            raise _translate(error) from error

    async def close(self) -> None:
        await self._client.aclose()


def _parser_of(response: httpx2.Response) -> h11.Connection | None:
    """The parser that the client reads this answer with, where it is found: httpx2 keeps it to itself."""
    found: Any = response.stream
    for name in ("_stream", "_httpcore_stream", "_stream", "_connection", "_h11_state"):
        found = getattr(found, name, None)
    return found if isinstance(found, h11.Connection) else None


class Httpx2Answer:
    def __init__(self, response: httpx2.Response) -> None:
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._source: AsyncIterator[bytes] | None = None
        self._parser = _parser_of(response)
        self._ended = self._told = False  # the end is read; the reader knows of it
        self._failure: Exception | None = None

    async def read(self) -> bytes:
        if self._source is None:
            self._source = aiter(self._response.stream)  # type: ignore[arg-type]
        if self._failure is not None:
            raise _translate(self._failure)
        try:
            while not self._ended:
                if piece := await anext(self._source):
                    return piece if self._parser is None else self._with_more(piece, self._parser)
            self._told = True
            return b""
        except StopAsyncIteration:
            return b""
        except _FAILURES as error:
            raise _translate(error) from error

    def _with_more(self, piece: bytes, parser: h11.Connection) -> bytes:
        """``piece`` and what came with it: the client hands out each chunk of the encoding by itself."""
        pieces = [piece]
        try:
            while isinstance(event := parser.next_event(), h11.Data):
                pieces.append(event.data)
            self._ended = isinstance(event, h11.EndOfMessage)
        except h11.RemoteProtocolError as error:  # what came before it is good
            self._failure = error
        return piece if len(pieces) == 1 else b"".join(pieces)

    async def close(self) -> None:
        try:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
            if self._ended and not self._told:  # left before its end, so the connection is not to be kept
                await self._response.extensions["network_stream"].aclose()
        finally:
            await self._response.aclose()


async def send_with_sdk(
    create: Any, required: tuple[str, ...], body: bytes, headers: Mapping[str, str], provider: str
) -> Httpx2Answer:
    """``create`` is an official client's ``….with_streaming_response.create``, its retries switched off.

    The body goes as it is; the client adds its address and authentication.
    """
    fields = cast("dict[str, Any]", msgspec.json.decode(body))
    named = {name: fields.get(name) for name in required}
    try:
        manager = create(**named, stream=True, extra_body=fields, extra_headers=dict(headers))
        return Httpx2Answer((await manager.__aenter__()).http_response)
    except Exception as error:
        refused: Any = getattr(error, "response", None)
        if isinstance(refused, httpx2.Response):
            raise map_fault(refused.status_code, refused.headers, refused.content, provider) from error
        if isinstance(error, AgentError):
            raise
        for failure in (error.__cause__, error):
            if isinstance(failure, _FAILURES):
                raise _translate(failure) from error
        raise AgentError(
            "ModelUnknownError",
            f"the client could not send: {type(error).__name__}: {error}",
            cause=error,
        ) from error


def _translate(error: Exception) -> TransportError:
    said = words_of(error, _IN_PLAIN_WORDS.get(type(error).__name__, ""))
    match error:
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            return TransportError("connect_timeout", said)
        case httpx2.TimeoutException():
            return TransportError("timeout", said)
        case httpx2.ConnectError() | httpx2.ProxyError():
            tls = "certificate" in said.lower() or "ssl" in said.lower()
            return TransportError("tls" if tls else "connect", said)
        case httpx2.UnsupportedProtocol() | httpx2.InvalidURL() | httpx2.LocalProtocolError():
            return TransportError("request", said)
        case _:
            return TransportError("cut", said)
