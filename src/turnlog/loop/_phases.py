"""The two phases of a turn, as the runner writes them down: one model call with the folds around it, and the
calls of its answer, which are judged, started in order, and answered as they finish."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from turnlog.approvals import make_request
from turnlog.context import ModelContext
from turnlog.contract import (
    AgentError,
    CompactionSummary,
    EntryPayload,
    ErrorInfo,
    Fold,
    Message,
    MessageDelta,
    ModelCallFailed,
    ModelCallStarted,
    ModelInvocationDescriptor,
    ModelOutput,
    RequestMetadata,
    RunEvent,
    RuntimeInit,
    SystemPrompt,
    ToolCallRequest,
    ToolDeferred,
    ToolOutcome,
    ToolResults,
    ToolsChange,
    ToolStarted,
    encode,
    request_of,
    thaw,
    tool_result_part,
)
from turnlog.history import CallState, Session
from turnlog.observe import get_logger
from turnlog.tools import ToolAnswer

from ._decide import CallModel, ShrinkContext
from ._events import Outbox
from ._ports import (
    Answer,
    Ask,
    Batches,
    Collector,
    Finished,
    Judgement,
    Later,
    Outcome,
    Ports,
    RunInterrupted,
    Start,
)

_context = get_logger("context")


class CallInProgress:
    """A model call between its intent in the log and its outcome."""

    __slots__ = (
        "batches",
        "collector",
        "coming",
        "context",
        "failure",
        "metadata",
        "order",
        "shown",
        "target",
    )

    def __init__(
        self,
        order: CallModel,
        metadata: RequestMetadata,
        context: ModelContext,
        target: ModelInvocationDescriptor,
    ) -> None:
        self.order = order
        self.metadata = metadata
        self.context = context
        self.target = target
        self.batches: Batches | None = None
        self.collector: Collector | None = None
        self.coming: Iterator[MessageDelta] = iter(())
        """Deltas that came together and are not shown yet. What a stop leaves here was never shown."""
        self.shown = 0
        """Deltas that reached the watcher."""
        self.failure: Exception | None = None
        """Why the next delta cannot be shown."""

    def show(self, outbox: Outbox, ports: Ports) -> RunEvent | None:
        """The event of the next delta, which belongs to the answer from here on."""
        for delta in self.coming:
            assert self.collector is not None
            try:
                self.collector.consume(delta)
                self.shown += 1
                if self.shown == 1:
                    ports.context.begin_recap(self.context, self.target)
            except Exception as error:
                self.failure, self.coming = error, iter(())
                return None
            if delta.provider_raw is not None:
                delta = msgspec.structs.replace(delta, provider_raw=None)
            return outbox.delta(delta, self.order.index, self.order.attempt)
        return None

    def partial(self) -> str | None:
        return self.collector.partial() if self.collector is not None else None


def stage_call(
    session: Session, ports: Ports, order: CallModel, target: ModelInvocationDescriptor, reason: str | None
) -> ModelContext:
    """Fold and change tools where that is due, and put the intent into the log."""
    specs = ports.tools.specs(session.state)
    window = ports.model.told_window(target)
    built = ports.context.build(session.state, target, specs, window)
    if built.entries_to_append:
        for payload in built.entries_to_append:
            append_update(session, payload)
        built = ports.context.build(session.state, target, specs, window)  # on what is staged now
    context = built.context
    session.start_model_call(
        ModelCallStarted(
            model_call_index=order.index,
            attempt=order.attempt,
            context_hash=context.context_hash,
            target=target,
            message_count=len(context.messages),
            reason=reason,
            estimated_tokens=context.stats.estimated_tokens,
            window=window,
        )
    )
    _context.debug(
        "%s call %d.%d to %s: %d messages, about %s tokens, hash %s",
        session.session_id,
        order.index,
        order.attempt,
        target.model,
        len(context.messages),
        context.stats.estimated_tokens,
        context.context_hash,
    )
    return context


def stage_answer(session: Session, order: CallModel, outcome: Outcome, context_hash: str) -> None:
    open_call = session.state.open_call
    assert outcome.message is not None and open_call is not None
    session.append_model_output(
        ModelOutput(
            message=outcome.message,
            invocation=outcome.target or open_call.target,
            model_call_index=order.index,
            attempt=order.attempt,
            finish_reason=outcome.finish_reason,
            wire_hash=context_hash,
        ),
        meta={"route": outcome.reason} if outcome.reason else None,
    )


def stage_failure(session: Session, ports: Ports, order: CallModel, outcome: Outcome) -> None:
    error = outcome.error or empty_output()
    started = session.state.started
    assert started is not None
    retry = None
    if error.code != "ModelContextOverflow":
        retry = ports.model.plan_retry(error, order.attempt, started.retry)
    session.fail_model_call(
        ModelCallFailed(
            model_call_index=order.index,
            attempt=order.attempt,
            error=error,
            shown=outcome.shown,
            partial=outcome.partial,
            retry_in_ms=retry,
            usage=outcome.usage,
        )
    )


def empty_output() -> ErrorInfo:
    return AgentError(
        "ModelEmptyOutput", "the model answered with neither text nor a tool call", retryable=True
    ).to_info()


def shrink_context(session: Session, ports: Ports, order: ShrinkContext) -> None:
    """Fold because the prompt did not fit. Raises ``ContextOverflow`` when nothing more can be folded."""
    failure, target = session.state.failure, session.state.target
    assert failure is not None and target is not None
    updates = ports.context.shrink(session.state, order.step, target)
    if not updates:
        raise AgentError(
            "ContextOverflow",
            f"the prompt does not fit and nothing is left to fold: {failure.error.message}; "
            "use a model with a larger window, or shorten the system prompt, the tools or the message",
        )
    for payload in updates:
        append_update(session, payload)


def append_update(session: Session, payload: EntryPayload) -> None:
    """Append what a context manager asks for."""
    match payload:
        case Fold():
            session.append_fold(payload)
        case ToolsChange():
            session.change_tools(payload.tools)
        case SystemPrompt():
            session.set_system_instruction(payload.text)
        case RuntimeInit():
            session.init_runtime(payload.data)
        case CompactionSummary():
            session.append_compaction(payload)
        case _:
            raise AgentError(
                "ContextInvalidInput",
                f"the context manager asked to append a {type(payload).__name__}; it may fold, recap, and "
                "change the prompt, the runtime data or the tools",
            )


# ── the calls of one answer ──


class ToolQueue:
    """Calls that have not begun, in their order, and how they were judged."""

    def __init__(
        self, session: Session, ports: Ports, home: Callable[[], str], calls: Sequence[CallState]
    ) -> None:
        started = session.state.started
        assert started is not None
        self._session, self._ports, self._home = session, ports, home
        self._width = max(1, started.tool_policy.max_parallel)
        self._judged: dict[str, Judgement] = {}
        self.waiting = list(calls)
        self.alone = False
        """A tool runs that takes no other beside it."""

    async def stage_ready(self) -> list[CallState]:
        """Stage the start of every call that may run now, and the answers of those that never will."""
        ready: list[CallState] = []
        while self.waiting and not self.alone and await self._stage_next(ready):
            self.waiting.pop(0)
        return ready

    async def _stage_next(self, ready: list[CallState]) -> bool:
        """False when the first call has to wait, and those behind it with it."""
        call, ports = self.waiting[0], self._ports
        judgement = await self._judge(call)
        match judgement:
            case Answer():
                stage_result(self._session, ports, call, judgement.answer)
            case Ask():
                _stage_request(self._session, self._home(), call, judgement)
            case Later():
                self._forget(call)
                return False
            case Start():
                busy = ports.tools.running + len(ready)
                if busy >= self._width or (busy and judgement.alone):
                    return False
                self.alone = judgement.alone
                await ports.world.hook("before_tool", call)
                _stage_start(self._session, self._home(), call, judgement)
                ready.append(call)
        return True

    async def _judge(self, call: CallState) -> Judgement:
        judged = self._judged.get(call.call.tool_call_id)
        if judged is not None:
            return judged
        ports, state = self._ports, self._session.state
        # A call that has started is past its approval: what was allowed once must not run twice.
        if call.may_have_run:
            with ports.world.scope:
                judged = await ports.tools.recover(call, state)
        else:
            judged = await ports.tools.judge(call, state)
        self._judged[call.call.tool_call_id] = judged
        return judged

    def _forget(self, call: CallState) -> None:
        self._judged.pop(call.call.tool_call_id, None)

    def put_back(self, call: CallState) -> None:
        """It did not run after all: it is judged again, before the others."""
        self.waiting.insert(0, call)
        self._forget(call)
        self.alone = False


def request_for(call: CallState) -> ToolCallRequest:
    """What runs: the call as it was recorded, with the arguments that a human may have changed."""
    request = request_of(call.call, call.parse_error)
    if call.arguments is not call.call.arguments:
        return msgspec.structs.replace(request, arguments=thaw(call.arguments), parse_error=None)
    return request


def _stage_start(session: Session, home: str, call: CallState, judged: Start) -> None:
    arguments = call.arguments if judged.change is None else judged.change.arguments
    again = call.started
    session.start_tool(
        ToolStarted(
            tool_call_id=call.call.tool_call_id,
            tool_name=call.call.tool_name,
            # The key outlives attempts: a tool that passes it on is not charged twice.
            idempotency_key=again.idempotency_key if again else idempotency_key(home, call),
            args_digest=args_digest(arguments),
            attempt=again.attempt + 1 if again else 1,
            arguments=arguments if arguments != call.call.arguments else None,
            child_session_id=judged.child,
            changed_by=None if judged.change is None else judged.change.by,
        )
    )


def args_digest(arguments: dict[str, object] | None) -> str:
    return hashlib.sha256(encode(arguments)).hexdigest()


def idempotency_key(session_id: str, call: CallState) -> str:
    """The same for every attempt at one call, different for every other call anywhere."""
    place = f"{session_id}\n{call.call.tool_call_id}\n{call.call.tool_name}"
    return hashlib.sha256(place.encode()).hexdigest()[:32]


def stage_result(
    session: Session, ports: Ports, call: CallState, answer: ToolAnswer, *, by: str | None = None
) -> None:
    """``by`` names who answered, where it was not the tool."""
    call_id = call.call.tool_call_id
    for event in answer.events:
        session.append_widget_event(event)
    if answer.status == "deferred":
        _stage_deferral(session, call, answer)
        return
    closes = len(session.state.open_calls) == 1
    sections = ports.context.result_sections(call, answer, closes=closes)
    message = Message(
        run_id="",
        role="tool",
        parts=[tool_result_part(call_id, answer.content, is_error=answer.is_error)],
        timestamp="",
    )
    outcome = ToolOutcome(
        tool_call_id=call_id,
        tool_name=call.call.tool_name,
        status=answer.status,
        elapsed_ms=answer.elapsed_ms,
        error_code=answer.error_code,
        sections=sections,
        authored=True if answer.summary is not None or answer.gist is not None else None,
        artifact=answer.kept_as,
        traceback=answer.traceback,
        usage=answer.usage,
        ends_run=True if answer.ends_run else None,
        handed_to=answer.handed_to,
    )
    meta = {"answered_by": by} if by else None
    session.append_tool_results(ToolResults(message=message, outcomes=[outcome]), meta=meta)


def _stage_deferral(session: Session, call: CallState, answer: ToolAnswer) -> None:
    deferral = answer.deferral
    assert deferral is not None
    session.defer_tool(
        ToolDeferred(
            tool_call_id=call.call.tool_call_id,
            tool_name=call.call.tool_name,
            reason=deferral.reason,
            question=deferral.question,
            answer_schema=deferral.answer_schema,
            by=deferral.by,
            state=deferral.state,
        )
    )


def skip_open_calls(
    session: Session, ports: Ports, error: ErrorInfo, finished: Sequence[Finished] = ()
) -> None:
    """Answer every open call: with what it returned where it did, as skipped otherwise."""
    for done in finished:
        if not done.call.answered:
            stage_result(session, ports, done.call, done.answer)
    for call in session.state.open_calls:
        text = "not run" if call.started is None else "stopped while it ran; it may have taken effect"
        stage_result(session, ports, call, ToolAnswer.skipped(f"{text}: {error.message}"))


# ── humans ──


def _stage_request(session: Session, home: str, call: CallState, ask: Ask) -> None:
    arguments = call.arguments if ask.change is None else ask.change.arguments
    request = msgspec.structs.replace(request_of(call.call), arguments=arguments or {}, parse_error=None)
    session.request_approval(
        make_request(
            home,
            request,
            reason=ask.reason,
            expires_at=ask.expires_at,
            sandbox=ask.sandbox,
            definition=ask.definition,
            changed_by=None if ask.change is None else ask.change.by,
        )
    )


def aborted_by(calls: Sequence[CallState]) -> AgentError | None:
    """The end that a decision on one of ``calls`` puts to the run, whichever process recorded it."""
    for call in calls:
        if call.decided is not None and call.decided.action == "abort":
            return AgentError("RunAborted", f"{call.decided.decided_by} aborted the run")
    return None


def check_aborted(calls: Sequence[CallState]) -> None:
    if (error := aborted_by(calls)) is not None:
        raise RunInterrupted(error)


async def answer_denied(session: Session, ports: Ports) -> None:
    """A denied call is answered at once: with none left, the run goes straight back to the model."""
    for call in session.state.open_calls:
        if call.decided is not None and call.decided.action in ("deny", "expire"):
            judgement = await ports.tools.judge(call, session.state)
            if isinstance(judgement, Answer):
                stage_result(session, ports, call, judgement.answer)
