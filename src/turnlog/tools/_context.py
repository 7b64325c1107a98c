"""What a tool is given beside its arguments, and how it speaks while it runs."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Protocol,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    is_typeddict,
)

from turnlog.contract import AgentError, Clock, JsonObject, Runtime, WidgetEvent, find_unjson
from turnlog.system import SystemClock

from ._answer import Unserialisable, clean, clean_json, shorten

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", covariant=True, default=Any)
else:  # a default is a word for type checkers; the standard library knows it from Python 3.13 on
    from typing import TypeVar

    Deps = TypeVar("Deps", covariant=True)

ProgressSink: TypeAlias = Callable[[str | None, JsonObject | None], None]
"""Told of partial output (text to append) and of progress data. Always called in the loop's thread; must
not raise: what it raises is dropped."""

PROGRESS_LIMIT = 64_000
"""Characters one report may carry; the rest of a longer one is left out, the result still has it."""


class Channel:
    """The line between one running call and its executor. Closed when the call is over, so that a tool
    that was given up can no longer be heard."""

    __slots__ = ("_lock", "_loop", "_sink", "_thread", "cancelled", "closed", "events")

    def __init__(self, sink: ProgressSink | None = None) -> None:
        self._sink = sink
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._lock = threading.Lock()
        self.events: list[WidgetEvent] = []
        self.cancelled = False
        self.closed = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()

    def close(self) -> list[WidgetEvent]:
        """No more reports or events; returns the events there were."""
        with self._lock:
            self.closed = True
            return self.events

    def add(self, event: WidgetEvent) -> None:
        with self._lock:
            if not self.closed:
                self.events.append(event)

    def report(self, text: str | None, data: JsonObject | None) -> None:
        if self._sink is None or self.closed:
            return
        if self._loop is None or threading.get_ident() == self._thread:
            self._deliver(text, data)
            return
        try:
            # Reports and the result of a thread take the same road, so their order is kept.
            self._loop.call_soon_threadsafe(self._deliver, text, data)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self.closed = True

    def _deliver(self, text: str | None, data: JsonObject | None) -> None:
        if self._sink is None or self.closed:
            return
        try:
            self._sink(text, data)
        except Exception:
            self._sink = None  # a listener that fails must not fail the tool


class Journal(Protocol):
    """The part of the log that a tool may write to and read while it runs: for tools that must know, after a
    crash, what they were about to do."""

    async def keep(self, data: bytes) -> str | None:
        """Store bytes beside the log and return how a record names them, ``blob:sha256-…``. None when they
        hold a secret of this process, which is never stored."""
        ...

    async def record(self, name: str, data: JsonObject) -> None:
        """Append a fact now, before the effect that it announces: when this returns, the fact has survived.
        Raises ``AgentError`` when it could not be written; then the effect must not happen."""
        ...

    async def facts(self) -> list[tuple[str, JsonObject]]:
        """What tools recorded in this session, oldest first, by name; an event that a tool emitted for a
        widget is named ``WIDGET.EVENT``."""
        ...


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """The agent a call belongs to, as far as a tool may know it."""

    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswer:
    """The answer to a question that this call asked with ``ToolResult.deferred(…, state=…)``: that state, and
    what was given for it. ``declined``: nobody gives it; ``content`` is then the reason, or None."""

    state: JsonObject
    content: Any = None
    declined: bool = False
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolContext(Generic[Deps]):
    """Given to a tool that declares a parameter of this type; never part of its schema.

    ``deps`` is what the run was given for its tools (``agent.run(…, deps=bank)``); annotate the parameter
    ``ToolContext[Bank]`` to have it typed. ``idempotency_key`` is the same when the same call is run again
    after a crash: pass it on to services that take one. Safe to use from the thread a sync tool runs in.
    ``answers`` are those to the questions that the call asked before, oldest first.
    Make one yourself to call a tool's function in a test: ``await balance(ToolContext(deps=bank), "17")``.
    """

    deps: Deps = field(default=cast("Deps", None), repr=False)
    session_id: str = ""
    run_id: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    idempotency_key: str = ""
    attempt: int = 1
    answers: tuple[GivenAnswer, ...] = ()
    agent: AgentInfo | None = None
    runtime: Runtime | None = None
    journal: Journal | None = None
    clock: Clock = field(default_factory=SystemClock)
    on_progress: InitVar[ProgressSink | None] = None
    _sink: ProgressSink | None = field(init=False, repr=False, compare=False)
    _channel: Channel | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self, on_progress: ProgressSink | None) -> None:
        object.__setattr__(self, "_sink", on_progress)

    def progress(self, text: str | None = None, **data: Any) -> None:
        """Show partial output (``text``) or how far the work is (``data``) to the run's watchers."""
        if self._channel is None:
            return
        if text is not None:
            text = clean(text)[:PROGRESS_LIMIT]
        self._channel.report(text, _reportable(data) if data else None)

    def emit(self, widget: str, event: str, data: JsonObject | None = None) -> None:
        """Change a widget's state: the event is appended to the log with this call's result, and only when
        the call succeeds."""
        data = data or {}
        if found := find_unjson(data):
            raise AgentError(
                "InvalidEntry", f"event {event!r} of widget {widget!r}: {found}; emit plain JSON"
            )
        if self._channel is not None:
            self._channel.add(
                WidgetEvent(widget=widget, event=event, data=data, tool_call_id=self.tool_call_id or None)
            )

    @property
    def cancelled(self) -> bool:
        """True once the call was told to stop. A sync tool cannot be interrupted: a long one looks here."""
        return self._channel is not None and self._channel.cancelled

    def require_runtime(self) -> Runtime:
        """The runtime, or the standard error when there is none."""
        if self.runtime is None:
            raise no_runtime(self.tool_name)
        return self.runtime

    def require_journal(self) -> Journal:
        """The journal, or the standard error when the tool is called outside of a session."""
        if self.journal is None:
            raise AgentError(
                "ToolExecutionError",
                f"tool {self.tool_name!r} keeps what it changes in a session's log and was called outside of "
                "one; run it through an Agent",
            )
        return self.journal


