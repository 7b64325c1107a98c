"""Waiting is a state in the log: decisions that come later, expire, or concern what may have run."""

from __future__ import annotations

import pytest

from loop.scenarios import SESSION, Stage, call, decide, die_at
from turnlog import tool
from turnlog.contract import AgentError, JsonObject, ToolPolicy
from turnlog.loop import Approvals, record_decision, replay
from turnlog.testing import FakeRuntime, ScriptedModel, Turn


async def outcomes(stage: Stage) -> list[tuple[str, str | None]]:
    return [
        (outcome.status, outcome.error_code)
        for entry in await stage.store.load(SESSION)
        if entry.kind == "tool_results"
        for outcome in entry.payload.outcomes
    ]


@pytest.mark.spec("T-3", "A-3", "H-10")
async def test_an_approved_call_that_may_have_run_is_not_run_again() -> None:
    """The approval came before the crash: it let the call run once, not once more."""
    stage = Stage()
    first = stage.agent(
        [Turn(tool_calls=[call("send", to="ann", text="hi")])],
        approvals=Approvals(handler=lambda r: "approve"),
    )
    await die_at(first, "tool_started", "Tell Ann.")
    ran = list(stage.effects)
    await stage.agent(["Perhaps told."]).resume(SESSION)
    assert stage.effects == ran
    assert await outcomes(stage) == [("unknown", "ToolOutcomeUnknown")]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("T-3", "A-1")
@pytest.mark.parametrize(("action", "runs"), [("approve", 1), ("deny", 0)])
async def test_an_unknown_outcome_may_be_put_to_a_human(action: str, runs: int) -> None:
    stage = Stage()
    policy = ToolPolicy(outcome_unknown="human")
    first = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)])], tool_policy=policy)
    await die_at(first, "tool_started", "Add.")
    before = len(stage.effects)
    second = stage.agent(["Done."], tool_policy=policy)
    result = await second.resume(SESSION, check=False)
    assert result is not None and result.status == "awaiting_human"
    await decide(second, action)
    result = await second.resume(SESSION, check=False)
    assert result is not None and result.status == "completed"
    assert len(stage.effects) - before == runs
    keys = {e.payload.idempotency_key for e in await stage.store.load(SESSION) if e.kind == "tool_started"}
    assert len(keys) == 1
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1", "A-4")
async def test_a_request_nobody_decides_in_time_expires() -> None:
    stage = Stage()
    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="a", text="b")]), "Then not."], approvals=Approvals(ttl=60.0)
    )
    assert (await agent.run("go", session=SESSION, check=False)).status == "awaiting_human"
    stage.clock.advance(3600)
    result = await agent.resume(SESSION, check=False)
    assert result is not None and result.text == "Then not."
    assert stage.effects == []
    assert [s for s, _ in await outcomes(stage)] == ["denied"]
    decided = next(e.payload for e in await stage.store.load(SESSION) if e.kind == "approval_decided")
    assert decided.action == "expire"
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-2")
async def test_an_approved_call_keeps_its_approval_where_its_tool_is_missing() -> None:
    stage = Stage()
    first = stage.agent([Turn(tool_calls=[call("send", to="ann", text="hi")])])
    await first.run("Tell Ann.", session=SESSION)
    await decide(first, "approve")
    before = len(await stage.store.load(SESSION))
    with pytest.raises(
        AgentError, match=r"was approved, and this agent has no tool 'send'; .*--tools"
    ) as bare:
        await stage.agent(["Never asked."], tools=[]).resume(SESSION)
    assert bare.value.code == "ConfigInvalid"
    assert len(await stage.store.load(SESSION)) == before
    result = await stage.agent(["Told."]).resume(SESSION)
    assert result is not None and result.text == "Told."
    assert stage.effects == ["send ann: hi"]
    assert (await replay(stage.store, SESSION)).identical


class Elsewhere(FakeRuntime):
    """A runtime of another folder."""

    async def get_init_data(self) -> JsonObject:
        return {**await super().get_init_data(), "workspace": "/elsewhere"}


@pytest.mark.spec("A-2")
async def test_an_approved_call_does_not_run_in_another_workspace() -> None:
    stage = Stage()
    first = stage.agent([Turn(tool_calls=[call("send", to="ann", text="hi")])], runtime=FakeRuntime())
    await first.run("Tell Ann.", session=SESSION)
    await decide(first, "approve")
    words = "works in /workspace, and the runtime of this agent in /elsewhere; .*--workspace /workspace"
    with pytest.raises(AgentError, match=words) as moved:
        await stage.agent(["Never asked."], runtime=Elsewhere()).resume(SESSION)
    assert moved.value.code == "ConfigInvalid" and stage.effects == []
    result = await stage.agent(["Told."], runtime=FakeRuntime()).resume(SESSION)
    assert result is not None and result.text == "Told."
    assert stage.effects == ["send ann: hi"]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1")
async def test_a_paused_run_is_let_go_and_goes_on_when_resumed() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("add", a=1, b=1)]), "Two."])
    async for event in agent.run_stream("1 + 1?", session=SESSION):
        if event.kind == "tool_started":
            assert await agent.pause(event.run_id)
    assert event.result.status == "paused"
    assert (await agent.session(SESSION).state()).status == "paused", "the log tells, in any process"
    kinds = [entry.kind for entry in await stage.store.load(SESSION)]
    assert kinds[-2:] == ["tool_results", "custom"]
    result = await stage.agent(["Two."]).resume(SESSION, check=False)
    assert result is not None and result.text == "Two."
    assert stage.effects == ["add 1 1"]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-2", "A-4")
