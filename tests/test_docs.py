"""The pages in docs/ say what the code does: their code runs, their tables are the code's tables."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from doc_pages import ROOT, blocks, page, table
from turnlog import Agent
from turnlog.context import ContextOptions
from turnlog.contract import (
    CODES,
    FINISH_REASONS,
    TRANSITIONS,
    AgentError,
    ExecutionEnv,
    ModelParams,
    RetryPolicy,
    user_message,
)
from turnlog.loop import AgentConfig, load_config
from turnlog.loop._agent_config import (
    ContextTable,
    LoopTable,
    ModelTable,
    ObservabilityTable,
    RuntimeTable,
    ToolsTable,
)
from turnlog.mcp import MCPOptions
from turnlog.models import BUILT_IN, ModelConfig, http, load_model, wire
from turnlog.runtime import probe_sandbox
from turnlog.testing import Loopback, LoopbackAnswer, ScriptedModel, Turn
from turnlog.tools import ToolOptions, code_tools


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


# ── all pages ──

PAGES = ["README.md", "AGENTS.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("name", PAGES)
def test_pages_use_plain_words(name: str) -> None:
    text = re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```$", "", page(name), flags=re.M | re.S))
    odd = r"\b(?:whoever|what there is|is going|are going|goes on|go on with|has the whole of it)\b"
    assert re.findall(odd, text) == []


# ── architecture.md ──


def test_the_state_diagram_is_the_table_of_transitions() -> None:
    (diagram,) = (b.text for b in blocks(page("docs/architecture.md"), "mermaid") if "stateDiagram" in b.text)
    drawn = re.findall(r"^ +(\w+) --> (\w+): (.+)$", diagram, re.M)
    assert {(start, end): why for start, end, why in drawn} == TRANSITIONS
    assert len(drawn) == len(TRANSITIONS)


def test_every_room_is_described() -> None:
    described = {name for row in table(page("docs/architecture.md"), "room") for name in code(row[0])}
    there = {path.parent.name for path in (ROOT / "src" / "turnlog").glob("*/__init__.py")}
    assert described == there


def test_files_named_in_the_page_exist() -> None:
    for row in table(page("docs/architecture.md"), "you want to know"):
        for name in code(row[1]):
            assert (ROOT / "src" / "turnlog" / name).exists(), name


def test_the_path_to_the_insert_is_the_one_that_is_drawn(tmp_path: Path) -> None:
    """Every frame of this package between a user's call and the statement that stores its first entries."""
    source = f"{ROOT / 'src' / 'turnlog'}{os.sep}"
    hops = ("history/_worker.py submit", "history/sqlite/_store.py _append")
    found: dict[str, list[str]] = {}

    def note(frame: Any, event: str, _: object) -> None:
        frames: list[str] = []
        while event == "call" and frame is not None:
            if frame.f_code.co_filename.startswith(source):
                path = Path(frame.f_code.co_filename).relative_to(source).as_posix()
                frames.insert(0, f"{path} {frame.f_code.co_name}")
            if not frames or frames[-1] not in hops:
                return
            frame = frame.f_back
        if frames and (frames[-1] != hops[0] or "history/sqlite/_store.py append" in frames):
            found.setdefault(frames[-1], frames)

    async def run() -> None:
        async with Agent(ScriptedModel(["Hello."]), store=f"sqlite:{tmp_path / 'agent.db'}") as agent:
            await agent.run("Hello?")

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        asyncio.run(run())
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    drawn = [f"{code(row[1])[0]} {code(row[2])[0]}" for row in table(page("docs/architecture.md"), "step")]
    assert drawn == [frame for hop in hops for frame in found[hop]]


# ── design-map.md ──


def test_every_place_on_the_map_exists() -> None:
    rows = [line.split("|") for line in page("docs/design-map.md").partition("## Departures")[0].splitlines()]
    named = [name for row in rows if len(row) == 5 for name in code(row[3])]
    assert len(named) > 60
    for name in named:
        assert (ROOT / "src" / "turnlog" / name).exists(), name


def test_every_departure_has_its_reason() -> None:
    rows = table(page("docs/design-map.md"), "the design documents")
    assert len(rows) >= 10
    assert all(len(row) == 3 and all(row) for row in rows)


# ── configuration.md ──

