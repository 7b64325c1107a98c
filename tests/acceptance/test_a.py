"""A. Human approval."""

from __future__ import annotations

from pathlib import Path

import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import AgentError, Approvals, tool
from turnlog.approvals import Verdict
from turnlog.contract import ToolCallRequest
from turnlog.history import export_jsonl, import_jsonl

PAY = asks_for(call("pay", amount=5))


class Policy:
    def __init__(self, action: str) -> None:
        self.action = action

    def evaluate(self, call: ToolCallRequest, tool_info: object) -> Verdict:
        return Verdict(self.action, "by the book", final=True)  # type: ignore[arg-type]


@pytest.mark.spec("A-1")
@pytest.mark.parametrize(
    ("action", "status", "done"),
    [
        ("approve", "completed", ["pay 5"]),
        ("deny", "completed", []),
        ("ask", "awaiting_human", []),
    ],
)
async def test_a_policy_approves_denies_or_asks(action: str, status: str, done: list[str]) -> None:
    desk = Desk()
    agent = desk.agent(PAY, "Well.", approvals=Approvals(policy=Policy(action)))
    result = await agent.run("Pay 5.", session="s", check=False)
    assert (result.status, desk.done) == (status, done)


@pytest.mark.spec("A-1")
@pytest.mark.parametrize(
    ("action", "status", "done"),
    [
        ("approve", "completed", ["pay 5"]),
        ("deny", "completed", []),
        ("modify", "completed", ["pay 3"]),
        ("abort", "aborted", []),
    ],
)
async def test_a_human_approves_denies_modifies_or_aborts(action: str, status: str, done: list[str]) -> None:
    desk = Desk()
    agent = desk.agent(PAY, "Well.")
    session = agent.session("s")
    assert (await session.run("Pay 5.")).status == "awaiting_human"
    [waiting] = await session.pending()
    arguments = {"amount": 3} if action == "modify" else None
    await session.decide(waiting, action, by="ann", arguments=arguments)  # type: ignore[arg-type]
    await session.resume(check=False)
    assert ((await session.state()).status, desk.done) == (status, done)


@pytest.mark.spec("A-1")
async def test_a_run_is_paused_and_resumed() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("look", place="gate")), "Quiet.")
    async with agent.run_stream("Look.", session="s") as run:
        async for event in run:
            if event.kind == "tool_started":
                await agent.session("s").pause()
    assert (await agent.session("s").state()).status == "paused"
    result = await agent.resume("s")
    assert result is not None and result.text == "Quiet."
    assert desk.done == ["look gate"]


@pytest.mark.spec("A-2")
async def test_waiting_outlives_its_process_and_days(tmp_path: Path) -> None:
    first = Desk.on_disk(tmp_path)
    agent = first.agent(PAY)
    assert (await agent.run("Pay 5.", session="s")).status == "awaiting_human"
    await agent.close()
    await first.store.close()  # type: ignore[attr-defined]

    inbox = Desk.on_disk(tmp_path)  # another process decides, and knows nothing of the run but its log
    inbox.clock.advance(3 * 86_400)
    assert (await inbox.agent().session("s").state()).status == "awaiting_human"
    [waiting] = await inbox.agent().pending()
    await inbox.agent().session("s").approve(waiting, by="ann")
    await inbox.store.close()  # type: ignore[attr-defined]

    third = Desk.on_disk(tmp_path)  # and a third goes on
    result = await third.agent("Paid.").resume("s")
    assert result is not None and result.text == "Paid."
    assert (first.done, inbox.done, third.done) == ([], [], ["pay 5"])


