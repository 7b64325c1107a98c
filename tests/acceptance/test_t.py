"""T. Tools and runtime."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import Agent, AgentError, ToolContext, ToolResult, tool
from turnlog.contract import ExecutionEnv, StoredEntry, ToolPolicy, encode
from turnlog.runtime import LocalRuntime
from turnlog.testing import FakeRuntime, ScriptedModel, Turn, VirtualClock
from turnlog.tools import code_tools


@pytest.mark.spec("T-1")
async def test_name_description_and_schema_come_from_signature_and_docstring() -> None:
    @tool
    def book(city: str, nights: int = 1, breakfast: bool | None = None) -> str:
        """Book a room.

        Args:
            city: Where to sleep.
        """
        return f"{city} {nights}"

    @tool
    async def cancel(number: int) -> str:
        """Cancel a booking."""
        return f"cancelled {number}"

    desk = Desk()
    agent = desk.agent(
        asks_for(call("book", city="Rome", nights=2), call("cancel", number=7)), "Ok.", tools=[book, cancel]
    )
    await agent.run("Book.", session="s")
    assert desk.model is not None
    specs = {spec.name: spec for spec in desk.model.requests[0].tool_specs}
    assert specs["book"].description.startswith("Book a room.")
    schema = specs["book"].parameter_schema
    assert schema["required"] == ["city"]
    assert schema["properties"]["city"]["type"] == "string"
    assert schema["properties"]["city"]["description"] == "Where to sleep."
    assert schema["properties"]["nights"]["type"] == "integer"
    assert [content for _, content in results_in(desk.seen)] == ["Rome 2", "cancelled 7"]


@pytest.mark.spec("T-2")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "place"),
        ({"place": 3}, "place"),
        ({"place": "x", "plaice": 1}, "plaice"),
        ({"place": None}, "place"),
    ],
)
async def test_what_is_wrong_goes_back_to_the_model_and_nothing_runs(
    arguments: dict[str, Any], words: str
) -> None:
    desk = Desk()
    await desk.agent(asks_for({"name": "look", "arguments": arguments}), "Sorry.").run("Look.", session="s")
    [(is_error, content)] = results_in(desk.seen)
    assert is_error and words in content and desk.done == []


@pytest.mark.spec("T-2")
@pytest.mark.parametrize(
    ("given", "runs"), [(2.0, True), ("2", False), (True, False), (2.5, False), (10**30, True)]
)
async def test_nothing_is_coerced_but_what_json_forces(given: Any, runs: bool) -> None:
    got: list[Any] = []

    @tool
    async def take(number: int) -> str:
        """Take a number."""
        got.append(number)
        return "taken"

    desk = Desk()
    await desk.agent(asks_for(call("take", number=given)), "Ok.", tools=[take]).run("Go.", session="s")
    assert bool(got) is runs
    assert all(type(number) is int for number in got)


class Room:
    """How many are inside at once."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def stay(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        for _ in range(20):
            await asyncio.sleep(0)
        self.inside -= 1


@pytest.mark.spec("T-3")
@pytest.mark.parametrize(
    ("concurrent", "most", "expected"), [(False, 4, 1), (True, 1, 1), (True, 3, 3), (True, 9, 6)]
)
async def test_tools_run_one_by_one_or_side_by_side_up_to_the_limit(
    concurrent: bool, most: int, expected: int
) -> None:
    room = Room()

    @tool(concurrent=concurrent, timeout=None)
    async def enter(number: int) -> str:
        """Enter."""
        await room.stay()
        return f"was {number}"

    desk = Desk()
    calls = [call("enter", number=n) for n in range(6)]
    agent = desk.agent(asks_for(*calls), "Ok.", tools=[enter], tool_policy=ToolPolicy(max_parallel=most))
    await agent.run("Go.", session="s")
    assert room.most == expected
    assert [content for _, content in results_in(desk.seen)] == [f"was {n}" for n in range(6)]


@pytest.mark.spec("T-3")
async def test_results_are_appended_as_they_finish_and_shown_in_call_order() -> None:
    first_may_end = asyncio.Event()

    @tool(concurrent=True, timeout=None)
    async def wait(name: str) -> str:
        """Wait for the other."""
        if name == "first":
            await first_may_end.wait()
        else:
            first_may_end.set()
        return name

    desk = Desk()
    agent = desk.agent(asks_for(call("wait", name="first"), call("wait", name="second")), "Ok.", tools=[wait])
    await agent.run("Go.", session="s")
    appended = [
        part.payload.content
        for entry in await desk.of_kind("tool_results")
        for part in entry.payload.message.tool_results
    ]
    assert appended == ["second", "first"]
    assert [content for _, content in results_in(desk.seen)] == ["first", "second"]


