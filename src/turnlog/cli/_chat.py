"""``turnlog chat`` and ``turnlog run``: talk to an agent."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from turnlog.contract import RunEndedEvent, RunEvent, RunResult, encode
from turnlog.loop import Agent, load_config

from ._app import json_option, out, store_option, store_url_of
from ._render import EventPrinter


def agent_options(command: Any) -> Any:
    for option in (
        click.option("--model", "-m", metavar="NAME", help="local, openai:…, anthropic:…, google:…"),
        click.option(
            "--session", "-s", metavar="ID", help="Go on with this session, or give a new one a name."
        ),
        click.option("--instructions", "-i", metavar="TEXT", help="The system prompt."),
        click.option(
            "--tools",
            "-t",
            "tool_modules",
            multiple=True,
            metavar="MODULE",
            help="Python module or file with @tool functions.",
        ),
        click.option(
            "--config", metavar="FILE", type=click.Path(dir_okay=False), help="Agent configuration, TOML."
        ),
        click.option("--base-url", metavar="URL", help="Address of a compatible server."),
        store_option,
        json_option,
    ):
        command = option(command)
    return command


@click.command("chat")
@agent_options
def chat_command(**options: Any) -> None:
    """Talk to an agent. Ctrl-C stops the answer and keeps the session; Ctrl-D leaves."""
    asyncio.run(_chat(**options))


@click.command("run")
@click.argument("text")
@click.option(
    "--tool-choice", metavar="NAME", help="auto, none, required, or the name of a tool: must be called first."
)
@agent_options
def run_command(text: str, tool_choice: str | None, **options: Any) -> None:
    """Ask one question. TEXT may be - for standard input."""
    if text == "-":
        text = sys.stdin.read()
    result = asyncio.run(_run_once(text, tool_choice, **options))
    if result is None or result.status != "completed":
        sys.exit(130 if result is not None and result.status == "aborted" else 1)


def make_agent(
    model: str | None,
    instructions: str | None,
    tool_modules: tuple[str, ...],
    config: str | None,
    base_url: str | None,
    store_url: str | None,
) -> Agent:
    loaded = load_config(config) if config else None
    name = model or (loaded.model if loaded else None) or "local"
    tools = [tool for module in tool_modules for tool in load_tools(module)]
    return Agent(
        name,
        model_options={"base_url": base_url} if base_url else None,
        tools=tools,
        store=store_url_of(store_url or (loaded.store if loaded else None)),
        instructions=instructions,
        config=loaded,
    )


def load_tools(name: str) -> list[Any]:
    """All tools of a module, named with dots or as a file."""
    from turnlog.loop import Tool

    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise click.BadParameter(f"there is no file {name}", param_hint="--tools")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise click.BadParameter(f"there is no module {name}", param_hint="--tools") from error
    found = [value for value in vars(module).values() if isinstance(value, Tool)]
    if not found:
        raise click.BadParameter(f"{name} has no function marked with @tool", param_hint="--tools")
    return found


async def _run_once(
    text: str, tool_choice: str | None, session: str | None, as_json: bool, **options: Any
) -> RunResult | None:
    agent = make_agent(**options)
    try:
        choice: Any = tool_choice
        if tool_choice not in (None, "auto", "none", "required"):
            from turnlog.contract import SpecificTool

            choice = SpecificTool(name=str(tool_choice))
        events = agent.run_stream(text, session=session, tool_choice=choice)
        return await _watch(agent, events, as_json, new=session is None)
    finally:
        await agent.close()


async def _chat(session: str | None, as_json: bool, **options: Any) -> None:
    agent = make_agent(**options)
    session = session or agent.ids.session()
    interactive = sys.stdin.isatty() and not as_json
    try:
        if interactive:
            out.print(f"[dim]session {session} · {agent.model.descriptor.model} · Ctrl-D leaves[/]")
        await _finish_open_run(agent, session, as_json)
        while True:
            line = await asyncio.to_thread(_read_line, interactive)
            if line is None:
                break
            if line.strip():
                await _watch(agent, agent.run_stream(line, session=session), as_json)
        if interactive:
            out.print(f"[dim]kept as {session}: turnlog chat --session {session}[/]")
    finally:
        await agent.close()


async def _finish_open_run(agent: Agent, session: str, as_json: bool) -> None:
    """Go on where a crash stopped the session, before anything new is said."""
    if await agent.store.tail(session) is None:
        return
    await _watch(agent, agent.resume_stream(session), as_json, note="going on where it stopped")


def _read_line(interactive: bool) -> str | None:
    if interactive:
        try:
            return input("> ")
        except (EOFError, KeyboardInterrupt):
            return None
    return sys.stdin.readline() or None


async def _watch(
    agent: Agent,
    events: AsyncGenerator[RunEvent, None],
    as_json: bool,
    *,
    note: str | None = None,
    new: bool = False,
) -> RunResult | None:
    """Print a run as it happens. Ctrl-C aborts the run; the session stays."""
    printer = EventPrinter(out)
    loop = asyncio.get_running_loop()
    result: RunResult | None = None
    run_id: str | None = None

    def stop() -> None:
        if run_id is not None:
            task = loop.create_task(agent.abort(run_id, "stopped with Ctrl-C"))
            task.add_done_callback(lambda _: None)

    _on_interrupt(loop, stop)
    try:
        async with aclosing(events):
            async for event in events:
                if run_id is None and note and not as_json:
                    out.print(f"[dim]{note}[/]")
                run_id = event.run_id
                if as_json:
                    sys.stdout.write(encode(event).decode() + "\n")
                    sys.stdout.flush()
                else:
                    printer.show(event)
                if isinstance(event, RunEndedEvent):
                    result = event.payload.result
    finally:
        _on_interrupt(loop, None)
    if new and result is not None and not as_json:
        out.print(f"[dim]session {result.session_id}[/]")
    return result


def _on_interrupt(loop: asyncio.AbstractEventLoop, action: Any) -> None:
    try:
        if action is None:
            loop.remove_signal_handler(signal.SIGINT)
        else:
            loop.add_signal_handler(signal.SIGINT, action)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # Windows, or not the main thread: Ctrl-C is then an ordinary KeyboardInterrupt
