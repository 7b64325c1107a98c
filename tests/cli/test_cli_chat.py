"""`turnlog chat`: on a terminal, through a pipe, stopped, killed and started again."""

from __future__ import annotations

import readline
import time

import pytest

from cli.shell import PATIENCE, Shell

SLOW = {"text": "tick " * 400, "delay": 0.02, "chunkSize": 5}
DELETE = {"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}
WAIT = {"toolCalls": [{"name": "wait", "arguments": {"name": "w"}}]}


def test_a_conversation_on_a_terminal(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script("Hello.", "I am fine."), "-s", "s1") as terminal:
        terminal.say("Hi")
        terminal.until("Hello.")
        terminal.say("")  # an empty line is not a question
        terminal.say("How are you?")
        terminal.until("I am fine.")
        terminal.until("> ")
        terminal.press_ctrl_d()
        terminal.until("turnlog chat --session s1")
        assert terminal.wait() == 0
    assert shell.kinds("s1").count("model_output") == 2


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script(SLOW, "Shorter."), "-s", "s1") as terminal:
        terminal.say("Count")
        terminal.until("tick tick")
        terminal.press_ctrl_c()
        terminal.until("stopped with Ctrl-C")
        terminal.until("> ")
        terminal.press_ctrl_c_at_prompt("Ctrl-D leaves")
        terminal.say("Be brief")
        terminal.until("Shorter.")
        terminal.until("> ")
        terminal.press_ctrl_d()
        assert terminal.wait() == 0
    assert shell.kinds("s1").count("run_ended") == 2
    assert shell.ok("verify", "s1").out.startswith("sound")
    assert shell.ok("replay", "s1").out.startswith("identical")


def test_ctrl_c_just_as_an_answer_ends_does_not_end_the_chat(shell: Shell) -> None:
    brief = shell.script(default={"text": "a b c", "delay": 0.01, "chunkSize": 2})
    with shell.terminal("chat", "-m", brief, "-s", "s1") as terminal:
        terminal.until("> ")
        for number in range(8):
            terminal.insist(f"question {number}", "a ")
            time.sleep(0.008 * number)
            terminal.press_ctrl_c()
        terminal.insist("Still there?", "b c")


@pytest.mark.spec("H-10")
def test_killed_in_the_middle_of_an_answer_and_started_again(any_shell: Shell) -> None:
    shell = any_shell
    with shell.terminal("chat", "-m", shell.script("Hello.", SLOW), "-s", "s1") as terminal:
        terminal.say("Hi")
        terminal.until("Hello.")
        terminal.say("Count")
        terminal.until("tick tick")
        terminal.kill()
    with shell.terminal("chat", "-m", shell.script("One, two.", "Bye."), "-s", "s1") as terminal:
        terminal.until("continuing where it stopped")
        terminal.until("One, two.")
        terminal.say("Thanks")
        terminal.until("Bye.")
        terminal.until("> ")
        terminal.press_ctrl_d()
        assert terminal.wait() == 0
    log = shell.ok("show", "s1", "--json").lines
    said = [e["payload"]["message"]["parts"][0]["payload"]["text"] for e in log if e["kind"] == "model_input"]
    assert said == ["Hi", "Count", "Thanks"]
    started = [e["payload"] for e in log if e["kind"] == "model_call_started"]
    assert started[1]["contextHash"] == started[2]["contextHash"]  # the call was made again as it was
    assert shell.ok("verify", "s1").out.startswith("sound")
    assert shell.ok("replay", "s1").out.startswith("identical")


@pytest.mark.spec("H-10")
def test_killed_inside_a_tool_and_started_again(any_shell: Shell) -> None:
    shell = any_shell
    with shell.terminal("chat", "-m", shell.script(WAIT), "-t", "tools.py", "-s", "s1") as terminal:
        terminal.say("Wait")
        terminal.until("→ wait")
        _wait_for(shell, "began w")
        terminal.kill()
    done = shell.ok("chat", "-m", shell.script("I cannot know."), "-t", "tools.py", "-s", "s1")
    assert done.out == "I cannot know.\n"
    assert (shell.folder / "effects.txt").read_text() == "began w\n"  # it did not run twice
    (result,) = (e for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "tool_results")
    assert result["payload"]["outcomes"][0]["status"] == "unknown"
    assert shell.ok("verify", "s1").out.startswith("sound")
    assert shell.ok("replay", "s1").out.startswith("identical")


def test_ctrl_c_inside_a_tool(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script(WAIT, "Then not."), "-t", "tools.py", "-s", "s1") as term:
        term.say("Wait")
        term.until("→ wait")
        _wait_for(shell, "began w")
        term.press_ctrl_c()
        term.until("stopped with Ctrl-C")
        term.say("Leave it")
        term.until("Then not.")
        term.until("> ")
        term.press_ctrl_d()
        assert term.wait() == 0
    assert shell.ok("verify", "s1").out.startswith("sound")
    assert "open call" not in shell.ok("show", "s1").out


