"""``mcp``: an agent served to MCP clients, and the files of servers that the user trusts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from turnlog.mcp import MCPServers, serve_http, serve_stdio
from turnlog.system import TrustStore

from ._agent import MODULE, ask_for_trust, load_agent
from ._app import err, json_option, out, write_json
from ._text import plain, safe


@click.group("mcp", invoke_without_command=True)
@click.option("--agent", "-a", "agent_name", metavar="MODULE:NAME", type=MODULE, help="The agent to serve.")
@click.option(
    "--http", "port", metavar="PORT", type=click.IntRange(1, 65535), help="Serve over HTTP instead."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address that HTTP listens on.")
@click.option("--description", metavar="TEXT", help="What the agent is good for, for the clients' models.")
@click.pass_context
def mcp_command(
    ctx: click.Context, agent_name: str | None, port: int | None, host: str, description: str | None
) -> None:
    """Serve an agent to MCP clients, over standard input and output: its one tool asks the agent, and each
    conversation is a session in the agent's store. Or look after the files of servers that you trust."""
    if ctx.invoked_subcommand is not None:
        return
    if agent_name is None:
        raise click.UsageError("name the agent to serve with --agent, or use trust, forget or list")
    agent = load_agent(agent_name)
    if port is not None:
        err.print(f"[dim]{safe(agent.name)} at http://{safe(host)}:{port}/mcp[/]")
        asyncio.run(serve_http(agent, host, port, description))
    else:
        asyncio.run(serve_stdio(agent, description))


@mcp_command.command("trust", short_help="Trust a file of servers as it is now.")
@click.argument("file", type=click.Path(dir_okay=False, exists=True), default=".mcp.json")
@click.option("--yes", is_flag=True, help="Trust it without a question.")
def trust_command(file: str, yes: bool) -> None:
    """Trust the servers that FILE names, as it is now; when it changes it has to be trusted again."""
    MCPServers.from_file(file, trust=lambda question: yes or ask_for_trust(question))
    out.print(f"{safe(file)} is trusted as it is now")


@mcp_command.command("forget", short_help="Trust a file of servers no longer.")
@click.argument("file", type=click.Path(readable=False), default=".mcp.json")
def forget_command(file: str) -> None:
    """Trust the servers that FILE names no longer."""
    known = TrustStore().forget("mcp", file)
    out.print(f"{safe(file)} {'is trusted no longer' if known else 'was not trusted'}")


@mcp_command.command("list", short_help="List the files of servers that you trust.")
@json_option
def list_command(as_json: bool) -> None:
    """List the files of servers that you trust."""
    store = TrustStore()
    found = [one for one in store.entries() if one.kind == "mcp"]
    if not found and not as_json:
        words = f"no servers are trusted in {store.path}; trust those of a file with: turnlog mcp trust FILE"
        err.print(plain(words), markup=False)
    for one in found:
        if as_json:
            write_json({"path": one.path, "hash": one.hash})
        else:
            changed = "" if _is_same(one.path) else " (changed since)"
            out.print(plain(f"{one.path}{changed}"), markup=False)


def _is_same(path: str) -> bool:
    try:
        return TrustStore().trusted("mcp", path, Path(path).read_bytes())
    except OSError:
        return False
