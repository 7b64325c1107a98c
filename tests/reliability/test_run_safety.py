"""What a run does when something comes between: a crash after an approval, a full disk, a second caller."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from loop.scenarios import SESSION, MortalStore, Stage, call, decide
from turnlog import tool
from turnlog.contract import AgentError, ToolPolicy
from turnlog.history import verify
from turnlog.loop import fork_session, replay
from turnlog.testing import FaultStore, StoreFault, Turn, slow_append
from turnlog.tools import NOT_RUN


async def crash_after_start(stage: Stage, agent: Any) -> None:
    """Resume, and die once the tool's body has run: its result never reaches the log."""
    assert isinstance(stage.store, MortalStore)
    async with aclosing(agent.resume_stream(SESSION)) as events:
        async for event in events:
            if event.kind == "tool_started":
                stage.store.dead = True
    stage.store.dead = False


async def outcomes(stage: Stage) -> list[str]:
    return [
        outcome.status
        for entry in await stage.store.load(SESSION)
        if entry.kind == "tool_results"
        for outcome in entry.payload.outcomes
    ]


@pytest.mark.spec("T-3", "A-3", "H-10")
@pytest.mark.parametrize("action", ["approve", "modify"])
async def test_an_approved_call_that_may_have_run_is_not_run_again(action: str) -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")])])
    await agent.run("Greet Bob.", session=SESSION)
    more = {"arguments": {"to": "bob", "text": "hello"}} if action == "modify" else {}
    await decide(agent, action, **more)
    await crash_after_start(stage, agent)
    assert stage.effects == ["send bob: hello"]
    result = await stage.agent(["I cannot tell."]).resume(SESSION)
    assert result is not None and result.status == "completed"
    assert stage.effects == ["send bob: hello"]
    assert await outcomes(stage) == ["unknown"]
    assert await verify(stage.store, SESSION) == []
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("T-3", "A-4")
async def test_refusing_to_run_a_call_again_does_not_say_that_it_never_ran() -> None:
    stage = Stage()
    policy = ToolPolicy(outcome_unknown="human", max_calls_per_run=1)
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)])], tool_policy=policy)
    assert isinstance(stage.store, MortalStore)
    async for event in agent.run_stream("Add.", session=SESSION):
        if event.kind == "tool_started":
            stage.store.dead = True
    stage.store.dead = False
    second = stage.agent(["I cannot tell."])
    result = await second.resume(SESSION)
    assert result is not None and result.status == "awaiting_human"
    await decide(second, "deny")
    await second.resume(SESSION)
    assert stage.effects == ["add 1 2"]
    assert await outcomes(stage) == ["unknown"]
    shown = next(e for e in await stage.store.load(SESSION) if e.kind == "tool_results")
    assert "carol did not let it run again" in shown.payload.message.tool_results[0].payload.content
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1", "A-2")
async def test_a_decision_to_abort_from_another_process_runs_nothing() -> None:
    stage = Stage()
    turn = Turn(tool_calls=[call("send", to="bob", text="hello"), call("send", to="ann", text="hi")])
    agent = stage.agent([turn, "never asked"])
    await agent.run("Greet Bob and Ann.", session=SESSION)
    asked = [
        e.payload.tool_call_id for e in await stage.store.load(SESSION) if e.kind == "approval_requested"
    ]
    await agent.decide(SESSION, asked[0], "approve", by="carol")
    await agent.decide(SESSION, asked[1], "abort", by="carol")
    result = await stage.agent(["never asked"]).resume(SESSION, check=False)
    assert result is not None and result.status == "aborted"
    assert stage.effects == []
    assert await outcomes(stage) == ["skipped", "skipped"]
    assert await verify(stage.store, SESSION) == []
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("T-4", "L-8")
async def test_an_output_the_store_cannot_keep_is_told_and_does_not_hang_the_run() -> None:
    stage = Stage()

    @tool(timeout=None)
    async def fetch() -> str:
        """Fetch a long text."""
        stage.effects.append("fetch")
        return "".join(f"line {n}\n" for n in range(20_000))

    full = AgentError("SessionWriteFailed", "the disk is full")
    inner, stage.store = (
        stage.store,
        FaultStore(stage.store, [StoreFault(nth=1, method="put_blob", error=full)]),
    )
    agent = stage.agent([Turn(tool_calls=[call("fetch")]), "Too long."], tools=[fetch])
    result = await agent.run("Fetch.", session=SESSION)
    assert result.status == "completed" and stage.effects == ["fetch"]
    shown = next(e for e in await inner.load(SESSION) if e.kind == "tool_results")
    text = shown.payload.message.tool_results[0].payload.content
    assert "line 1\n" in text and "the disk is full" in text and "read_artifact" not in text
    assert shown.payload.outcomes[0].artifact is None
    assert (await replay(inner, SESSION)).identical