def test_lines_through_a_pipe(shell: Shell) -> None:
    done = shell.ok("chat", "-m", shell.script("One.", "Two."), "-s", "s1", stdin="first\n\nsecond\n")
    assert (done.out, done.err) == ("One.\nTwo.\n", "")
    failed = shell("chat", "-m", shell.script({"error": {"code": "ModelAuthError"}}), stdin="third\n")
    assert failed.code == 1


def test_a_chat_as_json(shell: Shell) -> None:
    done = shell.ok("chat", "-m", shell.script("One.", "Two."), "--json", stdin="first\nsecond\n")
    assert [event["kind"] for event in done.lines].count("run_ended") == 2


@pytest.mark.parametrize(("answer", "outcome"), [("y", "success"), ("n", "denied")])
def test_a_call_that_waits_is_asked_about(shell: Shell, answer: str, outcome: str) -> None:
    with shell.terminal(
        "chat", "-m", shell.script(DELETE, "So be it."), "-t", "tools.py", "-s", "s1"
    ) as term:
        term.say("Delete x")
        term.until("run it?")
        term.type("perhaps\n")
        term.until("run it?")
        term.type(f"{answer}\n")
        term.until("So be it.")
        term.until("> ")
        term.press_ctrl_d()
        assert term.wait() == 0
    (result,) = (e for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "tool_results")
    assert result["payload"]["outcomes"][0]["status"] == outcome
    assert (shell.folder / "effects.txt").exists() == (answer == "y")
    assert "by tester" in shell.ok("show", "s1").out


def test_always_in_this_session_is_kept_in_its_log(shell: Shell) -> None:
    with shell.terminal(
        "chat", "-m", shell.script(DELETE, DELETE, "Both."), "-t", "tools.py", "-s", "s1"
    ) as term:
        term.say("Delete x twice")
        term.until("run it?")
        term.type("s\n")
        term.until("Both.")  # the second call was not asked about
        term.until("> ")
    with shell.terminal("chat", "-m", shell.script(DELETE, "Again."), "-t", "tools.py", "-s", "s1") as term:
        term.say("And again")
        term.until("delete: yes, as always in this session")
        term.until("Again.")
    assert (shell.folder / "effects.txt").read_text() == "deleted x\n" * 3
    made = [e["payload"] for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "approval_decided"]
    assert [(one["action"], one["decidedBy"]) for one in made] == [("approve", "tester")] * 3
    shell.ok("fork", "s1", "--to", "s2")
    with shell.terminal("chat", "-m", shell.script(DELETE), "-t", "tools.py", "-s", "s2") as term:
        term.say("In a fork")
        term.until("run it?")  # another session


def test_a_refusal_takes_its_reason_along(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script(DELETE, "I see."), "-t", "tools.py", "-s", "s1") as term:
        term.say("Delete x")
        term.until("run it?")
        term.type("no, because it is the only copy\n")
        term.until("I see.")
    assert not (shell.folder / "effects.txt").exists()
    assert "it is the only copy" in shell.ok("context", "s1").out


def test_what_was_typed_before_a_question_does_not_answer_it(shell: Shell) -> None:
    slow = {**DELETE, "delay": 0.3}
    with shell.terminal("chat", "-m", shell.script(slow, "Done."), "-t", "tools.py", "-s", "s1") as term:
        term.say("Delete x")
        term.type("y\n")
        term.until("run it?")
        term.type("n\n")
        term.until("Done.")
    assert not (shell.folder / "effects.txt").exists()


EDIT = {"path": "notes.txt", "old": "one\ntwo\nthree\n4\n5\n6\n7\n8", "new": "one\n2\nthree\n4\n5\n6\n7\n8"}


@pytest.mark.parametrize("name", ["edit", "write"])
def test_an_edit_is_shown_as_a_diff_with_the_numbers_of_its_lines(shell: Shell, name: str) -> None:
    shell.env.update(TERM="xterm", TURNLOG_PLAIN="1")
    shell.write("notes.txt", EDIT["old"])
    shell.write(
        "edits.py",
        """
from turnlog import tool

@tool(requires_approval=True)
def edit(path: str, old: str, new: str) -> str:
    "Edit a file."
    return "edited"

@tool(requires_approval=True)
def write(path: str, content: str) -> str:
    "Write a file."
    return "written"
""",
    )
    given = EDIT if name == "edit" else {"path": EDIT["path"], "content": EDIT["new"]}
    call = {"toolCalls": [{"name": name, "arguments": given}]}
    with shell.terminal("chat", "-m", shell.script(call), "-t", "edits.py", "-s", "s1") as term:
        term.say("Edit")
        seen = term.until("run it?")
    assert ("(3 more lines as in notes.txt on this machine)" in seen) == (name == "write")
    changed = [
        "\x1b[2m1 \x1b[0m one",
        "\x1b[2m2 \x1b[0m\x1b[31m-two\x1b[0m",
        "\x1b[2m2 \x1b[0m\x1b[32m+2\x1b[0m",
        "\x1b[2m3 \x1b[0m three",
    ]
    assert "\r\n".join(changed) in seen


