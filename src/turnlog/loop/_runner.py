"""The hall. Read top to bottom, this is the data path of a run.

``decide`` says what is owed, the runner does it through a door, and what happened is staged. Staged entries
are committed before anything outside is touched and before a watcher hears of them, so a commit may hold
several steps, and a crash loses none that had an effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    ErrorEvent,
    ErrorInfo,
    ErrorShown,
    InputEvent,
    InputShown,
    Message,
    ModelCallFailed,
    ModelInputEntry,
    RunEnd,
    RunEnded,
    RunEndedEvent,
    RunEvent,
    RunInput,
    RunResult,
    RunStarted,
)

from ._abort import RunInterrupted, RunLeft
from ._decide import (
    ABANDONED,
    AbandonCall,
    AwaitHuman,
    CallModel,
    EndRun,
    Nothing,
    RunTools,
    ShrinkContext,
    decide,
)
from ._doors import Doors
from ._facts import take_facts
from ._known_widgets import names_to_record
from ._model_phase import call_model, shrink_context
from ._recorder import Recorder
from ._tool_phase import aborted_by, await_human, run_tools, skip_open_calls, stage_decision
from ._warm import WarmSession


class Runner:
    """One run, from its first entry to its last. Iterate ``stream`` to drive it."""

    def __init__(self, warm: WarmSession, doors: Doors, clock: Clock, run_id: str) -> None:
        self.session = warm.session
        self.state = warm.state
        self._widgets = warm.host.widgets
        self.doors = doors
        self.record = Recorder(warm, clock, run_id)
        self.result: RunResult | None = None

    async def stream(self, run: RunInput | None) -> AsyncGenerator[RunEvent, None]:
        """Start ``run``, or go on with the run that is open when it is None."""
        try:
            if run is None:
                self.record.resume_status()
            else:
                self._begin(run)
            async with aclosing(self._drive()) as events:
                async for event in events:
                    yield event
        except RunLeft:
            raise
        except RunInterrupted as stop:
            for event in await self._settle(stop.error):
                yield event
        except AgentError as error:
            for event in await self._settle(error):
                yield event
        except BaseException as error:
            # Closed early, cancelled from outside, or a bug: the history stays well-formed all the same.
            why = "the run's stream was closed before it ended"
            if isinstance(error, Exception):
                why = f"the run was ended by {type(error).__name__}: {error}"
            await self._settle(AgentError("RunAborted", why))
            raise

    async def take_decision(self, decided: ApprovalDecided) -> None:
        """Record a decision that came from outside while the run is going and waits for it."""
        stage_decision(self.record, decided)
        try:
            await self.record.commit()
        except AgentError as error:
            self.doors.world.scope.request(error)  # what the run has seen is not in the log
            raise
        self.doors.human.withdraw(decided.tool_call_id)

    async def _drive(self) -> AsyncGenerator[RunEvent, None]:
        record, doors, state = self.record, self.doors, self.state
        while True:
            doors.world.interrupted()
            take_facts(record, doors)
            if doors.world.paused:
                for event in await self._let_go():
                    yield event
                return
            self._take_steering()
            effect = decide(state)
            match effect:
                case CallModel():
                    async with aclosing(call_model(record, doors, effect)) as events:
                        async for event in events:
                            yield event
                case RunTools():
                    async with aclosing(run_tools(record, doors, effect)) as events:
                        async for event in events:
                            yield event
                case ShrinkContext():
                    shrink_context(record, doors, effect)
                case AwaitHuman():
                    async with aclosing(await_human(record, doors, effect)) as events:
                        async for event in events:
                            yield event
                    if not state.is_open or state.awaiting:
                        doors.world.interrupted()  # the one who was asked may have aborted instead
                        for event in await self._let_go():
                            yield event
                        return
                case AbandonCall():
                    self._abandon()
                case EndRun():
                    # The answer is shown and safe before the run is closed: there may be a last word.
                    for event in await record.flush():
                        yield event
                    take_facts(record, doors)
                    if effect.error is None and self._take_steering():
                        continue
                    doors.world.close()
                    for event in await self._end(effect.error):
                        yield event
                    return
                case Nothing():
                    return

    # ── beginning ──

    def _begin(self, run: RunInput) -> None:
        record, session, state = self.record, self.session, self.state
        record.go("preparing")
        if state.is_open:
            self._supersede()
        record.stage(
            session.start_run(
                run.run_id,
                RunStarted(
                    limits=run.loop_limits,
                    tool_policy=run.tool_policy,
                    retry=run.retry,
                    agent_name=run.agent_name,
                    allowed_tools=run.allowed_tools,
                    tool_order=run.tool_order,
                    tool_choice=run.tool_choice,
                    system_prompt_override=run.system_prompt_override,
                    model_params=run.model_params,
                    output_schema=run.output_schema,
                    widgets=names_to_record(self._widgets),
                ),
            )
        )
        if run.runtime_init_data and state.runtime_data != run.runtime_init_data:
            record.stage(session.init_runtime(run.runtime_init_data))
        for message in run.input_messages:
            self._add_input(message, "user")

    def _supersede(self) -> None:
        """Close a run that a crash left open, so that the new one starts from a well-formed history."""
        superseded = AgentError("RunAborted", "a new run was started before this one was resumed")
        error = (aborted_by(self.state.open_calls) or superseded).to_info()
        if self.state.open_call is not None:
            self._abandon()
        skip_open_calls(self.record, self.doors, error)
        self.record.stage(
            self.session.end_run(RunEnded(status="aborted", error=error, usage=self.state.usage))
        )

    def _take_steering(self) -> bool:
        state = self.state
        owed = state.open_calls or state.open_call is not None or state.failure is not None
        if owed or not state.is_open:
            return False
        messages = self.doors.world.take_steering()
        for message in messages:
            self._add_input(message, "steering")
        return bool(messages)

    def _take_last_words(self) -> None:
        """What was said and will not be answered in this run stands in the log all the same."""
        self.doors.world.close()
        for message in self.doors.world.take_steering():
            self._add_input(message, "steering")

    def _add_input(self, message: Message, source: Any) -> None:
        entry = self.record.stage(
            self.session.append_model_input(
                message, sections=self.doors.context.input_sections(message), source=source
            )
        )
        assert isinstance(entry, ModelInputEntry)
        self.record.tell(InputEvent, InputShown(entry_id=entry.id, message=entry.payload.message))

    def _abandon(self) -> None:
        call = self.state.open_call
        assert call is not None
        error = AgentError("ModelServerError", ABANDONED).to_info()
        policy = self.state.started.retry if self.state.started else None
        retry = self.doors.model.plan_retry(error, call.attempt, policy) if policy else None
        self.record.stage(
            self.session.fail_model_call(
                ModelCallFailed(
                    model_call_index=call.model_call_index,
                    attempt=call.attempt,
                    error=error,
                    # A crash says nothing about the provider: it does not use up a try.
                    retry_in_ms=retry if retry is not None else 0,
                )
            )
        )

    # ── ending ──

    async def _end(self, error: ErrorInfo | None) -> list[RunEvent]:
        state = self.state
        status = "completed" if error is None else _ending(error.code)
        if error is not None:
            skip_open_calls(self.record, self.doors, error)
            self._take_last_words()
            self.record.tell(ErrorEvent, ErrorShown(error=error))
        final = state.output.id if error is None and state.output is not None else None
        self.record.stage(
            self.session.end_run(
                RunEnded(status=status, error=error, usage=state.usage, final_entry_id=final)
            )
        )
        self.record.go(status)
        return await self._finish(status, error)

    async def _settle(self, error: AgentError) -> list[RunEvent]:
        """End the run because of ``error``: no call left open, no task left running."""
        self.doors.world.close()
        if self.result is not None or not self.state.is_open:
            await self.doors.tools.stop()
            return [] if self.result is not None else self._lost(error.to_info())
        info = error.to_info()
        status = _ending(error.code)
        finished = await self.doors.tools.stop()
        if self.record.broken:
            return self._lost(info)
        if self.state.open_call is not None:
            call = self.state.open_call
            self.record.stage(
                self.session.fail_model_call(
                    ModelCallFailed(
                        model_call_index=call.model_call_index,
                        attempt=call.attempt,
                        error=info,
                        shown=self.record.shown,
                    )
                )
            )
        skip_open_calls(self.record, self.doors, info, finished)
        self._take_last_words()
        self.record.tell(ErrorEvent, ErrorShown(error=info))
        self.record.stage(self.session.end_run(RunEnded(status=status, error=info, usage=self.state.usage)))
        self.record.go(status)
        return await self._finish(status, info)

    async def _finish(self, status: Any, error: ErrorInfo | None) -> list[RunEvent]:
        try:
            events = await self.record.flush()
        except AgentError as failure:
            return self._lost(failure.to_info())
        output = self.state.output
        self.result = RunResult(
            session_id=self.session.session_id,
            run_id=self.record.run_id,
            status=status,
            final_assistant_message=output.payload.message
            if output is not None and status == "completed"
            else None,
            last_error=error,
            usage=self.state.usage,
        )
        return [*events, self.record.event(RunEndedEvent, RunEnd(result=self.result))]

    def _lost(self, error: ErrorInfo) -> list[RunEvent]:
        """The log cannot be written: the run ends at once, and what is in the log is all there is."""
        self.result = RunResult(
            session_id=self.session.session_id,
            run_id=self.record.run_id,
            status="failed",
            last_error=error,
            usage=self.state.usage,
        )
        shown = self.record.event(ErrorEvent, ErrorShown(error=error))
        return [shown, self.record.event(RunEndedEvent, RunEnd(result=self.result))]

    async def _let_go(self) -> list[RunEvent]:
        self.doors.world.close()
        events = await self.record.flush()
        self.result = RunResult(
            session_id=self.session.session_id,
            run_id=self.record.run_id,
            status="awaiting_human",
            usage=self.state.usage,
        )
        return [*events, self.record.event(RunEndedEvent, RunEnd(result=self.result))]


def _ending(code: str) -> Literal["aborted", "failed"]:
    return "aborted" if code == "RunAborted" else "failed"
