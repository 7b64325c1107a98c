"""The front door: what a user's code looks like, and what it is told when something is wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import (
    Agent,
    AgentError,
    Approvals,
    Hooks,
    Input,
    Limits,
    ToolContext,
    ToolResult,
    open_session,
    tool,
)
from turnlog.contract import RetryPolicy
from turnlog.events import (
    AnswerAdded,
    ApprovalDecided,
    RunEnded,
    TextDelta,
    ToolDeferred,
    ToolFinished,
    ToolStarted,
)
from turnlog.history import MemoryStore, SessionState
from turnlog.loop import SessionOptions, replay
from turnlog.testing import ScriptedModel, Turn
from turnlog.widgets import MemoryNotebookWidget

QUICK = RetryPolicy(base_delay_ms=1, max_delay_ms=1)


def agent_of(*turns: Any, **options: Any) -> Agent:
    options.setdefault("store", "memory:")
    return Agent(ScriptedModel(list(turns)), retry=QUICK, **options)


# ── a failed run is noticed ──


@pytest.mark.spec("L-1")
def test_a_failed_run_raises_its_error_with_its_result() -> None:
    broken = AgentError("ModelAuthError", "no API key: set OPENAI_API_KEY")
    with pytest.raises(AgentError, match="set OPENAI_API_KEY") as caught:
        agent_of(broken).run_sync("Hi.")
    assert caught.value.code == "ModelAuthError"
    assert caught.value.result is not None and caught.value.result.status == "failed"
    result = agent_of(broken).run_sync("Hi.", check=False)
    assert result.last_error is not None and result.last_error.code == "ModelAuthError"
    with pytest.raises(AgentError, match="set OPENAI_API_KEY"):
        _ = result.text


async def test_a_run_that_waits_is_a_result_whose_text_says_what_to_do() -> None:
    stage = Stage()
    result = await stage.agent([Turn(tool_calls=[call("send", to="a", text="b")])]).run(
        "Go.", session=SESSION
    )
    assert result.status == "awaiting_human"
    with pytest.raises(AgentError, match="resume it"):
        _ = result.text


async def test_an_answer_that_was_cut_by_its_length_says_so() -> None:
    result = await agent_of(Turn(text="Once upon", finish_reason="length")).run("A story.")
    assert (result.text, result.finish_reason) == ("Once upon", "length")


# ── the stream ──


@pytest.mark.spec("L-16")
async def test_text_comes_in_pieces_and_the_result_after_the_block() -> None:
    agent = agent_of("Hello there, friend.")
    async with agent.run_stream("Say hello.", session="s1") as run:
        pieces = [text async for text in run.text]
    assert len(pieces) > 1 and "".join(pieces) == "Hello there, friend."
    result = await run.result()
    assert (result.text, result.session_id, run.session_id) == ("Hello there, friend.", "s1", "s1")
    assert result.run_id == run.run_id


@pytest.mark.spec("L-16", "R-2")
@pytest.mark.parametrize(
    ("again", "shown"),
    [
        ("Half an answer.", "Half an answer."),
        ("Other words.", "Half a\nOther words."),
        ("Half", "Half a\nHalf"),
    ],
)
async def test_text_that_was_retracted_is_not_shown_twice(again: str, shown: str) -> None:
    cut = Turn(text="Half an", error={"code": "ModelServerError", "after": 2})
    async with agent_of(cut, again).run_stream("Go.") as run:
        assert "".join([text async for text in run.text]) == shown
    assert (await run.result()).text == again


@pytest.mark.spec("L-16")
async def test_events_are_flat_and_matched_by_class() -> None:
    stage, seen = Stage(), list[object]()
    agent = stage.agent([Turn(text="So:", tool_calls=[call("add", a=1, b=2)]), "Three."])
    async with agent.run_stream("1 + 2?", session=SESSION) as run:
        async for event in run:
            match event:
                case TextDelta(text=text):
                    seen.append(text)
                case ToolStarted(tool_name=name, arguments=arguments):
                    seen.append((name, arguments))
                case ToolFinished(tool_name=name, text=text, is_error=failed):
                    seen.append((name, text, failed))
                case RunEnded(result=result):
                    seen.append(result.text)
                case _:
                    pass
    words = [part for part in seen[:-1] if isinstance(part, str)]
    assert "".join(words) == "So:Three."
    assert ("add", {"a": 1, "b": 2}) in seen and ("add", "3", False) in seen and seen[-1] == "Three."


@pytest.mark.spec("L-16")
async def test_leaving_the_block_ends_the_run_then_and_there() -> None:
    agent = agent_of("A long answer.", "Here.")
    async with agent.run_stream("Go.", session="s") as run:
        async for _ in run.text:
            break
    assert run.is_over
    assert (await run.result(check=False)).status == "aborted"
    assert (await agent.run("And?", session="s")).text == "Here."


@pytest.mark.spec("L-16")
async def test_a_break_without_a_block_leaves_no_locked_session() -> None:
    agent = agent_of("A long answer.", "Here.")
    async for event in agent.run_stream("Go.", session="s"):
        if isinstance(event, TextDelta):
            break
    assert (await agent.run("And?", session="s")).text == "Here."
    held = agent_of("A long answer.", "Here.", sessions=SessionOptions(on_busy="wait", lease_ttl=600))
    stream = held.run_stream("Go.", session="s")
    async for event in stream:
        if isinstance(event, TextDelta):
            break
    assert (await asyncio.wait_for(held.run("And?", session="s"), 120)).text == "Here."


async def test_a_stream_for_scripts() -> None:
    def script() -> tuple[str, str]:
        run = agent_of("Hello there.").run_stream_sync("Hi.")
        return "".join(run.text), run.result().text

    assert await asyncio.to_thread(script) == ("Hello there.", "Hello there.")


@pytest.mark.spec("L-19")
async def test_what_was_shown_before_an_abort_is_in_the_log_and_in_the_next_context() -> None:
    stage = Stage()
    agent = stage.agent(["The key is under the mat by the door."])
    async with agent.run_stream("Where is the key?", session=SESSION) as run:
        shown = ""
        async for text in run.text:
            shown += text
            if "mat" in shown:
                break
    failed = next(e.payload for e in await stage.store.load(SESSION) if e.kind == "model_call_failed")
    assert failed.partial is not None and failed.partial.startswith(shown)
    second = stage.agent(["As I said."])
    await second.run("Go on.", session=SESSION)
    view = await second.session(SESSION).explain()
    assert any(shown in message.text for message in view.messages if message.role == "assistant")
    assert (await replay(stage.store, SESSION)).identical


# ── starting, driving, controlling ──


@pytest.mark.spec("L-16")
async def test_a_submitted_run_is_driven_by_whoever_resumes_it() -> None:
    store = MemoryStore()
    run_id = await agent_of("never asked", store=store).submit("Go.", session="s")
    assert [info.status for info in await store.sessions()] == ["preparing"]
    assert await store.due(5, now="9999-01-01T00:00:00Z") == ["s"]
    with pytest.raises(AgentError, match="nobody has driven it yet"):
        await agent_of("never asked", store=store).run("Me first.", session="s")
    result = await agent_of("Done.", store=store).resume("s")
    assert result is not None and (result.run_id, result.text) == (run_id, "Done.")
    assert await store.due(5, now="9999-01-01T00:00:00Z") == []


@pytest.mark.spec("L-18", "A-1")
async def test_a_run_that_was_let_go_can_be_aborted_and_paused_by_name() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="a", text="b")]), "Fresh."])
    waiting = await agent.run("Go.", session=SESSION)
    other = stage.agent(["Fresh."])
    assert await other.abort(waiting.run_id, "nobody wants it")
    state = await other.session(SESSION).state()
    assert state.status == "aborted" and state.last_error is not None
    assert stage.effects == [] and not await other.abort(waiting.run_id)
    assert (await other.run("Again?", session=SESSION)).text == "Fresh."


WORKER = """
import asyncio, sys
from turnlog import Agent, tool
from turnlog.testing import ScriptedModel, Turn
from turnlog.widgets import MemoryNotebookWidget

