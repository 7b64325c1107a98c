"""Sessions to test with: counted ids, a fixed clock, turns of every kind."""

from __future__ import annotations

from typing import Any

from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    CompactionSummary,
    ErrorInfo,
    Fold,
    FoldItem,
    FoldSegment,
    LoopLimits,
    Message,
    MessagePart,
    ModelCallFailed,
    ModelCallStarted,
    ModelChange,
    ModelInvocationDescriptor,
    ModelOutput,
    RetryPolicy,
    RunEnded,
    RunStarted,
    Store,
    TextChunk,
    TextDelta,
    ToolAnswered,
    ToolCall,
    ToolCallPart,
    ToolDeferred,
    ToolOutcome,
    ToolPolicy,
    ToolResults,
    ToolSpec,
    ToolStarted,
    WidgetEvent,
    encode,
    text_part,
    thinking_part,
    tool_result_part,
    user_message,
)
from turnlog.history import Session
from turnlog.testing import FixedClock, FixedIds

MODEL = ModelInvocationDescriptor(provider_id="openai", specification="openai-chat", model="gpt-5.2")
STARTED = RunStarted(limits=LoopLimits(), tool_policy=ToolPolicy(), retry=RetryPolicy())
FAILED = ErrorInfo(code="ModelTimeout", message="no byte came", retryable=True, category="model")


async def open_session(store: Store, session_id: str = "s1", **options: Any) -> Session:
    options.setdefault("clock", FixedClock())
    options.setdefault("ids", FixedIds())
    return await Session.open(store, session_id, **options)


def call(call_id: str, name: str = "look", **arguments: Any) -> ToolCallPart:
    raw = encode(arguments).decode()
    return ToolCallPart(
        payload=ToolCall(tool_call_id=call_id, tool_name=name, arguments=arguments, raw_args_text=raw)
    )


def answer(*parts: MessagePart | str, finish_reason: str = "stop", **meta: Any) -> ModelOutput:
    made = [text_part(part) if isinstance(part, str) else part for part in parts]
    message = Message(run_id="", role="assistant", parts=made, timestamp="", meta=meta or None)
    return ModelOutput(
        message=message, invocation=MODEL, model_call_index=1, attempt=1, finish_reason=finish_reason
    )


def results(*pairs: tuple[str, str], name: str = "look") -> ToolResults:
    return ToolResults(
        message=Message(
            run_id="", role="tool", parts=[tool_result_part(id, text) for id, text in pairs], timestamp=""
        ),
        outcomes=[ToolOutcome(tool_call_id=id, tool_name=name, status="success") for id, _ in pairs],
    )


def code_of(error: Any) -> str:
    assert isinstance(error.value, AgentError), error
    return error.value.code


async def write_everything(session: Session, *, secret: str = "the words") -> None:
    """A session with an entry of every kind that a session itself appends."""
    session.set_system_instruction(f"be kind: {secret}")
    session.init_runtime({"cwd": f"/work/{secret}"})
    session.change_tools([ToolSpec(name="look", description=secret, parameter_schema={"type": "object"})])
    session.start_run("run_1", STARTED)
    asked = session.append_model_input(user_message(f"find it: {secret}"))
    started = ModelCallStarted(
        model_call_index=1, attempt=1, context_hash="h", target=MODEL, message_count=1, reason=secret
    )
    session.start_model_call(started)
    failed = ErrorInfo(code="ModelTimeout", message=secret, retryable=True, category="model")
    session.fail_model_call(ModelCallFailed(model_call_index=1, attempt=1, error=failed))
    session.append_model_output(
        answer(thinking_part(secret), f"looking: {secret}", call("c1", q=secret), finish_reason="tool_calls")
    )
    session.request_approval(
        ApprovalRequested(tool_call_id="c1", tool_name="look", arguments={"q": secret}, digest="d1")
    )
    await session.commit()
    session.decide_approval(
        ApprovalDecided(tool_call_id="c1", digest="d1", action="approve", decided_by="ana", note=secret)
    )
    session.start_tool(
        ToolStarted(
            tool_call_id="c1",
            tool_name="look",
            idempotency_key="k1",
            args_digest="a1",
            arguments={"q": secret},
        )
    )
    session.append_recorded(
        ToolDeferred(tool_call_id="c1", tool_name="look", reason=secret, question=secret, state={"s": secret})
    )
    session.append_recorded(ToolAnswered(tool_call_id="c1", tool_name="look", content={"a": secret}))
    session.append_tool_results(results(("c1", f"found {secret}")))
    session.append_widget_event(WidgetEvent(widget="notes", event="added", data={"text": secret}))
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15, "cost": 0.25}
    said = session.append_model_output(answer(f"it is {secret}", usage=usage))
    item = FoldItem(entry_id=asked.id, grain="gist", text=secret)
    segment = FoldSegment(first_entry_id=asked.id, last_entry_id=said.id, text=secret)
    session.append_fold(
        Fold(reason="budget", tokens_before=9, tokens_after=3, items=[item], segments=[segment])
    )
    session.append_compaction(CompactionSummary(first_kept_entry_id=said.id, summary=f"about {secret}"))
    session.change_model(ModelChange(target=MODEL, reason=secret))
    session.append_custom("note", {"text": secret})
    delta = TextDelta(run_id="run_1", seq=2, payload=TextChunk(text_delta=secret), timestamp="t")
    session.append_deltas(1, 1, [delta])
    session.end_run(RunEnded(status="completed"))
    await session.commit()
