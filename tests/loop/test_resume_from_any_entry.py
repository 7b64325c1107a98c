"""A log may stop after any entry. Whatever it stops at, a run goes on from there, and nothing is amiss."""

from __future__ import annotations

from collections import Counter

import pytest

from loop.log_prefixes import agent_on, batch_ends, stop_after, trace_of
from loop.scenarios import TRACES, Stage
from turnlog import Agent
from turnlog.contract import AgentError, Entry
from turnlog.history import SessionState, verify
from turnlog.loop import replay

CUTS = [(name, cut) for name in TRACES for cut in range(1, len(trace_of(name)) + 1)]
RERUNNABLE = {"look"}


@pytest.mark.spec("H-10", "H-11", "T-3")
@pytest.mark.parametrize(("trace", "cut"), CUTS)
async def test_a_run_goes_on_from_any_entry(trace: str, cut: int) -> None:
    before = trace_of(trace)[:cut]
    session = before[-1].session_id
    whole_batch = cut in await batch_ends(trace)
    asks = any(entry.kind == "approval_requested" for entry in trace_of(trace))
    for action in ("approve", "deny") if asks else ("approve",):
        stage = await stop_after(before, session)
        await settle(stage, session, agent_on(stage, trace, before), action)
        entries = await check_log(stage, session, before, whole_batch)
        check_started_once(entries)
        check_same_context(before, entries)


@pytest.mark.spec("H-10", "H-11", "T-9")
@pytest.mark.parametrize("trace", list(TRACES))
async def test_an_agent_with_other_tools_goes_on(trace: str) -> None:
    for cut in sorted(await batch_ends(trace)):
        before = trace_of(trace)[:cut]
        session = before[-1].session_id
        stage = await stop_after(before, session)
        await settle(stage, session, agent_on(stage, trace, before, other_tools=True), "approve")
        check_started_once(await check_log(stage, session, before))


@pytest.mark.spec("H-10", "H-11")
@pytest.mark.parametrize("trace", list(TRACES))
async def test_a_new_run_starts_where_another_was_left(trace: str) -> None:
    for cut in sorted(await batch_ends(trace)):
        before = trace_of(trace)[:cut]
        session = before[-1].session_id
        stage = await stop_after(before, session)
        agent = agent_on(stage, trace, before)
        if SessionState.of(before).status == "awaiting_human":  # refused until somebody has decided
            for call in SessionState.of(before).awaiting:
                await agent.decide(session, call.call.tool_call_id, "deny", by="carol")
        elif SessionState.of(before).status == "preparing":  # submitted, and never driven
            with pytest.raises(AgentError, match="nobody has driven it yet"):
                await agent.run("And now?", session=session)
            continue
        elif any(call.is_due for call in SessionState.of(before).open_calls):  # what was allowed comes first
            with pytest.raises(AgentError, match="resume it first"):
                await agent.run("And now?", session=session)
            continue
        result = await agent.run("And now?", session=session)
        assert result.status == "completed", result.last_error
        assert stage.effects == []
        await check_log(stage, session, before)


async def settle(stage: Stage, session: str, agent: Agent, action: str) -> None:
    """Resume, and decide what is asked, until the run is over."""
    for _ in range(20):
        result = await agent.resume(session, check=False)
        if result is None or result.status != "awaiting_human":
            return
        for call in SessionState.of(await stage.store.load(session)).awaiting:
            await agent.decide(session, call.call.tool_call_id, action, by="carol")
    raise AssertionError("the run never ends")


async def check_log(stage: Stage, session: str, before: list[Entry], whole_batch: bool = True) -> list[Entry]:
    entries = await stage.store.load(session)
    assert entries[: len(before)] == before
    assert await verify(stage.store, session) == []
    state = SessionState.of(entries)
    assert not state.is_open and not state.open_calls
    report = await replay(stage.store, session)
    if whole_batch:  # half a batch is in no store: what follows it, no run would have written
        assert report.identical, f"entry {report.seq} ({report.kind}): {report.difference}"
        assert report.entries == len(entries) and not report.open_run
    return entries


def check_started_once(entries: list[Entry]) -> None:
    """What had started before the crash is started again only where that is harmless."""
    started = Counter(
        (entry.payload.tool_name, entry.payload.tool_call_id)
        for entry in entries
        if entry.kind == "tool_started"
    )
    assert {name for (name, _), times in started.items() if times > 1} <= RERUNNABLE


def check_same_context(before: list[Entry], entries: list[Entry]) -> None:
    """A model call that was cut off is made again with the same context."""
    cut_off = before[-1]
    if cut_off.kind != "model_call_started":
        return
    again = next(entry for entry in entries[len(before) :] if entry.kind == "model_call_started")
    assert again.payload.context_hash == cut_off.payload.context_hash
    assert again.payload.model_call_index == cut_off.payload.model_call_index
    assert again.payload.attempt == cut_off.payload.attempt + 1
