"""What a page tells of a log, and the page as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from turnlog.contract import (
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    Entry,
    ErrorInfo,
    FileRefPart,
    FoldEntry,
    ImagePart,
    JsonObject,
    MessagePart,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelOutputEntry,
    Purge,
    PurgeEntry,
    Redaction,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    SessionHeaderEntry,
    SystemPromptEntry,
    TextPart,
    ThinkingPart,
    TokenUsage,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
    ToolResultPayload,
    ToolResultsEntry,
    about_file,
)
from turnlog.history import AgentState, visible_entries

from ._prose import code_span, fenced, neutral, safe_markdown

_SPEAKERS = {"user": "User", "steering": "User, during the run", "correction": "Correction", "host": "Host"}
_DECIDED = {"approve": "approved", "deny": "denied", "abort": "answered with an end of the run"}
_CUT = {
    "length": "stopped at its length limit",
    "content_filter": "was withheld by the provider",
    "refusal": "is a refusal",
    "other": "ended for a reason that was not named",
}
_TITLE = 80


class Story:
    """The visible entries of a session, and what belongs together among them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = visible_entries(entries)
        self.usage = AgentState.from_entries(self.entries).token_usage
        self.results: dict[str, tuple[ToolResultPayload, ToolOutcome]] = {}
        self.requests: dict[str, ApprovalRequested] = {}
        self.decisions: dict[str, ApprovalDecided] = {}
        self._title: str | None = None
        self._names: dict[str, str] = {}
        self._told: ErrorInfo | None = None
        self._started: dict[str, str] = {}
        for entry in self.entries:
            self._note_calls(entry)

    def _note_calls(self, entry: Entry) -> None:
        if isinstance(entry, SessionHeaderEntry):
            self._title = entry.payload.title or self._title
        elif isinstance(entry, ModelOutputEntry):
            for part in entry.payload.message.tool_calls:
                self._names[part.payload.tool_call_id] = part.payload.tool_name
        elif isinstance(entry, ToolResultsEntry):
            parts = entry.payload.message.tool_results
            for part, outcome in zip(parts, entry.payload.outcomes, strict=False):
                self.results[part.payload.tool_call_id] = (part.payload, outcome)
        elif isinstance(entry, ApprovalRequestedEntry):
            self.requests[entry.payload.tool_call_id] = entry.payload
        elif isinstance(entry, ApprovalDecidedEntry):
            self.decisions[entry.payload.tool_call_id] = entry.payload

    @property
    def title(self) -> str:
        """The title that was given, else the user's first words."""
        if self._title:
            return one_line(self._title)
        inputs = (entry.payload.message for entry in self.entries if isinstance(entry, ModelInputEntry))
        first = one_line(next((message.text for message in inputs if message.role == "user"), ""))
        return (first if len(first) <= _TITLE else first[: _TITLE - 1] + "…") or "Conversation"

    def took(self, entry: Entry) -> str | None:
        """How long it was until this entry: a model's answer since its call, the end of a run since its
        start. Ask for every entry, in order."""
        key = entry.run_id or ""
        match entry:
            case RunStartedEntry():
                self._started[f"run {key}"] = entry.timestamp
            case ModelCallStartedEntry():
                self._started[f"call {key}"] = entry.timestamp
            case ModelOutputEntry() | ModelCallFailedEntry():
                return _between(self._started.pop(f"call {key}", None), entry.timestamp)
            case RunEndedEntry():
                return _between(self._started.pop(f"run {key}", None), entry.timestamp)
            case _:
                pass
        return None

    def waits(self, call_id: str) -> bool:
        """Whether a call is asked about and not decided."""
        return call_id in self.requests and call_id not in self.decisions and call_id not in self.results

    def approval(self, call_id: str) -> str | None:
        """Who decided what about a call; None when nobody was asked, or nobody has answered."""
        decided = self.decisions.get(call_id)
        if decided is None:
            return None
        note = f": {decided.note}" if decided.note else ""
        if decided.action == "expire":
            return f"not decided in time{note}"
        if decided.action == "modify":
            return f"approved by {decided.decided_by} with other arguments{note}"
        return f"{_DECIDED[decided.action]} by {decided.decided_by}{note}"

    def note(self, entry: Entry) -> str | None:
        """A line for entries that a reader wants to know of; None for the others."""
        match entry:
            case ModelCallFailedEntry():
                self._told = entry.payload.error
                again = "; it was made again" if entry.payload.retry_in_ms is not None else ""
                return f"Model call failed: {_error(entry.payload.error)}{again}"
            case RunEndedEntry() if entry.payload.status != "completed":
                error = entry.payload.error
                told, self._told = self._told, None
                why = f": {_error(error)}" if error and not (told and _error(told) == _error(error)) else ""
                return f"Run {entry.payload.status}{why}"
            case ApprovalRequestedEntry() if self.waits(entry.payload.tool_call_id):
                why = f": {entry.payload.reason}" if entry.payload.reason else ""
                return f"The call of {entry.payload.tool_name} waits for approval{why}"
            case ApprovalDecidedEntry():
                name = self._names.get(entry.payload.tool_call_id, entry.payload.tool_call_id)
                return f"The call of {name} was {self.approval(entry.payload.tool_call_id)}"
            case ModelChangeEntry():
                return f"The model is now {entry.payload.target.model}"
            case FoldEntry():
                before, after = entry.payload.tokens_before, entry.payload.tokens_after
                return f"From here on the model sees less of what came before: {before:,} → {after:,} tokens"
            case CompactionSummaryEntry():
                return f"Summary of what came before: {entry.payload.summary}"
            case BranchSummaryEntry():
                p = entry.payload
                return f"Forked from session {p.from_session_id} after its entry {p.from_seq}"
            case RedactionEntry() | PurgeEntry():
                return _hidden(entry.payload)
            case _:
                return None


