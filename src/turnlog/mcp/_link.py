"""A connection to an MCP server, kept by a thread of its own.

The client of the ``mcp`` package belongs to one task of one event loop, and an agent may be used from many:
so the connection lives in a loop of its own, and calls are handed over to it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")
Connect: TypeAlias = Callable[[Callable[[], None]], "AbstractAsyncContextManager[Client]"]
"""Opens a client that calls the function it is given whenever the server's tools have changed."""


class Link:
    """Open from the end of ``open`` until ``close``, or until the server goes away."""

    def __init__(self, connect: Connect, changed: Callable[[], None]) -> None:
        self._connect = connect
        self._changed = changed
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._serve, name="turnlog-mcp", daemon=True)
        self.is_broken = False

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
            self.is_broken = True
            raise ConnectionError("the connection is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(client), loop))

    async def close(self) -> None:
        self.is_broken = True
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 15.0)

    def _serve(self) -> None:
        with contextlib.suppress(BaseException):
            asyncio.run(self._live())

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self.is_broken:
            return  # closed before this thread came to run
        living = asyncio.create_task(self._hold())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if self._client is None:
            living.cancel()  # given up before it was open
        await asyncio.wait({living})
        self.is_broken = True
        stopping.cancel()

    async def _hold(self) -> None:
        assert self._stop is not None
        try:
            async with self._connect(self._changed) as client:
                self._client = client
                self._ready.set_result(None)
                watching = asyncio.create_task(self._watch(client))
                await self._stop.wait()
                watching.cancel()
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
                    self._changed()
