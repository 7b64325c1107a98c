"""A file from an address. A link in an input is not to be trusted: it may lead into the network of the
machine that follows it."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote, urljoin, urlsplit

from turnlog.contract import AgentError

if TYPE_CHECKING:
    import httpx2

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_REDIRECTS = 5
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Fetched(NamedTuple):
    name: str
    data: bytes


async def fetch(url: str, *, max_bytes: int, timeout: float = 30.0, allow_private: bool = False) -> Fetched:
    """The bytes at ``url``, and the last word of its path as their name.

    A name is resolved once, and the connection is made to the address that was checked; a redirect is checked
    like the first address. Raises ``InvalidMessage``.
    """
    try:
        async with asyncio.timeout(timeout):
            return await _follow(url, max_bytes, allow_private)
    except TimeoutError as error:
        raise _refuse(url, f"did not come within {timeout:g} seconds") from error


async def _follow(url: str, max_bytes: int, allow_private: bool) -> Fetched:
    import httpx2  # a run without an address does not load it

    at = url
    # No proxy of the environment: it would resolve the name again.
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=False) as client:
        for _ in range(_REDIRECTS + 1):
            request = await _request(client, at, allow_private)
            try:
                answer = await client.send(request, stream=True)
                try:
                    following = answer.headers.get("location") if answer.is_redirect else None
                    if following is None:
                        return Fetched(_name_in(at), await _read(answer, url, max_bytes))
                finally:
                    await answer.aclose()
            except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
                raise _refuse(url, f"cannot be fetched: {str(error) or type(error).__name__}") from error
            target = urljoin(at, following)
            if at.startswith("https:") and not target.startswith("https:"):
                raise _refuse(url, f"leads from https to {target}")
            at = target
    raise _refuse(url, f"leads from one address to the next more than {_REDIRECTS} times")


async def _request(client: httpx2.AsyncClient, url: str, allow_private: bool) -> httpx2.Request:
    """The request for ``url``, sent to an address that was checked: a name that is resolved again may give
    another one."""
    import httpx2

    try:
        parsed = httpx2.URL(url)
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except (httpx2.InvalidURL, ValueError) as error:
        raise _refuse(url, f"is no address: {error}") from error
    host = parsed.host
    if parts.scheme not in ("http", "https") or not host:
        raise _refuse(url, "is no address of the web; write https://…")
    if parts.username or parts.password:
        raise _refuse(url, "has a name or a password in it; leave them out")
    addresses = await _resolve(url, host, port)
    if not allow_private:
        for address in addresses:
            if not _is_public(address):
                ways = "turnlog run --allow-private, or allow_private=True in Python, fetches it"
                raise _refuse(url, f"leads to {address}, which is not public; {ways}")
    pinned = parsed.copy_with(host=str(addresses[0]))
    headers = {"host": parsed.netloc.decode("ascii"), "accept-encoding": "identity", "user-agent": "turnlog"}
    extensions = {"sni_hostname": host} if parts.scheme == "https" else {}
    return client.build_request("GET", pinned, headers=headers, extensions=extensions)


async def _resolve(url: str, host: str, port: int) -> Sequence[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _refuse(url, f"names a host that is not found: {host}") from error
    addresses = [ipaddress.ip_address(str(place[4][0]).partition("%")[0]) for place in found]
    if not addresses:
        raise _refuse(url, f"names a host that is not found: {host}")
    return addresses


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if inner is not None:
            return _is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


async def _read(answer: httpx2.Response, url: str, max_bytes: int) -> bytes:
    if not answer.is_success:
        raise _refuse(url, f"was answered with status {answer.status_code}")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise _refuse(url, "was sent compressed, though that was not asked for")
    length = answer.headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise _refuse(url, f"has {int(length):,} bytes; the limit is {max_bytes:,}")
    data = bytearray()
    async for piece in answer.aiter_raw():
        data += piece
        if len(data) > max_bytes:
            raise _refuse(url, f"has more than {max_bytes:,} bytes, which is the limit")
    return bytes(data)


def _name_in(url: str) -> str:
    parts = urlsplit(url)
    return PurePosixPath(unquote(parts.path)).name or parts.hostname or "file"


def _refuse(url: str, why: str) -> AgentError:
    return AgentError("InvalidMessage", f"{url[:200]} {why}")
