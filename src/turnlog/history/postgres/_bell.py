"""Telling others that a session grew, and hearing of it: LISTEN and NOTIFY, a hint that may be lost.

A NOTIFY in every append would cost most of the throughput, so changes are gathered for a moment and told
together. Whoever waits looks again after a while, whether or not a hint came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from ...contract import AgentError
from . import _statements as statements
from ._link import DriverError, Link
from ._pool import Origin, Pool

GATHER = 0.02
"""Seconds between two notifications of a process."""
_MAX_PAYLOAD = 7_500  # bytes; the server takes 7,999
_EVERYTHING = "*"  # for "some of many"
_POSTS = "\t"  # no session has such an id: a control was posted
_IDLE = 30.0
_RETRY = 1.0
_WITHOUT = 0.2
"""Seconds between two looks while nothing can be heard."""


class Bell:
    """Belongs to one event loop."""

    def __init__(self, origin: Origin, pool: Pool) -> None:
        self._origin = origin
        self._pool = pool
        self._channel = f"turnlog_{origin.address.schema}"
        self._changed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._up: asyncio.Future[None] | None = None
        self._link: Link | None = None

    # Telling

    def ring(self, session_id: str) -> None:
        """A session grew."""
        self._wake(session_id)
        self._changed.add(session_id)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            wait = max(self._last + GATHER - loop.time(), 0.0)
            self._timer = loop.call_later(wait, self._tell_soon)

    def _tell_soon(self) -> None:
        self._last = asyncio.get_running_loop().time()
        self._timer = None
        self._pool.start(self._tell(self._take_changed()))

    def _take_changed(self) -> str:
        changed, self._changed = self._changed, set()
        payload = "\n".join(changed)
        return payload if len(payload.encode()) <= _MAX_PAYLOAD else _EVERYTHING

    async def _tell(self, payload: str) -> None:
        with suppress(AgentError):  # a hint; those who wait look by themselves
            await self._pool.run("write", partial(self._notify, payload))

    async def _notify(self, payload: str, link: Link) -> None:
        await link.rows(statements.NOTIFY, (self._channel, payload))

    def posting(self, session_id: str) -> tuple[str, str]:
        """Channel and payload of the notification that a control was posted."""
        return self._channel, f"{session_id}\n{_POSTS}"

    def heard_post(self, session_id: str) -> None:
        """What this process posted itself."""
        self._wake(session_id)
        self._wake(_POSTS)

    # Hearing

    async def wait_for_post(self, timeout: float) -> None:
        """Until a control may have been posted to any session, ``timeout`` seconds at most."""

        async def changed() -> bool:
            return False

        await self.wait(_POSTS, changed, timeout)

    async def wait(self, session_id: str, changed: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """Until something may have changed in the session, ``timeout`` seconds at most."""
        heard = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session_id, set()).add(heard)
        try:
            if not await self._listening():
                await asyncio.sleep(min(timeout, _WITHOUT))
            elif not await changed():  # before we listened
                await asyncio.wait([heard], timeout=timeout)
        finally:
            heard.cancel()
            rest = self._waiting[session_id]
            rest.discard(heard)
            if not rest:
                del self._waiting[session_id]

    async def _listening(self) -> bool:
        if self._listener is None or self._listener.done():
            self._up = asyncio.get_running_loop().create_future()
            self._listener = asyncio.get_running_loop().create_task(
                self._listen(), name="turnlog postgres listener"
            )
        if self._up is not None and not self._up.done():
            await asyncio.wait([self._up], timeout=_RETRY)
        return self._link is not None

    async def _listen(self) -> None:
        while True:
            try:
                link = await self._origin.connect()
                try:
                    await link.script(f"LISTEN {self._channel}")
                    self._report(link)
                    await self._hear(link)
                finally:
                    self._report(None)
                    link.drop()
            except (DriverError, AgentError, OSError):
                self._report(None)
            if not self._waiting:
                return
            await asyncio.sleep(_RETRY)

    async def _hear(self, link: Link) -> None:
        while True:
            async for notice in link.driver.notifies(timeout=_IDLE):
                for session_id in notice.payload.split("\n"):
                    if session_id == _EVERYTHING:
                        self._wake_all()
                    else:
                        self._wake(session_id)
            if not self._waiting:
                return

    def _report(self, link: Link | None) -> None:
        self._link = link
        if self._up is not None and not self._up.done():
            self._up.set_result(None)
        self._wake_all()

    def _wake(self, session_id: str) -> None:
        for heard in self._waiting.get(session_id, ()):
            if not heard.done():
                heard.set_result(None)

    def _wake_all(self) -> None:
        for session_id in self._waiting:
            self._wake(session_id)

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            await asyncio.wait([listener])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            await self._tell(self._take_changed())

    def drop(self) -> None:
        if self._link is not None:
            self._link.drop()
