"""A busy session, as one seed has it: runs, aborts, steering, decisions, faults, kills, other processes.

``simulate(seed)`` plays it, lets it come to rest, and checks everything that must hold of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from turnlog import events
from turnlog.contract import (
    AgentError,
    LoopLimits,
    ModelInputEntry,
    RetryPolicy,
    RunEvent,
    ToolPolicy,
)
from turnlog.history import SessionState
from turnlog.loop import Agent, Decision, RunStream, SessionOptions, pending_calls, record_decision
from turnlog.models import ModelRequest, ScriptedModel, Turn
from turnlog.tools import Tool
from turnlog.widgets import MemoryNotebookWidget

from ._session_checks import OutsideRecord, find_problems
from ._simulation import TOOLS, SimulatedProcess, Simulation

SESSION = "s1"
_REST = 60

_EXPECTED = frozenset(
    {
        "ApprovalExpired",
        "ApprovalInvalid",
        "ContextOverflow",
        "ModelAuthError",
        "ModelEmptyOutput",
        "ModelOverloaded",
        "ModelProtocolError",
        "ModelServerError",
        "RunAborted",
        "RunMaxIterations",
        "RunTimeout",
        "SessionBusy",
        "SessionConcurrentWrite",
        "SessionNotFound",
        "SessionWriteFailed",
    }
)
"""The errors that a caller may get in such a session. Any other is a bug."""


@dataclass(kw_only=True)
class SimulationReport:
    """What happened; ``counts`` by kind, ``trace`` in order."""

    seed: int
    entries: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    trace: list[str] = field(default_factory=list[str])


def simulate(seed: int, *, tools: Sequence[Tool] | None = None) -> SimulationReport:
    """Play the session of ``seed``. Raises ``AssertionError`` with the seed, what is wrong, and the trace.

    ``tools`` take the place of ours, under the same names: ``pay``, ``book`` and ``send`` may happen once,
    ``look`` and ``post`` more often, ``sulk`` does not end and ``quit`` tries to end the program.
    """
    simulation = Simulation(seed)
    story = BusySession(simulation, tools)
    try:
        simulation.run(lambda _: story.play())
    except Exception as error:
        told = "\n".join(story.report.trace)
        raise AssertionError(
            f"seed {seed} ({type(error).__name__}): {error}\n{told}\nagain: turnlog.testing.simulate({seed})"
        ) from error
    return story.report


class BusySession:
    """One session of a simulation and everybody who is at it."""

    def __init__(self, simulation: Simulation, tools: Sequence[Tool] | None = None) -> None:
        self.simulation = simulation
        self.tools = TOOLS if tools is None else tools
        self.random = simulation.random
        self.report = SimulationReport(seed=simulation.seed)
        self.told: set[str] = set()
        self.fail = self.random.choice((0.0, 0.0, 0.02, 0.08))
        self.lease_ttl = self.random.choice((0.2, 1.0, 5.0))
        self.on_busy: Literal["refuse", "wait"] = self.random.choice(("refuse", "refuse", "wait"))
        self.widgets = simulation.chance(0.3)
        self.policy = ToolPolicy(
            max_parallel=self.random.choice((1, 2, 3)),
            outcome_unknown=self.random.choice(("model", "human")),
        )
        self.limits = LoopLimits(
            max_iterations=5, max_run_duration_ms=self.random.choice((None, None, 400, 2000))
        )
        self.agents: dict[SimulatedProcess, Agent] = {}
        self.going: dict[SimulatedProcess, str] = {}
        self.prompts = self.random.choice((1, 1, 2))
        self.posted: list[str] = []
        """Messages that were sent from processes which drive no run, and acknowledged."""
        self.unexpected: list[str] = []

    def note(self, what: str, who: str = "") -> None:
        self.report.counts[what] += 1
        self.report.trace.append(f"{self.simulation.loop.time():8.3f} {who} {what}")

    # ── the play ──

    async def play(self) -> None:
        draw = self.random.choice
        for _ in range(draw((1, 1, 2))):
            self._start_client(self.prompts)
        acts = (
            [self._kill] * draw((0, 0, 1, 1, 2))
            + [self._abort] * draw((0, 0, 1, 2))
            + [self._steer] * draw((0, 1, 2))
            + [self._cancel] * draw((0, 0, 1))
            + [self._jump] * draw((0, 0, 0, 1))
            + [self._pause] * draw((0, 0, 0, 1))
            + [self._edit] * (self.widgets and draw((0, 1, 2)))
            + [self._control] * draw((0, 0, 1, 2))
        )
        async with asyncio.TaskGroup() as actors:
            actors.create_task(self._decide(), name="decider")
            for act in acts:
                actors.create_task(self._later(act), name=act.__name__)
        await self._rest()
        await self._come_to_an_end()
        self.report.seconds = self.simulation.loop.time()

    async def _later(self, act: object) -> None:
        await asyncio.sleep(self.random.random() * self.random.choice((0.02, 0.15, 0.6)))
        assert callable(act)
        act()

    async def _rest(self) -> None:
        """Wait for every process to have nothing left to do."""
        while tasks := [task for process in self.simulation.processes for task in process.tasks]:
            await asyncio.wait(tasks)

    async def _come_to_an_end(self) -> None:
        """No more faults: the last process decides what waits and resumes what is open."""
        self.fail = 0.0
        for _ in range(_REST):
            process = self.simulation.process()
            await process.spawn(self._settle(process), "settle")
            await self._rest()
            if not await self._is_open():
                break
            await asyncio.sleep(self.lease_ttl)
        await self._check()

    async def _is_open(self) -> bool:
        if await self.simulation.store.tail(SESSION) is None:
            return False
        return SessionState.of(await self.simulation.store.load(SESSION)).is_open

    async def _settle(self, process: SimulatedProcess) -> None:
        agent = self._agent(process)
        await self._decide_once(process)
        await self._watch(process, agent.resume_stream(SESSION))

    async def _check(self) -> None:
        store = self.simulation.store
        problems = list(self.unexpected)
        if await store.tail(SESSION) is not None:
            outside = OutsideRecord(
                effects=self.simulation.effects,
                watched=("pay", "look", "post", "book", "send"),
                rerunnable=("look", "post"),
                acknowledged=[tail for _, tail in self.simulation.acknowledged],
                told=self.told,
            )
            problems += await find_problems(store, SESSION, outside=outside)
            entries = await store.load(SESSION)
            said = Counter(e.payload.message.text for e in entries if isinstance(e, ModelInputEntry))
            problems += [f"{text!r} was said {count} times" for text, count in said.items() if count > 1]
            queued = str([control.data for control in await store.posted(SESSION)])
            problems += [
                f"{text!r} was lost" for text in self.posted if not said[text] and text not in queued
            ]
            self.report.entries = len(entries)
        if problems:
            raise AssertionError("\n".join(problems))

    # ── who is there ──

    def _agent(self, process: SimulatedProcess) -> Agent:
        process.store.fail = self.fail
        simulation = self.simulation
        model = ScriptedModel(default=self._answer, clock=simulation.clock, ids=process.ids)
        agent = Agent(
            model,
            tools=self.tools,
            store=process.store,
            instructions="Be brief.",
            tool_policy=self.policy,
            limits=self.limits,
            retry=RetryPolicy(base_delay_ms=20, max_attempts=3),
            clock=simulation.clock,
            ids=process.ids,
            sessions=SessionOptions(on_busy=self.on_busy, lease_ttl=self.lease_ttl),
            widgets=[MemoryNotebookWidget()] if self.widgets else (),
        )
        agent.loop.sessions.lease_clock = simulation.clock
        self.agents[process] = agent
        return agent

    def _start_client(self, prompts: int) -> None:
        process = self.simulation.process()
        process.spawn(self._client(process, prompts), "client")

    async def _client(self, process: SimulatedProcess, prompts: int) -> None:
        """Resume what is open, then run its own messages, waiting where the session is busy."""
        agent = self._agent(process)
        for number in range(prompts):
            for _ in range(4):
                await self._watch(process, agent.resume_stream(SESSION))
                run_id = process.ids.run()
                said = agent.run_stream(f"Prompt {number} of {process.name}.", session=SESSION, run_id=run_id)
                if await self._watch(process, said, run_id):
                    break
                await asyncio.sleep(0.1 + self.random.random() * 0.2)

    async def _watch(
        self, process: SimulatedProcess, stream: RunStream[str], run_id: str | None = None
    ) -> bool:
        """Drive a run, at times slowly, at times not to its end. True when it was started."""
        impatient = self.random.choice((0.0, 0.0, 0.004))
        slow = self.simulation.chance(0.3)
        started = False
        if run_id is not None:
            self.going[process] = run_id
        try:
            async with stream:
                async for event in stream:
                    started = True
                    self._hear(process, event)
                    if self.simulation.chance(impatient):
                        self.note("closed early", process.name)
                        break
                    if slow:
                        await self.simulation.pause(0.003)
        except AgentError as error:
            self._heard_error(process, error.code, str(error))
        return started

    def _hear(self, process: SimulatedProcess, event: RunEvent) -> None:
        if process.dead:
            return
        entry_id: str | None = getattr(event, "entry_id", None)
        if entry_id is not None:
            self.told.add(entry_id)
        self.going[process] = event.run_id
        if isinstance(event, events.RunEnded):
            result = event.result
            self.note(f"run {result.status}", process.name)
            if result.last_error is not None:
                self._heard_error(process, result.last_error.code, result.last_error.message)

    def _heard_error(self, process: SimulatedProcess, code: str, message: str) -> None:
        self.note(f"error {code}", process.name)
        if code not in _EXPECTED:
            self.unexpected.append(f"{process.name} got {code}: {message}")

    # ── what comes between ──

    def _living(self) -> list[SimulatedProcess]:
        return [process for process in self.simulation.processes if process.tasks and not process.dead]

    def _kill(self) -> None:
        living = self._living()
        if living:
            process = self.random.choice(living)
            self.note("killed", process.name)
            process.kill()
            self._start_client(1)

    def _abort(self) -> None:
        for process in self._living():
            agent, run_id = self.agents.get(process), self.going.get(process)
            if agent is None or run_id is None:
                continue
            if (opened := agent.loop.sessions.find(run_id)) is not None:
                opened.scope.request(AgentError("RunAborted", "enough"))
                self.note("aborted", process.name)
                return

    def _steer(self) -> None:
        for process in self._living():
            agent = self.agents.get(process)
            if agent is not None:
                process.spawn(self._say(process, agent), "steer")
                return

    async def _say(self, process: SimulatedProcess, agent: Agent) -> None:
        try:
            self.note("steers", process.name)
            await agent.send(SESSION, f"And quickly, word {self.report.counts['steers']}.")
            self.note("steered", process.name)
        except AgentError as error:
            self._heard_error(process, error.code, str(error))

    def _cancel(self) -> None:
        for process in self._living():
            for task in process.tasks:
                if task.get_name().endswith(": client"):
                    self.note("cancelled", process.name)
                    task.cancel()
                    return

    def _pause(self) -> None:
        for process in self._living():
            agent, run_id = self.agents.get(process), self.going.get(process)
            if agent is None or run_id is None:
                continue
            if (opened := agent.loop.sessions.find(run_id)) is not None:
                opened.steering.paused = True
                self.note("paused", process.name)
                return

    def _edit(self) -> None:
        """A host changes the notebook, while a run goes or between two."""
        for process in self._living():
            agent = self.agents.get(process)
            if agent is not None:
                process.spawn(self._write_note(process, agent), "edit")
                return

    async def _write_note(self, process: SimulatedProcess, agent: Agent) -> None:
        try:
            await agent.update_notebook(SESSION, {"gate": "opens at seven"})
            self.note("edited", process.name)
        except AgentError as error:
            self._heard_error(process, error.code, str(error))

    def _control(self) -> None:
        """A process that drives nothing reaches for the run, wherever that is."""
        process = self.simulation.process()
        process.spawn(self._reach(process), "control")

    async def _reach(self, process: SimulatedProcess) -> None:
        session = self._agent(process).session(SESSION)
        what = self.random.choice(("abort", "pause", "send", "send", "decide"))
        try:
            match what:
                case "abort":
                    reached = await session.abort("from elsewhere")
                case "pause":
                    reached = await session.pause()
                case "send":
                    self.note("sends", process.name)
                    text = f"From elsewhere, word {self.report.counts['sends']}."
                    await session.send(text)
                    self.posted.append(text)
                    reached = True
                case _:
                    reached = bool(waiting := await session.pending())
                    for call in waiting:
                        await session.deny(call, by="erik")
            self.note(f"{what} from elsewhere: {reached}", process.name)
        except AgentError as error:
            self._heard_error(process, error.code, str(error))

    def _jump(self) -> None:
        seconds = self.random.choice((-15.0, -2.0, 3.0, 3600.0))
        self.note(f"clock {seconds:+g}")
        self.simulation.clock.jump(seconds)

    async def _decide(self) -> None:
        """Somebody elsewhere looks now and then at what waits."""
        process = self.simulation.process()
        for _ in range(self.random.choice((0, 2, 5))):
            await asyncio.sleep(self.random.random() * 0.3)
            await process.spawn(self._decide_once(process), "decide")

    async def _decide_once(self, process: SimulatedProcess) -> None:
        try:
            if await process.store.tail(SESSION) is None:
                return
            for waiting in await pending_calls(process.store, SESSION):
                asked = waiting.requested
                choices: tuple[Decision, ...] = ("approve", "approve", "deny", "modify", "abort")
                action = self.random.choice(choices)
                if (asked.reason or "").startswith("it was running") and action != "abort":
                    action = "deny"  # a second run of it would be on purpose
                await record_decision(
                    process.store,
                    SESSION,
                    asked.tool_call_id,
                    action,
                    by="dora",
                    arguments={"text": "changed"} if action == "modify" else None,
                    clock=self.simulation.clock,
                    ids=process.ids,
                )
                self.note(f"decided {action}", process.name)
        except AgentError as error:
            self._heard_error(process, error.code, str(error))

    # ── the model ──

    def _answer(self, request: ModelRequest) -> str | Turn:
        draw = self.random.random()
        delay = self.random.choice((0.0, 0.0, 0.005))
        if draw < 0.06:
            code = "ModelOverloaded" if draw < 0.05 else "ModelAuthError"
            return Turn(text="Half an", error={"code": code, "after": self.random.randrange(3)}, delay=delay)
        if draw < 0.1:
            return Turn(text="An answer that is", tool_calls=[self._call()], cut=True, delay=delay)
        if draw < 0.11:
            return Turn(error={"code": "ModelContextOverflow", "message": "prompt is too long"})
        if draw < 0.55:
            calls = [self._call() for _ in range(self.random.choice((1, 1, 2, 3)))]
            return Turn(text="Now.", tool_calls=calls, delay=delay)
        return Turn(text="That is all.", delay=delay)

    def _call(self) -> dict[str, object]:
        names = ("pay", "pay", "look", "look", "post", "book", "send", "send", "sulk", "quit")
        return {"name": self.random.choice(names), "arguments": {"text": "x"}}
