"""One value of every kind that goes over the wire, built in Python. `docs/wire.md` shows their JSON."""

from __future__ import annotations

from typing import Any, TypeAlias

from turnlog import events
from turnlog.contract import (
    ApprovalDecided,
    ApprovalRequested,
    BranchSummary,
    CallArgs,
    CallEnd,
    CallStart,
    CompactionSummary,
    Custom,
    DeltaBatch,
    DoneDelta,
    EntryPayload,
    ErrorDelta,
    ErrorInfo,
    FileRef,
    FileRefPart,
    Fold,
    FoldItem,
    FoldSegment,
    Image,
    ImagePart,
    LevelOfDetailSections,
    LoopLimits,
    Message,
    ModelCallFailed,
    ModelCallStarted,
    ModelChange,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    Purge,
    RecordedLimits,
    RecordedPolicy,
    Redaction,
    RequestMetadata,
    Rerun,
    RetryPolicy,
    RunEnded,
    RunInput,
    RunResult,
    RunStarted,
    RuntimeInit,
    Sealed,
    SessionHeader,
    SpecificTool,
    StartDelta,
    StreamDone,
    StreamError,
    StreamStart,
    SystemPrompt,
    Text,
    TextChunk,
    TextDelta,
    TextPart,
    Thinking,
    ThinkingChunk,
    ThinkingDelta,
    ThinkingPart,
    TokenUsage,
    ToolAnswered,
    ToolCall,
    ToolCallArgsDelta,
    ToolCallEndDelta,
    ToolCallPart,
    ToolCallRequest,
    ToolCallResult,
    ToolCallStartDelta,
    ToolDeferred,
    ToolOutcome,
    ToolPolicy,
    ToolResultPart,
    ToolResultPayload,
    ToolResults,
    ToolsChange,
    ToolSpec,
    ToolStarted,
    UsageDelta,
    WidgetEvent,
    seal,
    text_part,
    tool_result_part,
)

Examples: TypeAlias = dict[str, Any]

RUN = "run_0001"
CALL = "call_0001"
NOW = "2026-01-01T00:00:00.000Z"
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

