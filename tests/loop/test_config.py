"""Configuration is data: read from TOML, checked, versioned, serialisable."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import asdict

from turnlog import Agent
from turnlog.contract import AgentError, LoopLimits, ToolPolicy, decode, encode
from turnlog.loop import AgentConfig, load_config
from turnlog.testing import ScriptedModel

GOOD = """
version = 1
name = "clerk"
instructions = "You are brief."
model = "local"
store = "sqlite:clerk.db"

[tool_policy]
max_parallel = 4
allow_list = ["look"]

[limits]
maxIterations = 7
max_cost = 0.5

[retry]
max_attempts = 2

[context]
fold_at = 50000
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.spec("L-14")
def test_toml_is_read_and_round_trips(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "agent.toml", GOOD))
    assert config.name == "clerk"
    assert config.tool_policy == ToolPolicy(max_parallel=4, allow_list=["look"])
    assert config.limits == LoopLimits(max_iterations=7, max_cost=0.5)
    assert config.context.fold_at == 50_000
    assert decode(encode(config), AgentConfig) == config


@pytest.mark.spec("L-14", "E-2")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        ("nam = 'x'", "nam"),
        ("[limits]\nmax_iterations = 'many'", "limits.maxIterations"),
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
    agent = Agent(ScriptedModel(["ok"]), store="memory:", config=config)
    await agent.run("go", session="s")
    started = next(e.payload for e in await agent.store.load("s") if e.kind == "run_started")
    assert started.agent_name == "clerk"
    assert asdict(started.limits) == asdict(config.limits)
    assert asdict(started.tool_policy) == asdict(config.tool_policy)
