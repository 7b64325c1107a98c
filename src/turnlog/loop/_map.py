"""Many inputs through one agent: so many at a time, summed up, and continued where they were stopped."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from turnlog.contract import AgentError, RunResult, Store, TokenUsage, encode
from turnlog.history import SessionState
from turnlog.tools import OutputType, Problems

from ._events import result_of
from ._handle import Session
from ._options import AnyInput, RunOptions, check_kind, said_by
from ._output import output_in

T = TypeVar("T", default=str)


@dataclass(frozen=True, kw_only=True)
class Mapped(Generic[T]):
    """What came of one input. ``known``: it was done before, and its result is read from the log."""

    index: int
    input: AnyInput
    session_id: str
    result: RunResult[T] | None = None
    error: AgentError | None = None
    known: bool = False

    @property
    def output(self) -> T:
        """The output of the run. Raises ``AgentError`` when it has none."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result.output


class Batch(Generic[T]):
    """The runs of ``agent.map``: ``async for done in batch`` drives them and gives each as it finishes.
    Leaving the loop ends those in progress."""

    def __init__(
        self,
        inputs: Iterable[AnyInput],
        sessions: Callable[[str | None], Session[Any]],
        names: str | Sequence[str] | None,
        concurrency: int,
        progress: bool | None,
        store: Store,
        output: OutputType[Any] | None,
        output_type: Any,
        options: RunOptions,
    ) -> None:
        self.done = 0
        self.failed = 0
        self.usage: TokenUsage | None = None
        """Tokens and cost of all that is done, also of what was done before."""
        self._inputs = inputs
        self.total = len(inputs) if isinstance(inputs, Sized) else None
        self._sessions = sessions
        self._names = names
        self._width = _check(inputs, names, concurrency, options)
        self._bar = (
            ProgressBar(self.total) if (sys.stderr.isatty() if progress is None else progress) else None
        )
        self._store = store
        self._output = output
        self._output_type = output_type
        self._options = options

    def __aiter__(self) -> AsyncIterator[Mapped[T]]:
        return self._drive()

    async def results(self) -> list[Mapped[T]]:
        """All of them, in the order of the inputs."""
        return sorted([done async for done in self], key=lambda done: done.index)

    async def _drive(self) -> AsyncGenerator[Mapped[T], None]:
        finished: asyncio.Queue[Mapped[T] | Exception | None] = asyncio.Queue(self._width)
        work = asyncio.create_task(self._work(finished), name="turnlog map")
        try:
            while (done := await finished.get()) is not None:
                if isinstance(done, Exception):
                    raise done
                self._count(done)
                yield done
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if self._bar is not None:
                self._bar.close()

    async def _work(self, finished: asyncio.Queue[Mapped[T] | Exception | None]) -> None:
        todo = self._todo()

        async def some() -> None:
            for index, given, name in todo:
                await finished.put(await self._one(index, given, name))

        width = self._width if self.total is None else min(self._width, self.total)
        workers = [asyncio.create_task(some(), name="turnlog map") for _ in range(width)]
        failure: Exception | None = None
        try:
            await asyncio.gather(*workers)
        except Exception as error:
            failure = error
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        await finished.put(failure)

    def _todo(self) -> Iterator[tuple[int, AnyInput, str | None]]:
        seen: Counter[str] = Counter()
        for index, given in enumerate(self._inputs):
            name = None
            if isinstance(self._names, str):
                digest = _digest(given)
                seen[digest] += 1
                again = f"-{seen[digest]}" if seen[digest] > 1 else ""
                name = f"{self._names}-{digest}{again}"
            elif self._names is not None:
                name = self._names[index]
            yield index, given, name

    async def _one(self, index: int, given: AnyInput, name: str | None) -> Mapped[T]:
        session = self._sessions(name)
        place: dict[str, Any] = {"index": index, "input": given, "session_id": session.session_id}
        try:
            state = await self._state(name)
            if (known := self._known(session.session_id, state)) is not None:
                return Mapped(**place, result=known, known=True)
            result = None
            if state.is_open:  # a crash left it so
                deps = self._options.get("deps")
                result = await session.resume(output_type=self._output_type, deps=deps, check=False)
            if result is None:
                result = await session.run(given, output_type=self._output_type, check=False, **self._options)
        except AgentError as error:
            if error.code == "ConfigInvalid":
                raise  # it would be the same for all of them
            return Mapped(**place, error=error)
        error = None if result.last_error is None else AgentError.from_info(result.last_error)
        return Mapped(**place, result=result, error=error)

    async def _state(self, name: str | None) -> SessionState:
        if name is None or await self._store.tail(name) is None:
            return SessionState()
        return SessionState.of(await self._store.load(name))

    def _known(self, session_id: str, state: SessionState) -> RunResult[Any] | None:
        """The result of a run that completed before; None when there is none, or it is of another type."""
        if state.status != "completed" or state.started is None:
            return None
        if self._output is None:
            return result_of(session_id, state)
        if state.started.output_mode is None:
            return None
        plain = output_in(state)
        field = self._output.field
        found = self._output.validate(plain if field is None else {field: plain})
        return None if isinstance(found, Problems) else result_of(session_id, state, found)

    def _count(self, done: Mapped[T]) -> None:
        self.done += 1
        self.failed += done.error is not None
        used = done.result.usage if done.result is not None else None
        if used is not None:
            self.usage = used if self.usage is None else self.usage + used
        if self._bar is not None:
            self._bar.show(self.done, self.failed, self.usage)


def _digest(given: AnyInput) -> str:
    said = said_by(given)
    told = encode([said.message.parts, list(said.sections)])
    return hashlib.sha256(told).hexdigest()[:16]


def _check(inputs: Any, names: Any, concurrency: Any, options: RunOptions) -> int:
    problem = None
    if isinstance(inputs, str) or not isinstance(inputs, Iterable):
        problem = "inputs is no list of inputs; pass a list, also for one"
    elif not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
        problem = f"concurrency is {concurrency!r}; pass how many runs may be in progress, 1 or more"
    elif options.get("run_id") is not None:
        problem = "run_id names one run, and this makes many; leave it out"
    elif names == "":
        problem = "sessions is empty; pass what the names of the sessions begin with, or leave it out"
    elif names is not None and not isinstance(names, str):
        if not isinstance(inputs, Sized) or len(names) != len(inputs) or len(set(names)) != len(names):
            problem = "sessions must name one session for each input, each of them once"
        for name in names:
            check_kind("sessions", name, str, "names of sessions, as text", required=True)
    if problem is not None:
        raise AgentError("ConfigInvalid", problem)
    return concurrency


class ProgressBar:
    """How far many runs are, on the standard error of a terminal."""

    def __init__(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True))
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, done: int, failed: int, usage: TokenUsage | None) -> None:
        words = f"{done} done"
        if failed:
            words += f", {failed} failed"
        if usage is not None:
            words += f", {usage.total_tokens:,} tokens"
            words += "" if usage.cost is None else f", ${usage.cost:.2f}"
        self._progress.update(self._task, completed=done, description=words)

    def close(self) -> None:
        self._progress.stop()
