"""`turnlog eval`: a suite from the command line."""

from __future__ import annotations

import json
import signal
from xml.etree import ElementTree

from cli.shell import Shell

SUITE = """
import sys
from pathlib import Path

from turnlog import Agent
from turnlog.evals import Case, Suite, contains
from turnlog.testing import ScriptedModel

WORDS = Path("answers.txt")


def answer(request):
    with open("asked.txt", "a") as file:
        print(request.messages[-1].text, file=file)
    return WORDS.read_text() if WORDS.exists() else f"I heard {request.messages[-1].text}"


suite = Suite(
    "greetings",
    agents={
        "echo": Agent(ScriptedModel(default=answer), store="sqlite:log.db"),
        "rude": Agent(ScriptedModel(default="No."), store="sqlite:log.db"),
    },
    cases=[Case(name=name, input=name, checks=[contains(name)]) for name in ("hello", "goodbye")],
)
other = 3
"""


def test_a_suite_is_tried_and_the_report_compares_with_the_last_one(shell: Shell) -> None:
    shell.write("suite.py", SUITE)
    first = shell("eval", "suite.py", "--junit", "out.xml")
    assert first.code == 1
    rows = {
        line.split()[0]: line.split()[1]
        for line in first.out.splitlines()
        if line.startswith(("echo", "rude"))
    }
    assert rows == {"echo": "2/2", "rude": "0/2"}
    assert "rude goodbye: contains: the answer has no 'goodbye'" in first.out
    assert len(list(ElementTree.fromstring((shell.folder / "out.xml").read_text()).iter("failure"))) == 2

    (shell.folder / "answers.txt").write_text("hello")
    second = shell("eval", "suite.py:suite", "--require", "0")
    assert second.code == 0
    assert "worse echo goodbye: 1/1 → 0/1" in second.out
    one = shell("eval", "suite.py", "-k", "hello", "-n", "3", "--json")
    report = one.lines[0]
    assert [score["rate"]["of"] for score in report["scores"]] == [3, 3]
    shown = shell.ok("show", report["trials"][0]["sessionId"])
    assert "hello" in shown.out
    assert shell.ok("replay", report["trials"][0]["sessionId"]).out.startswith("identical")


def test_a_session_becomes_a_case_with_one_command_and_models_are_compared(shell: Shell) -> None:
    call = {"toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    shell.ok("run", "-m", shell.script(call, "The sum is 3."), "-t", "tools.py", "-s", "sums", "Add 1 and 2")
    added = shell.ok("eval", "cases.jsonl", "--add", "sums")
    assert "sums: entry" in added.out
    line = json.loads((shell.folder / "cases.jsonl").read_text())
    assert line["checks"] == [{"called": "add"}] and line["reference"] == "The sum is 3."
    good, bad = shell.script(call, "It is 3."), shell.script("I would say 4.")
    report = shell("eval", "cases.jsonl", "-m", good, "--against", bad, "-t", "tools.py", "--json").lines[0]
    assert [trial["status"] for trial in report["trials"]].count("passed") == 1
    assert {score["agent"]: score["rate"]["passed"] for score in report["scores"]} == {good: 1, bad: 0}


def test_wrong_suites_are_named(shell: Shell) -> None:
    shell.write("suite.py", SUITE)
    shell.write("broken.py", "import nothing_of_that_name")
    shell.write("cases.jsonl", "{\n")
    for words, arguments in {
        "broken.py fails: ModuleNotFoundError": ["broken.py"],
        "suite.py has no 'suit'; its suites: suite": ["suite.py:suit"],
        "'other' in suite.py is a int, not a Suite": ["suite.py:other"],
        "cases.jsonl, line 1": ["cases.jsonl", "-m", shell.script("x")],
        "a suite has its agents": ["suite.py", "-m", "local"],
        "has no such case": ["suite.py", "-k", "nothing"],
        "belong to --add": ["suite.py", "--name", "x"],
        "a session is added to a file of cases": ["suite.py", "--add", "s1"],
        "no session": ["cases2.jsonl", "--add", "s1"],
    }.items():
        done = shell("eval", *arguments)
        assert done.code != 0 and words in done.err.replace("\n", " "), (arguments, done.err)
        assert "Traceback" not in done.err


SLOW = """
    if "goodbye" in request.messages[-1].text and not Path("go").exists():
        Path("waits").touch()
        import asyncio
        return asyncio.Event().wait()
    return WORDS"""


def test_ctrl_c_keeps_what_is_done(shell: Shell) -> None:
    shell.write("suite.py", SUITE.replace("\n    return WORDS", SLOW))
    process = shell.start("eval", "suite.py", "--json")
    shell.wait_for_file("waits")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130 and b"asks nothing again that is done" in err
    shell.write("go", "")
    (shell.folder / "asked.txt").unlink()
    done = shell("eval", "suite.py", "--json")
    assert len(done.lines[0]["trials"]) == 4
    assert (shell.folder / "asked.txt").read_text().split() == ["goodbye"]
