"""``acp``: an agent for editors."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from turnlog.contract import AgentError

from ._agent import agent_options, make_agent


@click.command("acp")
@agent_options
def acp_command(as_json: bool, **options: Any) -> None:
    """Serve an agent to an editor over standard input and output, by the Agent Client Protocol.

    The editor starts this command itself. Its conversations are sessions of the store: it can load them
    again, also after it or this process was killed, and turnlog shows them as all others.
    """
    try:
        from turnlog.acp import serve_acp
    except ImportError as error:
        words = "turnlog acp needs a package that is not installed: pip install 'turnlog[acp]'"
        raise AgentError("PluginMissing", words, cause=error) from error

    async def work() -> None:
        async with make_agent(**options) as agent:
            await serve_acp(agent)

    asyncio.run(work())