@pytest.mark.spec("T-3")
@pytest.mark.parametrize(
    ("options", "status"),
    [({"idempotent": True}, "success"), ({"keyed": True}, "success"), ({}, "unknown")],
)
async def test_a_start_is_in_the_log_before_the_effect_and_a_crash_repeats_only_what_may_be(
    options: dict[str, Any], status: str
) -> None:
    desk = Desk()
    at_effect: list[str] = []
    keys: list[str] = []

    @tool(timeout=None, **options)
    async def act(ctx: ToolContext) -> str:
        """Act."""
        at_effect.append((await desk.entries())[-1].kind)
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            await asyncio.Event().wait()
        return "acted"

    async with desk.agent(asks_for(call("act")), tools=[act]).run_stream("Go.", session="s") as run:
        async for event in run:
            if event.kind == "tool_started":
                for _ in range(100):  # until the tool hangs where it had its effect
                    await asyncio.sleep(0)
                log = await desk.entries()
                break
    assert at_effect == ["tool_started"]
    crashed = Desk()  # the log as it was when the process died
    await crashed.store.append(
        "s", [StoredEntry(e.seq, e.id, e.kind, encode(e)) for e in log], expected_tail=0
    )
    result = await crashed.agent("Well.", tools=[act]).resume("s", check=False)
    assert result is not None and result.status == "completed"
    [results] = await crashed.of_kind("tool_results")
    assert results.payload.outcomes[0].status == status
    started = [entry.payload for entry in await crashed.of_kind("tool_started")]
    assert len({each.idempotency_key for each in started}) == 1
    assert len(started) == (1 if status == "unknown" else 2)


@pytest.mark.spec("T-4")
async def test_a_tool_is_ended_at_its_time_tried_again_and_its_output_cut() -> None:
    clock = VirtualClock(auto=True)
    tries: list[int] = []

    @tool(timeout=5)
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    @tool(idempotent=True, retries=2, retry_on=(ConnectionError,))
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "there"

    @tool(max_output=1_000)
    async def long() -> str:
        """Say much."""
        return "".join(f"line {n}\n" for n in range(1_000))

    desk = Desk()
    desk.clock = clock  # type: ignore[assignment]
    turns = [asks_for(call("hang"), call("flaky"), call("long")), "Ok."]
    await desk.agent(*turns, tools=[hang, flaky, long]).run("Go.", session="s")
    hung, tried, said = results_in(desk.seen)
    assert hung[0] and "5 s" in hung[1]
    assert tried == (False, "there") and len(tries) == 3
    assert len(said[1]) < 3_000 and "read_artifact" in said[1]
    outcomes = [entry.payload.outcomes[0] for entry in await desk.of_kind("tool_results")]
    [kept] = [outcome.artifact for outcome in outcomes if outcome.artifact]
    assert (await desk.store.get_blob(kept)).endswith(b"line 999\n")


@pytest.mark.spec("T-4")
async def test_a_sync_tool_does_not_hold_up_the_loop() -> None:
    began, release = threading.Event(), threading.Event()

    @tool(timeout=None)
    def block() -> str:
        """Block a thread."""
        began.set()
        assert release.wait(60)
        return "released"

    desk = Desk()
    run = asyncio.create_task(
        desk.agent(asks_for(call("block")), "Ok.", tools=[block]).run("Go.", session="s")
    )
    assert await asyncio.to_thread(began.wait, 60)
    other = await Desk().agent("The loop goes on.").run("Hi.", session="other")
    assert other.text == "The loop goes on." and not run.done()
    release.set()
    assert (await run).text == "Ok."


