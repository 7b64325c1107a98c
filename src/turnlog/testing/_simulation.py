"""Many things at once, in an order that a number decides: an event loop without a machine under it.

Time is virtual and jumps to the next timer, callbacks that are ready run in a shuffled order, processes are
groups of tasks that can be killed. The same seed always gives the same run, so a seed that fails is a bug
report.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import selectors
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from turnlog.contract import AgentError, Lease, SessionDigest, StoredEntry, Tail, read_envelope
from turnlog.history import MemoryStore
from turnlog.tools import NOT_RUN, Tool, ToolContext, ToolError, tool

from ._fault_store import WrappedStore
from ._time import START, FixedIds

T = TypeVar("T")
_HOME: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar(
    "simulated process", default=None
)
_MAX_STEPS = 200_000


class _VirtualSelector(selectors.SelectSelector):
    """Never waits: where the loop would, time jumps. Nothing here comes from outside."""

    loop: SimulatedLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.before_step(timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Use through :class:`Simulation`. No threads, no sockets: a simulation is one thread of computation."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self._now = 0.0
        self._steps = 0
        selector = _VirtualSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def before_step(self, timeout: float | None) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise AssertionError(f"no end after {_MAX_STEPS} steps of the loop: something spins")
        ready = cast("deque[Any]", self._ready)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        if len(ready) > 1:
            shuffled = list(ready)
            self._random.shuffle(shuffled)
            ready.clear()
            ready.extend(shuffled)
        elif not ready:
            if timeout is None:
                tasks = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self)))
                raise AssertionError(f"every task waits for ever: {tasks}")
            self._now += timeout


class SimulatedClock:
    """The loop's time as a clock. ``jump`` sets the wall clock as an administrator does; durations stay."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._start = datetime.fromisoformat(START).astimezone(UTC)
        self._skew = 0.0

    def now(self) -> str:
        seconds = self._loop.time() + self._skew
        moment = self._start + timedelta(milliseconds=int(seconds * 1000))
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(seconds, 0.0))

    def jump(self, seconds: float) -> None:
        self._skew += seconds


class SimulatedProcess:
    """Tasks and a way to the store that die together, leaving only what is in the store.

    Tasks started inside belong to it. A killed process no longer reaches the store: what its tasks still do
    while they end counts for nothing.
    """

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.simulation = simulation
        self.ids = FixedIds(prefix=name)
        self.store = SimulatedStore(simulation, self)
        self.dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """In the order they were started: a set would have another one every time."""

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        context = contextvars.copy_context()
        context.run(_HOME.set, self)
        return self.simulation.loop.create_task(work, name=f"{self.name}: {name}", context=context)

    def effect(self, key: str) -> None:
        """Count something done to the outside world; a dead process does nothing any more."""
        if not self.dead:
            self.simulation.effects[key] += 1

    def kill(self) -> None:
        self.dead = True
        for task in list(self.tasks):
            task.cancel()


class SimulatedStore(WrappedStore):
    """A process's way to the simulation's one memory store: slow, and failing as often as it is told to.

    ``fail`` is the chance that an append fails, before or after it took effect.
    """

    def __init__(self, simulation: Simulation, process: SimulatedProcess) -> None:
        super().__init__(simulation.store)
        self._simulation = simulation
        self._process = process
        self.fail = 0.0

    async def append(
        self,
        session_id: str,
        batch: Sequence[StoredEntry],
        *,
        expected_tail: int,
        lease: Lease | None = None,
        digest: SessionDigest | None = None,
        blobs: Sequence[bytes] = (),
    ) -> None:
        await self._arrive()
        draw = self._simulation.random.random()
        if draw < self.fail / 2:
            raise AgentError("SessionWriteFailed", "the simulated disk is full")
        await self.inner.append(
            session_id, batch, expected_tail=expected_tail, lease=lease, digest=digest, blobs=blobs
        )
        if draw < self.fail:
            raise AgentError("SessionWriteFailed", "the acknowledgement was lost on its way")
        await self._arrive()
        for stored in batch:
            hash = read_envelope(stored.body).hash
            self._simulation.acknowledged.append((session_id, Tail(seq=stored.seq, id=stored.id, hash=hash)))

    async def close(self) -> None:
        return None

    async def _call(self, method: str, act: Callable[[], Awaitable[T]]) -> T:
        await self._arrive()
        value = await act()
        await self._arrive()
        return value

    async def _arrive(self) -> None:
        """The way there or back; who is killed on it does not arrive."""
        await self._simulation.pause(0.004)
        if self._process.dead:
            raise AgentError("SessionWriteFailed", f"the process {self._process.name} was killed")


