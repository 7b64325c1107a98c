"""Entries and events as a person reads them."""

from __future__ import annotations

import json

from rich.console import Console
from rich.text import Text

from turnlog import events
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
    RunEvent,
    RunStartedEntry,
    RuntimeInitEntry,
    SessionHeaderEntry,
    SystemPromptEntry,
    TextPart,
    ToolDeferredEntry,
    ToolResultPart,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolStartedEntry,
    WidgetEventEntry,
    encode,
)

from ._app import count, say_error
from ._text import plain, safe, short

_CUT = {
    "length": "the answer stops here: it reached its length limit",
    "content_filter": "the provider withheld the rest of this answer",
    "refusal": "the model refused to answer",
    "other": "the answer ended for a reason the provider did not name",
}
"""How an answer may end other than by being finished."""
_WHOLE = (ModelCallFailedEntry, RunEndedEntry, ApprovalRequestedEntry)


class EventPrinter:
    """Prints a run as it happens: the answer's text as it streams, and around it one line for each tool.

    The answer goes to ``out``, everything else to ``aside``, so that a pipe gets the answer alone.
    """

    def __init__(self, out: Console, aside: Console, *, asks: bool = False) -> None:
        self._out = out
        self._aside = aside
        self._asks = asks
        self._open: Console | None = None

    def show(self, event: RunEvent) -> None:
        match event:
            case events.TextDelta():
                self._write(self._out, event.text, None)
            case events.ThinkingDelta():
                self._write(self._aside, event.text, "dim italic")
            case events.ToolStarted():
                self._line(f"[cyan]→ {safe(event.tool_name)}[/] [dim]{short(event.arguments)}[/]")
            case events.ToolProgressed():
                self._line(f"[dim]… {short(event.text or event.data)}[/]")
            case events.ToolFinished():
                status = event.status
                mark = "[green]✓[/]" if status == "success" else f"[yellow]{status}[/]"
                self._line(f"{mark} [dim]{short(result_text(event.message.tool_results[0]))}[/]")
            case events.ApprovalRequested():
                if self._asks:  # the question itself shows the call
                    return
                asked = f"{safe(event.tool_name)} {short(event.arguments)}"
                self._line(f"[magenta]? {asked} waits for approval[/] [dim]({event.tool_call_id})[/]")
            case events.ApprovalDecided():
                self._line(f"[dim]{event.action} by {safe(event.decided_by)}[/]")
            case events.Retracted():
                self._line("[dim](that answer was cut off and does not count)[/]")
            case events.ErrorShown():
                self._error(event)
            case events.ContextFolded():
                sizes = f"{event.tokens_before} → {event.tokens_after} tokens"
                self._line(f"[dim](older content was folded: {sizes})[/]")
            case events.RunEnded():
                self.close()
            case events.AnswerAdded():
                if cut := _CUT.get(event.finish_reason):
                    self._line(f"[yellow]({cut})[/]")
            case (
                events.InputAdded()
                | events.ModelCalled()
                | events.StatusChanged()
                | events.ToolCallDelta()
                | events.ModelDelta()
            ):
                pass  # the user said it, or it is shown already

    @property
    def in_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._open is not None

    def _error(self, shown: events.ErrorShown) -> None:
        if shown.error.code == "RunAborted":
            self._line(f"[dim]({safe(shown.error.message)})[/]")
            return
        self.close()
        again = " — trying again" if shown.will_retry else ""
        say_error(shown.error.code, shown.error.message + again)

    def _write(self, to: Console, text: str, style: str | None) -> None:
        if not text:
            return
        if self._open is not to:
            self.close()
        to.print(plain(text), end="", markup=False, style=style)
        self._open = to

    def _line(self, text: str) -> None:
        self.close()
        self._aside.print(text)

    def close(self) -> None:
        """End the line that is open."""
        if self._open is not None:
            self._open.print()
            self._open = None


def result_text(part: ToolResultPart) -> str:
    content = part.payload.content
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return encode(content).decode()
    return "\n".join(map(_shown, content))


def _shown(part: TextPart | ImagePart | FileRefPart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ImagePart():
            return f"({part.payload.mime_type})"
        case FileRefPart():
            return f"({part.payload.path})"


def entry_line(entry: Entry, width: int | None = None) -> Text:
    """One entry in one line, of at most ``width`` columns. What went wrong or waits is never cut."""
    line = Text.from_markup(f"[dim]{entry.seq:>5}[/] {entry.kind:<20} {_body(entry)}".rstrip(), emoji=False)
    if width is not None and not isinstance(entry, _WHOLE):
        line.truncate(width, overflow="ellipsis")
    return line


def _body(entry: Entry) -> str:  # one line for each kind: long because the vocabulary is
    match entry:
        case SessionHeaderEntry():
            title = f"{short(entry.payload.title)} " if entry.payload.title else ""
            return f"{title}[dim]schema {entry.payload.schema_version}[/]"
        case RunStartedEntry():
            return _run_started(entry)
        case RunEndedEntry():
            error = entry.payload.error
            return entry.payload.status + (f" [red]{error.code}[/]: {short(error.message)}" if error else "")
        case ModelInputEntry():
            return f"[bold]{entry.payload.message.role}[/] {_said(entry.payload.message)}"
        case ModelCallStartedEntry():
            p = entry.payload
            what = f"call {p.model_call_index}.{p.attempt} · {count(p.message_count, 'message')}"
            why = f" · {safe(p.reason)}" if p.reason else ""
            return f"[dim]{safe(p.target.model)}{why} · {what} · context {p.context_hash[:8]}[/]"
        case ModelCallFailedEntry():
            return f"[red]{entry.payload.error.code}[/] {short(entry.payload.error.message)}"
        case ModelOutputEntry():
            ended = entry.payload.finish_reason
            cut = f" [yellow]({safe(ended)})[/]" if ended in _CUT else ""
            return f"[bold]assistant[/] {_said(entry.payload.message)}".rstrip() + cut
        case ToolsChangeEntry():
            return f"[dim]{short(', '.join(spec.name for spec in entry.payload.tools)) or 'none'}[/]"
        case ToolStartedEntry():
            p = entry.payload
            again = f" · attempt {p.attempt}" if p.attempt > 1 else ""
            return f"[cyan]{safe(p.tool_name)}[/] [dim]key {p.idempotency_key[:8]}{again}[/]"
        case ToolDeferredEntry():
            p = entry.payload
            return f"[cyan]{safe(p.tool_name)}[/] answered later ({p.tool_call_id}) [dim]{short(p.reason)}[/]"
        case ToolResultsEntry():
            return " · ".join(
                f"[cyan]{safe(o.tool_name)}[/] {o.status} [dim]{short(result_text(part), 80)}[/]"
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
    others = [f"({part.kind})" for part in message.parts if part.kind in ("image", "file_ref")]
    said = " ".join([*([message.text] if message.text else []), *others])
    return " ".join(
        [*([short(said)] if said else []), *([f"[cyan]calls {short(calls)}[/]"] if calls else [])]
    )
