"""Servers that die, flood, lie, hang, ask and change: each has a clear error or a bounded outcome."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mcp_rig import opened
from turnlog import Agent
from turnlog.contract import AgentError
from turnlog.history import MemoryStore
from turnlog.mcp import MCPServer
from turnlog.runtime import LocalRuntime
from turnlog.testing import FakeProcess, FakeRuntime, ScriptedModel, Turn
from turnlog.tools import ToolRegistry

HOSTILE = str(Path(__file__).with_name("hostile.py"))


def hostile(mode: str = "plain", notes: Path | None = None, **options: Any) -> MCPServer:
    more = [] if notes is None else [str(notes)]
    return MCPServer.stdio(sys.executable, "-SE", HOSTILE, mode, *more, **{"name": "hostile", **options})


async def test_a_server_that_dies_in_a_call_leaves_an_unknown_outcome_and_is_started_again(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    async with opened(hostile(notes=notes)) as rig:
        died = await rig.call("die")
        assert (died.status, died.error_code) == ("failed", "ToolOutcomeUnknown")
        assert "the call may have taken effect or not" in died.text
        assert (await rig.call("plain")).content == "done"
    assert notes.read_text().split() == ["die", "plain"], "the call that was cut is not repeated"


async def test_a_result_of_50_mb_is_kept_apart_in_bounded_memory() -> None:
    async with opened(hostile()) as rig:
        tracemalloc.start()
        try:
            huge = await rig.call("huge", size=50_000_000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert huge.artifact is not None and len(huge.artifact) == 50_000_000
        assert len(huge.text) < 110_000
        assert peak < 400_000_000


async def test_a_message_that_is_too_large_ends_the_connection_and_says_why() -> None:
    async with opened(hostile(max_message=2_000_000)) as rig:
        cut = await rig.call("endless")
        assert "it sent a message of more than 2 MB" in cut.text
        assert cut.error_code == "ToolOutcomeUnknown"
        assert (await rig.call("plain")).content == "done"


async def test_floods_of_progress_and_of_junk_are_bounded() -> None:
    async with opened(hostile()) as rig:
        assert (await rig.call("progress")).content == "done"
        assert 90 <= len(rig.heard) < 1000, "most of 5000 reports are left out"
        assert "it writes what is no message" in (await rig.call("junk")).text
        assert (await rig.call("plain")).content == "done"


async def test_tools_that_cannot_be_what_they_say_are_not_offered() -> None:
    server = hostile("lying")
    async with opened(server) as rig:
        offered = set(rig.registry.names)
        assert offered.isdisjoint({"fat", "final_answer"})
        assert {"plain", "odd_name", "wordy"} < offered
        assert all(len(name) <= 64 for name in offered)
        wordy = rig.registry.get("wordy")
        assert wordy is not None and len(wordy.description) == 8000
        said = "\n".join(server.problems)
        for name in ("fat", "odd/name", "final_answer"):
            assert f"tool {name!r} of MCP server 'hostile' is not offered" in said
        lied = await rig.call("liar")
        assert lied.status == "failed" and "structured content" in lied.text


async def test_a_tool_that_is_named_as_ours_is_refused_unless_it_has_a_prefix() -> None:
    model = ScriptedModel(["Hello."])
    async with Agent(model, tools=[hostile("ours")], store="memory:") as agent:
        with pytest.raises(AgentError, match="two tools are named 'recall'"):
            await agent.run("Hi.")
    async with Agent(model, tools=[hostile("ours", prefix="h_")], store="memory:") as agent:
        assert (await agent.run("Hi.")).text == "Hello."


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("endless", "pages without end"),
        ("silent", "was not ready within 0.5 s"),
        ("broken", r"does not keep to the protocol: tools.13.inputSchema.type: Input should be 'object'"),
    ],
)
async def test_a_server_that_cannot_be_used_is_given_up(mode: str, words: str) -> None:
    registry = ToolRegistry([hostile(mode, timeout=0.5 if mode == "silent" else 20.0)])
    with pytest.raises(AgentError, match=words):
        await registry.refresh()
    await registry.close()


async def test_a_call_has_a_time_limit_and_the_connection_stays(tmp_path: Path) -> None:
    async with opened(hostile(call_timeout=0.3)) as rig:
        late = await rig.call("never")
        assert late.error_code == "ToolTimeout"


async def test_a_server_that_cannot_be_started_again_fails_the_call_and_not_the_run(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    shutil.copy(HOSTILE, script)
    server = MCPServer.stdio(sys.executable, "-SE", str(script), name="gone")
    async with opened(server) as rig:
        script.unlink()
        await rig.call("die")
        gone = await rig.call("plain")
        assert "MCP server 'gone' could not be reached, in 3 tries" in gone.text


async def test_binary_data_is_kept_and_a_call_carries_its_key() -> None:
    async with opened(hostile()) as rig:
        found = await rig.call("resource")
        assert (found.artifact, found.text) == (b"\x00\x01\x02", "[file:///a.bin: application/x-thing]")
        assert (await rig.call("key")).content == "key"


# ── approval ──


async def test_an_approval_holds_for_one_command_and_one_schema() -> None:
    turns = [Turn(tool_calls=[{"name": "plain", "arguments": {}}]), "Done."]
    store = MemoryStore()

    def agent(notes: Path | None, *turns: Any) -> Agent[str]:
        server = hostile(notes=notes, requires_approval=True)
        return Agent(ScriptedModel(turns), tools=[server], store=store)

    async with agent(None, *turns) as first:
        await first.run("Go.", session="s")
        [call] = await first.pending()
        await first.session("s").approve(call, by="ann")
    async with agent(Path("/dev/null"), "Done.") as other:  # another command line, the same tools
        resumed = await other.resume("s")
        assert resumed is not None and resumed.status == "awaiting_human", "asked again"
        [call] = await other.pending()
        await other.session("s").approve(call, by="ann")
        result = await other.resume("s")
        assert result is not None and result.text == "Done."


async def test_a_schema_that_changed_since_the_approval_is_asked_about_again() -> None:
    turns = [Turn(tool_calls=[{"name": "plain", "arguments": {}}]), "Done."]
    server = hostile("changing", requires_approval=True)
    async with Agent(ScriptedModel(turns), tools=[server], store="memory:") as agent:
        await agent.run("Go.", session="s")
        [call] = await agent.pending()
        await agent.session("s").approve(call, by="ann")
        await server.close()  # it is started anew, and has another schema
        server.version += 1
        resumed = await agent.resume("s")
        assert resumed is not None and resumed.status == "awaiting_human"


# ── questions to people ──


def asking(name: str, store: Any, server: MCPServer, *turns: Any) -> Agent[str]:
    call = Turn(tool_calls=[{"name": name, "arguments": {}}])
    return Agent(ScriptedModel([call, *turns]), tools=[server], store=store)


async def result_of(agent: Agent[str]) -> str:
    entries = await agent.session("s").entries()
    return next(e.payload for e in entries if e.kind == "tool_results").message.tool_results[0].payload.text


@pytest.mark.parametrize(("name", "mode"), [("ask", "plain"), ("ask_later", "modern")])
async def test_a_question_of_a_server_is_a_deferred_answer(name: str, mode: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with asking(name, "memory:", hostile(mode, notes), "Done.") as agent:
        assert (await agent.run("Go.", session="s")).status == "awaiting_human"
        session = agent.session("s")
        [question] = await session.questions()
        assert question.question == "hostile asks: Who are you?"
        with pytest.raises(AgentError, match="does not fit"):
            await session.answer(question, {"name": 7})
        await session.answer(question, {"name": "Ada"}, by="ann")
        result = await session.resume()
        assert result is not None and result.text == "Done."
        assert await result_of(agent) == "accept Ada"
        assert (await session.replay()).identical
    assert notes.read_text().split() == ([name] if name == "ask" else [name, name])


@pytest.mark.parametrize(("name", "mode"), [("ask", "plain"), ("ask_later", "modern")])
async def test_a_question_survives_the_end_of_the_process(name: str, mode: str, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'log.db'}"
    async with asking(name, store, hostile(mode)) as agent:
        assert (await agent.run("Go.", session="s")).status == "awaiting_human"
    async with asking(name, store, hostile(mode)) as agent:
        [question] = await agent.session("s").questions()
        await agent.session("s").answer(question, None, is_error=True, by="ann")
    async with Agent(ScriptedModel(["Done."]), tools=[hostile(mode)], store=store) as agent:
        result = await agent.resume("s")
        assert result is not None and result.text == "Done."
        assert await result_of(agent) == "decline None"
        assert (await agent.session("s").replay()).identical


# ── text of a model ──


async def test_a_server_may_not_use_a_model_unless_it_is_given_an_agent() -> None:
    async with asking("sample", "memory:", hostile(), "Done.") as agent:
        await agent.run("Go.", session="s")
        assert "Sampling not supported" in await result_of(agent)


async def test_text_of_a_model_for_a_server_is_a_session_of_its_own() -> None:
    store = MemoryStore()
    helper = Agent(ScriptedModel(["Something."]), name="helper", store="memory:")
    async with asking("sample", store, hostile(sampling=helper), "Done.") as agent:
        result = await agent.run("Go.", session="s")
        assert '"text": "Something."' in await result_of(agent)
        [child] = await store.sessions(metadata={"parent_session": "s"})
        assert child.session_id.startswith("sampling-") and child.status == "completed"
        assert result.usage is not None and result.usage.total_tokens > 0
        assert (await agent.session(child.session_id).messages())[0].text == "Say something."


# ── a runtime ──


async def test_a_server_runs_in_the_sandbox_of_its_agent(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    shutil.copy(HOSTILE, place / "server.py")
    runtime = LocalRuntime(place)
    try:
        await runtime.connect()
    except AgentError as error:
        pytest.skip(f"no sandbox here: {error.message[:80]}")
    outside, inside = tmp_path / "outside", place / "inside"
    for notes in (outside, inside):
        server = MCPServer.stdio("python3", "-SE", "server.py", "plain", str(notes), name="boxed")
        turns = [Turn(tool_calls=[{"name": "plain", "arguments": {}}]), "Done."]
        async with Agent(ScriptedModel(turns), tools=[server], store="memory:", runtime=runtime) as agent:
            assert (await agent.run("Go.")).text == "Done."
    assert inside.read_text() == "plain\n"
    assert not outside.exists(), "what is outside of the workspace cannot be written"
    await runtime.close()


async def test_a_server_in_a_runtime_is_spoken_to_through_its_process() -> None:
    async def serve(process: FakeProcess) -> int:
        async for data in process.stdin():
            for line in data.splitlines():
                await process.out(_answer(json.loads(line)))
        return 0

    runtime = FakeRuntime(commands={"serve --fast": serve})
    server = MCPServer.stdio("serve", "--fast", name="inside", runtime=runtime)
    async with opened(server) as rig:
        assert (await rig.call("plain")).content == "from inside"
    assert runtime.status == "ready", "the runtime is its owner's to close"


def _answer(request: Any) -> str:
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "from inside"}]},
    }
    if "id" not in request:
        return ""
    known = {"result": results[request["method"]]} if request["method"] in results else None
    missing = {"error": {"code": -32601, "message": "no such method"}}
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **(known or missing)}) + "\n"


async def test_headers_and_variables_with_secrets_are_masked_and_others_are_not() -> None:
    server = hostile(env={"API_TOKEN": "tok-3f9a8b7c6d5e4f3a", "REGION": "north"})
    assert server.secrets == {"API_TOKEN": "tok-3f9a8b7c6d5e4f3a"}
    assert "tok-" not in repr(server)
    remote = MCPServer.http("https://example.com/mcp", headers={"Authorization": "Bearer abcdef0123456789"})
    assert list(remote.secrets.values()) == ["Bearer abcdef0123456789"] or "abcdef0123456789" in str(
        remote.secrets
    )


async def test_calls_beside_each_other_do_not_mix_up() -> None:
    async with opened(hostile()) as rig:
        found = await asyncio.gather(*(rig.call("huge", size=size) for size in range(1, 20)))
        assert [len(each.text) for each in found] == list(range(1, 20))
