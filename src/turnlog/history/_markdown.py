"""A conversation to read, as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ..contract import (
    ApprovalDecidedEntry,
    CompactionSummaryEntry,
    Entry,
    FileRefPart,
    FoldEntry,
    ImagePart,
    MessagePart,
    ModelCallFailedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelOutputEntry,
    RunEndedEntry,
    SystemPromptEntry,
    TextPart,
    ThinkingPart,
    TokenUsage,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    ToolResultsEntry,
)
from ._ledger import Ledger
from ._views import visible_entries

_TICKS = re.compile(r"`{3,}")


def render_markdown(entries: Sequence[Entry]) -> str:
    """The conversation in ``entries`` as a Markdown page, redactions applied; bookkeeping is left out."""
    shown = visible_entries(entries)
    ledger = Ledger()
    for entry in shown:
        ledger.apply(entry)
    blocks = [f"# {one_line(ledger.title or 'Conversation')}"]
    if shown:
        blocks.append(f"Session `{shown[-1].session_id}`, {shown[0].timestamp} to {shown[-1].timestamp}")
    for entry in shown:
        blocks += _blocks(entry)
    if ledger.usage:
        blocks += ["---", f"Usage: {describe_usage(ledger.usage)}."]
    return "\n\n".join(blocks) + "\n"


def _blocks(entry: Entry) -> Iterator[str]:
    if isinstance(entry, SystemPromptEntry):
        yield "## System"
        yield entry.payload.text
    elif isinstance(entry, ModelInputEntry):
        yield "## User" if entry.payload.message.role == "user" else "## System"
        yield from map(_part, entry.payload.message.parts)
    elif isinstance(entry, ModelOutputEntry):
        yield f"## Assistant ({one_line(entry.payload.invocation.model)})"
        yield from map(_part, entry.payload.message.parts)
    elif isinstance(entry, ToolResultsEntry):
        names = {outcome.tool_call_id: outcome for outcome in entry.payload.outcomes}
        for part in entry.payload.message.tool_results:
            outcome = names.get(part.payload.tool_call_id)
            status = f", {outcome.status}" if outcome and outcome.status != "success" else ""
            name = outcome.tool_name if outcome else part.payload.tool_call_id
            yield f"**Result of `{one_line(name)}`**{status}"
            yield fenced(result_text(part.payload))
    elif note := describe_note(entry):
        yield f"*{one_line(note)}*"


def _part(part: MessagePart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ThinkingPart():
            return "\n".join(f"> {line}" for line in part.payload.text.splitlines())
        case ToolCallPart():
            name = one_line(part.payload.tool_name)
            return f"**Calls `{name}`**\n\n{fenced(call_text(part), 'json')}"
        case ToolResultPart():
            return fenced(result_text(part.payload))
        case ImagePart():
            return f"*Image, {part.payload.mime_type}: {one_line(part.payload.url or 'inline')}*"
        case FileRefPart():
            return f"*File: {one_line(part.payload.path)}*"


def describe_note(entry: Entry) -> str | None:
    """A line for entries that a reader of the conversation wants to know of; None for the others."""
    match entry:
        case ModelCallFailedEntry():
            return f"Model call failed: {entry.payload.error.code}: {entry.payload.error.message}"
        case RunEndedEntry() if entry.payload.status != "completed":
            error = entry.payload.error
            return f"Run {entry.payload.status}" + (f": {error.code}: {error.message}" if error else "")
        case ApprovalDecidedEntry():
            done = {"approve": "approved", "deny": "denied", "modify": "approved with other arguments"}
            action = done.get(entry.payload.action, entry.payload.action)
            note = f": {entry.payload.note}" if entry.payload.note else ""
            return f"Call {entry.payload.tool_call_id} {action} by {entry.payload.decided_by}{note}"
        case ModelChangeEntry():
            return f"The model is now {entry.payload.target.model}"
        case FoldEntry():
            before, after = entry.payload.tokens_before, entry.payload.tokens_after
            return f"Older content was folded: {before} to {after} tokens"
        case CompactionSummaryEntry():
            return f"Summary of what came before: {entry.payload.summary}"
        case _:
            return None


def describe_usage(usage: TokenUsage) -> str:
    words = f"{usage.input_tokens:,} tokens in"
    if usage.cached_input_tokens:
        words += f" ({usage.cached_input_tokens:,} cached)"
    words += f", {usage.output_tokens:,} out"
    return words + (f", ${usage.cost:.4f}" if usage.cost is not None else "")


def call_text(part: ToolCallPart) -> str:
    call = part.payload
    if call.arguments is None:
        return call.raw_args_text
    return json.dumps(call.arguments, indent=2, ensure_ascii=False)


def result_text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    if isinstance(result.content, dict):
        return json.dumps(result.content, indent=2, ensure_ascii=False)
    return "\n".join(
        part.payload.text if isinstance(part, TextPart) else _part(part) for part in result.content
    )


def fenced(text: str, language: str = "") -> str:
    """A code block that ``text`` cannot end early."""
    ticks = max((len(found) for found in _TICKS.findall(text)), default=2) + 1
    fence = "`" * max(ticks, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def one_line(text: str) -> str:
    return " ".join(text.split())
