"""One session, driven by one process after the other."""

from __future__ import annotations

import asyncio

from turnlog import Agent, open_session, tool
from turnlog.history import MemoryStore
from turnlog.models import ScriptedModel
from turnlog.models.scripted import ScriptedCall, Turn


async def test_a_message_that_another_driver_took_in_is_not_taken_in_again() -> None:
    store = MemoryStore()
    senders: list[asyncio.Task[None]] = []

    @tool
    async def wait() -> str:
        """Wait until a message from elsewhere is queued here."""
        senders.append(asyncio.create_task(open_session(store, "s1").send("And hurry.")))
        while not here.loop.sessions.runs["s1"].steering.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return "waited"

    @tool(requires_approval=True)
    async def erase() -> str:
        """Erase it."""
        return "erased"

    calls = Turn(tool_calls=[ScriptedCall(name="wait"), ScriptedCall(name="erase")])
    here = Agent(ScriptedModel([calls, "Later."]), tools=[wait, erase], store=store)
    there = Agent(ScriptedModel(["Done."]), tools=[wait, erase], store=store)
    first = await here.run("Erase it.", session="s1")
    assert first.status == "awaiting_human"
    (asked,) = await there.session("s1").pending()
    await there.session("s1").approve(asked.tool_call_id, by="ann")
    await there.session("s1").resume()
    await senders[0]
    await here.run("What was that?", session="s1")
    said = [m.text for m in await here.session("s1").messages() if m.role == "user"]
    assert said == ["Erase it.", "And hurry.", "What was that?"]
