"""AGENTS.md, skills and hooks of a folder on the command line: used once the user has said so."""

from __future__ import annotations

from cli.shell import Shell

ADD = {"toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}


def _prompt(shell: Shell, session: str) -> str:
    return shell.ok("export", session, "--format", "openai").out


def test_nothing_of_a_folder_is_used_unless_it_is_asked_for(shell: Shell) -> None:
    shell.write("AGENTS.md", "Speak Latin.")
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    assert "Latin" not in _prompt(shell, "s1")


def test_where_nobody_can_be_asked_it_is_refused_with_what_to_do(shell: Shell) -> None:
    shell.write("AGENTS.md", "Speak Latin.")
    refused = shell("run", "-m", shell.script("Hello."), "--project", "Hi")
    assert refused.code == 1
    assert "AGENTS.md" in refused.err and "add --trust-project to use it" in refused.err
    assert shell.ok("sessions", "--json").out == ""


def test_what_is_trusted_is_used_until_it_changes(shell: Shell) -> None:
    shell.write("AGENTS.md", "Speak Latin.")
    shell.ok("run", "-m", shell.script("Salve."), "--trust-project", "-i", "Be brief.", "-s", "s1", "Hi")
    assert "Be brief." in _prompt(shell, "s1") and "Speak Latin." in _prompt(shell, "s1")
    shell.ok("run", "-m", shell.script("Salve."), "--project", "-s", "s2", "Hi")
    assert "Speak Latin." in _prompt(shell, "s2")
    shell.write("AGENTS.md", "Speak Greek.")
    changed = shell("run", "-m", shell.script("Salve."), "--project", "Hi")
    assert changed.code == 1
    assert "has changed since you trusted it" in changed.err
    assert shell.ok("replay", "s2").out.startswith("identical")


def test_on_a_terminal_it_is_asked_about_once(shell: Shell) -> None:
    shell.write("AGENTS.md", "Speak Latin.")
    shell.write(".agents/settings.json", '{"hooks": {"Stop": [{"hooks": [{"command": "touch stopped"}]}]}}')
    for first in (True, False):
        with shell.terminal("chat", "-m", shell.script("Salve."), "--project", "-s", "s1") as terminal:
            if first:
                terminal.until("adds 12 bytes to the instructions")
                terminal.until("runs commands on this machine: touch stopped")
                terminal.until("from now on?")
                terminal.type("y\n")
            terminal.say("Hi")
            terminal.until("Salve.")
            terminal.until("> ")
            terminal.press_ctrl_d()
            assert terminal.wait() == 0
    assert "Speak Latin." in _prompt(shell, "s1")
    assert (shell.folder / "stopped").exists()


def test_a_no_leaves_it_out(shell: Shell) -> None:
    shell.write("AGENTS.md", "Speak Latin.")
    with shell.terminal("chat", "-m", shell.script("Hello."), "--project", "-s", "s1") as terminal:
        terminal.until("from now on?")
        terminal.type("\n")
        terminal.say("Hi")
        terminal.until("Hello.")
    assert "Latin" not in _prompt(shell, "s1")


def test_a_hook_of_a_trusted_folder_blocks_a_call(shell: Shell) -> None:
    shell.write(
        ".claude/settings.json",
        '{"hooks": {"PreToolUse": [{"matcher": "add", "hooks": [{"command": "echo no sums >&2; exit 2"}]}]}}',
    )
    done = shell.ok("run", "-m", shell.script(ADD, "Then not."), "-t", "tools.py", "--trust-project", "Add")
    assert "no sums" in done.err


def test_what_is_broken_is_named_and_left_out(shell: Shell) -> None:
    shell.write(".agents/skills/bad/SKILL.md", "nothing")
    done = shell.ok("run", "-m", shell.script("Hello."), "--project", "Hi")
    assert "left out" in done.err and "does not begin with front matter" in done.err


def test_the_command_to_continue_with_uses_the_folder_too(shell: Shell) -> None:
    shell.write("AGENTS.md", "Speak Latin.")
    model = shell.script({"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}, "Deleted.")
    waits = shell("run", "-m", model, "-t", "tools.py", "--trust-project", "-s", "s1", "Delete x")
    assert waits.code == 3
    assert "turnlog resume s1" in waits.err and "--project" in waits.err
    left_out = shell("run", "-m", model, "-t", "tools.py", "--no-project", "-s", "s2", "Delete x")
    assert "--no-project" in left_out.err
