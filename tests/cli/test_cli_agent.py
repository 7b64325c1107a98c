"""`--agent`: an agent of your own in the terminal. `turnlog resume`."""

from __future__ import annotations

import pytest

from cli.shell import Shell

DELETE = {"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}
MINE = """
import tools
from turnlog import Agent
from turnlog.widgets import TodoWidget

agent = Agent(
    "{model}", tools=[tools.delete], store="sqlite:mine.db", name="mine", widgets=[TodoWidget()]
)
other = Agent("{model}", store="memory:")
number = 7


def make():
    return agent


def fail():
    raise LookupError("no such thing")
"""


@pytest.fixture
def mine(shell: Shell) -> Shell:
    shell.write("mine.py", MINE.format(model=shell.script(DELETE, "Gone.", "Still here.")))
    return shell


@pytest.mark.parametrize("name", ["mine:agent", "mine", "mine.py:make", "mine.py"])
def test_an_agent_of_your_own_runs(mine: Shell, name: str) -> None:
    """With its tools, its widgets, its name and its store; the commands to type next say so."""
    asked = mine("run", "--agent", name, "-s", "s1", "Delete x")
    assert asked.code == 3
    store = f"sqlite:{mine.folder / 'mine.db'}"
    assert f"continue with: turnlog resume s1 --agent {name}\n" in asked.err
    (waiting,) = mine.ok("approve", "s1", "--store", store, "--json").lines
    call = waiting["toolCallId"]
    assert f"turnlog approve s1 {call} --store {store}," in asked.err
    log = mine.ok("show", "s1", "--store", store, "--json").lines
    first = {entry["kind"]: entry["payload"] for entry in reversed(log)}
    assert first["run_started"]["agentName"] == "mine"
    assert any("todo" in tool["name"] for tool in first["tools_change"]["tools"])  # its widget's tool
    mine.ok("approve", "s1", call, "--store", store)
    mine.write("mine.py", MINE.format(model=mine.script("Gone.")))
    assert mine.ok("resume", "s1", "--agent", name).out == "Gone.\n"
    assert (mine.folder / "effects.txt").read_text() == "deleted x\n"


def test_a_chat_with_an_agent_of_your_own(mine: Shell) -> None:
    with mine.terminal("chat", "--agent", "mine:agent", "-s", "s1") as terminal:
        terminal.say("Delete x")
        terminal.until("run it?")
        terminal.type("y\n")
        terminal.until("Gone.")


def test_its_runs_are_reached_in_its_store(mine: Shell) -> None:
    assert mine("run", "--agent", "mine:agent", "-s", "s1", "Delete x").code == 3
    assert mine.ok("send", "s1", "Hurry.", "--agent", "mine:agent").out.startswith("queued")
    assert mine.ok("abort", "s1", "--agent", "mine:agent").out == "aborted\n"
    assert mine("abort", "s1").err.startswith("SessionNotFound")


MISTAKES = [
    (["--agent", "none:agent"], "there is no module none"),
    (["--agent", "none.py"], "there is no file none.py"),
    (["--agent", "mine:none"], "mine has no 'none'; its agents: agent, other"),
    (["--agent", "mine:number"], "'number' in mine is a int, not an Agent"),
    (["--agent", "mine:fail"], "fail() in mine fails: LookupError: no such thing"),
    (
        ["--agent", "mine:agent", "-m", "local", "-t", "tools.py"],
        "--agent loads an agent that is made already; leave out --model, --tools",
    ),
]


def test_agents_that_cannot_be_loaded(mine: Shell) -> None:
    done = mine.each([["run", *args, "Hi"] for args, _ in MISTAKES])
    for (_, words), one in zip(MISTAKES, done, strict=True):
        assert one.code == 2
        assert words in one.err
        assert len(one.err.splitlines()) == 1


def test_a_run_is_resumed_after_a_crash(any_shell: Shell) -> None:
    shell = any_shell
    slow = {"text": "tick " * 400, "delay": 0.05, "chunkSize": 5}
    process = shell.start("run", "-m", shell.script(slow), "-s", "s1", "Count")
    shell.wait_for("s1", "model_call_started")
    process.kill()
    process.communicate()
    assert shell.ok("resume", "s1", "-m", shell.script("One, two.")).out == "One, two.\n"
    events = shell("resume", "s1", "-m", shell.script("Unused."), "--json")
    assert (events.code, events.out, events.err) == (0, "", "")
    assert shell.ok("replay", "s1").out.startswith("identical")


LATER = """
from turnlog import tool
from turnlog.tools import ToolResult

@tool
def order(what: str) -> ToolResult:
    "Order something."
    return ToolResult.deferred("the shop answers tomorrow")
"""


def test_a_call_that_is_answered_later_is_told_of_and_not_asked_about(shell: Shell) -> None:
    shell.write("later.py", LATER)
    order = {"toolCalls": [{"name": "order", "arguments": {"what": "tea"}}]}
    done = shell("run", "-m", shell.script(order), "-t", "later.py", "-s", "s1", "Order tea")
    assert done.code == 3
    assert "waits for an answer: the shop answers tomorrow" in done.err
    with shell.terminal("chat", "-m", shell.script("Unused."), "-t", "later.py", "-s", "s1") as terminal:
        terminal.until("turnlog answer s1")
        assert terminal.wait() == 3
    assert "order: waits for an answer: the shop" in shell.ok("show", "s1").out
