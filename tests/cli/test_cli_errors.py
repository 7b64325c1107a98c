"""Bad input to every command: an exit code, one sentence on standard error, no traceback, no secret."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cli.shell import Done, Shell
from turnlog.contract import SCHEMA_VERSION, SessionHeader, seal
from turnlog.history import open_store
from turnlog.system import SystemClock, SystemIds

KEY = "sk-proj-AbCdEf0123456789AbCdEf"
COMMANDS = (
    "chat",
    "run",
    "sessions",
    "show",
    "context",
    "compact",
    "replay",
    "fork",
    "approve",
    "export",
    "verify",
    "purge",
    "serve",
    "watch",
    "acp",
    "worker",
    "fleet",
    "doctor",
)


POSTGRES = pytest.mark.skipif(
    find_spec("turnlog.history.postgres") is None, reason="the PostgreSQL store is not there yet"
)


def one_sentence(done: Done, code: int, *words: str) -> None:
    assert done.code == code, done
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err, done.err
    assert len(done.err.splitlines()) == 1, done.err


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder whose store holds one small session, s1. Nothing here writes to it."""
    shell = Shell(tmp_path_factory.mktemp("told"))
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    shell.write("garbage.json", "garbage")
    shell.write("broken.py", "x = \n")
    shell.write("needy.py", "import a_module_that_is_not_there\n")
    shell.write("bare.py", "x = 1\n")
    shell.write("same.py", "from turnlog import tool\n\n@tool\ndef add() -> int:\n    'Add.'\n    return 0\n")
    shell.write("turns.json", '[{"txt": "Hello."}]')
    return shell


MODELS = [
    ("nothing:here", "no model prefix 'nothing'; known are anthropic"),
    ("gpt-5.2", "no model prefix 'gpt-5.2'; did you mean openai:gpt-5.2? Known are anthropic"),
    ("opnai:gpt-5.2", "did you mean openai:gpt-5.2?"),
    ("Claude-sonnet-4-5", "did you mean anthropic:Claude-sonnet-4-5?"),
    ("lokal", "did you mean local"),
    ("openai-chat:", "'openai-chat:' names no model"),
    ("scripted:none.json", "script none.json: cannot be read"),
    ("scripted:garbage.json", "script garbage.json: Expecting value: line 1"),
    ("scripted:turns.json", "script turns.json: turns[0]: Object contains unknown field `txt`"),
]


def test_models_that_cannot_be(told: Shell) -> None:
    done = told.each([["run", "-m", model, "Hi"] for model, _ in MODELS])
    for (_, words), one in zip(MODELS, done, strict=True):
        one_sentence(one, 1, words)


def test_a_port_that_cannot_be(told: Shell) -> None:
    one_sentence(told("serve", "--port", "99999"), 2, "--port", "99999 is not in the range 0<=x<=65535")


KEYS = [
    ("openai-chat:gpt-5.2", "OPENAI_API_KEY"),
    ("openai:gpt-5.2", "OPENAI_API_KEY"),
    ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    ("google:gemini-3-pro", "GEMINI_API_KEY"),
]


def test_a_missing_key_names_its_variable(shell: Shell) -> None:
    done = shell.each([["run", "-m", model, "-s", model, "Hi"] for model, _ in KEYS])
    for (_, variable), one in zip(KEYS, done, strict=True):
        one_sentence(one, 1, "ModelAuthError", variable)


@pytest.mark.parametrize(
    ("args", "module", "extra"),
    [
        (["run", "-m", "local", "-s", "s1", "Hi"], "xllamacpp", "local"),
        pytest.param(
            ["sessions", "--store", "postgresql://localhost/x"], "psycopg", "postgres", marks=POSTGRES
        ),
    ],
)
def test_a_missing_extra_names_the_command(shell: Shell, args: list[str], module: str, extra: str) -> None:
    """A package of that name that cannot be imported stands before the installed one."""
    shell.write(f"{module}.py", f"raise ModuleNotFoundError('it is not there', name={module!r})")
    done = shell(*args, env={"PYTHONPATH": str(shell.folder)})
    one_sentence(done, 1, "PluginMissing", f"pip install 'turnlog[{extra}]'")


def test_without_a_local_model_the_other_way_is_named_unless_it_was_asked_for(shell: Shell) -> None:
    shell.write("sitecustomize.py", "import sys\nsys.modules['xllamacpp'] = None")
    env = {"PYTHONPATH": str(shell.folder)}
    one_sentence(shell("run", "Hi", env=env), 1, "pip install 'turnlog[local]'; or", "-m openai:MODEL")
    assert "openai" not in shell("run", "-m", "local", "Hi", env=env).err


