"""What a new user gets wrong ends in an error that says what to do, or works; nothing hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, AgentError, ToolContext, tool
from turnlog.contract import RunInput, user_message
from turnlog.events import RunEnded
from turnlog.history import MemoryStore
from turnlog.loop import Run, SessionOptions
from turnlog.testing import ScriptedModel, Turn

pytestmark = pytest.mark.timeout(60)


def call(name: str, **arguments: Any) -> Turn:
    return Turn(tool_calls=[{"name": name, "arguments": arguments}])


def make(*turns: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(turns, default="Yes."), store=options.pop("store", "memory:"), **options)


@tool(timeout=None)
async def wait() -> str:
    """Wait for something that does not come."""
    await asyncio.Event().wait()
    return "never"


async def tool_start(run: Run) -> None:
    """Wait until a tool of the run has started."""
    async for event in run.events():
        if event.kind == "tool_started":
            return


# ── wrong words ──


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sesion": "s1"}, "did you mean session"),
        ({"tool_chioce": "auto"}, "did you mean tool_choice"),
        ({"temperature": 0}, "ModelParams"),
        ({"dep": 1}, "did you mean deps"),
        ({"session": 5}, "session"),
        ({"metadata": [1]}, "metadata"),
        ({"title": 5}, "title"),
        ({"allowed_tools": "add"}, "allowed_tools"),
        ({"auto_create": "no"}, "auto_create"),
        ({"limits": {"max_iterations": 1}}, "LoopLimits|Limits"),
    ],
)
@pytest.mark.parametrize("way", ["run", "run_stream", "start", "submit", "run_sync", "run_stream_sync"])
def test_a_wrong_option_is_refused_wherever_a_run_starts(
    way: str, options: dict[str, Any], words: str
) -> None:
    agent = make()

    async def use() -> None:
        made = getattr(agent, way)("Hello.", **options)
        await (made.result() if way == "run_stream" else made)

    with pytest.raises(AgentError, match=words) as caught:
        getattr(agent, way)("Hello.", **options) if way.endswith("sync") else asyncio.run(use())
    assert caught.value.code == "ConfigInvalid"
    assert asyncio.run(agent.store.sessions()) == []


@pytest.mark.parametrize("said", ["", None, 5, [], {"role": "user"}, ["text", 5], b"bytes"])
async def test_an_input_that_cannot_be_said_leaves_no_session(said: Any) -> None:
    agent = make()
    with pytest.raises(AgentError) as caught:
        await agent.run(said, session="s1")
    assert caught.value.code in ("InvalidMessage", "InvalidEntry")
    assert await agent.store.sessions() == []


class Bank:
    def balance(self) -> int:
        return 5


@tool
def balance(ctx: ToolContext[Bank]) -> int:
    """The balance."""
    return ctx.deps.balance()


@pytest.mark.parametrize("deps", [None, "bank", 5, Bank])
async def test_deps_of_the_wrong_type_are_refused_before_the_run(deps: Any) -> None:
    agent = make(call("balance"), tools=[balance], deps_type=Bank)
    for use in (agent.run, agent.start):
        with pytest.raises(AgentError, match="Bank") as caught:
            await use("How much?", session="s1", deps=deps)
        assert caught.value.code == "ConfigInvalid"
    assert (await agent.run("How much?", session="s1", deps=Bank())).text == "Yes."


async def test_resuming_with_the_wrong_deps_is_refused_and_the_run_stays_open() -> None:
    @tool(requires_approval=True)
    def pay(ctx: ToolContext[Bank]) -> int:
        """Pay."""
        return ctx.deps.balance()

    agent = make(call("pay"), tools=[pay], deps_type=Bank)
    trip = agent.session("s1")
    await trip.run("Pay.", deps=Bank())
    for pending in await trip.pending():
        await trip.approve(pending, by="ann")
    for deps in (None, "bank"):
        with pytest.raises(AgentError, match="Bank"):
            await trip.resume(deps=deps)
    result = await trip.resume(deps=Bank())
    assert result is not None and result.text == "Yes."


# ── sessions that are not there, calls that do not wait ──


async def test_what_is_asked_of_a_session_that_is_not_there() -> None:
    trip = make().session("nowhere")
    uses = {
        "send": lambda: trip.send("Hello?"),
        "resume": trip.resume,
        "entries": trip.entries,
        "messages": trip.messages,
        "state": trip.state,
        "explain": trip.explain,
        "replay": trip.replay,
        "export": trip.export,
        "fork": trip.fork,
        "delete": trip.delete,
        "pending": trip.pending,
        "approve": lambda: trip.approve("call_1", by="ann"),
        "answer": lambda: trip.answer("call_1", "yes"),
        "redact": lambda: trip.redact(["e1"], by="ann"),
        "purge": lambda: trip.purge(["e1"], by="ann"),
        "events": lambda: anext(trip.events()),
    }
    for name, use in uses.items():
        with pytest.raises(AgentError) as caught:
            await use()
        assert caught.value.code in ("SessionNotFound", "InvalidEntry"), name
        assert "nowhere" in caught.value.message or "open" in caught.value.message, name
    assert await trip.abort() is False
    assert await trip.pause() is False


async def test_decisions_that_cannot_be_made() -> None:
    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    agent = make(call("pay", amount=5), tools=[pay])
    trip = agent.session("s1")
    result = await trip.run("Pay 5.")
    assert result.status == "awaiting_human"
    with pytest.raises(AgentError, match="decide"):
        _ = result.text
    [waiting] = await trip.pending()
    wrong: list[Callable[[], Awaitable[object]]] = [
        lambda: trip.approve("call_0", by="ann"),
        lambda: trip.decide(waiting, "aprove", by="ann"),  # type: ignore[arg-type]
        lambda: trip.modify(waiting, arguments={"amount": "much"}, by="ann"),
        lambda: trip.modify(waiting, arguments={"sum": 5}, by="ann"),
        lambda: trip.modify(waiting, arguments=None, by="ann"),  # type: ignore[arg-type]
        lambda: trip.approve(waiting, by=""),
        lambda: trip.approve(waiting, by=None),  # type: ignore[arg-type]
        lambda: trip.answer(waiting.tool_call_id, "yes"),
    ]
    for use in wrong:
        with pytest.raises(AgentError) as caught:
            await use()
        assert caught.value.code in ("ApprovalInvalid", "InvalidEntry", "ConfigInvalid")
    assert await trip.pending() == [waiting]
    await trip.approve(waiting, by="ann")
    with pytest.raises(AgentError) as caught:
        await trip.approve(waiting, by="bob")
    assert caught.value.code == "ApprovalInvalid"
    result = await trip.resume()
    assert result is not None and result.text == "Yes."
    assert await trip.resume() is None


async def test_a_run_in_a_session_that_waits_for_a_person_says_what_to_do() -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    agent = make(call("pay"), tools=[pay])
    await agent.run("Pay.", session="s1")
    with pytest.raises(AgentError, match=r"decide|approve") as caught:
        await agent.run("Hello?", session="s1")
    assert caught.value.code == "SessionBusy"


async def test_looking_back_at_what_is_not_there() -> None:
    trip = make().session("s1")
    await trip.run("Hello.", run_id="r1")
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        r"has entries 1 to \d+": lambda: trip.fork(at=999),
        "exists already": lambda: trip.fork(session="s1"),
        "no model call 99": lambda: trip.explain(call=99),
        "no model call 0": lambda: trip.explain(call=0),
        "nothing to redact": lambda: trip.redact(["nope"], by="ann"),
        "nothing to purge": lambda: trip.purge([], by="ann"),
        "a run id is used once": lambda: trip.run("Again.", run_id="r1"),
        "there already": lambda: trip.run("Again.", title="Trip"),
        "no run is in progress": lambda: trip.send("Hello?"),
        "no open run": lambda: trip.resume_stream().result(),
    }
    for words, use in uses.items():
        with pytest.raises(AgentError, match=words):
            await use()
    assert [event.seq async for event in trip.events(after=10**12)] == []


# ── closing too early ──


async def test_closing_an_agent_ends_its_runs_and_refuses_new_ones() -> None:
    agent = make(call("wait"), call("wait"), tools=[wait])
    reading = asyncio.create_task(agent.run("Wait.", session="read", check=False))
    started = await agent.start("Wait.", session="started")
    await tool_start(started)
    await agent.close()
    assert (await reading).status == "aborted"
    assert (await started.result(check=False)).status == "aborted"
    for use in (agent.run, agent.start, agent.submit):
        with pytest.raises(AgentError, match="closed"):
            await use("Again?", session="s2")
    await agent.close()


async def test_a_block_left_while_the_run_is_in_progress_ends_it_then_and_there() -> None:
    agent = make(call("wait"), "Second.", tools=[wait])
    async with agent.run_stream("Wait.", session="s1") as run:
        async for event in run:
            if event.kind == "tool_started":
                break
    assert (await agent.run("And now?", session="s1")).text == "Second."
    assert run.is_over
    assert (await run.result(check=False)).status == "aborted"


async def test_one_of_two_agents_that_share_a_store_is_closed() -> None:
    store = MemoryStore()
    first, second = make(store=store), make(store=store)
    await first.run("Hello.", session="s1")
    await first.close()
    assert (await second.run("Hello.", session="s1")).text == "Yes."


async def test_one_of_two_agents_on_one_sqlite_file_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    first, second = make(store=url), make(store=url)
    async with second:
        run = await second.start("Hello.", session="s2")
        await first.run("Hello.", session="s1")
        await first.close()
        assert (await run.result()).text == "Yes."
        assert (await second.run("Hello.", session="s1")).text == "Yes."


# ── two at once ──


async def test_a_stream_that_is_held_and_not_finished_keeps_its_session_and_says_so() -> None:
    agent = make()
    held = agent.run_stream("Hello.", session="s1")
    await held.next_event()
    with pytest.raises(AgentError, match=r"in progress") as caught:
        await agent.run("And?", session="s1")
    assert caught.value.code == "SessionBusy"
    assert (await held.result()).text == "Yes."
    assert (await agent.run("And?", session="s1")).text == "Yes."


async def test_a_run_that_waits_behind_a_stream_nobody_reads_gives_up() -> None:
    agent = make(sessions=SessionOptions(on_busy="wait"))
    held = agent.run_stream("Hello.", session="s1")
    await held.next_event()
    with pytest.raises(AgentError, match="nobody reads") as caught:
        await agent.run("And?", session="s1")
    assert caught.value.code == "SessionBusy"
    await held.aclose()
    assert (await agent.run("And?", session="s1")).text == "Yes."


async def test_a_stream_that_was_never_begun_holds_nothing() -> None:
    agent = make()
    held = agent.run_stream("Hello.", session="s1")
    assert (await agent.run("And?", session="s1")).text == "Yes."
    await held.aclose()
    with pytest.raises(StopAsyncIteration):
        await held.next_event()


async def test_a_stream_that_is_read_twice_at_once_says_so() -> None:
    agent = make(call("wait"), tools=[wait])
    async with agent.run_stream("Wait.", session="s1") as run:
        first = asyncio.create_task(run.result(check=False))
        await asyncio.sleep(0)
        assert run.is_read
        with pytest.raises(AgentError, match="two places"):
            await run.next_event()
    assert (await first).status == "aborted"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_threads_wait_for_each_other_with_on_busy_wait(store: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}" if store == "sqlite" else "memory:"
    agent = make(store=url, sessions=SessionOptions(on_busy="wait"))
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(agent.run_sync("Hello.", session="s1").text))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert answers == ["Yes."] * 6
    asyncio.run(agent.close())


def test_threads_without_waiting_are_refused_or_served() -> None:
    agent = make()
    ends: list[str] = []

    def use() -> None:
        try:
            ends.append(agent.run_sync("Hello.", session="s1").status)
        except AgentError as error:
            ends.append(error.code)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert len(ends) == 6 and set(ends) <= {"completed", "SessionBusy"} and "completed" in ends


@pytest.mark.parametrize("on_busy", ["refuse", "wait"])
async def test_a_tool_that_runs_its_own_session_is_told_so(on_busy: Any) -> None:
    agents: list[Agent] = []

    @tool(timeout=None)
    async def again(ctx: ToolContext) -> str:
        """Ask again."""
        return (await agents[0].run("Again?", session=ctx.session_id)).text

    agents.append(make(call("again"), tools=[again], sessions=SessionOptions(on_busy=on_busy)))
    events = [event async for event in agents[0].run_stream("Go.", session="s1")]
    [failed] = [event for event in events if event.kind == "tool_result"]
    assert failed.is_error and "wait for itself" in failed.text
    assert isinstance(events[-1], RunEnded) and events[-1].result.text == "Yes."


@pytest.mark.parametrize("on_busy", ["refuse", "wait"])
def test_a_sync_tool_that_runs_its_own_session_is_told_so(on_busy: Any) -> None:
    agents: list[Agent] = []

    @tool(timeout=20)
    def again(ctx: ToolContext) -> str:
        """Ask again."""
        return agents[0].run_sync("Again?", session=ctx.session_id).text

    agents.append(make(call("again"), tools=[again], sessions=SessionOptions(on_busy=on_busy)))
    events = list(agents[0].run_stream_sync("Go.", session="s1"))
    [failed] = [event for event in events if event.kind == "tool_result"]
    assert failed.is_error and "wait for itself" in failed.text


@pytest.mark.parametrize("on_busy", ["refuse", "wait"])
async def test_a_tool_that_runs_its_own_session_with_another_agent_does_not_hang(on_busy: Any) -> None:
    store = MemoryStore()
    other = make(store=store, sessions=SessionOptions(on_busy=on_busy))

    @tool(timeout=5)
    async def again(ctx: ToolContext) -> str:
        """Ask again."""
        return (await other.run("Again?", session=ctx.session_id)).text

    agent = make(call("again"), tools=[again], store=store)
    assert (await agent.run("Go.", session="s1")).text == "Yes."
    [results] = [entry for entry in await agent.session("s1").entries() if entry.kind == "tool_results"]
    assert results.payload.message.tool_results[0].payload.is_error


async def test_a_tool_that_sends_to_aborts_or_closes_its_own_run() -> None:
    agents: list[Agent] = []

    @tool(timeout=None)
    async def meddle(ctx: ToolContext, how: str) -> str:
        """Meddle."""
        trip = agents[-1].session(ctx.session_id)
        match how:
            case "send":
                await trip.send("By the way.")
            case "abort":
                await trip.abort()
            case "pause":
                await trip.pause()
            case "delete":
                await trip.delete()
            case _:
                await agents[-1].close()
        return "done"

    ends: dict[str, str] = {}
    for how in ("send", "abort", "pause", "delete", "close"):
        agents.append(make(call("meddle", how=how), tools=[meddle]))
        ends[how] = (await agents[-1].run("Go.", session="s1", check=False)).status
    assert ends == {
        "send": "completed",
        "abort": "aborted",
        "pause": "paused",
        "delete": "completed",  # refused: the session is in use
        "close": "aborted",
    }


async def test_a_run_takes_a_message_from_the_one_who_holds_it() -> None:
    release = asyncio.Event()

    @tool(timeout=None)
    async def hold() -> str:
        """Hold."""
        await release.wait()
        return "released"

    agent = make(call("hold"), tools=[hold])
    run = await agent.start("Hold.", session="s1")
    assert await agent.store.tail("s1") is not None, "what was started is in the log"
    await tool_start(run)
    await run.send("By the way.")
    release.set()
    await run.result()
    assert "By the way." in [message.text for message in await agent.session("s1").messages()]


async def test_a_wrong_word_deletes_nothing() -> None:
    agent = make()
    await agent.run("Hello.", session="s1")
    await agent.session("s1").fork(session="s2")
    with pytest.raises(AgentError, match="forks"):
        await agent.session("s1").delete(forks="maybe")  # type: ignore[arg-type]
    assert {info.session_id for info in await agent.store.sessions()} == {"s1", "s2"}


# ── event loops ──


async def test_the_sync_forms_inside_an_event_loop_name_the_async_ones() -> None:
    agent = make()
    with pytest.raises(AgentError, match=r"await agent\.run"):
        agent.run_sync("Hello.")
    with pytest.raises(AgentError, match=r"async with agent\.run_stream"):
        agent.run_stream_sync("Hello.")


def test_a_started_run_whose_event_loop_ended_frees_its_session() -> None:
    agent = make(call("wait"), tools=[wait])

    async def leave() -> None:
        await tool_start(await agent.start("Wait.", session="s1"))

    asyncio.run(leave())
    assert agent.run_sync("And now?", session="s1").text == "Yes."


def test_a_run_whose_event_loop_ended_before_its_first_step_is_kept_to_be_resumed() -> None:
    agent = make()

    async def leave() -> None:
        await agent.start("Hello.", session="s1")

    asyncio.run(leave())
    with pytest.raises(AgentError, match="resume") as caught:
        agent.run_sync("And now?", session="s1")
    assert caught.value.code == "SessionBusy"
    result = asyncio.run(agent.resume("s1"))
    assert result is not None and result.text == "Yes."


def test_a_sync_stream_that_is_left_frees_its_session() -> None:
    agent = make()
    for _ in agent.run_stream_sync("Hello.", session="s1").text:
        break
    assert agent.run_sync("And now?", session="s1").text == "Yes."


def test_the_result_of_a_sync_stream_is_there_after_it_was_read() -> None:
    stream = make().run_stream_sync("Hello.", session="s1")
    assert "".join(stream.text) == "Yes."
    assert stream.result().text == stream.result().text == "Yes."


def test_a_sync_stream_that_is_over_has_nothing_more_to_read() -> None:
    agent = make()
    stream = agent.run_stream_sync("Hello.", session="s1")
    assert "".join(stream.text) == "Yes."
    assert list(stream.text) == list(stream) == []
    left = agent.run_stream_sync("Hello.", session="s2")
    for _ in left:
        assert left.result().text == "Yes.", "driven to its end from inside the loop"
    with agent.run_stream_sync("Hello.", session="s3") as closed:
        pass
    assert list(closed.text) == []
    with pytest.raises(AgentError, match="closed before it began"):
        closed.result()
    with pytest.raises(AgentError, match="no session 's3'"):
        asyncio.run(agent.session("s3").entries())


async def test_giving_up_waiting_for_a_started_run_does_not_end_it() -> None:
    release = asyncio.Event()

    @tool(timeout=None)
    async def hold() -> str:
        """Hold."""
        await release.wait()
        return "released"

    agent = make(call("hold"), tools=[hold])
    run = await agent.start("Hold.", session="s1")
    with suppress(TimeoutError):
        await asyncio.wait_for(run.result(), 0.05)
    release.set()
    assert (await run.result()).text == "Yes."


async def test_a_prepared_run_without_ids_gets_new_ones() -> None:
    agent = make()
    prepared = RunInput(input_messages=[user_message("Hello.")])
    first, second = await agent.loop.run(prepared), await agent.loop.run(prepared)
    assert first.run_id and first.session_id and first.run_id != second.run_id
    assert first.session_id != second.session_id
    assert {info.session_id for info in await agent.store.sessions()} == {
        first.session_id,
        second.session_id,
    }
