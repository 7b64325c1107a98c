"""One entry at one grain as the message a model gets. Formats here are part of the wire: change none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnlog.contract import (
    LIVE_SCREEN,
    OWN_SECTIONS,
    Entry,
    Grain,
    ImagePart,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessagePart,
    ModelInput,
    PurgeEntry,
    RedactionEntry,
    Section,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResultPart,
    ToolResultPayload,
    encode,
    text_part,
    to_plain_text,
    try_get_section,
)
from turnlog.contract import FileRefPart as FileRefPart

REDACTED = "[redacted]"
"""What stands for content that a redaction or a purge took away."""

NO_RESULT = "[no result was recorded]"

ResultContent = str | JsonObject | list[TextPart | ImagePart | FileRefPart]


def has_screen(sections: LevelOfDetailSections | None) -> bool:
    return sections is not None and try_get_section(sections.live, LIVE_SCREEN) is not None


def live_sections(sections: LevelOfDetailSections | None, *, screen: bool) -> list[Section]:
    """What was added to the live grain; without ``screen``, all but what widgets showed."""
    if sections is None or screen:
        return sections.live if sections else []
    return [section for section in sections.live if section[0] != LIVE_SCREEN]


def input_text(message: Message, sections: Sequence[Section]) -> str:
    """All that was given with an input: its text, and the sections that are not the runtime's own."""
    given = [section for section in sections if section[0] not in OWN_SECTIONS]
    text = parts_text(message.parts)
    return "\n\n".join(filter(None, (text, to_plain_text(given)))) if given else text


def render_input(payload: ModelInput, *, screen: bool = True) -> Message:
    """The message itself, what was added to its live grain behind it."""
    message = payload.message
    added = live_sections(payload.sections, screen=screen)
    if not added:
        return message
    return with_parts(message, [*message.parts, text_part(to_plain_text(added))])


def render_content(content: ResultContent, added: Sequence[Section] | None) -> ResultContent:
    """A result's live content with the sections that were added to it."""
    if not added:
        return content
    tail = to_plain_text(added)
    match content:
        case str():
            return f"{content}\n\n{tail}" if content else tail
        case dict():
            return [text_part(encode(content).decode()), text_part(tail)]
        case list():
            return [*content, text_part(tail)]


def content_text(content: ResultContent | list[MessagePart]) -> str:
    """What a result or a message says, as text; images and files by name."""
    match content:
        case str():
            return content
        case dict():
            return encode(content).decode()
        case list():
            return parts_text(content)


def parts_text(parts: Iterable[MessagePart]) -> str:
    return "\n".join(line for part in parts if (line := _part_text(part)))


def _part_text(part: MessagePart) -> str:
    match part:
        case TextPart():
            return part.payload.text
        case ToolCallPart():
            return f"{part.payload.tool_name}({part.payload.raw_args_text})"
        case ToolResultPart():
            return content_text(part.payload.content)
        case ImagePart():
            return f"[image {part.payload.mime_type}]"
        case FileRefPart():
            return f"[file {part.payload.path}]"
        case ThinkingPart():
            return ""


def grain_text(sections: LevelOfDetailSections | None, grain: Grain) -> str | None:
    """The stored text of a lower grain, or None when the entry carries none."""
    if sections is None or grain == "live":
        return None
    return to_plain_text(sections.get_sections(grain)) or None


def folded_text(seq: int, grain: Grain, text: str) -> str:
    """A lower grain as the model reads it: with the number that ``recall`` takes."""
    return f"[#{seq} {grain}; recall #{seq} brings the whole text]\n{text}"


def replace_result(part: ToolResultPart, content: ResultContent) -> ToolResultPart:
    old = part.payload
    if content is old.content:
        return part
    return ToolResultPart(
        payload=ToolResultPayload(
            tool_call_id=old.tool_call_id,
            is_error=old.is_error,
            content=content,
            provider_data=old.provider_data,
        )
    )


def without_thinking(message: Message) -> Message:
    parts: list[MessagePart] = [part for part in message.parts if not isinstance(part, ThinkingPart)]
    return message if len(parts) == len(message.parts) else with_parts(message, parts)


def hidden_ids(entries: Iterable[Entry]) -> set[str]:
    """The entries whose content a redaction or a purge in ``entries`` took away."""
    hidden: set[str] = set()
    for entry in entries:
        if isinstance(entry, RedactionEntry | PurgeEntry):
            hidden.update(entry.payload.entry_ids)
    return hidden


def redact_message(message: Message) -> Message:
    """The same shape without the words: calls and results stay paired, nothing they said remains."""
    parts: list[MessagePart] = []
    for part in message.parts:
        match part:
            case ToolCallPart():
                parts.append(_redact_call(part.payload))
            case ToolResultPart():
                parts.append(_redact_result(part.payload))
            case TextPart() | ImagePart() | FileRefPart() | ThinkingPart():
                pass
    if not any(isinstance(part, ToolCallPart | ToolResultPart) for part in parts):
        parts.append(text_part(REDACTED))
    return with_parts(message, parts)


def _redact_call(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(
        payload=ToolCall(
            tool_call_id=call.tool_call_id, tool_name=call.tool_name, arguments={}, raw_args_text="{}"
        )
    )


def _redact_result(result: ToolResultPayload) -> ToolResultPart:
    return ToolResultPart(
        payload=ToolResultPayload(
            tool_call_id=result.tool_call_id, is_error=result.is_error, content=REDACTED
        )
    )


def with_parts(message: Message, parts: list[MessagePart]) -> Message:
    return Message(
        run_id=message.run_id,
        role=message.role,
        parts=parts,
        timestamp=message.timestamp,
        meta=message.meta,
    )
