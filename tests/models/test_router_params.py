"""A router hands on what a call was given, and turns its own parts' mistakes into words."""

from __future__ import annotations

from typing import Any

import pytest

from loop.scenarios import SESSION, Stage
from turnlog import Agent
from turnlog.contract import AgentError, ModelParams, user_message
from turnlog.models import ProviderRouter
from turnlog.testing import ScriptedModel


def agent_on(stage: Stage, router: ProviderRouter) -> Agent:
    return Agent(router, store=stage.store, clock=stage.clock, ids=stage.ids)


@pytest.mark.spec("R-1", "P-1")
async def test_parameters_of_a_call_reach_the_model_that_answers() -> None:
    model = ScriptedModel(["Yes."], temperature=1.0, max_tokens=10)
    stage = Stage()
    agent = agent_on(stage, ProviderRouter({"only": model}))
    params = ModelParams(temperature=0.2, max_tokens=77, top_p=0.5, seed=7)
    result = await agent.run("Well?", session=SESSION, params=params)
    assert result.status == "completed"
    config = model.requests[0].config
    assert (config.temperature, config.max_tokens, config.top_p) == (0.2, 77, 0.5)
    assert model.requests[0].params == {"seed": 7}


@pytest.mark.spec("R-1", "P-10")
async def test_what_a_router_is_configured_with_holds_for_its_models() -> None:
    model = ScriptedModel(default="Yes.", max_tokens=10)
    router = ProviderRouter({"only": model}, temperature=0.5, stop_sequences=["END"])
    async for _ in router.stream([user_message("Well?")]):
        pass
    config = model.requests[0].config
    assert (config.temperature, config.stop_sequences, config.max_tokens) == (0.5, ["END"], 10)


@pytest.mark.spec("D-9", "R-1")
async def test_a_wrong_parameter_is_refused_with_its_name() -> None:
    router = ProviderRouter({"only": ScriptedModel(default="Yes.")})
    with pytest.raises(AgentError, match="temperature"):
        router.stream([user_message("Well?")], temperature=9)


@pytest.mark.spec("R-1", "E-1")
@pytest.mark.parametrize("given", [None, 5, ["nowhere"], []])
async def test_a_policy_that_is_broken_ends_the_run_in_words(given: Any) -> None:
    def policy(_: Any) -> Any:
        if given is None:
            raise KeyError("no such role")
        return given

    stage = Stage()
    agent = agent_on(stage, ProviderRouter({"only": ScriptedModel(default="Yes.")}, policy=policy))
    result = await agent.run("Well?", session=SESSION, check=False)
    assert result.status == "failed" and result.last_error is not None
    assert result.last_error.code == "ConfigInvalid" and "policy" in result.last_error.message


@pytest.mark.spec("E-1", "R-1")
@pytest.mark.parametrize(
    ("given", "words"), [(5, "not a Model or the name of one"), ("nobody:gpt-4o", "nobody")]
)
def test_a_route_is_a_model_or_its_name(given: Any, words: str) -> None:
    assert ProviderRouter({"first": "openai:gpt-4o"}).descriptor
    with pytest.raises(AgentError, match=words) as caught:
        ProviderRouter({"first": given})
    assert caught.value.code in {"ConfigInvalid", "PluginMissing"}


@pytest.mark.spec("R-5", "E-1")
async def test_an_observer_that_fails_is_a_failed_call_and_no_crash() -> None:
    def observer(_: Any) -> None:
        raise ValueError("full")

    stage = Stage()
    agent = agent_on(stage, ProviderRouter({"only": ScriptedModel(default="Yes.")}, observer=observer))
    result = await agent.run("Well?", session=SESSION, check=False)
    assert result.status == "failed" and result.last_error is not None
