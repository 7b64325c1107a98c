"""``watch``: the timeline of sessions in the terminal, live."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from rich.text import Text

from turnlog.contract import AgentError, Store
from turnlog.history import show_url

from ._app import check_session, store_url_of, with_store
from ._log import check_is_there, listing_options


@click.command("watch")
@click.argument("session", required=False, callback=check_session)
@listing_options
def watch_command(session: str | None, store_url: str | None, **listing: Any) -> None:
    """Watch SESSION live, also while another process runs it: the conversation, what the model saw at each
    call, tools, times, tokens, cost; decide on calls that wait. Without SESSION, choose one from the list.

    Needs the extra 'tui'. The key ? lists the keys; q leaves, and no run notices.
    """
    if not sys.stdin.isatty() or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        name = session or "SESSION"
        raise click.UsageError(
            f"watch needs a terminal that can be drawn on; turnlog show {name} prints the log, and turnlog "
            "serve shows it in a browser"
        )
    try:
        from ._watch_app import Listing, WatchApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise AgentError(
            "PluginMissing", f"watch needs the extra 'tui': pip install 'turnlog[tui]' ({error})"
        ) from error
    from ._control import how_to_continue

    async def work(store: Store) -> None:
        if store_url is not None:  # the usual place is made when it is first used; this one may be misspelt
            check_is_there(store)
        if session is not None and await store.tail(session) is None:
            raise AgentError(
                "SessionNotFound",
                f"there is no session {session!r} in this store; turnlog sessions lists those that exist",
                meta={"session_id": session},
            )

        async def advise(name: str) -> str:
            return Text.from_markup(await how_to_continue(store, name)).plain

        place = show_url(store_url_of(store_url))
        await WatchApp(store, session, listing=Listing(**listing), place=place, advise=advise).run_async()

    with_store(store_url, work)
