"""The events that a watcher of a run sees: a stable, versioned, numbered stream.

An event about an entry comes after the append of that entry returned; none carries ``providerRaw``.
The objects are flat: ``case TextDelta(text=text)``. On the wire what is special to a kind stands under
``payload``: ``turnlog.contract.encode(event)`` writes one event, ``decode(data, RunEvent)`` reads it.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from . import deltas
from ._base import JsonObject, Value
from .errors import ErrorInfo
from .messages import Message
from .run import ModelInvocationDescriptor, RunResult, RunStatus, ToolStatus

D = TypeVar("D", bound=deltas.MessageDelta)


class Event(Value, frozen=True, kw_only=True):
    """Base of all events. ``seq`` increases within a session."""

    seq: int
    session_id: str
    run_id: str
    timestamp: str


class DeltaEvent(Event, Generic[D], frozen=True, kw_only=True):
    """Base of the events of deltas."""

    kind: ClassVar[Literal["model_delta"]] = "model_delta"
    model_call_index: int
    attempt: int
    delta: D


class TextDelta(DeltaEvent[deltas.TextDelta], frozen=True):
    """A piece of the answer's text."""

    @property
    def text(self) -> str:
        return self.delta.payload.text_delta


class ThinkingDelta(DeltaEvent[deltas.ThinkingDelta], frozen=True):
    """A piece of what the model thinks before it answers."""

    @property
    def text(self) -> str:
        return self.delta.payload.text_delta


class ToolCallDelta(
    DeltaEvent[deltas.ToolCallStartDelta | deltas.ToolCallArgsDelta | deltas.ToolCallEndDelta], frozen=True
):
    """A tool call begins, a piece of its arguments comes, or it is complete."""

    @property
    def tool_call_id(self) -> str:
        return self.delta.payload.tool_call_id

    @property
    def tool_name(self) -> str | None:
        """The tool's name, when the call begins."""
        return self.delta.payload.tool_name if self.delta.kind == "tool_call_start" else None

    @property
    def arguments_text(self) -> str:
        """The next piece of the arguments' JSON text; empty when the call begins or is complete."""
        return self.delta.payload.args_text_delta if self.delta.kind == "tool_call_args" else ""


class ModelDelta(
    DeltaEvent[deltas.StartDelta | deltas.UsageDelta | deltas.DoneDelta | deltas.ErrorDelta], frozen=True
):
    """Any other delta: the stream's start, usage and end."""


class InputAdded(Event, frozen=True, kw_only=True):
    kind: ClassVar[Literal["input"]] = "input"
    entry_id: str
    message: Message

    @property
    def text(self) -> str:
        return self.message.text


class ModelCalled(Event, frozen=True, kw_only=True):
    """A call is about to be made: to whom, and why."""

    kind: ClassVar[Literal["model_call"]] = "model_call"
    entry_id: str
    model_call_index: int
    attempt: int
    target: ModelInvocationDescriptor
    context_hash: str
    reason: str | None = None


class AnswerAdded(Event, frozen=True, kw_only=True):
    """The model's whole answer was appended. ``note`` tells why a router chose this model, or what of the
    configuration the call went without, such as thinking that the provider would have refused."""

    kind: ClassVar[Literal["assistant_message"]] = "assistant_message"
    entry_id: str
    message: Message
    finish_reason: str
    note: str | None = None

    @property
    def text(self) -> str:
        return self.message.text


class ToolStarted(Event, frozen=True, kw_only=True):
    """``child_session_id`` names the session in which another agent does the work."""

    kind: ClassVar[Literal["tool_started"]] = "tool_started"
    entry_id: str
    tool_call_id: str
    tool_name: str
    arguments: JsonObject | None = None
    child_session_id: str | None = None


class ToolProgressed(Event, frozen=True, kw_only=True):
    """``data`` is what the tool reported; ``text`` is partial output to append."""

    kind: ClassVar[Literal["tool_progress"]] = "tool_progress"
    tool_call_id: str
    tool_name: str
    text: str | None = None
    data: JsonObject | None = None


