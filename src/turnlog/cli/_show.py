"""``show``: a session's log, an entry a line, or one entry whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import cast

import click
from rich.text import Text

from turnlog.contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    CustomEntry,
    DeltaBatchEntry,
    Entry,
    FileRefPart,
    FoldEntry,
    ImagePart,
    Message,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    RuntimeInitEntry,
    SessionHeaderEntry,
    Store,
    SystemPromptEntry,
    ToolAnsweredEntry,
    ToolDeferredEntry,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolStartedEntry,
    WidgetEventEntry,
    about_file,
    encode,
    pictures_of,
)
from turnlog.history import SessionState, visible_entries

from ._app import (
    count,
    entries_of,
    json_option,
    out,
    session_argument,
    span,
    status_of,
    store_option,
    with_store,
    write_json,
)
from ._events import CUT
from ._text import Painter, result_text, safe, short

_UNCUT = 10_000  # characters of an error that fit into its line
_LEAST = 30  # columns for what went wrong; a narrower terminal gets it below the entry's head


@click.command("show")
@session_argument
@click.argument("entry", required=False)
@click.option("--after", type=int, default=0, metavar="N", help="Only entries after number N.")
@click.option("--errors", is_flag=True, help="Only what went wrong: failed calls, tools and runs.")
@store_option
@json_option
def show_command(
    session: str, entry: str | None, after: int, errors: bool, store_url: str | None, as_json: bool
) -> None:
    """Show a session's log, an entry a line: its number, its time (UTC), how long it took, its kind and what
    it holds. The last line tells the state of the newest run.

    ENTRY is a number or an id: that entry is shown whole.
    """

    async def read(store: Store) -> tuple[list[Entry], SessionState, str]:
        log = await store.load(session)
        state = SessionState.of(log)
        return log, state, await status_of(store, session, state.status)

    log, state, status = with_store(store_url, read)
    took = durations(log)
    visible = visible_entries(log)
    if entry is not None:
        found = [one for one in visible if entry in (str(one.seq), one.id)]
        if not found:
            raise click.BadParameter(
                f"session {session!r} has no entry {entry}; it has {entries_of(len(log))}", param_hint="ENTRY"
            )
        shown = found
    else:
        shown = [one for one in visible if one.seq > after and (not errors or went_wrong(one))]
    if as_json:
        for one in shown:
            write_json(one)
    elif entry is not None:
        _show_whole(shown[0], took.get(shown[0].seq))
    else:
        _show_lines(shown, took, _number_calls(log))
        _show_state(state, status, len(log))


def _number_calls(log: Sequence[Entry]) -> dict[int, int]:
    """Seq → the number of a model call in the log, as ``context --call`` takes it."""
    calls = [entry.seq for entry in log if isinstance(entry, ModelCallStartedEntry)]
    return {seq: number for number, seq in enumerate(calls, 1)}


def _show_lines(entries: Sequence[Entry], took: dict[int, float], calls: dict[int, int]) -> None:
    painter = Painter(out)

    def lines() -> Iterator[str]:
        day = ""
        for entry in entries:
            if entry.timestamp[:10] != day:
                day = entry.timestamp[:10]
                yield painter.line(f"[dim]{day} UTC[/]", "")
            yield from entry_lines(painter, entry, took.get(entry.seq), calls.get(entry.seq))

    painter.write(lines())


def _show_state(state: SessionState, status: str, entries: int) -> None:
    out.print(f"[dim]{entries_of(entries)} · {status}{_usage(state)}[/]")
    for call in state.open_calls:
        if call.awaits_human:
            what = "waits for approval"
        elif call.deferred is not None:
            what = f"waits for an answer: {short(call.deferred.question or call.deferred.reason)}"
        else:
            what = "started, no result" if call.started else "not started"
        out.print(f"[yellow]open call[/] {call.call.tool_call_id} {safe(call.call.tool_name)}: {what}")


def _usage(state: SessionState) -> str:
    usage = state.usage
    if usage is None:
        return ""
    cached = f", {usage.cached_input_tokens} cached" if usage.cached_input_tokens else ""
    cost = f" · ${usage.cost:.4f}" if usage.cost is not None else ""
    return f" · last run {usage.input_tokens} in{cached}, {usage.output_tokens} out{cost}"


# ── times ──


def durations(entries: Sequence[Entry]) -> dict[int, float]:
    """Seq → milliseconds from the entry that began something to the one that ended it: a model call, a
    tool, a run, a wait for a decision."""
    began: dict[str, str] = {}
    took: dict[int, float] = {}
    for entry in entries:
        match entry:
            case RunStartedEntry():
                began["run"] = entry.timestamp
            case ModelCallStartedEntry():
                began["model"] = entry.timestamp
            case ToolStartedEntry():
                began[f"tool {entry.payload.tool_call_id}"] = entry.timestamp
            case ApprovalRequestedEntry():
                began[f"approval {entry.payload.tool_call_id}"] = entry.timestamp
            case RunEndedEntry():
                _note(took, entry, began.pop("run", None))
            case ModelOutputEntry() | ModelCallFailedEntry():
                _note(took, entry, began.pop("model", None))
            case ToolResultsEntry():
                starts = [began.pop(f"tool {o.tool_call_id}", None) for o in entry.payload.outcomes]
                _note(took, entry, min(filter(None, starts), default=None))
            case ApprovalDecidedEntry():
                _note(took, entry, began.pop(f"approval {entry.payload.tool_call_id}", None))
            case _:
                pass
    return took


def _note(took: dict[int, float], entry: Entry, since: str | None) -> None:
    if since is not None:
        passed = datetime.fromisoformat(entry.timestamp) - datetime.fromisoformat(since)
        took[entry.seq] = passed.total_seconds() * 1000


def _tight(ms: float) -> str:
    """A duration in at most six characters, up to a hundred hours."""
    if ms < 1000:
        return f"{ms:.0f}ms"
    seconds = round(ms / 1000)
    if seconds < 60:
        return f"{ms / 1000:.1f}s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}m{seconds:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


# ── one entry whole ──


def _show_whole(entry: Entry, took: float | None) -> None:
    at = entry.timestamp.replace("T", " ").removesuffix("Z")
    lasted = f" · took {_tight(took)}" if took is not None else ""
    run = f" · run {safe(entry.run_id)}" if entry.run_id else ""
    out.print(f"[bold]{entry.seq} {entry.kind}[/] [dim]{at} UTC{lasted}[/]")
    out.print(f"[dim]id {safe(entry.id)}{run}[/]")
    value: object = json.loads(encode(entry.payload))
    for line in _tree(value):
        out.print(line)
    if entry.meta:
        for line in _tree({"meta": entry.meta}):
            out.print(line)


def _tree(value: object, indent: str = "") -> Iterator[str]:
    """A JSON value as indented lines of markup; text of several lines stands below its name."""
    if isinstance(value, dict):
        for name, item in cast("dict[str, object]", value).items():
            yield from _named(f"[cyan]{safe(name)}[/]:", item, indent)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            first, *more = _tree(item, indent + "  ") if item not in ({}, []) else [indent + json.dumps(item)]
            yield f"{indent}- {first.strip()}"
            yield from more
    elif isinstance(value, str):
        for line in value.split("\n"):
            yield (indent + safe(line)).rstrip()
    else:
        yield indent + json.dumps(value)


def _named(name: str, item: object, indent: str) -> Iterator[str]:
    if item in ({}, []):
        yield f"{indent}{name} {json.dumps(item)}"
    elif isinstance(item, dict | list) or (isinstance(item, str) and "\n" in item):
        yield f"{indent}{name}"
        yield from _tree(cast(object, item), indent + "  ")
    else:
        yield f"{indent}{name} " + next(_tree(item))


# ── one entry in a line ──


def went_wrong(entry: Entry) -> bool:
    match entry:
        case ModelCallFailedEntry():
            return True
        case RunEndedEntry():
            return entry.payload.error is not None
        case ToolResultsEntry():
            return any(outcome.status != "success" for outcome in entry.payload.outcomes)
        case _:
            return False


def entry_lines(painter: Painter, entry: Entry, took: float | None, call: int | None) -> Iterator[str]:
    """One entry in one line of the terminal's width; ``call`` is its number if it is a model call. What went
    wrong or waits is never cut: it gets as many lines as it needs."""
    time, lasted = entry.timestamp[11:19], _tight(took) if took is not None else ""
    head, body = f"[dim]{entry.seq:>5} {time} {lasted:>6}[/] {entry.kind:<18} ", _body(entry, call)
    width = painter.width
    if width is None or not (went_wrong(entry) or isinstance(entry, ApprovalRequestedEntry)):
        yield painter.line(head, body)
        return
    indent = len(Text.from_markup(head))
    if width - indent < _LEAST:
        indent = 6
        yield painter.line(head, "", cut=False)
        head = " " * indent
    for part in Text.from_markup(body, emoji=False).wrap(out, max(width - indent, 1)):
        yield painter.line(head, part.markup, cut=False)
        head = " " * indent


def _body(entry: Entry, call: int | None) -> str:  # one line for each kind: long because the vocabulary is
    match entry:
        case SessionHeaderEntry():
            title = f"{short(entry.payload.title)} " if entry.payload.title else ""
            return f"{title}[dim]schema {entry.payload.schema_version}[/]"
        case RunStartedEntry():
            return _run_started(entry)
        case RunEndedEntry():
            error = entry.payload.error
            why = f" [red]{error.code}[/]: {short(error.message, _UNCUT)}" if error else ""
            return entry.payload.status + why
        case ModelInputEntry():
            return f"[bold]{entry.payload.message.role}[/] {_said(entry.payload.message)}"
        case ModelCallStartedEntry():
            p = entry.payload
            again = f", attempt {p.attempt}" if p.attempt > 1 else ""
            what = f"call {call}{again} · {count(p.message_count, 'message')}"
            why = f" · {safe(p.reason)}" if p.reason else ""
            return f"[dim]{safe(p.target.model)}{why} · {what} · context {p.context_hash[:8]}[/]"
        case ModelCallFailedEntry():
            p = entry.payload
            again = f" [dim]· tried again after {span(p.retry_in_ms)}[/]" if p.retry_in_ms else ""
            return f"[red]{p.error.code}[/] {short(p.error.message, _UNCUT)}{again}"
        case ModelOutputEntry():
            ended = entry.payload.finish_reason
            cut = f" [yellow]({safe(ended)})[/]" if ended in CUT else ""
            return f"[bold]assistant[/] {_said(entry.payload.message)}".rstrip() + cut
        case ToolsChangeEntry():
            return f"[dim]{short(', '.join(spec.name for spec in entry.payload.tools)) or 'none'}[/]"
        case ToolStartedEntry():
            p = entry.payload
            again = f" [dim]attempt {p.attempt}[/]" if p.attempt > 1 else ""
            child = f" [dim]in session {safe(p.child_session_id)}[/]" if p.child_session_id else ""
            return f"[cyan]{safe(p.tool_name)}[/]{again}{child}"
        case ToolResultsEntry():
            return " · ".join(
                f"[cyan]{safe(o.tool_name)}[/] {o.status} "
                f"[dim]{short(result_text(part), 80 if o.status == 'success' else _UNCUT)}[/]"
                + (f" [bold]→ {safe(o.handed_to)}[/]" if o.handed_to else "")
                for part, o in zip(entry.payload.message.tool_results, entry.payload.outcomes, strict=False)
            )
        case ApprovalRequestedEntry():
            p = entry.payload
            return f"[magenta]{safe(p.tool_name)}[/] waits ({p.tool_call_id}) [dim]{short(p.arguments)}[/]"
        case ApprovalDecidedEntry():
            p = entry.payload
            changed = f" [dim]{short(p.arguments)}[/]" if p.arguments is not None else ""
            return f"{p.action} by {safe(p.decided_by)}{changed}" + (f": {short(p.note)}" if p.note else "")
        case _:
            return _aside(entry)


def _aside(
    entry: SystemPromptEntry
    | ModelChangeEntry
    | RuntimeInitEntry
    | ToolDeferredEntry
    | ToolAnsweredEntry
    | WidgetEventEntry
    | FoldEntry
    | CompactionSummaryEntry
    | BranchSummaryEntry
    | RedactionEntry
    | PurgeEntry
    | DeltaBatchEntry
    | CustomEntry,
) -> str:
    match entry:
        case SystemPromptEntry():
            return f"[dim]{short(entry.payload.text)}[/]"
        case ModelChangeEntry():
            return f"[dim]{safe(entry.payload.target.model)}[/]"
        case RuntimeInitEntry():
            return f"[dim]{short(entry.payload.data)}[/]"
        case ToolDeferredEntry():
            p = entry.payload
            return f"[cyan]{safe(p.tool_name)}[/] answered later ({p.tool_call_id}) [dim]{short(p.reason)}[/]"
        case ToolAnsweredEntry():
            p = entry.payload
            given = "declined" if p.declined else f"[dim]{short(json.loads(encode(p.content)))}[/]"
            by = f" by {safe(p.by)}" if p.by else ""
            return f"[cyan]{safe(p.tool_name)}[/] was answered{by} ({p.tool_call_id}) {given}"
        case WidgetEventEntry():
            p = entry.payload
            return f"[cyan]{safe(p.widget)}[/] {safe(p.event)} [dim]{short(p.data)}[/]"
        case FoldEntry():
            p = entry.payload
            return f"[dim]{safe(p.reason)}: {p.tokens_before} → {p.tokens_after} tokens[/]"
        case CompactionSummaryEntry():
            return f"[dim]{short(entry.payload.summary)}[/]"
        case BranchSummaryEntry():
            return f"[dim]from {safe(entry.payload.from_session_id)} at {entry.payload.from_seq}[/]"
        case RedactionEntry() | PurgeEntry():
            p = entry.payload
            done = "hidden" if isinstance(entry, RedactionEntry) else "erased"
            by, why = f" by {safe(p.by)}" if p.by else "", f": {short(p.reason)}" if p.reason else ""
            return f"{len(p.entry_ids)} {done}{by}{why}"
        case DeltaBatchEntry():
            return f"[dim]{count(len(entry.payload.deltas), 'delta')}[/]"
        case CustomEntry():
            return f"{safe(entry.payload.name)} [dim]{short(json.loads(encode(entry.payload.data)))}[/]"


def _run_started(entry: RunStartedEntry) -> str:
    p = entry.payload
    words = [safe(p.agent_name or "agent")]
    if p.tool_choice is not None:
        words.append(f"tool choice {short(json.loads(encode(p.tool_choice)))}")
    if p.allowed_tools is not None:
        words.append(f"tools {short(', '.join(p.allowed_tools))}")
    if p.model_params:
        words.append(short(p.model_params))
    return f"[dim]{' · '.join(words)}[/]"


def _said(message: Message) -> str:
    calls = ", ".join(
        f"{part.payload.tool_name} {' '.join(part.payload.raw_args_text.split())}".strip()
        for part in message.tool_calls
    )
    others = [
        f"({about_file(part.payload)})" for part in message.parts if isinstance(part, ImagePart | FileRefPart)
    ]
    others += [f"({picture.mime_type}, made by the model)" for picture in pictures_of(message)]
    said = " ".join([*([message.text] if message.text else []), *others])
    return " ".join(
        [*([short(said)] if said else []), *([f"[cyan]calls {short(calls)}[/]"] if calls else [])]
    )
