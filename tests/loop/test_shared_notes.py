"""A notebook that sessions share: one log for a scope, read into each session as an entry."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import Agent, AgentError, Hooks
from turnlog.contract import encode
from turnlog.events import ToolFinished
from turnlog.history import open_store, verify
from turnlog.loop import Memory, fork_session, replay
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import ScriptedModel, Turn
from turnlog.widgets import MemoryNotebookWidget

SCOPE = "customer-42"


def agent_of(
    stage: Stage, turns: list[Any], scope: str | None = SCOPE, **parts: Any
) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(turns, clock=stage.clock, ids=stage.ids)
    widgets = [MemoryNotebookWidget(scope=scope)]
    return Agent(model, store=stage.store, clock=stage.clock, ids=stage.ids, widgets=widgets, **parts), model


def note(name: str, text: str) -> Turn:
    return Turn(tool_calls=[call("notebook_write", name=name, text=text)])


def sent(model: ScriptedModel, place: int = -1) -> str:
    return encode(list(model.requests[place].messages)).decode()


async def events_of(stage: Stage, session: str) -> list[tuple[str, Any]]:
    entries = await stage.store.load(session)
    return [(e.payload.event, e.payload.data.get("version")) for e in entries if e.kind == "widget_event"]


async def check(stage: Stage, session: str) -> None:
    assert await verify(stage.store, session) == []
    report = await replay(stage.store, session)
    assert report.identical, report.difference


async def test_what_one_session_noted_the_next_one_sees_and_both_replay() -> None:
    stage = Stage()
    first, _ = agent_of(stage, [note("diet", "vegetarian"), "Noted."])
    await first.run("I eat no meat.", session="monday")
    second, model = agent_of(stage, ["Of course."])
    await second.run("Where shall we eat?", session="tuesday")
    assert "**diet**: vegetarian" in sent(model)
    assert await events_of(stage, "monday") == [("written", 2)]
    assert await events_of(stage, "tuesday") == [("read", 2)]
    await check(stage, "monday")
    await check(stage, "tuesday")
    await check(stage, "memory:customer-42")


async def test_nothing_is_read_twice_and_a_change_is_read_at_the_next_run() -> None:
    stage = Stage()
    agent, model = agent_of(stage, ["One.", "Two.", "Three."])
    memory = agent.memory(SCOPE)
    await memory.write("diet", "vegetarian")
    await agent.run("First.", session=SESSION)
    await agent.run("Second.", session=SESSION)
    assert await events_of(stage, SESSION) == [("read", 2)]
    await memory.write("diet", "vegan")
    await agent.run("Third.", session=SESSION)
    assert await events_of(stage, SESSION) == [("read", 2), ("read", 3)]
    assert "vegan" in sent(model)
    await check(stage, SESSION)


async def test_a_change_during_a_run_is_read_before_the_next_step() -> None:
    stage = Stage()
    agent, model = agent_of(stage, [note("a", "1"), note("b", "2"), "Done."])
    async with agent.run_stream("Go.", session=SESSION) as run:
        async for event in run:
            if isinstance(event, ToolFinished):
                await agent.memory(SCOPE).write("host", "was here")
    assert "**host**: was here" in sent(model)
    notes = dict((await agent.memory(SCOPE).read()).notes)
    assert notes == {"a": "1", "host": "was here", "b": "2"}
    await check(stage, SESSION)


async def test_a_note_that_another_changed_is_not_overwritten_unseen() -> None:
    stage = Stage()
    agent, _ = agent_of(stage, [])
    memory = agent.memory(SCOPE)
    seen = await memory.write("plan", "by train")
    await memory.write("plan", "by bus")
    with pytest.raises(AgentError, match="by bus") as refused:
        await memory.write("plan", "by plane", seen=seen.version)
    assert refused.value.code == "SessionConcurrentWrite"
    await memory.write("other", "x", seen=seen.version)
    assert (await memory.write("plan", "by bus", seen=seen.version)).get("plan") == "by bus", (
        "it says so already"
    )
    with pytest.raises(AgentError, match="changed by another"):
        await memory.replace_all({"plan": "none"}, seen=seen.version)
    assert dict((await memory.read()).notes) == {"plan": "by bus", "other": "x"}


async def test_a_model_is_told_of_a_conflict_and_may_write_again() -> None:
    stage, raced = Stage(), list[str]()

    async def race(_: Any) -> None:
        if not raced:
            raced.append("by bus")
            await agent.memory(SCOPE).write("plan", "by bus")

    turns = [note("plan", "by plane"), note("plan", "by plane"), "Done."]
    agent, model = agent_of(stage, turns, hooks=Hooks(before_tool=[race]))
    await agent.run("Go.", session=SESSION)
    assert "it now says: by bus" in sent(model, 1)
    assert (await agent.memory(SCOPE).read()).get("plan") == "by plane"
    await check(stage, SESSION)


@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/log.db", "jsonl:{}/logs"])
async def test_many_writers_at_once_lose_no_note(url: str, tmp_path: Path) -> None:
    store = open_store(url.format(tmp_path))
    writers = [Memory(store, SCOPE) for _ in range(8)]
    await asyncio.gather(*(each.write(f"n{place}", str(place)) for place, each in enumerate(writers)))
    assert dict((await writers[0].read()).notes) == {f"n{place}": str(place) for place in range(8)}
    assert await verify(store, "memory:customer-42") == []
    await store.close()


async def test_a_fork_keeps_what_it_had_seen() -> None:
    stage = Stage()
    agent, _ = agent_of(stage, ["One."])
    await agent.memory(SCOPE).write("diet", "vegetarian")
    await agent.run("Go.", session=SESSION)
    branch = await fork_session(stage.store, SESSION, clock=stage.clock, ids=stage.ids)
    await agent.memory(SCOPE).erase("diet")
    await check(stage, branch)
    assert await events_of(stage, branch) == [("read", 2)]
    again, _ = agent_of(stage, ["Two."])
    await again.run("And now?", session=branch)
    assert await events_of(stage, branch) == [("read", 2), ("read", 3)]
    await check(stage, branch)


async def test_scopes_and_sessions_without_one_are_apart() -> None:
    stage = Stage()
    agent, _ = agent_of(stage, [note("a", "1"), "Done."])
    await agent.run("Go.", session="one")
    other, model = agent_of(stage, ["Hello."], "customer-7")
    await other.run("Go.", session="two")
    own, alone = agent_of(stage, ["Hello."], None)
    await own.run("Go.", session="three")
    assert "**a**" not in sent(model) + sent(alone)
    moved, model = agent_of(stage, ["Hello."], "customer-7")
    await moved.run("Go.", session="one")
    assert await events_of(stage, "one") == [("written", 2), ("read", 0)]


async def test_the_host_edits_what_is_shared_in_its_own_log_alone() -> None:
    stage = Stage()
    agent, _ = agent_of(stage, ["One."])
    with pytest.raises(AgentError, match=r"agent\.memory"):
        await agent.update_notebook(SESSION, {"a": "1"})
    await agent.memory(SCOPE).replace_all({"a": "1", "b": "2"})
    await agent.memory(SCOPE).erase("a")
    assert dict((await agent.memory(SCOPE).undo()).notes) == {"a": "1", "b": "2"}


@pytest.mark.parametrize("scope", ["", " ", 5, "x" * 200])
def test_a_scope_is_a_name(scope: Any) -> None:
    with pytest.raises(AgentError, match="scope"):
        MemoryNotebookWidget(scope=scope)


WRITER = """
import asyncio, sys
from turnlog.history import open_store
from turnlog.loop import Memory

