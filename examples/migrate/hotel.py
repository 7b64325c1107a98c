"""The agent that takes the conversation over, and that the tests run."""

from __future__ import annotations

from turnlog import Agent, tool
from turnlog.contract import Store
from turnlog.models import Model


@tool(idempotent=True)
def find_room(hotel: str) -> str:
    """Look for a free room."""
    return "one room, 300 dollars"


@tool(requires_approval=True)
def book(hotel: str) -> str:
    """Book a room."""
    return f"the {hotel} is booked"


def make_agent(model: Model | str, store: Store | str) -> Agent:
    return Agent(model, tools=[find_room, book], store=store, instructions="You book hotels.")
