"""T-8. Tools of MCP servers, and an agent as one."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.desk import asks_for, call, results_in
from turnlog import Agent, open_store
from turnlog.mcp import MCPServer
from turnlog.testing import ScriptedModel

CLERK = """
from turnlog import Agent
from turnlog.testing import ScriptedModel
agent = Agent(ScriptedModel(["At your service."] * 9), name="clerk", store="sqlite:clerk.db")
"""


@contextlib.contextmanager
def served_over_http(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "turnlog", "mcp", "--agent", "clerk.py", "--http", str(port)]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.spec("T-8")
async def test_an_agent_is_a_server_and_servers_of_both_kinds_are_ordinary_tools(tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(CLERK)
    over_pipes = MCPServer.stdio(
        sys.executable, "-m", "turnlog", "mcp", "--agent", "clerk.py", cwd=str(tmp_path), prefix="a_"
    )
    with served_over_http(tmp_path) as url:
        over_http = MCPServer.http(url, prefix="b_", requires_approval=True)
        calls = [call("a_clerk", input="Hello?"), call("b_clerk", input="Anybody?"), call("a_clerk")]
        model = ScriptedModel([asks_for(*calls), "Two clerks answered."])
        agent = Agent(model, tools=[over_pipes, over_http], store="memory:")
        assert (await agent.run("Ask the clerks.", session="s")).status == "awaiting_human"
        [asked] = await agent.pending()
        assert asked.tool_name == "b_clerk"
        await agent.session("s").approve(asked, by="ann")
        result = await agent.resume("s")
        assert result is not None and result.text == "Two clerks answered."
        contents = [str(content) for _, content in results_in(model.requests[-1].messages)]
        assert sum("At your service." in content for content in contents) == 2
        assert any("input" in content and "At your service" not in content for content in contents)
        assert (await agent.session("s").replay()).identical
        await agent.close()
    store = open_store(f"sqlite:{tmp_path / 'clerk.db'}")
    sessions = await store.sessions()
    assert [info.status for info in sessions] == ["completed", "completed"]
    await store.close()
