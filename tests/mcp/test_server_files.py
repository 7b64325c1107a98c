"""Files that name servers start nothing before the user trusts them, as they are."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_rig import opened
from turnlog.contract import AgentError
from turnlog.mcp import MCPServers, TrustQuestion
from turnlog.system import TrustStore
from turnlog.tools import Toolset

HOSTILE = str(Path(__file__).with_name("hostile.py"))


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder of the test's own, outside of the working folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "config"


def write(**servers: Any) -> Path:
    path = Path(".mcp.json")
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def local(*args: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-SE", HOSTILE, "plain", *args], **more}


async def test_nothing_is_started_before_a_file_is_trusted_and_a_change_asks_again(config: Path) -> None:
    notes = Path.cwd() / "notes"
    path = write(one=local(str(notes), env={"API_TOKEN": "tok-3f9a8b7c6d5e4f3a", "REGION": "north"}))
    with pytest.raises(AgentError) as refused:
        MCPServers.from_file(path)
    assert "is not trusted yet" in refused.value.message and "turnlog mcp trust" in refused.value.message
    assert "REGION=north" in refused.value.message and "tok-3f9a" not in refused.value.message
    asked: list[TrustQuestion] = []

    def yes(question: TrustQuestion) -> bool:
        asked.append(question)
        return True

    with pytest.raises(AgentError):
        MCPServers.from_file(path, trust=lambda _: False)
    MCPServers.from_file(path, trust=yes)
    async with opened(MCPServers.from_file(path)) as rig:  # trusted by now
        assert (await rig.call("one_plain")).content == "done"
    assert notes.read_text() == "plain\n"
    assert [each.status for each in asked] == ["new"]
    path.write_text(path.read_text().replace("plain", "silent"))
    with pytest.raises(AgentError, match="has changed since you trusted it"):
        MCPServers.from_file(path)
    assert (config / "turnlog" / "trust.json").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in os.scandir()) == [".mcp.json", "notes"]


async def test_several_servers_are_one_toolset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "plain")
    two = {"command": sys.executable, "args": ["-SE", HOSTILE, "${MODE}", "${NOTES:-/dev/null}"]}
    path = write(one=local(), two=two, off={"command": "no-such-thing", "disabled": True})
    servers = MCPServers.from_file(path, trust=True, requires_approval=True)
    assert isinstance(servers, Toolset)
    assert TrustStore().entries() == [], "the word of the caller is not remembered"
    async with opened(servers) as rig:
        assert (await rig.call("one_plain")).content == (await rig.call("two_plain")).content == "done"
        found = rig.registry.get("two_die")
        assert found is not None and found.requires_approval


async def test_a_server_that_cannot_be_opened_closes_the_others() -> None:
    servers = MCPServers.from_file(write(one=local(), bad={"command": "turnlog-no-such-command"}), trust=True)
    with pytest.raises(AgentError, match="'bad' could not be reached"):
        await servers.open()
    await servers.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it is not JSON"),
        ("[]", 'no object "mcpServers"'),
        ('{"mcpServers": {"a": 1}}', "server 'a': it is an object"),
        ('{"mcpServers": {"a": {}}}', "server 'a': it needs a command, or else a url"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "args is a list of texts"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "env and headers hold texts"),
        ('{"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}', "the transport sse"),
        ('{"mcpServers": {"a": {"command": "${NO_SUCH}"}}}', "the environment has no NO_SUCH"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, words: str) -> None:
    path = Path(".mcp.json")
    path.write_text(text)
    with pytest.raises(AgentError) as refused:
        MCPServers.from_file(path, trust=True)
    assert words in refused.value.message and refused.value.code == "ConfigInvalid"