@pytest.mark.spec("H-4", "H-10")
async def test_resuming_what_runs_here_is_refused_and_disturbs_nothing() -> None:
    """Also while the run is between writes, and while its own reads are on their way."""
    stage = Stage()
    inner = stage.store
    slow = [StoreFault(nth=n, method="load", when="after", delay=0.5) for n in range(1, 60)]
    slow += [slow_append(n, 0.2) for n in range(1, 60)]
    stage.store = FaultStore(inner, slow, clock=stage.clock)
    calls = [call("add", a=1, b=2), call("add", a=3, b=4)]
    agent = stage.agent([Turn(tool_calls=calls), Turn(tool_calls=calls), "Done."])
    await stage.agent(["Earlier."]).run("Before.", session=SESSION)
    run = asyncio.create_task(agent.run("Add.", session=SESSION))
    refused: set[str] = set()
    while not run.done():
        try:
            await asyncio.gather(agent.resume(SESSION), agent.resume(SESSION))
        except AgentError as error:
            refused.add(error.code)
        await asyncio.sleep(0)
    assert run.result().status == "completed"
    assert refused == {"SessionBusy"}
    assert len(stage.effects) == 4
    assert await verify(inner, SESSION) == []
    assert (await replay(inner, SESSION)).identical


@pytest.mark.spec("A-2", "H-4")
async def test_a_decision_waits_until_the_calls_beside_it_are_done() -> None:
    """A decision written while another call of the message runs would cost that one its result."""
    stage = Stage()
    gate = asyncio.Event()

    @tool(timeout=None, concurrent=True)
    async def slow() -> str:
        """Take long."""
        await gate.wait()
        return "done"

    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="bob", text="x"), call("slow")]), "Both."],
        tools=[slow, *stage.tools()],
        tool_policy=ToolPolicy(max_parallel=2),
    )
    started = asyncio.Event()

    async def run() -> str:
        async for event in agent.run_stream("Go.", session=SESSION):
            if event.kind == "tool_started":
                started.set()
        return event.result.status

    going = asyncio.create_task(run())
    await started.wait()
    with pytest.raises(AgentError, match="have no result yet") as busy:
        await decide(agent, "approve")
    assert busy.value.code == "SessionBusy" and busy.value.retryable
    gate.set()
    assert await going == "awaiting_human"
    await decide(agent, "approve")
    result = await agent.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert await outcomes(stage) == ["success", "success"]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-2", "H-4")
async def test_a_decision_waits_for_an_approved_call_that_runs() -> None:
    stage = Stage()
    gate, started = asyncio.Event(), asyncio.Event()

    @tool(timeout=None, requires_approval=True)
    async def slow() -> str:
        """Take long."""
        started.set()
        await gate.wait()
        return "done"

    turn = Turn(tool_calls=[call("slow"), call("send", to="bob", text="x")])
    agent = stage.agent([turn, "Both."], tools=[slow, *stage.tools()])
    await agent.run("Go.", session=SESSION)
    asked = [
        e.payload.tool_call_id for e in await stage.store.load(SESSION) if e.kind == "approval_requested"
    ]
    await agent.decide(SESSION, asked[0], "approve", by="carol")
    going = asyncio.create_task(agent.resume(SESSION))
    await started.wait()
    with pytest.raises(AgentError) as busy:
        await agent.decide(SESSION, asked[1], "approve", by="carol")
    assert busy.value.code == "SessionBusy"
    gate.set()
    result = await going
    assert result is not None and result.status == "awaiting_human"
    await agent.decide(SESSION, asked[1], "approve", by="carol")
    result = await agent.resume(SESSION)
    assert result is not None and result.status == "completed"
    assert await outcomes(stage) == ["success", "success"]


@pytest.mark.spec("L-7", "T-3")
async def test_an_abort_reaches_a_tool_that_is_asked_what_became_of_a_call() -> None:
    stage = Stage()
    asking = asyncio.Event()

    async def look_up(ctx: Any, arguments: Any) -> object:
        asking.set()
        await asyncio.Event().wait()
        return NOT_RUN

    @tool(timeout=None, reconcile=look_up)
    async def pay(amount: int) -> str:
        """Pay."""
        stage.effects.append(f"pay {amount}")
        return "paid"

    first = stage.agent([Turn(tool_calls=[call("pay", amount=5)])], tools=[pay])
    assert isinstance(stage.store, MortalStore)
    async for event in first.run_stream("Pay.", session=SESSION, run_id="r1"):
        if event.kind == "tool_started":
            stage.store.dead = True
    stage.store.dead = False
    second = stage.agent(["never asked"], tools=[pay])
    going = asyncio.create_task(second.resume(SESSION, check=False))
    await asking.wait()
    assert await second.abort("r1", "enough")
    result = await going
    assert result is not None and result.status == "aborted"
    assert stage.effects == ["pay 5"]
    assert await outcomes(stage) == ["skipped"]


@pytest.mark.spec("H-7", "T-3")
async def test_a_fork_inside_a_run_is_one_write_so_that_no_call_is_open_in_two_sessions() -> None:
    """A crash between branching off and ending the run there would leave two runs that own the same call."""
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)]), "Three."])
    await agent.run("Add.", session=SESSION)
    at = next(e.seq for e in await stage.store.load(SESSION) if e.kind == "model_output")
    watched = FaultStore(stage.store)
    await fork_session(watched, SESSION, at=at, target="s2", clock=stage.clock, ids=stage.ids)
    assert [method for method, _ in watched.calls if method != "load"] == ["fork"]
    assert await stage.agent(["never asked"]).resume("s2") is None
    assert stage.effects == ["add 1 2"]
    assert await verify(stage.store, "s2") == []
    assert (await replay(stage.store, "s2")).identical
