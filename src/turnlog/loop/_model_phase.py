"""One model call in the log: its intent, its answer or its failure, and the folds around it."""

from __future__ import annotations

from turnlog.context import ModelContext
from turnlog.contract import (
    AgentError,
    CompactionSummary,
    EntryPayload,
    ErrorInfo,
    Fold,
    ModelCallFailed,
    ModelCallStarted,
    ModelInvocationDescriptor,
    ModelOutput,
    RequestMetadata,
    RuntimeInit,
    SystemPrompt,
    ToolsChange,
)
from turnlog.history import Session
from turnlog.observe import get_logger

from ._decide import CallModel, ShrinkContext
from ._ports import Outcome, Ports

_context = get_logger("context")


def stage_call(
    session: Session, ports: Ports, order: CallModel, metadata: RequestMetadata
) -> tuple[ModelContext, ModelInvocationDescriptor]:
    """Choose who answers, fold and change tools where that is due, and put the intent into the log."""
    target, reason = ports.model.target(metadata)
    specs = ports.tools.specs(session.state)
    built = ports.context.build(session.state, target, specs)
    if built.entries_to_append:
        for payload in built.entries_to_append:
            append_update(session, payload)
        built = ports.context.build(session.state, target, specs)  # on what is staged now
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
    return context, target


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
