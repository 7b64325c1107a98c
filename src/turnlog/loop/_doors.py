"""What the runner reaches through: the live world, or a recording of it.

The runner is the same in both: a replay swaps these and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import msgspec

from turnlog.context import ModelContext
from turnlog.contract import (
    ApprovalDecided,
    ErrorInfo,
    Fold,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessageDelta,
    ModelInvocationDescriptor,
    RequestMetadata,
    RetryPolicy,
    TokenUsage,
    ToolSpec,
)
from turnlog.tools import ToolAnswer

from ._abort import AbortScope
from ._facts import Fact
from ._state import CallState, RunState


class Outcome(msgspec.Struct, frozen=True):
    """How one model call went: a finished message, or an error and how much had been shown."""

    message: Message | None = None
    finish_reason: str = ""
    error: ErrorInfo | None = None
    shown: int = 0
    usage: TokenUsage | None = None
    target: ModelInvocationDescriptor | None = None
    reason: str | None = None


class Collector(Protocol):
    """Takes the deltas of one call and says what came of them."""

    def consume(self, delta: MessageDelta) -> None: ...

    def outcome(self, timestamp: str) -> Outcome: ...


class ModelCall(msgspec.Struct, frozen=True):
    context: ModelContext
    metadata: RequestMetadata
    state: RunState


class ModelDoor(Protocol):
    def target(self, metadata: RequestMetadata) -> tuple[ModelInvocationDescriptor, str | None]: ...

    async def open(self, call: ModelCall) -> tuple[AsyncGenerator[MessageDelta, None], Collector]: ...

    def plan_retry(self, error: ErrorInfo, attempt: int, policy: RetryPolicy) -> int | None: ...

    async def wait(self, milliseconds: int) -> None: ...


class Answer(msgspec.Struct, frozen=True):
    """The call is answered without running anything."""

    answer: ToolAnswer


class Ask(msgspec.Struct, frozen=True):
    reason: str | None
    sandbox: str | None = None
    expires_at: str | None = None


class Start(msgspec.Struct, frozen=True):
    """The call may run; ``alone`` when no other may run beside it."""

    alone: bool = True


class Later(msgspec.Struct, frozen=True):
    """Not before something that runs has finished."""


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


class ToolDoor(Protocol):
    def specs(self, state: RunState) -> list[ToolSpec]: ...

    async def judge(self, call: CallState, state: RunState) -> Judgement: ...

    async def recover(self, call: CallState, state: RunState) -> Judgement:
        """What to do with a call that started before a crash and left no result."""
        ...

    def start(self, call: CallState, key: str, attempt: int) -> None: ...

    async def next(self) -> ToolNews: ...

    @property
    def running(self) -> int: ...

    async def stop(self) -> list[Finished]:
        """Cancel what runs; bounded. What finished in the meantime is returned."""
        ...


class HumanDoor(Protocol):
    async def decide(self, calls: Sequence[CallState]) -> list[ApprovalDecided] | None:
        """Decisions for some of these calls, or None: nobody is here, let the run go."""
        ...

    def withdraw(self, tool_call_id: str) -> None:
        """Somebody else has decided on this call: whoever is being asked need not answer any more."""
        ...


class ContextDoor(Protocol):
    def fold_before(self, state: RunState, target: ModelInvocationDescriptor) -> Fold | None: ...

    def fold_overflow(self, state: RunState, step: int, target: ModelInvocationDescriptor) -> Fold | None: ...

    def screen(self) -> str | None:
        """The whole LiveScreen as it is now."""
        ...

    def begin_recap(self, context: ModelContext, target: ModelInvocationDescriptor) -> None:
        """The model is answering ``context``: whoever writes recaps in the background may begin one."""
        ...

    def input_sections(self, message: Message) -> LevelOfDetailSections | None: ...

    def result_sections(
        self, call: CallState, answer: ToolAnswer, *, closes: bool
    ) -> LevelOfDetailSections | None: ...


class WorldDoor(Protocol):
    """Whatever else comes from outside: being told to stop, words said in between, hooks."""

    scope: AbortScope

    @property
    def paused(self) -> bool:
        """Let the run go before its next step; it is resumed later."""
        ...

    def interrupted(self) -> None:
        """Raises ``RunInterrupted`` when the run must stop before its next step."""
        ...

    def take_steering(self) -> list[Message]: ...

    def take_facts(self) -> list[Fact]:
        """What was told to the run since the last time and is only to be appended."""
        ...

    def close(self) -> None:
        """The run is ending: nothing said from here on can enter it."""
        ...

    async def hook(self, point: HookPoint, *args: object) -> None: ...


HookPoint: TypeAlias = Literal["before_model", "after_model", "before_tool", "after_tool"]


@dataclass(slots=True)
class Doors:
    model: ModelDoor
    tools: ToolDoor
    human: HumanDoor
    context: ContextDoor
    world: WorldDoor
    extra: dict[str, object] = field(default_factory=dict[str, object])