def speaker(entry: ModelInputEntry) -> str:
    return _SPEAKERS[entry.payload.source] if entry.payload.message.role == "user" else "System"


def ending(entry: ModelOutputEntry) -> str | None:
    """How an answer ended, where it was not finished."""
    return _CUT.get(entry.payload.finish_reason)


def usage_of(entry: ModelOutputEntry) -> TokenUsage | None:
    """What an answer used, where the log says so and it can be read."""
    found = (entry.payload.message.meta or {}).get("usage")
    try:
        return None if found is None else msgspec.convert(found, TokenUsage)
    except msgspec.ValidationError:
        return None


def _between(start: str | None, end: str) -> str | None:
    try:
        taken = datetime.fromisoformat(end) - datetime.fromisoformat(start or "")
    except ValueError:
        return None
    return duration(taken.total_seconds()) if taken.total_seconds() >= 0 else None


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock_time(timestamp: str) -> str:
    """The time of day of an entry, UTC."""
    return timestamp[11:19]


def day_and_time(timestamp: str) -> str:
    return timestamp[:16].replace("T", " ")


def describe_usage(usage: TokenUsage) -> str:
    words = f"{usage.input_tokens:,} tokens in"
    if usage.cached_input_tokens:
        words += f" ({usage.cached_input_tokens:,} cached)"
    words += f", {usage.output_tokens:,} out"
    return words + (f", ${usage.cost:.4f}" if usage.cost is not None else "")


def pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def one_line(text: str) -> str:
    return " ".join(neutral(text).split())


def _error(error: ErrorInfo) -> str:
    return f"{error.code}: {error.message}"


def _hidden(done: Redaction | Purge) -> str:
    number = len(done.entry_ids)
    what = f"{number} entr{'y' if number == 1 else 'ies'}"
    how = "hidden" if isinstance(done, Redaction) else "erased"
    by, why = f" by {done.by}" if done.by else "", f": {done.reason}" if done.reason else ""
    return f"{what} {how}{by}{why}"


_SHORT = 100


