"""`turnlog approve`: a decision from another process, after the one that asked has ended."""

from __future__ import annotations

import json

import pytest

from cli.shell import Done, Shell

DELETE = {"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}


@pytest.fixture
def call(shell: Shell) -> str:
    """A call that waits in session s1; the process that asked is gone."""
    asked = shell("run", "-m", shell.script(DELETE), "-t", "tools.py", "-s", "s1", "Delete x")
    assert asked.code == 3
    (waiting,) = shell.ok("approve", "s1", "--json").lines
    return waiting["toolCallId"]


def go_on(shell: Shell) -> Done:
    return shell("chat", "-m", shell.script("So be it."), "-t", "tools.py", "-s", "s1")


def effects(shell: Shell) -> str:
    file = shell.folder / "effects.txt"
    return file.read_text() if file.exists() else ""


def outcome(shell: Shell) -> dict[str, str]:
    (result,) = (e for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "tool_results")
    return result["payload"]["outcomes"][0]


@pytest.mark.spec("A-2")
def test_approved(shell: Shell, call: str) -> None:
    listed = shell.ok("approve", "s1").out
    assert f'{call} delete {{"path": "x"}}' in listed
    assert shell.ok("approve", "s1", call, "--by", "ann").out == "approve by ann\n"
    assert shell.ok("approve", "s1").out == "nothing waits in s1\n"
    again = shell("approve", "s1", call)
    assert again.code == 1
    assert f"call {call} does not wait for a decision; waiting: none" in again.err
    assert go_on(shell).out == "So be it.\n"
    assert effects(shell) == "deleted x\n"
    assert shell.ok("replay", "s1").out.startswith("identical")


@pytest.mark.spec("A-4")
def test_denied(shell: Shell, call: str) -> None:
    shell.ok("approve", "s1", call, "--deny", "--note", "never that file", "--by", "bob")
    assert go_on(shell).out == "So be it.\n"
    assert effects(shell) == ""
    assert outcome(shell)["status"] == "denied"
    assert "never that file" in shell.ok("context", "s1").out  # the model was told
    (decided,) = (e for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "approval_decided")
    assert decided["payload"]["decidedBy"] == "bob"
    assert decided["timestamp"]
    assert shell.ok("replay", "s1").out.startswith("identical")


def test_with_other_arguments(shell: Shell, call: str) -> None:
    decided = shell.ok("approve", "s1", call, "--modify", '{"path": "y"}', "--json")
    assert decided.lines[0]["action"] == "modify"
    go_on(shell)
    assert effects(shell) == "deleted y\n"
    log = shell.ok("show", "s1", "--json").lines
    (asked,) = (e["payload"] for e in log if e["kind"] == "approval_requested")
    (made,) = (e["payload"] for e in log if e["kind"] == "approval_decided")
    assert (asked["arguments"], made["arguments"]) == ({"path": "x"}, {"path": "y"})
    assert shell.ok("replay", "s1").out.startswith("identical")


@pytest.mark.spec("A-1")
def test_arguments_that_do_not_fit_leave_it_waiting(shell: Shell, call: str) -> None:
    done = shell("approve", "s1", call, "--modify", '{"file": "y"}')
    assert done.code == 1
    assert "ApprovalInvalid: these arguments do not fit 'delete': path: is required but missing" in done.err
    assert shell.ok("approve", "s1", "--json").lines[0]["toolCallId"] == call
    shell.ok("approve", "s1", call, "--modify", '{"path": "y"}')
    go_on(shell)
    assert effects(shell) == "deleted y\n"


def test_aborted(shell: Shell, call: str) -> None:
    shell.ok("approve", "s1", call, "--abort")
    assert go_on(shell).code == 130
    assert effects(shell) == ""
    assert shell.kinds("s1")[-1] == "run_ended"
    assert shell.ok("verify", "s1").out.startswith("sound")


def test_what_makes_no_decision(shell: Shell) -> None:
    shell("run", "-m", shell.script(DELETE), "-t", "tools.py", "-s", "s1", "Delete x")
    before = len(shell.kinds("s1"))
    for args, words in [
        (["s1", "call_none"], "call call_none does not wait for a decision; waiting: call_"),
        (["s1", "c", "--modify", "{"], "this is not JSON"),
        (["s1", "c", "--modify", json.dumps([1])], "arguments are a JSON object"),
        (["s1", "c", "--modify", "{}", "--deny"], "contradict each other"),
        (["s1", "--deny"], "name the CALL"),
        (["none"], "there is no session 'none'"),
    ]:
        done = shell("approve", *args)
        assert done.code in (1, 2)
        assert words in done.err
        assert len(done.err.splitlines()) == 1
    assert len(shell.kinds("s1")) == before