TARGET = ModelInvocationDescriptor(
    provider_id="anthropic", specification="anthropic-messages", model="claude-opus-5"
)
USAGE = TokenUsage(
    input_tokens=1200, output_tokens=80, total_tokens=1280, cached_input_tokens=1024, cost=0.0042
)
ERROR = ErrorInfo(
    code="ModelOverloaded",
    message="anthropic: overloaded",
    retryable=True,
    category="model",
    meta={"retry_after": 2},
)
SECTIONS = LevelOfDetailSections(
    live=[("[LiveScreen]", "# [Live Screen]\n\n## notebook\n\n- port 8080 is taken")],
    summary=[("", "asked for a port")],
    gist=[("", "port?")],
)
ADD = ToolSpec(
    name="add",
    description="Adds two numbers.",
    parameter_schema={"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
)

CALL_PART = ToolCallPart(
    payload=ToolCall(
        tool_call_id=CALL,
        tool_name="add",
        arguments={"a": 1, "b": 2},
        raw_args_text='{"a": 1, "b": 2}',
        provider_data={"origin": "anthropic", "id": "toolu_01"},
    )
)
ASKED = Message(run_id=RUN, role="user", parts=[text_part("What is 1 + 2?")], timestamp=NOW)
CALLED = Message(
    run_id=RUN, role="assistant", parts=[CALL_PART], timestamp=NOW, meta={"trace_id": "4bf92f35"}
)
RESULT = Message(run_id=RUN, role="tool", parts=[tool_result_part(CALL, "3")], timestamp=NOW)
ANSWERED = Message(run_id=RUN, role="assistant", parts=[text_part("1 + 2 is 3.")], timestamp=NOW)

MESSAGE: Examples = {"message": CALLED}

PARTS: Examples = {
    "text": TextPart(payload=Text(text="1 + 2 is 3.")),
    "thinking": ThinkingPart(
        payload=Thinking(text="Easy.", provider_data={"origin": "anthropic", "signature": "EqQB"})
    ),
    "tool_call": CALL_PART,
    "tool_result": ToolResultPart(
        payload=ToolResultPayload(tool_call_id=CALL, is_error=False, content={"sum": 3})
    ),
    "image": ImagePart(payload=Image(mime_type="image/png", url=f"blob:sha256-{DIGEST}")),
    "file_ref": FileRefPart(payload=FileRef(path="notes/plan.md", mime_type="text/markdown", size=2048)),
}


def _deltas() -> Examples:
    chunks: list[tuple[Any, Any]] = [
        (
            StartDelta,
            StreamStart(model_id="claude-opus-5", request_id="req_01", model_call_index=1, attempt=1),
        ),
        (ThinkingDelta, ThinkingChunk(text_delta="Easy.")),
        (TextDelta, TextChunk(text_delta="Let me add: ")),
        (
            ToolCallStartDelta,
            CallStart(
                tool_call_id=CALL, tool_name="add", provider_data={"origin": "anthropic", "id": "toolu_01"}
            ),
        ),
        (ToolCallArgsDelta, CallArgs(tool_call_id=CALL, args_text_delta='{"a": 1, ')),
        (ToolCallEndDelta, CallEnd(tool_call_id=CALL)),
        (UsageDelta, USAGE),
        (DoneDelta, StreamDone(finish_reason="tool_calls")),
        (
            ErrorDelta,
            StreamError(error_code="ModelOverloaded", message="busy", retryable=True, retry_after=2.0),
        ),
    ]
    return {
        cls.kind: cls(run_id=RUN, seq=number, payload=payload, timestamp=NOW)
        for number, (cls, payload) in enumerate(chunks, start=1)
    }


DELTAS: Examples = _deltas()

PAYLOADS: list[EntryPayload] = [
    SessionHeader(schema_version=1, title="Sums", metadata={"team": "maths"}),
    BranchSummary(
        from_session_id="s_main", from_entry_id="entry_000007", from_seq=7, summary="before the port moved"
    ),
    SystemPrompt(text="You add numbers."),
    RuntimeInit(data={"cwd": "/work", "platform": "linux"}),
    ToolsChange(tools=[ADD]),
    ModelChange(target=TARGET, reason="the plan role"),
    RunStarted(
        limits=LoopLimits(max_iterations=20),
        tool_policy=ToolPolicy(max_parallel=4),
        retry=RetryPolicy(),
        agent_name="adder",
        tool_choice=SpecificTool(name="add"),
    ),
    ModelInput(message=ASKED, sections=SECTIONS),
    ModelCallStarted(
        model_call_index=1,
        attempt=1,
        context_hash=DIGEST,
        target=TARGET,
        message_count=1,
        reason="first in order",
        estimated_tokens=1190,
    ),
    ModelCallFailed(model_call_index=1, attempt=1, error=ERROR, shown=3, retry_in_ms=2000, partial="1 + 2"),
    DeltaBatch(
        model_call_index=1,
        attempt=2,
        deltas=[{"kind": "text", "runId": RUN, "seq": 2, "payload": {"textDelta": "Hi"}, "timestamp": NOW}],
    ),
    ModelOutput(
        message=CALLED,
        invocation=TARGET,
        model_call_index=1,
        attempt=2,
        finish_reason="tool_calls",
        wire_hash=DIGEST,
    ),
    ApprovalRequested(
        tool_call_id=CALL,
        tool_name="add",
        arguments={"a": 1, "b": 2},
        digest=DIGEST,
        reason="asks by default",
        sandbox="workspace",
    ),
    ApprovalDecided(
        tool_call_id=CALL,
        digest=DIGEST,
        action="modify",
        decided_by="ada",
        arguments={"a": 1, "b": 3},
        note="3",
    ),
    ToolStarted(
        tool_call_id=CALL,
        tool_name="add",
        idempotency_key="s_sums:call_0001",
        args_digest=DIGEST,
        arguments={"a": 1, "b": 3},
    ),
    ToolResults(
        message=RESULT,
        outcomes=[ToolOutcome(tool_call_id=CALL, tool_name="add", status="success", elapsed_ms=12)],
    ),
    WidgetEvent(widget="notebook", event="note_added", data={"id": 1, "text": "port 8080 is taken"}),
    Fold(
        reason="budget",
        tokens_before=180000,
        tokens_after=60000,
        items=[FoldItem(entry_id="entry_000008", grain="gist")],
        segments=[FoldSegment(first_entry_id="entry_000003", last_entry_id="entry_000006", text="set up")],
    ),
    CompactionSummary(first_kept_entry_id="entry_000012", summary="The user adds numbers.", usage=USAGE),
    Redaction(entry_ids=["entry_000008"], reason="a phone number", by="ada"),
    Purge(entry_ids=["entry_000008"], reason="a phone number", by="ada"),
    Custom(name="billing.note", data={"invoice": 17}),
    ToolDeferred(
        tool_call_id="call_0002",
        tool_name="ask_ada",
        reason="Ada has to look it up",
        question="Which port is free?",
        answer_schema={"type": "integer"},
        by="ada",
    ),
    ToolAnswered(tool_call_id="call_0002", tool_name="ask_ada", content=8080, by="ada"),
    RunEnded(status="completed", usage=USAGE, final_entry_id="entry_000012"),
]


def _entries() -> Examples:
    """A log of one entry of each kind, chained like any other."""
    made: Examples = {}
    previous: Sealed | None = None
    for seq, payload in enumerate(PAYLOADS, start=1):
        sealed = seal(
            payload,
            id=f"entry_{seq:06d}",
            previous_id=previous.entry.id if previous else None,
            previous_hash=previous.entry.hash if previous else "",
            session_id="s_sums",
            seq=seq,
            timestamp=NOW,
            run_id=RUN if seq > 6 else None,
        )
        made[sealed.entry.kind] = sealed.entry
        previous = sealed
    return made


ENTRIES: Examples = _entries()


def _events() -> Examples:
    shown: list[tuple[Any, dict[str, Any]]] = [
        (events.StatusChanged, {"status": "preparing", "previous": "idle"}),
        (events.InputAdded, {"entry_id": "entry_000008", "message": ASKED}),
        (
            events.ModelCalled,
            {
                "entry_id": "entry_000009",
                "model_call_index": 1,
                "attempt": 1,
                "target": TARGET,
                "context_hash": DIGEST,
            },
        ),
        (events.TextDelta, {"model_call_index": 1, "attempt": 1, "delta": DELTAS["text"]}),
        (events.Retracted, {"model_call_index": 1, "attempt": 1, "reason": "ModelOverloaded"}),
        (events.ErrorShown, {"error": ERROR, "will_retry": True, "retry_in_ms": 2000}),
        (
            events.AnswerAdded,
            {"entry_id": "entry_000012", "message": CALLED, "finish_reason": "tool_calls"},
        ),
        (
            events.ApprovalRequested,
            {
                "entry_id": "entry_000013",
                "tool_call_id": CALL,
                "tool_name": "add",
                "arguments": {"a": 1, "b": 2},
                "digest": DIGEST,
                "reason": "asks by default",
            },
        ),
        (
            events.ApprovalDecided,
            {"entry_id": "entry_000014", "tool_call_id": CALL, "action": "modify", "decided_by": "ada"},
        ),
        (events.ToolStarted, {"entry_id": "entry_000015", "tool_call_id": CALL, "tool_name": "add"}),
        (events.ToolProgressed, {"tool_call_id": CALL, "tool_name": "add", "text": "adding…"}),
        (
            events.ToolFinished,
            {
                "entry_id": "entry_000016",
                "tool_call_id": CALL,
                "tool_name": "add",
                "status": "success",
                "message": RESULT,
            },
        ),
        (
            events.ContextFolded,
            {"entry_id": "entry_000018", "reason": "budget", "tokens_before": 180000, "tokens_after": 60000},
        ),
        (
            events.ToolDeferred,
            {
                "entry_id": "entry_000023",
                "tool_call_id": "call_0002",
                "tool_name": "ask_ada",
                "reason": "Ada has to look it up",
                "question": "Which port is free?",
                "answer_schema": {"type": "integer"},
                "by": "ada",
            },
        ),
        (
            events.RunEnded,
            {
                "result": RunResult(
                    session_id="s_sums",
                    run_id=RUN,
                    status="completed",
                    final_assistant_message=ANSWERED,
                    usage=USAGE,
                )
            },
        ),
    ]
    return {
        cls.kind: cls(seq=seq, session_id="s_sums", run_id=RUN, timestamp=NOW, **fields)
        for seq, (cls, fields) in enumerate(shown, start=1)
    }


EVENTS: Examples = _events()

VALUES: Examples = {
    "TokenUsage": USAGE,
    "ErrorInfo": ERROR,
    "LevelOfDetailSections": SECTIONS,
    "ModelInvocationDescriptor": TARGET,
    "ToolSpec": ADD,
    "SpecificTool": SpecificTool(name="add"),
    "ToolOutcome": ToolOutcome(
        tool_call_id=CALL, tool_name="add", status="success", elapsed_ms=12, sections=SECTIONS, usage=USAGE
    ),
    "FoldItem": FoldItem(entry_id="entry_000016", grain="summary", tool_call_id=CALL, text="3"),
    "FoldSegment": FoldSegment(first_entry_id="entry_000003", last_entry_id="entry_000006", text="set up"),
    "LoopLimits": LoopLimits(max_iterations=20, max_tokens=100000, max_cost=1.5),
    "ToolPolicy": ToolPolicy(allow_list=["add"], max_parallel=4),
    "RecordedLimits": RecordedLimits(max_iterations=20, max_repeated_failures=5, warn_repeated_failures=3),
    "RecordedPolicy": RecordedPolicy(max_parallel=8),
    "RetryPolicy": RetryPolicy(max_attempts=6),
    "ToolCallRequest": ToolCallRequest(
        tool_name="add", tool_call_id=CALL, raw_arguments='{"a": 1, "b": 2}', arguments={"a": 1, "b": 2}
    ),
    "ToolCallResult": ToolCallResult(
        tool_name="add", tool_call_id=CALL, status="success", result=[("", "3")], elapsed=0.012
    ),
    "RequestMetadata": RequestMetadata(session_id="s_sums", run_id=RUN, model_call_index=2),
    "Rerun": Rerun(source="s_sums", at=12, result="4"),
    "RunInput": RunInput(
        session_id="s_sums",
        run_id=RUN,
        input_messages=[ASKED],
        allowed_tools=["add"],
        trace_id="4bf92f35",
        role="plan",
        system_prompt_content=[text_part("You add numbers.")],
    ),
    "RunResult": RunResult(
        session_id="s_sums",
        run_id=RUN,
        status="completed",
        final_assistant_message=ANSWERED,
        usage=USAGE,
        finish_reason="stop",
        output_value={"sum": 3},
    ),
}