class ToolDeferred(Event, frozen=True, kw_only=True):
    """A call waits for an answer from outside: ``Session.answer`` gives it. ``question`` is what is asked,
    ``answer_schema`` the form of the answer, ``by`` who is to give it."""

    kind: ClassVar[Literal["tool_deferred"]] = "tool_deferred"
    entry_id: str
    tool_call_id: str
    tool_name: str
    reason: str
    question: str | None = None
    answer_schema: JsonObject | None = None
    by: str | None = None


class ToolFinished(Event, frozen=True, kw_only=True):
    """A call's result was appended; ``message`` holds that one result. ``handed_to`` is the agent that
    answers from here on, where the call handed the conversation over."""

    kind: ClassVar[Literal["tool_result"]] = "tool_result"
    entry_id: str
    tool_call_id: str
    tool_name: str
    status: ToolStatus
    message: Message
    elapsed_ms: int | None = None
    handed_to: str | None = None

    @property
    def is_error(self) -> bool:
        return any(part.payload.is_error for part in self.message.tool_results)

    @property
    def text(self) -> str:
        """What the model reads of the result: its text, or its JSON."""
        return "".join(part.payload.text for part in self.message.tool_results)


class ApprovalRequested(Event, frozen=True, kw_only=True):
    """A call waits for a person."""

    kind: ClassVar[Literal["approval_requested"]] = "approval_requested"
    entry_id: str
    tool_call_id: str
    tool_name: str
    arguments: JsonObject
    digest: str
    reason: str | None = None


class ApprovalDecided(Event, frozen=True, kw_only=True):
    kind: ClassVar[Literal["approval_decided"]] = "approval_decided"
    entry_id: str
    tool_call_id: str
    action: str
    decided_by: str


class StatusChanged(Event, frozen=True, kw_only=True):
    kind: ClassVar[Literal["status"]] = "status"
    status: RunStatus
    previous: RunStatus


class Retracted(Event, frozen=True, kw_only=True):
    """What was shown of this attempt is retracted: the call failed and is made again."""

    kind: ClassVar[Literal["retracted"]] = "retracted"
    model_call_index: int
    attempt: int
    reason: str


class ErrorShown(Event, frozen=True, kw_only=True):
    kind: ClassVar[Literal["error"]] = "error"
    error: ErrorInfo
    will_retry: bool = False
    retry_in_ms: int | None = None


class ContextFolded(Event, frozen=True, kw_only=True):
    """The context was folded or compacted."""

    kind: ClassVar[Literal["context"]] = "context"
    entry_id: str
    reason: str
    tokens_before: int
    tokens_after: int


class RunEnded(Event, frozen=True, kw_only=True):
    """The last event of a run."""

    kind: ClassVar[Literal["run_ended"]] = "run_ended"
    result: RunResult


RunEvent: TypeAlias = (
    InputAdded
    | ModelCalled
    | TextDelta
    | ThinkingDelta
    | ToolCallDelta
    | ModelDelta
    | AnswerAdded
    | ToolStarted
    | ToolProgressed
    | ToolDeferred
    | ToolFinished
    | ApprovalRequested
    | ApprovalDecided
    | StatusChanged
    | Retracted
    | ErrorShown
    | ContextFolded
    | RunEnded
)

EVENT_KINDS: tuple[str, ...] = tuple(dict.fromkeys(event.kind for event in get_args(RunEvent)))

DELTA_EVENTS: dict[str, type[TextDelta | ThinkingDelta | ToolCallDelta | ModelDelta]] = {
    "start": ModelDelta,
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_call_start": ToolCallDelta,
    "tool_call_args": ToolCallDelta,
    "tool_call_end": ToolCallDelta,
    "usage": ModelDelta,
    "done": ModelDelta,
    "error": ModelDelta,
}
"""Kind of delta → the event that shows it."""
