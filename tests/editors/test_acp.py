"""`turnlog acp`, with the protocol's own client as the editor: a real process on its standard streams."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

acp = pytest.importorskip("acp", reason="needs the extra 'acp'")
from acp import schema  # noqa: E402

AGENT = """
import asyncio
from pathlib import Path
from turnlog import Agent, tool
from turnlog.testing import ScriptedModel, Turn


@tool
def look_up(order: str) -> str:
    "Find an order."
    return f"order {order} was paid"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    "Pay."
    with open("paid.txt", "a") as file:
        print(amount, file=file)
    return f"paid {amount}"


async def answer(request):
    last = request.messages[-1]
    said = next(m.text for m in reversed(request.messages) if m.role == "user")
    if last.role != "user":
        return f"Done: {said}"
    if "pay" in said:
        return Turn(tool_calls=[{"name": "pay", "arguments": {"amount": 5}}])
    if "order" in said:
        return Turn(tool_calls=[{"name": "look_up", "arguments": {"order": "42"}}])
    if "wait" in said:
        Path("waits").touch()
        await asyncio.Event().wait()
    if "fail" in said:
        return Turn(error={"code": "ModelRefused"})
    return f"You said: {said}"


agent = Agent(ScriptedModel(default=answer), tools=[look_up, pay], name="clerk", store="sqlite:log.db")
"""


class Editor:
    """What the client of an editor does: keeps what it is shown, and answers questions."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.asked: list[Any] = []
        self.answer: Any = schema.AllowedOutcome(outcome="selected", option_id="allow")

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        self.shown.append(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **more: Any) -> Any:
        self.asked.append(tool_call)
        return acp.RequestPermissionResponse(outcome=self.answer)

    def on_connect(self, conn: Any) -> None:
        pass

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.shown if update.session_update == kind)


@asynccontextmanager
async def connected(folder: Path) -> AsyncGenerator[tuple[Any, Editor, Any]]:
    (folder / "shop.py").write_text(AGENT)
    editor = Editor()
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    command = [sys.executable, "-m", "turnlog", "acp", "--agent", "shop.py:agent"]
    async with acp.spawn_agent_process(editor, *command, cwd=folder, env=env) as (conn, process):
        await conn.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield conn, editor, process


def prompt(text: str) -> list[Any]:
    return [acp.text_block(text)]


@pytest.mark.spec("X-6")
async def test_an_editor_prompts_sees_tools_and_approves(tmp_path: Path) -> None:
    async with connected(tmp_path) as (conn, editor, _):
        session = (await conn.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        done = await conn.prompt(session_id=session, prompt=prompt("Is the order paid?"))
        assert done.stop_reason == "end_turn" and editor.text() == "Done: Is the order paid?"
        calls = [update for update in editor.shown if update.session_update.startswith("tool_call")]
        assert [call.status for call in calls] == ["in_progress", "completed"]
        assert calls[1].content[0].content.text == "order 42 was paid"

        await conn.prompt(session_id=session, prompt=prompt("Please pay."))
        assert editor.asked[0].title == "pay" and editor.asked[0].raw_input == {"amount": 5}
        assert (tmp_path / "paid.txt").read_text() == "5\n"
        editor.answer = schema.AllowedOutcome(outcome="selected", option_id="reject")
        rejected = await conn.prompt(session_id=session, prompt=prompt("Please pay again."))
        assert rejected.stop_reason == "end_turn" and (tmp_path / "paid.txt").read_text() == "5\n"
        editor.answer = schema.DeniedOutcome(outcome="cancelled")
        left = await conn.prompt(session_id=session, prompt=prompt("Please pay once more."))
        assert left.stop_reason == "cancelled"

        with pytest.raises(acp.RequestError, match="ModelRefused"):
            await conn.prompt(session_id=session, prompt=prompt("fail"))
        with pytest.raises(acp.RequestError):
            await conn.prompt(session_id=session, prompt=prompt(" "))
        listed = await conn.list_sessions()
        assert [info.session_id for info in listed.sessions] == [session]


@pytest.mark.spec("X-6")
async def test_a_cancelled_prompt_stops_and_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path) as (conn, editor, process):
        session = (await conn.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await conn.prompt(session_id=session, prompt=prompt("hello"))
        waiting = asyncio.create_task(conn.prompt(session_id=session, prompt=prompt("wait")))
        for _ in range(1800):  # another process makes it
            if (tmp_path / "waits").exists():
                break
            await asyncio.sleep(0.05)
        await conn.cancel(session_id=session)
        assert (await waiting).stop_reason == "cancelled"
        process.kill()
        await process.wait()
    async with connected(tmp_path) as (conn, editor, _):
        await conn.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert editor.text("user_message_chunk") == "hellowait" and editor.text() == "You said: hello"
        await conn.prompt(session_id=session, prompt=prompt("again"))
        assert editor.text().endswith("You said: again")
        with pytest.raises(acp.RequestError, match="SessionNotFound"):
            await conn.load_session(cwd=str(tmp_path), session_id="nothing", mcp_servers=[])
