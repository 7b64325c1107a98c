"""What a user sees where the terminal is narrow or poor, the output full, a stream closed, an answer late."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from cli.shell import COMMAND, PATIENCE, Shell
from turnlog.history import Session, open_store
from turnlog.system import SystemClock, SystemIds

LONG = "What would you say if the lines of a log were longer than the terminal is wide?"


def uncoloured(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def screen(output: str) -> list[str]:
    """What a terminal of any height shows in the end of ``output``."""
    rows, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[?0-9;]*[a-zA-Z]|[^\x1b]", output):
        if piece == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[A":
            row -= 1
        elif piece == "\x1b[J":
            rows[row:] = [rows[row][:column]]
        elif piece == "\x1b[2K":
            rows[row] = ""
        elif not piece.startswith("\x1b"):
            rows[row] = rows[row][:column].ljust(column) + piece + rows[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in rows]


def closed(shell: Shell, number: int, *args: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose stream ``number`` is closed, as after ``<&-`` or ``>&-``."""
    command = f'exec "$@" {number}{"<" if number == 0 else ">"}&-'
    return subprocess.run(
        ["sh", "-c", command, "sh", *COMMAND, *args],
        capture_output=True,
        cwd=shell.folder,
        env=shell.env,
        timeout=PATIENCE,
        check=False,
    )


def test_a_closed_standard_input_has_nothing_to_say(shell: Shell) -> None:
    model = shell.script("Hello.")
    chat = closed(shell, 0, "chat", "-m", model)
    assert (chat.returncode, chat.stderr) == (0, b"")
    run = closed(shell, 0, "run", "-m", model, "-")
    assert (run.returncode, run.stderr.count(b"\n")) == (2, 1)
    assert b"the text is empty" in run.stderr