@tool(timeout=None)
async def wait() -> str:
    "Wait."
    print("waiting", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    return "waited"

async def main() -> None:
    script = [Turn(tool_calls=[{"name": "wait", "arguments": {}}]), "First.", "Second."]
    agent = Agent(ScriptedModel(script), tools=[wait], store=sys.argv[1])
    result = await agent.run("Go.", session="s", check=False)
    said = result.final_assistant_message.text if result.final_assistant_message else ""
    print(result.status, result.last_error.message if result.last_error else said, flush=True)

asyncio.run(main())
"""


async def start_worker(store: str, seconds: float) -> subprocess.Popen[str]:
    worker = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", WORKER, store, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert await asyncio.to_thread(worker.stdout.readline) == "waiting\n"
    return worker


async def finish(worker: subprocess.Popen[str]) -> str:
    out, _ = await asyncio.to_thread(worker.communicate, timeout=200)
    return out.strip()


@pytest.mark.spec("L-18")
@pytest.mark.parametrize("scheme", ["sqlite:{}/log.db", "jsonl:{}/logs"])
async def test_abort_reaches_a_run_in_another_process(tmp_path: Path, scheme: str) -> None:
    url = scheme.format(tmp_path)
    worker = await start_worker(url, 600)
    async with agent_of("unused", store=url) as here:
        assert await here.session("s").abort("enough of it")
        assert await finish(worker) == "aborted enough of it"
        assert (await here.session("s").state()).status == "aborted"


@pytest.mark.spec("L-18", "L-12")
@pytest.mark.parametrize("scheme", ["sqlite:{}/log.db", "jsonl:{}/logs"])
async def test_a_message_reaches_a_run_in_another_process_once(tmp_path: Path, scheme: str) -> None:
    url = scheme.format(tmp_path)
    worker = await start_worker(url, 1.5)
    async with agent_of("unused", store=url) as here:
        await here.send("s", "Make it a double room.")
        assert await finish(worker) == "completed First."
        said = [message.text for message in await here.session("s").messages() if message.role == "user"]
        assert said == ["Go.", "Make it a double room."]
        assert (await here.session("s").replay()).identical
        with pytest.raises(AgentError, match="no run is in progress"):
            await here.send("s", "Too late.")


@pytest.mark.spec("L-18")
async def test_pause_reaches_a_run_in_another_process(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    worker = await start_worker(url, 1.0)
    async with agent_of("Resumed.", store=url) as here:
        assert await here.session("s").pause()
        assert (await finish(worker)).startswith("paused")
        assert (await here.session("s").state()).status == "paused"
        result = await here.session("s").resume()
        assert result is not None and result.text == "Resumed."


@pytest.mark.spec("L-18", "L-12")
async def test_a_message_sent_while_a_call_waits_for_approval_is_heard_at_resume() -> None:
    stage = Stage()
    agent = stage.agent([Turn(tool_calls=[call("send", to="a", text="b")]), "Both done."])
    await agent.run("Go.", session=SESSION)
    await stage.agent([]).send(SESSION, "And hurry.")
    (waiting,) = await agent.pending(SESSION)
    await agent.session(SESSION).approve(waiting, by="ann")
    second = stage.agent(["Both done."])
    result = await second.resume(SESSION)
    assert result is not None and result.text == "Both done."
    assert [m.text for m in await second.session(SESSION).messages() if m.role == "user"] == [
        "Go.",
        "And hurry.",
    ]
    assert (await replay(stage.store, SESSION)).identical


async def test_a_run_in_the_background_is_in_the_log_at_once_and_can_be_sent_to() -> None:
    go_on = asyncio.Event()

    @tool(timeout=None)
    async def wait() -> str:
        """Wait."""
        await go_on.wait()
        return "waited"

    agent = agent_of(Turn(tool_calls=[{"name": "wait", "arguments": {}}]), "Done.", tools=[wait])
    run = await agent.start("Go.", session="s")
    assert await agent.store.tail("s") is not None, "a killed server has not lost the message"
    async for event in run.events():
        if isinstance(event, ToolStarted):
            await run.send("And hurry.")
            go_on.set()
    assert [m.text for m in await agent.session("s").messages() if m.role == "user"] == ["Go.", "And hurry."]


# ── answers that come later ──


@pytest.mark.spec("T-11")
async def test_a_call_is_answered_later_from_another_agent() -> None:
    store = MemoryStore()

    @tool
    def ask_desk(question: str) -> ToolResult:
        """Ask the front desk."""
        return ToolResult.deferred(
            "the desk answers by mail", question=question, answer_schema={"type": "string", "minLength": 2}
        )

    turns = [Turn(tool_calls=[{"name": "ask_desk", "arguments": {"question": "A room?"}}]), "Booked."]
    agent = agent_of(*turns, tools=[ask_desk], store=store)
    async with agent.run_stream("Book a room.", session="s") as run:
        told = [event async for event in run if isinstance(event, ToolDeferred)]
    assert (await run.result()).status == "awaiting_human"
    assert [(event.tool_name, event.question, event.answer_schema) for event in told] == [
        ("ask_desk", "A room?", {"type": "string", "minLength": 2})
    ]
    assert told == [event async for event in agent.session("s").events() if event.kind == "tool_deferred"]
    deferred = next(e.payload for e in await store.load("s") if e.kind == "tool_deferred")
    assert deferred.question == "A room?"
    elsewhere = agent_of("Booked.", tools=[ask_desk], store=store)
    desk = elsewhere.session("s")
    with pytest.raises(AgentError, match="does not fit what was asked for"):
        await desk.answer(deferred.tool_call_id, "y")
    with pytest.raises(AgentError, match="does not wait for an answer"):
        await desk.answer("call_unknown", "yes")
    await desk.answer(deferred.tool_call_id, "Room 12.", by="the desk")
    answered = (await store.load("s"))[-1]
    assert answered.kind == "tool_results" and answered.meta == {"answered_by": "the desk"}
    done = await desk.resume()
    assert done is not None and done.text == "Booked."
    assert (await replay(store, "s")).identical


@pytest.mark.spec("T-11", "A-2")
@pytest.mark.parametrize("how", ["decide and answer", "abort", "pause"])
async def test_a_process_without_the_agent_reads_and_controls_its_sessions(how: str) -> None:
    store = MemoryStore()

    @tool(requires_approval=True)
    def book(hotel: str) -> str:
        """Book a room."""
        return f"booked {hotel}"

    @tool
    def ask_desk(question: str) -> ToolResult:
        """Ask the front desk."""
        return ToolResult.deferred("the desk answers by mail", question=question)

    calls = [call("book", hotel="Ritz"), call("ask_desk", question="When?")]
    parts: dict[str, Any] = {
        "tools": [book, ask_desk],
        "store": store,
        "widgets": [MemoryNotebookWidget()],
    }
    agent = agent_of(Turn(tool_calls=calls), "Booked.", **parts)
    await agent.run("Book a room.", session="s")
    await agent.update_notebook("s", {"guest": "ann"})
    trip = open_session(store, "s")
    assert await trip.driver() is None
    (asked,), (question,) = await trip.pending(), await trip.questions()
    assert (asked.tool_name, question.question) == ("book", "When?")
    match how:
        case "abort":
            assert await trip.abort("enough")
            assert (await trip.state()).status == "aborted"
        case "pause":
            assert await trip.pause()
            assert (await trip.state()).status == "paused"
        case _:
            with pytest.raises(AgentError, match="do not fit 'book'"):
                await trip.modify(asked, arguments={"inn": "x"}, by="bob")
            await trip.approve(asked, by="bob")
            await trip.answer(question, "At nine.", by="the desk")
            assert await trip.pending() == await trip.questions() == []
            done = await agent.resume("s")
            assert done is not None and done.text == "Booked."
    assert (await trip.replay()).identical
    branch = await trip.fork()
    assert [info.session_id for info in await store.sessions(parent="s")] == [branch.session_id]


async def test_two_answers_at_the_same_time_wait_for_each_other() -> None:
    store = MemoryStore()

    @tool
    def ask_desk(question: str) -> ToolResult:
        """Ask the front desk."""
        return ToolResult.deferred("the desk answers by mail", question=question)

    calls = [call("ask_desk", question=question) for question in ("When?", "Where?", "Who?")]
    agent = agent_of(Turn(tool_calls=calls), "Booked.", tools=[ask_desk], store=store)
    await agent.run("Book a room.", session="s")
    desks = [open_session(store, "s") for _ in calls]
    asked = await desks[0].questions()
    await asyncio.gather(*(desk.answer(one, "Yes.") for desk, one in zip(desks, asked, strict=True)))
    done = await agent.resume("s")
    assert done is not None and done.text == "Booked."
    assert (await replay(store, "s")).identical


async def test_a_session_without_an_agent_is_opened_on_a_store() -> None:
    wrong: Any = "sqlite:agent.db"
    with pytest.raises(AgentError, match="open_store"):
        open_session(wrong, "s")
    nobody = open_session(MemoryStore(), "s")
    for work in (nobody.pending, nobody.questions, nobody.entries, nobody.delete):
        with pytest.raises(AgentError, match="there is no session"):
            await work()
    assert not await nobody.abort() and not await nobody.pause()
    with pytest.raises(AgentError, match="no run is in progress"):
        await nobody.send("Hello?")


# ── a stalled run ──


@pytest.mark.spec("L-19", "L-4")
async def test_the_model_is_told_and_the_run_ends_when_one_call_fails_again_and_again() -> None:
    @tool
    def price(of: str) -> int:
        """The price of something."""
        raise KeyError(of)

    same = Turn(tool_calls=[{"name": "price", "arguments": {"of": "apples"}}])
    agent = agent_of(*[same] * 20, tools=[price])
    result = await agent.run("Apples?", session="s", check=False)
    assert result.last_error is not None and result.last_error.code == "RunStalled"
    results = [m for m in await agent.session("s").messages() if m.role == "tool"]
    told = ["Do not repeat it" in str(m.tool_results[0].payload.content) for m in results]
    assert told == [False, False, True, True, True]
    assert (await agent.session("s").replay()).identical
    patient = agent_of(*[same] * 6, "Fine.", tools=[price])
    limits = Limits(max_repeated_failures=None, warn_repeated_failures=0)
    assert (await patient.run("Apples?", limits=limits)).text == "Fine."


# ── what a run is given ──


class Bank:
    def balance(self, account: str) -> str:
        return f"{account}: 7"


@tool
async def balance(ctx: ToolContext[Bank], account: str) -> str:
    """The balance of an account."""
    return ctx.deps.balance(account)


@pytest.mark.spec("T-12")
async def test_deps_reach_tools_and_a_wrong_type_is_refused() -> None:
    ask = Turn(tool_calls=[{"name": "balance", "arguments": {"account": "17"}}])
    agent = agent_of(ask, "Seven.", tools=[balance], deps_type=Bank)
    async with agent.run_stream("How much?", deps=Bank()) as run:
        told = [event.text async for event in run if isinstance(event, ToolFinished)]
    assert told == ["17: 7"]
    with pytest.raises(AgentError, match="Bank"):
        await agent.run("How much?", deps="a string")
    with pytest.raises(AgentError, match="Bank"):
        await agent.run("How much?")


@pytest.mark.spec("L-15")
async def test_every_option_of_a_run_reaches_its_record() -> None:
    stage = Stage()
    agent = stage.agent(["Yes."])
    options: dict[str, Any] = {
        "run_id": "r1",
        "tool_order": ["look", "add"],
        "allowed_tools": ["add", "look"],
        "role": "planner",
        "trace_id": "t1",
        "instructions": "Be brave.",
        "runtime_data": {"cwd": "/"},
        "title": "Trip",
        "metadata": {"customer": 7},
    }
    result = await agent.run("Go?", session=SESSION, **options)
    started = next(e.payload for e in await stage.store.load(SESSION) if e.kind == "run_started")
    assert result.run_id == "r1" and started.tool_order == ["look", "add"]
    assert (started.role, started.trace_id, started.system_prompt_override) == ("planner", "t1", "Be brave.")
    tools = next(e.payload.tools for e in await stage.store.load(SESSION) if e.kind == "tools_change")
    assert [spec.name for spec in tools] == ["look", "add"]
    (info,) = await stage.store.sessions()
    assert (info.title, info.metadata) == ("Trip", {"customer": 7})
    with pytest.raises(AgentError, match="did you mean session"):
        await agent.run("x", sesion="s1")  # type: ignore[call-arg]
    with pytest.raises(AgentError, match="SessionNotFound"):
        await agent.run("x", session="nowhere", auto_create=False)


async def test_an_input_may_have_sections_and_levels_of_its_own() -> None:
    agent = agent_of("Read.")
    letter = Input("Please read.", summary="A letter.", gist="letter", sections={"Letter": "Dear Ann, …"})
    await agent.run(letter, session="s")
    view = await agent.session("s").explain()
    assert "Letter" in view.messages[-1].text and "Dear Ann" in view.messages[-1].text
    entry = next(e.payload for e in await agent.store.load("s") if e.kind == "model_input")
    assert entry.sections is not None and entry.sections.gist == [("", "letter")]
    assert (await agent.session("s").replay()).identical


# ── order, closing, waiting ──


@pytest.mark.spec("L-3")
async def test_a_decision_is_told_after_its_entry_is_in_the_log() -> None:
    stage = Stage()
    decided: list[bool] = []

    async def check(event: object) -> None:
        if isinstance(event, ApprovalDecided | AnswerAdded):
            decided.append(event.entry_id in {entry.id for entry in await stage.store.load(SESSION)})

    asked = asyncio.Event()

    async def handler(_: object) -> None:
        asked.set()
        await asyncio.sleep(30)

    calls = [call("send", to="a", text="b"), call("send", to="c", text="d")]
    agent = stage.agent(
        [Turn(tool_calls=calls), "Both."], approvals=Approvals(handler=handler), hooks=Hooks(on_event=[check])
    )
    run = asyncio.create_task(agent.run("Go.", session=SESSION))
    await asked.wait()
    for waiting in await agent.pending(SESSION):
        await agent.session(SESSION).approve(waiting, by="ann")
    assert (await asyncio.wait_for(run, 120)).text == "Both."
    assert len(decided) >= 3 and all(decided)


@pytest.mark.spec("L-7")
async def test_closing_an_agent_ends_its_runs_as_aborted_and_asks_no_model_again() -> None:
    model = ScriptedModel([Turn(text="slow", delay=30)], default="again")
    store = MemoryStore()
    agent = Agent(model, store=store)
    run = asyncio.create_task(agent.run("Go.", session="s", check=False))
    while not model.requests:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await agent.close()
    result = await asyncio.wait_for(run, 120)
    assert result.last_error is not None
    assert (result.status, result.last_error.message) == ("aborted", "the agent was closed")
    assert len(model.requests) == 1
    with pytest.raises(AgentError, match="was closed"):
        await agent.run("More?")
    assert SessionState.of(await store.load("s")).status == "aborted", "a store that was handed in stays open"


async def test_concurrent_tools_run_side_by_side_without_another_option() -> None:
    together = asyncio.Barrier(3)

    @tool(concurrent=True)
    async def meet(name: str) -> str:
        """Meet the others."""
        await asyncio.wait_for(together.wait(), 120)
        return name

    calls = [{"name": "meet", "arguments": {"name": name}} for name in "abc"]
    assert (await agent_of(Turn(tool_calls=calls), "Met.", tools=[meet]).run("Go.")).text == "Met."
