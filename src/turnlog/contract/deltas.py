"""One increment of a model's stream: nine kinds, closed set; and the rules of their order.

The payloads are also what an adapter yields (with its own key as ``tool_call_id``); ``Model.stream``
checks them against the table at the end, gives calls their id, and puts them into the envelopes below.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeAlias, get_args

from ._base import JsonObject, P, Value
from .run import ModelInvocationDescriptor, TokenUsage

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
    """``target`` is there when a router chose who answers. ``reason`` tells why it did, or what of the
    configuration was left out of the call and why."""

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
    """``provider_data`` (such as a signature) belongs to the part this text lands in, and ends that part."""

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


class _Delta(Value, Generic[P], frozen=True, kw_only=True, tag_field="kind"):
    run_id: str
    seq: int
    payload: P
    timestamp: str
    provider_raw: JsonObject | None = None


class StartDelta(_Delta[StreamStart], frozen=True, tag="start"):
    kind: ClassVar[Literal["start"]] = "start"


class TextDelta(_Delta[TextChunk], frozen=True, tag="text"):
    kind: ClassVar[Literal["text"]] = "text"


class ThinkingDelta(_Delta[ThinkingChunk], frozen=True, tag="thinking"):
    kind: ClassVar[Literal["thinking"]] = "thinking"


class ToolCallStartDelta(_Delta[CallStart], frozen=True, tag="tool_call_start"):
    kind: ClassVar[Literal["tool_call_start"]] = "tool_call_start"


class ToolCallArgsDelta(_Delta[CallArgs], frozen=True, tag="tool_call_args"):
    kind: ClassVar[Literal["tool_call_args"]] = "tool_call_args"


class ToolCallEndDelta(_Delta[CallEnd], frozen=True, tag="tool_call_end"):
    kind: ClassVar[Literal["tool_call_end"]] = "tool_call_end"


class UsageDelta(_Delta[TokenUsage], frozen=True, tag="usage"):
    kind: ClassVar[Literal["usage"]] = "usage"


class DoneDelta(_Delta[StreamDone], frozen=True, tag="done"):
    kind: ClassVar[Literal["done"]] = "done"


class ErrorDelta(_Delta[StreamError], frozen=True, tag="error"):
    kind: ClassVar[Literal["error"]] = "error"


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

DELTA_KINDS: tuple[str, ...] = tuple(delta.kind for delta in get_args(MessageDelta))

StreamState: TypeAlias = Literal["idle", "streaming", "ended"]

GRAMMAR: dict[tuple[str, str], StreamState] = {
    ("idle", "start"): "streaming",
    ("streaming", "text"): "streaming",
    ("streaming", "thinking"): "streaming",
    ("streaming", "tool_call_start"): "streaming",
    ("streaming", "tool_call_args"): "streaming",
    ("streaming", "tool_call_end"): "streaming",
    ("streaming", "usage"): "streaming",
    ("streaming", "done"): "ended",
    ("streaming", "error"): "ended",
}
"""(state, kind of delta) → next state. What is not here is a broken rule."""

_CALL_KINDS = frozenset({"tool_call_start", "tool_call_args", "tool_call_end"})

_WHY: dict[tuple[str, str], str] = {
    ("streaming", "start"): "a second start",
}


class DeltaGrammar:
    """Follows one stream. ``check`` says what a delta breaks, or None and moves on."""

    __slots__ = ("_calls", "_seq", "state")

    def __init__(self) -> None:
        self.state: StreamState = "idle"
        self._calls: dict[str, bool] = {}
        self._seq: int | None = None

    @property
    def open_calls(self) -> list[str]:
        return [call for call, is_open in self._calls.items() if is_open]

    def check(self, kind: str, call_id: str | None = None, seq: int | None = None) -> str | None:
        following = GRAMMAR.get((self.state, kind))
        if following is None:
            return self._explain(kind)
        if seq is not None:
            if self._seq is not None and seq <= self._seq:
                return f"seq {seq} after seq {self._seq}: it must increase"
            self._seq = seq
        if kind in _CALL_KINDS and (broken := self._check_call(kind, call_id)):
            return broken
        if kind == "done" and (unfinished := self.open_calls):
            return f"done while call {unfinished[0]} has no tool_call_end"
        self.state = following
        return None

    def _check_call(self, kind: str, call_id: str | None) -> str | None:
        if not call_id:
            return f"{kind} names no call"
        known = self._calls.get(call_id)
        if kind == "tool_call_start":
            if known is not None:
                return f"call {call_id} starts twice"
            self._calls[call_id] = True
        elif known is None:
            return f"{kind} for call {call_id}, which never started"
        elif not known:
            return f"{kind} for call {call_id}, which has ended"
        elif kind == "tool_call_end":
            self._calls[call_id] = False
        return None

    def _explain(self, kind: str) -> str:
        if self.state == "idle":
            return f"{kind} before start"
        if self.state == "ended":
            return f"{kind} after the stream ended"
        return _WHY.get((self.state, kind), f"{kind} is not a kind of delta")