@pytest.mark.spec("A-3")
async def test_what_runs_is_what_was_approved_and_modified_arguments_stand_beside_the_first() -> None:
    desk = Desk()
    session = desk.agent(PAY, "Paid.").session("s")
    await session.run("Pay 5.")
    [waiting] = await session.pending()
    assert (waiting.requested.tool_name, waiting.requested.arguments) == ("pay", {"amount": 5})
    await session.modify(waiting, arguments={"amount": 3}, by="ann")
    await session.resume()
    assert desk.done == ["pay 3"]
    [requested] = await desk.of_kind("approval_requested")
    [decided] = await desk.of_kind("approval_decided")
    [output] = (await desk.of_kind("model_output"))[:1]
    assert requested.payload.arguments == {"amount": 5}
    assert decided.payload.arguments == {"amount": 3}
    assert output.payload.message.tool_calls[0].payload.arguments == {"amount": 5}
    assert decided.payload.digest == requested.payload.digest


@pytest.mark.spec("A-3")
async def test_a_decision_on_one_call_is_no_decision_on_another() -> None:
    """Two requests that differ in an argument alone have different hashes; a decision fits one of them."""
    desk = Desk()
    session = desk.agent(asks_for(call("pay", amount=5), call("pay", amount=500)), "Paid.").session("s")
    await session.run("Pay.")
    first, second = await session.pending()
    assert first.requested.digest != second.requested.digest
    await session.approve(first, by="ann")
    await session.resume(check=False)
    assert desk.done == ["pay 5"]
    assert [each.requested.arguments for each in await session.pending()] == [{"amount": 500}]


@pytest.mark.spec("A-4")
async def test_a_denial_is_a_result_that_the_model_sees_and_the_log_says_who_and_when() -> None:
    desk = Desk()
    session = desk.agent(PAY, "Then not.").session("s")
    await session.run("Pay 5.")
    [waiting] = await session.pending()
    await session.deny(waiting, by="ann", reason="too much")
    await session.resume()
    [(is_error, content)] = results_in(desk.seen)
    assert is_error and "ann" in content and "too much" in content
    [decided] = await desk.of_kind("approval_decided")
    assert (decided.payload.decided_by, decided.payload.action) == ("ann", "deny")
    assert decided.timestamp.endswith("Z")


@pytest.mark.spec("A-5")
async def test_an_inbox_over_all_sessions_of_a_store() -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        await desk.agent(PAY).run("Pay 5.", session=name)
    await desk.agent("Nothing to pay.").run("Hello.", session="d")
    waiting = await desk.agent().pending()
    assert sorted(each.session_id for each in waiting) == ["a", "b", "c"]


@pytest.mark.spec("A-5")
@pytest.mark.parametrize("trust", [False, True])
async def test_an_imported_log_brings_no_approval_and_no_open_run_unless_it_is_trusted(trust: bool) -> None:
    there = Desk()
    session = there.agent(PAY).session("s")
    await session.run("Pay 5.")
    [waiting] = await session.pending()
    await session.approve(waiting, by="mallory")
    log = await export_jsonl(there.store, "s")

    here = Desk()
    await import_jsonl(here.store, log, trust=trust)
    assert await here.agent().pending() == []
    await here.agent("Paid.").resume("s", check=False)
    assert here.done == (["pay 5"] if trust else [])
    assert (await here.agent().session("s").state()).status == ("completed" if trust else "aborted")


@pytest.mark.spec("A-5")
async def test_a_tool_that_became_another_is_asked_about_again() -> None:
    desk = Desk()
    session = desk.agent(PAY).session("s")
    await session.run("Pay 5.")
    [waiting] = await session.pending()
    await session.approve(waiting, by="ann")

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pay an amount in gold bars."""
        desk.done.append(f"gold {amount}")
        return "paid"

    other = desk.agent("Paid.", tools=[pay])
    result = await other.resume("s", check=False)
    assert result is not None and result.status == "awaiting_human"
    assert desk.done == []
    assert len(await other.pending()) == 1


@pytest.mark.spec("A-3")
async def test_a_decision_for_a_request_that_was_changed_is_refused() -> None:
    desk = Desk()
    session = desk.agent(PAY).session("s")
    await session.run("Pay 5.")
    [waiting] = await session.pending()
    await session.approve(waiting, by="ann")
    with pytest.raises(AgentError, match="ApprovalInvalid"):
        await session.approve(waiting, by="ann")