@pytest.mark.spec("T-6")
async def test_a_runtime_tells_its_state_runs_commands_and_keeps_its_policy(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    policy = ExecutionEnv(writable_roots=("out",), timeout=30, max_memory=200_000_000)
    runtime = LocalRuntime(tmp_path, policy=policy)
    assert runtime.status == "idle"
    connecting = asyncio.create_task(runtime.connect())
    await asyncio.sleep(0)
    assert runtime.status == "connecting"
    try:
        await connecting
    except AgentError as error:
        pytest.skip(error.message)
    assert runtime.status == "ready" and runtime.sandbox in ("workspace", "landlock")
    assert {"run", "stdin", "files"} <= runtime.capabilities()
    assert await runtime.get_init_data() == await runtime.get_init_data()
    assert await runtime.get_hints() == {}
    inside = await runtime.execute("echo x > out/a; echo x > b; cat out/a")
    assert inside.stdout == "x\n" and "b" in inside.stderr and not (tmp_path / "b").exists()
    await runtime.write("out/c", b"x")
    with pytest.raises(AgentError, match="writable"):
        await runtime.write("b", b"x")
    python = [sys.executable, "-I", "-S", "-c"]
    with socket.create_server(("127.0.0.1", 0)) as service:
        ask = f"import socket; socket.create_connection(('127.0.0.1', {service.getsockname()[1]}), 5)"
        assert (await runtime.execute([*python, ask])).exit_code == 1, "the network is denied"
    assert (await runtime.execute("sleep 600", timeout=0.1)).reason == "timed_out"
    assert "MemoryError" in (await runtime.execute([*python, "bytearray(400_000_000)"])).stderr
    await runtime.close()
    assert runtime.status == "closed"


@pytest.mark.spec("T-6")
async def test_where_there_is_no_sandbox_the_runtime_says_so_and_refuses_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))  # no bubblewrap is found
    runtime = LocalRuntime(tmp_path, level="workspace")
    with pytest.raises(AgentError, match="is not installed") as caught:
        await runtime.connect()
    assert caught.value.code == "RuntimeUnavailable" and runtime.status == "failed"
    monkeypatch.undo()
    async with LocalRuntime(tmp_path, level="none") as told:
        assert told.sandbox is None and (await told.get_init_data())["sandbox"] == "none"
        assert (await told.execute("echo here")).stdout == "here\n"


@pytest.mark.spec("T-7")
async def test_built_in_tools_work_on_the_files_and_commands_of_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1\n")
    model = ScriptedModel(
        [
            asks_for(call("glob", pattern="**/*.py")),
            asks_for(call("grep", pattern=r"x\s*=")),
            asks_for(call("read", path="src/a.py")),
            asks_for(call("edit", path="src/a.py", old="1", new="2")),
            asks_for(call("write", path="src/b.py", content="from a import x\nprint(x)\n")),
            asks_for(call("shell", command="python3 -B src/b.py")),
            "Done.",
        ]
    )
    runtime = LocalRuntime(tmp_path, level="none")
    async with Agent(model, tools=code_tools(), runtime=runtime, store="memory:") as agent:
        await agent.run("Work.", session="s")
    results = results_in(model.requests[-1].messages)
    assert not any(is_error for is_error, _ in results), results
    contents = [content for _, content in results]
    assert contents[:3] == ["src/a.py", "src/a.py:1:x = 1", "     1\tx = 1"]
    assert contents[3].startswith("edited src/a.py") and contents[4].startswith("wrote src/b.py")
    assert contents[5] == "2\n[ended with exit code 0]"
    assert (tmp_path / "src" / "a.py").read_text() == "x = 2\n"


@pytest.mark.spec("T-5")
async def test_ctx_is_handed_in_where_it_is_declared_and_a_missing_runtime_is_told() -> None:
    seen: list[Any] = []

    @tool
    async def who(ctx: ToolContext) -> str:
        """Say who runs it."""
        seen.append((ctx.session_id, ctx.run_id, ctx.agent, ctx.runtime))
        ctx.progress("halfway")
        return "said"

    @tool(requires_runtime=True)
    async def shell(ctx: ToolContext) -> str:
        """Need a runtime."""
        return "ran"

    turns = [asks_for(call("who"), call("shell")), "Ok."]
    desk = Desk()
    agent = desk.agent(*turns, tools=[who, shell], name="porter")
    result = await agent.run("Go.", session="s")
    [(session, run_id, info, runtime)] = seen
    assert (session, run_id, info.name, runtime) == ("s", result.run_id, "porter", None)
    assert "ctx" not in encode(desk.model and desk.model.requests[0].tool_specs).decode()
    _, (is_error, words) = results_in(desk.seen)
    assert is_error and "runtime" in words
    other = Desk()
    await other.agent(*turns, tools=[who, shell], runtime=FakeRuntime()).run("Go.", session="s")
    assert results_in(other.seen)[1] == (False, "ran")


@pytest.mark.spec("T-9")
async def test_a_change_of_tools_is_recorded_and_breaks_the_wire() -> None:
    desk = Desk()
    tools = desk.tools()
    contexts: list[bytes] = []
    for turn, offered in enumerate([tools, tools, tools[:1]]):
        agent = desk.agent(f"Answer {turn}.", tools=offered)
        await agent.run(f"Question {turn}.", session="s")
        assert desk.model is not None
        request = desk.model.requests[-1]
        contexts.append(
            encode([request.system_prompt, list(request.tool_specs), list(request.messages)])[:-2]
        )
    first, second, third = contexts
    assert second.startswith(first), "the same tools: the wire only grows"
    assert not third.startswith(second)
    changes = [[spec.name for spec in entry.payload.tools] for entry in await desk.of_kind("tools_change")]
    assert len(changes) == 2 and "pay" in changes[0] and "pay" not in changes[1]


