"""Tools of real MCP servers: over standard input and output, and over HTTP on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_rig import opened
from turnlog import Agent
from turnlog.contract import AgentError
from turnlog.mcp import MCPServer
from turnlog.testing import ScriptedModel, Turn, check_toolset
from turnlog.tools import ToolRegistry

SERVER = str(Path(__file__).with_name("everything.py"))


def stdio(**options: Any) -> MCPServer:
    return MCPServer.stdio(sys.executable, SERVER, **options)


def light(**options: Any) -> MCPServer:
    """One that starts quickly."""
    return MCPServer.stdio(sys.executable, "-SE", str(Path(__file__).with_name("hostile.py")), **options)


@contextlib.contextmanager
def served(port: int | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    if port is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)])
    try:
        _await_listener(port)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as (address, _):
        yield address


def _await_listener(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")


@pytest.fixture(params=["stdio", "http"])
def make(request: pytest.FixtureRequest) -> Callable[..., MCPServer]:
    if request.param == "stdio":
        return stdio
    url: str = request.getfixturevalue("url")
    return lambda **options: MCPServer.http(url, **options)


async def test_tools_of_a_server_are_ordinary_tools(make: Callable[..., MCPServer]) -> None:
    async with opened(make(name="calculator")) as rig:
        found = rig.registry.get("add")
        assert found is not None
        assert found.spec.description == "Add two numbers."
        assert found.spec.parameter_schema["required"] == ["a", "b"]
        assert found.annotations["mcp_server"] == "calculator"
        assert (await rig.call("add", a=19, b=23)).content == "42"
        assert "a: should be an integer" in (await rig.call("add", a="x", b=1)).text, "checked here"
        failed = await rig.call("fail")
        assert (failed.status, "it cannot be done" in failed.text or "fail" in failed.text) == (
            "failed",
            True,
        )
        assert (await rig.call("odd_name_here")).content == "odd"
        assert (await rig.call("work")).content == "worked"
        steps = [("step 0", 0.0), ("step 1", 1.0), ("step 2", 2.0)]
        assert [(text, data["progress"]) for text, data in rig.heard] == steps
        flood = await rig.call("flood", size=1_000_000)
        assert flood.artifact is not None and len(flood.text) < 110_000


@pytest.mark.spec("T-11")
async def test_servers_keep_the_promise_of_toolsets(url: str) -> None:
    await check_toolset(light, call=("plain", {}))
    await check_toolset(lambda: MCPServer.http(url), call=("add", {"a": 1, "b": 2}))


async def test_tools_that_come_later_are_seen_at_the_next_refresh() -> None:
    server = stdio()
    async with opened(server) as rig:
        version = server.version
        await rig.call("grow")
        for _ in range(500):
            if server.version > version:
                break
            await asyncio.sleep(0.01)
        await rig.registry.refresh()
        assert (await rig.call("grown")).content == "grown"


async def test_calls_run_beside_each_other_and_from_several_event_loops(
    make: Callable[..., MCPServer],
) -> None:
    async with opened(make()) as rig:
        here = [rig.call("add", a=number, b=1) for number in range(20)]
        there = [asyncio.to_thread(asyncio.run, rig.call("add", a=number, b=1)) for number in range(5)]
        answers = await asyncio.gather(*here, *there)
        assert [answer.content for answer in answers] == [str(n + 1) for n in [*range(20), *range(5)]]


async def test_a_server_over_http_that_dies_is_connected_to_again() -> None:
    with served() as (url, first):
        async with opened(MCPServer.http(url, name="web")) as rig:
            died = await rig.call("die")
            assert died.error_code == "ToolOutcomeUnknown"
            first.wait()
            gone = await rig.call("add", a=1, b=1)
            assert "MCP server 'web' could not be reached, in 3 tries" in gone.text
            with served(int(url.split(":")[2].split("/")[0])):
                both = await asyncio.gather(rig.call("add", a=1, b=1), rig.call("add", a=2, b=2))
                assert [answer.content for answer in both] == ["2", "4"]


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    left = tmp_path / "left"
    async with opened(stdio()) as rig:
        waiting = asyncio.create_task(rig.call("wait", path=str(left)))
        while not rig.executor.cancel("wait"):  # noqa: ASYNC110  (until it is under way)
            await asyncio.sleep(0.01)
        answer = await waiting
        assert answer.error_code == "ToolCancelled"
        assert (await rig.call("add", a=1, b=1)).content == "2", "the connection is as good as before"


async def test_a_server_sees_only_the_environment_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-servers")
    async with opened(stdio(env={"GIVEN": "yes"})) as rig:
        names = (await rig.call("environment")).text.split()
    assert "GIVEN" in names and "OPENAI_API_KEY" not in names


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (lambda: MCPServer.stdio("turnlog-no-such-command"), "could not be reached"),
        (lambda: MCPServer.stdio(sys.executable, "-c", "import sys; sys.exit('no licence')"), "no licence"),
        (lambda: MCPServer.http("http://127.0.0.1:9/mcp", name="nobody"), "'nobody' could not be reached"),
    ],
    ids=["no command", "it ends", "nobody listens"],
)
async def test_a_server_that_cannot_be_reached_says_so(server: Callable[[], MCPServer], words: str) -> None:
    registry = ToolRegistry([server()])
    with pytest.raises(AgentError) as caught:
        await registry.refresh()
    assert caught.value.code == "ToolExecutionError"
    assert words in caught.value.message
    await registry.close()


async def test_two_servers_with_the_same_tools_need_prefixes() -> None:
    with pytest.raises(AgentError, match="two tools are named 'plain': toolset 'one' and toolset 'two'"):
        async with opened(light(name="one"), light(name="two")):
            pass
    async with opened(light(prefix="a_"), light(prefix="b_", requires_approval=True)) as rig:
        assert (await rig.call("a_plain")).content == (await rig.call("b_plain")).content
        found = rig.registry.get("b_plain")
        assert found is not None and found.requires_approval
    server = light(allow=["plain", "plane"])
    async with opened(server) as rig:
        assert rig.registry.names == ["plain"]
        assert "has no tool plane, which allow names" in server.problems[0]


@pytest.mark.parametrize("restart", [False, True], ids=["same process", "another process"])
async def test_a_question_of_the_newer_protocol_is_answered_also_after_a_restart(
    tmp_path: Path, restart: bool
) -> None:
    store, call = f"sqlite:{tmp_path / 'log.db'}", Turn(tool_calls=[{"name": "book", "arguments": {}}])
    server = stdio(name="hotel")
    async with Agent(ScriptedModel([call, "Booked."]), tools=[server], store=store) as agent:
        assert (await agent.run("Book.", session="s")).status == "awaiting_human"
        session = agent.session("s")
        [question] = await session.questions()
        assert question.question == "hotel asks: For whom?"
        await session.answer(question, {"name": "Ada"}, by="ann")
        if restart:
            await server.close()  # its key for what it gave to the client is gone with its process
        result = await session.resume()
        assert result is not None and result.text == "Booked."
        entries = await session.entries()
        results = next(entry.payload for entry in entries if entry.kind == "tool_results")
        assert results.message.tool_results[0].payload.text == "booked for Ada"
        assert (await session.replay()).identical
