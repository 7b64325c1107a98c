"""A run as its caller holds it: a stream that is driven by its reader, or a run in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from turnlog import events
from turnlog.assembly import MessageSnapshot
from turnlog.contract import AgentError, RunEvent, RunResult
from turnlog.tools import OutputType

from ._open_sessions import OpenRun
from ._options import AnyInput, said_by
from ._output import partial_values
from ._ports import Hooks, RunInterrupted, Said, inside
from ._runner import Runner

T = TypeVar("T", default=str)

LEFT = "the run's stream was closed before it ended"


class Drive:
    """A run that this process drives: its runner, and what must be undone when it is over."""

    def __init__(
        self, opened: OpenRun, runner: Runner, hooks: Hooks, release: Callable[[], Awaitable[None]]
    ) -> None:
        self.opened = opened
        self.runner = runner
        self.release = release
        self._hooks = hooks
        self.hooked = bool(hooks.on_event)

    async def tell(self, event: RunEvent) -> None:
        """Call the hooks that watch events. One that raises fails the run."""
        scope = self.opened.scope
        token = inside.set((*inside.get(), self.opened.session_id))
        try:
            if scope.reason is None:
                with scope:
                    await self._hooks.event(event)
            else:
                await self._hooks.event(event)  # watchers see how it ends, too
        except RunInterrupted:
            pass  # the run finds out at its next step
        except AgentError as error:
            scope.request(error)
        finally:
            inside.reset(token)


class RunStream(Generic[T]):
    """A run that its reader drives: ``async with`` it, and iterate over its events or its ``text``.

    The run goes no further than it is read. Leaving the block ends the run, then and there; so does dropping
    the iterator outside of a block. Entering the block starts the run, so that a session in use, a missing
    key or a wrong option is raised there.
    """

    def __init__(
        self,
        session_id: str,
        run_id: str | None,
        open: Callable[[], Awaitable[Drive | None]],
        send: Callable[[str, Said], Awaitable[None]],
        output: OutputType[T] | None = None,
    ) -> None:
        self.session_id = session_id
        self._run_id = run_id
        self._open = open
        self._send = send
        self._output = output
        self._drive: Drive | None = None
        self._ready: deque[RunEvent] = deque()
        self._result: RunResult[T] | None = None
        self._over = False
        self._reading = False
        self._in_block = False

    @property
    def run_id(self) -> str:
        """The run's id; of a run that is resumed, once it is open."""
        return self._run_id or ""

    @property
    def is_over(self) -> bool:
        """Nothing more will happen: the run ended, was let go, or was never there to resume."""
        return self._over

    @property
    def is_read(self) -> bool:
        """Somebody is driving the run, or closing it, at this moment."""
        return self._reading

    # ── reading ──

    async def __aenter__(self) -> Self:
        self._in_block = True
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        return _Reader(self)

    def __anext__(self) -> Coroutine[Any, Any, RunEvent]:
        return self.next_event()

    def __del__(self) -> None:
        self.abandon()

    @property
    def text(self) -> AsyncIterator[str]:
        """The answer's text in pieces. When a call fails after a part of its answer was shown and is made
        again, what is repeated is left out; where the new answer differs, it starts on a new line. The
        texts of several answers, with tools in between, are parted by an empty line."""
        return _TextReader(self)

    @property
    def partial(self) -> AsyncIterator[T]:
        """The structured output while it is being written, each time it has grown: unchecked, fields that
        have not come are at their default, else None. The last one is the whole, checked output; none comes
        when the run fails. Without an output type it is the text so far."""
        return partial_values(_Reader(self), self._output, self._final)

    def _final(self) -> T | None:
        done = self._result is not None and self._result.status == "completed"
        return self._result.output if self._result is not None and done else None

    @property
    def snapshot(self) -> MessageSnapshot | None:
        """The message so far, while a model answers; None before the first answer."""
        return self._drive.runner.snapshot() if self._drive is not None else None

    async def result(self, *, check: bool = True) -> RunResult[T]:
        """Drive the run to its end. Raises its ``AgentError`` when it failed, unless ``check`` is False."""
        self._ready.clear()
        with suppress(StopAsyncIteration):
            await self.next_event(unread=True)
        return self.finished(check=check)

    def finished(self, *, check: bool = True) -> RunResult[T]:
        """The result of a run that is over; as :meth:`result`."""
        if self._result is None and self._run_id is not None:
            raise AgentError("RunAborted", f"the stream of run {self._run_id} was closed before it began")
        if self._result is None:
            raise AgentError("ConfigInvalid", f"session {self.session_id} has no open run to resume")
        return checked(self._result) if check else self._result

    async def next_event(self, *, unread: bool = False) -> RunEvent:
        """The next event. Raises ``StopAsyncIteration`` behind the last one; with ``unread`` nobody reads
        them, and the run is driven to its end."""
        ready = self._ready
        if ready:
            return ready.popleft()
        if self._reading:
            raise AgentError(
                "ConfigInvalid",
                f"run {self.run_id} is read in two places at once; read it in one, and watch it from others "
                "with Agent.start(…).events()",
            )
        drive = self._drive
        if drive is not None and not drive.hooked and not unread:  # nearly all events: no detour
            event = drive.runner.show()
            if event is not None:
                drive.opened.hub.add(event)
                return event
        self._reading = True
        try:
            while not ready and not self._over:
                if drive is None:
                    drive = await self._begin()
                    continue
                event = drive.runner.show() if drive.hooked or unread else None
                told = [event] if event is not None else await drive.runner.advance()
                if told:
                    if unread and not drive.hooked:  # its watchers get what came together at once
                        told.extend(iter(drive.runner.show, None))
                    if drive.hooked:
                        for event in told:
                            await drive.tell(event)
                    drive.opened.hub.publish(told)
                    if not unread:
                        ready.extend(told)
                if drive.runner.result is not None:
                    await self._finish(drive)
        except BaseException:
            if drive is not None and not self._over:
                try:
                    await drive.runner.settle(AgentError("RunAborted", LEFT))
                finally:
                    await self._finish(drive)
            raise
        finally:
            self._reading = False
        if not ready:
            raise StopAsyncIteration
        return ready.popleft()

    async def _begin(self) -> Drive | None:
        if self._drive is None and not self._over:
            try:
                self._drive = await self._open()
            except BaseException:
                self._over = True
                raise
            if self._drive is None:
                self._over = True
            else:
                self._run_id = self._drive.opened.run_id
                self._drive.opened.reader = self
        return self._drive

    async def commit(self) -> None:
        """Start the run and write its first entries, before anything of it is driven."""
        drive = await self._begin()
        if drive is None:
            return
        try:
            told = await drive.runner.flush()
        except BaseException:
            await self._finish(drive)
            raise
        drive.opened.hub.publish(told)
        self._ready.extend(told)

    async def _finish(self, drive: Drive) -> None:
        self._over = True
        self._result = drive.runner.result
        await drive.release()

    # ── ending it ──

    async def aclose(self) -> None:
        """End the run as aborted if it is still in progress, and free its session."""
        if self._over:
            return
        drive = self._drive
        if drive is None:
            self._over = True
            return
        if self._reading:  # another task reads or closes it: that one finds out at its next await
            drive.opened.scope.request(AgentError("RunAborted", LEFT))
            if self.session_id not in inside.get():  # code that the run itself calls must not wait for it
                await asyncio.shield(asyncio.wrap_future(drive.opened.over))
            return
        self._reading = True
        try:
            told = await drive.runner.settle(AgentError("RunAborted", LEFT))
            if drive.hooked:
                for event in told:
                    await drive.tell(event)
            drive.opened.hub.publish(told)
        finally:
            self._reading = False
            await self._finish(drive)

    async def let_go(self) -> None:
        """Free the session and leave the run open in the log, to be resumed."""
        if self._drive is not None and not self._over:
            await self._finish(self._drive)

    def abandon(self) -> None:
        """The reader was dropped: end the run as soon as its event loop lets us."""
        drive = self._drive
        if self._over or self._in_block or drive is None or self._reading or drive.opened.home.is_closed():
            return
        drive.opened.leaving = True
        with suppress(RuntimeError):  # the loop is closing
            drive.opened.home.call_soon_threadsafe(_close_later, self)

    async def abort(self, reason: str = "aborted by the caller") -> None:
        """End the run at its next await point; ``result`` and the events then show it."""
        if self._drive is not None:
            self._drive.opened.scope.request(AgentError("RunAborted", reason))
            return
        self._over = True

    async def send(self, text: AnyInput) -> None:
        """Add a message to the run: it enters before the next model call."""
        await self._send(self.session_id, said_by(text))


