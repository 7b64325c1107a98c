"""The records of a log: for each kind what it holds, and the envelope that gives it place, time and hash.

Named as past facts; closed set, frozen by golden files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, get_args

from msgspec.structs import force_setattr

from ._base import JsonObject, P, Seq, Value, payload_type
from .errors import ErrorInfo
from .messages import Grain, LevelOfDetailSections, Message, TextPart
from .run import (
    LoopLimits,
    ModelInvocationDescriptor,
    OutputMode,
    Rerun,
    RetryPolicy,
    TokenUsage,
    ToolCallResult,
    ToolChoice,
    ToolPolicy,
    ToolSpec,
    ToolStatus,
)


class _Entry(Value, Generic[P], frozen=True, kw_only=True, tag_field="kind"):
    """``parent_id`` is the entry before; ``purged_digest`` is there once the content was erased,
    ``trimmed_digest`` once a copy of purged content was cut out and the rest stayed: both are digests of
    what was there."""

    id: str
    parent_id: str | None = None
    session_id: str
    seq: int
    timestamp: str
    run_id: str | None = None
    payload: P
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class SessionHeader(Value, frozen=True, kw_only=True):
    schema_version: int
    title: str | None = None
    metadata: JsonObject | None = None
    parent_session_id: str | None = None
    parent_tool_call_id: str | None = None


class SessionHeaderEntry(_Entry[SessionHeader], frozen=True, tag="session_header"):
    kind: ClassVar[Literal["session_header"]] = "session_header"


class RecordedPolicy(ToolPolicy, frozen=True, kw_only=True):
    """A ``ToolPolicy`` in a log. Older logs leave ``max_parallel`` out for 1, which was the default."""

    max_parallel: int = 1


class RecordedLimits(LoopLimits, frozen=True, kw_only=True):
    """``LoopLimits`` in a log. The runs of older logs counted no repeated failures."""

    max_repeated_failures: int | None = None
    warn_repeated_failures: int = 0


if TYPE_CHECKING:  # a run's own may be given: they are recorded as such
    _Limits: TypeAlias = LoopLimits
    _Policy: TypeAlias = ToolPolicy
else:
    _Limits, _Policy = RecordedLimits, RecordedPolicy


class RunStarted(Value, frozen=True, kw_only=True):
    """What the loop's decisions depend on, so that replay decides the same.

    ``widgets`` names those on the LiveScreen in their order; absent where they are at most ``notebook`` and
    ``todo``, in this order. ``output_mode`` says how the structured output is had; absent where the answer is
    not checked. ``output_field`` is the field of the answer that holds it, where it is no object itself.
    """

    limits: _Limits
    tool_policy: _Policy
    retry: RetryPolicy
    agent_name: str | None = None
    allowed_tools: list[str] | None = None
    tool_order: list[str] | None = None
    tool_choice: ToolChoice | None = None
    system_prompt_override: str | None = None
    model_params: JsonObject | None = None
    output_schema: JsonObject | None = None
    output_mode: OutputMode | None = None
    output_field: str | None = None
    widgets: list[str] | None = None
    role: str | None = None
    trace_id: str | None = None
    invocation_state: JsonObject | None = None
    system_prompt_content: list[TextPart] | None = None
    rerun: Rerun | None = None

    def __post_init__(self) -> None:
        for name, recorded in (("limits", RecordedLimits), ("tool_policy", RecordedPolicy)):
            given = getattr(self, name)
            if not isinstance(given, recorded):
                fields = {field: getattr(given, field) for field in recorded.__struct_fields__}
                force_setattr(self, name, recorded(**fields))


class RunStartedEntry(_Entry[RunStarted], frozen=True, tag="run_started"):
    kind: ClassVar[Literal["run_started"]] = "run_started"


class RunEnded(Value, frozen=True, kw_only=True):
    status: Literal["completed", "failed", "aborted"]
    error: ErrorInfo | None = None
    usage: TokenUsage | None = None
    final_entry_id: str | None = None


class RunEndedEntry(_Entry[RunEnded], frozen=True, tag="run_ended"):
    kind: ClassVar[Literal["run_ended"]] = "run_ended"


class ModelInput(Value, frozen=True, kw_only=True):
    """``sections`` holds the lower grains and what was added to the live one; ``live`` sections here come
    after the message's own parts. ``authored`` says that a grain was given with the input."""

    message: Message
    sections: LevelOfDetailSections | None = None
    source: Literal["user", "steering", "correction", "host"] = "user"
    authored: bool | None = None


