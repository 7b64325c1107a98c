"""Reading the log: sessions, show, context, replay, fork, export, import, verify, compact, purge, doctor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.shell import Shell
from turnlog.contract import (
    LoopLimits,
    RetryPolicy,
    RunStarted,
    ToolPolicy,
    user_message,
)
from turnlog.history import Session, open_store
from turnlog.system import SystemClock, SystemIds

ADD = {"text": "Let me add.", "toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
SECRET = "the walrus is Paul"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder whose store holds session s1: two runs, one with a tool. Tests that write make their own."""
    shell = Shell(tmp_path_factory.mktemp("told"))
    shell.ok("run", "-m", shell.script(ADD, "The sum is 3."), "-t", "tools.py", "-s", "s1", "Add 1 and 2")
    shell.ok("run", "-m", shell.script("Bye."), "-t", "tools.py", "-s", "s1", SECRET)
    return shell


def test_sessions(told: Shell) -> None:
    info = next(info for info in told.ok("sessions", "--json").lines if info["sessionId"] == "s1")
    assert info["entries"] == len(told.kinds("s1"))
    assert told.ok("sessions").out.splitlines()[0].split()[:3] == ["session", "entries", "changed"]


@pytest.mark.spec("H-14")
def test_a_session_is_called_what_it_was_called(shell: Shell) -> None:
    shell.ok("run", "-m", shell.script("Hi."), "-s", "s1", "--title", "Trip to [Rome]", "Hello.")
    shell.ok("run", "-m", shell.script("Hi."), "-s", "s1", "--title", "Trip to [Rome]", "Again.")
    assert "Trip to [Rome]" in shell.ok("sessions").out
    assert shell.ok("sessions", "--json").lines[0]["title"] == "Trip to [Rome]"
    other = shell("run", "-m", shell.script("Hi."), "-s", "s1", "--title", "Oslo", "Again.")
    assert other.code == 1 and "with the title 'Trip to [Rome]'" in other.err
    assert shell.ok("replay", "s1").out.startswith("identical")


def test_show(told: Shell) -> None:
    day, *shown, state = told.ok("show", "s1").out.splitlines()
    log = told.ok("show", "s1", "--json").lines
    assert day == f"{log[0]['timestamp'][:10]} UTC"
    for line, entry in zip(shown, log, strict=True):
        assert line.split()[:2] == [str(entry["seq"]), entry["timestamp"][11:19]]
        assert entry["kind"] in line
    took = [line for line in shown if re.match(r" +\d+ \S+ +[\d.]+m?s ", line)]
    ends = ("model_output", "tool_results", "run_ended")
    assert took == [line for line in shown if line[22:].split()[0] in ends]  # what has an end took time
    assert state.startswith(f"{len(log)} entries · completed")
    assert told.ok("show", "s1", "--after", "14", "--json").lines[0]["seq"] == 15


def test_show_one_entry_whole(told: Shell) -> None:
    log = told.ok("show", "s1", "--json").lines
    entry = next(entry for entry in log if entry["kind"] == "tool_results")
    shown = told.ok("show", "s1", str(entry["seq"])).out
    assert shown.startswith(f"{entry['seq']} tool_results {entry['timestamp'][:10]} ")
    assert f"id {entry['id']}" in shown
    assert "toolName: add" in shown and "status: success" in shown
    assert told.ok("show", "s1", entry["id"]).out == shown
    assert told.ok("show", "s1", entry["id"], "--json").lines == [entry]
    missing = told("show", "s1", "99")
    assert (missing.code, missing.err) == (2, MISSING)


MISSING = "turnlog show: Invalid value for ENTRY: session 's1' has no entry 99; it has 16 entries\n"


def test_show_what_went_wrong(shell: Shell) -> None:
    why = "a reason that is longer than what a line gives to other things that were said " * 2 + "ends here"
    body = f"    'Fail.'\n    raise ValueError({why!r})\n"
    shell.write("bad.py", f"from turnlog import tool\n\n@tool\ndef fail() -> str:\n{body}")
    turns = ({"toolCalls": [{"name": "fail"}]}, {"error": {"code": "ModelAuthError", "message": why}})
    shell("run", "-m", shell.script(*turns), "-t", "bad.py", "-s", "s1", "Hi")
    shown = shell.ok("show", "s1", "--errors").out.splitlines()
    kinds = [e["kind"] for e in shell.ok("show", "s1", "--errors", "--json").lines]
    assert kinds == ["tool_results", "model_call_failed", "run_ended"]
    assert [line[22:].split()[0] for line in shown[1:-1]] == kinds
    assert all(why in line for line in shown[1:-1])