async def test_other_calls_run_while_one_waits() -> None:
    stage = Stage()
    calls = [call("send", to="a", text="b"), call("add", a=1, b=1)]
    agent = stage.agent([Turn(tool_calls=calls), "Both."])
    assert (await agent.run("go", session=SESSION, check=False)).status == "awaiting_human"
    assert stage.effects == ["add 1 1"]
    await decide(agent, "approve")
    await agent.resume(SESSION)
    assert stage.effects == ["add 1 1", "send a: b"]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("A-1", "A-3", "E-2")
@pytest.mark.parametrize("where", ["agent", "elsewhere"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"to": "ann"}, "text: is required but missing"),
        ({"to": "ann", "text": 5}, r"text: .*found 5"),
        ({"to": "ann", "text": "hi", "cc": "eve"}, "cc: there is no such field"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_and_the_call_goes_on_waiting(
    where: str, arguments: dict[str, object], words: str
) -> None:
    """Whoever decides need not have the tool: the log has its schema."""
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Told."])
    await agent.run("Greet Bob.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)

    async def modify(arguments: dict[str, object]) -> None:
        options = {"by": "carol", "arguments": arguments}
        if where == "agent":
            await agent.decide(SESSION, waiting.tool_call_id, "modify", **options)
        else:
            await record_decision(stage.store, SESSION, waiting.tool_call_id, "modify", **options)

    before = await stage.store.load(SESSION)
    with pytest.raises(AgentError, match=words) as wrong:
        await modify(arguments)
    assert wrong.value.code == "ApprovalInvalid" and "still waits" in wrong.value.message
    assert await stage.store.load(SESSION) == before
    assert await agent.pending(SESSION) == [waiting]
    await modify({"to": "ann", "text": "good evening"})
    result = await agent.resume(SESSION)
    assert result is not None and result.text == "Told."
    assert stage.effects == ["send ann: good evening"]


@pytest.mark.spec("A-2")
@pytest.mark.parametrize("action", ["approve", "modify", "deny", "abort"])
async def test_a_new_run_does_not_pass_over_what_was_approved(action: str) -> None:
    stage = Stage()
    answers = [Turn(tool_calls=[call("send", to="bob", text="hello")]), "Told.", "Yes?"]
    agent = stage.agent(answers)
    await agent.run("Greet Bob.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)
    arguments = {"to": "bob", "text": "good evening"} if action == "modify" else None
    await agent.decide(SESSION, waiting.tool_call_id, action, by="carol", arguments=arguments)
    if action in ("approve", "modify"):
        with pytest.raises(AgentError, match="resume it first") as refused:
            await agent.run("And now?", session=SESSION)
        assert refused.value.code == "SessionBusy" and waiting.tool_call_id in refused.value.message
        assert (await agent.resume(SESSION, check=False)).text == "Told."
        assert len(stage.effects) == 1
    assert (await agent.run("And now?", session=SESSION, check=False)).status == "completed"


@pytest.mark.spec("A-3", "A-4")
async def test_the_model_is_told_that_its_call_was_changed_and_not_what_to() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Told."])
    model = agent.model
    assert isinstance(model, ScriptedModel)
    await agent.run("Greet Bob.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)
    changed = {"to": "bob", "text": "good evening"}
    await agent.decide(SESSION, waiting.tool_call_id, "modify", by="carol", arguments=changed)
    await agent.resume(SESSION)
    (result,) = model.requests[-1].messages[-1].tool_results
    assert "sent to bob" in str(result.payload.content)
    assert "carol changed text before this ran" in str(result.payload.content)
    assert "good evening" not in str(result.payload.content)


@pytest.mark.spec("A-1")
async def test_the_tool_itself_has_the_last_word_on_arguments_where_it_is_known() -> None:
    from typing import Annotated

    from pydantic import AfterValidator

    def even(number: int) -> int:
        if number % 2:
            raise ValueError("should be even")
        return number

    @tool(requires_approval=True, timeout=None)
    async def pay(amount: Annotated[int, AfterValidator(even)]) -> str:
        """Pay."""
        return f"paid {amount}"

    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("pay", amount=4)]), "Paid."], tools=[pay])
    await agent.run("Pay.", session=SESSION)
    (waiting,) = await agent.pending(SESSION)
    with pytest.raises(AgentError, match="amount: should be even"):
        await agent.decide(SESSION, waiting.tool_call_id, "modify", by="carol", arguments={"amount": 5})
    await agent.decide(SESSION, waiting.tool_call_id, "modify", by="carol", arguments={"amount": 6})
    await agent.resume(SESSION)
    assert await outcomes(stage) == [("success", None)]


@pytest.mark.spec("A-2")
async def test_what_waits_can_be_listed() -> None:
    stage = Stage()
    calls = [call("send", to="bob", text="one"), call("send", to="ann", text="two")]
    agent = stage.agent([Turn(tool_calls=calls), "Both."], approvals=Approvals(ttl=60.0))
    await agent.run("Go.", session=SESSION)
    first, second = await agent.pending(SESSION)
    assert (first.tool_name, first.arguments) == ("send", {"to": "bob", "text": "one"})
    assert second.arguments == {"to": "ann", "text": "two"}
    assert first.requested_at < (first.expires_at or "")
    entries = {entry.id: entry for entry in await stage.store.load(SESSION)}
    assert entries[first.entry_id].payload.digest == first.digest
    await agent.decide(SESSION, first.tool_call_id, "approve", by="carol")
    assert [each.tool_call_id for each in await agent.pending(SESSION)] == [second.tool_call_id]
    await agent.decide(SESSION, second.tool_call_id, "deny", by="carol")
    assert await agent.pending(SESSION) == []
    with pytest.raises(AgentError, match="SessionNotFound"):
        await agent.pending("nowhere")
