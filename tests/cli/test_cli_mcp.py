"""MCP servers of a file, trusted at the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cli.shell import Shell

HOSTILE = str(Path(__file__).parents[1] / "mcp" / "hostile.py")


def write_file(shell: Shell, mode: str = "plain") -> None:
    server = {"command": sys.executable, "args": ["-SE", HOSTILE, mode]}
    shell.write(".mcp.json", json.dumps({"mcpServers": {"one": server}}))


def test_a_file_is_trusted_listed_changed_and_forgotten(shell: Shell) -> None:
    write_file(shell)
    call = {"toolCalls": [{"name": "one_plain", "arguments": {}}]}
    model = shell.script(call, "Done.")
    refused = shell("run", "-m", model, "--mcp", ".mcp.json", "Go.")
    assert refused.code == 1 and "is not trusted yet" in refused.err and "one: runs" in refused.err
    nobody = shell("mcp", "trust")
    assert nobody.code == 1 and "mcp trust .mcp.json (with --yes" in nobody.err
    assert "is trusted as it is now" in shell.ok("mcp", "trust", "--yes").out
    assert shell.ok("run", "-m", model, "--mcp", ".mcp.json", "-s", "s", "Go.").out == "Done.\n"
    assert "one_plain" in shell.ok("show", "s").out
    assert str(shell.folder / ".mcp.json") in shell.ok("mcp", "list").out
    write_file(shell, "silent")
    assert "(changed since)" in shell.ok("mcp", "list").out
    changed = shell("run", "-m", model, "--mcp", ".mcp.json", "Go.")
    assert changed.code == 1 and "has changed since you trusted it" in changed.err
    assert "is trusted no longer" in shell.ok("mcp", "forget").out
    listed = shell.ok("mcp", "list")
    assert listed.out == "" and "no servers are trusted in" in listed.err and "trust.json" in listed.err
    assert shell.ok("mcp", "list", "--json").err == ""


def test_a_question_of_a_server_is_answered_at_the_command_line(shell: Shell) -> None:
    write_file(shell)
    shell.ok("mcp", "trust", "--yes")
    model = shell.script({"toolCalls": [{"name": "one_ask", "arguments": {}}]}, "Done.")
    waits = shell("run", "-m", model, "--mcp", ".mcp.json", "-s", "s", "Go.")
    assert waits.code == 3
    listed = shell.ok("answer", "s", "--json").lines
    assert listed[0]["asked"]["question"] == "one asks: Who are you?"
    call = listed[0]["asked"]["toolCallId"]
    shell.ok("answer", "s", call, "--value", '{"name": "Ada"}')
    model = shell.script("Done.")
    assert shell.ok("resume", "s", "-m", model, "--mcp", ".mcp.json").out == "Done.\n"
    assert "accept Ada" in shell.ok("show", "s").out


def test_serving_needs_an_agent(shell: Shell) -> None:
    done = shell("mcp")
    assert done.code == 2 and "--agent" in done.err
