"""An agent as an MCP server: each conversation is a session in the log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mcp import Client
from mcp_rig import opened
from turnlog import Agent, open_store, tool
from turnlog.contract import AgentError
from turnlog.history import MemoryStore
from turnlog.mcp import MCPServer, make_server
from turnlog.testing import ScriptedModel, Turn

CALL = Turn(tool_calls=[{"name": "pay", "arguments": {"amount": 3}}])


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def serving(store: Any, *turns: Any) -> Agent[str]:
    return Agent(ScriptedModel(turns), name="clerk", tools=[pay], store=store)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_is_a_session_and_can_be_continued(mode: str) -> None:
    store = MemoryStore()
    async with serving(store, "Hello.", "Again.") as agent, Client(make_server(agent), mode=mode) as client:
        [told] = (await client.list_tools()).tools
        assert told.name == "clerk"
        first = await client.call_tool("clerk", {"input": "Hi."})
        content = first.structured_content or {}
        assert (content["answer"], content["status"]) == ("Hello.", "completed")
        again = await client.call_tool("clerk", {"input": "And?", "session": content["session"]})
        assert (again.structured_content or {})["answer"] == "Again."
        [info] = await store.sessions()
        assert info.session_id == content["session"]
        assert len(await agent.session(info.session_id).messages()) == 4


async def test_a_run_that_waits_for_a_person_is_continued_after_the_decision() -> None:
    async with serving(MemoryStore(), CALL, "Paid.") as agent, Client(make_server(agent)) as client:
        waits = (await client.call_tool("clerk", {"input": "Pay."})).structured_content or {}
        assert waits["status"] == "awaiting_human" and "approval of pay" in waits["answer"]
        [call] = await agent.pending()
        await agent.session(waits["session"]).approve(call, by="ann")
        done = await client.call_tool("clerk", {"input": "Go on.", "session": waits["session"]})
        assert (done.structured_content or {})["answer"] == "Paid."


async def test_what_goes_wrong_is_told_and_other_sessions_are_out_of_reach() -> None:
    store = MemoryStore()
    broken = AgentError("ModelAuthError", "no key")
    async with serving(store, "Secret.", broken) as agent, Client(make_server(agent)) as client:
        await agent.run("Hi.", session="private")
        for arguments, words in [
            ({"input": " "}, "give the question"),
            ({"input": "x", "session": "private"}, "there is no session 'private'"),
            ({"input": "x", "session": "mcp-none"}, "SessionNotFound"),
            ({"input": "x"}, "no key"),
        ]:
            result: Any = await client.call_tool("clerk", arguments)
            assert result.is_error and words in result.content[0].text


async def test_the_command_serves_an_agent_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(
        "from turnlog import Agent\nfrom turnlog.testing import ScriptedModel\n"
        f"agent = Agent(ScriptedModel(['Hello.']), name='clerk', store='sqlite:{tmp_path / 'log.db'}')\n"
    )
    server = MCPServer.stdio(
        sys.executable, "-m", "turnlog", "mcp", "--agent", str(tmp_path / "clerk.py"), name="clerk"
    )
    async with opened(server) as rig:
        answer = await rig.call("clerk", input="Hi.")
        assert "Hello." in answer.text
    store = open_store(f"sqlite:{tmp_path / 'log.db'}")
    [info] = await store.sessions()
    assert info.session_id.startswith("mcp-") and info.status == "completed"
    await store.close()
