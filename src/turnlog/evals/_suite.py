"""A suite of cases, tried by one agent or several: so many at a time, kept in a log, and continued where it
was stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from turnlog.contract import (
    AgentError,
    CustomEntry,
    Entry,
    JsonObject,
    ModelInputEntry,
    RunEndedEntry,
    RunResult,
    RunStartedEntry,
    Store,
    TokenUsage,
    Value,
    digest,
    encode,
)
from turnlog.history import Session as Log
from turnlog.history import SessionState, import_jsonl
from turnlog.loop import Agent, ProgressBar, SessionLease, said_by
from turnlog.models import Model
from turnlog.system import SystemClock, SystemIds

from ._cases import Case
from ._checks import Attempt, Check, Judge, look
from ._report import Report, Trial, add_up, make_report

PREFIX = "eval:"
"""How the names of the logs begin that keep what came of a suite."""
_STARTED, _TRIAL, _ENDED = "eval_started", "eval_trial", "eval_ended"


class _Started(Value, frozen=True, kw_only=True):
    suite: str
    run: str
    mark: str
    started_at: str
    agents: list[str]
    cases: list[str]
    repeat: int


class Suite:
    """Cases, the agents that try them, and what must come of it.

    ``agents`` is one agent, or several by name: another model, another prompt. Each keeps its sessions in its
    own store, and the first one's store keeps the results. ``checks`` hold for every case, beside the case's
    own. Each case is tried ``repeat`` times. ``judge`` is the model of the judges that name none.
    """

    def __init__(
        self,
        name: str,
        *,
        agents: Agent[Any] | Mapping[str, Agent[Any]],
        cases: Iterable[Case],
        checks: Sequence[Check] = (),
        repeat: int = 1,
        judge: Model[Any] | str | None = None,
    ) -> None:
        self.name = name
        self.agents: dict[str, Agent[Any]] = (
            {agents.name: agents} if isinstance(agents, Agent) else dict(agents)
        )
        self.cases = list(cases)
        self.checks = list(checks)
        self.repeat = repeat
        self.judge = judge
        names = [case.name for case in self.cases]
        problem = None
        if not name or len(name) > 60 or not name.isprintable() or ":" in name:
            problem = f"a suite cannot be named {name!r}: 1 to 60 printable characters without a colon"
        elif not self.agents:
            problem = f"suite {name!r} has no agent"
        elif wrong := [key for key in self.agents if not key or len(key) > 60 or not key.isprintable()]:
            problem = f"an agent cannot be named {wrong[0]!r}: 1 to 60 printable characters"
        elif not self.cases:
            problem = f"suite {name!r} has no case"
        elif len(set(names)) != len(names):
            twice = next(each for each in names if names.count(each) > 1)
            problem = f"suite {name!r} has two cases named {twice!r}"
        elif isinstance(repeat, bool) or not isinstance(repeat, int) or repeat < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            problem = f"repeat is {repeat!r}; pass how often each case is tried, 1 or more"
        elif judge is None and any(isinstance(c, Judge) and c.model is None for c in self._all_checks()):
            problem = f"suite {name!r} has a judge without a model: judge(…, model=…) or Suite(judge=…)"
        if problem is not None:
            raise AgentError("ConfigInvalid", problem)

    def _all_checks(self) -> Iterator[Check]:
        yield from self.checks
        for case in self.cases:
            yield from case.checks

    async def run(
        self,
        *,
        concurrency: int = 8,
        max_cost: float | None = None,
        fresh: bool = False,
        progress: bool | None = None,
        cases: Callable[[Case], bool] | None = None,
    ) -> Report:
        """Try every case and report. A run of the same suite that was stopped is continued, with nothing
        asked again that is done, unless ``fresh``. No attempt begins once ``max_cost`` dollars are spent.
        ``cases`` chooses some. Raises ``SessionBusy`` while another process runs this suite."""
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AgentError("ConfigInvalid", f"concurrency is {concurrency!r}; pass 1 or more")
        chosen = self.cases if cases is None else [case for case in self.cases if cases(case)]
        if not chosen:
            raise AgentError("ConfigInvalid", f"suite {self.name!r} has no such case")
        for check in self._all_checks():
            if isinstance(check, Judge) and check.model is None:
                check.model = self.judge
        store = next(iter(self.agents.values())).store
        gate = SessionLease(
            store,
            f"{PREFIX}{self.name}",
            clock=SystemClock(),
            advice="stop it first: what it has done is kept, and is not done again",
        )
        async with gate:
            journal = await _Journal.open(self, chosen, store, fresh=fresh)
            bar = None
            if sys.stderr.isatty() if progress is None else progress:
                bar = ProgressBar(len(self.agents) * len(chosen) * self.repeat)
            try:
                return await _Work(self, chosen, journal, concurrency, max_cost, bar).drive()
            finally:
                if bar is not None:
                    bar.close()
                for check in self._all_checks():
                    if isinstance(check, Judge):
                        await check.close()

    def run_sync(self, **options: Any) -> Report:
        """As :meth:`run`, for a program without an event loop. The agents stay open."""
        return asyncio.run(self.run(**options))


class _Journal:
    """The log of one run of a suite: how it was started, every trial, and its end."""

    def __init__(
        self, log: Log, started: _Started, trials: list[Trial], before: tuple[str, list[Trial]] | None
    ) -> None:
        self._log = log
        self.started = started
        self.trials = trials
        self.before = before

    @classmethod
    async def open(cls, suite: Suite, cases: Sequence[Case], store: Store, *, fresh: bool) -> _Journal:
        clock, ids = SystemClock(), SystemIds()
        mark = digest(
            msgspec.json.encode(
                [sorted(suite.agents), [case.mark for case in cases], suite.repeat, len(suite.checks)]
            )
        )
        before: tuple[str, list[Trial]] | None = None
        for info in await store.sessions(metadata={"eval": suite.name}, limit=20):
            entries = await store.load(info.session_id)
            found = read_run(entries)
            if found is None:
                continue
            started, trials, ended = found
            if not ended and not fresh and started.mark == mark:
                log = await Log.open(store, info.session_id, clock=clock, ids=ids)
                return cls(log, started, trials, await _last_ended(store, suite.name, info.session_id))
            if ended and before is None:
                before = (started.run, trials)
        now = clock.now()
        run = f"{now[:19].replace('-', '').replace(':', '')}-{os.urandom(2).hex()}"
        started = _Started(
            suite=suite.name,
            run=run,
            mark=mark,
            started_at=now,
            agents=list(suite.agents),
            cases=[case.name for case in cases],
            repeat=suite.repeat,
        )
        log = await Log.open(
            store,
            f"{PREFIX}{suite.name}:{run}",
            clock=clock,
            ids=ids,
            title=f"evaluation of {suite.name}",
            metadata={"eval": suite.name},
        )
        journal = cls(log, started, [], before)
        await journal._write(_STARTED, started)
        return journal

    @property
    def session_id(self) -> str:
        return self._log.session_id

    async def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        await self._write(_TRIAL, trial)

    async def end(self, stopped: str | None) -> Report:
        started = self.started
        report = make_report(
            started.suite,
            started.run,
            started.started_at,
            started.agents,
            len(started.cases),
            started.repeat,
            self.trials,
            self.before,
            stopped,
        )
        if stopped is None:
            await self._write(_ENDED, {"passed": sum(each.status == "passed" for each in self.trials)})
        return report

    async def _write(self, name: str, value: Value | JsonObject) -> None:
        self._log.append_custom(name, cast("JsonObject", msgspec.json.decode(encode(value))))
        await self._log.commit()


async def _last_ended(store: Store, suite: str, apart_from: str) -> tuple[str, list[Trial]] | None:
    for info in await store.sessions(metadata={"eval": suite}, limit=20):
        found = read_run(await store.load(info.session_id)) if info.session_id != apart_from else None
        if found is not None and found[2]:
            return found[0].run, found[1]
    return None


def read_run(entries: Sequence[Entry]) -> tuple[_Started, list[Trial], bool] | None:
    """What the log of a run of a suite holds: how it was started, its trials, and whether it is over."""
    started, trials, ended = None, list[Trial](), False
    for entry in entries:
        if isinstance(entry, CustomEntry):
            match entry.payload.name:
                case "eval_started":
                    started = msgspec.convert(entry.payload.data, _Started)
                case "eval_trial":
                    trials.append(msgspec.convert(entry.payload.data, Trial))
                case "eval_ended":
                    ended = True
                case _:
                    pass
    return None if started is None else (started, trials, ended)


class _Work:
    """Drives the attempts of one run of a suite."""

    def __init__(
        self,
        suite: Suite,
        cases: Sequence[Case],
        journal: _Journal,
        concurrency: int,
        max_cost: float | None,
        bar: ProgressBar | None,
    ) -> None:
        self._suite = suite
        self._cases = cases
        self._journal = journal
        self._concurrency = concurrency
        self._max_cost = max_cost
        self._bar = bar
        self._stopped: str | None = None
        self._spent: TokenUsage | None = add_up(
            each.usage for trial in journal.trials for each in (trial, *trial.verdicts)
        )
        self._imports: dict[tuple[int, str], asyncio.Lock] = {}

    async def drive(self) -> Report:
        done = {(trial.agent, trial.case, trial.number) for trial in self._journal.trials}
        left = [place for place in self._places() if (place[0], place[1].name, place[2]) not in done]
        todo = iter(left)
        self._show()

        async def some() -> None:
            for agent, case, number in todo:
                if self._stopped is None and (stop := self._over_budget()):
                    self._stopped = stop
                if self._stopped is not None:
                    return
                await self._keep(await self._try(agent, case, number))

        workers = [asyncio.create_task(some()) for _ in range(min(self._concurrency, len(left)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return await self._journal.end(self._stopped)

    def _places(self) -> Iterator[tuple[str, Case, int]]:
        for number in range(1, self._suite.repeat + 1):
            for case in self._cases:
                for agent in self._suite.agents:
                    yield agent, case, number

    def _over_budget(self) -> str | None:
        if self._max_cost is None or self._spent is None:
            return None
        if self._spent.cost is None:
            return "the cost of a model is not known, so the cost ceiling cannot be held"
        if self._spent.cost >= self._max_cost:
            return f"${self._spent.cost:.4f} are spent, and ${self._max_cost:.4f} were allowed"
        return None

    async def _keep(self, trial: Trial) -> None:
        self._spent = add_up([self._spent, trial.usage, *(each.usage for each in trial.verdicts)])
        await self._journal.add(trial)
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            trials = self._journal.trials
            self._bar.show(len(trials), sum(each.status != "passed" for each in trials), self._spent)

    async def _try(self, name: str, case: Case, number: int) -> Trial:
        agent = self._suite.agents[name]
        base = f"{self._journal.session_id}:{name}:{case.name}:{number}"
        place: dict[str, Any] = {"agent": name, "case": case.name, "number": number}
        session_id = base
        try:
            session_id, state = await _free(agent.store, base)
            result = await self._run(agent, case, session_id, state)
            entries = await agent.store.load(session_id)
        except AgentError as error:
            return Trial(**place, session_id=session_id, status="error", error=error.to_info())
        run = _run_of(entries, result.run_id)
        place |= {"session_id": session_id, "usage": result.usage, "duration_ms": _duration(run)}
        if result.status != "completed":
            error = result.last_error
            if error is None:
                words = f"the run is {result.status}: it takes a person to go on, and nobody is asked here"
                error = AgentError("IllegalTransition", words).to_info()
            return Trial(**place, status="error", error=error)
        attempt = Attempt(
            case=case,
            agent=name,
            session_id=session_id,
            question=_question(case, entries),
            result=result,
            entries=run,
            store=agent.store,
        )
        verdicts = [await look(check, attempt) for check in (*self._suite.checks, *case.checks)]
        status = "error" if any(each.broken for each in verdicts) else "failed"
        if all(each.passed for each in verdicts):
            status = "passed"
        return Trial(**place, status=status, verdicts=verdicts)

    async def _run(
        self, agent: Agent[Any], case: Case, session_id: str, state: SessionState
    ) -> RunResult[Any]:
        session = agent.session(session_id)
        if state.is_open:  # a crash left it so
            resumed = await session.resume(deps=case.deps, check=False)
            if resumed is not None:
                return resumed
        elif state.status == "completed":  # only its checks were cut off
            (done,) = await agent.map([""], sessions=[session_id], progress=False).results()
            if done.result is not None and done.known:
                return done.result
        if case.input is not None:
            title = f"{self._suite.name}: {case.name}"
            return await session.run(case.input, deps=case.deps, title=title, check=False)
        assert case.entry is not None
        source = await self._source(agent.store, case)
        stream = await agent.session(source).rerun_stream(
            case.entry,
            instructions=agent.instructions,
            tools=case.tools,
            session=session_id,
            deps=case.deps,
        )
        return await stream.result(check=False)

    async def _source(self, store: Store, case: Case) -> str:
        """The session of a case's log, put into the store where it is not there yet."""
        lock = self._imports.setdefault((id(store), str(case.log)), asyncio.Lock())
        async with lock:
            return await import_jsonl(store, await asyncio.to_thread(lambda: case.data))


