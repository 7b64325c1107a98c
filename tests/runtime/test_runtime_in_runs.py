"""A run in the runtime of this machine: its level is in the log, in the question, and in what was allowed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtime.levels import needs
from turnlog import Agent, ToolContext, tool
from turnlog.contract import ApprovalRequestedEntry, ExecutionEnv, RuntimeInitEntry
from turnlog.models import ScriptedCall, ScriptedModel, Turn
from turnlog.runtime import LocalRuntime, SandboxLevel


@tool(requires_runtime=True, requires_approval=True)
async def shell(ctx: ToolContext, command: str) -> str:
    """Run a command."""
    assert ctx.runtime is not None
    return (await ctx.runtime.execute(command)).stdout


def agent(folder: Path, level: SandboxLevel, *answers: str | Turn) -> Agent:
    runtime = LocalRuntime(folder, level=level, policy=ExecutionEnv(timeout=60))
    return Agent(
        ScriptedModel(list(answers)), tools=[shell], runtime=runtime, store=f"sqlite:{folder.parent}/log.db"
    )


ECHO = Turn(tool_calls=[ScriptedCall(name="shell", arguments={"command": "echo $((40 + 2))"})])


async def test_the_level_is_in_the_log_and_in_what_is_approved(tmp_path: Path) -> None:
    needs("workspace")
    folder = tmp_path / "work"
    folder.mkdir()
    async with agent(folder, "workspace", ECHO, "Done.") as strict:
        session = strict.session("s")
        assert (await session.run("Add.")).status == "awaiting_human"
        entries = await session.entries()
        (told,) = [entry for entry in entries if isinstance(entry, RuntimeInitEntry)]
        assert told.payload.data["sandbox"] == "workspace"
        (asked,) = [entry for entry in entries if isinstance(entry, ApprovalRequestedEntry)]
        assert asked.payload.sandbox == "workspace"
        (waiting,) = await session.pending()
        await session.approve(waiting, by="ann")
        assert (await session.resume()).text == "Done."
        assert "42" in str(await session.messages())


async def test_what_was_approved_for_the_sandbox_is_asked_again_without_it(tmp_path: Path) -> None:
    needs("workspace")
    folder = tmp_path / "work"
    folder.mkdir()
    async with agent(folder, "workspace", ECHO) as strict:
        session = strict.session("s")
        assert (await session.run("Add.")).status == "awaiting_human"
        (waiting,) = await session.pending()
        await session.approve(waiting, by="ann")
    async with agent(folder, "none", "Done.") as bare:
        session = bare.session("s")
        assert (await session.resume()).status == "awaiting_human", "it was not approved for this"
        (waiting,) = await session.pending()
        assert waiting.requested.sandbox is None
        await session.approve(waiting, by="ann")
        assert (await session.resume()).text == "Done."


async def test_what_the_model_is_told_of_the_runtime_stays_the_same(tmp_path: Path) -> None:
    needs("workspace")
    async with LocalRuntime(tmp_path, level="workspace") as first:
        data = await first.get_init_data()
        assert await first.get_hints() == {}
        async with await first.run("cat") as process:
            assert await first.get_hints() == {"running": [process.id]}
            assert await first.get_init_data() == data
        assert await first.get_hints() == {}
    async with LocalRuntime(tmp_path, level="workspace") as second:
        assert await second.get_init_data() == data, "of another process too: the prefix stays cached"


def test_a_runtime_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path, level="none")

    async def echo() -> str:
        await runtime.connect()
        left = await runtime.run("sleep 600")  # of a loop that ends before it does
        assert left.end is None
        return (await runtime.execute("echo one")).stdout

    assert asyncio.run(echo()) == "one\n"
    assert asyncio.run(echo()) == "one\n"
    asyncio.run(runtime.close())
    assert runtime.status == "closed"


@pytest.mark.parametrize("level", ["workspace", "none"])
async def test_closing_the_agent_ends_what_its_tools_started(level: SandboxLevel, tmp_path: Path) -> None:
    needs(level)
    folder = tmp_path / "work"
    folder.mkdir()
    running = agent(folder, level, "Hello.")
    async with running:
        await running.run("Hi.", session="s")
        runtime = running.loop.parts.runtime
        assert isinstance(runtime, LocalRuntime)
        process = await runtime.run("sleep 600")
    assert process.end is not None and runtime.status == "closed"
