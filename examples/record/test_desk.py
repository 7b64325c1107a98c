"""A test that asks a model once and is answered from `recordings/` ever after: no network, no key.

Run it: `pytest examples/record`. Change the prompt, the tool or the question, and the test fails and says
which of them it was; if the change is meant, record again: `pytest examples/record --turnlog-record=all`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnlog import Agent, tool
from turnlog.models import Model, ScriptedModel, Turn

if TYPE_CHECKING:
    from turnlog.testing.pytest_plugin import Recorded

# Put the name of a real model here, such as "anthropic:claude-sonnet-4-5". It is asked only to record.
MODEL = ScriptedModel(
    [
        Turn(tool_calls=[{"name": "forecast", "arguments": {"city": "Rome"}}]),
        "Take sunglasses: it is sunny in Rome.",
    ]
)


@tool
def forecast(city: str) -> str:
    """The weather of tomorrow."""
    return f"{city}: sunny, 24 degrees"


def build_desk(model: Model) -> Agent:
    return Agent(model, instructions="You pack suitcases.", tools=[forecast], store="memory:")


def test_it_looks_at_the_weather_before_it_packs(recorded: Recorded) -> None:
    desk = build_desk(recorded("recordings/rome.jsonl", model=MODEL))
    result = desk.run_sync("What do I need in Rome tomorrow?")
    assert "sunglasses" in result.text
