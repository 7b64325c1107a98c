"""X-2. The command line, as a person and a script use it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from cli.shell import PATIENCE, Shell

COMMANDS = [  # in the order of the sentence
    "chat",
    "run",
    "sessions",
    "show",
    "context",
    "compact",
    "replay",
    "fork",
    "approve",
    "resume",
    "export",
    "import",
    "verify",
    "redact",
    "purge",
    "rerun",
    "map",
    "eval",
    "code",
    "mcp",
    "serve",
    "watch",
    "acp",
    "worker",
    "fleet",
    "doctor",
]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    said = Shell(tmp_path_factory.mktemp("known")).ok("--help").out
    return set(re.findall(r"^  (\w+) ", said.partition("Commands:")[2], re.M))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.spec("X-2")
def test_the_command_exists_and_explains_itself(command: str, known: set[str], shell: Shell) -> None:
    if command not in known:
        pytest.skip(f"turnlog {command} does not exist yet")
    said = shell.ok(command, "--help").out
    assert said.startswith(f"Usage: turnlog {command} ") and "--help" in said


def delete_call(path: str) -> dict[str, object]:
    return {"toolCalls": [{"name": "delete", "arguments": {"path": path}}]}


@pytest.mark.spec("X-2")
def test_a_script_reads_json_from_every_command_that_tells_something(shell: Shell) -> None:
    options = ["-t", "tools.py", "--json", "-m"]
    assert shell("run", "Delete a.txt.", "-s", "s", *options, shell.script(delete_call("a.txt"))).code == 3

    [info] = shell.ok("sessions", "--waiting", "--json").lines
    [waiting] = shell.ok("approve", "--json").lines
    assert (info["sessionId"], info["status"]) == ("s", "awaiting_human")
    assert (waiting["sessionId"], waiting["requested"]["arguments"]) == ("s", {"path": "a.txt"})
    shell.ok("approve", "s", waiting["requested"]["toolCallId"], "--json")
    assert shell.ok("resume", "s", *options, shell.script("It is gone.")).lines[-1]["kind"] == "run_ended"
    assert (shell.folder / "effects.txt").read_text() == "deleted a.txt\n"

    entries = shell.ok("show", "s", "--json").lines
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    [seen] = shell.ok("context", "s", "--json").lines
    assert seen["call"] == 2 and seen["matches"]
    assert shell.ok("compact", "s", "--json").lines == []
    [replayed] = shell.ok("replay", "s", "--json").lines
    assert replayed["identical"] and replayed["entries"] == len(entries)
    assert shell.ok("verify", "s", "--json").lines == []
    assert shell.ok("fork", "s", "--to", "branch", "--json").lines == [{"sessionId": "branch"}]

    asked = next(entry["seq"] for entry in entries if entry["kind"] == "model_input")
    again = ("--at", str(asked), "-m", shell.script("Nothing to do."), "--to", "what-if", "--json")
    [compared] = shell.ok("rerun", "s", *again).lines
    assert "Nothing to do." in json.dumps(compared)

    shell.ok("export", "s", "-o", "s.jsonl")
    moved = ("--store", "sqlite:other.db", "--json")
    assert shell.ok("import", "s.jsonl", "--trust", *moved).lines == [{"sessionId": "s"}]
    [hidden] = shell.ok("redact", "s", str(asked), *moved).lines
    [erased] = shell.ok("purge", "s", str(asked), "--yes", *moved).lines
    assert (hidden["kind"], erased["kind"]) == ("redaction", "purge")
    assert "Delete a.txt" not in shell.ok("export", "s", "--store", "sqlite:other.db").out

    lines = "\n".join(json.dumps(f"question {number}") for number in range(3))
    answered = shell.ok("map", "-", "-m", shell.script("A.", "B.", "C."), "--json", stdin=lines).lines
    assert sorted(each["index"] for each in answered) == [0, 1, 2]
    assert {each["status"] for each in answered} == {"completed"}
    assert shell.ok("mcp", "list", "--json").lines == []
    assert {"python", "store", "sandbox"} <= {row["name"] for row in shell("doctor", "--json").lines}


@pytest.mark.spec("X-2")
def test_chat_code_and_serve_work_as_processes(shell: Shell) -> None:
    chat = shell.ok("chat", "-s", "talk", "-m", shell.script("Hi.", "Bye."), stdin="Hello?\nGoodbye.\n")
    assert chat.out.split() == ["Hi.", "Bye."]
    code = ("code", "Look.", "-s", "work", "-m", shell.script("Nothing to change."), "--sandbox", "none")
    assert "Nothing to change." in shell.ok(*code).out

    pytest.importorskip("uvicorn", reason="serve needs the extra 'server'")
    server = shell.start("serve", "--port", "0", "--json")
    assert server.stdout is not None
    try:
        told = json.loads(server.stdout.readline())
        assert told["address"].startswith("http://127.0.0.1:") and len(told["token"]) > 20
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=PATIENCE)


@pytest.mark.spec("X-2")
def test_long_work_shows_on_a_terminal_that_it_goes_on(shell: Shell) -> None:
    shell.env["TERM"] = "xterm"
    shell.ok("run", "Hello?", "-s", "s", "-m", shell.script("Hi."))
    with shell.terminal("replay", "s") as terminal:
        terminal.until("comparing every entry")
        terminal.until("identical")
        assert terminal.wait() == 0


@pytest.mark.spec("X-2")
def test_the_store_is_the_option_else_the_variable_else_a_file_of_the_user(shell: Shell) -> None:
    shell.ok("run", "Hello?", "-s", "given", "-m", shell.script("Hi."), "--store", "jsonl:given")
    shell.ok("run", "Hello?", "-s", "named", "-m", shell.script("Hi."))
    del shell.env["TURNLOG_STORE"]
    shell.env["XDG_DATA_HOME"] = str(shell.folder / "data")
    shell.ok("run", "Hello?", "-s", "usual", "-m", shell.script("Hi."))
    stores = {"jsonl:given": "given", "sqlite:log.db": "named", "sqlite:data/turnlog/sessions.db": "usual"}
    for url, name in stores.items():
        assert [info["sessionId"] for info in shell.ok("sessions", "--json", "--store", url).lines] == [name]


MISTAKES = {
    ("sesions",): "Did you mean 'sessions'?",
    ("show", "talk", "--jsn"): "Did you mean '--json'?",
    ("show", "tlak"): "did you mean 'talk'?",
    ("show", "TALK"): "did you mean 'talk'?",
    ("resume", "tal", "-m", "scripted:none.json"): "did you mean 'talk'?",
    ("export", "talk", "--format", "htm"): "did you mean 'html'?",
    ("run", "Hello?", "-m", "opnai:gpt"): "did you mean openai:gpt?",
    ("rerun", "talk"): "see turnlog rerun --help",
}


@pytest.mark.spec("X-2")
def test_an_error_is_one_sentence_that_says_what_to_do(shell: Shell) -> None:
    shell.ok("run", "Hello?", "-s", "talk", "-m", shell.script("Hi."))
    shell.write("none.json", '{"turns": []}')
    for words, advice in MISTAKES.items():
        done = shell(*words)
        assert done.code in (1, 2) and done.out == "", words
        assert advice in done.err and done.err.count("\n") == 1, done.err
