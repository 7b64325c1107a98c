"""What a watcher of a run is told: a stable, versioned, numbered stream.

An event about an entry comes after the append of that entry returned; none carries ``providerRaw``.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from ._base import JsonObject, Value
from .deltas import MessageDelta
from .errors import ErrorInfo
from .messages import Message
from .run import ModelInvocationDescriptor, RunResult, RunStatus
from .tools import ToolStatus


class InputShown(Value, frozen=True, kw_only=True):
    entry_id: str
    message: Message


class DeltaShown(Value, frozen=True, kw_only=True):
    model_call_index: int
    attempt: int
    delta: MessageDelta


class ModelCallShown(Value, frozen=True, kw_only=True):
    """A call is about to be made: to whom, and why."""

    entry_id: str
    model_call_index: int
    attempt: int
    target: ModelInvocationDescriptor
    context_hash: str
    reason: str | None = None


class AssistantMessageShown(Value, frozen=True, kw_only=True):
    entry_id: str
    message: Message
    finish_reason: str


class ToolStartedShown(Value, frozen=True, kw_only=True):
    entry_id: str
    tool_call_id: str
    tool_name: str
    arguments: JsonObject | None = None


class ToolProgressShown(Value, frozen=True, kw_only=True):
    """``data`` is whatever the tool reported; ``text`` is partial output to append."""

    tool_call_id: str
    tool_name: str
    text: str | None = None
    data: JsonObject | None = None


class ToolResultShown(Value, frozen=True, kw_only=True):
    entry_id: str
    tool_call_id: str
    tool_name: str
    status: ToolStatus
    message: Message


class ApprovalShown(Value, frozen=True, kw_only=True):
    entry_id: str
    tool_call_id: str
    tool_name: str
    arguments: JsonObject
    digest: str
    reason: str | None = None


class DecisionShown(Value, frozen=True, kw_only=True):
    entry_id: str
    tool_call_id: str
    action: str
    decided_by: str


class StatusShown(Value, frozen=True, kw_only=True):
    status: RunStatus
    previous: RunStatus


class Retracted(Value, frozen=True, kw_only=True):
    """What was shown of this attempt does not count: the call failed and is made again."""

    model_call_index: int
    attempt: int
    reason: str


class ErrorShown(Value, frozen=True, kw_only=True):
    error: ErrorInfo
    will_retry: bool = False
    retry_in_ms: int | None = None


class ContextShown(Value, frozen=True, kw_only=True):
    """The context was folded or compacted."""

    entry_id: str
    reason: str
    tokens_before: int
    tokens_after: int


class RunEnd(Value, frozen=True, kw_only=True):
    result: RunResult


class _Event(Value, frozen=True, kw_only=True, tag_field="kind"):
    seq: int
    session_id: str
    run_id: str
    timestamp: str


class InputEvent(_Event, frozen=True, kw_only=True, tag="input"):
    kind: ClassVar[Literal["input"]] = "input"
    payload: InputShown


class ModelCallEvent(_Event, frozen=True, kw_only=True, tag="model_call"):
    kind: ClassVar[Literal["model_call"]] = "model_call"
    payload: ModelCallShown


class ModelDeltaEvent(_Event, frozen=True, kw_only=True, tag="model_delta"):
    kind: ClassVar[Literal["model_delta"]] = "model_delta"
    payload: DeltaShown


class AssistantMessageEvent(_Event, frozen=True, kw_only=True, tag="assistant_message"):
    kind: ClassVar[Literal["assistant_message"]] = "assistant_message"
    payload: AssistantMessageShown


class ToolStartedEvent(_Event, frozen=True, kw_only=True, tag="tool_started"):
    kind: ClassVar[Literal["tool_started"]] = "tool_started"
    payload: ToolStartedShown


class ToolProgressEvent(_Event, frozen=True, kw_only=True, tag="tool_progress"):
    kind: ClassVar[Literal["tool_progress"]] = "tool_progress"
    payload: ToolProgressShown


class ToolResultEvent(_Event, frozen=True, kw_only=True, tag="tool_result"):
    kind: ClassVar[Literal["tool_result"]] = "tool_result"
    payload: ToolResultShown


class ApprovalRequestedEvent(_Event, frozen=True, kw_only=True, tag="approval_requested"):
    kind: ClassVar[Literal["approval_requested"]] = "approval_requested"
    payload: ApprovalShown


class ApprovalDecidedEvent(_Event, frozen=True, kw_only=True, tag="approval_decided"):
    kind: ClassVar[Literal["approval_decided"]] = "approval_decided"
    payload: DecisionShown


class StatusEvent(_Event, frozen=True, kw_only=True, tag="status"):
    kind: ClassVar[Literal["status"]] = "status"
    payload: StatusShown


class RetractedEvent(_Event, frozen=True, kw_only=True, tag="retracted"):
    kind: ClassVar[Literal["retracted"]] = "retracted"
    payload: Retracted


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    kind: ClassVar[Literal["error"]] = "error"
    payload: ErrorShown


class ContextEvent(_Event, frozen=True, kw_only=True, tag="context"):
    kind: ClassVar[Literal["context"]] = "context"
    payload: ContextShown


class RunEndedEvent(_Event, frozen=True, kw_only=True, tag="run_ended"):
    kind: ClassVar[Literal["run_ended"]] = "run_ended"
    payload: RunEnd


RunEvent: TypeAlias = (
    InputEvent
    | ModelCallEvent
    | ModelDeltaEvent
    | AssistantMessageEvent
    | ToolStartedEvent
    | ToolProgressEvent
    | ToolResultEvent
    | ApprovalRequestedEvent
    | ApprovalDecidedEvent
    | StatusEvent
    | RetractedEvent
    | ErrorEvent
    | ContextEvent
    | RunEndedEvent
)

EVENT_KINDS: tuple[str, ...] = (
    "input",
    "model_call",
    "model_delta",
    "assistant_message",
    "tool_started",
    "tool_progress",
    "tool_result",
    "approval_requested",
    "approval_decided",
    "status",
    "retracted",
    "error",
    "context",
    "run_ended",
)
