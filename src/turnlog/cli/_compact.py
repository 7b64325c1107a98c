"""``compact``: fold what a model sees."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from turnlog.contract import Entry, FoldEntry, Store
from turnlog.loop import compact_session, load_model

from ._agent import agent_option, load_agent
from ._app import err, json_option, out, session_argument, store_option, wait_option, with_store, write_json
from ._text import safe


@click.command("compact")
@session_argument
@click.option("--model", "-m", metavar="NAME", help="Have this model write a recap first.")
@click.option("--instructions", metavar="TEXT", help="What the recap has to keep.")
@agent_option
@wait_option
@store_option
@json_option
def compact_command(
    session: str,
    agent_name: str | None,
    model: str | None,
    instructions: str | None,
    wait: bool,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Fold a session now: long results become summaries, the oldest part becomes a digest.

    The log keeps everything; only what the model sees gets smaller.
    """

    if instructions and not model:
        raise click.UsageError("--instructions are for the model that writes a recap: name it with --model")

    if agent_name is not None and store_url is not None:
        raise click.UsageError("--agent brings its own store; leave out --store")

    async def compact(store: Store, **parts: Any) -> list[Entry]:
        chosen = load_model(model) if model else None
        try:
            return await compact_session(
                store,
                session,
                model=chosen,
                instructions=instructions,
                on_busy="wait" if wait else "refuse",
                **parts,
            )
        finally:
            if chosen is not None:
                await chosen.close()

    async def compact_by_agent(name: str) -> list[Entry]:
        """As the agent would: with its options, so that its next call continues from this fold."""
        async with load_agent(name) as agent:
            parts = agent.loop.parts
            return await compact(agent.store, options=parts.options, widgets=parts.widgets)

    doing = f"{safe(model)} writes a recap" if model else None
    if agent_name is not None:
        entries = asyncio.run(compact_by_agent(agent_name))
    else:
        entries = with_store(store_url, compact, doing=doing)
    if as_json:
        for entry in entries:
            write_json(entry)
        return
    folds = [entry.payload for entry in entries if isinstance(entry, FoldEntry)]
    for fold in folds:
        out.print(f"folded: {fold.tokens_before} → {fold.tokens_after} tokens, estimated")
    if not folds and entries:
        out.print("a recap was written; the next fold uses it")
    elif not folds:
        err.print("nothing to fold: it would free too little")