@pytest.mark.spec("C-2")
def test_context_shows_what_the_model_saw(told: Shell) -> None:
    first = told.ok("context", "s1", "--call", "1").out
    assert "as recorded" in first
    assert "Add 1 and 2" in first
    assert "Let me add." not in first
    last = told.ok("context", "s1", "--json").lines[0]
    assert last["matches"] is True
    assert [message["role"] for message in last["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    grown = told.ok("context", "s1", "--diff", "1", "3").out
    assert "the context only grew" in grown
    assert f"+ user {SECRET}" in grown
    assert "+ assistant Let me add. → add" in grown


def test_show_numbers_model_calls_as_context_does(told: Shell) -> None:
    """The third call is the first of the second run."""
    shown = [line for line in told.ok("show", "s1").out.splitlines() if "model_call_started" in line]
    assert [re.search(r"call (\d+) ·", line)[1] for line in shown] == ["1", "2", "3"]  # type: ignore[index]
    hashes = [line.rsplit(" ", 1)[1] for line in shown]
    seen = [told.ok("context", "s1", "-c", str(call), "--json").lines[0] for call in (1, 2, 3)]
    assert [view["contextHash"][:8] for view in seen] == hashes


def test_replay(told: Shell) -> None:
    assert told.ok("replay", "s1").out.startswith("identical: 16 entries, 2 runs, 3 contexts compared")
    (report,) = told.ok("replay", "s1", "--json").lines
    assert report["identical"] is True


def test_fork(told: Shell) -> None:
    assert told.ok("fork", "s1", "--at", "11", "--to", "named").out == "named\n"
    name = told.ok("fork", "s1", "--json").lines[0]["sessionId"]
    told.ok("run", "-m", told.script("Elsewhere."), "-t", "tools.py", "-s", name, "And now?")
    assert len(told.kinds("s1")) == 16
    assert "branch_summary" in told.kinds(name)
    assert told.ok("verify", name).out.startswith("sound")
    assert told.ok("replay", name).out.startswith("identical")


@pytest.mark.spec("H-12")
def test_export_and_import(told: Shell, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for store in ("sqlite:other.db", "jsonl:other"):
        other = Shell(tmp_path / "other", store)
        other.write("s1.jsonl", told.ok("export", "s1").out)
        assert other.ok("import", "s1.jsonl").out == "s1\n"
        assert other.ok("export", "s1").out == told.ok("export", "s1").out
        assert other.ok("replay", "s1").out.startswith("identical")
    markdown = told.ok("export", "s1", "--format", "markdown").out
    html = told.ok("export", "s1", "--format", "html").out
    for text in (markdown, html):
        for words in ("Add 1 and 2", "Let me add.", "The sum is 3.", SECRET):
            assert words in text
    done = told.ok("export", "s1", "--format", "html", "-o", "s1.html")
    assert done.out == ""
    assert (told.folder / "s1.html").read_text() == html


def test_images_are_inside_the_html(shell: Shell) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    shell.write(
        "pictures.py",
        f"""
import base64
from turnlog import tool

@tool
def look() -> bytes:
    "Look."
    return base64.b64decode("{dot}")
""",
    )
    turns = ({"toolCalls": [{"name": "look"}]}, "A dot.")
    shell.ok("run", "-m", shell.script(*turns), "-t", "pictures.py", "-s", "s1", "Look")
    assert f"data:image/png;base64,{dot}" in shell.ok("export", "s1", "--format", "html").out
    assert "look success (image/png)" in shell.ok("show", "s1").out


def test_verify_finds_what_was_changed(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "jsonl:logs")
    shell.ok("run", "-m", shell.script("Yes."), "-s", "s1", "May I have 10 apples?")
    assert shell.ok("verify", "s1").out.startswith("sound")
    file = shell.folder / "logs" / "s1.jsonl"
    file.write_bytes(file.read_bytes().replace(b"10 apples", b"99 apples"))
    found = shell("verify", "s1")
    assert found.code == 1
    assert found.err.startswith("entry 3: ")
    assert shell("verify", "s1", "--json").lines[0]["seq"] == 3


async def test_replay_shows_the_first_difference(shell: Shell) -> None:
    """A log whose chain is sound, but the loop would have written it otherwise: the input has no grains."""
    store = open_store(f"sqlite:{shell.folder / 'log.db'}")
    session = await Session.open(store, "odd", clock=SystemClock(), ids=SystemIds())
    session.start_run("r", RunStarted(limits=LoopLimits(), tool_policy=ToolPolicy(), retry=RetryPolicy()))
    session.append_model_input(user_message("Hi"))
    await session.commit()
    await store.close()
    assert shell.ok("verify", "odd").out.startswith("sound")
    done = shell("replay", "odd")
    assert done.code == 1
    assert re.match(r"different at entry \d \(\w+\):\n--- recorded\n\+\+\+ replayed\n", done.err)
    (report,) = shell("replay", "odd", "--json").lines
    assert report["identical"] is False
    assert f"different at entry {report['seq']} ({report['kind']})" in done.err


def test_compact(told: Shell) -> None:
    for answer in ("A long story. " * 200, "The end."):
        told.ok("run", "-m", told.script(answer), "-s", "long", "Go on")
    assert told.ok("compact", "long").out.startswith("folded: ")
    assert told.kinds("long")[-1] == "fold"
    assert "nothing to fold" in told.ok("compact", "long").err
    told.ok("run", "-m", told.script("What next?"), "-s", "long", "And now?")
    assert "window not known · folds at 120,000 · 1 fold so far" in told.ok("context", "long").out
    view = told.ok("context", "long", "--call", "2", "--json").lines[0]
    assert (view["foldAt"], view["folds"]) == (120_000, 0)
    made = f"Agent({told.script('Hi.')!r}, store='sqlite:log.db')"
    told.write("shop.py", f"from turnlog import Agent\nagent = {made}\n")
    assert "nothing to fold" in told.ok("compact", "s1", "--agent", "shop.py:agent").err
    both = told("compact", "s1", "--agent", "shop.py:agent", "--store", "sqlite:log.db")
    assert both.code == 2 and "--agent brings its own store" in both.err
    recapped = told.ok("fork", "s1", "--json").lines[0]["sessionId"]
    told.ok("compact", recapped, "-m", told.script("We added 1 and 2."))
    assert "compaction_summary" in told.kinds(recapped)
    failed = told("compact", "s1", "-m", told.script({"error": {"code": "ModelAuthError", "message": "no"}}))
    assert failed.code == 1
    assert failed.err.startswith("ContextCompactionFailed: ")
    assert len(told.kinds("s1")) == 16


def test_redact(any_shell: Shell) -> None:
    shell = any_shell
    shell.ok("run", "-m", shell.script("Is he?"), "-s", "s1", SECRET)
    before = len(shell.kinds("s1"))
    done = shell.ok("redact", "s1", "3", "--reason", "private", "--by", "ann")
    assert done.out == f"hidden; logged as entry {before + 1}\n"
    for command in (["show", "s1"], ["export", "s1"], ["context", "s1"], ["sessions"]):
        assert SECRET not in shell.ok(*command).out
    assert "1 hidden by ann: private" in shell.ok("show", "s1").out
    assert shell.ok("verify", "s1").out.startswith("sound")
    refused = shell("redact", "s1", "99")
    assert (refused.code, refused.err.startswith("InvalidEntry: nothing to redact")) == (1, True)


def test_purge(any_shell: Shell) -> None:
    shell = any_shell
    shell.ok("run", "-m", shell.script("Is he?"), "-s", "s1", SECRET)
    declined = shell("purge", "s1", "3", stdin="n\n")
    assert (declined.code, "nothing was erased" in declined.err) == (1, True)
    done = shell.ok("purge", "s1", "3", "--yes", "--reason", "private", "--by", "ann")
    assert done.out.startswith("erased; logged as entry ")
    for path in shell.folder.rglob("*"):
        if path.is_file() and path.name != "tools.py":
            assert SECRET.encode() not in path.read_bytes(), path
    for command in (["show", "s1"], ["export", "s1"], ["context", "s1"]):
        assert SECRET not in shell.ok(*command).out
    assert shell.ok("verify", "s1").out.startswith("sound")


def test_doctor(shell: Shell) -> None:
    assert "store" in shell.ok("doctor").out
    rows = {row["name"]: row for row in shell.ok("doctor", "--json").lines}
    assert {"cli", "fast", "server", "mcp", "postgres"} <= rows.keys()
    attacks = [row for name, row in rows.items() if name.startswith("probe ")]
    if "level workspace" in rows["sandbox"]["detail"]:
        assert len(attacks) == 19 and all(row["ok"] for row in attacks)
    elif "level landlock" in rows["sandbox"]["detail"]:
        assert {row["name"] for row in attacks if not row["ok"]} == {"probe hook", "probe git config"}
    else:
        assert rows["sandbox"]["ok"] is None and "Install bubblewrap" in rows["sandbox"]["detail"]
    shell.write("broken.db", "not a database, and longer than a header would be" * 20)
    broken = shell("doctor", "--store", "sqlite:broken.db", "--json")
    assert broken.code == 1
    (row,) = (row for row in broken.lines if row["name"] == "store")
    assert row["ok"] is False
    assert "is not an SQLite database" in row["detail"]
    key = shell("doctor", env={"OPENAI_API_KEY": "sk-very-secret-0123456789"})
    assert "very-secret" not in key.out + key.err


@pytest.mark.parametrize("command", ["show", "sessions", "export", "context"])
def test_a_reader_that_has_seen_enough(told: Shell, command: str) -> None:
    process = told.start(command, *(["s1"] if command != "sessions" else []))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert complaint == b""


def test_notes_that_sessions_share_are_read_and_edited(shell: Shell) -> None:
    assert "no notes" in shell.ok("memory", "show", "customer-42").out
    shell.ok("memory", "write", "customer-42", "diet", "vegetarian")
    shell.ok("memory", "write", "customer-42", "city", "Basel\x1b[2J")
    shown = shell.ok("memory", "show", "customer-42").out
    assert "diet: vegetarian" in shown and "city: Basel" in shown and "\x1b" not in shown
    [notes] = shell.ok("memory", "show", "customer-42", "--json").lines
    assert notes["version"] == 3 and notes["notes"]["diet"] == "vegetarian"
    refused = shell("memory", "write", "customer-42", "city", "Bern", "--seen", "2")
    assert refused.code == 1 and "changed by another" in refused.err
    shell.ok("memory", "erase", "customer-42", "city")
    assert "city" not in shell.ok("memory", "show", "customer-42").out
    assert "city" in shell.ok("memory", "undo", "customer-42").out
    assert shell.ok("memory", "list").out.strip() == "customer-42"


def test_sessions_of_agents_that_are_tools_are_listed_when_asked_for(shell: Shell) -> None:
    shell.write(
        "team.py",
        """
from turnlog import Agent
from turnlog.testing import ScriptedModel, Turn

finder = Agent(ScriptedModel(["Found."]), name="finder", store="memory:")
call = Turn(tool_calls=[{"name": "finder", "arguments": {"input": "x"}}])
agent = Agent(ScriptedModel([call, "Done."]), tools=[finder.as_tool("Finds.")], store="sqlite:log.db")
""",
    )
    shell.ok("run", "--agent", "team.py:agent", "-s", "s1", "Go")
    store = ("--store", "sqlite:log.db", "--json")
    assert [line["sessionId"] for line in shell.ok("sessions", *store).lines] == ["s1"]
    found = {line["sessionId"].partition("-")[0] for line in shell.ok("sessions", "--all", *store).lines}
    assert found == {"s1", "finder"}
    shell.ok("memory", "write", "ann", "tea", "green", *store)
    assert [line["sessionId"] for line in shell.ok("sessions", *store).lines] == ["s1"]
    assert "memory:ann" in shell.ok("sessions", "--all", *store).out
    tree = shell.ok("sessions", "--all", "--store", "sqlite:log.db").out.splitlines()
    (above,) = [place for place, line in enumerate(tree) if line.startswith("s1 ")]
    assert tree[above + 1].startswith("└ finder-")
    assert "finder in session finder-" in shell.ok("show", "s1", "--store", "sqlite:log.db").out
