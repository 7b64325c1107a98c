"""What the runner reaches the world through, interruptions and hooks included. A replay swaps these ports for
a recording, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, TypeAlias, cast

import msgspec

from turnlog.assembly import MessageSnapshot
from turnlog.context import ContextBuildResult, ModelContext
from turnlog.contract import (
    AgentError,
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
    RunEvent,
    Section,
    TokenUsage,
    ToolCallRequest,
    ToolSpec,
    WidgetEvent,
    scrub,
)
from turnlog.history import CallState, Session, SessionState
from turnlog.tools import ToolAnswer

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


Batches: TypeAlias = "AsyncGenerator[list[MessageDelta], None]"
"""The deltas of an answer, those that came together in one list."""


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

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        """Ask the server of ``target`` for its window, where one is to be asked; raises nothing."""
        ...

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        """What it said."""
        ...

    async def open(self, call: ModelCall) -> tuple[Batches, Collector]:
        """Prepare the call; the request is sent when its first deltas are asked for."""
        ...

    def plan_retry(self, error: ErrorInfo, attempt: int, policy: RetryPolicy) -> int | None:
        """Milliseconds until the call is made again, or None when it is not."""
        ...

    async def wait(self, milliseconds: int) -> None: ...


class Veto(msgspec.Struct, frozen=True):
    """What a ``check_tool`` hook returns to keep a call from running; the model reads ``reason``."""

    reason: str
    by: str = ""
    """The hook; filled in."""


class Change(msgspec.Struct, frozen=True):
    """What a ``check_tool`` hook returns to let a call run with other arguments: these are what policies and
    people are asked about, and what the log has as the start of the call."""

    arguments: JsonObject
    by: str = ""
    """The hook; filled in."""


class Question(msgspec.Struct, frozen=True):
    """What a ``check_tool`` hook returns to have a person decide on a call, whatever the policies say."""

    reason: str


class Note(msgspec.Struct, frozen=True):
    """What a ``check_result`` hook returns to add words to a result, for the model to read."""

    text: str


class Answer(msgspec.Struct, frozen=True):
    """The call is answered without running anything."""

    answer: ToolAnswer


class Ask(msgspec.Struct, frozen=True):
    """A human decides whether the call runs."""

    reason: str | None
    sandbox: str | None = None
    expires_at: str | None = None
    definition: str | None = None
    change: Change | None = None


class Start(msgspec.Struct, frozen=True):
    """The call may run; ``alone`` when no other may run beside it. ``child`` is the session in which another
    agent does the work, ``change`` what a hook made of its arguments."""

    alone: bool = True
    child: str | None = None
    change: Change | None = None


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

    def refresh(self) -> Awaitable[None] | None:
        """Open toolsets that are not open yet, and read again those that changed; None when nothing is to be
        done. Raises ``AgentError`` when one cannot be opened."""
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
        self,
        state: SessionState,
        target: ModelInvocationDescriptor,
        specs: Sequence[ToolSpec],
        window: int | None = None,
    ) -> ContextBuildResult:
        """What ``target``, whose server told its ``window``, is sent now, and what must be appended first."""
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

    async def check_result(self, call: CallState, answer: ToolAnswer) -> ToolAnswer:
        """The answer, with what hooks add to it. Raises ``HookFailed`` when a hook does."""
        ...


@dataclass(slots=True)
class Ports:
    model: ModelPort
    tools: ToolPort
    human: HumanPort
    context: ContextPort
    world: WorldPort
    output: OutputPort


# ── interrupting a run at its next await point, without a task of its own to cancel ──

inside: ContextVar[tuple[str, ...]] = ContextVar("turnlog_inside", default=())
"""The sessions whose runs the current code works for: a tool that waits for one of these waits for itself."""


class RunInterrupted(Exception):
    """Raised inside the runner when the run was told to stop; carries why."""

    def __init__(self, error: AgentError) -> None:
        super().__init__(error.message)
        self.error = error


class RunLeft(Exception):
    """Raised inside the runner to leave a run as it is: open in the log, to be resumed."""


class AbortScope:
    """``with scope:`` around an await makes that await interruptible by ``request``.

    A run has no task of its own: its reader drives it. So the await in progress is cancelled
    the way ``asyncio.timeout`` does it, and only while it is in progress: what the consumer awaits between
    two events is its own.
    """

    __slots__ = ("_cancelling", "_fired", "_loop", "_task", "reason")

    def __init__(self) -> None:
        self.reason: AgentError | None = None
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fired = False
        self._cancelling = 0

    def request(self, error: AgentError) -> None:
        """Stop the run; safe from any task and any thread. The first reason stays."""
        if self.reason is not None:
            return
        self.reason = error
        loop = self._loop
        if loop is None or self._task is None:
            return
        try:
            same = asyncio.get_running_loop() is loop
        except RuntimeError:
            same = False
        if same:
            self._fire()
        else:
            with suppress(RuntimeError):  # the loop is closed, and the run with it
                loop.call_soon_threadsafe(self._fire)

    def _fire(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task() and not self._fired:
            self._fired = True
            task.cancel()

    def __enter__(self) -> None:
        # In this order: a thread that requests now either finds the task, or is found out here.
        self._loop = loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(loop)
        self._cancelling = task.cancelling() if task is not None else 0
        if self.reason is not None:
            self._task = None
            raise RunInterrupted(self.reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._fired and task is not None:
            self._fired = False
            # Somebody else may have cancelled the task as well: that cancellation is raised again.
            ours = task.uncancel() <= self._cancelling
            if ours and kind is asyncio.CancelledError and self.reason is not None:
                raise RunInterrupted(self.reason) from None


# ── hooks: functions called at fixed points of a run; one that raises fails the run, visibly ──

Hook: TypeAlias = Callable[..., object]


@dataclass(frozen=True, slots=True)
class RunIds:
    """The session and the run that a hook is called for."""

    session_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Hooks:
    """Lists of functions, each called with what it is about. An abort does not wait for one to end.

    ``before_model(context)``, ``after_model(message)``, ``before_tool(call)``, ``after_tool(call, answer)``,
    ``on_event(event)``: a ``ModelContext``, a ``Message``, a ``ToolCallRequest``, the ``ToolAnswer``, a
    ``RunEvent``. A hook with a parameter ``ids`` is given the :class:`RunIds` as well. None of these can
    change what is recorded or sent. Two can, by the value that they return, which is in the log:
    ``check_tool(call)``, before policies and people are asked, a :class:`Veto`, a
    :class:`Change` or a :class:`Question`;
    ``check_result(call, answer)``, before a result is recorded, a :class:`Note`.
    """

    before_model: list[Hook] = field(default_factory=list[Hook])
    after_model: list[Hook] = field(default_factory=list[Hook])
    before_tool: list[Hook] = field(default_factory=list[Hook])
    after_tool: list[Hook] = field(default_factory=list[Hook])
    on_event: list[Hook] = field(default_factory=list[Hook])
    check_tool: list[Hook] = field(default_factory=list[Hook])
    check_result: list[Hook] = field(default_factory=list[Hook])

    def __post_init__(self) -> None:
        for point in self.__dataclass_fields__:
            given: Any = getattr(self, point)
            if not isinstance(given, list | tuple) or not all(map(callable, cast("list[Any]", given))):
                raise AgentError("ConfigInvalid", f"Hooks.{point} is a list of functions; found {given!r}")

    def has(self, point: str) -> bool:
        return bool(getattr(self, point))

    async def call(self, ids: RunIds, point: str, *args: object) -> None:
        for hook in getattr(self, point):
            await _call(hook, point, ids, *args)

    async def check_call(self, ids: RunIds, request: ToolCallRequest) -> Veto | Change | Question | None:
        """The first veto or question, or what all changes together make of the arguments; a hook sees those
        before it."""
        change: Change | None = None
        for hook in self.check_tool:
            given = await _call(hook, "check_tool", ids, request)
            match given:
                case None:
                    continue
                case Question():
                    return given
                case Veto():
                    return Veto(given.reason, given.by or _name_of(hook))
                case Change():
                    change = Change(given.arguments, given.by or _name_of(hook))
                    request = msgspec.structs.replace(request, arguments=given.arguments, parse_error=None)
                case _:
                    raise _wrong_return(
                        "check_tool", hook, given, "Veto(reason), Change(arguments), Question(reason)"
                    )
        return change

    async def check_answer(self, ids: RunIds, request: ToolCallRequest, answer: ToolAnswer) -> ToolAnswer:
        for hook in self.check_result:
            given = await _call(hook, "check_result", ids, request, answer)
            match given:
                case None:
                    continue
                case Note():
                    answer = answer.noted(given.text)
                case _:
                    raise _wrong_return("check_result", hook, given, "Note(text)")
        return answer

    async def event(self, event: RunEvent) -> None:
        for hook in self.on_event:
            await _call(hook, "on_event", RunIds(event.session_id, event.run_id), event)


def _takes_ids(hook: Any) -> bool:
    try:
        return "ids" in inspect.signature(hook).parameters
    except (TypeError, ValueError):  # a function of C, which has no signature
        return False


def _name_of(hook: Any) -> str:
    return getattr(hook, "__name__", type(hook).__name__)


def _wrong_return(point: str, hook: Any, given: object, known: str) -> AgentError:
    found = type(given).__name__
    return AgentError(
        "HookFailed", f"the {point} hook {_name_of(hook)!r} returned a {found}; it may return {known} or None"
    )


async def _call(hook: Any, point: str, ids: RunIds, *args: object) -> Any:
    try:
        given = hook(*args, ids=ids) if _takes_ids(hook) else hook(*args)
        return await given if inspect.isawaitable(given) else given
    except AgentError as error:
        if error.code == "HookFailed":  # its message states what went wrong
            raise
        raise _failed(hook, point, error) from error
    except Exception as error:
        raise _failed(hook, point, error) from error


def _failed(hook: Any, point: str, error: Exception) -> AgentError:
    return AgentError(
        "HookFailed",
        f"the {point} hook {_name_of(hook)!r} raised {type(error).__name__}: {scrub(str(error))}",
        cause=error,
    )
