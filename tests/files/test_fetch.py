"""Files from addresses: only public ones, checked again after every redirect, within limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from files.test_files import PDF, PNG
from turnlog import AgentError, File
from turnlog.contract import FileRefPart, ImagePart
from turnlog.files import _fetch  # pyright: ignore[reportPrivateUsage]
from turnlog.testing import Loopback, LoopbackAnswer


def answer(data: bytes, **more: Any) -> LoopbackAnswer:
    return LoopbackAnswer(body=data, framing="length", **more)


async def test_a_file_is_fetched_and_its_kind_is_read_from_its_bytes() -> None:
    played = answer(PDF, headers={"content-type": "image/png"})
    async with Loopback(played) as server:
        file = await File.from_url(f"{server.url}/papers/a%20b.pdf?v=1", allow_private=True)
        host, request = server.url.removeprefix("http://"), server.requests[0]
    part = file.part()
    assert isinstance(part, FileRefPart)
    assert (part.payload.path, part.payload.mime_type) == ("a b.pdf", "application/pdf")
    assert request.headers["host"] == host
    assert request.headers["accept-encoding"] == "identity"


async def test_a_page_in_place_of_a_picture_is_refused() -> None:
    async with Loopback(answer(b"<html>404</html>", headers={"content-type": "image/png"})) as server:
        file = await File.from_url(f"{server.url}/cat.png", allow_private=True)
    with pytest.raises(AgentError, match="not the picture that its name says"):
        file.part()


PRIVATE = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://0/",
    "http://localhost/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fd00::1]/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://192.168.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.64.0.1/",
    "http://224.0.0.1/",
    "http://0.0.0.0/",
    "http://255.255.255.255/",
]


@pytest.mark.parametrize("url", PRIVATE)
async def test_an_address_that_is_not_public_is_refused_in_every_spelling(url: str) -> None:
    with pytest.raises(AgentError, match=r"which is not public|is no address"):
        await File.from_url(url)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.com/a", "https://", "http://[", "a b"])
async def test_what_is_no_address_of_the_web_is_refused(url: str) -> None:
    with pytest.raises(AgentError, match="no address"):
        await File.from_url(url)


async def test_a_password_in_an_address_is_refused() -> None:
    with pytest.raises(AgentError, match="has a name or a password"):
        await File.from_url("https://ann:pw@example.com/a.png")


async def test_a_redirect_is_checked_like_the_first_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of this test stands for a public one; what it leads to is checked all the same."""
    check = _fetch._is_public  # pyright: ignore[reportPrivateUsage]

    def is_public(found: _fetch.Address) -> bool:
        return str(found) == "127.0.0.1" or check(found)

    monkeypatch.setattr(_fetch, "_is_public", is_public)
    inward = answer(b"", status=302, headers={"location": "http://169.254.169.254/latest/"})
    async with Loopback(inward) as server:
        with pytest.raises(AgentError, match=r"169\.254\.169\.254, which is not public"):
            await File.from_url(server.url)


async def test_redirects_are_followed_a_few_times() -> None:
    onward = answer(b"", status=302, headers={"location": "/next.png"})
    async with Loopback(onward, answer(PNG)) as server:
        assert isinstance((await File.from_url(server.url, allow_private=True)).part(), ImagePart)
    async with Loopback(*[onward] * 8) as server:
        with pytest.raises(AgentError, match="more than 5 times"):
            await File.from_url(server.url, allow_private=True)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_more_bytes_than_allowed_are_not_read(framing: Any) -> None:
    async with Loopback(LoopbackAnswer(body=b"x" * 3_000, framing=framing)) as server:
        with pytest.raises(AgentError, match="limit"):
            await File.from_url(f"{server.url}/a.txt", allow_private=True, max_bytes=2_000)


async def test_a_server_that_stalls_is_given_up() -> None:
    stalled = LoopbackAnswer(body=b"x" * 100, framing="length", cut_at=10, then="stall")
    async with Loopback(stalled) as server:
        with pytest.raises(AgentError, match=r"did not come within 0\.2 seconds"):
            async with asyncio.timeout(10):
                await File.from_url(server.url, allow_private=True, timeout=0.2)


async def test_a_compressed_answer_and_a_failure_are_refused() -> None:
    async with Loopback(answer(b"bomb", headers={"content-encoding": "gzip"})) as server:
        with pytest.raises(AgentError, match="sent compressed"):
            await File.from_url(server.url, allow_private=True)
    async with Loopback(answer(b"no", status=404)) as server:
        with pytest.raises(AgentError, match="status 404"):
            await File.from_url(server.url, allow_private=True)
