"""A loop that is made of other parts than an agent would give it."""

from __future__ import annotations

import msgspec

from turnlog import Agent
from turnlog.assembly import Assembled, MessageAssembler
from turnlog.contract import RunInput, text_part, user_message
from turnlog.history import MemoryStore
from turnlog.loop import AgentLoop, LoopParts, replay_entries
from turnlog.models import ScriptedModel
from turnlog.tools import ToolExecutor, ToolRegistry


class Loud(MessageAssembler):
    """Takes every answer down in capitals."""

    def finish(self, timestamp: str = "") -> Assembled:
        done = super().finish(timestamp)
        message = msgspec.structs.replace(done.message, parts=[text_part(done.message.text.upper())])
        return done._replace(message=message)


async def test_an_assembler_can_be_handed_in() -> None:
    store, registry = MemoryStore(), ToolRegistry()
    parts = LoopParts(
        model=ScriptedModel(["Hello.", "And again."]),
        store=store,
        registry=registry,
        executor=ToolExecutor(registry),
        assembler=Loud,
    )
    run = RunInput(session_id="s1", run_id="r1", input_messages=[user_message("Hi")])
    result = await AgentLoop(parts).run_stream(run).result()
    assert result.text == "HELLO."
    entries = await store.load("s1")
    report = await replay_entries(list(entries), "s1")
    assert report.identical, "what it made is in the log, and a replay needs no assembler of that kind"
    async with Agent(ScriptedModel(["Fine."]), store=store) as agent:
        await agent.run("How are you?", session="s1")
        seen = (await agent.session("s1").explain()).messages
    assert any(message.text == "HELLO." for message in seen)
