"""What both HTTP clients must do alike: proxies, TLS, broken and reused connections; which one is used."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from models.recorded import collect, outcome_of
from models.test_http_transport import BODY, Plain
from turnlog.contract import AgentError
from turnlog.models.http._httpx2 import trusted
from turnlog.testing import Loopback, LoopbackAnswer, LoopbackRequest

both = pytest.mark.usefixtures("transport")
HOST = "api.example"


@pytest.fixture(autouse=True)
def _no_proxies_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for HOST and 127.0.0.1 that signs itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    names = [x509.DNSName(HOST), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def trusting(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    trusted.cache_clear()
    yield
    trusted.cache_clear()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def listening(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that closes what it opened."""
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            writer.transport.abort()
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def serving(said: bytes, after: bytes | None) -> AbstractAsyncContextManager[int]:
    """A server that says this after these bytes of the request; None: it says nothing and waits."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if after is None:
            await reader.read(-1)
        elif after:
            await reader.readuntil(after)
        writer.write(said)
        await writer.drain()
        await reader.read(1)

    return listening(serve)


def tls_of(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def relay(
    to: str, tls: Path | None = None, connects: list[str] | None = None, gone: asyncio.Event | None = None
) -> AbstractAsyncContextManager[int]:
    """A port whose bytes go to the server at ``to``: after a TLS handshake, or after a CONNECT of HTTP.

    ``gone`` is set when the client has closed its connection.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connects is not None:
            connects.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 go ahead\r\n\r\n")
        inner, outer = await asyncio.open_connection("127.0.0.1", int(to.rpartition(":")[2]))
        ways = [asyncio.create_task(pump(reader, outer)), asyncio.create_task(pump(inner, writer))]
        try:
            await asyncio.wait(ways, return_when="FIRST_COMPLETED")
        finally:
            if gone is not None:
                gone.set()
            outer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    return listening(serve, tls_of(tls) if tls is not None else None)


async def say(url: str, **fields: Any) -> Any:
    model = Plain("m", base_url=url, api_key="sk-of-no-worth", **fields)
    try:
        return outcome_of(await collect(model))
    finally:
        await model.close()


# ── proxies ──


@both
async def test_a_proxy_of_the_environment_gets_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("://", "://ada:love%21lace@"))
        assert (await say(f"http://{HOST}/v1")).text == "onetwo"
    seen = proxy.requests[0]
    assert seen.path == f"http://{HOST}/v1/say"
    assert seen.headers["proxy-authorization"] == "Basic YWRhOmxvdmUhbGFjZQ=="
    assert seen.headers["host"] == HOST