CONFIGURATION = page("docs/configuration.md")
TABLES: dict[str, type[Any]] = {
    "Top level": AgentConfig,
    "`[model]`": ModelTable,
    "`[runtime]`": RuntimeTable,
    "`[tools]`": ToolsTable,
    "`[context]`": ContextTable,
    "`[loop]`": LoopTable,
    "`[observability]`": ObservabilityTable,
}


def fields(section: str) -> dict[str, list[str]]:
    """Field → its default as shown; a row may name several fields."""
    return {name: code(row[1]) for row in table(section, "field") for name in code(row[0])}


def check_fields(shown: dict[str, list[str]], kind: type[Any]) -> None:
    assert set(shown) == set(kind.__struct_fields__)
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        plain = isinstance(default, bool | int | float | str | list)
        assert shown[field.name] == ([json.dumps(default)] if plain else []), field.name


@pytest.mark.parametrize("heading", TABLES)
def test_every_field_of_the_configuration_is_on_the_page(heading: str) -> None:
    section = CONFIGURATION.partition(f"\n## {heading}\n")[2].partition("\n## ")[0].partition("\n`[")[0]
    check_fields(fields(section), TABLES[heading])


@pytest.mark.parametrize(
    ("intro", "kind"),
    [("[model.params]", ModelParams), ("[runtime.policy]", ExecutionEnv), ("[loop.retry]", RetryPolicy)],
)
def test_the_tables_inside_tables_are_on_the_page(intro: str, kind: type[Any]) -> None:
    check_fields(fields(CONFIGURATION.partition(f"\n`{intro}` is ")[2]), kind)


def test_no_table_of_the_configuration_is_left_out() -> None:
    found = {heading.strip("`[]") for heading in TABLES if heading != "Top level"}
    tables = {"model", "runtime", "tools", "context", "loop", "observability"}
    assert found == tables
    assert tables <= set(AgentConfig.__struct_fields__)


def test_the_configuration_shown_makes_an_agent(tmp_path: Path) -> None:
    (shown,) = blocks(CONFIGURATION, "toml")
    (tmp_path / "agent.toml").write_text(shown.text)
    config = load_config(tmp_path / "agent.toml")
    assert isinstance(config.model, ModelTable)
    agent = Agent.from_config(config, model=ScriptedModel(["Hello."]), store="memory:")
    assert (agent.name, agent.run_sync("Hello?").text) == ("clerk", "Hello.")


# ── context.md ──


def test_the_options_table_is_the_options() -> None:
    rows = {code(row[0])[0]: code(row[1]) for row in table(page("docs/context.md"), "option")}
    defaults = ContextOptions()
    assert list(rows) == list(ContextOptions.__struct_fields__)
    for name, shown in rows.items():
        value = getattr(defaults, name)
        assert ([] if value is None else [value]) == [_literal(text) for text in shown], name


def _literal(text: str) -> Any:
    return {"True": True, "False": False}.get(text) if text.isalpha() else json.loads(text.replace("_", ""))


# ── providers.md ──

PROVIDERS = page("docs/providers.md")


def test_every_prefix_is_listed_with_its_variables() -> None:
    rows = {code(row[0])[-1].rstrip(":"): row for row in table(PROVIDERS, "name")}
    assert set(rows) == set(BUILT_IN)
    for prefix, row in rows.items():
        module, _, attribute = BUILT_IN[prefix].partition(":")
        model: Any = getattr(import_module(module), attribute)
        assert tuple(code(row[2])) == getattr(model, "key_variables", ()), prefix
        assert tuple(code(row[3])) == getattr(model, "url_variables", ()), prefix
        fields = getattr(getattr(model, "config_type", None), "__struct_fields__", ())
        assert set(code(row[4])) <= set(fields), prefix


def test_the_common_fields_exist() -> None:
    (sentence,) = re.findall(
        r"^Every model also takes (.*?);\sthose behind HTTP (.*?)\.\s", PROVIDERS, re.M | re.S
    )
    assert set(code(sentence[0])) | {"model_id"} == set(ModelConfig.__struct_fields__)
    http = load_model("openai-chat:m").get_config().__struct_fields__
    assert set(code(sentence[1])) <= set(http)


FINISH_TABLES = {
    1: ("openai_chat", "FINISH"),
    2: ("openai_responses", "_INCOMPLETE"),
    3: ("anthropic", "_FINISH"),
    4: ("google", "_FINISH"),
    5: ("bedrock", "_FINISH"),
}


