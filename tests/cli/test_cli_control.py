"""`turnlog abort`, `pause` and `send`: a run that another process drives, or nobody."""

from __future__ import annotations

import subprocess

import pytest

from cli.shell import PATIENCE, Shell

SLOW = {"text": "tick " * 400, "delay": 0.1, "chunkSize": 5}
TOOLS = '''
import asyncio, pathlib
from turnlog import tool


@tool
async def look(number: int) -> str:
    """Look until somebody says that it is enough."""
    pathlib.Path(f"looks{number}").touch()
    while not pathlib.Path(f"enough{number}").exists():
        await asyncio.sleep(0.02)
    return f"seen {number}"
'''


def looks(number: int) -> dict[str, object]:
    return {"toolCalls": [{"name": "look", "arguments": {"number": number}}]}


@pytest.fixture
def busy(any_shell: Shell) -> Shell:
    any_shell.write("look.py", TOOLS)
    return any_shell


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out.decode(), err.decode()


def test_a_run_is_aborted_from_another_process(busy: Shell) -> None:
    process = busy.start("run", "-m", busy.script(SLOW), "-s", "s1", "Count")
    busy.wait_for("s1", "model_call_started")
    done = busy.ok("abort", "s1", "--reason", "it takes too long")
    assert done.out == "aborted\n"
    assert f"driven by process {process.pid} on " in done.err
    code, _, err = ended(process)
    assert code == 130
    assert "(it takes too long)" in err
    assert busy.kinds("s1")[-1] == "run_ended"
    assert busy.ok("replay", "s1").out.startswith("identical")
    again = busy("abort", "s1")
    assert (again.code, again.err) == (1, "no run is open in s1; the last one aborted\n")


def test_a_paused_run_is_let_go_and_resumed(busy: Shell) -> None:
    model = busy.script(looks(1), "Not asked for.")
    process = busy.start("run", "-m", model, "-t", "look.py", "-s", "s1", "Look")
    busy.wait_for_file("looks1")
    paused = busy.ok("pause", "s1")
    assert paused.out == "asked to pause; it pauses after its present step\n"  # the tool is in progress
    assert "continue with: turnlog resume s1" in paused.err
    busy.write("enough1", "")
    code, out, err = ended(process)
    assert (code, out) == (3, "")
    assert "continue with: turnlog resume s1 -m scripted:script0.json -t look.py" in err
    assert busy.ok("show", "s1").out.splitlines()[-1].split(" · ")[1] == "paused"
    rest = busy.ok("resume", "s1", "-m", busy.script("All seen."), "-t", "look.py")
    assert rest.out == "All seen.\n"
    assert busy.ok("replay", "s1").out.startswith("identical")


def test_a_message_reaches_a_run_in_another_process(busy: Shell) -> None:
    process = busy.start(
        "run", "-m", busy.script(looks(1), "Both, then."), "-t", "look.py", "-s", "s1", "Look"
    )
    busy.wait_for_file("looks1")
    sent = busy.ok("send", "s1", "-", stdin="At the other one too.")
    assert sent.out == "queued; the run takes it in before its next model call\n"
    busy.write("enough1", "")
    assert ended(process)[:2] == (0, "Both, then.\n")
    kinds = busy.kinds("s1")
    assert kinds.count("model_input") == 2
    last = len(kinds) - 1 - kinds[::-1].index("model_call_started")
    assert kinds[last - 1] == "model_input"  # the model read it before its next answer
    assert "At the other one too." in busy.ok("context", "s1").out
    assert busy.ok("replay", "s1").out.startswith("identical")


def test_a_run_whose_process_was_killed(busy: Shell) -> None:
    process = busy.start("run", "-m", busy.script(looks(1)), "-t", "look.py", "-s", "s1", "Look")
    busy.wait_for_file("looks1")
    process.kill()
    ended(process)
    assert "· tool_running, nobody drives it" in busy.ok("show", "s1").out
    assert "  tool_running, nobody drives it  Look" in busy.ok("sessions").out
    sent = busy.ok("send", "s1", "Never mind.")
    assert sent.out == "queued; nobody drives the run, which takes it in when it is resumed\n"
    assert "resume it with: turnlog resume s1" in sent.err
    paused = busy.ok("pause", "s1", "--json").lines[0]
    assert (paused["status"], paused["driver"]) == ("paused", None)
    rest = busy.ok("resume", "s1", "-m", busy.script("Then not."), "-t", "look.py")
    assert rest.out == "Then not.\n"
    assert "Never mind." in busy.ok("context", "s1").out
    assert busy.ok("replay", "s1").out.startswith("identical")


def test_a_question_after_a_kill_tells_that_it_ends_the_run(busy: Shell) -> None:
    process = busy.start("run", "-m", busy.script(looks(1)), "-t", "look.py", "-s", "s1", "Look")
    busy.wait_for_file("looks1")
    assert "· tool_running" in (driven := busy.ok("show", "s1").out) and "nobody" not in driven
    process.kill()
    ended(process)
    (run,) = {e["runId"] for e in busy.ok("show", "s1", "--json").lines if e["kind"] == "run_started"}
    done = busy.ok("run", "-m", busy.script("Next."), "-s", "s1", "next")
    assert done.out == "Next.\n"
    (told,) = [line for line in done.err.splitlines() if "left open" in line]
    assert told.startswith(f"run {run} was left open and is ended") and "turnlog resume s1" in told
    again = busy.ok("run", "-m", busy.script("Next."), "-s", "s1", "next")
    assert "left open" not in again.err


def test_a_run_that_waits_for_approval_is_aborted(any_shell: Shell) -> None:
    shell = any_shell
    delete = {"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}
    assert shell("run", "-m", shell.script(delete), "-t", "tools.py", "-s", "s1", "Delete x").code == 3
    assert shell.ok("abort", "s1").out == "aborted\n"
    assert "nothing waits" in shell.ok("approve", "s1").out
    assert not (shell.folder / "effects.txt").exists()
    assert shell.ok("verify", "s1").out.startswith("sound")


def test_nothing_to_reach(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    for command in (["abort", "s1"], ["pause", "s1"], ["send", "s1", "Hm"]):
        done = shell(*command)
        assert (done.code, done.out, done.err) == (1, "", "no run is open in s1; the last one completed\n")
        missing = shell(command[0], "none", *command[2:])
        assert missing.code == 1
        assert missing.err.startswith("SessionNotFound: there is no session 'none'")
    assert shell("send", "s1", " ").code == 2
    resumed = shell.ok("resume", "s1", "-m", shell.script("Unused."))
    assert (resumed.out, resumed.err) == ("", "no run is open in s1\n")
