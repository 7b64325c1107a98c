"""An agent with a tool on a local model, in an SQLite log: asked, killed, resumed, replayed.

Run it with `make demo`. It needs no key and no network, asks nothing, and takes well under two minutes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import datetime
from pathlib import Path

from turnlog import Agent, AgentError, RunResult, tool
from turnlog.contract import (
    DoneDelta,
    Entry,
    ErrorDelta,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RunEndedEntry,
    ToolResultsEntry,
    ToolStartedEntry,
    events,
)
from turnlog.history import open_store
from turnlog.loop import RunStream, replay

FOLDER = Path(__file__).resolve().parent.parent / ".demo"
STORE = f"sqlite:{os.path.relpath(FOLDER / 'demo.db')}"
BREAK_OFF = "TURNLOG_DEMO_BREAK_OFF"
QUESTION = "What is 1234 times 5678?"
AGAIN = "What is 4321 times 8765?"


@tool(idempotent=True)
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    if BREAK_OFF in os.environ:
        die()
    return a * b


def die() -> None:
    """No cleaning up, no goodbye."""
    if sys.platform != "win32":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(9)


def make_agent() -> Agent:
    return Agent(
        "local",
        model_options={"temperature": 0, "max_tokens": 80, "n_ctx": 2048},
        tools=[multiply],
        tool_choice="required",
        store=STORE,
        instructions="You answer in one short sentence.",
    )


# ── the four steps ──


async def ask(session: str) -> None:
    title("1. A question, answered with a tool")
    async with make_agent() as agent:
        say("you", QUESTION)
        await show(agent.run_stream(QUESTION, session=session))
    note(
        "Honestly: this call was forced. SmolLM2 has 135 million parameters and calls no tool by itself, so",
        "turnlog held its first answer to the schema of the tool (tool_choice='required'). The arguments are",
        "the model's; that it called is not. What it says afterwards is its own, and may be clumsy or wrong.",
    )


async def tell(session: str) -> None:
    title("2. What the log has kept of it")
    show_entries(await load(session))


async def crash_and_resume(session: str) -> None:
    title("3. Another question, and the process dies inside the tool")
    say("you", AGAIN)
    other = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--only-ask", session, env={**os.environ, BREAK_OFF: "1"}
    )
    status = await other.wait()
    last = (await load(session))[-1]
    say("died", f"status {status}, as after kill -9; the last line of the log is {last.seq}, {last.kind}")
    say("resume", f"await agent.resume({session!r}), in this process:")
    async with make_agent() as agent:
        await show(agent.resume_stream(session))
    note(
        "The log said that the tool had started and not what came of it. It is marked idempotent, so it ran",
        "again; a tool without that mark would not have, and the model would have been told so.",
    )


async def replay_it(session: str) -> bool:
    title("4. The whole session again, without model and without tools")
    store = open_store(STORE)
    try:
        report = await replay(store, session)
    finally:
        await store.close()
    if not report.identical:
        say("replay", f"DIFFERENT at entry {report.seq} ({report.kind}):\n{report.difference}")
        return False
    say(
        "replay",
        f"identical: {report.entries} entries of {report.runs} runs and {report.contexts} contexts "
        "that the model saw, compared byte by byte",
    )
    return True


async def demo() -> bool:
    FOLDER.mkdir(exist_ok=True)
    session = f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    print("turnlog: an agent on a model that runs on this machine, and a log of everything it did")
    say("model", "SmolLM2-135M-Instruct, 98 MB, one thread, offline")
    say("store", STORE)
    await ask(session)
    await tell(session)
    await crash_and_resume(session)
    identical = await replay_it(session)
    show_commands(session)
    return identical


# ── showing ──


async def show(run: RunStream) -> None:
    """Print a run while it happens."""
    open_line = False
    async with run:
        async for event in run:
            match event:
                case events.TextDelta(text=text):
                    if not open_line:
                        label("model")
                    print(text, end="", flush=True)
                    open_line = True
                case events.ToolCallDelta():
                    show_call(event)
                    open_line = False
                case events.ModelDelta(delta=DoneDelta() | ErrorDelta()) if open_line:
                    print()
                    open_line = False
                case events.ToolFinished(text=text):
                    say("result", text)
                case events.ErrorShown(error=error):
                    say("error", f"{error.code}: {error.message}")
                case events.RunEnded(result=result):
                    show_end(result)
                case _:
                    pass  # the demo shows the rest from the log


def show_call(event: events.ToolCallDelta) -> None:
    """Print the next piece of a tool call."""
    if event.tool_name is not None:
        label("call")
        print(event.tool_name, end=" ", flush=True)
    elif event.delta.kind == "tool_call_end":
        print()
    else:
        print(event.arguments_text.replace("\n", ""), end="", flush=True)


def show_end(result: RunResult) -> None:
    result.check()
    used = result.usage
    say("run", result.status + (f", {used.input_tokens} tokens in, {used.output_tokens} out" if used else ""))


def show_commands(session: str) -> None:
    title("Look for yourself")
    command = os.path.relpath(Path(sys.executable).with_name("turnlog"))
    for words in (f"show {session}", f"replay {session}", f"chat -m local --session {session}"):
        print(f"  {command} {words} --store {STORE}")


def show_entries(entries: list[Entry]) -> None:
    for entry in entries:
        print(f"  {entry.seq:>6}  {entry.kind:<20}{about(entry)}")


def about(entry: Entry) -> str:
    """A few words on what an entry holds."""
    match entry:
        case ModelInputEntry() | ModelOutputEntry():
            message = entry.payload.message
            calls = [f"{call.payload.tool_name} {call.payload.arguments}" for call in message.tool_calls]
            return "; ".join([*([message.text] if message.text else []), *calls])
        case ToolStartedEntry():
            return f"{entry.payload.tool_name}, written before it ran"
        case ToolResultsEntry():
            return "; ".join(str(part.payload.content) for part in entry.payload.message.tool_results)
        case ModelCallStartedEntry():
            return f"what the model saw has the hash {entry.payload.context_hash[:16]}…"
        case RunEndedEntry():
            return entry.payload.status
        case _:
            return ""


async def load(session: str) -> list[Entry]:
    store = open_store(STORE)
    try:
        return await store.load(session)
    finally:
        await store.close()


def title(text: str) -> None:
    print(f"\n{text}\n", flush=True)


def label(name: str) -> None:
    print(f"  {name:>6}  ", end="", flush=True)


def say(name: str, text: str) -> None:
    label(name)
    print(text, flush=True)


def note(*lines: str) -> None:
    print("".join(f"\n          {line}" for line in lines), flush=True)


async def only_ask(session: str) -> None:
    async with make_agent() as agent:
        await show(agent.run_stream(AGAIN, session=session))


def main() -> int:
    try:
        if sys.argv[1:2] == ["--only-ask"]:
            asyncio.run(only_ask(sys.argv[2]))
            return 0
        return 0 if asyncio.run(demo()) else 1
    except AgentError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped with Ctrl-C; make demo begins anew", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
