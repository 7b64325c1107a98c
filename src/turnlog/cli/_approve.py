"""``approve``: decide on a call that waits for a human, from any process."""

from __future__ import annotations

import getpass
import json
from typing import Any

import click
from rich.markup import escape

from turnlog.contract import Entry, Store, encode
from turnlog.loop import CallState, RunState, record_decision

from ._app import json_option, out, store_option, with_store


@click.command("approve")
@click.argument("session")
@click.argument("call", required=False)
@click.option("--deny", "action", flag_value="deny", help="Do not run it; the model is told.")
@click.option("--abort", "action", flag_value="abort", help="End the run.")
@click.option("--modify", "arguments", metavar="JSON", help="Run it with these arguments instead.")
@click.option("--note", metavar="TEXT", help="Words for the model.")
@click.option("--by", metavar="NAME", default=getpass.getuser, show_default="your login")
@store_option
@json_option
def approve_command(
    session: str,
    call: str | None,
    action: str | None,
    arguments: str | None,
    note: str | None,
    by: str,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Let a call run, or not. Without CALL: what waits. Resume the run with `turnlog chat --session`."""
    if call is None:
        _list(with_store(store_url, lambda store: store.load(session)), session, as_json)
        return
    changed = _parse(arguments)
    chosen = "modify" if changed is not None else action or "approve"

    async def work(store: Store) -> Any:
        return await record_decision(store, session, call, chosen, by=by, arguments=changed, note=note)

    decided = with_store(store_url, work)
    if as_json:
        click.echo(encode(decided).decode())
    else:
        out.print(f"{decided.action} by {escape(by)}\n[dim]go on with: turnlog chat --session {session}[/]")


def _list(entries: list[Entry], session: str, as_json: bool) -> None:
    state = RunState()
    for entry in entries:
        state.step(entry)
    waiting: list[CallState] = state.awaiting
    for call in waiting:
        assert call.requested is not None
        if as_json:
            click.echo(encode(call.requested).decode())
            continue
        asked = call.requested
        shown = escape(json.dumps(asked.arguments))
        out.print(f"[magenta]{asked.tool_call_id}[/] {escape(asked.tool_name)} {shown}")
        if asked.reason:
            out.print(f"  [dim]{escape(asked.reason)}[/]")
    if not waiting and not as_json:
        out.print(f"nothing waits in {session}")


def _parse(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint="--modify") from error
    if not isinstance(found, dict):
        raise click.BadParameter("arguments are a JSON object", param_hint="--modify")
    return found  # pyright: ignore[reportUnknownVariableType]