def changed(ctx: ToolContext, **changes: Any) -> ToolContext:
    """A copy with other facts and the same listener."""
    copy: ToolContext = object.__new__(type(ctx))
    copy.__dict__.update(ctx.__dict__, _channel=None, **changes)
    return copy


def opened(ctx: ToolContext) -> tuple[ToolContext, Channel]:
    """A copy with a channel of its own, for one try of a call."""
    channel = Channel(ctx._sink)  # pyright: ignore[reportPrivateUsage]
    copy = changed(ctx)
    object.__setattr__(copy, "_channel", channel)
    return copy, channel


def check_deps(deps: object, wanted: Any, owner: str = "this agent") -> None:
    """Refuse ``deps`` that are not of the type ``wanted``. Raises ``ConfigInvalid``.

    A type that Python cannot test (a protocol that is not ``runtime_checkable``, Any) takes everything.
    """
    if not accepts(wanted, deps):
        given = "none were given" if deps is None else f"deps of type {type(deps).__name__} were given"
        name = getattr(wanted, "__name__", str(wanted))
        raise AgentError(
            "ConfigInvalid", f"{owner} needs deps of type {name}, and {given}; pass deps={name}(…)"
        )


def accepts(wanted: Any, value: object) -> bool:
    """Whether ``value`` is of the type ``wanted``, as far as Python can tell."""
    origin = get_origin(wanted)
    if origin is Annotated:
        return accepts(get_args(wanted)[0], value)
    if origin in (Union, types.UnionType):
        return any(accepts(arm, value) for arm in get_args(wanted))
    if wanted is None:
        return value is None
    if is_typeddict(origin or wanted):
        return isinstance(value, dict)
    try:
        return isinstance(value, origin or wanted)
    except TypeError:
        return True


def _reportable(data: JsonObject) -> JsonObject:
    try:
        return clean_json(data)
    except Unserialisable:  # a report is no reason to fail: what JSON cannot hold is named instead
        return {key: clean(shorten(repr(value), 200)) for key, value in data.items()}


def no_runtime(tool_name: str) -> AgentError:
    return AgentError(
        "RuntimeUnavailable",
        f"tool {tool_name!r} needs a runtime (a place to run commands and keep files) and this agent has "
        "none; do without this tool, or ask the user to give the agent a runtime",
    )