def checked(result: RunResult[T]) -> RunResult[T]:
    """``result``, unless the run failed or was aborted: then its error is raised, with the result."""
    if result.last_error is None:
        return result
    error = AgentError.from_info(result.last_error)
    error.result = result
    raise error


_closing: set[asyncio.Task[None]] = set()


def _close_later(stream: RunStream[Any]) -> None:
    if stream.is_over or stream.is_read:
        return
    task = asyncio.get_running_loop().create_task(stream.aclose(), name=f"turnlog close {stream.run_id}")
    _closing.add(task)
    task.add_done_callback(_closing.discard)


class _Reader:
    """Reads a stream; when it is dropped outside of an ``async with`` block, the run ends."""

    __slots__ = ("_stream",)

    def __init__(self, stream: RunStream[Any]) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, RunEvent]:
        return self._stream.next_event()

    def __del__(self) -> None:
        self._stream.abandon()


class _TextReader:
    """The pieces of text in a stream, each shown once."""

    def __init__(self, stream: RunStream[Any]) -> None:
        self._reader = _Reader(stream)
        self._shown = ""
        """What was shown of the answer that is coming in."""
        self._owed: str | None = None
        """What was shown of a retracted answer, until the new one has caught up with it."""
        self._said = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            event = await anext(self._reader)
            if isinstance(event, events.TextDelta):
                if piece := self._take(event.text):
                    return piece
            elif isinstance(event, events.Retracted):
                self._owed = self._owed or self._shown or None
                self._shown = ""
            elif isinstance(event, events.AnswerAdded):
                rest = self._close()
                if rest:
                    return rest

    def _take(self, text: str) -> str:
        first = not self._shown
        self._shown += text
        if self._owed is None:
            parted = "\n\n" if first and self._said else ""
            self._said = True
            return parted + text
        if self._owed.startswith(self._shown):
            return ""
        owed, self._owed = self._owed, None
        return self._shown[len(owed) :] if self._shown.startswith(owed) else f"\n{self._shown}"

    def _close(self) -> str:
        """The answer is whole. One that is shorter than what was shown before is shown again as it is."""
        owed, self._owed, shown = self._owed, None, self._shown
        self._shown = ""
        return f"\n{shown}" if owed is not None and shown and owed != shown else ""