def test_a_paste_of_several_lines_is_one_message(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script("One.", "Two."), "-s", "s1") as terminal:
        terminal.say("first\nsecond\n\nfourth")
        terminal.until("One.")
        terminal.until("> ")
        terminal.type("a\nb")  # the last line is not finished, and can still be changed
        terminal.until("… b")
        terminal.type("c\n")
        terminal.until("Two.")
    log = shell.ok("show", "s1", "--json").lines
    said = [e["payload"]["message"]["parts"][0]["payload"]["text"] for e in log if e["kind"] == "model_input"]
    assert said == ["first\nsecond\n\nfourth", "a\nbc"]


@pytest.mark.skipif("libedit" in (readline.__doc__ or ""), reason="libedit knows no bracketed paste")
def test_a_paste_in_brackets_waits_for_enter(shell: Shell) -> None:
    shell.env.update(TERM="xterm", TURNLOG_PLAIN="1")
    with shell.terminal("chat", "-m", shell.script("One."), "-s", "s1") as terminal:
        terminal.until("> ")
        terminal.type("\x1b[200~first\nsecond\n\x1b[201~third\n")
        terminal.until("One.")
    log = shell.ok("show", "s1", "--json").lines
    said = [e["payload"]["message"]["parts"][0]["payload"]["text"] for e in log if e["kind"] == "model_input"]
    assert said == ["first\nsecond\nthird"]


def test_what_is_typed_during_an_answer_is_not_mixed_into_it(shell: Shell) -> None:
    slow = {"text": "tick " * 10, "delay": 0.1, "chunkSize": 5}
    with shell.terminal("chat", "-m", shell.script(slow, "Next."), "-s", "s1") as terminal:
        terminal.say("Count")
        terminal.until("tick tick")
        terminal.type("mixed in\n")
        answer = terminal.until("> ")
        assert "mixed" not in answer
        terminal.until("mixed in")  # the next prompt has it
        terminal.until("Next.")


def test_deciding_later_leaves_and_the_next_chat_asks_again(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script(DELETE), "-t", "tools.py", "-s", "s1") as terminal:
        terminal.say("Delete x")
        terminal.until("run it?")
        terminal.type("l\n")
        terminal.until("turnlog approve s1 call_")
        assert terminal.wait() == 3
    with shell.terminal("chat", "-m", shell.script("Unused."), "-t", "tools.py", "-s", "s1") as terminal:
        terminal.until("run it?")
        terminal.type("a\n")
        terminal.until("aborted the run")
        terminal.until("> ")
        terminal.press_ctrl_d()
        assert terminal.wait() == 0
    (ended,) = (e for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "run_ended")
    assert ended["payload"]["status"] == "aborted"
    assert not (shell.folder / "effects.txt").exists()


def test_an_error_does_not_end_the_conversation(shell: Shell) -> None:
    model = shell.script({"error": {"code": "ModelAuthError", "message": "no key"}}, "Now.")
    with shell.terminal("chat", "-m", model) as terminal:
        terminal.say("Hi")
        terminal.until("ModelAuthError: no key")
        terminal.say("And now?")
        terminal.until("Now.")


def test_a_command_that_does_not_exist_is_refused_and_a_path_is_text(shell: Shell) -> None:
    texts = ["// not a command", f"{shell.folder} is a folder", "/no/such/path", "/tmp is a folder"]
    lines = ["/nonsense", "/hepl me", "/attach gone.txt", "/undo", *texts, "/exit", "never read"]
    done = shell.ok("chat", "-m", shell.script("Yes.", loop=True), "-s", "s1", stdin="\n".join(lines))
    assert "there is no command /nonsense; /help lists them" in done.err
    assert "there is no command /hepl; did you mean /help? /help lists them" in done.err
    assert "there is no file gone.txt" in done.err and "no runtime" in done.err
    asked = [e["payload"] for e in shell.ok("show", "s1", "--json").lines if e["kind"] == "model_input"]
    assert [one["message"]["parts"][0]["payload"]["text"] for one in asked] == texts


def test_help_lists_what_works_and_quit_leaves(shell: Shell) -> None:
    with shell.terminal("chat", "-m", shell.script("Unused."), "-s", "s1") as terminal:
        terminal.say("/help")
        seen = terminal.until("/quit ")
        assert "/attach" in seen and "/open" in seen and "/undo" not in seen
        terminal.say("/quit")
        assert terminal.wait() == 0


def _wait_for(shell: Shell, text: str) -> None:
    deadline = time.monotonic() + PATIENCE
    file = shell.folder / "effects.txt"
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
