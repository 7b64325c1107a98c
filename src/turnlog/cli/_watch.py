"""Watching a run: printing it as it happens, and stopping it with Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import click

from turnlog.contract import RunEndedEvent, RunEvent, RunResult
from turnlog.loop import Agent

from ._app import err, out, write_json
from ._render import EventPrinter
from ._waiting import Waiting


async def watch(
    agent: Agent,
    events: AsyncGenerator[RunEvent, None],
    as_json: bool,
    *,
    note: str | None = None,
    asks: bool = False,
) -> RunResult | None:
    """Print a run to its end; None when there was nothing to run. Raises ``Abort`` when it was left.

    The first Ctrl-C aborts the run and keeps the session; a second one does not wait for that. With ``asks``
    the caller shows the calls that wait for approval.
    """
    printer = EventPrinter(out, err, asks=asks)
    waiting = Waiting(err, printer, wanted=not as_json)
    interrupt = Interrupt(agent)
    result: RunResult | None = None
    with interrupt, waiting.going():
        try:
            async with aclosing(events):
                async for event in events:
                    if interrupt.run_id is None and note and not as_json:
                        err.print(f"[dim]{note}[/]")
                    interrupt.run_id = event.run_id
                    if as_json:
                        write_json(event)
                    else:
                        waiting.before(event)
                        printer.show(event)
                    if isinstance(event, RunEndedEvent):
                        result = event.payload.result
        except asyncio.CancelledError:
            if not interrupt.left:
                raise
            printer.close()
            raise click.Abort from None
    return result


class Interrupt:
    """What Ctrl-C does while a run goes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._asked = False
        self._task: asyncio.Task[object] | None = None
        self._aborting: asyncio.Task[bool] | None = None
        self._before: object = None
        self.run_id: str | None = None
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
        if self.run_id is None or self._asked:
            self.left = True
            if self._task is not None:
                self._task.cancel()
            return
        self._asked = True
        self._aborting = asyncio.ensure_future(self._agent.abort(self.run_id, "stopped with Ctrl-C"))


def _on_interrupt(action: Callable[[], None] | None) -> None:
    loop = asyncio.get_running_loop()
    try:
        if action is None:
            loop.remove_signal_handler(signal.SIGINT)
        else:
            loop.add_signal_handler(signal.SIGINT, action)
    except (NotImplementedError, RuntimeError, ValueError):
        pass  # Windows, or not the main thread: Ctrl-C is then an ordinary KeyboardInterrupt
