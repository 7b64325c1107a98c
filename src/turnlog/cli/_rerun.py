"""``rerun``: what if."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal, cast

import click

from turnlog.contract import AgentError, JsonObject, ToolsChangeEntry
from turnlog.history import open_store
from turnlog.loop import Agent, RerunOptions, Tool

from ._agent import agent_option, load_agent
from ._app import FAILED, err, json_option, out, session_argument, store_option, store_url_of, write_json
from ._text import plain, safe


@click.command("rerun")
@session_argument
@click.option(
    "--at", type=int, required=True, metavar="N", help="An entry of the step, as 'show' numbers them."
)
@agent_option
@click.option("--model", "-m", metavar="NAME", help="Another model from there on.")
@click.option("--instructions", "-i", metavar="TEXT", help="Another system prompt from there on.")
@click.option("--text", metavar="TEXT", help="Other words of the user; N is what a run was asked.")
@click.option("--result", metavar="TEXT", help="Another result of the tool at N.")
@click.option("--arguments", metavar="JSON", help="Other arguments of the call at N.")
@click.option(
    "--tools",
    type=click.Choice(["recorded", "ask", "live"]),
    default="recorded",
    show_default=True,
    help="Calls that the recording does not answer: end the run, ask, or run them.",
)
@click.option("--to", "target", metavar="ID", help="Name of the branch.")
@click.option("--dry-run", is_flag=True, help="Only tell what would happen, with the first call's cost.")
@store_option
@json_option
def rerun_command(
    session: str,
    at: int,
    agent_name: str | None,
    model: str | None,
    instructions: str | None,
    text: str | None,
    result: str | None,
    arguments: str | None,
    tools: str,
    target: str | None,
    dry_run: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Run on from a step of SESSION with something changed, in a branch, and show the two side by side.

    Calls of the same tool with the same arguments get their recorded results; nothing is run for them.
    Without --agent the tools are those of the recording, and --model names who answers.
    """
    changed = _read_arguments(arguments)
    if agent_name is None and model is None:
        raise click.UsageError("name the agent with --agent, or a model with --model")
    if agent_name is None and tools == "live":
        raise click.UsageError("--tools live needs the tools of an agent; name it with --agent")
    if agent_name is not None and store_url is not None:
        raise click.UsageError("--agent loads an agent with its own store; leave out --store")

    async def work() -> bool:
        agent = (
            load_agent(agent_name)
            if agent_name
            else await _recorded_agent(session, cast("str", model), store_url)
        )
        async with agent:
            past = agent.session(session)
            change: RerunOptions = {
                "model": model if agent_name else None,
                "instructions": instructions,
                "text": text,
                "result": result,
                "arguments": changed,
                "tools": cast("Literal['recorded', 'ask', 'live']", tools),
                "session": target,
            }
            if dry_run:
                preview = await past.preview_rerun(at, **change)
                if as_json:
                    write_json(preview)
                else:
                    out.print(plain(preview.text), markup=False)
                return True
            branch = await past.rerun(at, **change)
            compared = await past.compare(branch)
            state = await branch.state()
            if as_json:
                write_json(compared)
            else:
                out.print(plain(compared.text), markup=False)
                error = f": {safe(state.last_error.message)}" if state.last_error is not None else ""
                err.print(f"[dim]branch[/] {safe(branch.session_id)} [dim]is {state.status}{error}[/]")
            return state.status in ("completed", "awaiting_human")

    if not asyncio.run(work()):
        sys.exit(FAILED)


def _read_arguments(text: str | None) -> JsonObject | None:
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint="--arguments") from error
    if not isinstance(found, dict):
        raise click.BadParameter("arguments are a JSON object", param_hint="--arguments")
    return cast("JsonObject", found)


async def _recorded_agent(session: str, model: str, store_url: str | None) -> Agent:
    """An agent with the tools that the session last offered; none of them can run."""
    url = store_url_of(store_url)
    store = open_store(url)
    try:
        entries = await store.load(session)
    finally:
        await store.close()
    offered = [entry for entry in entries if isinstance(entry, ToolsChangeEntry)]
    specs = offered[-1].payload.tools if offered else []

    async def refuse(arguments: JsonObject, ctx: Any) -> str:
        raise AgentError("ToolNotFound", "this tool is known from the recording alone")

    built_in = ("recall", "read_artifact")
    made = [
        Tool.from_schema(spec.name, spec.description, spec.parameter_schema, refuse)
        for spec in specs
        if spec.name not in built_in
    ]
    return Agent(model, tools=made, store=url)
