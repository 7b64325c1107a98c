"""X-7. An agent of one's own on every surface, and a coding agent in the sandbox."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from cli.shell import PATIENCE, Shell
from runtime.levels import needs

MINE = '''
from turnlog import Agent, Hooks, tool
from turnlog.widgets import Widget


class Shelf(Widget[int]):
    """Nothing that turnlog knows: a session with it can only be replayed with this agent."""

    name, description = "shelf", "What is on the shelf."

    def initial(self):
        return 0

    def reduce(self, state, entry):
        return state + (entry.kind == "tool_results")

    def render_live_screen(self, ctx):
        return {{"shelf": f"{{ctx.state}} books"}}


@tool(requires_approval=True)
def lend(book: str) -> str:
    """Lend a book."""
    with open("effects.txt", "a") as file:
        file.write(f"lent {{book}}\\n")
    return f"{{book}} is lent"


def hear(event):
    with open("heard.txt", "a") as file:
        file.write(f"{{event.kind}}\\n")


agent = Agent(
    "{model}",
    tools=[lend],
    widgets=[Shelf()],
    store="sqlite:mine.db",
    name="librarian",
    hooks=Hooks(on_event=[hear]),
)
'''
LEND = {"toolCalls": [{"name": "lend", "arguments": {"book": "Emma"}}]}
RUNS_OR_DECIDES = (
    *("run", "chat", "code", "map", "resume", "approve", "answer", "abort", "pause", "send"),
    *("rerun", "replay", "compact", "serve", "mcp", "eval"),
)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def write_agent(shell: Shell, *turns: object) -> None:
    shell.write("library.py", MINE.format(model=shell.script(*turns)))


@pytest.mark.spec("X-7")
@pytest.mark.parametrize("command", RUNS_OR_DECIDES)
def test_every_command_that_runs_or_decides_takes_an_agent(command: str, shell: Shell) -> None:
    assert "--agent MODULE:NAME" in re.sub(r"\s+", " ", shell.ok(command, "--help").out)


@pytest.mark.spec("X-7")
def test_one_agent_runs_is_decided_on_and_is_looked_at_from_the_command_line(shell: Shell) -> None:
    """With its tool, its widget, its hook, its name and its store, and no option but --agent."""
    mine = ("--agent", "library:agent")
    write_agent(shell, LEND)
    asked = shell("run", "Lend me Emma.", "-s", "s", *mine)
    assert asked.code == 3 and "shelf" not in asked.err
    [waiting] = shell.ok("approve", "s", "--json", *mine).lines
    shell.ok("approve", "s", waiting["toolCallId"], *mine)
    write_agent(shell, "Emma is yours.")
    assert shell.ok("resume", "s", *mine).out == "Emma is yours.\n"
    assert (shell.folder / "effects.txt").read_text() == "lent Emma\n"
    assert "tool_result" in (shell.folder / "heard.txt").read_text(), "its hook heard it"

    assert "shelf" in shell("replay", "s", "--store", "sqlite:mine.db").err, "its widget is not ours"
    assert shell.ok("replay", "s", *mine).out.startswith("identical")

    write_agent(shell, "More of her.")
    assert shell.ok("chat", "-s", "s", *mine, stdin="And then?\n").out == "More of her.\n"
    write_agent(shell, "One.", "Two.")
    lines = shell.write("letters.jsonl", '"First"\n"Second"\n')
    assert sorted(line["output"] for line in shell.ok("map", lines, *mine).lines) == ["One.", "Two."]
    write_agent(shell, "Another end.")
    log = shell.ok("show", "s", "--store", "sqlite:mine.db", "--json").lines
    result = next(entry["seq"] for entry in log if entry["kind"] == "tool_results")
    changed = shell.ok("rerun", "s", "--at", str(result), "--result", "Emma is out.", *mine)
    assert "Another end." in changed.out
    assert not (shell.folder / "log.db").exists(), "nothing went to the store of the environment"


@pytest.mark.spec("X-7")
def test_a_run_that_waits_is_reached_through_its_agent(shell: Shell) -> None:
    mine = ("--agent", "library.py")
    write_agent(shell, LEND)
    assert shell("run", "Lend me Emma.", "-s", "s", *mine).code == 3
    shell.ok("send", "s", "Or Persuasion.", *mine)
    assert "no question waits" in shell.ok("answer", "s", *mine).out
    shell.ok("abort", "s", *mine)
    assert "no run is open" in shell("pause", "s", *mine).err
    assert not (shell.folder / "effects.txt").exists()


@pytest.mark.spec("X-7")
def test_it_is_served_over_http_and_mcp(shell: Shell) -> None:
    pytest.importorskip("uvicorn", reason="serve needs the extra 'server'")
    write_agent(shell, "Welcome.")
    server = shell.start("serve", "--port", "0", "--json", "--agent", "library:agent")
    assert server.stdout is not None
    try:
        told = json.loads(server.stdout.readline())
        request = urllib.request.Request(
            f"{told['address'].rstrip('/')}/api/sessions",
            data=json.dumps({"text": "Hello?"}).encode(),
            headers={"authorization": f"Bearer {told['token']}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.status == 201
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=PATIENCE)

    pytest.importorskip("mcp", reason="mcp needs the extra 'mcp'")
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    said = shell(
        *("mcp", "--agent", "library:agent"),
        stdin="".join(
            json.dumps({"jsonrpc": "2.0", **message}) + "\n"
            for message in (
                {"id": 1, "method": "initialize", "params": hello},
                {"method": "notifications/initialized"},
                {"id": 2, "method": "tools/list"},
            )
        ),
    )
    assert "librarian" in said.out, said


@pytest.mark.spec("X-7")
def test_the_coding_agent_works_in_its_sandbox(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It repairs the folder it is in; a command of it reaches nothing outside, and no network."""
    needs("workspace")
    shell.env["HOME"] = str(tmp_path_factory.mktemp("home"))
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("hidden")
    shell.write("calc.py", "def double(n):\n    return n + n + 1\n")
    shell.write("test_calc.py", "from calc import double\nassert double(2) == 4\n")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    try_out = (
        f"cat {outside}/secret.txt; echo x > {outside}/new.txt; "
        f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 1)'; true"
    )
    script = shell.script(
        {"toolCalls": [{"name": "shell", "arguments": {"command": "python3 -B test_calc.py"}}]},
        {"toolCalls": [{"name": "read", "arguments": {"path": "calc.py"}}]},
        {
            "toolCalls": [
                {"name": "edit", "arguments": {"path": "calc.py", "old": "n + n + 1", "new": "n + n"}}
            ]
        },
        {"toolCalls": [{"name": "shell", "arguments": {"command": f"python3 -B test_calc.py && {try_out}"}}]},
        "Mended.",
    )
    done = shell("code", "fix the failing test", "-m", script, "-s", "s", "--policy", "workspace-auto")
    assert (done.code, done.out) == (0, "Mended.\n"), done
    assert (shell.folder / "calc.py").read_text() == "def double(n):\n    return n + n\n"
    assert not (outside / "new.txt").exists()
    log = shell.ok("show", "s", "--json").out
    assert "AssertionError" in log and "hidden" not in log and '"sandbox":"workspace"' in log
    listener.setblocking(False)
    with listener, pytest.raises(BlockingIOError):
        listener.accept()
