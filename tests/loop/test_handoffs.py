"""Agents that hand the conversation to one another."""

from __future__ import annotations

from typing import Any

import pytest

from loop.scenarios import MortalStore
from turnlog import Agent, Limits, ToolContext, tool
from turnlog.contract import AgentError, ModelParams
from turnlog.history import MemoryStore
from turnlog.loop import Handoff
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel, Turn


def transfer(*names: str, **more: Any) -> Turn:
    return Turn(tool_calls=[{"name": f"transfer_to_{name}", "arguments": {}} for name in names], **more)


@tool
def refund(ctx: ToolContext, amount: int) -> str:
    """Refund."""
    return f"refunded {amount} by {ctx.agent.name} with {ctx.deps}"


@tool
def look() -> str:
    """Look."""
    return "seen"


async def check_replay(agent: Agent[Any], session: str = "s") -> None:
    report = await agent.session(session).replay()
    assert report.identical, report.difference


def system_prompts(model: ScriptedModel) -> list[str | None]:
    return [request.system_prompt for request in model.requests]


async def test_the_next_agent_answers_with_its_own_model_tools_and_instructions() -> None:
    money = ScriptedModel(
        [Turn(tool_calls=[{"name": "refund", "arguments": {"amount": 5}}]), "You have 5 back.", "Again."]
    )
    billing = Agent(
        money,
        name="billing",
        instructions="You handle money.",
        tools=[refund],
        params=ModelParams(temperature=0.5),
        store="memory:",
    )
    first = ScriptedModel([transfer("billing", text="One moment.")])
    triage = Agent(
        first,
        name="triage",
        instructions="You send people on.",
        tools=[look],
        handoffs=[billing],
        store="memory:",
    )
    result = await triage.run(
        "I want 5 back.",
        session="s",
        deps="a till",
        instructions="Be quick.",
        allowed_tools=["transfer_to_billing"],
    )
    assert result.text == "You have 5 back." and result.agent_name == "billing"
    assert system_prompts(first) == ["Be quick."]
    assert system_prompts(money) == ["You handle money.", "You handle money."]
    offered = [spec.name for request in money.requests for spec in request.tool_specs]
    assert "refund" in offered and "look" not in offered and "transfer_to_billing" not in offered
    assert money.requests[0].config.temperature == 0.5 and first.requests[0].config.temperature is None
    seen = money.requests[1].messages
    assert [message.role for message in seen] == ["user", "assistant", "tool", "assistant", "tool"]
    assert seen[-1].tool_results[0].payload.text == "refunded 5 by billing with a till"
    entries = await triage.store.load("s")
    assert [o.handed_to for e in entries if e.kind == "tool_results" for o in e.payload.outcomes] == [
        "billing",
        None,
    ]
    assert [e.payload.agent_name for e in entries if e.kind == "run_started"] == ["triage"]
    assert result.usage is not None and result.usage.total_tokens > 0
    await check_replay(triage)

    # The conversation stays with the agent that has it, also in the next run and in a fork.
    branch = await triage.session("s").fork()
    assert (await triage.run("And again?", session="s")).agent_name == "billing"
    assert system_prompts(money)[2] == "You handle money."
    await check_replay(triage)
    await check_replay(triage, branch.session_id)


async def test_a_fork_and_a_new_process_know_who_speaks() -> None:
    store = MemoryStore()

    def team(*answers: str) -> tuple[Agent[str], ScriptedModel]:
        money = ScriptedModel(list(answers))
        billing = Agent(money, name="billing", instructions="Money.", store="memory:")
        return Agent(
            ScriptedModel([transfer("billing")]), name="triage", handoffs=[billing], store=store
        ), money

    agent, _ = team("Hello from billing.")
    await agent.run("Hi.", session="s")
    branch = await agent.session("s").fork(session="branch")
    for session in ("s", branch.session_id):
        other, money = team("Still billing.")
        result = await other.run("Still there?", session=session)
        assert result.text == "Still billing." and money.requests[0].system_prompt == "Money."
        await check_replay(other, session)
    alone = Agent(ScriptedModel(["Me."]), name="other", store=store)
    assert (await alone.run("Who?", session="s")).agent_name == "other"


@pytest.mark.parametrize("when", ["after the hand-over", "in the answer of the next agent"])
async def test_a_crash_resumes_with_the_agent_that_has_the_conversation(when: str) -> None:
    store = MortalStore()

    def die(request: ModelRequest) -> str:
        store.dead = True
        return "never in the log"

    def team(first: Any, second: Any) -> Agent[str]:
        billing = Agent(ScriptedModel(default=second), name="billing", instructions="Money.", store="memory:")
        return Agent(ScriptedModel(default=first), name="triage", handoffs=[billing], store=store)

    original = store.append

    async def append(session_id: str, batch: Any, **more: Any) -> None:
        await original(session_id, batch, **more)
        if when == "after the hand-over" and any(entry.kind == "tool_results" for entry in batch):
            store.dead = True

    store.append = append  # type: ignore[method-assign]  # pyright: ignore
    with pytest.raises(AgentError):
        await team(transfer("billing"), die).run("Hi.", session="s")
    store.append, store.dead = original, False  # type: ignore[method-assign]  # pyright: ignore
    with pytest.raises(AgentError, match="handed to 'billing'"):
        await Agent(ScriptedModel(["x"]), name="triage", store=store).resume("s")
    agent = team("not asked", "Billing speaks.")
    result = await agent.resume("s")
    assert result is not None and result.text == "Billing speaks." and result.agent_name == "billing"
    await check_replay(agent)


