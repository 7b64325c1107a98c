"""An entry without its content: who and when and what belongs together stay, the words go."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from ..contract import (
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    BranchSummary,
    CompactionSummary,
    Custom,
    DeltaBatch,
    Entry,
    EntryPayload,
    ErrorInfo,
    FileRef,
    FileRefPart,
    Fold,
    ImagePart,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessagePart,
    ModelCallFailed,
    ModelCallStarted,
    ModelChange,
    ModelInput,
    ModelOutput,
    Purge,
    Redaction,
    RunEnded,
    RunStarted,
    RuntimeInit,
    SessionHeader,
    SystemPrompt,
    TextPart,
    ThinkingPart,
    ToolAnswered,
    ToolCall,
    ToolCallPart,
    ToolDeferred,
    ToolOutcome,
    ToolResultPart,
    ToolResultPayload,
    ToolResults,
    ToolsChange,
    ToolSpec,
    ToolStarted,
    WidgetEvent,
    decode,
    text_part,
    thinking_part,
)

PLACEHOLDER = "[redacted]"
"""Stands where words were."""

_BLOB = re.compile(rb'(?:blob:|"artifact":")(sha256-[0-9a-f]{64})')
_replace = msgspec.structs.replace
P = TypeVar("P", bound=EntryPayload)


def blobs_in(body: bytes) -> set[str]:
    """Names of the stored bytes that an entry's body refers to: its images, and outputs kept apart."""
    return {found.decode() for found in _BLOB.findall(body)}


def title_of(body: bytes) -> str | None:
    """The title in a log's first entry, where it is a header that has one."""
    if b'"session_header"' not in body[:200]:
        return None
    try:
        entry: Entry = decode(body, Entry)
    except AgentError:
        return None  # an older or newer header: listing sessions does not fail on it
    return entry.payload.title if isinstance(entry.payload, SessionHeader) else None


def blank_payload(payload: EntryPayload) -> EntryPayload:
    """``payload`` with structure and pairing kept and its content gone. Blanking twice changes nothing."""
    match payload:
        case SessionHeader():
            return _replace(payload, title=None, metadata=None)
        case RunStarted():
            prompt = None if payload.system_prompt_override is None else PLACEHOLDER
            return _replace(
                payload,
                system_prompt_override=prompt,
                model_params=None,
                output_schema=None,
                invocation_state=None,
                system_prompt_content=None,
            )
        case RunEnded():
            return _replace(payload, error=_blank_error(payload.error))
        case ModelInput():
            return _replace(
                payload, message=_blank_message(payload.message), sections=_blank_sections(payload.sections)
            )
        case ModelCallFailed():
            partial = None if payload.partial is None else PLACEHOLDER
            return _replace(payload, error=_blank_error(payload.error) or payload.error, partial=partial)
        case ModelOutput():
            return _replace(payload, message=_blank_message(payload.message))
        case ToolsChange():
            return _replace(payload, tools=[_blank_tool(tool) for tool in payload.tools])
        case ToolStarted():
            return _replace(payload, arguments=None if payload.arguments is None else {})
        case ToolDeferred():
            question = None if payload.question is None else PLACEHOLDER
            state: JsonObject | None = None if payload.state is None else {}
            return _replace(payload, reason=PLACEHOLDER, question=question, answer_schema=None, state=state)
        case ToolAnswered():
            return _replace(payload, content=None)
        case ToolResults():
            outcomes = [_blank_outcome(outcome) for outcome in payload.outcomes]
            error = None if payload.execute_error is None else PLACEHOLDER
            return _replace(
                payload, message=_blank_message(payload.message), outcomes=outcomes, execute_error=error
            )
        case ApprovalRequested():
            return _replace(payload, arguments={}, reason=None)
        case ApprovalDecided():
            return _replace(payload, arguments=None if payload.arguments is None else {}, note=None)
        case RuntimeInit():
            return _replace(payload, data={})
        case SystemPrompt():
            return _replace(payload, text=PLACEHOLDER)
        case WidgetEvent() | Custom():
            return _replace(payload, data={})
        case Fold():
            return _blank_fold(payload)
        case CompactionSummary():
            return _replace(payload, summary=PLACEHOLDER)
        case BranchSummary():
            return _replace(payload, summary=None if payload.summary is None else PLACEHOLDER)
        case DeltaBatch():
            return _replace(payload, deltas=[])
        case Redaction() | Purge() | ModelChange() | ModelCallStarted():
            return _replace(payload, reason=None)


def _blank_error(error: ErrorInfo | None) -> ErrorInfo | None:
    return None if error is None else _replace(error, message=PLACEHOLDER, meta=None)


def _blank_sections(sections: LevelOfDetailSections | None) -> None:
    """Grains are nothing but words."""


def _blank_outcome(outcome: ToolOutcome) -> ToolOutcome:
    return _replace(outcome, sections=None, artifact=None, traceback=None)


def _blank_tool(tool: ToolSpec) -> ToolSpec:
    return ToolSpec(name=tool.name, description=PLACEHOLDER, parameter_schema={})


def _blank_fold(fold: Fold) -> Fold:
    items = [_replace(item, text=item.text and PLACEHOLDER) for item in fold.items]
    segments = [_replace(segment, text=PLACEHOLDER) for segment in fold.segments]
    screen = None if fold.screen is None else PLACEHOLDER
    return _replace(fold, items=items, segments=segments, screen=screen)


def _blank_message(message: Message) -> Message:
    usage = (message.meta or {}).get("usage")
    return Message(
        run_id=message.run_id,
        role=message.role,
        parts=[blank_part(part) for part in message.parts],
        timestamp=message.timestamp,
        meta={"usage": usage} if usage else None,
    )


def blank_part(part: MessagePart) -> MessagePart:
    match part:
        case TextPart():
            return text_part(PLACEHOLDER)
        case ThinkingPart():
            return thinking_part(PLACEHOLDER)
        case ToolCallPart():
            call = part.payload
            return ToolCallPart(
                payload=ToolCall(
                    tool_call_id=call.tool_call_id,
                    tool_name=call.tool_name,
                    arguments=None if call.arguments is None else {},
                    raw_args_text="{}",
                )
            )
        case ToolResultPart():
            result = part.payload
            return ToolResultPart(
                payload=ToolResultPayload(
                    tool_call_id=result.tool_call_id, is_error=result.is_error, content=PLACEHOLDER
                )
            )
        case ImagePart():
            return text_part(PLACEHOLDER)
        case FileRefPart():
            return FileRefPart(payload=FileRef(path=PLACEHOLDER))
