"""Two models, one session: one plans, the other does. A router sends each run to the model of its role.

Run it: `python examples/planner_executor.py`. With the small local model installed, the two are servers of
their own on this machine, and the executor is spoken to in another provider's protocol than the planner: the
history that one wrote is read by the other. (A model of that size plans badly; look at the plumbing.) Without
it, or with `--scripted`, both are scripted.
"""

from __future__ import annotations

import asyncio
import sys

from turnlog import Agent, AgentError, load_model, tool
from turnlog.contract import ModelCallStartedEntry
from turnlog.models import Model, ProviderRouter, RouterNotice, ScriptedModel, Turn, by_role

TASK = "What is 86400 times 7?"


@tool(idempotent=True)
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def make_models(scripted: bool) -> dict[str, Model]:
    if not scripted:
        try:
            # Other windows, so that they are two servers and not one.
            return {
                "planner": load_model("local", n_ctx=2048, temperature=0, max_tokens=60),
                "executor": load_model(
                    "local", n_ctx=4096, temperature=0, max_tokens=60, protocol="messages"
                ),
            }
        except AgentError as error:
            print(f"scripted models instead of local ones: {error.message}")
    call = Turn(tool_calls=[{"name": "multiply", "arguments": {"a": 86400, "b": 7}}])
    return {
        "planner": ScriptedModel("Multiply 86400 by 7.", model_id="thinker"),
        "executor": ScriptedModel([call, "It is 604800."], model_id="worker"),
    }


def watch(notice: RouterNotice) -> None:
    if notice.kind == "choice":
        print(f"  [{notice.route} answers: {notice.reason}]")


async def main(scripted: bool) -> int:
    router = ProviderRouter(
        make_models(scripted),
        policy=by_role({"planner": "planner", "executor": "executor"}, default="executor"),
        observer=watch,
    )
    async with Agent(router, tools=[multiply], store="memory:") as agent:
        plan = await agent.run(
            f"{TASK} Do not answer: say in one sentence how to find out.",
            session="s1",
            role="planner",
            tool_choice="none",
        )
        print(f"plan: {plan.text.strip()}")
        done = await agent.run(TASK, session="s1", role="executor", tool_choice="required")
        print(f"done: {done.text.strip()}")
        print("in the log:")
        for entry in await agent.store.load("s1"):
            if isinstance(entry, ModelCallStartedEntry):
                target = entry.payload.target
                print(f"  {entry.seq:>3} {target.model} ({target.specification}), {entry.payload.reason}")
    await router.close()
    return 0 if plan.status == done.status == "completed" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--scripted" in sys.argv[1:])))
