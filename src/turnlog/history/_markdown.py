"""A conversation to read, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..contract import (
    ApprovalDecidedEntry,
    Entry,
    FileRefPart,
    ImagePart,
    MessagePart,
    ModelInputEntry,
    ModelOutputEntry,
    SystemPromptEntry,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
    ToolResultsEntry,
)
from ._story import Story, call_text, describe_usage, ending, one_line, pretty, speaker

_TICKS = re.compile(r"`{3,}")


def render_markdown(entries: Sequence[Entry]) -> str:
    """The conversation in ``entries`` as a Markdown page, redactions applied; bookkeeping is left out."""
    story = Story(entries)
    shown = story.entries
    blocks = [f"# {story.title}"]
    if shown:
        blocks.append(f"Session `{shown[-1].session_id}`, {shown[0].timestamp} to {shown[-1].timestamp}")
    for entry in shown:
        blocks += _blocks(entry, story)
    if story.ledger.usage:
        blocks += ["---", f"Usage: {describe_usage(story.ledger.usage)}."]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _blocks(entry: Entry, story: Story) -> Iterator[str]:
    if isinstance(entry, SystemPromptEntry):
        yield "## System"
        yield entry.payload.text
    elif isinstance(entry, ModelInputEntry):
        yield f"## {speaker(entry)}"
        yield from map(_part, entry.payload.message.parts)
    elif isinstance(entry, ModelOutputEntry):
        yield f"## Assistant ({one_line(entry.payload.invocation.model)})"
        yield from map(_part, entry.payload.message.parts)
        if cut := ending(entry):
            yield f"*This answer {cut}*"
    elif isinstance(entry, ToolResultsEntry):
        names = {outcome.tool_call_id: outcome for outcome in entry.payload.outcomes}
        for part in entry.payload.message.tool_results:
            outcome = names.get(part.payload.tool_call_id)
            status = f", {outcome.status}" if outcome and outcome.status != "success" else ""
            name = outcome.tool_name if outcome else part.payload.tool_call_id
            yield f"**Result of `{one_line(name)}`**{status}"
            yield fenced(result_text(part.payload))
    elif note := story.note(entry):
        yield f"*{one_line(note)}*"
        if isinstance(entry, ApprovalDecidedEntry) and entry.payload.arguments is not None:
            yield fenced(pretty(entry.payload.arguments), "json")


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


def result_text(result: ToolResultPayload) -> str:
    if isinstance(result.content, str):
        return result.content
    if isinstance(result.content, dict):
        return pretty(result.content)
    return "\n".join(
        part.payload.text if isinstance(part, TextPart) else _part(part) for part in result.content
    )


def fenced(text: str, language: str = "") -> str:
    """A code block that ``text`` cannot end early."""
    ticks = max((len(found) for found in _TICKS.findall(text)), default=2) + 1
    fence = "`" * max(ticks, 3)
    return f"{fence}{language}\n{text}\n{fence}"