TOOLS = [
    ("none.py", "there is no file none.py"),
    ("none.at.all", "there is no module none.at.all"),
    ("broken.py", "broken.py fails: SyntaxError"),
    ("needy", "needy fails: ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ("bare.py", "bare.py has no function marked with @tool"),
]


def test_tools_that_cannot_be_loaded(told: Shell) -> None:
    done = told.each([["run", "-m", "scripted:turns.json", "-t", name, "Hi"] for name, _ in TOOLS])
    for (_, words), one in zip(TOOLS, done, strict=True):
        one_sentence(one, 2, "--tools", words)


def test_two_tools_of_one_name(told: Shell) -> None:
    script = told.script("Hello.")
    one_sentence(told("run", "-m", script, "-t", "tools.py", "-t", "same.py", "Hi"), 1, "add")


SESSION_COMMANDS = ["show", "context", "compact", "replay", "fork", "export", "verify", "approve"]


def test_a_session_that_is_not_there(told: Shell) -> None:
    for done in told.each([[command, "none"] for command in SESSION_COMMANDS]):
        one_sentence(done, 1, "SessionNotFound: there is no session 'none'")


ARGUMENTS: list[tuple[list[str], int, str]] = [
    (["none"], 2, "No such command 'none'"),
    (["show"], 2, "Missing argument 'SESSION'"),
    (["show", "s1", "--colour"], 2, "No such option '--colour'"),
    (["run", "-m", "scripted:turns.json", " "], 2, "the text is empty"),
    (["run", "-m", "scripted:turns.json", "-s", "", "Hi"], 2, "the session's name is empty"),
    (["run", "--config", "none.toml", "Hi"], 1, "cannot read none.toml"),
    (["run", "--config", "garbage.json", "Hi"], 1, "garbage.json is not TOML"),
    (["context", "s1", "--call", "9"], 1, "there is no model call 9 in this session; it has 1"),
    (["context", "s1", "--diff", "1", "9"], 1, "there is no model call 9"),
    (["fork", "s1", "--at", "99"], 1, "cannot be forked at entry 99"),
    (["fork", "s1", "--to", "s1"], 1, "session 's1' exists already"),
    (["purge", "s1", "none", "--yes"], 1, "session 's1' has no entry none"),
    (["import", "none.jsonl"], 2, "File 'none.jsonl' does not exist"),
    (["import", "garbage.json"], 1, "line 1 of the import: an entry cannot be read"),
    (["export", "s1", "-o", "no/such/folder"], 1, "cannot write no/such/folder: No such file"),
    (["sessions", "--store", "paper:notes"], 1, "store 'paper:notes' is not known; write memory:"),
    (["sessions", "--store", "sqlite:"], 1, "names no path"),
    (["sessions", "--store", "sqlite:none/a.db"], 1, "none/a.db, so it holds no sessions"),
    (["sessions", "--store", "jsonl:none"], 1, "there is no folder"),
    (["sessions", "--store", "sqlite:."], 1, "SessionReadFailed"),
    (["sessions", "--store", "sqlite:garbage.json"], 1, "garbage.json is not an SQLite database"),
]


def test_bad_arguments(told: Shell) -> None:
    done = told.each([args for args, _, _ in ARGUMENTS])
    for (_, code, words), one in zip(ARGUMENTS, done, strict=True):
        one_sentence(one, code, words)


def test_standard_input_that_is_not_text(told: Shell) -> None:
    one_sentence(told("run", "-m", "scripted:turns.json", "-", stdin=b"\xff\xfe"), 2, "not UTF-8")


def test_a_store_from_a_newer_version(told: Shell, tmp_path: Path) -> None:
    file = tmp_path / "newer.db"
    shutil.copy(told.folder / "log.db", file)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = file.read_bytes()
    for command in (["sessions"], ["run", "-m", told.script("Hello."), "-s", "s1", "Hi"]):
        done = told(*command, "--store", f"sqlite:{file}")
        one_sentence(done, 1, "SessionMigrationFailed", "was made by a newer turnlog")
    assert file.read_bytes() == before


async def test_a_session_from_a_newer_version(shell: Shell) -> None:
    header = SessionHeader(schema_version=SCHEMA_VERSION + 1)
    place: dict[str, Any] = {"previous_id": None, "previous_hash": "", "session_id": "s1", "seq": 1}
    sealed = seal(header, id=SystemIds().entry(), timestamp=SystemClock().now(), **place)
    store = open_store(f"sqlite:{shell.folder / 'log.db'}")
    await store.append("s1", [sealed.stored], expected_tail=0)
    await store.close()
    for command in (["show", "s1"], ["run", "-m", shell.script("Hello."), "-s", "s1", "Hi"]):
        one_sentence(shell(*command), 1, f"schema version {SCHEMA_VERSION + 1}", "upgrade turnlog")


def test_a_store_file_that_lost_its_end(told: Shell, tmp_path: Path) -> None:
    data = (told.folder / "log.db").read_bytes()
    (tmp_path / "half.db").write_bytes(data[: len(data) // 2])
    one_sentence(
        told("show", "s1", "--store", f"sqlite:{tmp_path / 'half.db'}"), 1, "SessionCorrupt", "half.db"
    )


def test_a_file_where_a_folder_of_logs_should_be(shell: Shell) -> None:
    shell.write("notes.txt", "mine")
    for command in (["sessions"], ["run", "-m", shell.script("Hi."), "Hi"]):
        done = shell(*command, "--store", "jsonl:notes.txt")
        named = (shell.folder / "notes.txt").resolve()
        said = f"ConfigInvalid: {named} is a file; jsonl: takes a folder of its own\n"
        assert (done.code, done.err) == (1, said)
    assert (shell.folder / "notes.txt").read_text() == "mine"


def test_a_log_file_that_lost_its_end_is_repaired(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "jsonl:logs")
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    file = tmp_path / "logs" / "s1.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert shell.ok("verify", "s1").out.startswith("sound")
    done = shell.ok("chat", "-m", shell.script("Hello again."), "-s", "s1")
    assert "run_ended" in shell.kinds("s1")
    assert "Traceback" not in done.err


def test_a_log_file_with_a_hole(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "jsonl:logs")
    shell.ok("run", "-m", shell.script("Hello."), "-s", "s1", "Hi")
    file = tmp_path / "logs" / "s1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"}{\n", *lines[3:]]))
    one_sentence(shell("show", "s1"), 1, "SessionCorrupt")
    one_sentence(shell("run", "-m", shell.script("Hello."), "-s", "s1", "Hi"), 1, "SessionCorrupt")


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_store_that_may_not_be_read(told: Shell, tmp_path: Path) -> None:
    file = tmp_path / "locked.db"
    shutil.copy(told.folder / "log.db", file)
    file.chmod(0)
    one_sentence(told("sessions", "--store", f"sqlite:{file}"), 1, "locked.db")


def test_no_key_is_ever_shown(shell: Shell) -> None:
    """Nothing listens there; the key is in the environment, the address and the question."""
    env = {"OPENAI_API_KEY": KEY}
    shell.write("quick.toml", "[loop.retry]\nmax_attempts = 1\n")
    here = ["--config", "quick.toml", "-m", "openai-chat:m"]
    refused = shell(
        "run", *here, "--base-url", "http://127.0.0.1:9/v1", "-s", "s1", f"My key is {KEY}", env=env
    )
    assert refused.code == 1
    shown = refused.out + refused.err
    with_password = shell("run", *here, "--base-url", f"http://me:{KEY}@127.0.0.1:9/v1", "Hi", env=env)
    one_sentence(with_password, 1, "carries a user name or password")
    shown += with_password.err + shell("show", "s1", "--json", env=env).out
    assert KEY not in shown
    for path in shell.folder.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


@POSTGRES
def test_the_password_of_a_database_is_not_shown(shell: Shell) -> None:
    done = shell("sessions", "--store", "postgresql://me:pass-word-0123@127.0.0.1:9/x")
    one_sentence(done, 1, "Session")
    assert "pass-word" not in done.err
    assert "pass-word" not in shell("doctor", "--store", "postgresql://me:pass-word-0123@127.0.0.1:9/x").out


def test_every_command_of_the_specification_is_there(shell: Shell) -> None:
    help_text = shell.ok("--help").out
    missing = [name for name in COMMANDS if f"\n  {name} " not in help_text]
    if missing:
        pytest.skip(f"not there yet: {', '.join(missing)}")


@pytest.mark.parametrize("module", ["turnlog", "turnlog.cli"])
def test_it_runs_as_a_module_too(shell: Shell, module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"turnlog")
