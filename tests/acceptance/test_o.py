"""O. Observability."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acceptance.desk import Desk, asks_for, call, results_in
from turnlog import Agent, load_model, open_store, tool
from turnlog.evals import Suite, add_case, read_cases
from turnlog.testing import Loopback, LoopbackAnswer, ScriptedModel, Turn

MODEL = "claude-sonnet-4-5"


def answer(cached: int) -> LoopbackAnswer:
    """A streamed answer of a model whose price is known, with so many cached tokens of a thousand."""
    usage = {"input_tokens": 1_000 - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    start: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 100}},
        {"type": "message_stop"},
    ]
    return LoopbackAnswer.sse("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events))


@pytest.mark.spec("O-2", "D-7")
async def test_usage_and_cost_are_known_for_each_call_run_and_session_with_cached_tokens_apart() -> None:
    desk = Desk()
    async with Loopback(answer(0), answer(600)) as server:
        model = load_model(f"anthropic:{MODEL}", api_key="sk-none-of-ours-0", base_url=server.url)
        agent = Agent(model, store=desk.store)
        first = (await agent.run("Hi.", session="s")).usage
        second = (await agent.run("Hi again.", session="s")).usage
        await model.close()
    assert first is not None and second is not None
    assert (first.input_tokens, first.output_tokens, first.total_tokens) == (1_000, 100, 1_100)
    assert (first.cached_input_tokens or 0, second.cached_input_tokens) == (0, 600)
    assert first.cost is not None and second.cost is not None
    assert 0 < second.cost < first.cost, "cached tokens cost less"
    calls = [entry.payload.message.meta["usage"] for entry in await desk.of_kind("model_output")]
    assert [used["inputTokens"] for used in calls] == [1_000, 1_000]
    assert [used["cost"] for used in calls] == [first.cost, second.cost]
    state = await agent.session("s").state()
    assert state.token_usage is not None and state.token_usage.total_tokens == 2_200
    assert state.token_usage.cached_input_tokens == 600
    assert state.cost_usage == pytest.approx(first.cost + second.cost)


SCRIPT = """
import asyncio
from turnlog import Agent, open_store, tool
from turnlog.history import export_jsonl, import_jsonl
from turnlog.models import ProviderRouter
from turnlog.testing import ScriptedModel, Turn
from turnlog.transcript import import_messages
from turnlog.widgets import MemoryNotebookWidget

@tool(requires_approval=True)
async def pay() -> str:
    \"\"\"Pay.\"\"\"
    return "paid"

async def main():
    store, notes = open_store("memory:"), MemoryNotebookWidget()
    broken = ScriptedModel([Turn(error={"code": "ModelOverloaded", "message": "busy"})], loop=True)
    good = ScriptedModel([Turn(tool_calls=[{"name": "pay", "arguments": {}}]), "Paid."])
    agent = Agent(ProviderRouter({"a": broken, "b": good}), tools=[pay], store=store, widgets=[notes])
    session = agent.session("s")
    await session.run("The words of the user.")
    [waiting] = await session.pending()
    await session.approve(waiting, by="ann")
    await session.resume()
    await agent.append_widget_event("s", notes.write("sea", "is deep"))
    await session.fork(session="branch")
    said = next(entry for entry in await session.entries() if entry.kind == "model_input")
    await session.redact([said.id], by="ann")
    await import_jsonl(open_store("memory:"), await export_jsonl(store, "branch"))
    await import_messages(store, "other", [{"role": "user", "content": "hi"}], format="openai")