class ModelInputEntry(_Entry[ModelInput], frozen=True, tag="model_input"):
    kind: ClassVar[Literal["model_input"]] = "model_input"


class ModelCallStarted(Value, frozen=True, kw_only=True):
    """``window`` is that of the target in tokens, where its server was asked and told it."""

    model_call_index: int
    attempt: int
    context_hash: str
    target: ModelInvocationDescriptor
    message_count: int
    reason: str | None = None
    estimated_tokens: int | None = None
    window: int | None = None


class ModelCallStartedEntry(_Entry[ModelCallStarted], frozen=True, tag="model_call_started"):
    kind: ClassVar[Literal["model_call_started"]] = "model_call_started"


class ModelCallFailed(Value, frozen=True, kw_only=True):
    """``shown`` is how many content deltas had reached the caller, ``partial`` the text in them;
    ``retry_in_ms`` says what came next."""

    model_call_index: int
    attempt: int
    error: ErrorInfo
    shown: int = 0
    retry_in_ms: int | None = None
    usage: TokenUsage | None = None
    partial: str | None = None


class ModelCallFailedEntry(_Entry[ModelCallFailed], frozen=True, tag="model_call_failed"):
    kind: ClassVar[Literal["model_call_failed"]] = "model_call_failed"


class ModelOutput(Value, frozen=True, kw_only=True):
    """``wire_hash`` is the context hash the answer was made on: thinking is replayed only while it holds."""

    message: Message
    invocation: ModelInvocationDescriptor
    model_call_index: int
    attempt: int
    finish_reason: str
    wire_hash: str | None = None


class ModelOutputEntry(_Entry[ModelOutput], frozen=True, tag="model_output"):
    kind: ClassVar[Literal["model_output"]] = "model_output"


class ToolsChange(Value, frozen=True, kw_only=True):
    """The tools offered from here on, in order."""

    tools: list[ToolSpec]


class ToolsChangeEntry(_Entry[ToolsChange], frozen=True, tag="tools_change"):
    kind: ClassVar[Literal["tools_change"]] = "tools_change"


class ToolStarted(Value, frozen=True, kw_only=True):
    """Committed before the tool's body runs. ``arguments`` only when they differ from the call's own,
    ``changed_by`` the hook that changed them; ``child_session_id`` names the session in which another agent
    does the work."""

    tool_call_id: str
    tool_name: str
    idempotency_key: str
    args_digest: str
    attempt: int = 1
    arguments: JsonObject | None = None
    child_session_id: str | None = None
    changed_by: str | None = None


class ToolStartedEntry(_Entry[ToolStarted], frozen=True, tag="tool_started"):
    kind: ClassVar[Literal["tool_started"]] = "tool_started"


class ToolDeferred(Value, frozen=True, kw_only=True):
    """The tool ran and its answer comes later, from outside: the call stays open until a result is appended.

    ``question`` is put to the person or system that answers, ``answer_schema`` is the form of the answer,
    ``by`` names who is to give it. With ``state`` the answer is no result: the tool is run again with it.
    """

    tool_call_id: str
    tool_name: str
    reason: str
    question: str | None = None
    answer_schema: JsonObject | None = None
    by: str | None = None
    state: JsonObject | None = None


class ToolDeferredEntry(_Entry[ToolDeferred], frozen=True, tag="tool_deferred"):
    kind: ClassVar[Literal["tool_deferred"]] = "tool_deferred"


class ToolAnswered(Value, frozen=True, kw_only=True):
    """What a tool asked for in a ``tool_deferred`` with a state was given, or ``declined``: the call is run
    again with it, and has no result yet."""

    tool_call_id: str
    tool_name: str
    content: Any = None
    declined: bool | None = None
    by: str | None = None


class ToolAnsweredEntry(_Entry[ToolAnswered], frozen=True, tag="tool_answered"):
    kind: ClassVar[Literal["tool_answered"]] = "tool_answered"


class ToolOutcome(Value, frozen=True, kw_only=True):
    """Beside a result in the message: how it went, and its lower grains.

    ``authored`` says that the tool's author gave a grain; ``artifact`` names the blob that holds the whole
    output where the message shows a part of it. ``traceback`` is for people and never reaches a model;
    ``usage`` is what the tool itself spent on models; ``ends_run`` says that nothing is asked after it,
    ``handed_to`` that the agent of this name answers from here on.
    """

    tool_call_id: str
    tool_name: str
    status: ToolStatus
    elapsed_ms: int | None = None
    error_code: str | None = None
    sections: LevelOfDetailSections | None = None
    authored: bool | None = None
    artifact: str | None = None
    traceback: str | None = None
    usage: TokenUsage | None = None
    ends_run: bool | None = None
    handed_to: str | None = None