@pytest.mark.spec("T-10")
async def test_progress_reaches_the_events() -> None:
    @tool
    async def walk(ctx: ToolContext) -> str:
        """Walk."""
        for step in range(3):
            ctx.progress(f"step {step}")
        return "there"

    desk = Desk()
    told: list[str | None] = []
    async with desk.agent(asks_for(call("walk")), "Ok.", tools=[walk]).run_stream("Go.", session="s") as run:
        async for event in run:
            if event.kind == "tool_progressed" or event.kind == "tool_progress":
                told.append(event.text)
            if event.kind == "tool_result":
                assert told == ["step 0", "step 1", "step 2"]
    assert told == ["step 0", "step 1", "step 2"]


class Shelf:
    """A toolset that opens, changes and closes."""

    name = "shelf"

    def __init__(self) -> None:
        self.version = 1
        self.words = ["red"]
        self.log: list[str] = []

    async def open(self) -> None:
        self.log.append("open")

    async def tools(self) -> Sequence[Any]:
        def make(word: str) -> Any:
            @tool(name=word, description=f"Say {word}.")
            async def say() -> str:
                if word == "red":
                    self.words.append("blue")
                    self.version += 1
                return f"said {word}"

            return say

        return [make(word) for word in self.words]

    async def close(self) -> None:
        self.log.append("close")


@pytest.mark.spec("T-11")
async def test_a_toolset_opens_changes_and_closes() -> None:
    desk, shelf = Desk(), Shelf()
    agent = desk.agent(asks_for(call("red")), asks_for(call("blue")), "Ok.", tools=[shelf])
    await agent.run("Go.", session="s")
    assert [content for _, content in results_in(desk.seen)] == ["said red", "said blue"]
    await agent.close()
    assert shelf.log == ["open", "close"]


@pytest.mark.spec("T-11")
async def test_an_answer_may_come_later_from_outside_by_its_id() -> None:
    @tool
    async def ask_boss(question: str) -> ToolResult:
        """Ask the boss."""
        return ToolResult.deferred("the boss is away", question=question)

    desk = Desk()
    first = desk.agent(asks_for(call("ask_boss", question="May I?")), tools=[ask_boss])
    result = await first.run("Ask.", session="s", check=False)
    assert result.status == "awaiting_human"
    [deferred] = await desk.of_kind("tool_deferred")
    assert deferred.payload.question == "May I?"
    other = desk.agent("Then I may.", tools=[ask_boss])
    await other.session("s").answer(deferred.payload.tool_call_id, "Yes.", by="boss")
    result = await other.resume("s", check=False)
    assert result is not None and result.text == "Then I may."
    assert results_in(desk.seen) == [(False, "Yes.")]
    [answered] = await desk.of_kind("tool_results")
    assert answered.meta["answered_by"] == "boss"


@dataclass
class Bank:
    money: int


@pytest.mark.spec("T-12")
async def test_deps_are_typed_per_agent_or_run_and_a_tool_may_end_the_run() -> None:
    @tool
    async def balance(ctx: ToolContext[Bank]) -> str:
        """The balance."""
        return f"{ctx.deps.money}"

    @tool(ends_run=True)
    async def finish(words: str) -> str:
        """Say the last words."""
        return words

    desk = Desk()
    agent = desk.agent(asks_for(call("balance")), "Ok.", tools=[balance, finish], deps_type=Bank)
    await agent.run("How much?", session="s", deps=Bank(7))
    assert results_in(desk.seen) == [(False, "7")]
    with pytest.raises(AgentError, match="Bank"):
        await agent.run("How much?", session="t", deps="no bank")
    ending = desk.agent(asks_for(call("finish", words="That is all.")), tools=[finish])
    result = await ending.run("End.", session="u")
    assert result.status == "completed" and result.output == "That is all."
    assert len(await desk.of_kind("model_call_started", "u")) == 1


@pytest.mark.spec("T-3")
async def test_reconcile_is_asked_what_became_of_a_call() -> None:
    desk = Desk()

    async def look_up(ctx: ToolContext, arguments: dict[str, Any]) -> str:
        return "it had been paid"

    @tool(timeout=None, reconcile=look_up)
    async def act() -> str:
        """Act."""
        await asyncio.Event().wait()
        return "never"

    async with desk.agent(Turn(tool_calls=[call("act")]), tools=[act]).run_stream("Go.", session="s") as run:
        async for event in run:
            if event.kind == "tool_started":
                log = await desk.entries()
                break
    crashed = Desk()
    await crashed.store.append(
        "s", [StoredEntry(e.seq, e.id, e.kind, encode(e)) for e in log], expected_tail=0
    )
    await crashed.agent("Well.", tools=[act]).resume("s", check=False)
    assert results_in(crashed.seen) == [(False, "it had been paid")]
