"""``serve``: the server of an agent, or of a store that is only looked at."""

from __future__ import annotations

import asyncio
import os
import webbrowser

import click

from turnlog.contract import AgentError
from turnlog.history import open_store

from ._agent import agent_option, load_agent
from ._app import err, store_option, store_url_of, write_json
from ._text import safe


@click.command("serve")
@agent_option
@store_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8484, show_default=True, help="0 takes a free one."
)
@click.option(
    "--token",
    metavar="TEXT",
    help="What clients must send; default $TURNLOG_TOKEN, or a new one at each start.",
)
@click.option("--no-token", is_flag=True, help="Let everybody in who reaches the port of this machine.")
@click.option("--open", "open_page", is_flag=True, help="Open the timeline in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the address and the token as a line of JSON.")
def serve_command(
    agent_name: str | None,
    store_url: str | None,
    host: str,
    port: int,
    token: str | None,
    no_token: bool,
    open_page: bool,
    as_json: bool,
) -> None:
    """Show sessions in a browser: the timeline, what the model saw, approvals, branches. With --agent also
    run them: start, resume, send, abort.

    The address it prints holds the token; whoever has it can do what you can.
    """
    if agent_name is not None and store_url is not None:
        raise click.UsageError("--agent loads an agent with its own store; leave out --store")
    if no_token and token is not None:
        raise click.UsageError("--token and --no-token exclude each other")
    if no_token and host not in ("127.0.0.1", "::1", "localhost"):
        raise click.UsageError(f"--no-token is for this machine alone, and --host is {host}")
    try:
        from turnlog.server import serve
    except ImportError as error:
        raise AgentError(
            "PluginMissing", f"serve needs the extra 'server': pip install 'turnlog[server]' ({error})"
        ) from error

    def ready(address: str, shown: str | None) -> None:
        link = f"{address}#token={shown}" if shown is not None else address
        if as_json:
            write_json({"address": address, "token": shown})
        err.print(f"turnlog is at [bold]{safe(link)}[/]")
        err.print("[dim]Ctrl-C stops it; runs in progress are kept in the log and can be resumed.[/]")
        if open_page:
            webbrowser.open(link)

    async def run() -> None:
        agent = load_agent(agent_name) if agent_name is not None else None
        opened = agent or open_store(store_url_of(store_url))
        try:
            given = False if no_token else token or os.environ.get("TURNLOG_TOKEN")
            await serve(opened, host=host, port=port, token=given, ready=ready)
        finally:
            await opened.close()

    asyncio.run(run())
