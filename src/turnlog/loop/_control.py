"""Requests that reach a run in another process, through the control queue beside the log.

The process that drives a run is its only writer. It looks at the queue a few times a second, takes in what
is for its runs between two steps, and answers. The sender waits for that answer for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakKeyDictionary

import msgspec

from turnlog.contract import AgentError, Clock, Control, ControlKind, ErrorInfo, IdSource, JsonObject, Store
from turnlog.observe import get_logger

from ._open_sessions import OpenRun

LOOK = 0.25
"""Seconds between two looks at the queue."""
PATIENCE = 5.0
"""Seconds that a request waits for the process that drives the run."""

_log = get_logger("loop")


class Controls:
    """Takes in controls for the runs of this process, and sends them to those of others."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: IdSource,
        runs: Mapping[str, OpenRun],
        apply: Callable[[OpenRun, Control], Awaitable[JsonObject | None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._runs = runs
        self._apply = apply
        self._timers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Look at the queue now and then while this event loop drives a run."""
        loop = asyncio.get_running_loop()
        if loop not in self._timers:
            self._timers[loop] = loop.call_later(LOOK, self._begin, loop)

    def rest(self) -> None:
        """Stop looking when this event loop drives no run any more."""
        loop = asyncio.get_running_loop()
        if loop in self._timers and not self._mine(loop):
            self._timers.pop(loop).cancel()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        task = loop.create_task(self.look(), name="turnlog controls")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._again(loop, task))

    def _again(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._timers.pop(loop, None)
        if self._mine(loop) and not loop.is_closed():
            self._timers[loop] = loop.call_later(LOOK, self._begin, loop)

    def _mine(self, loop: asyncio.AbstractEventLoop) -> bool:
        return any(opened.home is loop for opened in list(self._runs.values()))

    async def look(self, session_id: str | None = None) -> None:
        """Take in what is in the queue for runs of this event loop."""
        try:
            found = await self._store.posted(session_id)
        except AgentError as error:  # the store is away; the next append will tell
            _log.debug("the control queue was not read: %s", error.message)
            return
        loop = asyncio.get_running_loop()
        for control in found:
            opened = self._runs.get(control.session_id)
            if opened is not None and opened.runner is not None and opened.home is loop:
                await self._take(opened, control)

    async def _take(self, opened: OpenRun, control: Control) -> None:
        try:
            answer = await self._apply(opened, control)
        except AgentError as error:
            answer = {"error": msgspec.to_builtins(error.to_info())}
        if answer is None:
            return
        _log.debug("%s: control %s %s: %s", control.session_id, control.kind, control.id, answer)
        try:
            await self._store.answer_control(control.id, answer)
        except AgentError as error:
            _log.warning("%s: control %s was not answered: %s", control.session_id, control.id, error.message)

    async def post(self, session_id: str, kind: ControlKind, data: JsonObject) -> str:
        control = Control(
            id=self._ids.entry(), session_id=session_id, kind=kind, data=data, created_at=self._clock.now()
        )
        await self._store.post(control)
        return control.id

    async def request(self, session_id: str, kind: ControlKind, data: JsonObject) -> JsonObject:
        """Post a control and wait for its answer. Raises the error that the other process answered with, and
        ``SessionBusy`` when it does not answer in time; then the control is withdrawn."""
        control_id = await self.post(session_id, kind, data)
        answer = await self.wait(control_id, PATIENCE)
        if answer is None:
            if await self._store.withdraw(control_id):
                raise AgentError(
                    "SessionBusy",
                    f"the process that holds session {session_id} did not answer within {PATIENCE:g} s; it "
                    "may be stopped or cut off from the store: try again, or wait until its lease runs out",
                )
            answer = await self._store.take_answer(control_id) or {}
        if (error := answer.get("error")) is not None:
            raise AgentError.from_info(msgspec.convert(error, ErrorInfo))
        return answer

    async def wait(self, control_id: str, seconds: float) -> JsonObject | None:
        """The answer to a control, or None when none has come in time."""
        pause = 0.02
        ends = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends:
            answer = await self._store.take_answer(control_id)
            if answer is not None:
                return answer
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK)
        return None

    async def withdraw(self, control_id: str) -> bool:
        return await self._store.withdraw(control_id)
