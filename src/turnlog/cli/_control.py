"""``abort``, ``pause``, ``send``: reach a run that another process drives."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import click

from turnlog.contract import Entry, ModelInputEntry, Store
from turnlog.history import SessionState
from turnlog.loop import Agent, Session

from ._agent import agent_option, load_agent
from ._app import (
    FAILED,
    err,
    json_option,
    out,
    read_text,
    session_argument,
    store_option,
    store_url_of,
    write_json,
)
from ._hints import resume
from ._text import safe

_PATIENCE = 3.0  # seconds in which a run that was told to stop is expected to have stopped


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (json_option, store_option, agent_option):
        command = option(command)
    return command


@click.command("abort", short_help="End a run, wherever it is driven.")
@session_argument
@click.option("--reason", metavar="TEXT", default="aborted from the command line", help="Words for the log.")
@_options
def abort_command(session: str, reason: str, **options: Any) -> None:
    """End the open run of SESSION, also one that another process drives. The session is kept."""

    async def work(handle: Session, reached: Reached) -> None:
        await handle.abort(reason)
        ended = await reached.comes(lambda state: not state.is_open)
        reached.tell(
            "aborted" if ended else "told to stop; it ends when its model or tool lets it", done=ended
        )

    _reach(session, work, **options)


@click.command("pause", short_help="Pause a run before its next step.")
@session_argument
@_options
def pause_command(session: str, **options: Any) -> None:
    """Pause the open run of SESSION before its next step, also one that another process drives.

    The process lets go of it. The run stays open, and `turnlog resume` continues it.
    """

    async def work(handle: Session, reached: Reached) -> None:
        await handle.pause()
        paused = await reached.comes(lambda state: state.paused or not state.is_open)
        if paused and not reached.state.is_open:
            reached.tell(f"not paused: the run ended ({reached.state.status})", done=False)
            sys.exit(FAILED)
        reached.tell("paused" if paused else "told to pause; it does so after its present step", done=paused)
        if not reached.as_json:
            err.print(f"[dim]continue with: {resume(session)}[/]")

    _reach(session, work, **options)


@click.command("send", short_help="Add a message to a run in progress.")
@session_argument
@click.argument("text")
@_options
def send_command(session: str, text: str, **options: Any) -> None:
    """Add a message to the open run of SESSION: the model reads it before its next answer.

    A run that nobody drives takes it in when it is resumed. TEXT may be - for standard input.
    """
    words = read_text(text)

    async def work(handle: Session, reached: Reached) -> None:
        await handle.send(words)
        added = [
            entry.seq
            for entry in await reached.news()
            if isinstance(entry, ModelInputEntry) and entry.payload.message.text == words
        ]
        if added:
            reached.tell(f"sent; entry {added[-1]} of the log", done=True)
        elif reached.driver is not None:
            reached.tell("queued; the run takes it in before its next model call", done=False)
        else:
            reached.tell("queued; nobody drives the run, which takes it in when it is resumed", done=False)
            if not reached.as_json:
                err.print(f"[dim]resume it with: {resume(session)}[/]")

    _reach(session, work, **options)


class Reached:
    """An open run that a command reaches."""

    def __init__(self, store: Store, session: str, entries: list[Entry], as_json: bool) -> None:
        self.state = SessionState.of(entries)
        self.as_json = as_json
        self.driver: str | None = None
        self._store = store
        self._session = session
        self._tail = len(entries)

    async def news(self) -> list[Entry]:
        """The entries since the command began."""
        return await self._store.load(self._session, after=self._tail)

    async def comes(self, wanted: Callable[[SessionState], bool]) -> bool:
        """Wait for a state of the log; False when it does not come soon."""
        ends = monotonic() + _PATIENCE
        while True:
            self.state = SessionState.of(await self._store.load(self._session))
            if wanted(self.state):
                return True
            if monotonic() > ends:
                return False
            await asyncio.sleep(0.1)

    def tell(self, words: str, *, done: bool) -> None:
        if self.as_json:
            told = {"sessionId": self._session, "runId": self.state.run_id, "done": done}
            write_json({**told, "driver": self.driver, "status": self.state.status})
            return
        out.print(words)
        if self.driver is not None:
            err.print(f"[dim]driven by {safe(self.driver)}[/]")


def _reach(
    session: str,
    work: Callable[[Session, Reached], Awaitable[None]],
    *,
    agent_name: str | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    async def reach() -> None:
        async with _agent(agent_name, store_url) as agent:
            reached = Reached(agent.store, session, await agent.store.load(session), as_json)
            if not reached.state.is_open:
                last = f"; the last one {reached.state.status}" if reached.state.run_id else ""
                err.print(f"no run is open in {safe(session)}{last}")
                sys.exit(FAILED)
            holder = await agent.store.holder(session)
            reached.driver = _find_driver(holder.owner) if holder is not None else None
            await work(agent.session(session), reached)

    asyncio.run(reach())


def _agent(name: str | None, store_url: str | None) -> Agent:
    if name is None:
        # No model is called here, and this one needs neither a key nor another package.
        return Agent("openai-chat:none", store=store_url_of(store_url))
    if store_url is not None:
        raise click.UsageError("--agent brings its own store; leave out --store")
    return load_agent(name)


def _find_driver(owner: str) -> str | None:
    """Who holds a session, for people; None when that process is gone."""
    try:
        host, pid, *_ = owner.rsplit("/", 4)
        if host == socket.gethostname():
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return None
    except (ValueError, OSError):
        return owner
    return f"process {pid} on {host}"
