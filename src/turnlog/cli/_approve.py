"""``approve``: decide on a call that waits for a human, from any process."""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from turnlog.contract import ApprovalDecided, PendingApproval, Store
from turnlog.loop import Decision, pending_calls, record_decision

from ._app import check_session, err, json_option, login, out, store_option, with_store, write_json
from ._hints import approve, resume
from ._text import safe, whole


@click.command("approve", short_help="Decide on calls that wait for approval.")
@click.argument("session", required=False, callback=check_session)
@click.argument("call", required=False)
@click.option("--deny", "action", flag_value="deny", help="Do not run it; the model is told.")
@click.option("--abort", "action", flag_value="abort", help="End the run.")
@click.option("--modify", "arguments", metavar="JSON", help="Run it with these arguments instead.")
@click.option("--note", metavar="TEXT", help="Words for the log; with --deny the model reads them.")
@click.option(
    "--by", metavar="NAME", default=login, show_default="your login", help="Who decides, for the log."
)
@store_option
@json_option
def approve_command(
    session: str | None,
    call: str | None,
    action: Literal["deny", "abort"] | None,
    arguments: str | None,
    note: str | None,
    by: str,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Let a call run, or not. Without CALL: what waits in SESSION; without SESSION: in all of them. Resume
    the run with `turnlog resume`."""
    changed = _parse(arguments)
    if changed is not None and action is not None:
        raise click.UsageError(f"--modify and --{action} contradict each other; give one of them")
    if session is None or call is None:
        if changed is not None or action is not None or note is not None:
            words = " ".join(["turnlog approve", *([session] if session else [])])
            raise click.UsageError(f"name the CALL to decide on; {words} lists what waits")
        if session is None:
            _list_all(with_store(store_url, lambda store: store.pending()), as_json)
        else:
            _list(with_store(store_url, lambda store: pending_calls(store, session)), session, as_json)
        return
    chosen: Decision = "modify" if changed is not None else action or "approve"

    async def work(store: Store) -> ApprovalDecided:
        return await record_decision(store, session, call, chosen, by=by, arguments=changed, note=note)

    decided = with_store(store_url, work)
    if as_json:
        write_json(decided)
        return
    out.print(f"{decided.action} by {safe(by)}")
    err.print(f"[dim]continue with: {resume(session)}[/]")


def _list_all(waiting: list[PendingApproval], as_json: bool) -> None:
    """The inbox: what waits in every session, the oldest first."""
    for asked in waiting:
        if as_json:
            write_json(asked)
            continue
        when = asked.requested_at[:16].replace("T", " ")
        out.print(f"[bold]{safe(asked.session_id)}[/] [dim]{when}[/]")
        _show(asked, "  ")
    if not as_json and not waiting:
        out.print("nothing waits")
    elif not as_json:
        err.print(f"[dim]decide with: {approve('SESSION')}, or --deny, --modify JSON, --abort[/]")


def _show(asked: PendingApproval, indent: str = "") -> None:
    out.print(f"{indent}[magenta]{asked.tool_call_id}[/] {safe(asked.tool_name)} {whole(asked.arguments)}")
    if asked.reason:
        out.print(f"{indent}  [dim]{safe(asked.reason)}[/]")


def _list(waiting: list[PendingApproval], session: str, as_json: bool) -> None:
    for asked in waiting:
        if as_json:
            write_json(asked.requested)
            continue
        _show(asked)
    if as_json:
        return
    if waiting:
        err.print(f"[dim]decide with: {approve(session)}, or --deny, --modify JSON, --abort[/]")
    else:
        out.print(f"nothing waits in {safe(session)}")


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
