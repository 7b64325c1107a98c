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


LATER = """
from turnlog import tool
from turnlog.tools import ToolResult

@tool
def measure(room: str) -> ToolResult:
    "Have a room measured."
    question, form = f"How large is {room}?", {"type": "number"}
    return ToolResult.deferred("the caretaker goes there", question=question, answer_schema=form, by="cy")
"""


@pytest.mark.spec("T-11")
def test_a_question_is_listed_and_answered_from_another_process(shell: Shell) -> None:
    shell.write("later.py", LATER)
    measure = {"toolCalls": [{"name": "measure", "arguments": {"room": "the hall"}}]}
    model = shell.script(measure, "It has 21.5 m².")
    asked = shell("run", "-m", model, "-t", "later.py", "-s", "s1", "How large is the hall?")
    assert asked.code == 3
    assert "measure asks: How large is the hall?; answer with: turnlog answer s1 " in asked.err
    (waiting,) = shell.ok("answer", "s1", "--json").lines
    call = waiting["asked"]["toolCallId"]
    for inbox in (shell.ok("answer"), shell.ok("approve")):
        assert f"{call} measure asks for cy: How large is the hall?" in inbox.out
        assert "answer with: turnlog answer SESSION CALL TEXT" in inbox.err
    wrong = shell.each(
        [
            ["answer", "s1", call],
            ["answer", "s1", call, "large", "--value", "1"],
            ["answer", "s1", call, "--value", "{"],
            ["answer", "s1", call, "large"],
            ["answer", "s1", "call_x", "large"],
            ["answer", "--value", "1"],
            ["answer", "s2"],
        ]
    )
    for done, words in zip(
        wrong,
        [
            "give the answer as TEXT, or as --value JSON",
            "give the answer as TEXT, or as --value JSON",
            "this is not JSON",
            "this answer does not fit what was asked for",
            f"call call_x does not wait for an answer; waiting: {call}",
            "name the SESSION and the CALL",
            "there is no session 's2'",
        ],
        strict=True,
    ):
        assert done.code in (1, 2) and words in done.err
    assert shell.ok("answer", "s1", call, "--value", "21.5", "--by", "cy").out == "answered by cy\n"
    assert shell.ok("answer").out == "no question waits\n"
    assert (
        shell.ok("resume", "s1", "-m", shell.script("It has 21.5 m²."), "-t", "later.py").out
        == "It has 21.5 m².\n"
    )
    assert shell.ok("replay", "s1").out.startswith("identical")
