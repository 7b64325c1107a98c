"""What it costs to begin: importing the package, and opening a long session up to its next request."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time

import httpx2

from turnlog import Agent, tool
from turnlog.context import ContextInput, ModelContext, ProjectionContext
from turnlog.contract import (
    Entry,
    Message,
    ModelInvocationDescriptor,
    ModelOutput,
    Store,
    ToolCall,
    ToolCallPart,
    ToolOutcome,
    ToolResults,
    ToolStarted,
    decode,
    tool_result_part,
    user_message,
)
from turnlog.history import Session, open_store
from turnlog.loop._folds import Folds
from turnlog.models import ModelRequest, ScriptedModel, Turn
from turnlog.models.openai_chat import OpenAIChatModel
from turnlog.system import SystemClock, SystemIds

TURNS = 5_000
RUNS = 2_222
"""Nine entries each."""
TARGET = ModelInvocationDescriptor(provider_id="openai", specification="openai-chat", model="gpt-4.1")


def import_cost() -> tuple[float, float]:
    """CPU ms of ``import turnlog`` and of the five-line agent's imports, above a bare interpreter.

    With compiled files at hand, as an installer leaves them: they are made in a folder of their own first,
    whatever this environment says about writing them.
    """
    with tempfile.TemporaryDirectory() as compiled:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = compiled

        def cpu(code: str) -> float:
            wrapped = f"import time,sys; {code}; sys.stdout.write(str(time.process_time()))"
            command = [sys.executable, "-c", wrapped]
            runs = [
                float(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)
                for _ in range(10)
            ]
            return min(runs[1:]) * 1e3

        bare = cpu("pass")
        return cpu("import turnlog") - bare, cpu("from turnlog import Agent, tool, load_model") - bare


async def work(url: str) -> None:
    """A session as agents make it: run after run, folded when it is due."""
    answered = 0

    def answer(_: ModelRequest) -> Turn:
        nonlocal answered
        answered += 1
        if answered % 2:
            return Turn(tool_calls=[{"name": "look", "arguments": {"place": f"room {answered}"}}])
        return Turn(text=f"In room {answered} there are books, maps and a lamp.")

    @tool
    def look(place: str) -> str:
        """Look at a place."""
        return f"In {place} there are books, maps and a lamp. " * 4

    async with Agent(ScriptedModel(default=answer), tools=[look], store=url) as agent:
        for number in range(RUNS):
            await agent.run(f"What is in room {number}? Tell me about all of it, please.", session="worked")


async def fill(store: Store) -> None:
    """The same length by hand, and never folded: every entry is in the next request."""
    session = await Session.open(store, "whole", clock=SystemClock(), ids=SystemIds())
    ids = SystemIds()
    for turn in range(TURNS):
        call = ToolCall(
            tool_call_id=ids.call(),
            tool_name="look",
            arguments={"place": f"room {turn}", "detail": "everything on the shelves"},
            raw_args_text='{"place": "room", "detail": "everything on the shelves"}',
        )
        session.append_model_input(user_message(f"What is in room {turn}? Tell me about all of it, please."))
        session.append_model_output(
            ModelOutput(
                message=Message(
                    run_id="r", role="assistant", parts=[ToolCallPart(payload=call)], timestamp=""
                ),
                invocation=TARGET,
                model_call_index=1,
                attempt=1,
                finish_reason="tool_calls",
            )
        )
        session.start_tool(
            ToolStarted(
                tool_call_id=call.tool_call_id, tool_name="look", idempotency_key="k", args_digest="d"
            )
        )
        result = tool_result_part(call.tool_call_id, f"In room {turn} there are books, maps and a lamp. " * 4)
        session.append_tool_results(
            ToolResults(
                message=Message(run_id="r", role="tool", parts=[result], timestamp=""),
                outcomes=[ToolOutcome(tool_call_id=call.tool_call_id, tool_name="look", status="success")],
            )
        )
        if turn % 100 == 99:
            await session.commit()
    await session.commit()


async def open_and_ask(url: str, name: str) -> tuple[float, float, float, int]:
    """CPU ms of decoding the rows, and of opening the session and making the next request's body, each the
    best of several rounds; the middle one of the rounds' ratios; and the number of rows. Garbage is collected
    before each, so that neither pays for what the other left."""
    store = open_store(url)
    rows: list[bytes] = []
    ratios: list[float] = []
    decoding, opening = float("inf"), float("inf")
    for _ in range(7):
        gc.collect()
        start = time.process_time()
        rows = [stored.body for stored in await store.read(name)]
        kept = [decode(body, Entry) for body in rows]
        plain = time.process_time() - start
        del kept
        gc.collect()
        start = time.process_time()
        session = await Session.open(store, name, clock=SystemClock(), ids=SystemIds())
        folds = Folds(session, ProjectionContext)
        context = folds.context.build_context(ContextInput(target=TARGET, plan=False)).context
        body = await request_body(context)
        ours = time.process_time() - start
        assert len(body) > 50_000
        ratios.append(ours / plain)
        decoding, opening = min(decoding, plain), min(opening, ours)
        del session, folds, context, body
    await store.close()
    return decoding * 1e3, opening * 1e3, statistics.median(ratios), len(rows)


async def request_body(context: ModelContext) -> bytes:
    """The bytes the adapter sends for this context, caught at the transport."""
    caught: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        caught.append(request.content)
        return httpx2.Response(400, json={"error": {"message": "enough"}})

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    model = OpenAIChatModel("gpt-4.1", api_key="none", client=client)
    async for _ in model.stream(context.messages, context.tool_specs, context.system_prompt):
        pass
    await client.aclose()
    return caught[0]


def rows() -> list[tuple[str, str, str]]:
    plain, agent = import_cost()
    found = [
        ("import turnlog, above a bare interpreter", f"{plain:.0f} ms", "≤ 60 ms"),
        ("  from turnlog import Agent, tool, load_model", f"{agent:.0f} ms", ""),
    ]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:{folder}/long.db"
        asyncio.run(make_sessions(url))
        for name, words in (("worked", "an agent's session"), ("whole", "one that was never folded")):
            decoding, opening, ratio, count = asyncio.run(open_and_ask(url, name))
            found += [
                (f"{words}: read and decode {count:,} entries", f"{decoding:.0f} ms", ""),
                ("  open it and build the next request", f"{opening:.0f} ms", ""),
                ("  ratio", f"{ratio:.2f}x", "≤ 1.5x"),
            ]
    return found


async def make_sessions(url: str) -> None:
    await work(url)
    async with open_store(url) as store:
        await fill(store)


if __name__ == "__main__":
    for name, figure, goal in rows():
        print(f"{name:<52} {figure:>12}   {goal}")
