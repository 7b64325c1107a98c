"""`turnlog completion`: real shells complete commands, options, choices, sessions and files."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.shell import COMMAND, PATIENCE, Shell, Terminal
from turnlog import Agent, open_store
from turnlog.testing import ScriptedModel

ODD = [
    "with space",
    "qu'ote",
    'double"quote',
    "$(touch pwned)",
    "back`tick`",
    "a:b:c",
    "eq=ual",
    "~tilde",
    "-dash",
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with sessions of odd names, `turnlog` on the PATH, and the scripts of all shells."""
    shell = Shell(tmp_path_factory.mktemp("completion"))
    store = open_store(f"sqlite:{shell.folder / 'log.db'}")
    agent = Agent(ScriptedModel(["Hi."] * 20), store=store)
    for name in ["plain-1", "plain-2", *ODD]:
        agent.run_sync("Hello?", session=name, title=f"About\n\x1b[31m {name}")
    other = Agent(ScriptedModel(["Hi."]), store=f"sqlite:{shell.folder / 'other.db'}")
    other.run_sync("What is it?", session="elsewhere")
    rename = sqlite3.connect(shell.folder / "log.db")
    agent.run_sync("Hello?", session="new-line")
    with rename:  # no store takes such a name; a file that somebody made may hold one
        rename.execute("UPDATE sessions SET id = 'new' || char(10) || 'line' WHERE id = 'new-line'")
    rename.close()
    words = " ".join(f"'{word}'" for word in COMMAND)
    (shell.folder / "bin").mkdir()
    (shell.folder / "bin" / "turnlog").write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    (shell.folder / "bin" / "turnlog").chmod(0o755)
    shell.env["PATH"] = f"{shell.folder / 'bin'}:{shell.env['PATH']}"
    shell.env |= {"LC_ALL": "C.UTF-8", "TERM": "vt100"}
    for name in ("bash", "zsh", "fish"):
        shell.write(f"completion.{name}", shell.ok("completion", name).out)
    shell.write("letters.jsonl", "")
    return shell


@pytest.fixture(scope="module")
def bash(desk: Shell) -> Iterator[Terminal]:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    yield from _open(
        desk, ["bash", "--norc", "--noprofile", "-i"], "bind 'set bell-style none'; source completion.bash"
    )


@pytest.fixture(scope="module")
def zsh(desk: Shell) -> Iterator[Terminal]:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    start = "unsetopt beep zle_bracketed_paste; autoload -Uz compinit && compinit -D && source completion.zsh"
    yield from _open(desk, ["zsh", "-f", "-i"], start)


def _open(desk: Shell, command: list[str], start: str) -> Iterator[Terminal]:
    program = shutil.which(command[0])
    assert program is not None
    terminal = Terminal([program, *command[1:]], desk.folder, desk.env)
    terminal.type(f"{start}; PS1='ready''> '\n")
    terminal.until("ready> ")
    yield terminal
    terminal.end()


def _complete(terminal: Terminal, line: str) -> list[str]:
    """The words that a shell makes of a line when Tab is pressed at its end: what it would run, seen by the
    program that it runs."""
    terminal.type(line + "\t")
    terminal.type("\x01show_words \x05\n")  # to the start of the line, and back
    seen = terminal.until("ready> ")
    return re.findall(r"<([^>]*)>", seen)


SHOW = "show_words() { shift; printf '<%s>' \"$@\" | tr '\\n' '|'; echo; }"
LINES = [
    ("turnlog sess", ["sessions"]),
    ("turnlog memory wri", ["memory", "write"]),
    ("turnlog sessions --status awai", ["sessions", "--status", "awaiting_human"]),
    ("turnlog sessions --status=awai", ["sessions", "--status=awaiting_human"]),
    ("turnlog show plain-1 --err", ["show", "plain-1", "--errors"]),
    ("turnlog show pl", ["show", "plain-"]),
    ("turnlog show with", ["show", "with space"]),
    ('turnlog show "with', ["show", "with space"]),
    ("turnlog show 'with", ["show", "with space"]),
    ("turnlog show with\\ s", ["show", "with space"]),
    ("turnlog show qu", ["show", "qu'ote"]),
    ("turnlog show doub", ["show", 'double"quote']),
    ("turnlog show '$(to", ["show", "$(touch pwned)"]),
    ("turnlog show back", ["show", "back`tick`"]),
    ("turnlog show a:b", ["show", "a:b:c"]),
    ("turnlog show eq=u", ["show", "eq=ual"]),
    ("turnlog chat --session=wit", ["chat", "--session=with space"]),
    ("turnlog chat -s wit", ["chat", "-s", "with space"]),
    ("turnlog show --after 3 wit", ["show", "--after", "3", "with space"]),
    ("turnlog context --diff 1 2 wit", ["context", "--diff", "1", "2", "with space"]),
    ("turnlog show --store sqlite:other.db el", ["show", "--store", "sqlite:other.db", "elsewhere"]),
    ("turnlog show --store=nothing:here el", ["show", "--store=nothing:here", "el"]),
    ("turnlog show plain-1 wit", ["show", "plain-1", "wit"]),
    ("turnlog run wit", ["run", "wit"]),
    ("turnlog map lett", ["map", "letters.jsonl"]),
    ("turnlog export x -o lett", ["export", "x", "-o", "letters.jsonl"]),
]