asyncio.run(main())
"""


def logged(categories: str | None) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "TURNLOG_DEBUG"}
    env |= {} if categories is None else {"TURNLOG_DEBUG": categories}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=True, timeout=200
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.spec("O-3")
def test_every_write_is_logged_in_the_categories_that_were_switched_on() -> None:
    assert logged(None) == []
    lines = logged("history,router,loop")
    for written in (
        *("run_started", "run_ended", "approval_decided", "redaction", "widget_event"),  # of the session
        "branch #15 branch_summary",
        "other #2 model_input",
    ):
        assert any("turnlog.history" in line and written in line for line in lines), written
    assert sum("branch #15 branch_summary" in line for line in lines) == 2, "forked, and imported elsewhere"
    routed = [line for line in lines if "turnlog.router" in line]
    assert any("failure of a" in line for line in routed) and any("choice of b" in line for line in routed)
    assert any("turnlog.loop" in line for line in lines)
    assert not any("turnlog.context" in line for line in lines), "what was not asked for is not told"
    assert not any("words of the user" in line for line in lines)


@pytest.mark.spec("O-3")
async def test_a_line_has_its_fields_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "turnlog")
    desk = Desk()
    await desk.agent(asks_for(call("look", place="gate")), "Quiet.").run("Look.", session="s")
    told = [(r.session, r.seq, r.kind, r.id) for r in caplog.records if r.name == "turnlog.history"]  # type: ignore[attr-defined]
    assert told == [("s", entry.seq, entry.kind, entry.id) for entry in await desk.entries()]


# ── what if ──

LOOK_TWICE = (
    asks_for(call("look", place="attic")),
    asks_for(call("look", place="cellar")),
    "Both are quiet.",
)


async def a_past(desk: Desk, turns: Sequence[Any] = LOOK_TWICE, **options: Any) -> list[Any]:
    """The log of a session ``s``, after which nothing counts as done."""
    async with desk.agent(*turns, **options) as agent:
        await agent.run("Is it quiet?", session="s")
    desk.done.clear()
    return await desk.entries()


@pytest.mark.spec("O-5")
async def test_from_any_entry_another_model_or_prompt_runs_on_and_no_recorded_call_runs_again() -> None:
    desk = Desk()
    past = await a_past(desk)
    calls = [entry.seq for entry in past if entry.kind == "model_call_started"]
    for entry in past[:-1]:  # after the last one there is nothing to run on
        # The model calls that follow the entry, or that it belongs to, are made again.
        begun = sum(seq <= entry.seq for seq in calls)
        again = begun - 1 if entry.kind in ("model_call_started", "model_output") else begun
        rest = LOOK_TWICE[again:]
        other = ScriptedModel(list(rest), model_id="other", clock=desk.clock, ids=desk.ids)
        agent = desk.agent(*rest)
        branches = [
            await agent.session("s").rerun(entry.seq, model=other),
            await agent.session("s").rerun(entry.seq, instructions="Be brief."),
        ]
        for branch in branches:
            assert (await branch.state()).status == "completed", f"entry {entry.seq}, {entry.kind}"
            found = results_in(await branch.messages())
            assert found == [(False, "attic is quiet"), (False, "cellar is quiet")]
            assert (await branch.messages())[-1].text == "Both are quiet."
            assert (await branch.replay()).identical
        assert len(other.requests) == len(rest)
        assert (await branches[0].explain()).target.model == "other"
        assert (await branches[1].explain()).system_prompt == "Be brief."
    assert desk.done == [] and await desk.entries() == past


@pytest.mark.spec("O-5")
async def test_another_result_or_argument_from_any_entry_of_a_call_and_other_words() -> None:
    desk = Desk()
    past = await a_past(desk)
    [cellar] = [e.payload.tool_call_id for e in past if e.kind == "tool_started"][1:]
    entries = [e for e in past if e.kind in ("model_output", "tool_started", "tool_results")]
    of_call = [e.seq for e in entries if cellar in str(e.payload)]
    assert len(of_call) == 3
    for at in of_call:
        changed = await desk.agent("It is loud.").session("s").rerun(at, result="loud")
        assert results_in(desk.seen) == [(False, "attic is quiet"), (False, "loud")]
        assert (await changed.messages())[-1].text == "It is loud." and desk.done == []
        # A call that the recording does not have is executed only where that is allowed.
        refused = await desk.agent("Never.").session("s").rerun(at, arguments={"place": "shed"})
        assert (await refused.state()).status == "aborted" and desk.done == []
        live = (
            await desk.agent("So is the shed.")
            .session("s")
            .rerun(at, arguments={"place": "shed"}, tools="live")
        )
        assert results_in(desk.seen) == [(False, "attic is quiet"), (False, "shed is quiet")]
        assert desk.done == ["look shed"]
        desk.done.clear()
        for branch in (changed, refused, live):
            assert (await branch.replay()).identical
    [asked] = [e.seq for e in past if e.kind == "model_input"]
    worded = await desk.agent(LOOK_TWICE[1], "It is.").session("s").rerun(asked, text="Is the cellar quiet?")
    assert (await worded.messages())[0].text == "Is the cellar quiet?"
    assert results_in(desk.seen) == [(False, "cellar is quiet")] and desk.done == []
    assert await desk.entries() == past


@pytest.mark.spec("O-5")
async def test_a_result_is_reused_only_where_the_call_is_the_same() -> None:
    @tool
    async def count(step: int = 1, unit: str = "m") -> str:
        """Count."""
        desk.done.append(f"count {step} {unit}")
        return f"{len(desk.done)} {unit}"

    desk = Desk()
    unreadable = asks_for({"name": "count", "rawArgs": "{step"})
    first = asks_for(call("count", step=2, unit="km"), call("count", step=2, unit="km"))
    past = await a_past(desk, (unreadable, first, "Counted."), tools=[count])
    [at, *_] = [entry.seq for entry in past if entry.kind == "model_call_started"]
    turns = (
        asks_for(call("count", unit="km", step=2)),  # the order of the names does not matter
        asks_for(call("count", step=2, unit="km")),
        asks_for(call("count", step=2, unit="km")),  # recorded twice, and no third time
        asks_for(call("count")),  # not the call whose arguments could not be read
        "Done.",
    )
    branch = await desk.agent(*turns, tools=[count]).session("s").rerun(at, tools="live")
    assert [content for _, content in results_in(await branch.messages())] == ["1 km", "2 km", "1 km", "2 m"]
    assert desk.done == ["count 2 km", "count 1 m"]
    # One that cannot be read needs no recording: it is answered, and nothing is executed.
    unread = await desk.agent(unreadable, "Sorry.", tools=[count]).session("s").rerun(at)
    assert (await unread.state()).status == "completed" and len(desk.done) == 2
    for each in (branch, unread):
        assert (await each.replay()).identical


@pytest.mark.spec("O-5")
async def test_the_branches_are_compared() -> None:
    desk = Desk()
    past = await a_past(desk)
    [at] = [e.seq for e in past if e.kind == "tool_results"][1:]
    branch = await desk.agent("The cellar is loud.").session("s").rerun(at, result="loud", session="b")
    both = await desk.agent().session("s").compare(branch)
    assert (both.a, both.b) == ("s", "b") and past[both.shared - 1].kind == "tool_results"
    told = [line.split("|") for line in both.text.splitlines() if line.startswith("≠")]
    assert any("Both are quiet." in left and "The cellar is loud." in right for left, right in told)
    same = await desk.agent().session("s").compare("s")
    assert "≠" not in same.text and same.shared == len(past)


@pytest.mark.spec("O-6")
async def test_suites_of_cases_from_sessions_and_files_are_checked_repeated_and_compared(
    tmp_path: Path,
) -> None:
    """Cases from a session and from a file; checks; repetitions; a report with intervals and what changed."""
    store = open_store(f"sqlite:{tmp_path / 'log.db'}")
    paid = True

    def model(request: Any) -> Any:
        if request.messages[-1].role == "user":
            return Turn(tool_calls=[{"name": "look_up", "arguments": {"order": "42"}}])
        return "It is paid." if paid else "I do not know."

    @tool
    def look_up(order: str) -> str:
        """Find an order."""
        return "paid"

    def clerk() -> Agent:
        return Agent(ScriptedModel(default=model), tools=[look_up], store=store)

    await clerk().run("Is order 42 paid?", session="monday")
    file = tmp_path / "cases.jsonl"
    await add_case(file, store, "monday")
    with file.open("a") as out:
        out.write('{"name": "by hand", "input": "And order 43?", "checks": [{"contains": "paid"}]}\n')

    def suite() -> Suite:
        return Suite("orders", agents={"clerk": clerk()}, cases=read_cases(file), repeat=3)

    first = await suite().run()
    assert first.passed and len(first.trials) == 6
    assert first.scores[0].rate.low == pytest.approx(0.6097, abs=0.001) and first.scores[0].rate.high == 1
    paid = False
    second = await suite().run()
    assert [(change.case, change.before.share, change.now.share) for change in second.regressions] == [
        ("by hand", 1, 0)
    ]
    for trial in second.trials:
        assert (await clerk().session(trial.session_id).replay()).identical
    await store.close()


@pytest.mark.spec("O-1")
async def test_traces_and_metrics_follow_the_conventions_and_content_is_opt_in() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra 'otel'")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from turnlog.observe import OpenTelemetry

    for content in (False, True):
        spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
        observer = OpenTelemetry(exporter=spans, meter_provider=MeterProvider([metrics]), content=content)
        agent = Desk().agent(asks_for(call("look", place="attic")), "All is quiet.", observers=[observer])
        await agent.run("Look at the attic.")
        observer.close()
        found = {span.name.split()[0]: dict(span.attributes or {}) for span in spans.get_finished_spans()}
        assert set(found) == {"invoke_agent", "chat", "execute_tool"}
        for operation, attributes in found.items():
            assert attributes["gen_ai.operation.name"] == operation
        assert found["execute_tool"]["gen_ai.tool.name"] == "look"
        assert {"gen_ai.provider.name", "gen_ai.request.model", "gen_ai.usage.input_tokens"} <= set(
            found["chat"]
        )
        assert ("All is quiet." in str(found)) is content
        counted: Any = metrics.get_metrics_data()
        assert "gen_ai.client.operation.duration" in counted.to_json()


@pytest.mark.spec("O-1")
def test_traces_cost_nothing_when_they_are_off() -> None:
    """Nothing of OpenTelemetry, or of ours for it, is loaded by a run without an observer."""
    code = (
        "import sys; from turnlog import Agent; from turnlog.testing import ScriptedModel\n"
        "Agent(ScriptedModel(['Hi.']), store='memory:').run_sync('Hello.')\n"
        "print([n for n in sys.modules if 'opentelemetry' in n or n.endswith(('._spans', '._otel'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
