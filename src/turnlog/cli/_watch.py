"""Watching a run: printing it as it happens, and stopping it with Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import click

from turnlog import events
from turnlog.contract import RunResult
from turnlog.loop import RunStream

from ._app import err, out, write_json
from ._events import EventPrinter, Waiting


async def watch(
    stream: RunStream[str], as_json: bool, *, note: str | None = None, asks: bool = False
) -> RunResult[str] | None:
    """Print a run to its end; None when there was nothing to run. Raises ``Abort`` when it was left.

    The first Ctrl-C aborts the run and keeps the session; a second one does not wait for that. With ``asks``
    the caller shows the calls that wait for approval.
    """
    printer = EventPrinter(out, err, asks=asks)
    waiting = Waiting(err, printer, wanted=not as_json)
    interrupt = Interrupt(stream)
    result: RunResult[str] | None = None
    with interrupt, waiting.counting():
        try:
            async with stream:
                async for event in stream:
                    if not interrupt.begun and note and not as_json:
                        err.print(f"[dim]{note}[/]")
                    interrupt.begun = True
                    if as_json:
                        write_json(event)
                    else:
                        waiting.before(event)
                        printer.show(event)
                    if isinstance(event, events.RunEnded):
                        result = event.result
        except asyncio.CancelledError:
            if not interrupt.left:
                raise
            raise click.Abort from None
        finally:
            printer.close()
    return result


class Interrupt:
    """What Ctrl-C does while a run is in progress."""

    def __init__(self, stream: RunStream[str]) -> None:
        self._stream = stream
        self._asked = False
        self._task: asyncio.Task[object] | None = None
        self._aborting: asyncio.Task[None] | None = None
        self._before: object = None
        self.begun = False
        self.left = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._before = signal.getsignal(signal.SIGINT)
        _on_interrupt(self._pressed)

    def __exit__(self, *exc: object) -> None:
        _on_interrupt(None)
        if self._before is signal.SIG_IGN:  # asyncio puts the default in its place instead
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _pressed(self) -> None:
        if not self.begun or self._asked:
            self.left = True
            if self._task is not None:
                self._task.cancel()
            return
        self._asked = True
        self._aborting = asyncio.ensure_future(self._stream.abort("stopped with Ctrl-C"))


def _on_interrupt(action: Callable[[], None] | None) -> None:
    loop = asyncio.get_running_loop()
    try:
        if action is None:
            loop.remove_signal_handler(signal.SIGINT)
        else:
            loop.add_signal_handler(signal.SIGINT, action)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # Windows, or not the main thread: Ctrl-C is then an ordinary KeyboardInterrupt
