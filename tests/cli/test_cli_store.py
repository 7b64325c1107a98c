"""The store as a whole, from the command line: finding, deciding, deleting, messages of other systems."""

from __future__ import annotations

import json
import stat

import pytest

from cli.shell import Shell

DELETE = {"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}
MESSAGES = [{"role": "user", "content": "How is Rome?"}, {"role": "assistant", "content": "Sunny."}]


@pytest.fixture
def full(shell: Shell) -> Shell:
    """One session that completed, one that waits, one that failed."""
    shell.ok("run", "-m", shell.script("Hi."), "-s", "done", "Say hello.")
    asked = shell("run", "-m", shell.script(DELETE), "-t", "tools.py", "-s", "waits", "Delete x")
    assert asked.code == 3
    assert shell("run", "-m", shell.script(), "-s", "fails", "Fail.").code == 1
    return shell


@pytest.mark.spec("H-15")
def test_sessions_are_found_by_status_and_age(full: Shell) -> None:
    def found(*options: str) -> list[str]:
        return [info["sessionId"] for info in full.ok("sessions", "--json", *options).lines]

    assert found() == ["fails", "waits", "done"]
    assert found("--waiting") == ["waits"]
    assert found("--failed") == ["fails"]
    assert found("--status", "completed") == ["done"]
    assert found("--limit", "2") == ["fails", "waits"]
    assert found("--since", "1d") == ["fails", "waits", "done"]
    assert found("--since", "2999-01-01") == []
    assert [info["about"] for info in full.ok("sessions", "--json").lines][1:] == ["Delete x", "Say hello."]
    lines = full.ok("sessions").out.splitlines()
    assert lines[0].split() == ["session", "entries", "changed", "(UTC)", "status", "about"]
    assert lines[2].split()[-3:] == ["awaiting_human", "Delete", "x"]
    assert full.ok("sessions", "--status", "paused").out == "no session in sqlite:log.db fits\n"
    assert full("sessions", "--since", "yesterday").code == 2


@pytest.mark.spec("A-5")
def test_the_inbox_lists_what_waits_everywhere(full: Shell) -> None:
    asked = full("run", "-m", full.script(DELETE), "-t", "tools.py", "-s", "too", "Delete it")
    assert asked.code == 3
    first, second = full.ok("approve", "--json").lines
    assert (first["sessionId"], second["sessionId"]) == ("waits", "too")
    listed = full.ok("approve").out
    assert listed.index("waits") < listed.index(first["requested"]["toolCallId"]) < listed.index("too")
    full.ok("approve", "waits", first["requested"]["toolCallId"])
    assert [line["sessionId"] for line in full.ok("approve", "--json").lines] == ["too"]
    assert full("approve", "--deny").code == 2


def test_a_session_is_deleted_when_somebody_says_so(full: Shell) -> None:
    full.ok("fork", "done", "--to", "branch")
    refused = full("delete", "done", "--yes")
    assert refused.code == 1 and "'branch' share its past" in refused.err
    assert full("delete", "done", "--forks", stdin="n\n").code == 1
    assert full.ok("delete", "done", "--forks", stdin="y\n").out.startswith("erased done")
    left = [info["sessionId"] for info in full.ok("sessions", "--json").lines]
    assert left == ["fails", "waits"]
    for options in (["--yes"], []):
        gone = full("delete", "done", *options)
        assert gone.code == 1 and "SessionNotFound" in gone.err and "for good?" not in gone.err


@pytest.mark.spec("H-16")
def test_messages_of_another_system_come_and_go(shell: Shell) -> None:
    shell.write("messages.json", json.dumps(MESSAGES))
    options = ("--format", "openai", "--session", "s1", "--title", "Rome")
    assert shell.ok("import", "messages.json", *options).out == "s1\n"
    assert json.loads(shell.ok("export", "s1", "--format", "openai").out) == MESSAGES
    assert json.loads(shell.ok("export", "s1", "--format", "anthropic").out) == {"messages": MESSAGES}
    assert json.loads(shell.ok("export", "s1", "--format", "langchain").out)[0]["type"] == "human"
    again = shell("import", "messages.json", *options)
    assert again.code == 1 and "exists already" in again.err
    shell.ok("import", "messages.json", "--session", "s2")
    shell.write("lines.jsonl", "\n".join(map(json.dumps, MESSAGES)))
    shell.ok("import", "lines.jsonl", "--session", "s3")
    for name in ("s2", "s3"):
        assert json.loads(shell.ok("export", name, "--format", "openai").out) == MESSAGES
        assert {line["meta"]["imported"] for line in shell.ok("show", name, "--json").lines} == {"openai"}
    shell.write("broken.json", "{")
    assert "not JSON" in shell("import", "broken.json", "--format", "openai").err


def test_an_export_is_for_its_owner_alone(full: Shell) -> None:
    (full.folder / "page.md").write_text("older")
    for form, name in (("html", "page.html"), ("markdown", "page.md"), ("jsonl", "log.jsonl")):
        full.ok("export", "done", "--format", form, "-o", name)
        assert stat.S_IMODE((full.folder / name).stat().st_mode) == 0o600
