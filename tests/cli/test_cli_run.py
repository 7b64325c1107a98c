"""`turnlog run`: one question."""

from __future__ import annotations

import signal

import pytest

from cli.shell import PATIENCE, Shell

ADD = {"text": "Let me add.", "toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
DELETE = {"toolCalls": [{"name": "delete", "arguments": {"path": "x"}}]}
SLOW = {"text": "tick " * 400, "delay": 0.02, "chunkSize": 5}


def test_the_answer_alone_is_on_standard_output(shell: Shell) -> None:
    done = shell.ok("run", "-m", shell.script(ADD, "The sum is 3."), "-t", "tools.py", "Add 1 and 2")
    assert done.out == "Let me add.\nThe sum is 3.\n"
    assert "→ add" in done.err
    assert "session s_" in done.err


def test_events_as_json_are_numbered_and_end_with_the_result(shell: Shell) -> None:
    done = shell.ok("run", "-m", shell.script("Hello."), "--json", "-s", "s1", "Hi")
    events = done.lines
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert events[-1]["kind"] == "run_ended"
    assert events[-1]["payload"]["result"]["status"] == "completed"
    assert done.err == ""


def test_a_question_from_standard_input(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Yes."), "-s", "s1", "-", stdin="Grüße?\n")
    assert "Grüße?" in shell.ok("show", "s1").out


def test_tools_from_a_module_beside_you(shell: Shell) -> None:
    done = shell.ok("run", "-m", shell.script(ADD, "3."), "-t", "tools", "Add")
    assert "✓ 3" in done.err


def test_a_forced_tool_is_named_and_checked(shell: Shell) -> None:
    model = shell.script(ADD, "3.")
    shell.ok("run", "-m", model, "-t", "tools.py", "--tool-choice", "add", "-s", "s1", "Add")
    assert 'tool choice {"name": "add"}' in shell.ok("show", "s1").out
    refused = shell("run", "-m", model, "-t", "tools.py", "--tool-choice", "subtract", "Add")
    assert refused.code == 1
    assert (
        "tool_choice is 'subtract'; pass 'auto', 'required', 'none' or the name of a tool: add" in refused.err
    )
    assert shell.ok("sessions", "--json").out.count("sessionId") == 1


def test_a_configuration_file(shell: Shell) -> None:
    model = shell.script("Hello.")
    shell.write("agent.toml", f'model = "{model}"\ninstructions = "You are brief."\nname = "clerk"\n')
    shell.ok("run", "--config", "agent.toml", "-s", "s1", "Hi")
    log = shell.ok("show", "s1").out
    assert "You are brief." in log
    assert "clerk" in log


def test_a_failed_run_says_why_on_standard_error(shell: Shell) -> None:
    done = shell("run", "-m", shell.script({"error": {"code": "ModelAuthError", "message": "no"}}), "Hi")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("ModelAuthError: no\n")


def test_a_call_that_waits_ends_with_a_code_of_its_own(shell: Shell) -> None:
    done = shell("run", "-m", shell.script(DELETE), "-t", "tools.py", "-s", "s1", "Delete x")
    assert done.code == 3
    assert "waits for approval" in done.err
    assert "turnlog approve s1 call_" in done.err
    assert "turnlog resume s1 -m scripted:script0.json -t tools.py" in done.err
    again = shell("run", "-m", shell.script("Hm."), "-s", "s1", "Are you there?")
    assert again.code == 1
    assert again.err.startswith("SessionBusy: session s1 waits for a decision on call_")


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_the_run_and_keeps_the_session(shell: Shell, presses: int) -> None:
    with shell.terminal("run", "-m", shell.script(SLOW), "-s", "s1", "Count") as terminal:
        terminal.until("tick tick")
        for _ in range(presses):
            terminal.press_ctrl_c()
        assert "Traceback" not in terminal.rest()
        assert terminal.wait() == 130
    assert shell.kinds("s1")[-2:] == ["model_call_failed", "run_ended"]
    assert shell.ok("replay", "s1").out.startswith("identical")


UNFINISHED = """
import asyncio, pathlib
from turnlog import Agent
from turnlog.contract import StreamStart, TextChunk
from turnlog.models import Model


class Unfinished(Model):
    provider_id = specification = "unfinished"

    async def _stream(self, request):
        yield StreamStart(model_id="m")
        for _ in range(3):
            yield TextChunk(text_delta="tick ")
        pathlib.Path("said").touch()
        await asyncio.Event().wait()


agent = Agent(Unfinished("m"))
"""


def test_what_had_come_when_a_run_is_stopped_is_written_to_a_pipe(shell: Shell) -> None:
    shell.write("mine.py", UNFINISHED)
    process = shell.start("run", "--agent", "mine:agent", "-s", "s1", "Count")
    shell.wait_for_file("said")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.startswith(b"tick tick") and out.endswith(b"\n")
    assert b"Traceback" not in err


def test_text_that_was_retracted_is_not_on_standard_output(shell: Shell) -> None:
    cut = {"text": "par", "cut": True}
    done = shell.ok("run", "-m", shell.script(cut, cut, "partly fine."), "-s", "s1", "Hi")
    assert done.out == "partly fine.\n"
    assert done.err.count("trying again in ") == 2


def test_a_reader_that_goes_away_stops_the_run(shell: Shell) -> None:
    process = shell.start("run", "-m", shell.script(SLOW), "-s", "s1", "--json", "Count")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE) == 1
    assert err == b""
    assert shell.kinds("s1")[-1] == "run_ended"


def test_text_that_would_command_the_terminal_is_shown_as_text(shell: Shell) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold]not markup[/] :smile: \u202ereversed"
    done = shell.ok("run", "-m", shell.script(evil), "-s", "[red]s1[/]", "Hi")
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert "[bold]not markup[/] :smile:" in done.out
    for command in ("show", "context"):
        shown = shell.ok(command, "[red]s1[/]").out
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "[red]s1[/]" in shell.ok("sessions").out


