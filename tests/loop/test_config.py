"""Configuration is data: read from TOML, checked, versioned, serialisable."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnlog import Agent
from turnlog.contract import AgentError, LoopLimits, ToolPolicy, decode, encode
from turnlog.loop import AgentConfig, SessionOptions, load_config
from turnlog.testing import ScriptedModel

GOOD = """
version = 1
name = "clerk"
instructions = "You are brief."
model = "local"
store = "sqlite:clerk.db"

[runtime.data]
working_directory = "/work"

[tools]
max_parallel = 4
allow_list = ["look"]
choice = "auto"

[loop]
maxIterations = 7
max_cost = 0.5
on_busy = "wait"

[loop.retry]
max_attempts = 2

[context]
fold_at = 50000

[observability]
debug = ["router"]
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.spec("L-14")
def test_toml_is_read_and_round_trips(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "agent.toml", GOOD))
    assert config.name == "clerk"
    given = config.arguments({})
    assert given["tool_policy"] == ToolPolicy(max_parallel=4, allow_list=["look"])
    assert given["limits"] == LoopLimits(max_iterations=7, max_cost=0.5)
    assert given["sessions"] == SessionOptions(on_busy="wait")
    assert config.context.fold_at == 50_000
    assert decode(encode(config), AgentConfig) == config


@pytest.mark.spec("L-14", "E-2")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        ("nam = 'x'", "the file has no field nam; did you mean name? Its fields: "),
        ("[loop]\nmax_iteration = 5", "[loop] has no field max_iteration; did you mean max_iterations?"),
        ("[model]\nname = 'local'\nurl = 'x'", "[model] has no field url. Its fields: name, options, params"),
        ("[loop]\nmax_iterations = 'many'", "loop.maxIterations"),
        ("[limits]\nmax_iterations = 5", "limits"),
        ("[model]\noptions = {}", "name"),
        ("version = 99", "upgrade turnlog"),
        ("[context]\nfold_at = 0", "fold_at"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(AgentError) as caught:
        load_config(write(tmp_path / "agent.toml", text))
    assert caught.value.code == "ConfigInvalid"
    assert words in caught.value.message


@pytest.mark.spec("E-2")
def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot read"):
        load_config(tmp_path / "nowhere.toml")


@pytest.mark.spec("L-14", "L-15")
async def test_the_run_records_what_it_was_prepared_with(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "agent.toml", GOOD))
    agent = Agent.from_config(config, model=ScriptedModel(["ok"]), store="memory:")
    await agent.run("go", session="s")
    entries = await agent.store.load("s")
    started = next(e.payload for e in entries if e.kind == "run_started")
    assert started.agent_name == "clerk" and started.tool_choice == "auto"
    assert (started.limits.max_iterations, started.limits.max_cost) == (7, 0.5)
    assert (started.tool_policy.max_parallel, started.tool_policy.allow_list) == (4, ["look"])
    assert started.retry.max_attempts == 2
    assert [e.payload.data for e in entries if e.kind == "runtime_init"] == [{"working_directory": "/work"}]
    assert [e.payload.text for e in entries if e.kind == "system_prompt"] == ["You are brief."]


def test_a_file_alone_makes_an_agent(tmp_path: Path) -> None:
    script = write(tmp_path / "script.jsonl", '{"text": "Ready."}\n')
    path = write(tmp_path / "agent.toml", f'model = "scripted:{script}"\nstore = "memory:"\n')
    assert Agent.from_config(path).run_sync("Ready?").text == "Ready."
    with pytest.raises(AgentError, match="names no model"):
        Agent.from_config(write(tmp_path / "none.toml", 'name = "x"'))
