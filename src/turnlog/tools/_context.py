"""What a tool is given beside its arguments, and how it speaks while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from turnlog.contract import AgentError, Clock, JsonObject, Runtime, WidgetEvent, find_unjson
from turnlog.system import SystemClock

from ._text import Unserialisable, clean, clean_json, shorten

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


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """Given to a tool that declares a parameter of this type; never part of its schema.

    ``idempotency_key`` is the same when the same call is run again after a crash: pass it on to services
    that take one. ``state`` is whatever the host shares with its tools. Safe to use from the thread a sync
    tool runs in.
    """

    session_id: str = ""
    run_id: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    idempotency_key: str = ""
    attempt: int = 1
    agent: Any = None
    runtime: Runtime | None = None
    clock: Clock = field(default_factory=SystemClock)
    state: Any = None
    on_progress: ProgressSink | None = None
    channel: Channel | None = field(default=None, repr=False, compare=False)

    def progress(self, text: str | None = None, **data: Any) -> None:
        """Show partial output (``text``) or how far the work is (``data``) to whoever watches the run."""
        if self.channel is None:
            return
        if text is not None:
            text = clean(text)[:PROGRESS_LIMIT]
        self.channel.report(text, _reportable(data) if data else None)

    def emit(self, widget: str, event: str, data: JsonObject | None = None) -> None:
        """Change a widget's state: the event is appended to the log with this call's result, and only when
        the call succeeds."""
        data = data or {}
        if found := find_unjson(data):
            raise AgentError(
                "InvalidEntry", f"event {event!r} of widget {widget!r}: {found}; emit plain JSON"
            )
        if self.channel is not None:
            self.channel.add(
                WidgetEvent(widget=widget, event=event, data=data, tool_call_id=self.tool_call_id or None)
            )

    @property
    def cancelled(self) -> bool:
        """True once the call was told to stop. A sync tool cannot be interrupted: a long one looks here."""
        return self.channel is not None and self.channel.cancelled

    def require_runtime(self) -> Runtime:
        """The runtime, or the standard error when there is none."""
        if self.runtime is None:
            raise no_runtime(self.tool_name)
        return self.runtime

    def opened(self, attempt: int) -> ToolContext:
        """A copy with a line of its own, for one try of a call."""
        return replace(self, attempt=attempt, channel=Channel(self.on_progress))


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
