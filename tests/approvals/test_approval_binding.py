"""What runs is what was approved, once, where it was approved."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loop.scenarios import SESSION, MortalStore, Stage, call, decide
from turnlog.approvals import approval_digest
from turnlog.contract import AgentError, Entry, ToolPolicy
from turnlog.history import SessionState, fork, open_store, verify
from turnlog.loop import fork_session, replay
from turnlog.testing import Turn

CHANGED = {"to": "bob", "text": "good evening"}


async def last(stage: Stage, kind: str, session: str = SESSION) -> Any:
    return [entry.payload for entry in await stage.store.load(session) if entry.kind == kind][-1]


async def crash_once_it_ran(stage: Stage, agent: Any) -> None:
    assert isinstance(stage.store, MortalStore)
    async for event in agent.resume_stream(SESSION):
        if event.kind == "tool_started":
            stage.store.dead = True
    stage.store.dead = False


async def check(stage: Stage, session: str = SESSION) -> None:
    assert await verify(stage.store, session) == []
    report = await replay(stage.store, session)
    assert report.identical, report.difference


@pytest.mark.spec("A-1", "A-3", "T-3")
async def test_changed_arguments_stay_changed_when_it_is_asked_again() -> None:
    """A human changed the arguments; the process died while the call ran. What is put to a human again, and
    what runs then, is what he had made of it and not what the model had wanted."""
    stage = Stage()
    policy = ToolPolicy(outcome_unknown="human")
    turns = [Turn(tool_calls=[call("send", to="everyone", text="hello")])]
    agent = stage.agent(turns, tool_policy=policy)
    await agent.run("Greet.", session=SESSION)
    await decide(agent, "modify", arguments=CHANGED)
    await crash_once_it_ran(stage, agent)
    assert stage.effects == ["send bob: good evening"]
    second = stage.agent(["Done."], tool_policy=policy)
    waiting = await second.resume(SESSION)
    assert waiting is not None and waiting.status == "awaiting_human"
    asked = await last(stage, "approval_requested")
    assert asked.arguments == CHANGED
    call_id = asked.tool_call_id
    assert asked.definition is not None
    assert asked.digest == approval_digest(SESSION, call_id, "send", CHANGED, None, asked.definition)
    await decide(second, "approve")
    result = await second.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert stage.effects == ["send bob: good evening"] * 2
    started = await last(stage, "tool_started")
    assert started.arguments == CHANGED and started.attempt == 2
    await check(stage)


@pytest.mark.spec("A-3", "H-7")
async def test_an_approval_is_used_once_though_the_session_is_forked() -> None:
    """Approved, and forked before it ran: the parent runs it, the fork has to ask anew."""
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    await agent.run("Greet Bob.", session=SESSION)
    await decide(agent, "approve")
    await fork(stage.store, SESSION, target="branch", clock=stage.clock, ids=stage.ids)
    await agent.resume(SESSION)
    assert stage.effects == ["send bob: hello"]
    other = stage.agent(["Again, then."])
    result = await other.resume("branch")
    assert stage.effects == ["send bob: hello"]
    assert result is not None and result.status == "awaiting_human"
    asked = await last(stage, "approval_requested", "branch")
    assert asked.digest == approval_digest(
        "branch", asked.tool_call_id, "send", {"to": "bob", "text": "hello"}, None, asked.definition
    )
    await other.decide("branch", asked.tool_call_id, "approve", by="dora")
    result = await other.resume("branch")
    assert result is not None and result.status == "completed"
    assert stage.effects == ["send bob: hello"] * 2
    await check(stage)
    await check(stage, "branch")


@pytest.mark.spec("A-3", "H-7")
async def test_a_question_that_a_fork_took_along_is_decided_there() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    await agent.run("Greet Bob.", session=SESSION)
    asked = await last(stage, "approval_requested")
    await fork(stage.store, SESSION, target="branch", clock=stage.clock, ids=stage.ids)
    other = stage.agent(["Sent."])
    await other.decide("branch", asked.tool_call_id, "approve", by="dora")
    result = await other.resume("branch")
    assert result is not None and result.status == "completed"
    assert stage.effects == ["send bob: hello"]
    state = SessionState.of(await stage.store.load(SESSION))
    assert [each.call.tool_call_id for each in state.awaiting] == [asked.tool_call_id]


@pytest.mark.spec("A-2", "H-7")
async def test_a_fork_that_can_be_run_waits_for_nobody() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    await agent.run("Greet Bob.", session=SESSION)
    asked = await last(stage, "approval_requested")
    name = await fork_session(stage.store, SESSION, clock=stage.clock, ids=stage.ids)
    with pytest.raises(AgentError, match="does not wait"):
        await agent.decide(name, asked.tool_call_id, "approve", by="dora")
    assert (await stage.agent(["Fine."]).run("Never mind.", session=name)).status == "completed"
    assert stage.effects == []


@pytest.mark.spec("A-3")
async def test_a_decision_counts_once_whoever_gives_it() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    await agent.run("Greet Bob.", session=SESSION)
    asked = await last(stage, "approval_requested")
    given = await asyncio.gather(
        *(agent.decide(SESSION, asked.tool_call_id, "approve", by=f"h{n}") for n in range(4)),
        return_exceptions=True,
    )
    assert sum(not isinstance(each, AgentError) for each in given) == 1
    await agent.resume(SESSION)
    with pytest.raises(AgentError, match="does not wait"):
        await agent.decide(SESSION, asked.tool_call_id, "approve", by="late")
    assert stage.effects == ["send bob: hello"]


@pytest.mark.spec("A-3")
async def test_a_request_whose_arguments_were_changed_in_the_log_is_not_decided_on() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    await agent.run("Greet Bob.", session=SESSION)
    entries = await stage.store.load(SESSION)
    asked = [entry for entry in entries if entry.kind == "approval_requested"][-1]
    forged = _with_arguments(asked, {"to": "mallory", "text": "hello"})

    class Forging(MortalStore):
        async def load(self, session_id: str, *, after: int = 0) -> list[Entry]:
            return [forged if entry.seq == forged.seq else entry for entry in entries][after:]

    with pytest.raises(AgentError, match="digest"):
        await (
            Stage(store=Forging())
            .agent([])
            .decide(SESSION, asked.payload.tool_call_id, "approve", by="carol")
        )


def _with_arguments(entry: Any, arguments: dict[str, Any]) -> Any:
    return msgspec.structs.replace(entry, payload=msgspec.structs.replace(entry.payload, arguments=arguments))


@pytest.mark.spec("A-3")
@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("deny", b'"action":"deny"', b'"action":"approve"'),
        ("approve", b'"decidedBy":"carol"', b'"decidedBy":"admin"'),
    ],
)
async def test_what_was_changed_in_the_store_after_a_decision_lets_nothing_run(
    action: str, before: bytes, after: bytes, tmp_path: Path
) -> None:
    stage = Stage(store=open_store(f"sqlite:{tmp_path}/log.db"))
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")])])
    await agent.run("Greet Bob.", session=SESSION)
    await decide(agent, action)
    await stage.store.close()
    with sqlite3.connect(tmp_path / "log.db") as file:
        changed = 0
        for place, body in file.execute("SELECT place, body FROM entries").fetchall():
            if b"approval_" in body and before in body:
                file.execute(
                    "UPDATE entries SET body = ? WHERE place = ?", (body.replace(before, after), place)
                )
                changed += 1
    file.close()
    assert changed == 1
    stage.store = open_store(f"sqlite:{tmp_path}/log.db")
    result = await stage.agent(["Fine."]).resume(SESSION, check=False)
    await stage.store.close()
    assert stage.effects == []
    assert result is not None and result.last_error is not None
    assert result.last_error.code == "SessionCorrupt"
    assert "was changed" in result.last_error.message
