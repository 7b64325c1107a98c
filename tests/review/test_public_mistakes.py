"""What people pass by mistake is answered with an ``AgentError`` that says what to pass instead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, AgentError
from turnlog.contract import LoopLimits, Message, text_part
from turnlog.history import MemoryStore
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
        ({"config": {"name": "x"}}, "config"),
        ({"limits": {"max_iterations": 3}}, "LoopLimits"),
        ({"limits": LoopLimits(max_iterations="3")}, "maxIterations"),  # type: ignore[arg-type]
        ({"retry": 5}, "RetryPolicy"),
        ({"tool_policy": 5}, "ToolPolicy"),
        ({"tool_choice": "foo"}, "tool_choice"),
        ({"context": 5}, "ContextOptions"),
        ({"instructions": 5}, "instructions"),
        ({"name": 5}, "name"),
        ({"approval": "ask"}, "approval"),
        ({"on_approval": "ask"}, "on_approval"),
        ({"recap": 5}, "recap"),
        ({"on_busy": "queue"}, "on_busy"),
    ],
)
def test_an_agent_made_of_the_wrong_things_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError, match=words) as caught:
        make(**options)
    assert caught.value.code in ("ConfigInvalid", "PluginMissing")


@pytest.mark.spec("X-1")
def test_none_stands_for_nothing_given() -> None:
    agent = make(tools=None, widgets=None, hooks=None, limits=None)
    assert agent.run_sync("Well?").text == "Yes."


@pytest.mark.spec("E-1", "E-2")
@pytest.mark.parametrize("text", [None, 5, b"bytes", ["words"], {"text": "words"}, object()])
async def test_input_of_another_kind_is_refused(text: Any) -> None:
    with pytest.raises(AgentError) as caught:
        await make().run(text)
    assert caught.value.code == "InvalidMessage"
    with pytest.raises(AgentError):
        await make().send("s1", text)


@pytest.mark.spec("E-1", "H-3")
@pytest.mark.parametrize("text", ["", "  \n", [], "half a \ud83d"])
async def test_input_that_says_nothing_is_a_failed_run_and_the_session_goes_on(text: Any) -> None:
    agent = make()
    result = await agent.run(text, session="s1")
    assert result.status == "failed" and result.last_error is not None
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
    "name", ["messages", "tool_specs", "system_prompt", "request_metadata", "output_type_"]
)
async def test_parameters_that_a_run_sets_itself_are_refused(name: str) -> None:
    agent = make()
    if name == "output_type_":
        assert (await agent.run("Well?", **{name: 1})).status == "completed"  # the provider's own affair
        return
    with pytest.raises(AgentError, match=name):
        await agent.run("Well?", **{name: []})
    assert agent.loop.sessions.runs == {}


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
        {"runtime_init_data": [1]},
        {"runtime_init_data": {"a": object()}},
        {"runtime_hints": {"a": object()}},
        {"tool_choice": "foo"},
        {"temperature": object()},
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
    result = await make().run(message)
    assert result.last_error is not None and "role is assistant" in result.last_error.message