async def main(url, name):
    async with open_store(url) as store:
        memory = Memory(store, "customer-42")
        for number in range(10):
            await memory.write(f"{name}{number}", f"of {name}, {number}")
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.spec("W-4")
async def test_in_a_database_two_processes_and_a_run_write_at_once_and_a_fork_keeps_what_it_saw(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        # A clock that makes time jump would end a tool that waits for a real database.
        stage = Stage(store=store, clock=SystemClock(), ids=SystemIds())  # type: ignore[arg-type]
        others = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", WRITER, postgres_url, name, stdout=asyncio.subprocess.PIPE
            )
            for name in ("left", "right")
        ]
        for other in others:  # both have begun
            assert other.stdout is not None and await other.stdout.readline() == b"0\n"
        turns = [turn for number in range(10) for turn in (note(f"run{number}", str(number)), "Noted.")]
        agent, _ = agent_of(stage, turns)
        for number in range(10):
            await agent.run(f"Remember {number}.", session=SESSION)
        assert [(await other.communicate(), other.returncode)[1] for other in others] == [0, 0]
        notes = dict((await agent.memory(SCOPE).read()).notes)
        assert notes == {
            **{
                f"{name}{number}": f"of {name}, {number}"
                for name in ("left", "right")
                for number in range(10)
            },
            **{f"run{number}": str(number) for number in range(10)},
        }
        await check(stage, "memory:customer-42")
        await check(stage, SESSION)
        branch = await fork_session(store, SESSION, clock=stage.clock, ids=stage.ids)
        seen = await events_of(stage, branch)
        await agent.memory(SCOPE).erase("run3")
        await check(stage, branch)
        assert await events_of(stage, branch) == seen == await events_of(stage, SESSION)
        again, model = agent_of(stage, ["I do."])
        await again.run("Do you remember?", session=branch)
        shown = encode(model.requests[0].messages[-1]).decode()
        assert "-- **run3**: 3" in shown, "what changed since the fork is told"
        assert (await events_of(stage, branch))[-1][0] == "read"
        assert await events_of(stage, SESSION) == seen, "the session it was forked from has not looked since"
        await check(stage, branch)
