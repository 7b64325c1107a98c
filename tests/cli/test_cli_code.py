"""`turnlog code`: a failing test is fixed, changes are asked about, undone, and survive a kill."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cli.shell import Done, Shell

BROKEN = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"
FIXED = "def mean(numbers):\n    return sum(numbers) / len(numbers) if numbers else 0\n"
CHECK = "from calc import mean\nassert mean([1, 3]) == 2\nassert mean([]) == 0\n"
EDIT = {
    "path": "calc.py",
    "old": "return sum(numbers) / len(numbers)",
    "new": "return sum(numbers) / len(numbers) if numbers else 0",
}


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"toolCalls": [{"name": name, "arguments": arguments}]}


TEST = calls("shell", command="python3 -B test_calc.py")
READ = calls("read", path="calc.py")


@pytest.fixture
def repository(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell.env["HOME"] = str(tmp_path_factory.mktemp("home"))  # no sandbox shows the user's home to commands
    shell.write("calc.py", BROKEN)
    shell.write("test_calc.py", CHECK)
    return shell


def results(shell: Shell, session: str) -> list[str]:
    lines = shell.ok("show", session, "--json").lines
    found = [entry["payload"]["message"]["parts"] for entry in lines if entry["kind"] == "tool_results"]
    return [str(part["payload"]["content"]) for parts in found for part in parts]


@pytest.mark.spec("T-7")
def test_the_agent_fixes_a_failing_test_in_its_sandbox(repository: Shell) -> None:
    script = repository.script(
        TEST, calls("grep", pattern=r"def\s+mean"), READ, calls("edit", **EDIT), TEST, "Both checks pass."
    )
    done = repository("code", "fix the failing test", "-m", script, "-s", "s1", "--policy", "workspace-auto")
    assert (done.code, done.out) == (0, "Both checks pass.\n"), done
    before, found, _, edited, after = results(repository, "s1")
    assert "ZeroDivisionError" in before and before.endswith("[ended with exit code 1]")
    assert found == "calc.py:1:def mean(numbers):"
    assert edited.startswith("edited calc.py: 1 line added, 1 removed")
    assert after == "[ended with exit code 0]"
    assert (repository.folder / "calc.py").read_text() == FIXED
    assert repository.ok("replay", "s1").out.startswith("identical")


def test_a_change_waits_for_approval_and_is_undone(repository: Shell) -> None:
    script = repository.script(READ, calls("edit", **EDIT), "Edited.", calls("edit", **EDIT), "Not edited.")
    with repository.terminal("code", "-m", script, "-s", "s1") as terminal:
        terminal.say("Fix it")
        terminal.until("it may change something")
        seen = terminal.until("run it? ")
        old, new = BROKEN.splitlines()[1], FIXED.splitlines()[1]
        assert f"1  def mean(numbers):\r\n2 -{old}\r\n2 +{new}\r\n" in seen
        assert (repository.folder / "calc.py").read_text() == BROKEN
        terminal.type("y\n")
        terminal.until("Edited.")
        assert (repository.folder / "calc.py").read_text() == FIXED
        terminal.say("/undo")
        terminal.until("restored calc.py")
        assert (repository.folder / "calc.py").read_text() == BROKEN
        terminal.say("Again")
        terminal.until("run it? ")
        terminal.type("no, because I do it myself\n")
        terminal.until("Not edited.")
        terminal.say("/undo")
        terminal.until("no turn of this session has changed a file")
        terminal.say("/open")
        terminal.until("I do it myself")
        terminal.until("> ")
        terminal.press_ctrl_d()
        assert terminal.wait() == 0
    assert (repository.folder / "calc.py").read_text() == BROKEN


def test_without_a_terminal_a_change_waits_in_the_log(repository: Shell) -> None:
    script = repository.script(READ, calls("edit", **EDIT))
    done = repository("code", "fix it", "-m", script, "-s", "s1")
    assert done.code == 3 and "decide with: turnlog approve s1" in done.err
    assert (repository.folder / "calc.py").read_text() == BROKEN
    [waiting] = [line for line in done.err.splitlines() if "continue with" in line]
    assert "turnlog resume s1" in waiting and f"-t code --workspace {repository.folder}" in waiting
    [call] = re.findall(r"approve s1 (\S+),", done.err)
    repository.ok("approve", "s1", call)
    again = repository("resume", "s1", "-t", "code", "-m", repository.script("Edited."))
    assert again.code == 0 and (repository.folder / "calc.py").read_text() == FIXED


@pytest.fixture
def decided(repository: Shell) -> Done:
    """An edit that waited in session s1 and was approved."""
    script = repository.script(READ, calls("edit", **EDIT))
    assert repository("code", "fix it", "-m", script, "-s", "s1").code == 3
    (waiting,) = repository.ok("approve", "s1", "--json").lines
    return repository.ok("approve", "s1", waiting["toolCallId"])


def test_an_approved_change_is_made_in_the_folder_that_it_was_meant_for(
    repository: Shell, decided: Done
) -> None:
    script = f"scripted:{repository.folder / repository.script('Edited.').partition(':')[2]}"
    elsewhere = Shell(repository.folder / "elsewhere", f"sqlite:{repository.folder / 'log.db'}")
    elsewhere.env["HOME"] = repository.env["HOME"]
    elsewhere.write("calc.py", BROKEN)
    refused = elsewhere("resume", "s1", "-m", script, "-t", "code", "--workspace", ".")
    assert refused.code == 1 and "ConfigInvalid: run run_" in refused.err
    assert f"--workspace {repository.folder})" in refused.err and str(elsewhere.folder) in refused.err
    elsewhere.ok("resume", "s1", "-m", script, "-t", "code")
    assert (elsewhere.folder / "calc.py").read_text() == BROKEN
    assert (repository.folder / "calc.py").read_text() == FIXED


def test_an_approved_change_waits_for_an_agent_that_has_the_tool(repository: Shell, decided: Done) -> None:
    options = rf"-t code --workspace {re.escape(str(repository.folder))} --sandbox \w+"
    assert re.search(f"continue with: turnlog resume s1 {options}, and the model and other", decided.err)
    script = repository.script("Edited.")
    refused = repository("resume", "s1", "-m", script)
    assert refused.code == 1 and "this agent has no tool 'edit'" in refused.err
    assert (repository.folder / "calc.py").read_text() == BROKEN
    repository.ok("resume", "s1", "-m", script, "-t", "code")
    assert (repository.folder / "calc.py").read_text() == FIXED


def test_a_chat_has_the_same_tools_and_only_reads_when_told_so(repository: Shell) -> None:
    script = repository.script(READ, calls("edit", **EDIT), calls("shell", command="ls"), "I only looked.")
    repository.ok("chat", "-t", "code", "--policy", "read-only", "-m", script, "-s", "s1", stdin="Look\n")
    read, edited, ran = results(repository, "s1")
    assert (
        "def mean" in read
        and "only tools that read are allowed here" in edited
        and "only tools that read" in ran
    )
    assert (repository.folder / "calc.py").read_text() == BROKEN


def test_another_folder_is_the_workspace_and_nothing_above_it(repository: Shell) -> None:
    (repository.folder / "inner").mkdir()
    script = repository.script(calls("list"), calls("read", path="../calc.py"), "Done.")
    repository.ok("code", "look", "--workspace", "inner", "-m", script, "-s", "s1")
    listed, refused = results(repository, "s1")
    assert listed == "[the folder is empty]" and "outside of the workspace" in refused


def test_options_of_the_tools_are_refused_without_them(shell: Shell) -> None:
    done = shell("run", "Hi", "-m", shell.script("Hello."), "--sandbox", "none", "--policy", "read-only")
    assert done.code == 2 and "--sandbox, --policy: these options are for --tools code" in done.err