class Run(Generic[T]):
    """A run in the background: it continues when nobody watches, until it ends or its agent is closed."""

    def __init__(self, stream: RunStream[T], watch: Callable[[str, int], AsyncIterator[RunEvent]]) -> None:
        self._stream = stream
        self._watch = watch
        self.session_id = stream.session_id
        self.run_id = stream.run_id
        self._task = asyncio.create_task(self._drive(), name=f"turnlog run {self.run_id}")

    async def _drive(self) -> RunResult[T]:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:  # the event loop ended: the run stays as it was submitted
            await self._stream.let_go()
            raise
        async with self._stream:
            return await self._stream.result(check=False)

    @property
    def done(self) -> bool:
        return self._task.done()

    @property
    def snapshot(self) -> MessageSnapshot | None:
        return self._stream.snapshot

    async def result(self, *, check: bool = True) -> RunResult[T]:
        """Wait for the end of the run. Giving up waiting does not end it."""
        result = await asyncio.shield(self._task)
        return checked(result) if check else result

    async def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """This run's events with numbers above ``after``, to its end. Any number of watchers may read."""
        async for event in self._watch(self.session_id, after):
            if event.run_id == self.run_id:
                yield event
                if isinstance(event, events.RunEnded):
                    return

    async def abort(self, reason: str = "aborted by the caller") -> None:
        await self._stream.abort(reason)

    async def send(self, text: AnyInput) -> None:
        await self._stream.send(text)


class SyncRunStream(Generic[T]):
    """A run stream for code without an event loop: ``for event in …``, or ``for text in ….text``."""

    def __init__(self, stream: RunStream[T]) -> None:
        self._stream = stream
        self._own: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The stream's own event loop, made when it is first read."""
        if self._own is None:
            self._own = asyncio.new_event_loop()
        return self._own

    def __iter__(self) -> Iterator[RunEvent]:
        """The events that are left; none once the stream was read to its end, left or closed."""
        return self._read(aiter(self._stream))

    @property
    def text(self) -> Iterator[str]:
        """The pieces of text that are left, as :attr:`RunStream.text`."""
        return self._read(self._stream.text)

    @property
    def partial(self) -> Iterator[T]:
        return self._read(self._stream.partial)

    def result(self, *, check: bool = True) -> RunResult[T]:
        """Drive the run to its end, or return the result of one that is over."""
        if self._closed or self._stream.is_over:
            return self._stream.finished(check=check)
        try:
            return self._loop.run_until_complete(self._stream.result(check=check))
        finally:
            self.close()

    def close(self) -> None:
        """End the run if it is still in progress. Nothing can be read after that."""
        self._closed = True
        if self._own is not None and not self._own.is_closed():
            try:
                self._loop.run_until_complete(self._stream.aclose())
            finally:
                self._loop.close()

    def _read(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        async def step() -> Any:
            return await anext(source)

        try:
            while not self._closed:
                try:
                    yield self._loop.run_until_complete(step())
                except StopAsyncIteration:
                    return
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
