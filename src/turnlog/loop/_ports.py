"""What the runner reaches the world through. A replay swaps these ports for a recording, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from turnlog.assembly import MessageSnapshot
from turnlog.context import ContextBuildResult, ModelContext
from turnlog.contract import (
    ApprovalDecided,
    CompactionSummary,
    Custom,
    Entry,
    EntryPayload,
    ErrorInfo,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessageDelta,
    ModelInvocationDescriptor,
    RequestMetadata,
    RetryPolicy,
    Section,
    TokenUsage,
    ToolSpec,
    WidgetEvent,
)
from turnlog.history import CallState, Session, SessionState
from turnlog.tools import ToolAnswer

from ._abort import AbortScope

Fact: TypeAlias = WidgetEvent | CompactionSummary | Custom
"""What comes from outside between two steps and is only to be appended: a host's change of a widget, a recap
that a model wrote in the background, a note that it could not."""


def append_fact(session: Session, fact: Fact) -> Entry:
    match fact:
        case WidgetEvent():
            return session.append_widget_event(fact)
        case CompactionSummary():
            return session.append_compaction(fact)
        case Custom():
            return session.append_custom(fact.name, fact.data)


class Said(msgspec.Struct, frozen=True):
    """A message for a run, with the levels of detail that were given with it; ``control`` is the id it was
    posted under, if it came from another process."""

    message: Message
    control: str | None = None
    summary: str | None = None
    gist: str | None = None
    sections: Sequence[Section] = ()


class Outcome(msgspec.Struct, frozen=True):
    """How one model call went: a finished message, or an error and how much had been shown."""

    message: Message | None = None
    finish_reason: str = ""
    error: ErrorInfo | None = None
    shown: int = 0
    partial: str | None = None
    usage: TokenUsage | None = None
    target: ModelInvocationDescriptor | None = None
    reason: str | None = None


class Collector(Protocol):
    """Takes the deltas of one call and returns its outcome."""

    def consume(self, delta: MessageDelta) -> None: ...

    def snapshot(self) -> MessageSnapshot | None:
        """The message so far."""
        ...

    def partial(self) -> str | None:
        """The text received so far, for a call that is stopped; None when there is none."""
        ...

    def outcome(self, timestamp: str) -> Outcome: ...


class ModelCall(msgspec.Struct, frozen=True):
    context: ModelContext
    metadata: RequestMetadata
    state: SessionState


class ModelPort(Protocol):
    """The model of a run. Failures of the provider are in the outcome, never raised."""

    def target(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]:
        """Which model answers this call, and why it was chosen."""
        ...

    async def open(self, call: ModelCall) -> tuple[AsyncGenerator[MessageDelta, None], Collector]:
        """Prepare the call; the request is sent when the first delta is asked for."""
        ...

    def plan_retry(self, error: ErrorInfo, attempt: int, policy: RetryPolicy) -> int | None:
        """Milliseconds until the call is made again, or None when it is not."""
        ...

    async def wait(self, milliseconds: int) -> None: ...


class Answer(msgspec.Struct, frozen=True):
    """The call is answered without running anything."""

    answer: ToolAnswer


class Ask(msgspec.Struct, frozen=True):
    """A human decides whether the call runs."""

    reason: str | None
    sandbox: str | None = None
    expires_at: str | None = None
    definition: str | None = None


class Start(msgspec.Struct, frozen=True):
    """The call may run; ``alone`` when no other may run beside it."""

    alone: bool = True


class Later(msgspec.Struct, frozen=True):
    """Not before a call that is running has finished."""


Judgement: TypeAlias = Answer | Ask | Start | Later


class Progress(msgspec.Struct, frozen=True):
    call: CallState
    text: str | None
    data: JsonObject | None


class Finished(msgspec.Struct, frozen=True):
    call: CallState
    answer: ToolAnswer


class Restart(msgspec.Struct, frozen=True):
    """A call whose process died is run again, with the same key."""

    call: CallState


ToolNews: TypeAlias = Progress | Finished | Restart


class ToolPort(Protocol):
    """The tools of a run. A tool that fails is an answer, never an exception."""

    async def refresh(self) -> None:
        """Open toolsets that are not open yet, and read again those that changed. Raises ``AgentError`` when
        one cannot be opened."""
        ...

    def specs(self, state: SessionState) -> Sequence[ToolSpec]:
        """What the model is offered now."""
        ...

    async def judge(self, call: CallState, state: SessionState) -> Judgement:
        """Whether a call may run, must be approved, or is answered at once."""
        ...

    async def recover(self, call: CallState, state: SessionState) -> Judgement:
        """What to do with a call that started before a crash and left no result."""
        ...

    def start(self, call: CallState, key: str, attempt: int) -> None: ...

    async def next(self) -> ToolNews:
        """The next report or result of the calls that run."""
        ...

    @property
    def running(self) -> int: ...

    async def stop(self) -> list[Finished]:
        """Cancel what runs, within a bounded time; returns what finished meanwhile."""
        ...


class HumanPort(Protocol):
    async def decide(self, calls: Sequence[CallState]) -> list[ApprovalDecided] | None:
        """Decisions for some of these calls, or None when nobody is there to decide. Raises ``HookFailed``
        when the handler failed."""
        ...

    def withdraw(self, tool_call_id: str) -> None:
        """This call was decided elsewhere: stop asking about it."""
        ...


class ContextPort(Protocol):
    def build(
        self, state: SessionState, target: ModelInvocationDescriptor, specs: Sequence[ToolSpec]
    ) -> ContextBuildResult:
        """What ``target`` is sent now, and what must be appended first."""
        ...

    def shrink(
        self, state: SessionState, step: int, target: ModelInvocationDescriptor
    ) -> Sequence[EntryPayload]:
        """What to append so that a prompt which did not fit does. Raises ``ContextOverflow`` when nothing is
        left to fold."""
        ...

    def begin_recap(self, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        """The model is answering ``context``: a recap may be asked for in the background."""
        ...

    async def await_recap(self) -> None:
        """A prompt did not fit: give a recap that was asked for time to arrive, within a bound."""
        ...

    def input_sections(self, said: Said) -> LevelOfDetailSections | None:
        """What is stored beside an input: its levels of detail and what changed on the screen."""
        ...

    def result_sections(
        self, call: CallState, answer: ToolAnswer, *, closes: bool
    ) -> LevelOfDetailSections | None: ...


class Accepted(msgspec.Struct, frozen=True):
    """The answer is of the output type, and this is its value."""

    value: Any


class Rejected(msgspec.Struct, frozen=True):
    """The answer does not fit: what the model is told, or the end of the run when it may try no more."""

    correction: str
    error: ErrorInfo | None = None


class OutputPort(Protocol):
    async def check(self, state: SessionState, *, last: bool) -> Accepted | Rejected:
        """Whether the newest answer is of the run's output type; with ``last`` no correction is left. Raises
        ``HookFailed`` when a check of the user's does."""
        ...


HookPoint: TypeAlias = Literal["before_model", "after_model", "before_tool", "after_tool"]


class WorldPort(Protocol):
    """Everything else that comes from outside: requests to stop, messages sent meanwhile, hooks."""

    scope: AbortScope

    @property
    def paused(self) -> bool:
        """Let the run go before its next step; it is resumed later."""
        ...

    def interrupted(self) -> None:
        """Raises ``RunInterrupted`` when the run must stop before its next step."""
        ...

    def take_steering(self) -> list[Said]: ...

    def take_facts(self) -> list[Fact]: ...

    def close(self) -> None:
        """The run is ending: messages sent from here on are for the next one."""
        ...

    async def hook(self, point: HookPoint, *args: object) -> None:
        """Raises ``HookFailed`` when a hook does."""
        ...


@dataclass(slots=True)
class Ports:
    model: ModelPort
    tools: ToolPort
    human: HumanPort
    context: ContextPort
    world: WorldPort
    output: OutputPort
