"""The engine behind an agent: opens sessions, starts runs and hands them to those who drive them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import msgspec

from turnlog.context import ContextManager, ProjectionContext
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Control,
    Entry,
    JsonObject,
    RunEvent,
    RunInput,
    RunResult,
    Runtime,
    WidgetEvent,
    encode,
    find_unjson,
)
from turnlog.history import SessionState, check_input
from turnlog.observe import get_logger
from turnlog.tools import ToolResult, check_schema, render

from ._control import Controls
from ._decisions import decide_on, record_decision
from ._events import replay_events
from ._folds import Folds
from ._given import check_kind
from ._live import LiveHuman, LiveModel, LiveWorld
from ._live_context import LiveContext
from ._live_tools import LiveTools, ToolWorld
from ._open_sessions import OpenRun, OpenSessions
from ._owner import is_dead, work_of
from ._parts import LoopParts, check_humans, take_message
from ._ports import Ports, Said
from ._recap import BackgroundRecap
from ._runner import Runner
from ._shared import SessionShare
from ._stream import Drive, RunStream

for _category in ("history", "widgets"):
    get_logger(_category)  # rooms that log without knowing how logs are shown

_ANSWER_LIMIT = 64_000
"""Bytes of an answer from outside that the model sees."""
_SEND_PATIENCE = 2.0
"""Seconds that a sender waits for its message to be in the log of a run elsewhere; then it is only queued."""


class AgentLoop:
    """Runs prepared inputs."""

    def __init__(self, parts: LoopParts) -> None:
        self.parts = parts
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
        )
        self.controls = Controls(
            parts.store, clock=parts.clock, ids=parts.ids, runs=self.sessions.runs, apply=self._apply
        )

    def _context(self) -> ContextManager:
        return ProjectionContext(self.parts.options, window_of=self.parts.model.window_of)

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
        deps: Any = None,
    ) -> RunStream[Any]:
        """A run that its reader drives. Nothing happens before it is read or entered."""

        async def open() -> Drive:
            opened = await self.sessions.enter(run.session_id, run.run_id)
            return await self._guarded(opened, self._start(opened, run, said, instructions, deps))

        return RunStream(run.session_id, run.run_id, open, self.send)

    def resume_stream(self, session_id: str, *, deps: Any = None) -> RunStream[Any]:
        """The run that a crash, a pause or a wait for approval left open, driven by its reader. No events
        come when no run is open."""

        async def open() -> Drive | None:
            # Claimed before it is opened: a session that a run here is writing must not be read into.
            opened = await self.sessions.enter(session_id, f"resume of {session_id}")
            opened.steering.closed = True
            return await self._guarded(opened, self._take_over(opened, deps))

        return RunStream(session_id, None, open, self.send)

    async def submit(
        self, run: RunInput, *, said: Sequence[Said] = (), instructions: str | None = None
    ) -> None:
        """Commit the first entries of a run and leave it open, for ``resume`` here or elsewhere to drive."""
        opened = await self.sessions.enter(run.session_id, run.run_id)
        try:
            runner = await self._begin(opened, run, said, instructions, None)
            await runner.flush()
            runner.outbox.close()
        finally:
            await self.sessions.release(opened)

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
        self, opened: OpenRun, run: RunInput, said: Sequence[Said], instructions: str | None, deps: Any
    ) -> Drive:
        runner = await self._begin(opened, run, said, instructions, deps)
        return self._drive(opened, runner, run.loop_limits.max_run_duration_ms)

    async def _begin(
        self, opened: OpenRun, run: RunInput, said: Sequence[Said], instructions: str | None, deps: Any
    ) -> Runner:
        if not run.auto_create_session:
            await self.sessions.open(opened, create=False)  # a claim would make it
        await self.sessions.hold(opened)
        folds = await self.sessions.open(opened, create=run.auto_create_session, named=run)
        check_humans(folds.session.state, run.session_id)
        if instructions is not None and folds.session.state.system_prompt != instructions:
            folds.session.set_system_instruction(instructions)
        run = await self._with_runtime(run)
        runner = self._runner(opened, folds, run.runtime_hints, deps)
        runner.begin(run, said)
        return runner

    async def _with_runtime(self, run: RunInput) -> RunInput:
        """The run, with what its runtime tells of itself where the caller does not."""
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

    async def _take_over(self, opened: OpenRun, deps: Any) -> Drive | None:
        folds = await self.sessions.open(opened, create=False)
        if not folds.session.state.is_open:
            return None
        # A process that crashed leaves its lease behind, and is not there to be waited for.
        await self.sessions.hold(opened, "outlast")
        folds = await self.sessions.open(opened, create=False)
        state = folds.session.state
        if state.run_id is None or not state.is_open:
            return None
        opened.run_id = state.run_id
        opened.steering.closed = False
        hints = None
        if self.parts.runtime is not None:
            await self._connect(self.parts.runtime)
            hints = await self.parts.runtime.get_hints()
        runner = self._runner(opened, folds, hints, deps)
        opened.runner = runner
        await self.controls.look(opened.session_id)  # messages sent while nobody drove it
        runner.take_over()
        limits = state.started.limits if state.started is not None else None
        return self._drive(opened, runner, limits.max_run_duration_ms if limits is not None else None)

    def _runner(self, opened: OpenRun, folds: Folds, hints: JsonObject | None, deps: Any) -> Runner:
        parts = self.parts
        recap = None
        if parts.recap is not None:
            recap = BackgroundRecap(parts.recap, parts.store, folds, opened.steering.tell)
        opened.recap = recap
        world = ToolWorld(
            session_id=opened.session_id,
            run_id=opened.run_id,
            store=parts.store,
            clock=parts.clock,
            runtime=parts.runtime,
            sandbox=parts.runtime.sandbox if parts.runtime is not None else None,
            agent_name=parts.agent_name,
            deps=deps,
            share=SessionShare(folds, parts.store),
        )
        ports = Ports(
            model=LiveModel(parts.model, folds.pictures, parts.clock),
            tools=LiveTools(parts.registry, parts.executor, parts.approvals, world),
            human=LiveHuman(parts.approvals.handler, parts.clock),
            context=LiveContext(folds, parts.clock, hints, recap),
            world=LiveWorld(opened.session_id, parts.hooks, opened.scope, opened.steering),
        )
        return Runner(folds.session, ports, parts.clock, opened.run_id, widgets=parts.widgets)

    def _drive(self, opened: OpenRun, runner: Runner, limit_ms: int | None) -> Drive:
        opened.runner = runner
        self.controls.watch()
        watchdog = self._watch(opened, limit_ms) if limit_ms is not None else None

        async def release() -> None:
            runner.outbox.close()
            if watchdog is not None:
                watchdog.cancel()
            try:
                if opened.recap is not None:
                    await opened.recap.stop()
            finally:
                await self.sessions.release(opened)
                self.controls.rest()

        return Drive(opened, runner, self.parts.hooks, release)

    def _watch(self, opened: OpenRun, limit_ms: int) -> asyncio.Task[None]:
        async def wait() -> None:
            await self.parts.clock.sleep(limit_ms / 1000)
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
            self.sessions.kept.pop(session_id, None)
            lease = opened.held.lease if opened.held is not None else None
            await self.parts.store.delete_session(session_id, forks=forks, lease=lease)
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
            for event in replay_events(entries, after):
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

    def _check_event(self, event: WidgetEvent) -> None:
        names = [widget.name for widget in self.parts.widgets]
        if event.widget not in names:
            raise AgentError(
                "ConfigInvalid",
                f"this agent has no widget {event.widget!r}; its widgets: {', '.join(names) or 'none'}",
            )
        problem = find_unjson(event.data) if event.event else "an event needs a name"
        if problem is not None:
            raise AgentError("InvalidEntry", f"event {event.event!r} of widget {event.widget!r}: {problem}")

    # ── decisions ──

    async def decide(
        self,
        session_id: str,
        tool_call_id: str,
        action: Any,
        *,
        by: str,
        arguments: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> ApprovalDecided:
        """As ``record_decision``; a run in progress, here or in another process, takes it up itself."""
        check_kind("session", session_id, str, "its name, as text")
        running = self._run_here(session_id)
        if running is not None and running.runner is not None:
            return await self._decide_here(running.runner, tool_call_id, action, by, arguments, note)
        if await self._is_driven(session_id):
            data = {"call": tool_call_id, "action": action, "by": by, "arguments": arguments, "note": note}
            answer = await self.controls.request(session_id, "decide", data)
            return msgspec.convert(answer["decided"], ApprovalDecided)
        return await record_decision(
            self.parts.store,
            session_id,
            tool_call_id,
            action,
            by=by,
            arguments=arguments,
            note=note,
            clock=self.parts.clock,
            ids=self.parts.ids,
            check=self._find_problems,
        )

    async def _decide_here(
        self,
        runner: Runner,
        tool_call_id: str,
        action: Any,
        by: str,
        arguments: dict[str, Any] | None,
        note: str | None,
    ) -> ApprovalDecided:
        decided = decide_on(
            runner.session.state,
            tool_call_id,
            action,
            by=by,
            arguments=arguments,
            note=note,
            now=self.parts.clock.now(),
            check=self._find_problems,
        )
        await runner.take_decision(decided)
        return decided

    def _find_problems(self, tool_name: str, arguments: JsonObject) -> list[str] | None:
        tool = self.parts.registry.get(tool_name)
        return tool.bind(arguments).problems if tool is not None else None

    # ── answers that come later ──

    async def answer(
        self, session_id: str, call_id: str, content: object, *, is_error: bool, by: str | None
    ) -> None:
        running = self._run_here(session_id)
        if running is not None and running.runner is not None:
            await self._answer_here(running.runner, call_id, content, is_error, by)
            return
        if await self._is_driven(session_id):
            data = {"call": call_id, "content": content, "is_error": is_error, "by": by}
            await self.controls.request(session_id, "answer", data)
            return
        opened = await self.sessions.enter(session_id, f"answer for {session_id}")
        try:
            runner = await self._open_run(opened, None)
            if runner is None:
                raise AgentError(
                    "InvalidEntry", f"no run is open in session {session_id} that waits for answers"
                )
            await self._answer_here(runner, call_id, content, is_error, by)
            runner.outbox.close()
        finally:
            await self.sessions.release(opened)

    async def _answer_here(
        self, runner: Runner, call_id: str, content: object, is_error: bool, by: str | None
    ) -> None:
        state = runner.session.state
        call = state.calls.get(call_id)
        if call is None or call.deferred is None or call.answered:
            waiting = [each.call.tool_call_id for each in state.open_calls if each.deferred is not None]
            raise AgentError(
                "InvalidEntry",
                f"call {call_id} does not wait for an answer; waiting: {', '.join(waiting) or 'none'}",
            )
        schema = call.deferred.answer_schema
        if schema is not None and not is_error and (problems := check_schema(schema, content)):
            raise AgentError(
                "InvalidEntry",
                f"this answer does not fit what was asked for: {'; '.join(problems)}; the call still waits",
            )
        answer = render(ToolResult(content=content, is_error=is_error), _ANSWER_LIMIT)
        await runner.take_answer(call, answer, by)

    # ── control ──

    async def abort(self, session_id: str, run_id: str | None, reason: str) -> bool:
        """End the open run of a session, wherever it is driven; False when none is open."""
        error = AgentError("RunAborted", reason)
        opened = self.sessions.runs.get(session_id)
        if opened is not None and run_id in (None, opened.run_id):
            opened.scope.request(error)
            return True
        if await self._is_driven(session_id):
            await self.controls.request(session_id, "abort", {"reason": reason, "run": run_id})
            return True
        return await self._end_open(session_id, run_id, error)

    async def pause(self, session_id: str, run_id: str | None) -> bool:
        """Let the open run of a session go before its next step; False when none is open."""
        opened = self.sessions.runs.get(session_id)
        if opened is not None and run_id in (None, opened.run_id):
            opened.steering.paused = True
            return True
        if await self._is_driven(session_id):
            await self.controls.request(session_id, "pause", {"run": run_id})
            return True
        return await self._pause_open(session_id, run_id)

    async def send(self, session_id: str, said: Said) -> None:
        """Add a message to the open run of a session, wherever it is driven.

        A run that waits for a human, or was paused, takes it in when it is resumed. Raises
        ``SessionNotFound`` when no run is open."""
        check_kind("session", session_id, str, "its name, as text")
        check_input(said.message)
        # What cannot be written would fail the run, and not the sender.
        data: JsonObject = {"said": msgspec.json.decode(encode(said))}
        self.sessions.check_open()
        opened = self.sessions.runs.get(session_id)
        if opened is not None and not opened.steering.closed:
            opened.steering.waiting.append(said)
            return
        if not (await self._state_of(session_id)).is_open:
            raise _no_run(session_id)
        control_id = await self.controls.post(session_id, "send", data)
        if await self._is_driven(session_id):
            await self.controls.wait(control_id, _SEND_PATIENCE)
        # A run that ended before it looked at the queue has not taken it in.
        state = await self._state_of(session_id)
        if (
            not state.is_open
            and await self.controls.withdraw(control_id)
            and control_id not in state.controls
        ):
            raise _no_run(session_id)

    async def _state_of(self, session_id: str) -> SessionState:
        if await self.parts.store.tail(session_id) is None:
            return SessionState()
        return SessionState.of(await self.parts.store.load(session_id))

    def _run_here(self, session_id: str) -> OpenRun | None:
        """The session's run, if this event loop drives it."""
        opened = self.sessions.runs.get(session_id)
        return opened if opened is not None and opened.home is asyncio.get_running_loop() else None

    async def _is_driven(self, session_id: str) -> bool:
        """Whether a live process holds the session to run it."""
        holder = await self.parts.store.holder(session_id)
        return holder is not None and work_of(holder.owner) == "run" and not is_dead(holder.owner)

    async def _end_open(self, session_id: str, run_id: str | None, error: AgentError) -> bool:
        opened = await self.sessions.enter(session_id, f"abort of {session_id}")
        try:
            runner = await self._open_run(opened, run_id)
            if runner is None:
                return False
            await runner.settle(error)
            runner.outbox.close()
            return True
        finally:
            await self.sessions.release(opened)

    async def _pause_open(self, session_id: str, run_id: str | None) -> bool:
        opened = await self.sessions.enter(session_id, f"pause of {session_id}")
        try:
            runner = await self._open_run(opened, run_id)
            if runner is None:
                return False
            if not runner.session.state.paused:
                runner.session.pause_run()
                await runner.session.commit()
            runner.outbox.close()
            return True
        finally:
            await self.sessions.release(opened)

    async def _open_run(self, opened: OpenRun, run_id: str | None) -> Runner | None:
        """The runner of a run that nobody drives; None when no such run is open."""
        opened.steering.closed = True
        if await self.parts.store.tail(opened.session_id) is None:
            return None
        await self.sessions.hold(opened, "outlast")
        folds = await self.sessions.open(opened, create=False)
        state = folds.session.state
        if state.run_id is None or not state.is_open or run_id not in (None, state.run_id):
            return None
        opened.run_id = state.run_id
        runner = self._runner(opened, folds, None, None)
        runner.take_over()
        return runner

    async def find_session(self, run_id: str) -> str | None:
        """The session in which a run is open, here or elsewhere."""
        if (opened := self.sessions.find(run_id)) is not None:
            return opened.session_id
        return next(
            (info.session_id for info in await self.parts.store.sessions() if info.run_id == run_id), None
        )

    async def _apply(self, opened: OpenRun, control: Control) -> JsonObject | None:
        """Take in a request of another process; None when its answer has to wait."""
        data, runner = control.data, opened.runner
        assert runner is not None
        if data.get("run") not in (None, opened.run_id):
            raise AgentError(
                "SessionNotFound", f"run {data['run']} is not in progress in {opened.session_id}"
            )
        match control.kind:
            case "abort":
                opened.scope.request(AgentError("RunAborted", str(data.get("reason"))))
            case "pause":
                opened.steering.paused = True
            case "decide":
                decided = await self._decide_here(
                    runner, data["call"], data["action"], data["by"], data.get("arguments"), data.get("note")
                )
                return {"decided": msgspec.to_builtins(decided)}
            case "send":
                return take_message(opened, runner.session, control)
            case "event":
                opened.steering.tell(msgspec.convert(data, WidgetEvent))
            case "answer":
                await self._answer_here(runner, data["call"], data["content"], data["is_error"], data["by"])
        return {}


def _no_run(session_id: str) -> AgentError:
    return AgentError(
        "SessionNotFound", f"no run is in progress in session {session_id}; start one with Agent.run"
    )