def test_finish_reasons_are_the_adapters_own() -> None:
    rows = {code(row[0])[0]: row for row in table(PROVIDERS, "ours")}
    assert tuple(rows) == FINISH_REASONS
    for column, (folder, name) in FINISH_TABLES.items():
        known: dict[str, str] = getattr(import_module(f"turnlog.models.{folder}._stream"), name)
        for reason, row in rows.items():
            for word in code(row[column]):
                assert known.get(word, "stop" if word == "completed" else None) == reason, (folder, word)


def test_error_codes_and_whether_to_try_again() -> None:
    rows = {code(row[0])[0]: row[1] for row in table(PROVIDERS, "code")}
    ours = {name for name, info in CODES.items() if info.category == "model"}
    assert set(rows) == ours
    for name, again in rows.items():
        assert again.startswith("yes") == CODES[name].retryable, name


async def test_the_parrot_speaks() -> None:
    parrot, _ = blocks(PROVIDERS, "python")
    room: dict[str, Any] = {}
    exec(compile(parrot.text, "docs/providers.md", "exec"), room)
    kinds = [delta.kind async for delta in room["ParrotModel"]("grey").stream([user_message("Hello you")])]
    assert kinds == ["start", "text", "text", "done"]


async def test_the_echo_is_heard_over_http() -> None:
    _, echo = blocks(PROVIDERS, "python")
    room: dict[str, Any] = {}
    exec(compile(echo.text, "docs/providers.md", "exec"), room)
    body = 'data: {"text": "Hello"}\n\ndata: {"text": " you"}\n\ndata: [DONE]\n\n'
    async with Loopback(LoopbackAnswer.sse(body)) as server:
        model = room["EchoModel"]("m", base_url=server.url)
        kinds = [delta.kind async for delta in model.stream([user_message("Hello you")])]
        await model.close()
        assert server.requests[0].json == {"texts": ["Hello you"]}
    assert kinds == ["start", "text", "text", "done"]


def test_the_kits_names_exist() -> None:
    section = PROVIDERS.partition("### Behind HTTP")[2].partition("```")[0]
    for module in (http, wire):
        for name in module.__all__:
            assert f"`{name}`" in section, name


