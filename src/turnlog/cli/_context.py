"""``context`` and ``compact``: what a model saw, and making it less."""

from __future__ import annotations

import click

from turnlog.contract import Entry, FoldEntry, Message, Store, ToolCallPart, ToolResultPart
from turnlog.loop import ContextDiff, ContextView, compact_session, diff_contexts, explain, load_model

from ._app import (
    count,
    err,
    json_option,
    out,
    session_argument,
    store_option,
    wait_option,
    with_store,
    write_json,
)
from ._text import result_text, safe, short

_BAR = 32
_NAMES = {"segments": "digests of the past", "branch": "note of the fork", "live screen": "widgets"}
"""Kinds of content in plainer words."""


@click.command("context", short_help="Show what the model saw at a call.")
@session_argument
@click.option(
    "--call", "-c", type=int, default=-1, metavar="N", help="Which model call, from 1; default the last."
)
@click.option(
    "--diff",
    nargs=2,
    type=int,
    metavar="N M",
    help="Only what call M saw and call N did not, and the reverse.",
)
@store_option
@json_option
def context_command(
    session: str, call: int, diff: tuple[int, int] | None, store_url: str | None, as_json: bool
) -> None:
    """Show exactly what the model saw at a call, what filled its window, and when it is folded."""
    entries: list[Entry] = with_store(store_url, lambda store: store.load(session))
    if diff is not None:
        before, after = explain(entries, diff[0]), explain(entries, diff[1])
        _show_diff(before, after, as_json)
        return
    view = explain(entries, call)
    if as_json:
        write_json(view)
        return
    _show_view(view)


def _show_view(view: ContextView) -> None:
    proof = (
        "[green]as recorded[/]"
        if view.matches
        else "[yellow]redacted since[/]"
        if view.redacted
        else "[red]differs[/]"
    )
    target = f"{view.target.provider_id}:{view.target.model}"
    out.print(f"call {view.call} · {safe(target)} · context {view.context_hash[:12]} {proof}")
    window = f"window {view.window:,} tokens" if view.window else "window not known"
    fold_at = f"folds at {view.fold_at:,}" if view.fold_at else "never folds"
    out.print(f"{window} · {fold_at} · {count(view.folds, 'fold')} so far")
    total = sum(part.tokens for part in view.gauge)
    for part in view.gauge:
        name, bar = _NAMES.get(part.kind, part.kind), "█" * max(1, round(part.share * _BAR))
        out.print(f"  {name:<20} [cyan]{bar:<{_BAR}}[/] {part.tokens:>8} tokens  {part.share:6.1%}")
    out.print(f"  {'together':<20} {'':<{_BAR}} {total:>8} tokens, estimated\n")
    if view.system_prompt:
        out.print(f"[bold]system[/]\n{safe(view.system_prompt)}\n")
    names = {
        part.payload.tool_call_id: part.payload.tool_name
        for message in view.messages
        for part in message.tool_calls
    }
    for message in view.messages:
        _show_message(message, names)


def _show_message(message: Message, names: dict[str, str]) -> None:
    out.print(f"[bold]{message.role}[/]")
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            out.print(f"[cyan]→ {safe(part.payload.tool_name)}[/] {safe(part.payload.raw_args_text)}")
        elif isinstance(part, ToolResultPart):
            name = names.get(part.payload.tool_call_id, part.payload.tool_call_id)
            out.print(f"[cyan]{safe(name)}[/] {safe(result_text(part))}")
        elif part.kind == "text" or part.kind == "thinking":
            out.print(safe(part.payload.text), style="dim italic" if part.kind == "thinking" else "")
        else:
            out.print(f"[dim]({part.kind})[/]")
    out.print()


def _show_diff(before: ContextView, after: ContextView, as_json: bool) -> None:
    found: ContextDiff = diff_contexts(before.context(), after.context())
    if as_json:
        write_json(found)
        return
    grown = "[green]only grew[/]" if found.grown else "[yellow]was changed[/]"
    out.print(
        f"from call {before.call} to call {after.call} the context {grown}: "
        f"{count(found.common_messages, 'message')} ({found.common_bytes} bytes) in common"
    )
    for sign, colour, messages in (("-", "red", found.removed), ("+", "green", found.added)):
        for message in messages:
            out.print(f"[{colour}]{sign} {message.role}[/] {short(_words(message), 160)}")


def _words(message: Message) -> str:
    """What a message says, calls and results included."""
    said = [message.text] if message.text else []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            said.append(f"→ {part.payload.tool_name} {part.payload.raw_args_text}")
        elif isinstance(part, ToolResultPart):
            said.append(result_text(part))
    return " ".join(said) or ", ".join(part.kind for part in message.parts)


@click.command("compact", short_help="Make what the model sees smaller.")
@session_argument
@click.option("--model", "-m", metavar="NAME", help="Have this model write a recap first.")
@wait_option
@store_option
def compact_command(session: str, model: str | None, wait: bool, store_url: str | None) -> None:
    """Fold a session now: long results become summaries, the oldest part becomes a digest.

    The log keeps everything; only what the model sees gets smaller.
    """

    async def work(store: Store) -> list[Entry]:
        chosen = load_model(model) if model else None
        try:
            return await compact_session(store, session, model=chosen, on_busy="wait" if wait else "refuse")
        finally:
            if chosen is not None:
                await chosen.close()

    doing = f"{safe(model)} writes a recap" if model else None
    entries = with_store(store_url, work, doing=doing)
    folds = [entry.payload for entry in entries if isinstance(entry, FoldEntry)]
    for fold in folds:
        out.print(f"folded: {fold.tokens_before} → {fold.tokens_after} tokens, estimated")
    if not folds and entries:
        out.print("a recap was written; the next fold uses it")
    elif not folds:
        err.print("nothing to fold: it would free too little")
