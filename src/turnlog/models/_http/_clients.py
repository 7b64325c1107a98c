"""One HTTP client per model and event loop, made when first needed."""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from weakref import WeakKeyDictionary

import httpx2

from ._config import is_loopback

_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=60.0)


@cache
def _trusted() -> ssl.SSLContext:
    """The machine's certificates, loaded once: it takes tens of milliseconds."""
    return httpx2.create_ssl_context()


@cache
def _trusting_nobody() -> ssl.SSLContext:
    """For plain http: no certificate is loaded, so none would be accepted."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ClientPool:
    """``get`` gives the client of the running loop. A pool belongs to one model."""

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, httpx2.AsyncClient]] = (
            WeakKeyDictionary()
        )

    def get(self, url: str) -> httpx2.AsyncClient:
        local = is_loopback(url)
        of_loop = self._clients.setdefault(asyncio.get_running_loop(), {})
        client = of_loop.get(local)
        if client is None or client.is_closed:
            client = httpx2.AsyncClient(
                verify=_trusting_nobody() if local and url.startswith("http:") else _trusted(),
                trust_env=not local,  # a proxy of the environment never stands before one's own machine
                limits=_LIMITS,
                headers={"user-agent": "turnlog"},
            )
            of_loop[local] = client
        return client

    async def close(self) -> None:
        of_loop = self._clients.pop(asyncio.get_running_loop(), {})
        for client in of_loop.values():
            await client.aclose()