def test_a_terminal_without_utf8(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Grüße · ✓"), "-s", "s1", "Hi")
    poor = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    assert "Gr??e" in shell("show", "s1", env=poor).out
    assert "Grüße" in shell("show", "s1", "--json", env=poor).out


@pytest.mark.spec("E-3")
def test_no_file_of_the_working_folder_sets_a_key_or_an_address(shell: Shell) -> None:
    shell.write(".env", 'export OPENAI_API_KEY="sk-from-the-file"\nTURNLOG_STORE=sqlite:elsewhere.db\n')
    rows = {row["name"]: row for row in shell.ok("doctor", "--json").lines}
    assert not rows["OPENAI_API_KEY"]["ok"]
    assert "log.db" in rows["store"]["detail"]
    refused = shell("run", "-m", "openai-chat:gpt-5", "-s", "s1", "Hi")
    assert refused.code == 1 and "OPENAI_API_KEY" in refused.err


def test_map_asks_for_each_line_and_does_only_the_rest_when_started_again(shell: Shell) -> None:
    (shell.folder / "in.jsonl").write_text('"one"\n\n{"input": "two", "id": 2}\n')
    options = ("--sessions", "n", "--concurrency", "1", "in.jsonl")
    done = shell.ok("map", "-m", shell.script("First.", "Second."), *options)
    assert [(line["index"], line["status"], line["output"]) for line in done.lines] == [
        (0, "completed", "First."),
        (1, "completed", "Second."),
    ]
    assert "2 done, " in done.err
    (shell.folder / "in.jsonl").write_text('"one"\n"three"\n')
    again = shell.ok("map", "-m", shell.script("Third."), *options)
    assert [line["output"] for line in again.lines] == ["First.", "Third."]
    failed = shell("map", "-m", shell.script(), "--json", "-", stdin='"four"\n')
    assert (failed.code, failed.lines[0]["error"]["code"], failed.err) == (1, "ModelBadRequest", "")


@pytest.mark.parametrize(
    ("text", "words"), [("plain\n", "line 1 is not JSON"), ('"a"\n{"question": "b"}\n', "line 2 is neither")]
)
def test_map_names_the_line_that_is_no_input(shell: Shell, text: str, words: str) -> None:
    refused = shell("map", "-m", shell.script("x"), "-", stdin=text)
    assert refused.code == 2 and words in refused.err
