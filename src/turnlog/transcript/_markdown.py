"""A conversation to read, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnlog.contract import (
    ApprovalDecidedEntry,
    Entry,
    FileRefPart,
    ImagePart,
    JsonObject,
    MessagePart,
    ModelInputEntry,
    ModelOutputEntry,
    SystemPromptEntry,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolOutcome,
    ToolResultPart,
    ToolResultPayload,
    ToolResultsEntry,
)

from ._prose import code_span, fenced, neutral, safe_markdown
from ._story import (
    Story,
    clock_time,
    compact,
    day_and_time,
    describe_usage,
    duration,
    ending,
    one_line,
    pretty,
    speaker,
)

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
            return f"*Image, {one_line(part.payload.mime_type)}:* {where}"
        case FileRefPart():
            return f"*File:* {code_span(one_line(part.payload.path))}"


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
