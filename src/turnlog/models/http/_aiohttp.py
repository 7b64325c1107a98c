"""aiohttp as the client, the extra ``fast``: several times less work for a piece of an answer than httpx2."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote
from urllib.request import getproxies
from weakref import finalize

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from ._transport import TransportError, words_of

_OLDEST = (3, 14)
_CONNECTIONS = 1000
_KEPT_FOR = 60.0
_LONGEST_HEADER = 64 * 1024
_LARGE_BODY = 1024 * 1024
_FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError)
_UNESCAPED = "!#$%&'()*+,/:;=?@[]~"


def why_not(*, local: bool) -> str | None:
    """Why this client cannot serve here; None when it can."""
    if tuple(map(int, aiohttp.__version__.split(".")[:2])) < _OLDEST:
        return f"aiohttp is {aiohttp.__version__}, older than {'.'.join(map(str, _OLDEST))}"
    if not local and any(url.startswith("socks") for url in getproxies().values()):
        return "the environment names a SOCKS proxy, which aiohttp does not speak"
    return None


class AiohttpTransport:
    """For addresses of this machine alone when ``local``, for http:// alone when ``plain``."""

    def __init__(self, *, local: bool, plain: bool) -> None:
        # A proxy of the environment never stands before one's own machine.
        self._proxies = Proxies({} if local else getproxies())
        connector = aiohttp.TCPConnector(
            ssl=True if local and plain else _trusted(),
            resolver=aiohttp.ThreadedResolver(),  # the system's, whatever else is installed
            limit=0,  # waiting for a connection of another call is no part of connecting
            keepalive_timeout=_KEPT_FOR,
        )
        self._free = asyncio.Semaphore(_CONNECTIONS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"user-agent": "turnlog"},
            cookie_jar=aiohttp.CookieJar(unsafe=True),  # a gateway may be found by its IP address
            response_class=_Response,
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
            max_headers=1000,
        )
        finalize(self, _let_go, self._session, connector, asyncio.get_running_loop())

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_connect: float
    ) -> AiohttpAnswer:
        await self._free.acquire()
        try:
            # A loop that was blocked has not yet read that the server closed an idle connection.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            target = URL(quote(url, safe=_UNESCAPED), encoded=True) if url.isascii() else URL(url)
            response = await self._session.request(
                "POST" if body else "GET",
                target,
                data=(body or None) if len(body) < _LARGE_BODY else io.BytesIO(body),
                headers=headers,
                proxy=self._proxies.before(target),
                allow_redirects=False,
                middlewares=None if body else (_once,),
                timeout=aiohttp.ClientTimeout(connect=timeout_connect, ceil_threshold=3600),
            )
        except BaseException as error:
            self._free.release()
            if isinstance(error, (*_FAILURES, ValueError)):
                raise _translate(error) from error
            raise
        return AiohttpAnswer(response, self._free)

    async def close(self) -> None:
        await self._session.close()


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Left alone, aiohttp sends a GET again whose connection broke."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _translate(error) from error


class AiohttpAnswer:
    def __init__(self, response: aiohttp.ClientResponse, free: asyncio.Semaphore) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = _decoded(response.raw_headers)
        self._response = response
        self._free = free
        self._readany = response.content.readany
        self._ended = self._closed = False
        self._failure: TransportError | None = None

    async def read(self) -> bytes:
        if self._ended:
            return b""
        if self._failure is not None:
            raise self._failure
        try:
            if piece := await self._readany():
                return piece
        except _FAILURES as error:
            self._failure = _translate(error)
            if piece := self._arrived_before():
                return piece
            raise self._failure from error
        self._ended = True
        self._response.release()
        return b""

    def _arrived_before(self) -> bytes:
        """What the stream holds: once it has failed it gives nothing of it."""
        content = self._response.content
        content.set_exception(cast(Any, None))
        return content.read_nowait()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._free.release()
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()  # TLS would wait for the server's farewell
        self._response.close()


class _Response(aiohttp.ClientResponse):
    """Keeps its connection until it is released, even when all of the body has arrived."""

    def _response_eof(self) -> None:
        pass


def _let_go(
    session: aiohttp.ClientSession, connector: aiohttp.TCPConnector, loop: asyncio.AbstractEventLoop
) -> None:
    """A model that nobody closed takes its connections along, without a word."""
    if session.closed:
        return
    session.detach()
    if loop.is_closed():
        connector.__exit__()
    else:
        loop.call_soon_threadsafe(connector.__exit__)


def _trusted() -> ssl.SSLContext:
    from ._httpx2 import trusted  # one rule for both clients, and its package only where TLS is spoken

    return trusted()


class Proxies:
    """Which proxy of the environment stands before an address; the rules of NO_PROXY are httpx2's."""

    def __init__(self, found: Mapping[str, str]) -> None:
        self._found = {
            scheme: url if "://" in url else f"http://{url}" for scheme, url in found.items() if url
        }
        self._spared = [entry.strip().lower() for entry in found.get("no", "").split(",") if entry.strip()]

    def before(self, url: URL) -> str | None:
        proxy = self._found.get(url.scheme) or self._found.get("all")
        if proxy is None or "*" in self._spared or any(_is_meant(entry, url) for entry in self._spared):
            return None
        return proxy


def _is_meant(entry: str, url: URL) -> bool:
    """Whether an entry of NO_PROXY names this address."""
    host = (url.host or "").lower()
    scheme, exact, place = entry.rpartition("://")
    if exact and scheme not in ("all", url.scheme):
        return False
    try:
        network = ipaddress.ip_network(place.strip("[]"), strict=False)
    except ValueError:
        pass
    else:
        try:
            return ipaddress.ip_address(host) in network
        except ValueError:
            return False
    name, _, port = place.partition(":")
    if port and (url.is_default_port() or port != str(url.port)):
        return False
    if exact or name == "localhost":
        return host == name
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _decoded(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in raw:
        name = key.decode("latin-1").lower()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _translate(error: Exception) -> TransportError:
    said = words_of(error)
    match error:
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            return TransportError("tls", said)
        case aiohttp.ConnectionTimeoutError():
            return TransportError("connect_timeout", said)
        case TimeoutError():
            return TransportError("timeout", said)
        case aiohttp.ClientHttpProxyError():
            return TransportError("connect", f"the proxy answered {error.status} {error.message}")
        case aiohttp.ClientConnectorError():
            return TransportError("connect", said)
        case aiohttp.ClientPayloadError():
            return TransportError("cut", "the server broke off the connection")
        case aiohttp.ClientResponseError():
            return TransportError("cut", f"it sent no HTTP: {said}")
        case aiohttp.ClientError() | OSError():
            if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
                return TransportError("request", said)
            return TransportError("cut", said)
        case _:  # ValueError: an address or a header that cannot be written
            return TransportError("request", said)
