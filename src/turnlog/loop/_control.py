"""Requests that reach a run in another process, through the control queue beside the log.

The process that drives a run is its only writer. It looks at the queue a few times a second, takes in what
is for its runs between two steps, and answers. The sender waits for that answer for a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from turnlog.approvals import expired
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    Control,
    ControlKind,
    ErrorInfo,
    IdSource,
    JsonObject,
    Store,
    ToolAnswered,
    WidgetEvent,
    encode,
)
from turnlog.history import CallState, SessionState, check_input
from turnlog.history import Session as LoggedSession
from turnlog.observe import get_logger
from turnlog.tools import Registry, ToolResult, check_schema, render

from ._budget import Budget, ChildBody, spent_in
from ._folds import Folds, find_widgets
from ._lease import describe, is_dead, work_of
from ._open_sessions import LoopParts, OpenRun, OpenSessions, take_message
from ._options import check_kind
from ._ports import Said
from ._runner import Runner
from ._stored import decide_on, is_child, record_decision

LOOK = 0.25
"""Seconds between two looks at the queue."""
PATIENCE = 5.0
"""Seconds that a request waits for the process that drives the run."""
_SEND_PATIENCE = 2.0
"""Seconds that a sender waits for its message to be in the log of a run elsewhere; then it is only queued."""
_ANSWER_LIMIT = 64_000
"""Bytes of an answer from outside that the model sees."""

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
        except AgentError as error:  # the store cannot be reached; the next append reports it
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


class RunControl:
    """Decides on calls, answers them, ends, pauses and sends to the runs of a store, wherever they are
    driven: here, in another process, or not at all."""

    def __init__(
        self,
        parts: LoopParts,
        sessions: OpenSessions,
        make_runner: Callable[[OpenRun, Folds], Runner],
    ) -> None:
        self._parts = parts
        self._sessions = sessions
        self._make_runner = make_runner
        self.queue = Controls(
            parts.store, clock=parts.clock, ids=parts.ids, runs=sessions.runs, apply=self._apply
        )

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
            answer = await self.queue.request(session_id, "decide", data)
            return msgspec.convert(answer["decided"], ApprovalDecided)
        return await record_decision(
            self._parts.store,
            session_id,
            tool_call_id,
            action,
            by=by,
            arguments=arguments,
            note=note,
            clock=self._parts.clock,
            ids=self._parts.ids,
            check=self._find_problems,
            secrets=self._sessions.secrets(),
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
            now=self._parts.clock.now(),
            check=self._find_problems,
        )
        await runner.take_decision(decided)
        return decided

    def _find_problems(self, tool_name: str, arguments: JsonObject) -> list[str] | None:
        tool = self._parts.registry.get(tool_name)
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
            await self.queue.request(session_id, "answer", data)
            return
        opened = await self._sessions.enter(session_id, f"answer for {session_id}")
        try:
            runner = await self._open_run(opened, None)
            if runner is None:
                raise AgentError(
                    "InvalidEntry",
                    f"no run is open in session {session_id}, so no call of it waits for an answer",
                )
            await self._answer_here(runner, call_id, content, is_error, by)
            runner.outbox.close()
        finally:
            await self._sessions.release(opened)

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
        if call.deferred.state is not None:
            given = ToolAnswered(
                tool_call_id=call_id,
                tool_name=call.call.tool_name,
                content=content,
                declined=is_error or None,
                by=by,
            )
            await runner.take_answer(call, given)
            return
        whole = content if isinstance(content, ToolResult) else ToolResult(content, is_error=is_error)
        answer = render(whole, _ANSWER_LIMIT)
        tool = self._parts.registry.get(call.call.tool_name)
        if tool is not None and tool.ends_run and not is_error:
            answer = replace(answer, ends_run=True)
        await runner.take_answer(call, answer, by)

    # ── children ──

    async def continue_children(self, session: LoggedSession, budget: Budget, registry: Registry) -> None:
        """As a run is resumed: make those of its calls again whose children need not wait any longer, and
        count what the others have used."""
        waiting = [call for call in session.state.open_calls if call.deferred is not None]
        if not any(call.child for call in waiting):
            return
        await registry.refresh()
        for call in waiting:
            tool, child = registry.get(call.call.tool_name), call.child
            if child is None or tool is None or not isinstance(tool.function, ChildBody):
                continue
            state = await self._state_of(child)
            if tool.function.may_ask or await self._can_continue(state):
                session.continue_call(call.call.tool_call_id)
            else:
                budget.note(call.call.tool_call_id, spent_in(state.usage))

    async def _can_continue(self, state: SessionState) -> bool:
        """Whether a run has something to do that is not left to a person."""
        if state.status != "awaiting_human":
            return True
        now = self._parts.clock.now()
        if any(call.requested is not None and expired(call.requested, now) for call in state.awaiting):
            return True
        for call in state.open_calls:
            child = call.child if call.deferred is not None else None
            if child is not None and await self._can_continue(await self._state_of(child)):
                return True
        return False

    async def end_children(self, session_id: str, calls: Sequence[CallState], reason: str) -> None:
        """End the runs of a session's children that nobody will ask for any more. A tool may have named any
        session as the one that will answer: only its own children are ended."""
        for child in (call.child for call in calls):
            if child is None:
                continue
            try:
                state = await self._state_of(child)
                if state.is_open and is_child(state, session_id):
                    await self.abort(child, None, reason)
            except AgentError as error:
                _log.warning("%s: the child session was not ended: %s", child, error.message)

    # ── control ──

    async def abort(self, session_id: str, run_id: str | None, reason: str) -> bool:
        """End the open run of a session, wherever it is driven; False when none is open."""
        error = AgentError("RunAborted", reason)
        opened = self._sessions.runs.get(session_id)
        if opened is not None and run_id in (None, opened.run_id):
            opened.scope.request(error)
            return True
        if await self._is_driven(session_id):
            await self.queue.request(session_id, "abort", {"reason": reason, "run": run_id})
            return True
        return await self._end_open(session_id, run_id, error)

    async def pause(self, session_id: str, run_id: str | None) -> bool:
        """Stop driving the open run of a session before its next step; False when none is open."""
        opened = self._sessions.runs.get(session_id)
        if opened is not None and run_id in (None, opened.run_id):
            opened.steering.paused = True
            return True
        if await self._is_driven(session_id):
            await self.queue.request(session_id, "pause", {"run": run_id})
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
        self._sessions.check_open()
        opened = self._sessions.runs.get(session_id)
        if opened is not None and not opened.steering.closed:
            opened.steering.waiting.append(said)
            return
        if not (await self._state_of(session_id)).is_open:
            raise _no_run(session_id)
        control_id = await self.queue.post(session_id, "send", data)
        if await self._is_driven(session_id):
            await self.queue.wait(control_id, _SEND_PATIENCE)
        # A run that ended before it looked at the queue has not taken it in.
        state = await self._state_of(session_id)
        if not state.is_open and await self.queue.withdraw(control_id) and control_id not in state.controls:
            raise _no_run(session_id)

    async def _state_of(self, session_id: str) -> SessionState:
        if await self._parts.store.tail(session_id) is None:
            return SessionState()
        return SessionState.of(await self._parts.store.load(session_id))

    def _run_here(self, session_id: str) -> OpenRun | None:
        """The session's run, if this event loop drives it."""
        opened = self._sessions.runs.get(session_id)
        return opened if opened is not None and opened.home is asyncio.get_running_loop() else None

    async def find_driver(self, session_id: str) -> str | None:
        """The live process that holds the session to run it, in words for people; None when there is none."""
        holder = await self._parts.store.holder(session_id)
        if holder is None or work_of(holder.owner) != "run" or is_dead(holder.owner):
            return None
        return describe(holder.owner)

    async def _is_driven(self, session_id: str) -> bool:
        return await self.find_driver(session_id) is not None

    async def _end_open(self, session_id: str, run_id: str | None, error: AgentError) -> bool:
        opened = await self._sessions.enter(session_id, f"abort of {session_id}")
        try:
            runner = await self._open_run(opened, run_id)
            if runner is None:
                return False
            calls = runner.session.state.open_calls
            await runner.settle(error)
            runner.outbox.close()
            await self.end_children(session_id, calls, f"the run that called this one ended: {error.message}")
            return True
        finally:
            await self._sessions.release(opened)

    async def _pause_open(self, session_id: str, run_id: str | None) -> bool:
        opened = await self._sessions.enter(session_id, f"pause of {session_id}")
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
            await self._sessions.release(opened)

    async def _open_run(self, opened: OpenRun, run_id: str | None) -> Runner | None:
        """The runner of a run that nobody drives; None when no such run is open."""
        opened.steering.closed = True
        if await self._parts.store.tail(opened.session_id) is None:
            return None
        await self._sessions.hold(opened, "outlast", "control")
        folds = await self._sessions.open(opened, create=False)
        state = folds.session.state
        if state.run_id is None or not state.is_open or run_id not in (None, state.run_id):
            return None
        opened.run_id = state.run_id
        if state.started is not None:
            # This may not be the run's agent: the widgets that its log names keep the screen true.
            named = find_widgets(state.started.widgets, self._parts.widgets, all_of_them=False)
            if [each.name for each in named] != [each.name for each in self._parts.widgets]:
                await folds.session.make_whole()
                folds.show(named)
                self._sessions.kept.pop(opened.session_id)
        runner = self._make_runner(opened, folds)
        runner.take_over()
        return runner

    async def find_session(self, run_id: str) -> str | None:
        """The session in which a run is open, here or elsewhere."""
        if (opened := self._sessions.find(run_id)) is not None:
            return opened.session_id
        return next(
            (info.session_id for info in await self._parts.store.sessions() if info.run_id == run_id), None
        )

    async def _apply(self, opened: OpenRun, control: Control) -> JsonObject | None:
        """Apply a request of another process; None when its answer has to wait."""
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
