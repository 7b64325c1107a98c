"""A run as a person reads it while it happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from time import monotonic

from rich.console import Console

from turnlog import events
from turnlog.contract import RunEvent

from ._answer import Answer, StreamedAnswer, answer_on
from ._app import say, say_error, span
from ._text import plain, result_text, safe, short

CUT = {
    "length": "the answer stops here: it reached its length limit",
    "content_filter": "the provider withheld the rest of this answer",
    "refusal": "the model refused to answer",
    "other": "the answer ended for a reason the provider did not name",
}
"""How an answer may end other than by being finished."""

_PATIENCE = 2.0  # seconds without news before the line that waits is shown


class EventPrinter:
    """Prints a run as it happens: the answer's text, and around it one line for each tool.

    The answer goes to ``out``, everything else to ``aside``, so that a pipe gets the answer alone.
    """

    def __init__(
        self, out: Console, aside: Console, *, asks: bool = False, answer: Answer | None = None
    ) -> None:
        self._aside = aside
        self._asks = asks
        self._answer = answer or answer_on(out)
        self._thought = StreamedAnswer(aside, "dim italic")
        self.holds_back = not out.is_terminal

    def show(self, event: RunEvent) -> None:
        match event:
            case events.TextDelta():
                if event.text:
                    self._thought.part()
                    self._answer.add(event.text)
            case events.ThinkingDelta():
                if event.text:
                    self._answer.part()
                    self._thought.add(event.text)
            case events.ToolStarted():
                self._line(f"[cyan]→ {safe(event.tool_name)}[/] [dim]{short(event.arguments)}[/]")
            case events.ToolProgressed():
                self._line(f"[dim]… {short(event.text or event.data)}[/]")
            case events.ToolFinished():
                mark = "[green]✓[/]" if event.status == "success" else f"[yellow]{event.status}[/]"
                self._line(f"{mark} [dim]{short(_result_of(event))}[/]")
            case events.ToolDeferred():
                asked = short(event.question or event.reason)
                self._line(
                    f"[magenta]? {safe(event.tool_name)} waits for an answer:[/] {asked} "
                    f"[dim]({event.tool_call_id})[/]"
                )
            case events.ApprovalRequested():
                if self._asks:  # the question itself shows the call
                    return
                asked = f"{safe(event.tool_name)} {short(event.arguments)}"
                self._line(f"[magenta]? {asked} waits for approval[/] [dim]({event.tool_call_id})[/]")
            case events.ApprovalDecided():
                self._line(f"[dim]{event.action} by {safe(event.decided_by)}[/]")
            case events.Retracted():
                if self._answer.drop():
                    self._line("[dim](that answer was cut off; it is asked for again)[/]")
            case events.ErrorShown():
                self._error(event)
            case events.ContextFolded():
                sizes = f"{event.tokens_before} → {event.tokens_after} tokens"
                self._line(f"[dim](older content was folded: {sizes})[/]")
            case events.AnswerAdded():
                self.close()
                if cut := CUT.get(event.finish_reason):
                    self._line(f"[yellow]({cut})[/]")
            case events.RunEnded():
                self.close()
            case (
                events.InputAdded()
                | events.ModelCalled()
                | events.StatusChanged()
                | events.ToolCallDelta()
                | events.ModelDelta()
            ):
                pass  # the user said it, or it is shown already

    @property
    def in_line(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._answer.in_line or self._thought.in_line

    def _error(self, shown: events.ErrorShown) -> None:
        if shown.error.code == "RunAborted":
            self._line(f"[dim]({safe(shown.error.message)})[/]")
            return
        self._part()
        again = ""
        if shown.will_retry:
            again = " — trying again" + (f" in {span(shown.retry_in_ms)}" if shown.retry_in_ms else "")
        say_error(shown.error.code, shown.error.message + again)

    def _line(self, text: str) -> None:
        self._part()
        say(self._aside, text)

    def _part(self) -> None:
        self._answer.part()
        self._thought.part()

    def close(self) -> None:
        """What was said so far is complete, or all there will be."""
        self._thought.close()
        self._answer.close()


def _result_of(event: events.ToolFinished) -> str:
    for part in event.message.tool_results:
        if part.payload.tool_call_id == event.tool_call_id:
            return result_text(part)
    return ""


class Waiting:
    """A line that tells what is waited for, on a terminal where nothing else moves: shown below what was
    printed, gone before anything more is."""

    def __init__(self, console: Console, printer: EventPrinter, *, wanted: bool = True) -> None:
        self._console = console
        self._printer = printer
        self._wanted = wanted and console.is_terminal and not console.is_dumb_terminal
        self._what: str | None = None
        self._since = 0.0
        self._shown = False

    @contextlib.contextmanager
    def counting(self) -> Generator[None]:
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
        if not self._is_silent(event):
            self._what = None
            self.clear()
        if (
            what := waited_for(event, holds_back=self._printer.holds_back)
        ) is not None and what != self._what:
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

    def _is_silent(self, event: RunEvent) -> bool:
        """Nothing is printed for it, or nothing that a reader sees move."""
        match event:
            case events.TextDelta():
                return self._printer.holds_back or not event.text
            case events.ThinkingDelta():
                return not event.text
            case events.ToolCallDelta() | events.ModelDelta() | events.InputAdded():
                return True
            case _:
                return isinstance(event, events.ModelCalled | events.StatusChanged)


def waited_for(event: RunEvent, *, holds_back: bool = False) -> str | None:
    """What is waited for once ``event`` has come, where it tells. ``holds_back``: an answer is not shown
    before it is complete."""
    match event:
        case events.ModelCalled():
            return f"waiting for {event.target.model}"
        case events.TextDelta() if holds_back:
            return "the answer is coming in"
        case events.ToolCallDelta() if event.tool_name is not None:
            return f"writing a call of {event.tool_name}"
        case events.ToolStarted():
            return f"{event.tool_name} is running"
        case events.ErrorShown() if event.will_retry:
            return "waiting to try again"
        case _:
            return None
