"""One increment of a model's stream: nine kinds, closed set.

The payloads are also what an adapter yields (with its own key as ``tool_call_id``); ``Model.stream``
checks them, gives calls their id, and puts them into the envelopes below.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from ._base import JsonObject, Value
from ._run import ModelInvocationDescriptor
from ._tools import TokenUsage

FINISH_REASONS: tuple[str, ...] = (
    "stop",
    "tool_calls",
    "length",
    "stop_sequence",
    "content_filter",
    "refusal",
    "pause",
    "other",
)
"""What ``done.finishReason`` may say; each provider's words map onto these."""


class StreamStart(Value, frozen=True, kw_only=True):
    """``target`` and ``reason`` are there when a router chose who answers."""

    model_id: str
    request_id: str | None = None
    model_call_index: int | None = None
    attempt: int | None = None
    target: ModelInvocationDescriptor | None = None
    reason: str | None = None


class TextChunk(Value, frozen=True, kw_only=True):
    """``provider_data`` belongs to the part this text lands in, and ends that part."""

    text_delta: str
    provider_data: JsonObject | None = None


class ThinkingChunk(Value, frozen=True, kw_only=True):
    """``provider_data`` (a signature, say) belongs to the part this text lands in, and ends that part."""

    text_delta: str
    provider_data: JsonObject | None = None


class CallStart(Value, frozen=True, kw_only=True):
    tool_call_id: str
    tool_name: str
    provider_data: JsonObject | None = None


class CallArgs(Value, frozen=True, kw_only=True):
    tool_call_id: str
    args_text_delta: str


class CallEnd(Value, frozen=True, kw_only=True):
    tool_call_id: str
    provider_data: JsonObject | None = None


class StreamDone(Value, frozen=True, kw_only=True):
    finish_reason: str
    provider_data: JsonObject | None = None


class StreamError(Value, frozen=True, kw_only=True):
    error_code: str
    message: str | None = None
    retryable: bool | None = None
    retry_after: float | None = None


Chunk: TypeAlias = (
    StreamStart
    | TextChunk
    | ThinkingChunk
    | CallStart
    | CallArgs
    | CallEnd
    | TokenUsage
    | StreamDone
    | StreamError
)
"""A delta's payload, before it has a place in a stream."""


class _Delta(Value, frozen=True, kw_only=True, tag_field="kind"):
    run_id: str
    seq: int


class StartDelta(_Delta, frozen=True, kw_only=True, tag="start"):
    kind: ClassVar[Literal["start"]] = "start"
    payload: StreamStart
    timestamp: str
    provider_raw: JsonObject | None = None


class TextDelta(_Delta, frozen=True, kw_only=True, tag="text"):
    kind: ClassVar[Literal["text"]] = "text"
    payload: TextChunk
    timestamp: str
    provider_raw: JsonObject | None = None


class ThinkingDelta(_Delta, frozen=True, kw_only=True, tag="thinking"):
    kind: ClassVar[Literal["thinking"]] = "thinking"
    payload: ThinkingChunk
    timestamp: str
    provider_raw: JsonObject | None = None


class ToolCallStartDelta(_Delta, frozen=True, kw_only=True, tag="tool_call_start"):
    kind: ClassVar[Literal["tool_call_start"]] = "tool_call_start"
    payload: CallStart
    timestamp: str
    provider_raw: JsonObject | None = None


class ToolCallArgsDelta(_Delta, frozen=True, kw_only=True, tag="tool_call_args"):
    kind: ClassVar[Literal["tool_call_args"]] = "tool_call_args"
    payload: CallArgs
    timestamp: str
    provider_raw: JsonObject | None = None


class ToolCallEndDelta(_Delta, frozen=True, kw_only=True, tag="tool_call_end"):
    kind: ClassVar[Literal["tool_call_end"]] = "tool_call_end"
    payload: CallEnd
    timestamp: str
    provider_raw: JsonObject | None = None


class UsageDelta(_Delta, frozen=True, kw_only=True, tag="usage"):
    kind: ClassVar[Literal["usage"]] = "usage"
    payload: TokenUsage
    timestamp: str
    provider_raw: JsonObject | None = None


class DoneDelta(_Delta, frozen=True, kw_only=True, tag="done"):
    kind: ClassVar[Literal["done"]] = "done"
    payload: StreamDone
    timestamp: str
    provider_raw: JsonObject | None = None


class ErrorDelta(_Delta, frozen=True, kw_only=True, tag="error"):
    kind: ClassVar[Literal["error"]] = "error"
    payload: StreamError
    timestamp: str
    provider_raw: JsonObject | None = None


MessageDelta: TypeAlias = (
    StartDelta
    | TextDelta
    | ThinkingDelta
    | ToolCallStartDelta
    | ToolCallArgsDelta
    | ToolCallEndDelta
    | UsageDelta
    | DoneDelta
    | ErrorDelta
)

DELTA_KINDS: tuple[str, ...] = (
    "start",
    "text",
    "thinking",
    "tool_call_start",
    "tool_call_args",
    "tool_call_end",
    "usage",
    "done",
    "error",
)
