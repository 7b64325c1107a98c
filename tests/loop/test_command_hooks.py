"""Commands as hooks: what they are told, how they decide, and that nothing of them is left running."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog import AgentError
from turnlog.contract import ToolResultsEntry, ToolStartedEntry
from turnlog.loop import CommandHook, Hooks, read_hooks, replay
from turnlog.testing import Turn

ADD = Turn(tool_calls=[call("add", a=1, b=2)])
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the commands are of a POSIX shell")


async def run(hooks: Hooks) -> tuple[Stage, str]:
    """(the stage, what the model read as the result)."""
    stage = Stage()
    await stage.agent([ADD, "Done."], hooks=hooks).run("Add.", session=SESSION)
    report = await replay(stage.store, SESSION)
    assert report.identical, report.difference
    entries = await stage.store.load(SESSION)
    (results,) = [entry.payload for entry in entries if isinstance(entry, ToolResultsEntry)]
    return stage, results.message.tool_results[0].payload.text


async def test_a_command_is_told_what_happens_in_the_shared_shape(tmp_path: Path) -> None:
    note = f"cat >> {tmp_path}/told; echo >> {tmp_path}/told"
    hook = CommandHook(note)
    await run(Hooks(check_tool=[hook], check_result=[hook], on_event=[hook]))
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines() if line]
    assert [one["hook_event_name"] for one in told] == ["PreToolUse", "PostToolUse", "Stop"]
    assert told[0] | {"session_id": SESSION, "tool_name": "add", "tool_input": {"a": 1, "b": 2}} == told[0]
    assert told[0]["tool_use_id"] and told[0]["run_id"] and told[0]["cwd"] == os.getcwd()
    assert told[1]["tool_response"] == {"content": "3", "is_error": False}
    assert told[2]["status"] == "completed"


async def test_exit_code_2_blocks_with_standard_error_as_the_reason() -> None:
    stage, read = await run(Hooks(check_tool=[CommandHook("echo 'not today' >&2; exit 2")]))
    assert read.startswith("add was not run: ") and read.endswith(": not today")
    assert not any(isinstance(entry, ToolStartedEntry) for entry in await stage.store.load(SESSION))
    _, read = await run(Hooks(check_result=[CommandHook("echo 'looks odd' >&2; exit 2")]))
    assert read.startswith("3") and read.endswith("looks odd")


def output(**special: Any) -> str:
    return f"echo '{json.dumps({'hookSpecificOutput': {'hookEventName': 'PreToolUse', **special}})}'"


async def test_json_on_standard_output_denies_changes_and_adds() -> None:
    deny = output(permissionDecision="deny", permissionDecisionReason="too large")
    assert (await run(Hooks(check_tool=[CommandHook(deny)])))[1].endswith(": too large")
    old = """echo '{"decision": "block", "reason": "in the old form"}'"""
    assert (await run(Hooks(check_tool=[CommandHook(old)])))[1].endswith(": in the old form")
    change = output(permissionDecision="allow", updatedInput={"a": 20, "b": 22})
    assert (await run(Hooks(check_tool=[CommandHook(change)])))[1] == "42"
    more = output(additionalContext="the sum of two numbers")
    assert (await run(Hooks(check_result=[CommandHook(more)])))[1].endswith("the sum of two numbers")
    assert (await run(Hooks(check_tool=[CommandHook("echo all is well")])))[1] == "3"


async def test_ask_puts_the_call_to_a_person() -> None:
    ask = output(permissionDecision="ask", permissionDecisionReason="is it meant?")
    stage = Stage()
    agent = stage.agent([ADD, "Done."], hooks=Hooks(check_tool=[CommandHook(ask)]))
    assert (await agent.run("Add.", session=SESSION)).status == "awaiting_human"
    assert (await agent.pending(SESSION))[0].reason == "is it meant?"


async def test_a_matcher_names_whole_tools(tmp_path: Path) -> None:
    block = "echo no >&2; exit 2"
    assert (await run(Hooks(check_tool=[CommandHook(block, matcher="ad|shell")])))[1] == "3"
    assert (await run(Hooks(check_tool=[CommandHook(block, matcher="sub|a.*")])))[1].endswith(": no")
    with pytest.raises(AgentError, match=r"no regular expression"):
        CommandHook("true", matcher="(")


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (CommandHook("echo broken >&2; exit 1"), "ended with exit code 1: broken"),
        (CommandHook("sleep 60", timeout=0.2), "did not end within 0.2 seconds; it was killed"),
        (CommandHook(["/no/such/command"]), "cannot be run"),
        (CommandHook("echo '{not json'"), "wrote JSON that does not parse"),
        (CommandHook("""echo '{"continue": false, "stopReason": "enough"}'"""), "stopped the run: enough"),
    ],
)
async def test_a_command_that_fails_fails_the_run(hook: CommandHook, why: str) -> None:
    agent = Stage().agent([ADD, "Done."], hooks=Hooks(check_tool=[hook]))
    with pytest.raises(AgentError) as error:
        await agent.run("Add.", session=SESSION)
    assert error.value.code == "HookFailed"
    assert why in error.value.message


async def test_no_key_is_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-user")
    monkeypatch.setenv("MY_SETTING", "not for hooks either")
    await run(Hooks(check_tool=[CommandHook(f"env > {tmp_path}/env", env={"MODE": "strict"})]))
    seen = (tmp_path / "env").read_text()
    assert "PATH=" in seen and "MODE=strict" in seen
    assert "sk-secret" not in seen and "MY_SETTING" not in seen


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_what_a_command_started_is_killed_with_it(tmp_path: Path) -> None:
    """Also when it ends by itself: a child of it holds its output open, and is not waited for."""
    await run(Hooks(check_tool=[CommandHook(f"sleep 600 & echo $! > {tmp_path}/pid")]))
    assert not runs(int((tmp_path / "pid").read_text()))


async def test_a_flood_of_output_is_read_and_cut() -> None:
    _, read = await run(Hooks(check_tool=[CommandHook("head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 2")]))
    assert 90_000 < len(read) < 110_000


def test_hooks_of_a_settings_file(tmp_path: Path) -> None:
    settings = {
        "hooks": {
            "PreToolUse": [
                {"matcher": "shell", "hooks": [{"type": "command", "command": "a", "timeout": 5}]}
            ],
            "PostToolUse": [{"hooks": [{"command": "b"}, {"command": "c"}]}],
            "Notification": [{"hooks": [{"command": "d"}]}],
        },
        "permissions": {},
    }
    hooks, others = read_hooks(json.dumps(settings), where="settings.json", cwd=tmp_path)
    assert hooks.check_tool == [CommandHook("a", "shell", 5.0, tmp_path)]
    assert hooks.check_result == [CommandHook("b", cwd=tmp_path), CommandHook("c", cwd=tmp_path)]
    assert others == ["Notification"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("{", "s.json is not JSON"),
        ("[]", "s.json is not an object"),
        ('{"hooks": []}', "s.json: hooks is not an object"),
        ('{"hooks": {"PreToolUse": {}}}', "s.json: hooks.PreToolUse is not a list"),
        ('{"hooks": {"PreToolUse": [{}]}}', "hooks.PreToolUse[0].hooks is not a list"),
        ('{"hooks": {"PreToolUse": [{"hooks": [{}]}]}}', "hooks.PreToolUse[0] has no command"),
        ('{"hooks": {"Stop": [{"hooks": [{"type": "http"}]}]}}', "only command is known"),
        ('{"hooks": {"Stop": [{"hooks": [{"command": "a", "timeout": 0}]}]}}', "it is seconds"),
    ],
)
def test_what_is_wrong_with_a_settings_file_is_named(settings: str, why: str) -> None:
    with pytest.raises(AgentError) as error:
        read_hooks(settings, where="s.json", cwd=".")
    assert error.value.code == "ConfigInvalid"
    assert why in error.value.message
