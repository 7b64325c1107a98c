"""One model call: intent into the log, deltas to the watcher, the answer into the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from turnlog.context import ModelContext
from turnlog.contract import (
    AgentError,
    AssistantMessageEvent,
    AssistantMessageShown,
    ContextEvent,
    ContextShown,
    ErrorEvent,
    ErrorInfo,
    ErrorShown,
    Fold,
    ModelCallEvent,
    ModelCallFailed,
    ModelCallShown,
    ModelCallStarted,
    ModelInvocationDescriptor,
    ModelOutput,
    ModelOutputEntry,
    RequestMetadata,
    Retracted,
    RetractedEvent,
    RunEvent,
)
from turnlog.observe import get_logger

from ._decide import CallModel, ShrinkContext
from ._doors import Doors, ModelCall, Outcome
from ._recorder import Recorder

_context = get_logger("context")


async def call_model(record: Recorder, doors: Doors, order: CallModel) -> AsyncGenerator[RunEvent, None]:
    state, session = record.state, record.session
    record.go("model_running")
    if order.delay_ms:
        for event in await record.flush():
            yield event
        with doors.world.scope:
            await doors.model.wait(order.delay_ms)
    metadata = RequestMetadata(
        session_id=session.session_id,
        run_id=record.run_id,
        model_call_index=order.index,
        attempt=order.attempt,
        role=_role(record),
    )
    context, target = _stage_call(record, doors, order, metadata)
    for event in await record.flush():
        yield event
    await doors.world.hook("before_model", context)
    deltas, collector = await doors.model.open(ModelCall(context, metadata, state))
    scope = doors.world.scope
    try:
        while True:
            with scope:
                delta = await anext(deltas, None)
            if delta is None:
                break
            collector.consume(delta)
            if delta.provider_raw is not None:
                delta = msgspec.structs.replace(delta, provider_raw=None)
            record.shown += 1
            if record.shown == 1:
                doors.context.begin_recap(context, target)
            yield record.delta_event(delta, order.index, order.attempt)
    finally:
        await deltas.aclose()
    outcome = collector.outcome("")
    if outcome.error is None and outcome.message is not None:
        _stage_answer(record, order, outcome, context.context_hash)
        await doors.world.hook("after_model", outcome.message)
    else:
        _stage_failure(record, doors, order, outcome)


def _stage_call(
    record: Recorder, doors: Doors, order: CallModel, metadata: RequestMetadata
) -> tuple[ModelContext, ModelInvocationDescriptor]:
    """Choose who answers, fold and change tools where that is due, and put the intent into the log."""
    state, session = record.state, record.session
    target, reason = doors.model.target(metadata)
    if (fold := doors.context.fold_before(state, target)) is not None:
        _stage_fold(record, doors, fold)
    specs = doors.tools.specs(state)
    if specs != (state.tools or []):
        record.stage(session.change_tools(specs))
    context = record.projection.emit(target)
    record.shown = 0
    started = record.stage(
        session.start_model_call(
            ModelCallStarted(
                model_call_index=order.index,
                attempt=order.attempt,
                context_hash=context.context_hash,
                target=target,
                message_count=len(context.messages),
                reason=reason,
                estimated_tokens=context.stats.estimated_tokens,
            )
        )
    )
    record.tell(
        ModelCallEvent,
        ModelCallShown(
            entry_id=started.id,
            model_call_index=order.index,
            attempt=order.attempt,
            target=target,
            context_hash=context.context_hash,
            reason=reason,
        ),
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
    return context, target


def _role(record: Recorder) -> str | None:
    """The part this run plays (``planner``, ``reviewer``, …), for a router to choose by."""
    started = record.state.started
    return ((started.model_params if started else None) or {}).get("role")


def _stage_answer(record: Recorder, order: CallModel, outcome: Outcome, context_hash: str) -> None:
    assert outcome.message is not None and record.state.open_call is not None
    entry = record.stage(
        record.session.append_model_output(
            ModelOutput(
                message=outcome.message,
                invocation=outcome.target or record.state.open_call.target,
                model_call_index=order.index,
                attempt=order.attempt,
                finish_reason=outcome.finish_reason,
                wire_hash=context_hash,
            ),
            meta={"route": outcome.reason} if outcome.reason else None,
        )
    )
    assert isinstance(entry, ModelOutputEntry)
    record.tell(
        AssistantMessageEvent,
        AssistantMessageShown(
            entry_id=entry.id,
            message=entry.payload.message,
            finish_reason=outcome.finish_reason,
        ),
    )


def _stage_failure(record: Recorder, doors: Doors, order: CallModel, outcome: Outcome) -> None:
    state = record.state
    error = outcome.error or empty_output()
    assert state.started is not None
    retry = None
    if error.code != "ModelContextOverflow":
        retry = doors.model.plan_retry(error, order.attempt, state.started.retry)
    record.stage(
        record.session.fail_model_call(
            ModelCallFailed(
                model_call_index=order.index,
                attempt=order.attempt,
                error=error,
                shown=outcome.shown,
                retry_in_ms=retry,
                usage=outcome.usage,
            )
        )
    )
    if outcome.shown:
        record.tell(
            RetractedEvent,
            Retracted(model_call_index=order.index, attempt=order.attempt, reason=error.message),
        )
    will_retry = retry is not None or error.code == "ModelContextOverflow"
    if will_retry:
        record.tell(ErrorEvent, ErrorShown(error=error, will_retry=True, retry_in_ms=retry))


def empty_output() -> ErrorInfo:
    return AgentError(
        "ModelEmptyOutput", "the model answered with neither text nor a tool call", retryable=True
    ).to_info()


def shrink_context(record: Recorder, doors: Doors, order: ShrinkContext) -> None:
    """Fold because the prompt did not fit. Raises ``ContextOverflow`` when nothing more can be folded."""
    failure = record.state.failure
    assert failure is not None and record.state.target is not None
    fold = doors.context.fold_overflow(record.state, order.step, record.state.target)
    if fold is None:
        raise AgentError(
            "ContextOverflow",
            f"the prompt does not fit and nothing is left to fold: {failure.error.message}; "
            "use a model with a larger window, or shorten the system prompt, the tools or the message",
        )
    _stage_fold(record, doors, fold)


def _stage_fold(record: Recorder, doors: Doors, fold: Fold) -> None:
    fold = msgspec.structs.replace(fold, screen=doors.context.screen())
    entry = record.stage(record.session.append_fold(fold))
    record.tell(
        ContextEvent,
        ContextShown(
            entry_id=entry.id,
            reason=fold.reason,
            tokens_before=fold.tokens_before,
            tokens_after=fold.tokens_after,
        ),
    )
