"""The engine behind an agent: drives runs in the sessions it has open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from turnlog.approvals import ApprovalPolicy
from turnlog.context import ContextOptions
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    Entry,
    IdSource,
    JsonObject,
    Message,
    RunEndedEvent,
    RunEvent,
    RunInput,
    RunResult,
    Runtime,
    Store,
    WidgetEvent,
    encode,
    find_unjson,
)
from turnlog.history import check_input
from turnlog.models import Model
from turnlog.tools import ToolExecutor, ToolRegistry
from turnlog.widgets import Widget

from ._abort import RunInterrupted
from ._decisions import make_decision, record_decision
from ._doors import Doors
from ._given import check_kind
from ._hooks import Hooks
from ._lease import LEASE_TTL
from ._live import ApprovalHandler, LiveHuman, LiveModel, LiveWorld
from ._live_context import LiveContext
from ._live_tools import LiveTools, ToolWorld
from ._open_sessions import OpenRun, OpenSessions
from ._recap import BackgroundRecap
from ._runner import Runner
from ._shared import SessionShare
from ._state import RunState
from ._warm import WarmSession


class AgentLoop:
    """Runs prepared inputs. Its parts are fixed at construction; it never sees a configuration."""

    def __init__(
        self,
        *,
        model: Model,
        store: Store,
        registry: ToolRegistry,
        executor: ToolExecutor,
        approval: ApprovalPolicy | None = None,
        on_approval: ApprovalHandler | None = None,
        options: ContextOptions | None = None,
        hooks: Hooks | None = None,
        runtime: Runtime | None = None,
        widgets: Sequence[Widget[Any]] = (),
        clock: Clock,
        ids: IdSource,
        agent: Any = None,
        approval_ttl: float | None = None,
        recap: Model | None = None,
        on_busy: Literal["refuse", "wait"] = "refuse",
        lease_ttl: float = LEASE_TTL,
    ) -> None:
        self._model = model
        self._store = store
        self._registry = registry
        self._executor = executor
        self._approval = approval
        self._on_approval = on_approval
        self._hooks = hooks or Hooks()
        self._runtime = runtime
        self._widgets = tuple(widgets)
        self._clock = clock
        self._ids = ids
        self._agent = agent
        self._approval_ttl = approval_ttl
        self._recap = recap
        self.sessions = OpenSessions(
            store,
            clock=clock,
            ids=ids,
            options=options or ContextOptions(),
            widgets=self._widgets,
            on_busy=on_busy,
            lease_ttl=lease_ttl,
        )

    async def run(self, run: RunInput) -> RunResult:
        return await drain(self.run_stream(run))

    async def run_stream(
        self, run: RunInput, *, instructions: str | None = None, after: int = 0
    ) -> AsyncGenerator[RunEvent, None]:
        opened = await self.sessions.enter(run.session_id, run.run_id)
        try:
            if not run.auto_create_session:
                await self.sessions.open(opened, create=False)  # a claim would make it
            await self.sessions.hold(opened)
            warm = await self.sessions.open(opened, create=run.auto_create_session, named=run)
            _check_humans(warm.state, run.session_id)
            if instructions is not None and warm.state.system_prompt != instructions:
                warm.step(warm.session.set_system_instruction(instructions))
            async with aclosing(self._drive(opened, warm, run, after)) as events:
                async for event in events:
                    yield event
        finally:
            await self.sessions.release(opened)

    async def resume_stream(self, session_id: str, *, after: int = 0) -> AsyncGenerator[RunEvent, None]:
        # Claimed before it is opened: a session that a run here is writing must not be read into.
        opened = await self.sessions.enter(session_id, f"resume of {session_id}")
        opened.steering.closed = True
        try:
            warm = await self.sessions.open(opened, create=False)
            if not warm.state.is_open:
                return
            # A process that crashed leaves its lease behind, and is not there to be waited for.
            await self.sessions.hold(opened, "outlast")
            warm = await self.sessions.open(opened, create=False)
            run_id = warm.state.run_id
            if run_id is None or not warm.state.is_open:
                return
            opened.run_id = run_id
            opened.steering.closed = False
            async with aclosing(self._drive(opened, warm, None, after)) as events:
                async for event in events:
                    yield event
        finally:
            await self.sessions.release(opened)

    async def _drive(
        self, opened: OpenRun, warm: WarmSession, run: RunInput | None, after: int
    ) -> AsyncGenerator[RunEvent, None]:
        recap = None
        if self._recap is not None:
            recap = BackgroundRecap(self._recap, self._store, warm, opened.steering.tell)
        hints = run.runtime_hints if run is not None else None
        runner = self._runner(
            opened,
            warm,
            LiveContext(warm, self._clock, hints, recap, self._model.window_of),
        )
        runner.record.count_on(after)
        opened.runner = runner
        watchdog = self._watch(opened, warm, run)
        hooked = bool(self._hooks.on_event)
        try:
            async with aclosing(runner.stream(run)) as events:
                async for event in events:
                    if hooked:
                        await self._tell(event, opened)
                    yield event
        finally:
            if watchdog is not None:
                watchdog.cancel()
            if recap is not None:
                await recap.stop()

    async def _tell(self, event: RunEvent, opened: OpenRun) -> None:
        try:
            if opened.scope.reason is None:
                with opened.scope:
                    await self._hooks.event(event)
            else:
                await self._hooks.event(event)  # how it ends is for watchers to hear, too
        except RunInterrupted:
            pass  # the run finds out at its next step
        except AgentError as error:
            opened.scope.request(error)

    def _runner(self, opened: OpenRun, warm: WarmSession, context: LiveContext) -> Runner:
        world = ToolWorld(
            session_id=opened.session_id,
            run_id=opened.run_id,
            store=self._store,
            clock=self._clock,
            agent=self._agent,
            runtime=self._runtime,
            share=SessionShare(warm, self._store),
        )
        doors = Doors(
            model=LiveModel(self._model, self._store, self._clock),
            tools=LiveTools(
                self._registry, self._executor, self._approval, world, approval_ttl=self._approval_ttl
            ),
            human=LiveHuman(self._on_approval, self._clock),
            context=context,
            world=LiveWorld(self._hooks, opened.scope, opened.steering),
        )
        return Runner(warm, doors, self._clock, opened.run_id)

    def _watch(self, opened: OpenRun, warm: WarmSession, run: RunInput | None) -> asyncio.Task[None] | None:
        limits = run.loop_limits if run is not None else warm.state.started and warm.state.started.limits
        if not limits or limits.max_run_duration_ms is None:
            return None
        limit = limits.max_run_duration_ms

        async def wait() -> None:
            await self._clock.sleep(limit / 1000)
            opened.scope.request(
                AgentError(
                    "RunTimeout",
                    f"the run took longer than {limit} ms; raise LoopLimits.max_run_duration_ms",
                )
            )

        return asyncio.create_task(wait(), name=f"turnlog watchdog {opened.run_id}")

    # ── widgets, from outside ──

    async def append_widget_event(self, session_id: str, event: WidgetEvent) -> Entry | None:
        self._check_event(event)
        going = self.sessions.runs.get(session_id)
        if going is not None:
            # One writer: the run takes it in between two steps, or leaves it for when it is over.
            going.steering.tell(event)
            return None
        opened = await self.sessions.enter(session_id, f"event for {session_id}")
        opened.steering.closed = True
        try:
            await self.sessions.hold(opened)
            warm = await self.sessions.open(opened, create=True)
            if warm.state.is_open and warm.state.status != "awaiting_human":
                raise AgentError(
                    "SessionBusy",
                    f"run {warm.state.run_id} is open in session {session_id} and does not go here; where it "
                    "goes, its own agent takes the event; where it crashed, resume it first",
                )
            return (await self.sessions.append_facts(warm, [event]))[-1]
        finally:
            await self.sessions.release(opened)

    def _check_event(self, event: WidgetEvent) -> None:
        names = [widget.name for widget in self._widgets]
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
        action: str,
        *,
        by: str,
        arguments: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> ApprovalDecided:
        """As ``record_decision``; a run that is going here takes the decision up itself."""
        check_kind("session", session_id, str, "its name, as text")
        going = self.sessions.runs.get(session_id)
        if going is None or going.runner is None or going.home is not asyncio.get_running_loop():
            return await record_decision(
                self._store,
                session_id,
                tool_call_id,
                action,
                by=by,
                arguments=arguments,
                note=note,
                clock=self._clock,
                ids=self._ids,
                check=self._find_problems,
            )
        decided = make_decision(
            going.runner.state,
            tool_call_id,
            action,
            by=by,
            arguments=arguments,
            note=note,
            now=self._clock.now(),
            check=self._find_problems,
        )
        await going.runner.take_decision(decided)
        return decided

    def _find_problems(self, tool_name: str, arguments: JsonObject) -> list[str] | None:
        tool = self._registry.get(tool_name)
        return tool.bind(arguments).problems if tool is not None else None

    # ── while a run goes ──

    def abort(self, run_id: str, reason: str) -> bool:
        opened = self.sessions.find(run_id)
        if opened is None:
            return False
        opened.scope.request(AgentError("RunAborted", reason))
        return True

    def pause(self, run_id: str) -> bool:
        opened = self.sessions.find(run_id)
        if opened is None:
            return False
        opened.steering.paused = True
        return True

    def steer(self, session_id: str, message: Message) -> None:
        check_kind("session", session_id, str, "its name, as text")
        check_input(message)
        encode(message)  # what cannot be written would fail the run, and not the one who said it
        opened = self.sessions.runs.get(session_id)
        if opened is not None and not opened.steering.closed:
            opened.steering.waiting.append(message)
            return
        raise AgentError(
            "SessionNotFound", f"no run is going in session {session_id} here; start one with Agent.run"
        )


def _check_humans(state: RunState, session_id: str) -> None:
    """A new run ends one that was left open, but never what a human was asked or has decided."""
    if state.status == "awaiting_human":
        waiting, words = state.awaiting, ("waits for a decision on", "decide it and resume, or abort it")
    elif state.is_open and (due := [call for call in state.open_calls if call.is_due]):
        waiting, words = (
            due,
            (
                "has yet to run what was approved,",
                f"resume it first (Agent.resume, or turnlog chat --session {session_id})",
            ),
        )
    else:
        return
    names = ", ".join(call.call.tool_call_id for call in waiting)
    raise AgentError("SessionBusy", f"session {session_id} {words[0]} {names}; {words[1]}")


async def drain(events: AsyncGenerator[RunEvent, None]) -> RunResult:
    """Run a stream to its end for its result alone."""
    result: RunResult | None = None
    async with aclosing(events):
        async for event in events:
            if isinstance(event, RunEndedEvent):
                result = event.payload.result
    assert result is not None
    return result