@both
async def test_nothing_of_this_machine_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as proxy, Loopback(LoopbackAnswer.sse(BODY)) as server:
        for name in ("HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert (await say(server.url)).text == "onetwo"
    assert (len(proxy.requests), len(server.requests)) == (0, 1)


@both
@pytest.mark.usefixtures("trusting")
async def test_tls_through_a_proxy(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    connects: list[str] = []
    async with (
        Loopback(LoopbackAnswer.sse(BODY)) as server,
        relay(server.url, tls=certificate) as front,
        relay(f":{front}", connects=connects) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy}")
        model = Plain("m", base_url=f"https://{HOST}", api_key="sk-of-no-worth")
        for _ in range(2):
            assert outcome_of(await collect(model)).text == "onetwo"
        await model.close()
    assert [line.split("\r\n")[0] for line in connects] == [f"CONNECT {HOST}:443 HTTP/1.1"]
    assert "no-worth" not in connects[0]
    assert [request.path for request in server.requests] == ["/say", "/say"]


@both
async def test_a_proxy_that_is_not_there_or_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loopback(LoopbackAnswer(status=407, framing="length")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://ada:lovelace@"))
        refused = (await say(f"https://{HOST}")).error
    gone = (await say(f"https://{HOST}")).error
    for error in (refused, gone):
        assert (error.error_code, error.retryable) == ("ModelUnreachable", True)
        assert "proxy settings" in error.message and "lovelace" not in error.message
    assert "407" in refused.message


NO_PROXY = (
    "corp.example, .inner.example, 10.0.0.0/8, 192.168.1.7, fe80::/10, [::1], localhost, port.example:8080, "
    "https://exact.example, *.star.example, all://every.example, not/a/host"
)


HOSTS = """
api.example corp.example a.corp.example acorp.example inner.example a.inner.example 10.9.8.7 11.0.0.1
192.168.1.7 192.168.1.8 [fe80::5] [2001::5] [::1] localhost a.localhost port.example port.example:8080
port.example:80 exact.example a.exact.example a.star.example every.example a.every.example
"""


@pytest.mark.parametrize("spared", [NO_PROXY, "", "*"], ids=["some", "none", "all"])
def test_the_rules_of_no_proxy_are_the_same(spared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, url_type = pytest.importorskip("turnlog.models.http._aiohttp"), pytest.importorskip("yarl").URL
    found = {"https": "http://proxy.example:3128", "all": "other.example:1", "no": spared}
    monkeypatch.setenv("NO_PROXY", spared)
    monkeypatch.setenv("HTTPS_PROXY", found["https"])
    monkeypatch.setenv("ALL_PROXY", found["all"])
    client = httpx2.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for url in [f"{scheme}://{host}/v1" for scheme in ("http", "https") for host in HOSTS.split()]:
        direct = client._transport_for_url(httpx2.URL(url)) is client._transport
        proxy = "http://proxy.example:3128" if url.startswith("https") else "http://other.example:1"
        assert rules.Proxies(found).before(url_type(url)) == (None if direct else proxy), url


# ── TLS ──


@both
@pytest.mark.usefixtures("trusting")
async def test_a_certificate_of_ones_own_authority(certificate: Path) -> None:
    async with (
        Loopback(LoopbackAnswer.sse(BODY)) as server,
        relay(server.url, tls=certificate) as port,
    ):
        model = Plain("m", base_url=f"https://127.0.0.1:{port}")
        for _ in range(3):
            assert outcome_of(await collect(model)).text == "onetwo"
        assert server.connections == 1
        await model.close()
        await server.no_connections()


@both
async def test_a_certificate_that_nobody_vouches_for(certificate: Path) -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as server, relay(server.url, tls=certificate) as port:
        error = (await say(f"https://127.0.0.1:{port}")).error
    assert (error.error_code, error.retryable) == ("ModelUnreachable", False)
    assert "self-signed certificate" in error.message and "the TLS handshake failed" in error.message
    assert server.requests == []


@both
async def test_https_to_a_server_without_tls() -> None:
    async with serving(b"HTTP/1.1 400 plain HTTP\r\n\r\n", after=b"") as port:
        error = (await say(f"https://127.0.0.1:{port}")).error
    assert (error.error_code, error.retryable) == ("ModelUnreachable", False)
    assert "https:// in base_url" in error.message


@both
async def test_a_handshake_that_never_ends() -> None:
    async with serving(b"", after=None) as port:
        error = (await say(f"https://127.0.0.1:{port}", timeout_connect=0.2)).error
    assert error.error_code == "ModelTimeout"
    assert "within 0.2 seconds" in error.message


@both
@pytest.mark.usefixtures("trusting")
async def test_stopping_does_not_wait_for_a_farewell_of_tls(certificate: Path) -> None:
    gone = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + BODY[:12])
        writer.transport.pause_reading()
        await gone.wait()

    async with listening(deaf, tls_of(certificate)) as front, relay(f":{front}", gone=gone) as port:
        model = Plain("m", base_url=f"https://127.0.0.1:{port}")
        stream = model.stream([])
        async for delta in stream:
            if delta.kind == "text":
                break
        await stream.aclose()
        async with asyncio.timeout(5):
            await gone.wait()
        await model.close()


# ── connections that break, and those that are used again ──


@both
@pytest.mark.parametrize("then", ["close", "end"])
async def test_what_arrived_before_the_connection_broke_is_read_first(then: Any) -> None:
    """A whole answer whose last frame is missing is an answer, however slow its reader is."""
    first = BODY.index(b"\n\n") + 2
    answer = LoopbackAnswer.sse(BODY, pieces=[first, 1000], piece_delay=0.01, cut_at=len(BODY), then=then)
    async with Loopback(answer) as server:
        model = Plain("m", base_url=server.url)
        deltas: list[Any] = []
        async for delta in model.stream([]):
            deltas.append(delta)
            if delta.kind == "text":
                if then == "close":
                    await server.no_connections()
                await asyncio.sleep(0.05)
        found = outcome_of(deltas)
        assert (found.text, found.finish, found.error) == ("onetwo", "stop", None)
        await model.close()


@both
async def test_a_connection_that_the_server_dropped_is_not_used_again() -> None:
    """The server is on another thread, and closes while this event loop is blocked."""
    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        while await reader.readuntil(b"}"):
            head = (
                f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(BODY)}\r\n\r\n"
            )
            writer.write(head.encode() + BODY)

    async def drop() -> None:
        opened[-1].close()
        await opened[-1].wait_closed()

    with elsewhere() as run:
        server = listening(serve)
        model = Plain("m", base_url=f"http://127.0.0.1:{run(server.__aenter__())}")
        for _ in range(3):
            assert outcome_of(await collect(model)).finish == "stop"
            run(drop())
        await model.close()
        assert len(opened) == 3
        run(server.__aexit__(None, None, None))


class elsewhere:
    """``with`` it: a function that runs a coroutine on another thread's loop, and waits for it."""

    def __enter__(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return lambda work: asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def test_calls_beyond_the_most_connections_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnlog.models.http._aiohttp._CONNECTIONS", 2)
    async with Loopback(LoopbackAnswer.sse(BODY), LoopbackAnswer.sse(BODY, cut_at=3)) as server:
        model = Plain("m", base_url=server.url, transport="aiohttp", timeout_first_byte=5)
        found = [outcome_of(deltas) for deltas in await asyncio.gather(*(collect(model) for _ in range(8)))]
        await model.close()
    assert sorted(one.finish or one.error.error_code for one in found) == ["ModelServerError"] * 7 + ["stop"]


@both
async def test_something_else_than_http() -> None:
    async with serving(b"SSH-2.0-OpenSSH_9.9\r\n\r\n", after=b"}") as port:
        error = (await say(f"http://127.0.0.1:{port}")).error
    assert error.error_code == "ModelServerError"
    assert "before it answered" in error.message


@both
async def test_a_large_request_arrives_whole() -> None:
    body = os.urandom(3_000_000)

    class Large(Plain):
        def _send(self, request: Any, url: str, _: bytes, headers: Any, provider: Any = None) -> Any:
            return super()._send(request, url, body, headers, provider)

    async with Loopback(LoopbackAnswer.sse(BODY)) as server:
        model = Large("m", base_url=server.url)
        for _ in range(2):
            assert outcome_of(await collect(model)).text == "onetwo"
        await model.close()
    assert [request.body == body for request in server.requests] == [True, True]
    assert server.connections == 1


@both
async def test_headers_of_both_directions() -> None:
    said: list[Any] = []

    class Hearing(Plain):
        def _send(self, *args: Any) -> Any:
            said.append(super()._send(*args))
            return said[-1]

    def answer(request: LoopbackRequest) -> LoopbackAnswer:
        headers = {"X-Request-Id": "r-1", "x-long": "l" * 20_000, "Set-Cookie": "lane=7; Path=/"}
        return LoopbackAnswer.sse(BODY) if said[1:] else LoopbackAnswer(body=BODY, headers=headers)

    async with Loopback(answer) as server:
        model = Hearing("m", base_url=server.url, extra_headers={"X-Team": "blue"})
        deltas = await collect(model)
        await collect(model)
        await model.close()
    assert deltas[0].payload.request_id == "r-1"
    assert len(said[0].headers.get("x-long")) == 20_000
    first, second = (request.headers for request in server.requests)
    assert (first["accept-encoding"], first["user-agent"], first["x-team"]) == ("identity", "turnlog", "blue")
    assert first["content-type"] == "application/json"
    assert "cookie" not in first and second["cookie"] == "lane=7"


@both
async def test_an_address_is_sent_as_it_is_written() -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as server:
        assert (await say(f"{server.url}/models/a%3Ab%2Fc:go d")).text == "onetwo"
    assert server.requests[0].path == "/models/a%3Ab%2Fc:go%20d/say"


# ── which client is used, and what a program sees of it ──


def run_script(script: str, **variables: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), **variables},
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stderr[-2000:]
    return run.stdout.strip()


CALLED = """
import asyncio, sys
{before}
from models.recorded import collect, outcome_of
from models.test_http_transport import BODY, Plain
from turnlog.testing import Loopback, LoopbackAnswer
async def main():
    async with Loopback(LoopbackAnswer.sse(BODY)) as server:
        model.update_config(base_url=server.url)
        found = outcome_of(await collect(model))
        print(found.text or found.error.message)
model = Plain("m")
asyncio.run(main())
asyncio.run(main())
[of_loop] = model._pool._of_loops.values()
print(*(type(transport).__name__ for transport in of_loop.values()))
"""


@pytest.mark.parametrize(
    ("variable", "client"),
    [("", "AiohttpTransport"), ("httpx2", "Httpx2Transport"), ("aiohttp", "AiohttpTransport")],
)
def test_a_model_that_nobody_closes_keeps_one_loop_and_says_nothing(variable: str, client: str) -> None:
    said = run_script(CALLED.format(before=""), TURNLOG_TRANSPORT=variable)
    assert said.split() == ["onetwo", "onetwo", client]


def test_without_aiohttp_httpx2_serves() -> None:
    script = CALLED.format(before="sys.modules['aiohttp'] = None")
    assert run_script(script).split() == ["onetwo", "onetwo", "Httpx2Transport"]
    said = run_script(script, TURNLOG_TRANSPORT="aiohttp")
    assert "not installed: pip install 'turnlog[fast]'" in said


async def test_the_configuration_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Loopback(LoopbackAnswer.sse(BODY)) as server:
        monkeypatch.setenv("TURNLOG_TRANSPORT", "curl")
        assert (await say(server.url, transport="httpx2")).text == "onetwo"
        error = (await say(server.url)).error
        assert error.error_code == "ConfigInvalid" and "'curl'" in error.message
    with pytest.raises(AgentError, match="transport"):
        Plain("m", transport="curl")


async def test_a_socks_proxy_is_for_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    error = (await say(f"http://{HOST}", transport="aiohttp")).error
    assert error.error_code == "ConfigInvalid" and "SOCKS" in error.message
