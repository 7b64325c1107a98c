"""What people pass by mistake is answered with an ``AgentError`` that says what to pass instead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, AgentError
from turnlog.contract import LoopLimits, Message, ModelParams, RetryPolicy, ToolPolicy, text_part
from turnlog.history import MemoryStore
from turnlog.loop import AgentConfig, SessionOptions
from turnlog.testing import ScriptedModel


def model() -> ScriptedModel:
    return ScriptedModel(default="Yes.")


def make(**options: Any) -> Agent:
    return Agent(options.pop("model", model()), store=options.pop("store", "memory:"), **options)


@pytest.mark.spec("E-1", "E-2", "X-1")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": ScriptedModel}, "instance"),
        ({"model": ""}, "prefix"),
        ({"model": "nobody:x"}, "nobody"),
        ({"model": "local", "model_options": 5}, "model_options"),
        ({"store": 5}, "store"),
        ({"store": Path("sessions.db")}, "sqlite:"),
        ({"store": "foo:bar"}, "sqlite:"),
        ({"store": ""}, "store"),
        ({"tools": print}, "tools"),
        ({"tools": "shell"}, "tools"),
        ({"tools": [print]}, "print"),
        ({"tools": [None]}, "not a tool"),
        ({"widgets": 5}, "widgets"),
        ({"widgets": [5]}, "widget"),
        ({"hooks": 5}, "hooks"),
        ({"limits": {"max_iterations": 3}}, "LoopLimits"),
        ({"limits": LoopLimits(max_iterations="3")}, "maxIterations"),  # type: ignore[arg-type]
        ({"retry": 5}, "RetryPolicy"),
        ({"tool_policy": 5}, "ToolPolicy"),
        ({"tool_choice": "foo"}, "tool_choice"),
        ({"context": 5}, "ContextOptions"),
        ({"instructions": 5}, "instructions"),
        ({"name": 5}, "name"),
        ({"approvals": "ask"}, "Approvals: policy"),
        ({"recap": 5}, "recap"),
        ({"params": {"temperature": 1}}, "ModelParams"),
        ({"params": ModelParams(temperature="hot")}, "temperature"),  # type: ignore[arg-type]
        ({"runtime_data": [1]}, "runtime_data"),
        ({"sessions": "wait"}, "SessionOptions"),
        ({"sessions": SessionOptions(on_busy="queue")}, "on_busy"),  # type: ignore[arg-type]
        ({"sessions": SessionOptions(lease_ttl=0)}, "lease_ttl"),
        ({"sessions": SessionOptions(lease_ttl="30")}, "lease_ttl"),  # type: ignore[arg-type]
        ({"sessions": SessionOptions(warm_bytes=-1)}, "warm_bytes is -1"),
        ({"sessions": SessionOptions(warm_bytes=1e6)}, "warm_bytes"),  # type: ignore[arg-type]
        ({"sessions": SessionOptions(snapshot_every=-1)}, "snapshot_every is -1"),
        ({"limits": LoopLimits(max_iterations=-1)}, "max_iterations is -1"),
        ({"limits": LoopLimits(max_cost=-0.5)}, "max_cost"),
        ({"retry": RetryPolicy(base_delay_ms=-1)}, "base_delay_ms"),
        ({"tool_policy": ToolPolicy(max_parallel=-1)}, "max_parallel"),
        ({"clock": 1}, "clock"),
        ({"ids": 1}, "ids"),
        ({"runtime": 5}, "runtime"),
        ({"store": MemoryStore}, "instance"),
        ({"observers": 5}, "observers"),
        ({"observers": [5]}, "observers"),
    ],
)
def test_an_agent_made_of_the_wrong_things_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError, match=words) as caught:
        make(**options)
    assert caught.value.code in ("ConfigInvalid", "PluginMissing")


@pytest.mark.spec("E-1", "X-1")
@pytest.mark.parametrize("config", [None, 5, {"name": "x"}, AgentConfig])
def test_a_configuration_is_a_value_or_a_file(config: Any) -> None:
    with pytest.raises(AgentError, match="AgentConfig") as caught:
        Agent.from_config(config, model=model(), store="memory:")
    assert caught.value.code == "ConfigInvalid"


@pytest.mark.spec("X-1")
def test_none_stands_for_nothing_given() -> None:
    agent = make(tools=None, widgets=None, hooks=None, limits=None)
    assert agent.run_sync("Well?").text == "Yes."


@pytest.mark.spec("E-1", "E-2")
@pytest.mark.parametrize("text", [None, 5, b"bytes", [5], {"text": "words"}, object()])
async def test_input_of_another_kind_is_refused(text: Any) -> None:
    with pytest.raises(AgentError) as caught:
        await make().run(text)
    assert caught.value.code == "InvalidMessage"
    with pytest.raises(AgentError):
        await make().send("s1", text)


@pytest.mark.spec("E-1", "H-3")
@pytest.mark.parametrize("text", ["", "  \n", [], "half a \ud83d"])
async def test_input_that_says_nothing_starts_no_run_and_the_session_stays_usable(text: Any) -> None:
    agent = make()
    with pytest.raises(AgentError) as caught:
        await agent.run(text, session="s1", check=False)
    assert caught.value.code in ("InvalidMessage", "InvalidEntry")
    assert agent.loop.sessions.runs == {} and await agent.store.tail("s1") is None
    assert (await agent.run("Well?", session="s1")).status == "completed"


@pytest.mark.spec("E-1", "E-2")
@pytest.mark.parametrize("session", ["", "a\nb", "x" * 181, "\ud800", 5, b"s1", ["s1"]])
async def test_a_session_needs_a_name(session: Any) -> None:
    agent = make()
    for attempt in (
        agent.run("Well?", session=session),
        agent.resume(session),
        agent.decide(session, "c1", "approve", by="me"),
    ):
        with pytest.raises(AgentError, match="session"):
            await attempt
    assert agent.loop.sessions.runs == {}
    assert (await agent.run("Well?", session="s1")).status == "completed"


@pytest.mark.spec("E-1", "E-2")
@pytest.mark.parametrize(
    "name", ["messages", "tool_specs", "system_prompt", "request_metadata", "output_type_", "temperature"]
)
async def test_options_that_a_run_does_not_have_are_refused(name: str) -> None:
    agent = make()
    options: Any = {name: []}
    with pytest.raises(AgentError, match=name) as caught:
        await agent.run("Well?", **options)
    assert caught.value.code == "ConfigInvalid" and "params=ModelParams" in caught.value.message
    assert agent.loop.sessions.runs == {}


@pytest.mark.spec("E-1", "E-2")
@pytest.mark.parametrize("name", ["messages", "tool_specs", "system_prompt", "request_metadata"])
async def test_parameters_that_a_run_sets_itself_are_refused(name: str) -> None:
    agent = make()
    with pytest.raises(AgentError, match=name):
        await agent.run("Well?", params=ModelParams(extra={name: []}))
    assert agent.loop.sessions.runs == {}
    result = await agent.run("Well?", params=ModelParams(extra={"output_type_": 1}))
    assert result.status == "completed", "the provider's own affair"


@pytest.mark.spec("E-1")
@pytest.mark.parametrize(
    "options",
    [
        {"limits": 5},
        {"limits": LoopLimits(max_tokens="many")},  # type: ignore[arg-type]
        {"run_id": 5},
        {"run_id": ""},
        {"allowed_tools": "shell"},
        {"instructions": 5},
        {"runtime_data": [1]},
        {"runtime_data": {"a": object()}},
        {"runtime_hints": {"a": object()}},
        {"tool_choice": "foo"},
        {"params": {"temperature": 1}},
        {"params": ModelParams(temperature=object())},  # type: ignore[arg-type]
        {"params": ModelParams(extra={"seed": object()})},
        {"metadata": {"a": object()}},
        {"title": 5},
        {"tool_order": "shell"},
        {"auto_create": "no"},
    ],
)
async def test_wrong_options_of_a_run_are_errors_of_ours(options: dict[str, Any]) -> None:
    agent = make()
    try:
        result = await agent.run("Well?", session="s1", **options)
    except AgentError:
        pass
    else:
        assert result.status == "failed" and result.last_error is not None
    assert agent.loop.sessions.runs == {}
    assert (await agent.run("Well?", session="s1")).status == "completed"


@pytest.mark.spec("L-1")
async def test_one_agent_runs_many_sessions_at_once() -> None:
    agent = make(store=MemoryStore())
    results = await asyncio.gather(*(agent.run("Well?", session=f"s{n}") for n in range(20)))
    assert {result.status for result in results} == {"completed"}


@pytest.mark.spec("M-3")
async def test_an_assistants_message_is_no_input() -> None:
    message = Message(run_id="", role="assistant", parts=[text_part("hi")], timestamp="")
    with pytest.raises(AgentError, match="role is assistant"):
        await make().run(message)
