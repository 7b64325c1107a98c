"""The runs behind the golden traces. Each takes a fresh agent's parts and leaves a session in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from turnlog import Agent, tool
from turnlog.context import ContextOptions
from turnlog.contract import AgentError, RetryPolicy, Store, ToolPolicy, events
from turnlog.history import MemoryStore
from turnlog.loop import Approvals, fork_session
from turnlog.models import ProviderRouter, by_role
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, Turn
from turnlog.tools import ToolError
from turnlog.widgets import MemoryNotebookWidget, TodoWidget


class MortalStore(MemoryStore):
    """While it is dead nothing reaches the log: what a killed process would still have written is not."""

    dead = False

    async def append(self, *args: Any, **kwargs: Any) -> None:
        if self.dead:
            raise AgentError("SessionWriteFailed", "the process is dead")
        await super().append(*args, **kwargs)


@dataclass
class Stage:
    """A store, a clock and ids that outlive an agent, so that a scenario can start it again."""

    store: Store = field(default_factory=MortalStore)
    clock: FixedClock = field(default_factory=FixedClock)
    ids: FixedIds = field(default_factory=FixedIds)
    effects: list[str] = field(default_factory=list[str])

    def agent(self, turns: list[Any], **options: Any) -> Agent:
        model = ScriptedModel(turns, clock=self.clock, ids=self.ids)
        options.setdefault("instructions", "You are brief.")
        options.setdefault("tools", self.tools())
        return Agent(model, store=self.store, clock=self.clock, ids=self.ids, **options)

    def tools(self) -> list[Any]:
        effects = self.effects

        @tool(timeout=None)
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            effects.append(f"add {a} {b}")
            return a + b

        @tool(concurrent=True, idempotent=True, timeout=None)
        async def look(place: str) -> str:
            """Look at a place."""
            effects.append(f"look {place}")
            await asyncio.sleep(0)
            return f"{place}: all quiet"

        @tool(timeout=None)
        async def divide(a: float, b: float) -> float:
            """Divide a by b."""
            if b == 0:
                raise ToolError("b is 0; nothing can be divided by it")
            return a / b

        @tool(timeout=None)
        async def wait(what: str) -> str:
            """Wait for something that does not come."""
            effects.append(f"wait {what}")
            await asyncio.Event().wait()
            return "never"

        @tool(requires_approval=True, timeout=None)
        async def send(to: str, text: str) -> str:
            """Send a message."""
            effects.append(f"send {to}: {text}")
            return f"sent to {to}"

        return [add, look, divide, wait, send]


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


SESSION = "s1"


async def no_tool(stage: Stage) -> None:
    await stage.agent(["Hello there."]).run("Say hello.", session=SESSION)


async def one_tool(stage: Stage) -> None:
    agent = stage.agent([Turn(tool_calls=[call("add", a=19, b=23)]), "It is 42."])
    await agent.run("What is 19 + 23?", session=SESSION)


async def several_in_sequence(stage: Stage) -> None:
    agent = stage.agent(
        [
            Turn(text="First the sum.", tool_calls=[call("add", a=1, b=2), call("add", a=3, b=4)]),
            Turn(thinking="now the rest", tool_calls=[call("divide", a=10, b=4)]),
            "3, 7 and 2.5.",
        ]
    )
    await agent.run("Sums and a division.", session=SESSION)


async def several_in_parallel(stage: Stage) -> None:
    calls = [call("look", place=place) for place in ("north", "east", "south")]
    agent = stage.agent([Turn(tool_calls=calls), "All quiet."], tool_policy=ToolPolicy(max_parallel=3))
    await agent.run("Look around.", session=SESSION)


async def tool_fails(stage: Stage) -> None:
    agent = stage.agent(
        [
            Turn(tool_calls=[call("divide", a=1, b=0)]),
            Turn(tool_calls=[{"name": "divide", "raw_args": '{"a": 1, "b": '}, call("nowhere")]),
            Turn(tool_calls=[call("add", a="one", b=2)]),
            "It cannot be done.",
        ]
    )
    await agent.run("Divide one by zero.", session=SESSION)


async def abort_mid_stream(stage: Stage) -> None:
    agent = stage.agent(["A long answer that nobody waits for."])
    async for event in agent.run_stream("Tell me everything.", session=SESSION):
        if isinstance(event, events.TextDelta):
            await agent.abort(event.run_id, "the user left")
    await stage.agent(["Here I am."]).run("Are you there?", session=SESSION)


async def abort_mid_tool(stage: Stage) -> None:
    agent = stage.agent(
        [Turn(tool_calls=[call("add", a=1, b=1), call("wait", what="rain"), call("look", place="sky")])]
    )
    stream = agent.run_stream("Wait for the rain.", session=SESSION)
    async for event in stream:
        if event.kind == "tool_started" and event.tool_name == "wait":
            asyncio.get_running_loop().call_later(0.01, _abort, agent)
    await stage.agent(["It stayed dry."]).run("And?", session=SESSION)


def _abort(agent: Agent) -> None:
    agent.loop.sessions.runs[SESSION].scope.request(AgentError("RunAborted", "the user left"))


async def crash_and_resume(stage: Stage) -> None:
    """Stopped dead after a tool had started: nothing more reaches the log until it is resumed."""
    first = stage.agent([Turn(tool_calls=[call("look", place="sea"), call("send", to="ann", text="hi")])])
    await die_at(first, "tool_started", "Look at the sea and tell Ann.")
    second = stage.agent(
        ["The sea is quiet; Ann was not told."], approvals=Approvals(handler=lambda request: "deny")
    )
    await second.resume(SESSION)


async def crash_with_unknown_outcome(stage: Stage) -> None:
    first = stage.agent([Turn(tool_calls=[call("add", a=1, b=2)])])
    await die_at(first, "tool_started", "Add.")
    await stage.agent(["I do not know."]).resume(SESSION)


async def die_at(agent: Agent, kind: str, text: str) -> None:
    """Drive a run until an event of ``kind``, then stop the way a killed process does: without a word."""
    store = agent.store
    assert isinstance(store, MortalStore)
    async with aclosing(agent.run_stream(text, session=SESSION)) as stream:
        async for event in stream:
            if event.kind == kind:
                break
        store.dead = True
    store.dead = False


async def forked(stage: Stage) -> None:
    agent = stage.agent([Turn(tool_calls=[call("add", a=2, b=2)]), "Four."])
    await agent.run("2 + 2?", session="parent")
    entries = await stage.store.load("parent")
    at = next(entry.seq for entry in entries if entry.kind == "tool_started")
    await fork_session(stage.store, "parent", at=at, target=SESSION, clock=stage.clock, ids=stage.ids)
    await stage.agent(["Still four, I think."]).run("Are you sure?", session=SESSION)


async def approved(stage: Stage) -> None:
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    result = await agent.run("Greet Bob.", session=SESSION, check=False)
    assert result.status == "awaiting_human"
    await decide(agent, "approve")
    await agent.resume(SESSION)


async def denied(stage: Stage) -> None:
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Then not."])
    await agent.run("Greet Bob.", session=SESSION)
    await decide(agent, "deny", note="not now")
    await agent.resume(SESSION)


async def modified(stage: Stage) -> None:
    agent = stage.agent([Turn(tool_calls=[call("send", to="bob", text="hello")]), "Bob knows."])
    await agent.run("Greet Bob.", session=SESSION)
    await decide(agent, "modify", arguments={"to": "bob", "text": "good evening"})
    await agent.resume(SESSION)


async def two_providers(stage: Stage) -> None:
    """One plans, another acts: the same session, calls and results in step."""
    planner = ScriptedModel(["Look first, then add."], model_id="planner-1", clock=stage.clock, ids=stage.ids)
    turns = [
        Turn(thinking="as planned", tool_calls=[call("look", place="sea"), call("add", a=1, b=2)]),
        "Done.",
    ]
    executor = ScriptedModel(turns, model_id="executor-1", clock=stage.clock, ids=stage.ids)
    router = ProviderRouter(
        {"plan": planner, "act": executor},
        policy=by_role({"planner": "plan", "executor": "act"}),
        clock=stage.clock,
        ids=stage.ids,
    )
    agent = Agent(
        router,
        tools=stage.tools(),
        store=stage.store,
        clock=stage.clock,
        ids=stage.ids,
        widgets=[TodoWidget()],
    )
    await agent.run("Make a plan.", session=SESSION, role="planner")
    await agent.run("Do it.", session=SESSION, role="executor")


async def router_failover(stage: Stage) -> None:
    """The first provider is down before it says a word; after content was shown the call is made again."""
    down = ScriptedModel(
        [Turn(error={"code": "ModelOverloaded", "message": "busy", "retry_after": 20.0})],
        model_id="first-1",
        clock=stage.clock,
        ids=stage.ids,
    )
    cut = ScriptedModel(
        [Turn(text="Half of an answer", cut=True), "The whole answer."],
        model_id="second-1",
        clock=stage.clock,
        ids=stage.ids,
    )
    router = ProviderRouter({"first": down, "second": cut}, clock=stage.clock, ids=stage.ids)
    agent = Agent(router, store=stage.store, clock=stage.clock, ids=stage.ids, retry=RetryPolicy(jitter=0.0))
    await agent.run("Answer me.", session=SESSION)


async def overflow(stage: Stage) -> None:
    """The provider refuses the prompt; a fold makes it fit and the call is made again."""
    long = "The harbour master wrote: " + " ".join(f"ship-{n} berth-{n * 7}" for n in range(1500))

    @tool(timeout=None)
    async def read_log(day: int) -> str:
        """Read a day's log."""
        return f"day {day}\n{long}"

    turns = [
        Turn(tool_calls=[call("read_log", day=1)]),
        Turn(tool_calls=[call("read_log", day=2)]),
        Turn(error={"code": "ModelContextOverflow", "message": "prompt is too long"}),
        "Two days read.",
    ]
    agent = stage.agent(turns, tools=[read_log], context=ContextOptions(preview_at=100_000))
    await agent.run("Read the logs.", session=SESSION)


