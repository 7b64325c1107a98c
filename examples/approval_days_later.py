"""A call waits for a human. The process that asked ends; another one decides; a third goes on with the run.

Run it: `python examples/approval_days_later.py`. It starts itself three times, as three processes that share
nothing but an SQLite file. The model is scripted, so that it runs anywhere; name another to try it with that:
`python examples/approval_days_later.py anthropic:claude-sonnet-4-5`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from turnlog import Agent, tool
from turnlog.history import open_store
from turnlog.loop import pending_calls, record_decision
from turnlog.models import ScriptedModel, Turn

SESSION = "refund-4711"


@tool(requires_approval=True)
def refund(order: str, amount: float) -> str:
    """Pay money back to a customer."""
    print(f"  [the refund tool runs: {amount} for order {order}]")
    return f"refunded {amount} for order {order}"


def make_agent(store: str, model: str, *answers: str | Turn) -> Agent:
    chosen = ScriptedModel(answers) if model == "scripted" else model
    return Agent(chosen, tools=[refund], store=store, instructions="You help customers.")


async def ask(store: str, model: str) -> None:
    """The process that the customer talks to. It does not wait: it ends."""
    call = Turn(tool_calls=[{"name": "refund", "arguments": {"order": "4711", "amount": 80.0}}])
    async with make_agent(store, model, call) as agent:
        result = await agent.run("Order 4711 never came. I want my 80 dollars back.", session=SESSION)
    print(f"  the run is {result.status}; this process ends")


async def decide(store: str, model: str) -> None:
    """Somebody's desk, days later. It knows the store, and neither the agent nor its tools."""
    opened = open_store(store)
    try:
        for waiting in await pending_calls(opened, SESSION):
            print(f"  {waiting.tool_name} {waiting.arguments} waits: {waiting.reason}")
            changed = {**waiting.arguments, "amount": 60.0}
            await record_decision(
                opened, SESSION, waiting.tool_call_id, "modify", by="ann", arguments=changed
            )
            print(f"  ann lets it run with {changed}")
    finally:
        await opened.close()


async def go_on(store: str, model: str) -> None:
    """A worker that takes up what was decided."""
    async with make_agent(store, model, "I have paid back 60 dollars for order 4711.") as agent:
        result = await agent.resume(SESSION)
    assert result is not None
    print(f"  the run is {result.status}: {result.text}")


STEPS = {"ask": ask, "decide": decide, "go-on": go_on}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in STEPS:
        step, store, model = arguments
        asyncio.run(STEPS[step](store, model))
        return 0
    model = arguments[0] if arguments else "scripted"
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:{Path(folder) / 'shop.db'}"
        for step in STEPS:
            print(f"{step}:", flush=True)
            subprocess.run([sys.executable, __file__, step, store, model], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
