"""What a long tool says while it works reaches whoever watches the run, while it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.shell import Shell
from loop.scenarios import SESSION, Stage, call
from turnlog import tool
from turnlog.contract import RunEvent, ToolPolicy, decode, encode, events
from turnlog.loop import replay
from turnlog.testing import Turn
from turnlog.tools import ToolContext

PATIENCE = 60.0  # a loaded machine is slow; who waits this long has failed


class Heard:
    """A tool goes on to its next step when the watcher has seen the one before: nothing may be held back."""

    def __init__(self) -> None:
        self.seen = [threading.Event() for _ in range(3)]

    def note(self, event: RunEvent) -> None:
        if isinstance(event, events.ToolProgressed):
            step = (event.data or {}).get("step", event.text)
            self.seen[int(step)].set()

    def wait(self, step: int) -> None:
        assert self.seen[step].wait(PATIENCE), f"nobody saw step {step} while the tool ran"

    async def wait_async(self, step: int) -> None:
        await asyncio.to_thread(self.wait, step)


def make_tool(kind: str, heard: Heard) -> Any:
    def sync_tool(ctx: ToolContext) -> str:
        """Work."""
        for step in range(3):
            ctx.progress(str(step), step=step)
            heard.wait(step)
        return "done"

    async def async_tool(ctx: ToolContext) -> str:
        """Work."""
        for step in range(3):
            ctx.progress(str(step), step=step)
            await heard.wait_async(step)
        return "done"

    def sync_generator() -> Iterator[str]:
        """Work."""
        for step in range(3):
            yield str(step)
            heard.wait(step)

    async def async_generator() -> AsyncIterator[str]:
        """Work."""
        for step in range(3):
            yield str(step)
            await heard.wait_async(step)

    made = {f.__name__: f for f in (sync_tool, async_tool, sync_generator, async_generator)}[kind]
    return tool(made, name="work", timeout=None)


KINDS = ["sync_tool", "async_tool", "sync_generator", "async_generator"]


@pytest.mark.spec("T-10", "L-3")
@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_seen_while_the_tool_runs_in_order_and_under_its_call(kind: str) -> None:
    stage, heard = Stage(), Heard()
    agent = stage.agent([Turn(tool_calls=[call("work")]), "Done."], tools=[make_tool(kind, heard)])
    told: list[RunEvent] = []
    async for event in agent.run_stream("Work.", session=SESSION):
        heard.note(event)
        told.append(event)
    assert [event.seq for event in told] == sorted({event.seq for event in told})
    names = [event.kind for event in told]
    shown = [event for event in told if isinstance(event, events.ToolProgressed)]
    assert [event.text for event in shown] == ["0", "1", "2"]
    assert names.index("tool_started") < names.index("tool_progress")
    assert names.index("tool_result") == len(names) - 1 - names[::-1].index("tool_progress") + 1
    entries = await stage.store.load(SESSION)
    (started,) = [entry for entry in entries if entry.kind == "tool_started"]
    for event in shown:
        assert (event.tool_call_id, event.tool_name) == (started.payload.tool_call_id, "work")
        assert (event.session_id, event.run_id) == (SESSION, started.run_id)
        assert decode(encode(event), RunEvent) == event  # pyright: ignore[reportArgumentType]
    # It is told, and not kept: the log has the result alone, and a replay needs nothing else.
    assert not [entry for entry in entries if "progress" in entry.kind]
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("T-10", "T-3")
async def test_tools_that_run_together_are_told_apart() -> None:
    stage = Stage()
    both = asyncio.Barrier(2)

    @tool(timeout=None, concurrent=True)
    async def work(name: str, ctx: ToolContext) -> str:
        """Work."""
        for step in range(3):
            await both.wait()
            ctx.progress(f"{name}{step}")
        return name

    turn = Turn(tool_calls=[call("work", name="a"), call("work", name="b")])
    agent = stage.agent([turn, "Done."], tools=[work], tool_policy=ToolPolicy(max_parallel=2))
    said: dict[str, list[str | None]] = {}
    arguments: dict[str, Any] = {}
    async for event in agent.run_stream("Work.", session=SESSION):
        if event.kind == "tool_started":
            arguments[event.tool_call_id] = event.arguments
        if event.kind == "tool_progress":
            said.setdefault(event.tool_call_id, []).append(event.text)
    assert {arguments[id]["name"]: texts for id, texts in said.items()} == {
        "a": ["a0", "a1", "a2"],
        "b": ["b0", "b1", "b2"],
    }
    assert (await replay(stage.store, SESSION)).identical


@pytest.mark.spec("T-10", "L-7")
@pytest.mark.parametrize("kind", ["sync_tool", "async_tool"])
async def test_nothing_is_told_after_the_end(kind: str) -> None:
    """A tool that goes on talking after the run was aborted talks to nobody."""
    stage, over = Stage(), threading.Event()

    def sync_tool(ctx: ToolContext) -> str:
        """Talk."""
        while not over.is_set():
            ctx.progress("still here")
        return "done"

    async def async_tool(ctx: ToolContext) -> str:
        """Talk."""
        while not over.is_set():
            ctx.progress("still here")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                ctx.progress("last words")
                raise
        return "done"

    made = tool({"sync_tool": sync_tool, "async_tool": async_tool}[kind], name="talk", timeout=None)
    agent = stage.agent([Turn(tool_calls=[call("talk")])], tools=[made])
    names: list[str] = []
    async for event in agent.run_stream("Talk.", session=SESSION):
        names.append(event.kind)
        if names.count("tool_progress") == 3:
            await agent.abort(event.run_id)
            over.set()
    assert names[-1] == "run_ended"
    ends = names.index("tool_result")
    assert "tool_progress" not in names[ends:]
    assert event.result.status == "aborted"


@pytest.mark.spec("T-10")
def test_the_command_line_shows_it(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.write(
        "slow.py",
        "from turnlog import tool\n\n\n@tool\ndef work():\n"
        '    """Work."""\n    yield "half way\\n"\n    yield {"percent": 100}\n    yield "all the way"\n',
    )
    turns = ({"toolCalls": [{"name": "work", "arguments": {}}]}, "Done.")
    done = shell.ok("run", "-m", shell.script(*turns), "-t", "slow.py", "-s", "s1", "Work.")
    assert done.out == "Done.\n"  # the answer alone
    lines = done.err.splitlines()
    shown = [line for line in lines if line.startswith("… ")]
    assert shown == ["… half way", '… {"percent": 100}', "… all the way"]
    assert lines.index("→ work {}") < lines.index("… half way") < lines.index("✓ half way all the way")
    told = shell.ok("run", "-m", shell.script(*turns), "-t", "slow.py", "-s", "s2", "--json", "Work.").lines
    progress = [line["payload"] for line in told if line["kind"] == "tool_progress"]
    assert [part.get("text") for part in progress] == ["half way\n", None, "all the way"]
    assert len({part["toolCallId"] for part in progress}) == 1
