"""Agents that are tools of other agents."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from loop.scenarios import MortalStore
from turnlog import Agent, Limits, ToolContext, ToolResult, tool
from turnlog.contract import AgentError, SessionHeader, TokenUsage
from turnlog.history import MemoryStore
from turnlog.loop import open_session, pending_answers
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn
from turnlog.widgets import MemoryNotebookWidget


@dataclass
class Fact:
    what: str


def ask(*inputs: str) -> Turn:
    return Turn(tool_calls=[{"name": "researcher", "arguments": {"input": text}} for text in inputs])


def researcher(model: ScriptedModel, **options: Any) -> Any:
    agent = Agent(model, name="researcher", store="memory:", **options)
    return agent.as_tool("Finds facts about a topic.")


async def children_of(agent: Agent[Any], session: str) -> list[str]:
    return [info.session_id for info in await agent.store.sessions(metadata={"parent_session": session})]


async def check_replay(agent: Agent[Any], *sessions: str) -> None:
    for session in sessions:
        report = await agent.session(session).replay()
        assert report.identical, report.difference


@pytest.mark.spec("L-11")
async def test_a_call_is_a_run_in_a_session_linked_to_its_parent() -> None:
    child = ScriptedModel(["Bees dance."])
    agent = Agent(ScriptedModel([ask("Bees?"), "They dance."]), tools=[researcher(child)], store="memory:")
    result = await agent.run("Tell me of bees.", session="s")
    assert result.text == "They dance."
    assert child.requests[0].messages[0].text == "Bees?"
    (name,) = await children_of(agent, "s")
    header = (await agent.store.load(name))[0].payload
    assert isinstance(header, SessionHeader) and header.parent_session_id == "s"
    (call,) = [e.payload for e in await agent.store.load("s") if e.kind == "tool_started"]
    assert header.parent_tool_call_id == call.tool_call_id
    assert header.metadata == {"parent_session": "s", "parent_call": call.tool_call_id}
    assert call.child_session_id == name
    await check_replay(agent, "s", name)


@pytest.mark.spec("L-11")
async def test_what_a_child_uses_counts_for_its_parent() -> None:
    used = TokenUsage(input_tokens=1000, output_tokens=100, total_tokens=1100, cost=0.5)
    child = ScriptedModel([Turn(text="Facts.", usage=used)])
    agent = Agent(ScriptedModel([ask("x"), "Done."]), tools=[researcher(child)], store="memory:")
    result = await agent.run("Go.", session="s")
    assert result.usage is not None and result.usage.total_tokens > 1100 and result.usage.cost == 0.5


@pytest.mark.spec("L-11")
async def test_the_budget_of_the_parent_reaches_down() -> None:
    child = ScriptedModel(default=ask("deeper"))
    grandchild = researcher(ScriptedModel(default="Deep."))
    middle = Agent(child, name="researcher", tools=[grandchild], store="memory:")
    agent = Agent(
        ScriptedModel([ask("x"), "Done."]),
        tools=[middle.as_tool("Finds facts.")],
        store="memory:",
        limits=Limits(max_tokens=2000),
    )
    result = await agent.run("Go.", session="s", check=False)
    assert result.last_error is not None and result.last_error.code == "RunTokenLimit"
    (name,) = await children_of(agent, "s")
    state = await agent.session(name).state()
    assert state.last_error is not None and state.last_error.code == "RunTokenLimit"
    assert child.calls < 10
    await check_replay(agent, "s", name)


@pytest.mark.spec("L-11")
async def test_an_abort_of_the_parent_ends_its_children() -> None:
    began = asyncio.Event()

    async def wait(request: ModelRequest) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    agent = Agent(ScriptedModel([ask("x")]), tools=[researcher(ScriptedModel(default=wait))], store="memory:")
    run = await agent.start("Go.", session="s")
    await began.wait()
    await run.abort("enough")
    assert (await run.result(check=False)).status == "aborted"
    (name,) = await children_of(agent, "s")
    assert (await agent.session(name).state()).status == "aborted"
    await check_replay(agent, "s", name)


@pytest.mark.spec("L-11")
async def test_children_of_one_answer_run_beside_each_other() -> None:
    together = asyncio.Barrier(3)

    async def meet(request: ModelRequest) -> str:
        async with asyncio.timeout(120):
            await together.wait()
        return f"About {request.messages[0].text}."

    agent = Agent(
        ScriptedModel([ask("a", "b", "c"), "Done."]),
        tools=[researcher(ScriptedModel(default=meet))],
        store="memory:",
    )
    assert (await agent.run("Go.", session="s")).text == "Done."
    names = await children_of(agent, "s")
    assert len(names) == 3
    await check_replay(agent, "s", *names)


@pytest.mark.spec("L-11", "H-10")
@pytest.mark.parametrize("when", ["in the child", "after the child"])
async def test_a_crash_resumes_the_tree_and_runs_no_finished_child_again(when: str) -> None:
    store = MortalStore()

    def die_in_child(request: ModelRequest) -> str:
        store.dead = when == "in the child"
        return "Facts."

    original = store.append

    async def append(session_id: str, batch: Any, **more: Any) -> None:
        await original(session_id, batch, **more)
        if when == "after the child" and session_id != "s" and batch[-1].kind == "run_ended":
            store.dead = True

    store.append = append  # type: ignore[method-assign]  # pyright: ignore
    first = Agent(
        ScriptedModel([ask("x")]), tools=[researcher(ScriptedModel(default=die_in_child))], store=store
    )
    with pytest.raises(AgentError):
        await first.run("Go.", session="s")
    store.append, store.dead = original, False  # type: ignore[method-assign]  # pyright: ignore
    child = ScriptedModel(default="Facts again.")
    agent = Agent(ScriptedModel(["Done."]), tools=[researcher(child)], store=store)
    result = await agent.resume("s")
    assert result is not None and result.text == "Done."
    assert child.calls == (1 if when == "in the child" else 0)
    (name,) = await children_of(agent, "s")
    assert [entry.kind for entry in await store.load(name)].count("run_started") == 1
    await check_replay(agent, "s", name)


@pytest.mark.spec("L-11", "A-2")
@pytest.mark.parametrize("action", ["approve", "deny"])
async def test_an_approval_inside_a_child_suspends_the_call_of_its_parent(action: Any) -> None:
    effects: list[str] = []

    @tool(requires_approval=True)
    def buy(ctx: ToolContext, what: str) -> str:
        """Buy something."""
        effects.append(f"{what} for {ctx.deps}")
        return "bought"

    store = MemoryStore()
    call = Turn(tool_calls=[{"name": "buy", "arguments": {"what": "a map"}}])
    used = TokenUsage(input_tokens=1000, output_tokens=100, total_tokens=1100)
    parent, child = (
        ScriptedModel([ask("x"), "Done."]),
        ScriptedModel([call, Turn(text="It is so.", usage=used)]),
    )

    def agent() -> Agent[str]:
        return Agent(parent, tools=[researcher(child, tools=[buy])], store=store)

    waits = await agent().run("Go.", session="s")
    assert waits.status == "awaiting_human"
    still = await agent().resume("s")
    assert still is not None and still.status == "awaiting_human"
    other = agent()
    length = len(await store.load("s"))
    assert (await agent().resume("s")) is not None and len(await store.load("s")) == length
    (pending,) = await other.session("s").pending()
    assert await other.pending() == [pending] and pending.session_id in await children_of(other, "s")
    await other.session("s").decide(pending, action, by="ann")
    result = await other.resume("s", deps="Bob")
    assert result is not None and result.text == "Done."
    assert effects == (["a map for Bob"] if action == "approve" else [])
    told = parent.requests[1].messages[-1].tool_results[0].payload
    assert told.text == "It is so."
    assert result.usage is not None and result.usage.total_tokens > 1100
    await check_replay(other, "s", pending.session_id)


@pytest.mark.spec("L-11", "T-11")
async def test_a_question_inside_a_child_is_answered_from_the_inbox_of_its_parent() -> None:
    @tool
    def ask_boss(what: str) -> ToolResult:
        """Ask the boss."""
        return ToolResult.deferred("the boss has to answer", question=f"May I {what}?")

    store = MemoryStore()
    below = Turn(tool_calls=[{"name": "ask_boss", "arguments": {"what": "leave"}}])
    middle = Turn(tool_calls=[{"name": "clerk", "arguments": {"input": "y"}}])
    models = [
        ScriptedModel([ask("x"), "Done."]),
        ScriptedModel([middle, "Yes."]),
        ScriptedModel([below, "Ok."]),
    ]

    def agent() -> Agent[str]:
        clerk = Agent(models[2], name="clerk", tools=[ask_boss], store="memory:")
        return Agent(models[0], tools=[researcher(models[1], tools=[clerk.as_tool("Asks.")])], store=store)

    assert (await agent().run("Go.", session="s")).status == "awaiting_human"
    desk = agent().session("s")
    (question,) = await desk.questions()
    assert question.question == "May I leave?" and question.session_id.startswith("clerk-")
    assert [each.session_id for each in await pending_answers(store)] == [question.session_id]
    await desk.answer(question, "Go home.", by="boss")
    result = await desk.resume()
    assert result is not None and result.text == "Done."
    assert models[2].requests[1].messages[-1].tool_results[0].payload.text == "Go home."
    await check_replay(agent(), "s", *[info.session_id for info in await store.sessions()])


@pytest.mark.spec("L-11")
async def test_children_beside_each_other_share_one_budget() -> None:
    used = TokenUsage(input_tokens=900, output_tokens=100, total_tokens=1000)

    async def answer(request: ModelRequest) -> Turn:
        for _ in range(50):  # the others would ask meanwhile
            await asyncio.sleep(0)
        return Turn(text="Facts.", usage=used)

    child = ScriptedModel(default=answer)
    agent = Agent(
        ScriptedModel([ask("a", "b", "c", "d", "e", "f")]),
        tools=[researcher(child)],
        store="memory:",
        limits=Limits(max_tokens=3500),
    )
    result = await agent.run("Go.", session="s", check=False)
    assert result.usage is not None and result.usage.total_tokens < 3500 + 1000
    assert child.calls <= 4
    names = await children_of(agent, "s")
    ends = [(await agent.session(name).state()).last_error for name in names]
    assert sum(end is not None and end.code == "RunTokenLimit" for end in ends) == 6 - child.calls
    assert result.last_error is not None and result.last_error.code == "RunTokenLimit"
    await check_replay(agent, "s", *names)


@pytest.mark.spec("L-11")
async def test_what_a_waiting_child_has_used_counts_after_a_restart() -> None:
    @tool(requires_approval=True)
    def buy() -> str:
        """Buy."""
        return "bought"

    used = TokenUsage(input_tokens=900, output_tokens=100, total_tokens=1000)
    asks = Turn(tool_calls=[{"name": "buy", "arguments": {}}], usage=used)
    parent, child = ScriptedModel([ask("a", "b"), "Done."]), ScriptedModel(default=asks)
    store = MemoryStore()

    def agent() -> Agent[str]:
        tools = [researcher(child, tools=[buy])]
        return Agent(parent, tools=tools, store=store, limits=Limits(max_tokens=2900))

    await agent().run("Go.", session="s")
    first, _ = await agent().session("s").pending()
    await agent().session("s").approve(first, by="ann")
    again = await agent().resume("s", check=False)
    assert again is not None and again.status == "awaiting_human"
    ended = await agent().session(first.session_id).state()
    assert child.calls == 3 and ended.status == "awaiting_human"
    (one, other) = await agent().session("s").pending()
    for each in (one, other):
        await agent().session("s").approve(each, by="ann")
    over = await agent().resume("s", check=False)
    assert child.calls == 3 and over is not None
    assert over.last_error is not None and over.last_error.code == "RunTokenLimit"
    await check_replay(agent(), "s", first.session_id)


@pytest.mark.spec("L-11")
async def test_an_abort_reaches_a_child_that_is_continued_after_a_restart() -> None:
    @tool(requires_approval=True)
    def buy() -> str:
        """Buy."""
        return "bought"

    began = asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    store = MemoryStore()
    child = ScriptedModel([Turn(tool_calls=[{"name": "buy", "arguments": {}}]), hang])

    def agent() -> Agent[str]:
        return Agent(ScriptedModel([ask("x")]), tools=[researcher(child, tools=[buy])], store=store)

    await agent().run("Go.", session="s")
    other = agent()
    (pending,) = await other.session("s").pending()
    await other.session("s").approve(pending, by="ann")
    resumed = asyncio.create_task(other.resume("s", check=False))
    await began.wait()
    assert await other.session("s").abort("enough")
    result = await resumed
    assert result is not None and result.status == "aborted"
    assert (await other.session(pending.session_id).state()).status == "aborted"
    await check_replay(other, "s", pending.session_id)


@pytest.mark.spec("L-11")
@pytest.mark.parametrize("how", ["abort", "abort by another agent", "new run after a crash"])
async def test_the_end_of_a_run_that_nobody_drives_ends_its_children(how: str) -> None:
    @tool(requires_approval=True)
    def buy() -> str:
        """Buy."""
        return "bought"

    store = MortalStore()
    call = Turn(tool_calls=[{"name": "buy", "arguments": {}}])

    def die(request: ModelRequest) -> str:
        store.dead = True
        return "never in the log"

    child = ScriptedModel([die if how.startswith("new run") else call])
    agent = Agent(
        ScriptedModel([ask("x"), "Done."]),
        tools=[researcher(child, tools=[buy])],
        widgets=[MemoryNotebookWidget()],
        store=store,
    )
    with suppress(AgentError):
        await agent.run("Go.", session="s")
    store.dead = False
    if how == "abort":
        assert await agent.session("s").abort("enough")
    elif how == "abort by another agent":
        assert await open_session(store, "s").abort("enough")
    else:
        await Agent(ScriptedModel(["Well."]), tools=[researcher(child)], store=store).run(
            "Again.", session="s"
        )
    (name,) = await children_of(agent, "s")
    assert (await agent.session(name).state()).status == "aborted" and not await store.pending()
    await check_replay(agent, "s", name)


@pytest.mark.spec("L-11", "T-11")
async def test_a_session_that_a_tool_only_names_is_not_its_child() -> None:
    @tool
    def wait() -> ToolResult:
        """Wait."""
        return ToolResult.deferred("another session answers", by="session other")

    @tool(requires_approval=True)
    def buy() -> str:
        """Buy."""
        return "bought"

    def call(name: str) -> ScriptedModel:
        return ScriptedModel([Turn(tool_calls=[{"name": name, "arguments": {}}])])

    store = MemoryStore()
    await Agent(call("buy"), tools=[buy], store=store).run("Go.", session="other")
    agent = Agent(call("wait"), tools=[wait], store=store)
    await agent.run("Go.", session="s")
    assert await agent.session("s").pending() == [] and len(await agent.session("s").questions()) == 1
    assert await agent.session("s").abort("enough")
    assert len(await agent.session("other").pending()) == 1


@pytest.mark.spec("L-11")
async def test_a_child_that_loops_ends_at_its_own_limit_and_the_parent_is_told() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    loops = ScriptedModel(default=Turn(tool_calls=[{"name": "look", "arguments": {}}]))
    parent = ScriptedModel([ask("x"), "Without it."])
    child = researcher(loops, tools=[look], limits=Limits(max_iterations=3))
    agent = Agent(parent, tools=[child], store="memory:")
    assert (await agent.run("Go.", session="s")).text == "Without it."
    told = parent.requests[1].messages[-1].tool_results[0].payload
    assert told.is_error and "RunMaxIterations" in told.text and loops.calls == 3


@pytest.mark.spec("L-11")
async def test_agents_that_call_each_other_without_end_are_stopped_at_a_depth() -> None:
    class Late:
        name, version = "late", 1
        found: list[Any] = []

        async def open(self) -> None: ...
        async def close(self) -> None: ...
        async def tools(self) -> list[Any]:
            return self.found

    model = ScriptedModel(
        default=lambda request: "Up." if request.messages[-1].role == "tool" else ask("deeper")
    )
    again = Agent(model, name="researcher", tools=[Late()], store="memory:")
    Late.found = [again.as_tool("Finds facts.")]
    agent = Agent(ScriptedModel([ask("x"), "Done."]), tools=Late.found, store="memory:")
    assert (await agent.run("Go.", session="s")).text == "Done."
    assert len(await agent.store.sessions()) == 11
    ends = [request.messages[-1] for request in model.requests if request.messages[-1].role == "tool"]
    assert "10 levels deep" in ends[0].tool_results[0].payload.text


@pytest.mark.spec("L-11", "T-4")
async def test_a_child_that_waits_for_ever_is_ended_by_the_time_limit_of_its_call_or_of_the_run() -> None:
    async def hang(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "never"

    for options, limits in (({"timeout": 0.05}, None), ({}, Limits(max_run_duration_ms=50))):
        child = Agent(ScriptedModel(default=hang), name="researcher", store="memory:")
        parent = ScriptedModel([ask("x"), "Without it."])
        agent = Agent(
            parent, tools=[child.as_tool("Finds facts.", **options)], store="memory:", limits=limits
        )
        result = await agent.run("Go.", session="s", check=False)
        (name,) = await children_of(agent, "s")
        assert (await agent.session(name).state()).status == "aborted"
        if limits is None:
            assert result.text == "Without it."
        else:
            assert result.last_error is not None and result.last_error.code == "RunTimeout"
        await check_replay(agent, "s", name)


@pytest.mark.spec("L-11")
async def test_a_child_that_is_aborted_by_itself_is_a_failed_result() -> None:
    began = asyncio.Event()

    async def hang(request: ModelRequest) -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    parent = ScriptedModel([ask("x"), "Without it."])
    store = MemoryStore()
    agent = Agent(parent, tools=[researcher(ScriptedModel(default=hang))], store=store)
    run = await agent.start("Go.", session="s")
    await began.wait()
    (name,) = await children_of(agent, "s")
    assert await open_session(store, name).abort("not this one")
    assert (await run.result()).text == "Without it."
    told = parent.requests[1].messages[-1].tool_results[0].payload
    assert told.is_error and "RunAborted: not this one" in told.text
    await check_replay(agent, "s", name)


@pytest.mark.spec("L-11")
async def test_a_child_that_fails_is_a_failed_result_and_the_parent_decides() -> None:
    child = ScriptedModel([AgentError("ModelAuthError", "no key")])
    parent = ScriptedModel([ask("x"), "Without facts, then."])
    agent = Agent(parent, tools=[researcher(child)], store="memory:")
    assert (await agent.run("Go.", session="s")).text == "Without facts, then."
    told = parent.requests[1].messages[-1].tool_results[0].payload
    assert told.is_error and "researcher failed: ModelAuthError: no key" in told.text
    await check_replay(agent, "s")


async def test_a_typed_child_answers_with_its_output() -> None:
    parent = ScriptedModel([ask("x"), "Done."])
    child = researcher(ScriptedModel(['{"what": "bees dance"}']), output_type=Fact)
    agent = Agent(parent, tools=[child], store="memory:")
    await agent.run("Go.", session="s")
    assert parent.requests[1].messages[-1].tool_results[0].payload.text == '{"what":"bees dance"}'


async def test_a_child_works_with_the_deps_of_its_parent_unless_it_has_its_own() -> None:
    seen: list[object] = []

    @tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        seen.append(ctx.deps)
        return "ok"

    turns = [Turn(tool_calls=[{"name": "look", "arguments": {}}]), "ok"]
    for options in ({}, {"deps": "own"}):
        child = researcher(ScriptedModel(turns), tools=[look], **options)
        agent = Agent(ScriptedModel([ask("x"), "Done."]), tools=[child], store="memory:")
        await agent.run("Go.", deps="given")
    assert seen == ["given", "own"]


def test_a_tool_made_of_an_agent_has_its_name_unless_told() -> None:
    agent = Agent(ScriptedModel(), name="researcher", store="memory:")
    assert agent.as_tool("Finds facts.").spec.name == "researcher"
    asked = agent.as_tool("Finds facts.", name="facts", requires_approval=True)
    assert asked.name == "facts" and asked.requires_approval
    with pytest.raises(AgentError, match="description"):
        agent.as_tool(5)  # type: ignore[arg-type]  # pyright: ignore