def test_a_closed_standard_output_does_not_become_the_database(shell: Shell) -> None:
    done = closed(shell, 1, "run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    assert (done.returncode, done.stderr) == (0, b"")
    assert shell.ok("verify", "s1").out.startswith("sound")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_sentence(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "show", "s1"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=shell.folder,
            env=shell.env,
            timeout=PATIENCE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"cannot write the output: No space left on device\n")


def test_an_entry_is_a_line_of_the_terminal_and_what_went_wrong_is_not_cut(shell: Shell) -> None:
    shell.env.update(TERM="xterm", COLUMNS="50")
    broken = "the provider says at length why it did not like this request"
    shell(
        "run", "-m", shell.script({"error": {"code": "ModelBadRequest", "message": broken}}), "-s", "s1", LONG
    )
    with shell.terminal("show", "s1") as terminal:
        lines = uncoloured(terminal.until("entries"))
    said = next(line for line in lines if "model_input" in line)
    assert len(said) == 50 and said.endswith("…")
    at = next(number for number, line in enumerate(lines) if "model_call_failed" in line)
    assert max(map(len, lines)) == 50
    assert broken in " ".join(" ".join(lines[at : at + 4]).split())  # over several lines, no word cut


async def test_sessions_are_listed_by_what_was_said_first(shell: Shell, tmp_path: Path) -> None:
    shell.ok("run", "-m", shell.script("Yes."), "-s", "s1", LONG)
    shell.ok("run", "-m", shell.script("Yes."), "-s", "s2", "My number is 4711.")
    shell.ok("fork", "s1", "--to", "s3")
    store = open_store(f"sqlite:{tmp_path / 'log.db'}")
    session = await Session.open(store, "s2", clock=SystemClock(), ids=SystemIds())
    session.redact([entry.id for entry in session.entries if entry.kind == "model_input"])
    await session.commit()
    await store.close()
    rows = {line.split()[0]: line for line in shell.ok("sessions").out.splitlines()}
    assert "What would you say" in rows["s1"]
    assert "4711" not in rows["s2"]
    assert "(from s1 at 7) What would" in rows["s3"]
    shell.env.update(TERM="xterm", COLUMNS="60")
    with shell.terminal("sessions") as terminal:
        lines = uncoloured(terminal.rest())
    assert len(lines) == 4 and max(map(len, lines)) == 60


def test_an_answer_that_was_cut_short_says_so(shell: Shell) -> None:
    done = shell.ok("run", "-m", shell.script({"text": "Once", "finishReason": "length"}), "-s", "s1", "Tell")
    assert done.out == "Once\n"
    assert "reached its length limit" in done.err
    assert "Once (length)" in shell.ok("show", "s1").out


MARKDOWN = """# Apples

Apples are **round** and [well known](http://apples.example), and this line is longer than the terminal.
They are eaten.

- red
- green <b>or</b> yellow

```python
def eat(apple):
    return None
```

[1]: http://apples.example/1"""

SHOWN = """                 Apples

Apples are round and well known
(http://apples.example), and this line
is longer than the terminal.
They are eaten.

 • red
 • green <b>or</b> yellow

 def eat(apple):
     return None

[1]: http://apples.example/1"""


def test_an_answer_is_shown_as_markdown_and_no_word_is_cut(shell: Shell) -> None:
    shell.env.update(TERM="xterm", COLUMNS="40", LINES="8")
    with shell.terminal(
        "run", "-m", shell.script({"text": MARKDOWN, "chunkSize": 3}), "-s", "s1", "?"
    ) as term:
        shown = screen(term.rest())
    assert "\n".join(shown).strip("\n") == SHOWN.rstrip()
    shell.env.update(TERM="dumb")
    words = "many words which are all whole " * 4
    with shell.terminal("run", "-m", shell.script({"text": words, "chunkSize": 3}), "-s", "s2", "?") as term:
        shown = screen(term.rest())
    assert max(map(len, shown)) <= 40
    assert " ".join(shown).split() == words.split()


def test_a_block_that_is_higher_than_the_screen_is_shown_once(shell: Shell) -> None:
    shell.env.update(TERM="xterm", COLUMNS="40", LINES="6")
    text = "".join(f"- item {number}\n" for number in range(20))
    with shell.terminal("run", "-m", shell.script({"text": text, "chunkSize": 4}), "-s", "s1", "?") as term:
        shown = screen(term.rest())
    assert [line for line in shown if line] == [f" • item {number}" for number in range(20)]


def test_an_answer_that_was_cut_off_leaves_the_screen(shell: Shell) -> None:
    shell.env.update(TERM="xterm", COLUMNS="60", LINES="20")
    cut, whole = (
        {"text": "This was not all", "cut": True},
        {"text": "Said.\n\nThis was\nnot all", "cut": True},
    )
    with shell.terminal("run", "-m", shell.script(cut, whole, "All."), "-s", "s1", "?") as terminal:
        shown = [line for line in screen(terminal.rest()) if line]
    assert "This was" not in " ".join(shown)
    said = shown.index("Said.")  # a block that was complete stays in sight, with a word about it
    assert shown[said + 1] == "(that answer was cut off; it is asked for again)"
    assert "All." in shown[said:]
    assert len(re.findall("trying +again in ", " ".join(shown))) == 2


def test_a_late_answer_is_waited_for_in_sight(shell: Shell) -> None:
    shell.env["TERM"] = "xterm"
    model = shell.script({"text": "At last.", "delay": 4, "chunkSize": 99})
    with shell.terminal("run", "-m", model, "-s", "s1", "Well?") as terminal:
        terminal.until("waiting for scripted")
        assert terminal.until("At last.").endswith("\r\x1b[2KAt last.")


def test_a_recap_is_waited_for_in_sight(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    shell.env["TERM"] = "xterm"
    with shell.terminal("compact", "s1", "-m", shell.script("We said hello.")) as terminal:
        terminal.until("writes a recap")
        assert terminal.wait() == 0


def test_a_chat_in_which_nothing_was_said_was_not_kept(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script("Hello."), "-s", "s1") as terminal:
        terminal.until("> ")
        terminal.press_ctrl_d()
        assert terminal.wait() == 0
        assert "kept" not in terminal.rest()


def test_a_name_that_is_not_text(shell: Shell) -> None:
    for command in (["show"], ["run", "-m", shell.script("Hi."), "Hi", "-s"]):
        done = subprocess.run(
            [*map(os.fsencode, [*COMMAND, *command]), b"bad\xff"],
            capture_output=True,
            cwd=shell.folder,
            env=shell.env,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
        assert b"the session's name is not UTF-8" in done.stderr


def test_a_purge_that_nobody_confirms_erases_nothing(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    done = shell("purge", "s1", "3")
    assert (done.code, done.err.splitlines()[-1]) == (1, "nothing was erased")
    assert "user Hi" in shell.ok("show", "s1").out
