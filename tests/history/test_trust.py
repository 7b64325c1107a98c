"""What an imported log brings with it: its words, and neither a run nor a decision unless it is trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, tool
from turnlog.contract import AgentError, Store
from turnlog.history import AgentState, MemoryStore, export_jsonl, import_jsonl, open_store, verify
from turnlog.loop import fork_session
from turnlog.testing import ScriptedModel, Turn

PAID: list[int] = []


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return "paid"


@tool
def long(size: int) -> str:
    """A long output."""
    return "word " * size


def _agent(store: Store, *turns: Any) -> Agent:
    return Agent(ScriptedModel(list(turns)), tools=[pay, long], store=store)


def _calls(name: str, **arguments: object) -> Turn:
    return Turn(tool_calls=[{"name": name, "arguments": arguments}])


async def _decided() -> bytes:
    """The export of a log with a call that was approved and has not run."""
    store = MemoryStore()
    agent = _agent(store, _calls("pay", amount=5))
    await agent.run("Pay.", session="s1")
    (call,) = await agent.pending("s1")
    await agent.decide("s1", call.tool_call_id, "approve", by="a stranger")
    return await export_jsonl(store, "s1")


@pytest.mark.spec("A-5")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_an_imported_log_brings_no_approval_and_no_open_run(url: str, tmp_path: Path) -> None:
    PAID.clear()
    store = open_store(url.format(tmp_path))
    data = await _decided()
    assert await import_jsonl(store, data) == "s1"
    assert await import_jsonl(store, data) == "s1"  # again: nothing is added
    entries = await store.load("s1")
    state = AgentState.from_entries(entries)
    assert (state.status, state.current_run_id, state.pending_tool_calls) == ("aborted", None, [])
    assert [entry.kind for entry in entries][-2:] == ["tool_results", "run_ended"]
    assert all(entry.meta == {"imported": True} for entry in entries[-2:])
    assert await verify(store, "s1") == []
    assert await store.pending() == []
    agent = _agent(store, "Hello.")
    assert (await agent.run("Hi.", session="s1")).status == "completed"
    assert PAID == []
    await agent.close()
    await store.close()


async def test_a_trusted_import_goes_on_where_it_was() -> None:
    PAID.clear()
    store = MemoryStore()
    await import_jsonl(store, await _decided(), trust=True)
    await _agent(store, "Paid.").resume("s1")
    assert PAID == [5]


@pytest.mark.parametrize("trust", [True, False])
async def test_importing_a_fork_makes_no_parent_that_can_be_resumed(trust: bool) -> None:
    PAID.clear()
    one, two = MemoryStore(), MemoryStore()
    agent = _agent(one, _calls("pay", amount=5))
    await agent.run("Pay.", session="parent")
    await fork_session(one, "parent", target="fork")
    await import_jsonl(two, await export_jsonl(one, "fork"), trust=trust)
    state = AgentState.from_entries(await two.load("parent"))
    assert (state.current_run_id, state.pending_tool_calls) == (None, [])
    assert await verify(two, "parent") == [] == await verify(two, "fork")
    (call,) = await agent.pending("parent")
    await agent.decide("parent", call.tool_call_id, "deny", by="ann")
    with pytest.raises(AgentError, match="import a session before its forks"):
        await import_jsonl(two, await export_jsonl(one, "parent"))


async def _with_artifact(store: Store, session: str) -> str:
    agent = _agent(store, _calls("long", size=30_000), "Long.")
    await agent.run("Show.", session=session)
    entries = await store.load(session)
    (name,) = (
        outcome.artifact
        for entry in entries
        if entry.kind == "tool_results"
        for outcome in entry.payload.outcomes
        if outcome.artifact
    )
    return name


async def test_an_export_takes_artifacts_along_and_verify_misses_one() -> None:
    one, two = MemoryStore(), MemoryStore()
    name = await _with_artifact(one, "s1")
    await import_jsonl(two, await export_jsonl(one, "s1"))
    assert await two.get_blob(name) == await one.get_blob(name)
    assert await verify(two, "s1") == []
    del two._blobs[name]
    (problem,) = await verify(two, "s1")
    assert (problem.code, name in problem.message) == ("blob", True)


async def test_an_artifact_belongs_to_the_sessions_that_name_it() -> None:
    store = MemoryStore()
    name = await _with_artifact(store, "a")
    other = _agent(store, _calls("read_artifact", artifact=name), "?", _calls("long", size=30_001), "?")
    await other.run("Read.", session="b")
    assert "word word" not in str([entry.payload for entry in await store.load("b")])


async def test_a_redaction_reaches_the_artifact() -> None:
    from turnlog.loop import redact_entries

    store = MemoryStore()
    name = await _with_artifact(store, "a")
    (result,) = (entry for entry in await store.load("a") if entry.kind == "tool_results")
    await redact_entries(store, "a", [result.id], by="ann")
    before = len(await store.load("a"))
    await _agent(store, _calls("read_artifact", artifact=name), "?").run("Read.", session="a")
    assert "word word" not in str([entry.payload for entry in (await store.load("a"))[before:]])