# ── quickstart.md ──


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_quickstart_runs_from_top_to_bottom(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room = run_page("docs/quickstart.md")
    shown = capsys.readouterr().out
    for words in (
        "completed Paris.",
        "The Louvre, first. stop",
        "1,200 euros.\n5\n",
        "Light rain. - stop",
        "calls weather {'city': 'Rome'}",
        "weather returned: Rome: sunny",
        "True ['user']",
        "identical",
        "Take the train.",
        "holiday Holiday completed",
        "nothing was open",
        "awaiting_human\nbook {'hotel': 'Ritz', 'nights': 9} it costs money\nBooked two nights",
        "awaiting_human\nmeasure How large is the hall, in square metres?\nThe hall has 21.5 m²",
        "Rain.\ncame back to ",
        "'Yes, a large one.'",
        "aborted - that is enough",
        "ModelAuthError - this key is not valid - failed",
        "failed ModelAuthError",
        "about ",
        "RunStalled",
        "The sign is reversed.\nA red dot.",
        "- **guests**: four",
        "First the flights.",
        "clerk - At your service.",
        "'run_ended': 1",
    ):
        assert words in shown, words
    assert "Never" not in shown
    assert asyncio.iscoroutinefunction(room["test_it_asks_about_the_weather"])


def test_the_page_about_typed_answers_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/output.md")
    shown = capsys.readouterr().out
    for words in (
        "1042 99.5\n['Ann', 'Bob']\n",
        "Invoice(number=7, dollars=12.0)",
        "so far: Invoice(number=7, dollars=None)",
        "0 Invoice(number=1, dollars=10.0) new\n",
        "0 Invoice(number=1, dollars=10.0) known\n",
        "2 done, ",
        "Ann takes over",
    ):
        assert words in shown, words


def test_the_page_about_what_if_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/what-if.md")
    shown = capsys.readouterr().out
    assert "None are left, I am afraid.\n" in shown and "≠ output" in shown


def test_the_page_about_evaluation_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/evals.md")
    shown = capsys.readouterr().out
    assert "small 0 of 3\nlarge 3 of 3\n" in shown and "polite: it does not say please" in shown


def test_the_page_about_traces_runs(folder: Path) -> None:
    """In a process of its own: the provider that it sets is that of the whole process."""
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra 'otel'")
    (block,) = blocks(page("docs/observability.md"), "python")
    done = subprocess.run([sys.executable, "-c", block.text], capture_output=True, text=True, check=True)
    assert '"name": "invoke_agent agent"' in done.stdout


def test_the_page_about_the_server_runs(folder: Path) -> None:
    pytest.importorskip("starlette", reason="needs the extra 'server'")
    run_page("docs/server.md")


def test_the_page_about_agents_as_tools_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/children.md")
    shown = capsys.readouterr().out
    expected = (
        "Bees dance to tell where food is.\nresearcher completed\nTrue\nawaiting_human\nYou have a map now.\n"
        "billing says: You have 5 dollars back.\nbilling says: Any time.\n"
    )
    assert shown == expected


def test_the_page_about_mcp_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    run_page("docs/mcp.md")
    assert capsys.readouterr().out.splitlines() == [
        "Four rooms are free.",
        "awaiting_human",
        "hotel asks: For whom is the room?",
        "Booked for Ada.",
        "True",
        "hotel://rules No dogs.",
        "letter ('guest',)",
        "Write a letter to Ada.",
        "new 1",
    ]
    listed = {name for row in table(page("docs/mcp.md"), "option") for name in code(row[0])}
    assert listed == set(MCPOptions.__annotations__)


def test_the_page_about_files_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/files.md")
    shown = capsys.readouterr().out
    refused = "report.pdf is a text (text/plain), not the PDF that its name says"
    assert shown == f"A cat, and a poem about it.\nStill the cat.\n{refused}\n"


def test_the_page_about_the_coding_agent_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/code.md")
    assert capsys.readouterr().out.splitlines() == [
        "The mean of nothing is 0 now.",
        "    return sum(numbers) / max(len(numbers), 1)",
        "('calc.py',)     return sum(numbers) / len(numbers)",
    ]
    listed = [name for row in table(page("docs/code.md"), "tool") for name in code(row[0])]
    assert sorted(listed) == sorted(each.name for each in code_tools())


def test_the_page_about_hooks_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("docs/hooks.md")
    shown = capsys.readouterr().out
    for words in (
        "Done.\n{'to': 'Ann', 'amount': 100} guard\n",
        "Then not.\n",
        "./guard.sh []\n",
        "- Faster.",
        "new instructions adds 9 bytes to the instructions\nUnderstood.\n",
    ):
        assert words in shown, words


def test_the_policy_table_is_the_policy() -> None:
    fields = {code(row[0])[0]: code(row[1])[0] for row in table(page("docs/runtime.md"), "field")}
    expected = {field.name: field.default for field in msgspec.structs.fields(ExecutionEnv)}
    expected["variables"] = {}
    assert {key: ast.literal_eval(value) for key, value in fields.items()} == expected


def test_the_page_about_the_runtime_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if sys.platform != "linux":
        pytest.skip("LocalRuntime needs Linux")
    (folder / "work" / "build").mkdir(parents=True)
    try:
        asyncio.run(probe_sandbox())
    except AgentError as error:
        pytest.skip(error.message)
    run_page("docs/runtime.md")
    said = capsys.readouterr().out
    assert "milk" in said and "/usr/mine" in said
    assert "One line." in said
    assert "stdout hello Ann\n0\n" in said


def run_page(name: str) -> dict[str, Any]:
    """Every block of a page, in order and in one room, with the scripts that it names."""
    room: dict[str, Any] = {}
    for block in blocks(page(name), "python"):
        if block.note.startswith("script: "):
            turns = json.loads(block.note.removeprefix("script: "))
            room["model"] = ScriptedModel([_turn(turn) for turn in turns])
        # The line number of a failure is that of the page.
        exec(compile("\n" * block.line + block.text, name, "exec"), room)
    return room


def _turn(turn: Any) -> str | Turn:
    if isinstance(turn, str):
        return turn
    return Turn(**{"tool_calls" if key == "toolCalls" else key: value for key, value in turn.items()})


def test_the_tool_options_exist() -> None:
    listed = {name for row in table(page("docs/quickstart.md"), "option of `@tool`") for name in code(row[0])}
    assert listed <= set(ToolOptions.__annotations__)
    assert set(ToolOptions.__annotations__) - listed == {"requires_agent"}
