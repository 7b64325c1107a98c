"""A line that says what is waited for, on a terminal where nothing else moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from time import monotonic

from rich.console import Console

from turnlog import events
from turnlog.contract import RunEvent

from ._render import EventPrinter
from ._text import plain

_PATIENCE = 2.0  # seconds without news before it is shown


class Waiting:
    """Shown below what was printed, gone before anything more is."""

    def __init__(self, console: Console, printer: EventPrinter, *, wanted: bool = True) -> None:
        self._console = console
        self._printer = printer
        self._wanted = wanted and console.is_terminal and not console.is_dumb_terminal
        self._what: str | None = None
        self._since = 0.0
        self._shown = False

    @contextlib.contextmanager
    def going(self) -> Generator[None]:
        """While this is open, the line comes and counts by itself."""
        ticking = asyncio.create_task(self._tick()) if self._wanted else None
        try:
            yield
        finally:
            if ticking is not None:
                ticking.cancel()
            self.clear()

    def before(self, event: RunEvent) -> None:
        """``event`` is about to be printed."""
        if not _is_silent(event):
            self._what = None
            self.clear()
        if (what := _waited_for(event)) is not None and what != self._what:
            self._what, self._since = what, monotonic()
            self.clear()

    def clear(self) -> None:
        if self._shown:
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()
            self._shown = False

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            waited = monotonic() - self._since
            if self._what is None or waited < _PATIENCE or self._printer.in_line:
                continue
            line = f"{plain(self._what)} · {waited:.0f} s"[: max(self._console.width - 1, 1)]
            self._console.file.write("\r\x1b[2K")
            self._console.print(line, end="", style="dim", markup=False)
            self._console.file.flush()
            self._shown = True


def _is_silent(event: RunEvent) -> bool:
    """Nothing is printed for it, or nothing that a reader sees move."""
    if isinstance(event, events.TextDelta | events.ThinkingDelta):
        return not event.text
    return isinstance(
        event,
        events.ToolCallDelta
        | events.ModelDelta
        | events.InputAdded
        | events.ModelCalled
        | events.StatusChanged,
    )


def _waited_for(event: RunEvent) -> str | None:
    match event:
        case events.ModelCalled():
            return f"waiting for {event.target.model}"
        case events.ToolCallDelta() if event.tool_name is not None:
            return f"writing a call of {event.tool_name}"
        case events.ToolStarted():
            return f"{event.tool_name} is running"
        case _:
            return None
