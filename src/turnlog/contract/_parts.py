"""The six kinds of message part and their payloads. The set is closed and versioned."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from ._base import JsonObject, Value, find_unjson
from ._errors import AgentError


class Text(Value, frozen=True, kw_only=True):
    text: str
    provider_data: JsonObject | None = None


class Thinking(Value, frozen=True, kw_only=True):
    text: str
    provider_data: JsonObject | None = None


class ToolCall(Value, frozen=True, kw_only=True):
    """``raw_args_text`` is what the model wrote, always; ``arguments`` is None when that does not parse."""

    tool_call_id: str
    tool_name: str
    arguments: JsonObject | None
    raw_args_text: str
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if found := find_unjson(self.arguments):
            raise AgentError("InvalidMessage", f"arguments of {self.tool_name!r}: {found}")


class Image(Value, frozen=True, kw_only=True):
    """Exactly one of ``data`` (base64) and ``url``; in the log ``url`` is ``blob:sha256-…``."""

    mime_type: str
    data: str | None = None
    url: str | None = None
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise AgentError("InvalidMessage", "an image needs exactly one of data and url")


class FileRef(Value, frozen=True, kw_only=True):
    path: str
    mime_type: str | None = None
    size: int | None = None
    provider_data: JsonObject | None = None


class TextPart(Value, frozen=True, kw_only=True, tag_field="kind", tag="text"):
    kind: ClassVar[Literal["text"]] = "text"
    payload: Text


class ThinkingPart(Value, frozen=True, kw_only=True, tag_field="kind", tag="thinking"):
    kind: ClassVar[Literal["thinking"]] = "thinking"
    payload: Thinking


class ToolCallPart(Value, frozen=True, kw_only=True, tag_field="kind", tag="tool_call"):
    kind: ClassVar[Literal["tool_call"]] = "tool_call"
    payload: ToolCall


class ImagePart(Value, frozen=True, kw_only=True, tag_field="kind", tag="image"):
    kind: ClassVar[Literal["image"]] = "image"
    payload: Image


class FileRefPart(Value, frozen=True, kw_only=True, tag_field="kind", tag="file_ref"):
    kind: ClassVar[Literal["file_ref"]] = "file_ref"
    payload: FileRef


class ToolResult(Value, frozen=True, kw_only=True):
    """``content`` is text, a JSON object, or parts (text, image, file_ref)."""

    tool_call_id: str
    is_error: bool
    content: str | JsonObject | list[TextPart | ImagePart | FileRefPart]
    provider_data: JsonObject | None = None

    def __post_init__(self) -> None:
        if isinstance(self.content, dict) and (found := find_unjson(self.content)):
            raise AgentError("InvalidMessage", f"result of call {self.tool_call_id!r}: {found}")


class ToolResultPart(Value, frozen=True, kw_only=True, tag_field="kind", tag="tool_result"):
    kind: ClassVar[Literal["tool_result"]] = "tool_result"
    payload: ToolResult


MessagePart: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ToolResultPart | ImagePart | FileRefPart

PART_KINDS: tuple[str, ...] = ("text", "thinking", "tool_call", "tool_result", "image", "file_ref")


def text_part(text: str, provider_data: JsonObject | None = None) -> TextPart:
    return TextPart(payload=Text(text=text, provider_data=provider_data))


def thinking_part(text: str, provider_data: JsonObject | None = None) -> ThinkingPart:
    return ThinkingPart(payload=Thinking(text=text, provider_data=provider_data))


def tool_result_part(
    tool_call_id: str,
    content: str | JsonObject | list[TextPart | ImagePart | FileRefPart],
    *,
    is_error: bool = False,
) -> ToolResultPart:
    return ToolResultPart(payload=ToolResult(tool_call_id=tool_call_id, is_error=is_error, content=content))
