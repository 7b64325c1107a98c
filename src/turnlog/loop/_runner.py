"""The hall. Read top to bottom, this is the data path of a run.

``decide`` returns the next step, ``advance`` performs it through a port, and what happened is staged in the
session. Staged entries are committed before anything outside is touched and before a watcher sees an event
of them, so a commit may hold several steps, and a crash loses none that had an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from msgspec import UNSET

from turnlog import events
from turnlog.assembly import MessageSnapshot
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    Clock,
    ErrorInfo,
    ModelCallFailed,
    RequestMetadata,
    RunEnded,
    RunEvent,
    RunInput,
    RunResult,
    RunStarted,
    ToolAnswered,
    user_message,
)
from turnlog.history import CallState, Session
from turnlog.tools import ToolAnswer
from turnlog.widgets import Widget

from ._decide import (
    ABANDONED,
    AbandonCall,
    AwaitHuman,
    CallModel,
    CheckOutput,
    EndRun,
    Nothing,
    RunTools,
    ShrinkContext,
    decide,
)
from ._events import Outbox, result_of
from ._folds import names_to_record
from ._phases import (
    CallInProgress,
    ToolQueue,
    aborted_by,
    answer_denied,
    check_aborted,
    shrink_context,
    skip_open_calls,
    stage_answer,
    stage_call,
    stage_failure,
    stage_result,
)
from ._ports import (
    Batches,
    Collector,
    Finished,
    ModelCall,
    Ports,
    Progress,
    Rejected,
    Restart,
    RunInterrupted,
    RunLeft,
    Said,
    append_fact,
)


class Runner:
    """Drives one run: call ``advance`` until ``result`` is there, or ``settle`` to end the run early."""

    def __init__(
        self,
        session: Session,
        ports: Ports,
        clock: Clock,
        run_id: str,
        *,
        widgets: Sequence[Widget[Any]] = (),
        home: Callable[[], str] | None = None,
        returned: Callable[[], None] | None = None,
    ) -> None:
        self.session = session
        self.ports = ports
        self._scope = ports.world.scope
        self.outbox = Outbox(session, clock, run_id)
        self.result: RunResult[Any] | None = None
        self._output: Any = UNSET
        """The value of the structured output, of its own type, once it was accepted."""
        self._home = home or (lambda: session.session_id)
        """The session named in keys and digests; a replayed fork has its parent's for the past."""
        self._run_id = run_id
        self._returned = returned  # called when the lease was given back with the last entries of the run
        self._widgets = widgets
        self._call: CallInProgress | None = None
        self._collector: Collector | None = None
        self._queue: ToolQueue | None = None
        self._drops = session.drops

    async def advance(self) -> list[RunEvent]:
        """Perform the next step and return the events to show, which may be none. Of the deltas that came
        together it is the first one; ``show`` gives the others, and is asked before the next step.

        Ends the run when it must end; raises only what cancelled it, a bug, or ``RunLeft``."""
        if self.result is not None:
            return []
        try:
            call = self._call
            if call is not None:
                if call.failure is not None:
                    raise call.failure
                batches = call.batches or await self._open_answer(call)
                with self._scope:
                    deltas = await anext(batches, None)
                if deltas is None:
                    return await self._finish_answer(call, batches)
                call.coming = iter(deltas)
                return [] if (first := self.show()) is None else [first]
            if self._queue is not None:
                return await self._run_tools(self._queue)
            step = self._due()
            return await step if step is not None else []
        except RunLeft:
            raise
        except RunInterrupted as stop:
            return await self.settle(stop.error)
        except AgentError as error:
            return await self.settle(error)
        except BaseException as error:
            # Cancelled from outside, or a bug: the history stays well-formed all the same.
            why = "the run's stream was closed before it ended"
            if isinstance(error, Exception):
                why = f"the run was ended by {type(error).__name__}: {error}"
            await self.settle(AgentError("RunAborted", why))
            raise

    def show(self) -> RunEvent | None:
        """The event of the next delta that has come, which counts as shown from here on. None when there is
        none, or the run must stop before it: then ``advance`` is to be called."""
        call = self._call
        if call is None or self._scope.reason is not None:
            return None
        return call.show(self.outbox, self.ports)

    def _due(self) -> Coroutine[Any, Any, list[RunEvent]] | None:
        """The step that comes next; None when it took no waiting and is done."""
        session, world = self.session, self.ports.world
        world.interrupted()
        self._take_facts()
        if world.paused:
            return self._pause()
        self._take_steering()
        effect = decide(session.state)
        match effect:
            case CallModel():
                return self._call_model(effect)
            case RunTools():
                return self._begin_tools(effect)
            case AwaitHuman():
                return self._await_human(effect)
            case CheckOutput():
                return self._check_output(effect)
            case EndRun():
                return self._close(effect)
            case ShrinkContext():
                return self._shrink(effect)
            case AbandonCall():
                self._abandon()
            case Nothing():
                self.result = result_of(session.session_id, session.state)
        return None

    async def _shrink(self, effect: ShrinkContext) -> list[RunEvent]:
        with self._scope:
            await self.ports.context.await_recap()
        self._take_facts()
        shrink_context(self.session, self.ports, effect)
        return []

    # ── beginning ──

    def begin(self, run: RunInput, said: Sequence[Said] = ()) -> None:
        """Stage the first entries of a run. ``flush`` commits them, alone or with the first step's. ``said``
        are its messages where they have levels of detail of their own."""
        session = self.session
        if session.state.is_open:
            self._supersede()
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
                output_mode=run.output_mode,
                output_field=run.output_field,
                widgets=names_to_record(self._widgets),
                role=run.role,
                trace_id=run.trace_id,
                invocation_state=run.invocation_state,
                system_prompt_content=run.system_prompt_content,
                rerun=run.rerun,
            ),
        )
        self.outbox.go("preparing")
        if run.runtime_init_data and session.state.runtime_data != run.runtime_init_data:
            session.init_runtime(run.runtime_init_data)
        for each in said or [Said(message) for message in run.input_messages]:
            self._add_input(each, "user")

    def take_over(self) -> None:
        """Continue the run that the log has open."""
        self.outbox.take_over()
        self.outbox.go("preparing")

    def _supersede(self) -> None:
        """Close a run that a crash left open, so that the new one starts from a well-formed history."""
        state = self.session.state
        superseded = AgentError("RunAborted", "a new run was started before this one was resumed")
        error = (aborted_by(state.open_calls) or superseded).to_info()
        if state.open_call is not None:
            self._abandon()
        skip_open_calls(self.session, self.ports, error)
        self.session.end_run(RunEnded(status="aborted", error=error, usage=state.usage))
        self.outbox.take()  # its watchers are gone

    # ── between two steps ──

    async def flush(self) -> list[RunEvent]:
        """Commit what is staged; returns the events that may be shown now."""
        told = self.outbox.take()
        if self.session.has_staged:
            await self.session.commit()
        return told

    def _take_facts(self) -> None:
        """Stage what came from outside. A replay finds these entries in the log, where they were written."""
        for fact in self.ports.world.take_facts():
            append_fact(self.session, fact)

    def _take_steering(self) -> bool:
        state = self.session.state
        owed = state.open_calls or state.open_call is not None or state.failure is not None
        if owed or not state.is_open:
            return False
        messages = self.ports.world.take_steering()
        for said in messages:
            self._add_input(said, "steering")
        return bool(messages)

    def _take_last_words(self) -> None:
        """Record the messages that this run will not answer."""
        self.ports.world.close()
        for said in self.ports.world.take_steering():
            self._add_input(said, "steering")

    def _add_input(self, said: Said, source: Literal["user", "steering", "correction"]) -> None:
        self.session.append_model_input(
            said.message,
            sections=self.ports.context.input_sections(said),
            source=source,
            authored=said.summary is not None or said.gist is not None,
            meta={"control": said.control} if said.control else None,
        )

    def _abandon(self) -> None:
        state = self.session.state
        call = state.open_call
        assert call is not None
        error = AgentError("ModelServerError", ABANDONED).to_info()
        policy = state.started.retry if state.started else None
        retry = self.ports.model.plan_retry(error, call.attempt, policy) if policy else None
        self.session.fail_model_call(
            ModelCallFailed(
                model_call_index=call.model_call_index,
                attempt=call.attempt,
                error=error,
                # A crash says nothing about the provider: it does not use up a try.
                retry_in_ms=retry if retry is not None else 0,
            )
        )

    # ── a model call ──

    async def _call_model(self, order: CallModel) -> list[RunEvent]:
        self.outbox.go("model_running")
        if order.delay_ms:
            if told := await self.flush():
                return told
            with self._scope:
                await self.ports.model.wait(order.delay_ms)
        metadata = RequestMetadata(
            session_id=self.session.session_id,
            run_id=self._run_id,
            model_call_index=order.index,
            attempt=order.attempt,
            role=_role(self.session),
            trace_id=started.trace_id if (started := self.session.state.started) is not None else None,
        )
        if (reading := self.ports.tools.refresh()) is not None:
            with self._scope:
                await reading
        target, reason = self.ports.model.target(metadata)
        if (asking := self.ports.model.ask_window(target)) is not None:
            with self._scope:
                await asking
        context = stage_call(self.session, self.ports, order, target, reason)
        told = await self.flush()
        self._call = CallInProgress(order, metadata, context, target)
        return told

    def snapshot(self) -> MessageSnapshot | None:
        """The message so far of the newest model call."""
        return self._collector.snapshot() if self._collector is not None else None

    async def _open_answer(self, call: CallInProgress) -> Batches:
        await self.ports.world.hook("before_model", call.context)
        opened = ModelCall(call.context, call.metadata, self.session.state)
        call.batches, call.collector = await self.ports.model.open(opened)
        self._collector = call.collector
        return call.batches

    async def _finish_answer(self, call: CallInProgress, batches: Batches) -> list[RunEvent]:
        assert call.collector is not None
        await batches.aclose()
        self._call = None
        outcome = call.collector.outcome("")
        if outcome.error is None and outcome.message is not None:
            stage_answer(self.session, call.order, outcome, call.context.context_hash)
            answer = self.session.state.output
            assert answer is not None
            await self.ports.world.hook("after_model", answer.payload.message)
        else:
            stage_failure(self.session, self.ports, call.order, outcome)
        return []

    # ── tools ──

    async def _begin_tools(self, order: RunTools) -> list[RunEvent]:
        self.outbox.go("tool_running")
        check_aborted(order.calls)
        if (reading := self.ports.tools.refresh()) is not None:
            with self._scope:
                await reading
        self._queue = ToolQueue(self.session, self.ports, self._home, order.calls)
        return await self._run_tools(self._queue)

    async def _run_tools(self, queue: ToolQueue) -> list[RunEvent]:
        tools = self.ports.tools
        if ready := await queue.stage_ready():
            told = await self.flush()
            for call in ready:
                assert call.started is not None
                tools.start(call, call.started.idempotency_key, call.started.attempt)
            return told
        if not tools.running and not queue.waiting:
            self._queue = None
            return []
        # Only in a recording may a call wait for nothing: the run was stopped here.
        with self._scope:
            news = await tools.next()
        match news:
            case Progress():
                call = news.call.call
                return [
                    self.outbox.event(
                        events.ToolProgressed,
                        tool_call_id=call.tool_call_id,
                        tool_name=call.tool_name,
                        text=news.text,
                        data=news.data,
                    )
                ]
            case Restart():
                queue.put_back(news.call)
            case Finished():
                queue.alone = False
                self._take_facts()  # first, so that the screen with this result shows them
                try:
                    answer = await self.ports.world.check_result(news.call, news.answer)
                except BaseException:  # it ran, and that is recorded whatever becomes of the run
                    stage_result(self.session, self.ports, news.call, news.answer)
                    raise
                stage_result(self.session, self.ports, news.call, answer)
                await self.ports.world.hook("after_tool", news.call, answer)
                if tools.running:
                    # Others still run: this result must be safe without waiting for them.
                    return await self.flush()
        return []

    # ── humans ──

    async def _await_human(self, order: AwaitHuman) -> list[RunEvent]:
        """Wait for decisions where somebody is there to give them, else let the run go."""
        self.outbox.go("awaiting_human")
        if told := await self.flush():
            return told
        session, world = self.session, self.ports.world
        with self._scope:
            decisions = await self.ports.human.decide(order.calls)
        for decided in decisions or ():
            session.decide_approval(decided)
        check_aborted(session.state.open_calls)
        await answer_denied(session, self.ports)
        if not session.state.is_open or any(call.waits for call in session.state.open_calls):
            world.interrupted()  # the approver may have aborted the run instead
            return await self._let_go()
        if session.state.open_calls:
            self.outbox.go("tool_running")
        return []

    async def take_decision(self, decided: ApprovalDecided) -> None:
        """Record a decision that came from outside while the run waits for it."""
        self.session.decide_approval(decided)
        try:
            await self.session.commit()
        except AgentError as error:
            self.ports.world.scope.request(error)  # what the run has seen is not in the log
            raise
        self.ports.human.withdraw(decided.tool_call_id)

    async def take_answer(
        self, call: CallState, answer: ToolAnswer | ToolAnswered, by: str | None = None
    ) -> None:
        """Record the answer to a call that was put off; it came from outside."""
        if isinstance(answer, ToolAnswered):
            self.session.answer_tool(answer)
        else:
            stage_result(self.session, self.ports, call, answer, by=by)
        try:
            await self.session.commit()
        except AgentError as error:
            self.ports.world.scope.request(error)
            raise

    # ── ending ──

    async def _check_output(self, order: CheckOutput) -> list[RunEvent]:
        """Nothing is half an output: the answer is of the run's type, is corrected, or ends the run."""
        if told := await self.flush():
            return told
        with self.ports.world.scope:
            found = await self.ports.output.check(self.session.state, last=order.last)
        if isinstance(found, Rejected):
            if found.error is not None:
                return await self._end(found.error)
            self._add_input(Said(user_message(found.correction)), "correction")
            return []
        if self._take_steering():
            return []
        self._output = found.value
        self.ports.world.close()
        return await self._end(None)

    async def _close(self, order: EndRun) -> list[RunEvent]:
        # The answer is committed and shown before the run ends: a last message may still come.
        if told := await self.flush():
            return told
        if order.error is None and self._take_steering():
            return []
        self.ports.world.close()
        return await self._end(order.error)

    async def _end(self, error: ErrorInfo | None) -> list[RunEvent]:
        session = self.session
        status = "completed" if error is None else _ending(error.code)
        if error is not None:
            skip_open_calls(self.session, self.ports, error)
            self._take_last_words()
        output = session.state.output
        final = output.id if error is None and output is not None else None
        session.end_run(RunEnded(status=status, error=error, usage=session.state.usage, final_entry_id=final))
        return await self._finish(status)

    async def settle(self, error: AgentError) -> list[RunEvent]:
        """End the run because of ``error``: no call left open, no task left running."""
        self.ports.world.close()
        call, self._call = self._call, None
        if call is not None and call.batches is not None:
            await call.batches.aclose()
        session = self.session
        if error.code == "RunAborted":  # a decision to abort in the log is the reason
            error = aborted_by(session.state.open_calls) or error
        info = error.to_info()
        if self.result is not None or not session.state.is_open:
            await self.ports.tools.stop()
            return [] if self.result is not None else self._lost(info)
        finished = await self.ports.tools.stop()
        if self._is_broken:
            return self._lost(info)
        open_call = session.state.open_call
        if open_call is not None:
            session.fail_model_call(
                ModelCallFailed(
                    model_call_index=open_call.model_call_index,
                    attempt=open_call.attempt,
                    error=info,
                    shown=call.shown if call is not None else 0,
                    partial=call.partial() if call is not None else None,
                )
            )
        skip_open_calls(self.session, self.ports, info, finished)
        self._take_last_words()
        status = _ending(error.code)
        session.end_run(RunEnded(status=status, error=info, usage=session.state.usage))
        return await self._finish(status)

    async def _finish(self, status: Literal["completed", "failed", "aborted"]) -> list[RunEvent]:
        self.outbox.go(status)
        told = self.outbox.take()
        try:
            await self.session.commit(returned=self._returned)
        except AgentError as failure:
            return self._lost(failure.to_info())
        return [*told, self._ended(result_of(self.session.session_id, self.session.state, self._output))]

    def _lost(self, error: ErrorInfo) -> list[RunEvent]:
        """The log cannot be written: the run ends at once, and the log is all that is left of it."""
        result = RunResult[Any](
            session_id=self.session.session_id,
            run_id=self._run_id,
            status="failed",
            last_error=error,
            usage=self.session.state.usage,
        )
        return [self.outbox.event(events.ErrorShown, error=error), self._ended(result)]

    async def _pause(self) -> list[RunEvent]:
        if self.session.state.status != "awaiting_human":
            self.session.pause_run()
        return await self._let_go()

    async def _let_go(self) -> list[RunEvent]:
        """Stop driving the run and leave it open in the log, to be resumed."""
        self.ports.world.close()
        told = await self.flush()
        self.result = result_of(self.session.session_id, self.session.state)
        return [*told, self.outbox.rest(self.result)]

    def _ended(self, result: RunResult[Any]) -> RunEvent:
        self.result = result
        return self.outbox.event(events.RunEnded, result=result)

    @property
    def _is_broken(self) -> bool:
        """A write failed: what was staged is not in the log, and nothing more may be written."""
        return self.session.drops != self._drops


def _ending(code: str) -> Literal["aborted", "failed"]:
    return "aborted" if code == "RunAborted" else "failed"


def _role(session: Session) -> str | None:
    """The part this run plays (``planner``, ``reviewer``, …), for a router to choose by."""
    started = session.state.started
    return None if started is None else started.role or (started.model_params or {}).get("role")
