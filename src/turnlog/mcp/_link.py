"""A connection to an MCP server, kept by a thread of its own.

The client of the ``mcp`` package belongs to one task of one event loop, and an agent may be used from many:
so the connection lives in a loop of its own, and calls are handed over to it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ._transport import Outcome

if TYPE_CHECKING:
    from mcp import Client, types

T = TypeVar("T")
Connect: TypeAlias = "Callable[[Link], AbstractAsyncContextManager[Client]]"
"""Opens a client whose callbacks are those of the link."""

_UNCLEAR = 10.0
"""Seconds that a question waits until it is clear which call asks it."""


class Question:
    """What a server asks while a call of the older protocol runs; it waits for ``reply``."""

    def __init__(self, asked: types.ElicitRequestParams, reply: asyncio.Future[types.ElicitResult]) -> None:
        self.asked = asked
        self.reply = reply


class Flight:
    """A call under way in the older protocol, where questions come from the server while it runs. It belongs
    to the event loop of its link."""

    def __init__(
        self,
        answer: Callable[[types.ElicitRequestParams], types.ElicitResult | None],
        sample: Callable[[types.CreateMessageRequestParams], Awaitable[Any]],
    ) -> None:
        self.answer, self.sample = answer, sample
        self.question: Question | None = None
        self._asked: asyncio.Future[Question] | None = None
        self._task: asyncio.Task[types.CallToolResult] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether an answer can still reach the server."""
        done = self._task is None or self._task.done()
        return not done and self.question is not None and not self.question.reply.done()

    async def advance(
        self, link: Link, start: Callable[[], Coroutine[Any, Any, types.CallToolResult]] | None
    ) -> types.CallToolResult | Question:
        """The result of the call, or the next question that nobody has answered yet."""
        loop = asyncio.get_running_loop()
        self._asked = loop.create_future()
        if start is not None:
            self._task = loop.create_task(start())
            link.flights.append(self)
            self._task.add_done_callback(lambda _: link.flights.remove(self))
        assert self._task is not None
        try:
            await asyncio.wait({self._task, self._asked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()  # which tells the server
            raise
        if self._task.done():
            return self._task.result()
        return self._asked.result()

    async def ask(self, asked: types.ElicitRequestParams) -> types.ElicitResult:
        if (known := self.answer(asked)) is not None:
            return known
        self.question = Question(asked, asyncio.get_running_loop().create_future())
        try:
            if self._asked is not None and not self._asked.done():
                self._asked.set_result(self.question)
            return await self.question.reply
        finally:
            self.question = None

    def drop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())


class Link:
    """Open from the end of ``open`` until ``close``, or until the server goes away."""

    def __init__(self, connect: Connect, changed: Callable[[], None]) -> None:
        self._connect = connect
        self.changed = changed
        self.outcome = Outcome()
        self.flights: list[Flight] = []
        self.is_modern = False
        self.instructions: str | None = None
        self.offers: types.ServerCapabilities | None = None
        self._broken = False
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._serve, name="turnlog-mcp", daemon=True)

    @property
    def is_broken(self) -> bool:
        return self._broken or self.outcome.ended

    def give_up(self) -> None:
        self._broken = True

    async def open(self, seconds: float) -> None:
        """Raises what the connection raises, or ``TimeoutError``."""
        self._thread.start()
        ready = asyncio.wrap_future(self._ready)
        try:
            await asyncio.wait({ready}, timeout=seconds)
            if not ready.done():
                raise TimeoutError
            ready.result()
        except BaseException:
            await self.close()
            raise

    async def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Do ``work`` where the connection lives; cancelled here, it is cancelled there."""
        client, loop = self._client, self._loop
        if client is None or loop is None or not self._thread.is_alive():
            self._broken = True
            raise ConnectionError("the connection is closed")
        return await _hand_over(loop, lambda: work(client))

    async def close(self) -> None:
        self._broken = True
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 15.0)

    # ── in its own thread ──

    def _serve(self) -> None:
        with contextlib.suppress(BaseException):
            asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._broken:
            return  # closed before this thread came to run
        living = asyncio.create_task(self._hold())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if self._client is None:
            living.cancel()  # given up before it was open
        await asyncio.wait({living})
        self._broken = True
        stopping.cancel()

    async def _hold(self) -> None:
        assert self._stop is not None
        try:
            async with self._connect(self) as client:
                self.is_modern = client.session.discover_result is not None
                self.instructions, self.offers = client.instructions, client.server_capabilities
                self._client = client
                self._ready.set_result(None)
                watching = asyncio.create_task(self._watch(client))
                await self._stop.wait()
                watching.cancel()
                for flight in list(self.flights):
                    flight.drop()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._client = None

    async def _watch(self, client: Client) -> None:
        """Servers of the newer protocol notify subscribers of changes; older ones notify every client."""
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self.changed()

    async def hear(self, message: object) -> None:
        from mcp import types

        if isinstance(message, types.ToolListChangedNotification):
            self.changed()

    async def elicit(self, context: object, params: types.ElicitRequestParams) -> Any:
        flight = await self._asking()
        return _unclear() if flight is None else await flight.ask(params)

    async def sample(self, context: object, params: types.CreateMessageRequestParams) -> Any:
        flight = await self._asking()
        return _unclear() if flight is None else await flight.sample(params)

    async def _asking(self) -> Flight | None:
        """The call that a request of the server belongs to. The older protocol does not tell: it is the only
        one under way, as soon as there is only one."""
        for _ in range(int(_UNCLEAR / 0.02)):
            running = [flight for flight in self.flights if flight.question is None]
            if len(running) < 2:
                return running[0] if running else None
            await asyncio.sleep(0.02)
        return None


async def _hand_over(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run_coroutine_threadsafe``, without the locks of a future for threads: it is a good part of
    what a short call costs."""
    here = asyncio.get_running_loop()
    done: asyncio.Future[T] = here.create_future()
    task: asyncio.Task[T] | None = None
    cancelled = False

    def start() -> None:
        nonlocal task
        if not cancelled:
            task = loop.create_task(work())
            task.add_done_callback(finish)

    def finish(task: asyncio.Task[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody waits any more
            here.call_soon_threadsafe(settle, task)

    def settle(task: asyncio.Task[T]) -> None:
        if done.done():
            _ = task.cancelled() or task.exception()
        elif task.cancelled():
            done.set_exception(ConnectionError("the connection is closed"))
        elif (error := task.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())

    def stop() -> None:
        if task is not None:
            task.cancel()

    try:
        loop.call_soon_threadsafe(start)
        return await done
    except asyncio.CancelledError:
        cancelled = True
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop)
        raise
    except RuntimeError as error:
        if loop.is_closed():
            raise ConnectionError("the connection is closed") from error
        raise


def _unclear() -> types.ErrorData:
    from mcp import types

    words = "no call, or several, are in progress, so it is not clear which of them asks"
    return types.ErrorData(code=types.INVALID_REQUEST, message=words)
