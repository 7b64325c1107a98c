"""The servers that everybody knows, of both eras of the protocol: for Node and for Python."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_rig import opened
from turnlog import Agent
from turnlog.mcp import MCPServer
from turnlog.testing import ScriptedModel, Turn

NODE = Path(sys.prefix) / "mcp-servers" / "node_modules" / ".bin"


def node(name: str, *args: str, **options: Any) -> MCPServer:
    command = NODE / name
    if not command.exists():
        pytest.skip(f"{name} is not installed: scripts/setup_venv.sh dev does it where npm is there")
    return MCPServer.stdio(str(command), *args, name=name, **options)


def python(module: str, *args: str, **options: Any) -> MCPServer:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    return MCPServer.stdio(sys.executable, "-m", module, *args, name=module, **options)


def make_repository(folder: Path) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


@pytest.mark.spec("T-8")
async def test_server_everything_shows_tools_resources_prompts_and_progress() -> None:
    server = node("mcp-server-everything", prefix="all_", resources=True, prompts=True)
    async with opened(server) as rig:
        assert (await rig.call("all_echo", message="hello")).content == "Echo: hello"
        assert "42" in (await rig.call("all_get-sum", a=19, b=23)).text
        image = await rig.call("all_get-tiny-image")
        assert "[image image/png]" in image.text
        await rig.call("all_trigger-long-running-operation", duration=0.2, steps=2)
        assert [data["progress"] for _, data in rig.heard] == [1, 2]
        found = await server.resources()
        text = await server.read_resource(found[0].uri)
        assert isinstance(text, str) and text
        assert (await rig.call("all_read_resource", uri=found[0].uri)).text.startswith(text[:100])
        assert "Oslo" in await server.prompt("args-prompt", city="Oslo")
        assert "args-prompt" in (await rig.call("all_list_prompts")).text
        missing = await rig.call("all_read_resource", uri="demo://no/such/thing")
        assert missing.status == "failed"


@pytest.mark.spec("T-8", "T-11")
async def test_server_everything_asks_a_person_through_the_log() -> None:
    call = Turn(tool_calls=[{"name": "trigger-elicitation-request", "arguments": {}}])
    server = node("mcp-server-everything")
    async with Agent(ScriptedModel([call, "Done."]), tools=[server], store="memory:") as agent:
        assert (await agent.run("Go.", session="s")).status == "awaiting_human"
        session = agent.session("s")
        [question] = await session.questions()
        assert question.asked.answer_schema is not None
        await session.answer(question, {"name": "Ada"}, by="ann")
        result = await session.resume()
        assert result is not None and result.text == "Done."
        entries = await session.entries()
        results = next(entry.payload for entry in entries if entry.kind == "tool_results")
        assert "Ada" in results.message.tool_results[0].payload.text
        assert (await session.replay()).identical


@pytest.mark.spec("T-8")
async def test_server_filesystem_reads_and_writes_in_its_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("a note")
    async with opened(node("mcp-server-filesystem", str(tmp_path), allow=["read_text_file"])) as rig:
        assert rig.registry.names == ["read_text_file"]
        assert (await rig.call("read_text_file", path=str(tmp_path / "note.txt"))).content == "a note"
        outside = await rig.call("read_text_file", path="/etc/hostname")
        assert outside.status == "failed" and "denied" in outside.text


@pytest.mark.spec("T-8")
async def test_servers_for_python_speak_the_newer_protocol(tmp_path: Path) -> None:
    make_repository(tmp_path)
    servers = (python("mcp_server_time"), python("mcp_server_git", "--repository", str(tmp_path)))
    async with opened(*servers) as rig:
        assert (await rig.call("get_current_time", timezone="Europe/Oslo")).status == "success"
        assert "first" in (await rig.call("git_log", repo_path=str(tmp_path))).text
        wrong = await rig.call("get_current_time", timezone="Nowhere/Land")
        assert wrong.status == "failed" and "Nowhere/Land" in wrong.text