async def notebook_over_a_fold(stage: Stage) -> None:
    """What was noted is shown again, whole, after a fold has shortened everything around it."""
    words = " ".join(f"crate-{n} weighs {n * 3}" for n in range(600))

    @tool(timeout=None)
    async def stock(hall: int) -> str:
        """Read the stock of a hall."""
        return f"hall {hall}: {words}"

    note = call("notebook_write", name="code", text="the gate opens with 7-4-1")
    turns = [
        Turn(tool_calls=[note, call("stock", hall=1)]),
        Turn(tool_calls=[call("stock", hall=2)]),
        Turn(tool_calls=[call("stock", hall=3)]),
        "Three halls.",
        "7-4-1.",
    ]
    agent = stage.agent(
        turns,
        tools=[stock],
        widgets=[MemoryNotebookWidget()],
        context=ContextOptions(preview_at=100_000, fold_at=9_000, min_freed_tokens=500),
    )
    await agent.run("Count the stock, and remember the code 7-4-1.", session=SESSION)
    await agent.run("What was the code?", session=SESSION)


async def decide(agent: Agent, action: str, **more: Any) -> None:
    entries = await agent.store.load(SESSION)
    asked = [entry for entry in entries if entry.kind == "approval_requested"][-1]
    await agent.decide(SESSION, asked.payload.tool_call_id, action, by="carol", **more)