class ToolResults(Value, frozen=True, kw_only=True):
    """One or more results of open calls; ``outcomes`` lines up with the message's parts."""

    message: Message
    outcomes: list[ToolOutcome]
    execute_error: str | None = None


class ToolResultsEntry(_Entry[ToolResults], frozen=True, tag="tool_results"):
    kind: ClassVar[Literal["tool_results"]] = "tool_results"


class ApprovalRequested(Value, frozen=True, kw_only=True):
    """``digest`` binds the decision to session, call, tool, arguments, sandbox level and, where it is there,
    the hash of the tool's ``definition``. ``changed_by`` is the hook that changed the arguments before."""

    tool_call_id: str
    tool_name: str
    arguments: JsonObject
    digest: str
    reason: str | None = None
    expires_at: str | None = None
    sandbox: str | None = None
    definition: str | None = None
    changed_by: str | None = None


class ApprovalRequestedEntry(_Entry[ApprovalRequested], frozen=True, tag="approval_requested"):
    kind: ClassVar[Literal["approval_requested"]] = "approval_requested"


class ApprovalDecided(Value, frozen=True, kw_only=True):
    """``arguments`` are what runs instead, kept beside the original ones."""

    tool_call_id: str
    digest: str
    action: Literal["approve", "deny", "modify", "abort", "expire"]
    decided_by: str
    arguments: JsonObject | None = None
    note: str | None = None


class ApprovalDecidedEntry(_Entry[ApprovalDecided], frozen=True, tag="approval_decided"):
    kind: ClassVar[Literal["approval_decided"]] = "approval_decided"


class ModelChange(Value, frozen=True, kw_only=True):
    target: ModelInvocationDescriptor
    previous: ModelInvocationDescriptor | None = None
    reason: str | None = None


class ModelChangeEntry(_Entry[ModelChange], frozen=True, tag="model_change"):
    kind: ClassVar[Literal["model_change"]] = "model_change"


class RuntimeInit(Value, frozen=True, kw_only=True):
    data: JsonObject


class RuntimeInitEntry(_Entry[RuntimeInit], frozen=True, tag="runtime_init"):
    kind: ClassVar[Literal["runtime_init"]] = "runtime_init"


class SystemPrompt(Value, frozen=True, kw_only=True):
    text: str


class SystemPromptEntry(_Entry[SystemPrompt], frozen=True, tag="system_prompt"):
    kind: ClassVar[Literal["system_prompt"]] = "system_prompt"


class WidgetEvent(Value, frozen=True, kw_only=True):
    widget: str
    event: str
    data: JsonObject
    tool_call_id: str | None = None


class WidgetEventEntry(_Entry[WidgetEvent], frozen=True, tag="widget_event"):
    kind: ClassVar[Literal["widget_event"]] = "widget_event"


class FoldItem(Value, frozen=True, kw_only=True):
    """One entry's new grain. ``text`` is stored where the entry itself does not carry it."""

    entry_id: str
    grain: Grain
    tool_call_id: str | None = None
    text: str | None = None


class FoldSegment(Value, frozen=True, kw_only=True):
    """A stretch of entries that became one text."""

    first_entry_id: str
    last_entry_id: str
    text: str


class Fold(Value, frozen=True, kw_only=True):
    """``screen`` is the whole LiveScreen: what showed it before may have been folded away."""

    reason: str
    tokens_before: int
    tokens_after: int
    items: list[FoldItem]
    segments: Seq[FoldSegment] = ()
    replaced_segments: Seq[str] = ()
    step: int | None = None
    screen: str | None = None

    def __post_init__(self) -> None:
        # An empty tuple is left out on the wire, also once it is frozen.
        force_setattr(self, "segments", tuple(self.segments))
        force_setattr(self, "replaced_segments", tuple(self.replaced_segments))


class FoldEntry(_Entry[Fold], frozen=True, tag="fold"):
    kind: ClassVar[Literal["fold"]] = "fold"


class CompactionSummary(Value, frozen=True, kw_only=True):
    first_kept_entry_id: str
    summary: str
    model: ModelInvocationDescriptor | None = None
    usage: TokenUsage | None = None


