"""The engine behind an agent: opens sessions, and starts runs that their readers drive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from turnlog.context import ContextManager, ProjectionContext
from turnlog.contract import (
    AgentError,
    Entry,
    JsonObject,
    ModelInvocationDescriptor,
    Rerun,
    RunEvent,
    RunInput,
    RunResult,
    RunStartedEntry,
    Runtime,
    WidgetEvent,
    find_unjson,
)
from turnlog.observe import get_logger
from turnlog.widgets import MemoryNotebookWidget

from ._budget import Budget
from ._compact import Recaps
from ._control import RunControl
from ._decide import time_spent
from ._events import replay_events
from ._folds import Folds, SessionShare, SharedNotes, shared_notes
from ._handoff import Handoff, Speakers, check_speaker, speaker_of, team_of
from ._journal import Undone, undo_turn
from ._live import Keyring, LiveContext, LiveHuman, LiveModel
from ._live_tools import LiveTools, ToolWorld
from ._open_sessions import LoopParts, OpenRun, OpenSessions, check_approved, check_humans, check_workspace
from ._options import NO_OBJECTS, RunObjects, WhatIf
from ._output import LiveOutput, check_resumed
from ._ports import ModelPort, Ports, RunIds, Said
from ._rerun import FirstAnswer, Recording, plan_rerun
from ._runner import Runner
from ._stream import Drive, RunStream
from ._world import LiveWorld

for _category in ("history", "widgets", "router"):
    get_logger(_category)  # rooms that log without knowing how logs are shown


_STOPPED = ("aborted", "failed")


class AgentLoop:
    """Runs prepared inputs."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self.keyring = Keyring((parts.model, parts.recap, parts.store, *parts.owners))
        self._connected = False
        """The runtime was connected here, and is closed here."""
        self.sessions = OpenSessions(
            parts.store,
            clock=parts.clock,
            ids=parts.ids,
            context=parts.context or self._context,
            widgets=parts.widgets,
            observers=parts.observers,
            options=parts.sessions,
            secrets=self.keyring.secrets,
        )
        self.recaps: Recaps | None = None
        if parts.recap is not None:
            self.recaps = Recaps(
                parts.recap,
                parts.store,
                self.sessions.deliver,
                instructions=parts.options.recap_instructions,
                patience=parts.options.recap_wait,
            )
        self.control = RunControl(parts, self.sessions, self._runner)

    @property
    def parts(self) -> LoopParts:
        """What it is made of, which does not change."""
        return self._parts

    def _context(self) -> ContextManager:
        return ProjectionContext(self.parts.options, window_of=self._window_of)

    def _window_of(self, target: ModelInvocationDescriptor) -> int | None:
        models = [self.parts.model, *(each.parts.model for each in team_of(self.parts).values())]
        return next((size for model in models if (size := model.window_of(target)) is not None), None)

    # ── starting and driving ──

    async def run(self, run: RunInput) -> RunResult[Any]:
        """Run to the end and return what came of it, whatever that is."""
        return await self.run_stream(run).result(check=False)

    def run_stream(
        self,
        run: RunInput,
        *,
        said: Sequence[Said] = (),
        instructions: str | None = None,
        objects: RunObjects = NO_OBJECTS,
    ) -> RunStream[Any]:
        """A run that its reader drives. Nothing happens before it is read or entered."""
        run = self._named(run)

        async def open() -> Drive:
            opened = await self.sessions.enter(run.session_id, run.run_id)
            return await self._guarded(opened, self._start(opened, run, said, instructions, objects))

        return RunStream(run.session_id, run.run_id, open, self.control.send, objects.output)

    def resume_stream(self, session_id: str, objects: RunObjects = NO_OBJECTS) -> RunStream[Any]:
        """The run that a crash, a pause or a wait for approval left open, driven by its reader. No events
        come when no run is open."""

        async def open() -> Drive | None:
            # Claimed before it is opened: a session that a run here is writing must not be read into.
            opened = await self.sessions.enter(session_id, f"resume of {session_id}")
            opened.steering.closed = True
            return await self._guarded(opened, self._take_over(opened, objects))

        return RunStream(session_id, None, open, self.control.send, objects.output)

    async def submit(
        self, run: RunInput, *, said: Sequence[Said] = (), instructions: str | None = None
    ) -> None:
        """Commit the first entries of a run and leave it open, for ``resume`` here or elsewhere to drive."""
        run = self._named(run)
        opened = await self.sessions.enter(run.session_id, run.run_id)
        try:
            runner = await self._begin(opened, run, said, instructions, NO_OBJECTS)
            await runner.flush()
            runner.outbox.close()
        finally:
            await self.sessions.release(opened)

    def _named(self, run: RunInput) -> RunInput:
        """The run, with new ids where it has none."""
        if run.session_id and run.run_id:
            return run
        ids = self.parts.ids
        return msgspec.structs.replace(
            run, session_id=run.session_id or ids.session(), run_id=run.run_id or ids.run()
        )

    async def _guarded(self, opened: OpenRun, work: Any) -> Any:
        """``work``, and the session is free again when it fails or finds nothing to drive."""
        try:
            drive = await work
        except BaseException:
            await self.sessions.release(opened)
            raise
        if drive is None:
            await self.sessions.release(opened)
        return drive

    async def _start(
        self,
        opened: OpenRun,
        run: RunInput,
        said: Sequence[Said],
        instructions: str | None,
        given: RunObjects,
    ) -> Drive:
        runner = await self._begin(opened, run, said, instructions, given)
        return self._drive(opened, runner, run.loop_limits.max_run_duration_ms)

    async def _begin(
        self,
        opened: OpenRun,
        run: RunInput,
        said: Sequence[Said],
        instructions: str | None,
        given: RunObjects,
    ) -> Runner:
        if not run.auto_create_session:
            await self.sessions.open(opened, create=False)  # a claim would make it
        await self.sessions.hold(opened)
        folds = await self.sessions.open(opened, create=run.auto_create_session, named=run)
        check_humans(folds.session.state, run.session_id)
        if (speaker := self._speaker(folds)) is not None:
            run = msgspec.structs.replace(run, agent_name=speaker.name)
            instructions = speaker.defaults.instructions or ""
        if instructions is not None and folds.session.state.system_prompt != instructions:
            folds.session.set_system_instruction(instructions)
        if (notes := self._notes(folds)) is not None:
            await notes.refresh()
        run = await self._with_runtime(run)
        if left := folds.session.state.open_calls:
            why = "a new run was started before the one that called this one"
            await self.control.end_children(opened.session_id, left, why)
        given = replace(given, invocation_state=run.invocation_state)
        await folds.catch_up()
        runner = self._runner(opened, folds, run.runtime_hints, given)
        runner.begin(run, said)
        return runner

    async def _with_runtime(self, run: RunInput) -> RunInput:
        """The run, with what its runtime reports of itself where the caller gives nothing."""
        runtime = self.parts.runtime
        if runtime is None:
            return run
        await self._connect(runtime)
        data, hints = run.runtime_init_data, run.runtime_hints
        return msgspec.structs.replace(
            run,
            runtime_init_data=data if data is not None else await runtime.get_init_data(),
            runtime_hints=hints if hints is not None else await runtime.get_hints(),
        )

    async def _connect(self, runtime: Runtime) -> None:
        if runtime.status == "idle":
            await runtime.connect()
            self._connected = True

    async def _take_over(self, opened: OpenRun, objects: RunObjects) -> Drive | None:
        folds = await self.sessions.open(opened, create=False)
        if not folds.session.state.is_open:
            return None
        # A process that crashed leaves its lease behind, and is not there to be waited for.
        await self.sessions.hold(opened, "outlast")
        folds = await self.sessions.open(opened, create=False)
        state = folds.session.state
        if state.run_id is None or not state.is_open:
            return None
        check_resumed(state, objects.output)
        opened.run_id = state.run_id
        opened.answered = state.output is not None
        if state.started is not None and state.started.rerun is not None and objects.what_if is None:
            objects = replace(objects, what_if=await self._what_if(folds, state.started.rerun))
        opened.steering.closed = False
        hints = None
        if self.parts.runtime is not None:
            await self._connect(self.parts.runtime)
            check_workspace(state, await self.parts.runtime.get_init_data())
            hints = await self.parts.runtime.get_hints()
        budget = Budget(folds.session, objects.under)
        check_speaker(state, self.parts)
        speaker = self._speaker(folds)
        registry = speaker.parts.registry if speaker is not None else self.parts.registry
        if objects.what_if is None:  # the tools of a rerun may be in its recording alone
            await check_approved(state, opened.session_id, registry)
        await self.control.continue_children(folds.session, budget, registry)
        runner = self._runner(opened, folds, hints, objects, budget)
        opened.runner = runner
        await self.control.queue.look(opened.session_id)  # messages sent while nobody drove it
        if not state.open_calls:  # a call that runs again needs no context yet
            await folds.catch_up()
        runner.take_over()
        limit = state.started.limits.max_run_duration_ms if state.started is not None else None
        spent = 0
        if limit is not None:
            spent = time_spent(await folds.session.all_entries(), state.run_id)
        return self._drive(opened, runner, limit, spent)

    async def _what_if(self, folds: Folds, change: Rerun) -> WhatIf:
        """The recording that a rerun which is resumed works with: no tool runs that was not allowed to."""
        entries = await self.parts.store.load(change.source)
        plan = plan_rerun(entries, change.at, change)
        recording = Recording(entries, plan, change)
        log = await folds.session.all_entries()
        begun = [e.seq for e in log if isinstance(e, RunStartedEntry)]
        recording.skip(log, begun[-1])
        return WhatIf(recording, plan, change)

    def _runner(
        self,
        opened: OpenRun,
        folds: Folds,
        hints: JsonObject | None = None,
        objects: RunObjects = NO_OBJECTS,
        budget: Budget | None = None,
    ) -> Runner:
        budget = budget or Budget(folds.session, objects.under)
        output, speaker = LiveOutput(objects.output), self._speaker(folds)
        ports = self._ports(opened, folds, objects, budget, output, speaker, hints)
        if self.parts.handoffs:

            async def hand_over(to: Handoff) -> Ports:
                if to.parts.runtime is not None:
                    await self._connect(to.parts.runtime)
                return self._ports(opened, folds, objects, budget, output, to)

            ports.tools = Speakers(folds.session, ports, self.parts, hand_over)
        return Runner(
            folds.session,
            ports,
            self.parts.clock,
            opened.run_id,
            widgets=self.parts.widgets,
            returned=opened.held.returned if opened.held is not None else None,
        )

    def _speaker(self, folds: Folds) -> Handoff | None:
        """The agent of the team that the conversation was handed to, if it was."""
        if not self.parts.handoffs:
            return None
        team = team_of(self.parts)
        for each in team.values():
            self.keyring.add((each.parts.model, each.parts.recap, *each.parts.owners))
        folds.session.secrets = self.keyring.secrets()
        return team.get(speaker_of(folds.session.state, self.parts) or "")

    def _ports(
        self,
        opened: OpenRun,
        folds: Folds,
        objects: RunObjects,
        budget: Budget,
        output: LiveOutput,
        speaker: Handoff | None,
        hints: JsonObject | None = None,
    ) -> Ports:
        """What a run reaches the world through while ``speaker``, or this agent, is asked."""
        parts, deps = self.parts, objects.deps
        if speaker is not None:
            parts = replace(speaker.parts, store=parts.store, clock=parts.clock, ids=parts.ids)
            deps = speaker.defaults.deps if speaker.defaults.deps is not None else deps
        world = ToolWorld(
            session_id=opened.session_id,
            run_id=opened.run_id,
            store=parts.store,
            clock=parts.clock,
            runtime=parts.runtime,
            sandbox=parts.runtime.sandbox if parts.runtime is not None else None,
            agent_name=parts.agent_name,
            deps=deps,
            share=SessionShare(folds, parts.store, self._notes(folds), budget),
            secrets=folds.session.secrets,
            speaker=speaker,
        )
        ids = RunIds(opened.session_id, opened.run_id)
        secrets = folds.session.secrets
        watched = LiveWorld(ids, parts.hooks, opened.scope, opened.steering)
        model: ModelPort = LiveModel(
            objects.model or parts.model,
            folds.pictures,
            parts.clock,
            secrets,
            parts.assembler,
            budget,
            speaker,
            objects.invocation_state,
        )
        recording, handler = None, parts.approvals.handler
        if (what_if := objects.what_if) is not None:
            recording = what_if.recording
            handler = recording.refuse if recording.tools == "recorded" else handler
            if what_if.plan.answer is not None and not opened.answered:
                model = FirstAnswer(model, what_if.plan, what_if.change.arguments, opened.run_id)
        return Ports(
            model=model,
            tools=LiveTools(
                parts.registry, parts.executor, parts.approvals, world, output, watched.check_call, recording
            ),
            human=LiveHuman(handler, parts.clock),
            context=LiveContext(folds, parts.clock, hints, self.recaps),
            world=watched,
            output=output,
        )

    def _notes(self, folds: Folds) -> SharedNotes | None:
        parts = self.parts
        return shared_notes(folds, parts.store, parts.clock, parts.ids, folds.session.secrets)

    def _drive(self, opened: OpenRun, runner: Runner, limit_ms: int | None, spent_ms: int = 0) -> Drive:
        opened.runner = runner
        self.control.queue.watch()
        watchdog = self._watch(opened, limit_ms, spent_ms) if limit_ms is not None else None

        async def release() -> None:
            runner.outbox.close()
            if watchdog is not None:
                watchdog.cancel()
            stopped = runner.result is None or runner.result.status in _STOPPED
            try:
                if self.recaps is not None and stopped:
                    await self.recaps.stop(opened.session_id)
                if stopped:
                    waited = [call for call in runner.session.state.calls.values() if call.deferred]
                    why = "the run that called this one has ended"
                    await self.control.end_children(opened.session_id, waited, why)
            finally:
                await self.sessions.release(opened)
                self.control.queue.rest()

        return Drive(opened, runner, self.parts.hooks, release)

    def _watch(self, opened: OpenRun, limit_ms: int, spent_ms: int) -> asyncio.Task[None]:
        async def wait() -> None:
            await self.parts.clock.sleep(max(0, limit_ms - spent_ms) / 1000)
            opened.scope.request(
                AgentError(
                    "RunTimeout",
                    f"the run took longer than {limit_ms} ms; raise LoopLimits.max_run_duration_ms",
                )
            )

        return asyncio.create_task(wait(), name=f"turnlog watchdog {opened.run_id}")

    async def close(self) -> None:
        """End the runs of this process as aborted, and refuse new ones."""
        self.sessions.closed = True
        error = AgentError("RunAborted", "the agent was closed")
        for opened in list(self.sessions.runs.values()):
            opened.scope.request(error)
            if opened.home is asyncio.get_running_loop() and opened.reader is not None:
                await opened.reader.aclose()
        if self.recaps is not None:
            await self.recaps.settle()
        await self.parts.registry.close()
        if self._connected and self.parts.runtime is not None:
            await self.parts.runtime.close()

    async def delete(self, session_id: str, forks: Literal["refuse", "delete"]) -> None:
        if forks not in ("refuse", "delete"):
            raise AgentError("ConfigInvalid", f"forks is {forks!r}; pass 'refuse' or 'delete'")
        opened = await self.sessions.enter(session_id, f"deletion of {session_id}")
        opened.steering.closed = True
        try:
            if await self.parts.store.tail(session_id) is None:
                raise AgentError("SessionNotFound", f"there is no session {session_id}")
            await self.sessions.hold(opened, "outlast")
            self.sessions.kept.pop(session_id)
            lease = opened.held.lease if opened.held is not None else None
            await self.parts.store.delete_session(session_id, forks=forks, lease=lease)
        finally:
            await self.sessions.release(opened)

    async def undo(self, session_id: str) -> Undone | None:
        runtime = self.parts.runtime
        if runtime is None:
            raise AgentError("RuntimeUnavailable", "this agent has no runtime, so no files to restore")
        opened = await self.sessions.enter(session_id, f"undo in {session_id}")
        opened.steering.closed = True
        try:
            await self.sessions.hold(opened)
            folds = await self.sessions.open(opened, create=False)
            if folds.session.state.is_open:
                raise AgentError(
                    "SessionBusy", f"a run is open in session {session_id}; end or abort it, then undo"
                )
            await self._connect(runtime)
            undone = await undo_turn(await folds.session.all_entries(), self.parts.store, runtime)
            if undone is not None:
                await self.sessions.append_facts(folds, undone.facts())
            return undone
        finally:
            await self.sessions.release(opened)

    # ── watching ──

    async def events(self, session_id: str, after: int = 0) -> AsyncIterator[RunEvent]:
        """Events of a session with numbers above ``after``: from the log what is over, and as it happens
        what a run here does, until no run is in progress."""
        while True:
            opened = self.sessions.runs.get(session_id)
            first = opened.hub.first if opened is not None else None
            entries: list[Entry] = []
            if first is None or first > after + 1:
                entries = await self._load(session_id, required=opened is None)
                first = opened.hub.first if opened is not None else None
            for event in replay_events(entries, after, driven=opened is not None):
                if first is not None and event.seq >= first:
                    break
                after = event.seq
                yield event
            if opened is None:
                return
            async for event in opened.hub.events(after):
                after = event.seq
                yield event

    async def _load(self, session_id: str, *, required: bool) -> list[Entry]:
        try:
            return await self.parts.store.load(session_id)
        except AgentError as error:
            if error.code != "SessionNotFound" or required:
                raise
            return []  # its first entries are not committed yet

    # ── widgets, from outside ──

    async def append_widget_event(self, session_id: str, event: WidgetEvent) -> Entry | None:
        self._check_event(event)
        running = self.sessions.runs.get(session_id)
        if running is not None:
            # One writer: the run takes it in between two steps, or leaves it for when it is over.
            running.steering.tell(event)
            return None
        opened = await self.sessions.enter(session_id, f"event for {session_id}")
        opened.steering.closed = True
        try:
            await self.sessions.hold(opened)
            folds = await self.sessions.open(opened, create=True)
            state = folds.session.state
            if state.is_open and state.status not in ("awaiting_human", "paused"):
                raise AgentError(
                    "SessionBusy",
                    f"run {state.run_id} is open in session {session_id} and not driven here; "
                    "send the event where it runs, or resume the run first if its process is gone",
                )
            return (await self.sessions.append_facts(folds, [event]))[-1]
        finally:
            await self.sessions.release(opened)

    def _is_shared(self, name: str) -> bool:
        notebooks = [each for each in self.parts.widgets if isinstance(each, MemoryNotebookWidget)]
        return any(each.name == name and each.scope is not None for each in notebooks)

    def _check_event(self, event: WidgetEvent) -> None:
        names = [widget.name for widget in self.parts.widgets]
        if event.widget not in names:
            raise AgentError(
                "ConfigInvalid",
                f"this agent has no widget {event.widget!r}; its widgets: {', '.join(names) or 'none'}",
            )
        if self._is_shared(event.widget):
            raise AgentError(
                "ConfigInvalid",
                f"the notes of widget {event.widget!r} are shared by sessions; change them with "
                "agent.memory(scope)",
            )
        problem = find_unjson(event.data) if event.event else "an event needs a name"
        if problem is not None:
            raise AgentError("InvalidEntry", f"event {event.event!r} of widget {event.widget!r}: {problem}")
