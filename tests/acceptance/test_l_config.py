"""L. Agent loop: an agent's configuration."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acceptance.desk import Desk, asks_for, call
from turnlog import Agent, AgentError
from turnlog.contract import RunInput, decode, encode, user_message
from turnlog.loop import AgentConfig, AgentLoop, LoopParts, load_config
from turnlog.runtime import LocalRuntime
from turnlog.testing import ScriptedModel

WHOLE = """
version = 1
name = "clerk"
instructions = "You are brief."
store = "memory:"

[model]
name = "scripted:answers.json"
params = { temperature = 0.25 }

[runtime]
workspace = "."
level = "none"
data = { office = "Lisbon" }
policy = { network = "deny", timeout = 5.0, variables = { OFFICE_NAME = "x" } }

[tools]
allow_list = ["look"]
max_calls_per_run = 1

[context]
fold_at = 60_000

[loop]
max_iterations = 2
on_busy = "wait"
lease_ttl = 12.0
retry = { max_attempts = 3 }

[observability]
debug = []
"""


def written(folder: Path, text: str = WHOLE) -> Path:
    (folder / "answers.json").write_text('{"turns": ["Hello."]}', encoding="utf-8")
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.spec("L-14")
async def test_a_configuration_is_data_from_toml_and_every_table_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(written(tmp_path))
    assert isinstance(config, AgentConfig) and config.version == 1
    assert decode(encode(config), AgentConfig) == config, "serialisable"
    assert b"Lisbon" in encode(config)
    desk = Desk()
    model = ScriptedModel([asks_for(call("look", place="a"), call("look", place="b")), "Quiet."])
    agent = Agent.from_config(config, model=model, tools=desk.tools())
    assert agent.name == "clerk"
    parts = agent.loop.parts
    assert isinstance(parts.runtime, LocalRuntime) and parts.runtime.policy.timeout == 5.0
    assert parts.runtime.policy.variables == {"OFFICE_NAME": "x"}
    assert (parts.sessions.on_busy, parts.sessions.lease_ttl, parts.options.fold_at) == ("wait", 12.0, 60_000)
    await agent.run("Look.", session="s")
    [first, last] = model.requests
    assert "You are brief." in (first.system_prompt or "") and "Lisbon" in (first.system_prompt or "")
    assert "look" in {spec.name for spec in first.tool_specs} and "pay" not in str(first.tool_specs)
    assert first.config.temperature == 0.25
    assert desk.done == ["look a"], "one call a run, as the tools table says"
    limited = Agent.from_config(
        config, model=ScriptedModel([asks_for(call("look", place="a"))] * 9), tools=desk.tools()
    )
    result = await limited.run("Look.", session="t", check=False)
    assert result.last_error is not None and result.last_error.code == "RunMaxIterations"
    assert last.messages
    await agent.close()
    await limited.close()


@pytest.mark.spec("L-14")
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ('versoin = 1\nmodel = "local"', "versoin"),
        ('version = 99\nmodel = "local"', "version 99"),
        ('model = "local"\n[loop]\nmax_iterations = "many"', "maxIterations"),
        ('model = "local"\n[runtime.policy]\nnetwork = "maybe"', "network"),
        ('model = "local"\n[tools]\nmax_paralel = 2', "max_paralel"),
    ],
)
def test_a_configuration_is_checked_and_versioned(wrong: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        load_config(written(tmp_path, wrong))
    assert caught.value.code == "ConfigInvalid" and named in caught.value.message


@pytest.mark.spec("L-14")
async def test_dependencies_are_apart_read_only_and_the_loop_sees_a_prepared_run_alone() -> None:
    needed = {
        "model",
        "store",
        "context",
        "registry",
        "executor",
        "assembler",
        "runtime",
        "observers",
        "clock",
        "ids",
    }
    assert needed <= {field.name for field in dataclasses.fields(LoopParts)}
    assert not needed - {"model", "store", "context", "runtime"} & set(AgentConfig.__struct_fields__)
    desk = Desk()
    loop = desk.agent("Hi.").loop
    for name in needed:
        with pytest.raises((AttributeError, TypeError)):
            setattr(loop.parts, name, None)
    with pytest.raises((AttributeError, TypeError)):
        loop.parts = None  # type: ignore[assignment]
    with pytest.raises((AttributeError, TypeError)):
        AgentConfig(model="local").name = "other"  # type: ignore[misc]
    given = [one.annotation for one in inspect.signature(AgentLoop.run).parameters.values()]
    assert "AgentConfig" not in str(given) and "RunInput" in str(given)
    result = await loop.run(RunInput(session_id="s", input_messages=[user_message("Hello?")]))
    assert result.text == "Hi."
    assert not [value for value in vars(loop).values() if isinstance(value, AgentConfig)]
    frozen: Any = RunInput(session_id="s", input_messages=[])
    assert msgspec.structs.fields(type(frozen))