async def test_hand_offs_in_a_circle_are_bounded_and_the_model_is_told() -> None:
    def on(name: str) -> Any:
        def answer(request: ModelRequest) -> Any:
            results = request.messages[-1].tool_results
            told = results[0].payload.text if results else ""
            return "I stay." if "not handed over again" in told else transfer(name)

        return answer

    one = Agent(ScriptedModel(default=on("two")), name="one", instructions="I am one.", store="memory:")
    two = Agent(
        ScriptedModel(default=on("one")),
        name="two",
        instructions="I am two.",
        handoffs=[one],
        store="memory:",
    )
    one.add_handoffs(two)
    result = await one.run("Go.", session="s", limits=Limits(max_handoffs=3))
    assert result.text == "I stay." and result.agent_name == "two"
    prompts = [e.payload.text for e in await one.store.load("s") if e.kind == "system_prompt"]
    assert prompts == ["I am one.", "I am two.", "I am one.", "I am two."]
    await check_replay(one)


async def test_a_team_that_hands_over_in_a_circle_is_the_tool_of_another_agent() -> None:
    one = Agent(ScriptedModel([transfer("two")]), name="one", store="memory:")
    two = Agent(ScriptedModel(["Two knows."]), name="two", handoffs=[one], store="memory:")
    one.add_handoffs(two)
    call = Turn(tool_calls=[{"name": "one", "arguments": {"input": "Who knows?"}}])
    lead = ScriptedModel([call, "It is known."])
    agent = Agent(lead, name="lead", tools=[one.as_tool("Knows.")], store="memory:")
    assert (await agent.run("Ask.", session="s")).text == "It is known."
    assert lead.requests[1].messages[-1].tool_results[0].payload.text == "Two knows."
    for info in await agent.store.sessions():
        await check_replay(agent, info.session_id)


async def test_limits_of_the_run_hold_for_the_next_agent() -> None:
    billing = Agent(
        ScriptedModel(default=Turn(tool_calls=[{"name": "look", "arguments": {}}])),
        name="billing",
        tools=[look],
        store="memory:",
    )
    triage = Agent(ScriptedModel([transfer("billing")]), name="triage", handoffs=[billing], store="memory:")
    result = await triage.run("Go.", session="s", limits=Limits(max_iterations=4), check=False)
    assert result.last_error is not None and result.last_error.code == "RunMaxIterations"
    await check_replay(triage)


async def test_the_first_of_two_hand_offs_counts_and_other_calls_are_answered_first() -> None:
    billing = Agent(ScriptedModel(["Money."]), name="billing", store="memory:")
    support = Agent(ScriptedModel(["Help."]), name="support", store="memory:")
    both = transfer("billing", "support")
    calls = [*both.tool_calls, {"name": "look", "arguments": {}}]
    triage = Agent(
        ScriptedModel([Turn(tool_calls=calls)]),
        name="triage",
        tools=[look],
        handoffs=[billing, support],
        store="memory:",
    )
    assert (await triage.run("Go.", session="s")).text == "Money."
    texts = [
        e.payload.message.tool_results[0].payload.text
        for e in await triage.store.load("s")
        if e.kind == "tool_results"
    ]
    assert texts[0] == "billing has the conversation now."
    assert "handed to billing already" in texts[1] and texts[2] == "seen"
    await check_replay(triage)


async def test_an_approval_is_asked_of_the_agent_whose_call_it_is() -> None:
    @tool(requires_approval=True)
    def buy() -> str:
        """Buy."""
        return "bought"

    store = MemoryStore()
    call = Turn(tool_calls=[{"name": "buy", "arguments": {}}])
    models = ScriptedModel([transfer("billing")]), ScriptedModel([call, "Bought."])

    def team() -> Agent[str]:
        billing = Agent(models[1], name="billing", tools=[buy], store="memory:")
        way = billing.as_handoff("For money.", requires_approval=True)
        return Agent(models[0], name="triage", handoffs=[way], store=store)

    for asked in ("transfer_to_billing", "buy"):
        agent = team()
        result = await (agent.run("Go.", session="s") if asked != "buy" else agent.resume("s"))
        assert result is not None and result.status == "awaiting_human"
        (pending,) = await agent.session("s").pending()
        assert pending.tool_name == asked
        await agent.session("s").approve(pending, by="ann")
    result = await team().resume("s")
    assert result is not None and result.text == "Bought."
    await check_replay(team())


def test_agents_of_one_name_and_other_things_are_refused() -> None:
    def named(name: str, **options: Any) -> Agent[str]:
        return Agent(ScriptedModel(), name=name, store="memory:", **options)

    with pytest.raises(AgentError, match=r"named 'billing'.*Agent\(name="):
        named("billing", handoffs=[named("billing")])
    with pytest.raises(AgentError, match="handoffs"):
        named("a", handoffs=[5])
    way = named("Big Money").as_handoff()
    assert isinstance(way, Handoff) and way.tool.name == "transfer_to_Big_Money" and way.name == "Big Money"