async def _free(store: Store, base: str) -> tuple[str, SessionState]:
    """The session of an attempt, with its state: one that can be continued or is done, or a new one."""
    for again in range(1, 1000):
        name = base if again == 1 else f"{base}:again-{again}"
        if await store.tail(name) is None:
            return name, SessionState()
        state = SessionState.of(await store.load(name))
        if state.is_open or state.status == "completed":
            return name, state
    raise AgentError(
        "SessionBusy", f"an attempt named {base} was stopped a thousand times; run it with fresh"
    )


def _run_of(entries: Sequence[Entry], run_id: str) -> list[Entry]:
    first = [
        at
        for at, entry in enumerate(entries)
        if isinstance(entry, RunStartedEntry) and entry.run_id == run_id
    ]
    return list(entries[first[0] :]) if first else []


def _duration(run: Sequence[Entry]) -> int:
    ended = [entry for entry in run if isinstance(entry, RunEndedEntry)]
    if not ended:
        return 0
    begin, end = (datetime.fromisoformat(entry.timestamp) for entry in (run[0], ended[-1]))
    return max(0, round((end - begin).total_seconds() * 1000))


def _question(case: Case, entries: Sequence[Entry]) -> str:
    if case.input is not None:
        return said_by(case.input).message.text
    asked = next((entry for entry in entries if entry.seq == case.entry), None)
    return asked.payload.message.text if isinstance(asked, ModelInputEntry) else ""