@pytest.mark.parametrize("name", ["bash", "zsh"])
@pytest.mark.spec("X-2")
def test_a_shell_completes_what_is_typed(name: str, request: pytest.FixtureRequest, desk: Shell) -> None:
    terminal: Terminal = request.getfixturevalue(name)
    terminal.type(SHOW + "\n")
    terminal.until("ready> ")
    made = {line: _complete(terminal, line) for line, _ in LINES}
    assert made == dict(LINES)
    assert not (desk.folder / "pwned").exists()


def test_bash_lists_titles_beside_the_names_and_shows_no_control_character(bash: Terminal) -> None:
    bash.type("turnlog show plain-\t\t")
    seen = bash.until("ready> ")
    assert "plain-1  (About [31m plain-1)" in seen
    bash.type("\x15\n")
    bash.until("ready> ")


def test_bash_quotes_a_line_break_in_a_name(bash: Terminal) -> None:
    bash.type(SHOW + "\n")
    bash.until("ready> ")
    assert _complete(bash, "turnlog show new") == ["show", "new|line"]


@pytest.mark.spec("X-2")
def test_fish_completes_what_is_typed(desk: Shell) -> None:
    program = shutil.which("fish")
    if program is None:
        pytest.skip("fish is not installed")
    lines = {
        "turnlog sess": ["sessions"],
        "turnlog memory wri": ["write"],
        "turnlog sessions --status awai": ["awaiting_human"],
        "turnlog show plain-1 --err": ["--errors"],
        "turnlog show pl": ["plain-1", "plain-2"],
        "turnlog show wit": ["with space"],
        "turnlog show a:b": ["a:b:c"],
        "turnlog show newl": [],  # the name has a line break, which a list of fish cannot hold
        "turnlog chat -s wit": ["with space"],
        "turnlog context --diff 1 2 wit": ["with space"],
        "turnlog show --store sqlite:other.db el": ["elsewhere"],
        "turnlog show plain-1 wit": [],
        "turnlog map lett": ["letters.jsonl"],
        "turnlog export x -o lett": ["letters.jsonl"],
    }
    asked = "; ".join(f"complete -C '{line}'; echo ---" for line in lines)
    done = subprocess.run(
        [program, "-N", "-c", f"source completion.fish; {asked}"],
        cwd=desk.folder,
        env=desk.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    found = [
        [row.partition("\t")[0] for row in block.splitlines() if row] for block in done.stdout.split("---\n")
    ]
    assert dict(zip(lines, found, strict=False)) == lines, done.stderr
    assert not (desk.folder / "pwned").exists()


def test_names_are_answered_without_the_packages_that_are_slow_to_load(desk: Shell) -> None:
    look = (
        "import sys; sys.argv = ['turnlog', 'completion', '--sessions', '--', 'plain']\n"
        "from turnlog.cli import main; main()\n"
        "print(sorted({'click', 'rich', 'msgspec', 'asyncio', 'turnlog.contract'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=desk.folder,
        env=desk.env,
        capture_output=True,
        check=True,
        text=True,
    )
    names, _, loaded = done.stdout.rpartition("\0")
    assert names.split("\0")[::2] == ["plain-2", "plain-1"]
    assert loaded == "[]\n"


@pytest.mark.parametrize(
    "url", ["sqlite:missing.db", "jsonl:missing", "nonsense", "sqlite:letters.jsonl", "memory:"]
)
def test_a_store_that_is_not_there_has_no_names_and_is_not_made(shell: Shell, url: str) -> None:
    shell.write("letters.jsonl", "")
    before = sorted(os.listdir(shell.folder))
    done = shell.cold("completion", "--sessions", f"--store={url}", "--", "")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert sorted(os.listdir(shell.folder)) == before


def test_names_come_from_a_folder_of_files_too(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "jsonl:logs")
    shell.ok("run", "Hello?", "-m", shell.script("Hi."), "-s", "one", "--title", "First")
    assert shell.cold("completion", "--sessions", "--", "o").out == "one\0First\0"
    assert shell.cold("completion", "--sessions", "--", "x").out == ""