class CompactionSummaryEntry(_Entry[CompactionSummary], frozen=True, tag="compaction_summary"):
    kind: ClassVar[Literal["compaction_summary"]] = "compaction_summary"


class BranchSummary(Value, frozen=True, kw_only=True):
    from_session_id: str
    from_entry_id: str
    from_seq: int
    summary: str | None = None


class BranchSummaryEntry(_Entry[BranchSummary], frozen=True, tag="branch_summary"):
    kind: ClassVar[Literal["branch_summary"]] = "branch_summary"


class Redaction(Value, frozen=True, kw_only=True):
    """Hides the named entries from every view, export and future context.

    ``trimmed``: of other entries, copies of the content are hidden: the digest of what stays of each.
    """

    entry_ids: list[str]
    reason: str | None = None
    by: str | None = None
    trimmed: dict[str, str] | None = None


class RedactionEntry(_Entry[Redaction], frozen=True, tag="redaction"):
    kind: ClassVar[Literal["redaction"]] = "redaction"


class Purge(Value, frozen=True, kw_only=True):
    """The named entries' content was erased from the store's files; their digests keep the chain.

    ``trimmed``: out of other entries copies of the content were cut: the digest of what stays of each, which
    is how the chain still covers it.
    """

    entry_ids: list[str]
    reason: str | None = None
    by: str | None = None
    trimmed: dict[str, str] | None = None


class PurgeEntry(_Entry[Purge], frozen=True, tag="purge"):
    kind: ClassVar[Literal["purge"]] = "purge"


class DeltaBatch(Value, frozen=True, kw_only=True):
    model_call_index: int
    attempt: int
    deltas: list[JsonObject]


class DeltaBatchEntry(_Entry[DeltaBatch], frozen=True, tag="delta_batch"):
    kind: ClassVar[Literal["delta_batch"]] = "delta_batch"


class Custom(Value, frozen=True, kw_only=True):
    """Anything a host wants to keep with the session. Never reaches a model."""

    name: str
    data: JsonObject


class CustomEntry(_Entry[Custom], frozen=True, tag="custom"):
    kind: ClassVar[Literal["custom"]] = "custom"


EntryPayload: TypeAlias = (
    SessionHeader
    | RunStarted
    | RunEnded
    | ModelInput
    | ModelCallStarted
    | ModelCallFailed
    | ModelOutput
    | ToolsChange
    | ToolStarted
    | ToolDeferred
    | ToolAnswered
    | ToolResults
    | ApprovalRequested
    | ApprovalDecided
    | ModelChange
    | RuntimeInit
    | SystemPrompt
    | WidgetEvent
    | Fold
    | CompactionSummary
    | BranchSummary
    | Redaction
    | Purge
    | DeltaBatch
    | Custom
)

Entry: TypeAlias = (
    SessionHeaderEntry
    | RunStartedEntry
    | RunEndedEntry
    | ModelInputEntry
    | ModelCallStartedEntry
    | ModelCallFailedEntry
    | ModelOutputEntry
    | ToolsChangeEntry
    | ToolStartedEntry
    | ToolDeferredEntry
    | ToolAnsweredEntry
    | ToolResultsEntry
    | ApprovalRequestedEntry
    | ApprovalDecidedEntry
    | ModelChangeEntry
    | RuntimeInitEntry
    | SystemPromptEntry
    | WidgetEventEntry
    | FoldEntry
    | CompactionSummaryEntry
    | BranchSummaryEntry
    | RedactionEntry
    | PurgeEntry
    | DeltaBatchEntry
    | CustomEntry
)

ENTRY_TYPES: dict[str, type[Entry]] = {entry.kind: entry for entry in get_args(Entry)}
"""Every kind and its class; the closed set of H-2."""

ENTRY_KINDS: tuple[str, ...] = tuple(ENTRY_TYPES)

PAYLOAD_KINDS: dict[type[EntryPayload], str] = {payload_type(entry): entry.kind for entry in get_args(Entry)}


def results_of(payload: ToolResults) -> list[ToolCallResult]:
    """The typed views of recorded results: the content of each as its first section."""
    return [
        ToolCallResult(
            tool_name=outcome.tool_name,
            tool_call_id=outcome.tool_call_id,
            status=outcome.status,
            result=[("", part.payload.text), *(outcome.sections.live if outcome.sections else [])],
            elapsed=None if outcome.elapsed_ms is None else outcome.elapsed_ms / 1000,
        )
        for part, outcome in zip(payload.message.tool_results, payload.outcomes, strict=True)
    ]