@dataclass
class Invoice:
    number: int
    dollars: float


async def structured_output(stage: Stage) -> None:
    """The first answer has no amount; the second one has."""
    agent = stage.agent(['{"number": 1042}', '{"number": 1042, "dollars": 99.5}'], output_type=Invoice)
    await agent.run("Invoice 1042 is over 99.50 dollars.", session=SESSION)


TRACES: dict[str, tuple[str, Callable[[Stage], Awaitable[None]]]] = {
    "G-1": ("no_tool", no_tool),
    "G-2": ("one_tool", one_tool),
    "G-3": ("several_in_sequence", several_in_sequence),
    "G-4": ("several_in_parallel", several_in_parallel),
    "G-5": ("tool_fails", tool_fails),
    "G-6": ("approved", approved),
    "G-7": ("denied", denied),
    "G-8": ("modified", modified),
    "G-9": ("overflow", overflow),
    "G-10": ("abort_mid_stream", abort_mid_stream),
    "G-11": ("abort_mid_tool", abort_mid_tool),
    "G-12": ("crash_and_resume", crash_and_resume),
    "G-13": ("two_providers", two_providers),
    "G-14": ("notebook_over_a_fold", notebook_over_a_fold),
    "G-15": ("router_failover", router_failover),
    "G-16": ("structured_output", structured_output),
    "G-17": ("forked", forked),
}