def render_markdown(entries: Sequence[Entry]) -> str:
    """The conversation in ``entries`` as a Markdown page, redactions applied; bookkeeping is left out.

    Control characters are shown as pictures, and HTML in the words is escaped: nothing in the page runs or
    loads, on a terminal or in a viewer.
    """
    story = Story(entries)
    shown = story.entries
    blocks = [f"# {safe_markdown(story.title)}"]
    if shown:
        first, last = day_and_time(shown[0].timestamp), day_and_time(shown[-1].timestamp)
        blocks.append(f"Session {code_span(one_line(shown[-1].session_id))}, {first} to {last} UTC")
    for entry in shown:
        blocks += _blocks(entry, story, story.took(entry))
    if story.usage:
        blocks += ["---", f"Usage: {describe_usage(story.usage)}."]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _blocks(entry: Entry, story: Story, took: str | None) -> Iterator[str]:
    at = clock_time(entry.timestamp)
    if isinstance(entry, SystemPromptEntry):
        yield "## System"
        yield safe_markdown(entry.payload.text)
    elif isinstance(entry, ModelInputEntry):
        yield f"## {speaker(entry)}"
        yield f"*{at}*"
        yield from map(_part, entry.payload.message.parts)
    elif isinstance(entry, ModelOutputEntry):
        yield f"## Assistant ({safe_markdown(one_line(entry.payload.invocation.model))})"
        yield f"*{at}{f', after {took}' if took else ''}*"
        yield from map(_part, entry.payload.message.parts)
        if cut := ending(entry):
            yield f"*This answer {cut}*"
    elif isinstance(entry, ToolResultsEntry):
        names = {outcome.tool_call_id: outcome for outcome in entry.payload.outcomes}
        for part in entry.payload.message.tool_results:
            yield _result_line(part.payload, names.get(part.payload.tool_call_id))
            yield fenced(neutral(result_text(part.payload)))
    elif note := story.note(entry):
        yield f"*{at}: {safe_markdown(one_line(note))}{f' (after {took})' if took else ''}*"
        if isinstance(entry, ApprovalDecidedEntry) and entry.payload.arguments is not None:
            yield arguments_markdown(entry.payload.arguments)


def _result_line(result: ToolResultPayload, outcome: ToolOutcome | None) -> str:
    name = code_span(one_line(outcome.tool_name if outcome else result.tool_call_id))
    status = f", {outcome.status}" if outcome and outcome.status != "success" else ""
    took = f", {duration(outcome.elapsed_ms / 1000)}" if outcome and outcome.elapsed_ms is not None else ""
    return f"**Result of {name}**{status}{took}"


def _part(part: MessagePart) -> str:
    match part:
        case TextPart():
            return safe_markdown(part.payload.text)
        case ThinkingPart():
            return "\n".join(f"> {line}" for line in safe_markdown(part.payload.text).splitlines())
        case ToolCallPart():
            call = part.payload
            name = f"**Calls {code_span(one_line(call.tool_name))}**"
            if call.arguments is None:
                return f"{name}\n\n{fenced(neutral(call.raw_args_text))}"
            return f"{name}\n\n{arguments_markdown(call.arguments)}" if call.arguments else name
        case ToolResultPart():
            return fenced(neutral(result_text(part.payload)))
        case ImagePart():
            where = code_span(one_line(part.payload.url or "inline"))
            return f"*Image, {one_line(about_file(part.payload))}:* {where}"
        case FileRefPart():
            return f"*File:* {code_span(one_line(about_file(part.payload)))}"


def arguments_markdown(arguments: JsonObject) -> str:
    """An argument a line; text of several lines, and what is long, in blocks of their own."""
    lines: list[str] = []
    for name, value in arguments.items():
        label = f"- {code_span(one_line(name))}:"
        short = compact(value)
        if isinstance(value, str) and ("\n" in value or len(value) > _SHORT):
            lines.append(f"{label}\n\n{_indented(fenced(neutral(value)))}")
        elif len(short) > _SHORT:
            lines.append(f"{label}\n\n{_indented(fenced(neutral(pretty(value)), 'json'))}")
        else:
            lines.append(f"{label} {code_span(one_line(short))}")
    return "\n".join(lines)


def _indented(block: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in block.split("\n"))


def result_text(result: ToolResultPayload) -> str:
    if isinstance(result.content, str):
        return result.content
    if isinstance(result.content, dict):
        return pretty(result.content)
    return "\n".join(
        part.payload.text if isinstance(part, TextPart) else _part(part) for part in result.content
    )
