"""What a replay notices, and the list of what it takes from the log as a fact.

Whoever changes a fact and nothing else is found by the hash chain (``verify``), not by a replay: nobody but
the log knows what a model said last, or when.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from loop.log_prefixes import trace_of
from loop.scenarios import SESSION, TRACES, Stage, call
from turnlog.contract import (
    AgentError,
    Entry,
    LoopLimits,
    ModelOutputEntry,
    ToolPolicy,
    decode,
    encode,
)
from turnlog.history import verify
from turnlog.loop import Approvals, replay, replay_entries
from turnlog.testing import Turn

FACTS = {
    # Where and when: given by whoever writes; the chain binds them.
    "*": ("id", "sessionId", "timestamp", "hash"),
    "session_header": ("payload", "seq"),
    "branch_summary": ("payload", "runId"),
    # Who the agent was, and what no later decision in the trace depended on.
    "run_started": (
        "runId",
        "payload.agentName",
        "payload.limits.maxRepeatedFailures",
        "payload.limits.warnRepeatedFailures",
        "payload.modelParams",
        "payload.outputSchema",  # sent to the provider; what checks an answer is code, not in the log
        "payload.retry",
        "payload.role",
        "payload.toolPolicy",
    ),
    # Said by a user, a model, a tool or a human. Most of it is found out by the next context's hash.
    "model_input": ("payload.message",),
    "model_output": ("meta.route", "payload.message", "payload.finishReason", "payload.invocation"),
    "model_call_started": ("payload.reason", "payload.target"),
    "model_call_failed": ("payload.error", "payload.partial", "payload.shown"),
    "tool_results": ("payload.message", "payload.outcomes", "payload.executeError", "runId"),
    "widget_event": ("payload.toolCallId", "runId"),
    "approval_requested": ("payload.reason",),
    "approval_decided": ("payload.decidedBy", "payload.note"),
    # The planner looks at prices and windows that are not in the log; its plan is read, not made again.
    "fold": (
        "payload.items",
        "payload.reason",
        "payload.step",
        "payload.tokensAfter",
        "payload.tokensBefore",
    ),
    # Of a run that something outside ended, or that stayed behind where a fork was made.
    "run_ended": ("payload.error", "payload.usage", "runId"),
}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if items is None:
        yield path, value
        return
    for key, item in items:
        yield from leaves(item, (*path, key))


def altered(entry: Entry) -> Iterator[tuple[str, Entry]]:
    """The entry with one leaf changed, for every kind of leaf it has."""
    seen: set[str] = set()
    for path, value in leaves(json.loads(encode(entry))):
        name = ".".join("*" if isinstance(step, int) else step for step in path)
        if name in seen or name == "kind" or value is None:
            continue
        seen.add(name)
        plain = json.loads(encode(entry))
        inner = plain
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = (
            not value if isinstance(value, bool) else value + (1 if type(value) is not str else "x")
        )
        try:
            yield name, decode(encode(plain), Entry)
        except AgentError:
            continue  # no longer an entry at all


def is_fact(kind: str, name: str) -> bool:
    return any(name == fact or name.startswith(f"{fact}.") for fact in (*FACTS["*"], *FACTS.get(kind, ())))


@pytest.mark.spec("H-11")
@pytest.mark.parametrize("trace", list(TRACES))
async def test_every_change_is_noticed_or_on_the_list(trace: str) -> None:
    entries = trace_of(trace)
    unnoticed: set[tuple[str, str]] = set()
    for place, entry in enumerate(entries):
        for name, changed in altered(entry):
            if is_fact(entry.kind, name):
                continue
            report = await replay_entries([*entries[:place], changed, *entries[place + 1 :]], SESSION)
            if report.identical:
                unnoticed.add((entry.kind, name))
    assert unnoticed == set()


@pytest.mark.spec("H-11")
@pytest.mark.parametrize("trace", list(TRACES))
async def test_an_entry_left_out_or_put_twice_is_noticed(trace: str) -> None:
    entries = trace_of(trace)
    others = ("session_header", "system_prompt", "branch_summary", "run_started")
    for place in range(1, len(entries) - 1):
        if entries[place].kind in others or entries[place].session_id != SESSION:
            continue
        for kept in ([], [entries[place], entries[place]]):
            report = await replay_entries([*entries[:place], *kept, *entries[place + 1 :]], SESSION)
            assert not report.identical, f"{entries[place].kind} {place + 1} x {len(kept)}"


@pytest.mark.spec("H-5", "H-11")
async def test_a_changed_fact_is_found_by_the_chain() -> None:
    stage = Stage()
    await stage.agent(["Hello there."]).run("Say hello.", session=SESSION)
    store: Any = stage.store
    log = store._logs[SESSION].own
    place = next(n for n, row in enumerate(log) if row.kind == "model_output")
    log[place] = log[place]._replace(body=log[place].body.replace(b"Hello there.", b"Goodbye then"))
    assert (await replay(stage.store, SESSION)).identical, "the last word leads to nothing more"
    assert [problem.code for problem in await verify(stage.store, SESSION)] == ["changed"]


@pytest.mark.spec("H-11", "A-4")
async def test_a_denied_call_that_was_run_is_noticed() -> None:
    """A log that lets run what a human forbade is no recording of this loop, whatever its hashes say."""
    stage = Stage()
    agent = stage.agent(
        [Turn(tool_calls=[call("send", to="bob", text="x")]), "Done."],
        approvals=Approvals(handler=lambda _: "approve"),
    )
    await agent.run("Greet Bob.", session=SESSION)
    entries = await stage.store.load(SESSION)
    assert (await replay_entries(entries, SESSION)).identical
    place = next(n for n, entry in enumerate(entries) if entry.kind == "approval_decided")
    payload: Any = msgspec.structs.replace(entries[place].payload, action="deny")
    entries[place] = msgspec.structs.replace(entries[place], payload=payload)  # type: ignore[type-var]
    report = await replay_entries(entries, SESSION)
    assert not report.identical and report.kind == "tool_started"


@pytest.mark.spec("H-11", "L-5")
async def test_a_call_beyond_the_limit_is_noticed() -> None:
    stage = Stage()
    turn = Turn(tool_calls=[call("add", a=1, b=2), call("add", a=3, b=4)])
    await stage.agent([turn, "Done."], tool_policy=ToolPolicy(max_calls_per_run=2)).run(
        "Go.", session=SESSION
    )
    entries = await stage.store.load(SESSION)
    place = next(n for n, entry in enumerate(entries) if entry.kind == "run_started")
    payload: Any = msgspec.structs.replace(
        entries[place].payload, tool_policy=ToolPolicy(max_calls_per_run=1)
    )
    entries[place] = msgspec.structs.replace(entries[place], payload=payload)  # type: ignore[type-var]
    report = await replay_entries(entries, SESSION)
    assert not report.identical and report.kind == "tool_started"


@pytest.mark.spec("H-11", "L-4")
@pytest.mark.parametrize(
    "limits",
    [LoopLimits(max_repeated_failures=3), LoopLimits(max_iterations=3), LoopLimits(max_tool_rounds=2)],
)
async def test_a_run_that_continued_beyond_its_limits_is_noticed(limits: LoopLimits) -> None:
    stage = Stage()
    turns = [*[Turn(tool_calls=[call("divide", a=1, b=0)])] * 3, "It cannot be done."]
    await stage.agent(turns).run("Divide.", session=SESSION)
    entries = await stage.store.load(SESSION)
    place = next(n for n, entry in enumerate(entries) if entry.kind == "run_started")
    payload: Any = msgspec.structs.replace(entries[place].payload, limits=limits)
    entries[place] = msgspec.structs.replace(entries[place], payload=payload)  # type: ignore[type-var]
    report = await replay_entries(entries, SESSION)
    assert not report.identical and report.kind in ("model_call_started", "tool_started")


@pytest.mark.spec("H-11", "R-3")
async def test_the_reason_of_a_route_is_part_of_the_replay() -> None:
    entries = trace_of("G-15")
    assert any(isinstance(entry, ModelOutputEntry) and entry.meta for entry in entries)
    assert (await replay_entries(entries, SESSION)).identical
