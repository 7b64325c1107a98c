"""Hosts that a policy allows are reached through the proxy, and no others, at every level."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from runtime.levels import LEVELS, needs
from turnlog.contract import ExecutionEnv
from turnlog.runtime import LocalRuntime, SandboxLevel
from turnlog.runtime._proxy import HostProxy, _is_public

PYTHON = [sys.executable, "-I", "-S", "-c"]
FETCH = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], data=sys.argv[2].encode() or None, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
DIRECT = """
import socket, sys
socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
print("reached")
"""


@contextlib.asynccontextmanager
async def site() -> AsyncGenerator[tuple[int, list[bytes]]]:
    """A web server of this machine that keeps what it was asked."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        heard.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.parametrize("level", LEVELS)
async def test_an_allowed_host_is_reached_and_another_is_not(level: SandboxLevel, tmp_path: Path) -> None:
    needs(level)
    async with site() as (port, heard), site() as (other, unheard):
        policy = ExecutionEnv(network="hosts", hosts=(f"127.0.0.1:{port}",))
        async with LocalRuntime(tmp_path, policy=policy, level=level) as runtime:
            good = await runtime.execute(
                [*PYTHON, FETCH, f"http://127.0.0.1:{port}/a?b=c", "body"], env={"no_proxy": ""}
            )
            assert good.stdout == "hello\n", good
            (asked,) = heard
            assert asked.startswith(b"POST /a?b=c HTTP/1.1\r\nhost: 127.0.0.1:") and asked.endswith(b"body")
            assert b"proxy-authorization" not in asked.lower()
            bad = await runtime.execute(
                [*PYTHON, FETCH, f"http://127.0.0.1:{other}/", ""], env={"no_proxy": ""}
            )
            assert bad.stdout.startswith("403 the policy of this sandbox does not allow"), bad
            assert unheard == []
            if level != "none":
                direct = await runtime.execute([*PYTHON, DIRECT, str(port)])
                assert direct.exit_code == 1 and "reached" not in direct.stdout
            assert (await runtime.get_init_data())["hosts"] == [f"127.0.0.1:{port}"]


async def ask(proxy: HostProxy, port: int, request: str, *, key: bool = True) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    token = proxy.variables(port)["http_proxy"].removeprefix("http://").partition("@")[0]
    header = f"Proxy-Authorization: Basic {base64.b64encode(token.encode()).decode()}\r\n" if key else ""
    writer.write(request.replace("\n", f"\r\n{header}", 1).encode())
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_what_the_proxy_refuses() -> None:
    async with site() as (port, heard):
        proxy = HostProxy(["allowed.example", "*.wild.example", f"127.0.0.1:{port}", "localhost", "10.*"])
        at = await proxy.listen(socket.create_server(("127.0.0.1", 0)))
        cases = {
            "CONNECT other.example:443 HTTP/1.1\n\r\n": "403",
            "CONNECT allowed.example:22 HTTP/1.1\n\r\n": "403",  # only the port of https
            "CONNECT wild.example:443 HTTP/1.1\n\r\n": "403",
            "CONNECT 10.0.0.1:443 HTTP/1.1\n\r\n": "403",  # private, and named by a pattern alone
            "CONNECT 2130706433:443 HTTP/1.1\n\r\n": "403",
            "CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1\n\r\n": "403",
            "CONNECT nonsense HTTP/1.1\n\r\n": "400",
            "CONNECT a b:443 HTTP/1.1\n\r\n": "400",
            "GET / HTTP/1.1\n\r\n": "400",
            "GET ftp://allowed.example/ HTTP/1.1\n\r\n": "400",
            f"GET http://x@127.0.0.1:{port}/ HTTP/1.1\n\r\n": "400",
            f"POST http://127.0.0.1:{port}/ HTTP/1.1\nTransfer-Encoding: chunked\r\n\r\n": "411",
            f"POST http://127.0.0.1:{port}/ HTTP/1.1\nContent-Length: x\r\n\r\n": "400",
        }
        for request, status in cases.items():
            answer = await ask(proxy, at, request)
            assert answer.startswith(f"HTTP/1.1 {status} "), (request, answer)
        assert (await ask(proxy, at, "CONNECT allowed.example:443 HTTP/1.1\n\r\n", key=False)).startswith(
            "HTTP/1.1 407"
        )
        assert heard == []
        two = (
            f"GET http://127.0.0.1:{port}/one HTTP/1.1\n\r\nGET /two HTTP/1.1\r\nHost: other.example\r\n\r\n"
        )
        assert "hello" in await ask(proxy, at, two)
        assert len(heard) == 1 and b"/two" not in heard[0], "one request a connection"
        tunnel = f"CONNECT 127.0.0.1:{port} HTTP/1.1\n\r\nGET /three HTTP/1.1\r\nHost: x\r\n\r\n"
        assert "hello" in await ask(proxy, at, tunnel)
        proxy.close()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("fd00::1", False),
        ("fe80::1%eth0", False),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert _is_public(address) is public
