"""The way out for commands whose policy allows hosts: a proxy that connects to those and to nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

_HEAD = 64 * 1024
_WAIT = 30.0
_CHUNK = 64 * 1024
_USUAL = {"http": 80, "https": 443}
_OWN_HEADERS = {
    b"proxy-authorization",
    b"proxy-connection",
    b"connection",
    b"keep-alive",
    b"host",
    b"te",
    b"upgrade",
}

_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # an IPv4 address in the last four bytes

LISTEN_FD = 100
LISTEN = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
with socket.socket(fileno=int(sys.argv[1])) as told:
    socket.send_fds(told, [b"+"], [listener.fileno()])
    port = listener.getsockname()[1]
listener.close()
for name, value in list(os.environ.items()):
    if value.endswith("@127.0.0.1:0"):
        os.environ[name] = value[:-1] + str(port)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Runs in the sandbox before the command: makes a socket in its network, which turnlog then listens on."""


class HostProxy:
    """Listens for one command. ``hosts`` are patterns (``pypi.org``, ``*.example.com``), for the ports of
    http and https unless one is named (``example.com:8443``). A host is looked up here, once, and the address
    that was checked is the one that is used. Private addresses are refused, unless the policy names one."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = [each.lower().rstrip(".") for each in hosts]
        self._token = secrets.token_urlsafe(16)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def variables(self, port: int) -> Mapping[str, str]:
        """What programs find the proxy by."""
        url = f"http://turnlog:{self._token}@127.0.0.1:{port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        near = dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
        return {**dict.fromkeys(names, url), **near, "NODE_USE_ENV_PROXY": "1"}

    async def listen(self, listener: socket.socket) -> int:
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=_HEAD)
        return listener.getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also when it was cancelled before it began

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except _Refused as refused:
            body = f"{refused.words}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            more = "Proxy-Authenticate: Basic\r\n" if refused.status.startswith("407") else ""
            with contextlib.suppress(OSError):
                writer.write(f"{head}{more}Content-Type: text/plain\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # one of the two sides left
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_WAIT):
            head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        fields = [
            (name.strip().lower(), value.strip())
            for name, _, value in (line.partition(b":") for line in lines)
        ]
        self._check_token(dict(fields))
        words = first.decode("latin-1").split(" ")
        if len(words) != 3:
            raise _Refused("400 Bad Request", "this is no request to a proxy")
        method, target, _ = words
        if method == "CONNECT":
            host, port = _host_and_port(target, None)
            there = await self._reach(host, port, "https")
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _join(reader, writer, *there)
            return
        parts = urlsplit(target)
        if parts.scheme != "http" or parts.username is not None:
            raise _Refused("400 Bad Request", "only http addresses and CONNECT are served")
        host, port = _host_and_port(parts.netloc, 80)
        length = _body_length(fields)
        there = await self._reach(host, port, "http")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        kept = [name + b": " + value for name, value in fields if name not in _OWN_HEADERS]
        # One request a connection: another one behind it could name another host to the same server.
        asked = [
            f"{method} {path} HTTP/1.1".encode("latin-1"),
            b"host: " + parts.netloc.encode("latin-1"),
            *kept,
        ]
        there[1].write(b"\r\n".join([*asked, b"connection: close", b"", b""]))
        await _join(reader, writer, *there, limit=length)

    def _check_token(self, fields: dict[bytes, bytes]) -> None:
        expected = b"Basic " + base64.b64encode(f"turnlog:{self._token}".encode())
        if not secrets.compare_digest(fields.get(b"proxy-authorization", b""), expected):
            raise _Refused(
                "407 Proxy Authentication Required", "the proxy is for one command, which has its key"
            )

    async def _reach(
        self, host: str, port: int, scheme: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        allowed = [each for each in self._hosts if _covers(each, host, port, scheme)]
        if not allowed:
            raise _Refused("403 Forbidden", f"the policy of this sandbox does not allow {host}:{port}")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise _Refused("502 Bad Gateway", f"{host} cannot be looked up: {error}") from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        named = _is_literal(host) and any(_pattern_host(each) == host for each in allowed)
        if not named and not all(map(_is_public, addresses)):
            raise _Refused(
                "403 Forbidden", f"{host} is at a private address, which this sandbox does not reach"
            )
        for address in addresses:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_WAIT):
                    return await asyncio.open_connection(address, port)
        raise _Refused("502 Bad Gateway", f"{host}:{port} does not answer")


async def receive_listener(told: socket.socket) -> socket.socket | None:
    """The socket that ``LISTEN`` made; None when its command ended before."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    told.setblocking(False)
    loop.add_reader(told, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
        _, fds, _, _ = socket.recv_fds(told, 1, 1)
    finally:
        loop.remove_reader(told)
        told.close()
    return socket.socket(fileno=fds[0]) if fds else None


class _Refused(Exception):
    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


def _covers(pattern: str, host: str, port: int, scheme: str) -> bool:
    wanted, _, number = pattern.rpartition(":") if re.search(r":\d+$", pattern) else (pattern, "", "")
    right_port = port == int(number) if number else port == _USUAL[scheme]
    return right_port and fnmatchcase(host, wanted.strip("[]"))


def _pattern_host(pattern: str) -> str:
    return re.sub(r":\d+$", "", pattern).strip("[]")


def _is_literal(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    if found in _TRANSLATED:
        mapped = ipaddress.IPv4Address(found.packed[-4:])
    return found.is_global and not found.is_multicast and (mapped is None or _is_public(str(mapped)))


def _host_and_port(text: str, usual: int | None) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", text)
    if match is None or (match[2] is None and usual is None):
        raise _Refused("400 Bad Request", f"{text[:200]!r} is no host with a port")
    return match[1].strip("[]").lower().rstrip("."), int(match[2] or usual or 0)


def _body_length(fields: Sequence[tuple[bytes, bytes]]) -> int:
    lengths = {value for name, value in fields if name == b"content-length"}
    if any(name == b"transfer-encoding" for name, _ in fields):
        raise _Refused("411 Length Required", "a body needs a content-length here")
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths):
        raise _Refused("400 Bad Request", "the content-length is not a number")
    return int(next(iter(lengths), b"0"))


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
    *,
    limit: int | None = None,
) -> None:
    """Carry bytes both ways until the far side has said all, or the near side is gone."""
    sending = asyncio.ensure_future(_carry(reader, far_writer, limit))
    try:
        await _carry(far_reader, writer, None)
    finally:
        far_writer.close()  # before any await: the proxy may be closed meanwhile
        sending.cancel()
        await asyncio.wait({sending})


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    left = limit
    with contextlib.suppress(OSError):
        while left is None or left > 0:
            data = await reader.read(_CHUNK if left is None else min(left, _CHUNK))
            if not data:
                break
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()
        if limit is None and writer.can_write_eof():
            writer.write_eof()