def current_process() -> SimulatedProcess | None:
    """The simulated process whose task this is."""
    return _HOME.get()


class Simulation:
    """One seed's world: its loop, clock, randomness, store and processes.

    ``run`` it with a coroutine function that takes the simulation; everything is over when that returns.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.loop = SimulatedLoop(self.random)
        self.clock = SimulatedClock(self.loop)
        self.store = MemoryStore(clock=self.clock)
        self.processes: list[SimulatedProcess] = []
        self.acknowledged: list[tuple[str, Tail]] = []
        self.effects: Counter[str] = Counter()

    def process(self) -> SimulatedProcess:
        """A new process, without tasks yet."""
        process = SimulatedProcess(self, f"p{len(self.processes) + 1}")
        self.processes.append(process)
        return process

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    async def pause(self, most: float) -> None:
        """A moment: often only a turn of the loop, else up to ``most`` seconds."""
        await asyncio.sleep(0 if self.chance(0.6) else self.random.random() * most)

    def run(self, main: Callable[[Simulation], Coroutine[Any, Any, T]]) -> T:
        """Raises ``AssertionError`` for a task that is left over, besides what ``main`` raises."""
        loop = self.loop
        before = random.getstate()
        random.seed(self.seed)  # jitter comes from there
        loop.set_task_factory(_in_its_process)
        loop.set_exception_handler(self._note_unhandled)
        self._unhandled: list[str] = []
        asyncio.set_event_loop(loop)
        try:
            value = loop.run_until_complete(main(self))
            left = [task.get_name() for task in asyncio.all_tasks(loop)]
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            random.setstate(before)
        if left:
            raise AssertionError(f"tasks are left over: {', '.join(sorted(left))}")
        if self._unhandled:
            raise AssertionError(f"errors that nobody handled: {'; '.join(self._unhandled)}")
        return value

    def _note_unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._unhandled.append(f"{context.get('message')} {context.get('exception')!r}")


def _in_its_process(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task[Any](work, loop=loop, **options)
    context = cast("contextvars.Context | None", options.get("context"))
    process = context.get(_HOME) if context is not None else _HOME.get()
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


# The tools of a simulated session: each another way of having, or not having, an effect outside


async def _act(ctx: ToolContext) -> Simulation:
    """Something outside happens, some time into the call and some time before its end."""
    process = current_process()
    assert process is not None
    await process.simulation.pause(0.05)
    process.effect(ctx.idempotency_key)
    await process.simulation.pause(0.05)
    return process.simulation


@tool(timeout=0.2)
async def pay(text: str, ctx: ToolContext) -> str:
    """Must never happen twice."""
    if (await _act(ctx)).chance(0.1):
        raise ToolError("no money left")
    return "paid"


@tool(timeout=None, concurrent=True, idempotent=True, retries=1)
async def look(text: str, ctx: ToolContext) -> str:
    """Harmless."""
    if (await _act(ctx)).chance(0.1):
        raise ToolError("fog", retryable=True)
    return "all quiet"


@tool(timeout=None, concurrent=True, keyed=True)
async def post(text: str, ctx: ToolContext) -> str:
    """Passes its key on."""
    await _act(ctx)
    return "posted"


_under_way: dict[str, SimulatedProcess] = {}
"""Who is booking, by key."""


async def _find_booking(ctx: ToolContext, arguments: object) -> object:
    process = current_process()
    assert process is not None
    await process.simulation.pause(0.05)
    if process.simulation.effects[ctx.idempotency_key]:
        return "booked"
    holder = _under_way.get(ctx.idempotency_key)
    # One that lost its session and still lives may yet do it: then nobody can know.
    return NOT_RUN if holder is None or holder.dead else None


@tool(timeout=None, reconcile=_find_booking)
async def book(text: str, ctx: ToolContext) -> str:
    """Can be asked what became of it."""
    process = current_process()
    assert process is not None
    _under_way[ctx.idempotency_key] = process
    try:
        await _act(ctx)
    finally:
        _under_way.pop(ctx.idempotency_key, None)
    return "booked"


@tool(timeout=None, requires_approval=True)
async def send(text: str, ctx: ToolContext) -> str:
    """Somebody has to allow it."""
    await _act(ctx)
    return "sent"


@tool(timeout=0.1)
async def sulk(text: str) -> str:
    """Ends neither in time nor when it is told to."""
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            continue


@tool(timeout=None)
async def quit(text: str) -> str:
    """Tries to end the program."""
    raise SystemExit(3)


TOOLS: tuple[Tool, ...] = (pay, look, post, book, send, sulk, quit)
