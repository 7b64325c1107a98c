"""The envelope of a log record, one class per kind: place, time, content and hash."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from .._base import JsonObject, Value
from ._payloads import (
    ApprovalDecided,
    ApprovalRequested,
    BranchSummary,
    CompactionSummary,
    Custom,
    DeltaBatch,
    EntryPayload,
    Fold,
    ModelCallFailed,
    ModelCallStarted,
    ModelChange,
    ModelInput,
    ModelOutput,
    Purge,
    Redaction,
    RunEnded,
    RunStarted,
    RuntimeInit,
    SessionHeader,
    SystemPrompt,
    ToolResults,
    ToolsChange,
    ToolStarted,
    WidgetEvent,
)


class _Entry(Value, frozen=True, kw_only=True, tag_field="kind"):
    """``parent_id`` is the entry before; ``purged_digest`` is there once the content was erased,
    ``trimmed_digest`` once a copy of purged content was cut out and the rest stayed: both are digests of
    what was there."""

    id: str
    parent_id: str | None = None
    session_id: str
    seq: int
    timestamp: str
    run_id: str | None = None


class SessionHeaderEntry(_Entry, frozen=True, kw_only=True, tag="session_header"):
    kind: ClassVar[Literal["session_header"]] = "session_header"
    payload: SessionHeader
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class RunStartedEntry(_Entry, frozen=True, kw_only=True, tag="run_started"):
    kind: ClassVar[Literal["run_started"]] = "run_started"
    payload: RunStarted
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class RunEndedEntry(_Entry, frozen=True, kw_only=True, tag="run_ended"):
    kind: ClassVar[Literal["run_ended"]] = "run_ended"
    payload: RunEnded
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ModelInputEntry(_Entry, frozen=True, kw_only=True, tag="model_input"):
    kind: ClassVar[Literal["model_input"]] = "model_input"
    payload: ModelInput
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ModelCallStartedEntry(_Entry, frozen=True, kw_only=True, tag="model_call_started"):
    kind: ClassVar[Literal["model_call_started"]] = "model_call_started"
    payload: ModelCallStarted
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ModelCallFailedEntry(_Entry, frozen=True, kw_only=True, tag="model_call_failed"):
    kind: ClassVar[Literal["model_call_failed"]] = "model_call_failed"
    payload: ModelCallFailed
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ModelOutputEntry(_Entry, frozen=True, kw_only=True, tag="model_output"):
    kind: ClassVar[Literal["model_output"]] = "model_output"
    payload: ModelOutput
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ToolsChangeEntry(_Entry, frozen=True, kw_only=True, tag="tools_change"):
    kind: ClassVar[Literal["tools_change"]] = "tools_change"
    payload: ToolsChange
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ToolStartedEntry(_Entry, frozen=True, kw_only=True, tag="tool_started"):
    kind: ClassVar[Literal["tool_started"]] = "tool_started"
    payload: ToolStarted
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ToolResultsEntry(_Entry, frozen=True, kw_only=True, tag="tool_results"):
    kind: ClassVar[Literal["tool_results"]] = "tool_results"
    payload: ToolResults
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ApprovalRequestedEntry(_Entry, frozen=True, kw_only=True, tag="approval_requested"):
    kind: ClassVar[Literal["approval_requested"]] = "approval_requested"
    payload: ApprovalRequested
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ApprovalDecidedEntry(_Entry, frozen=True, kw_only=True, tag="approval_decided"):
    kind: ClassVar[Literal["approval_decided"]] = "approval_decided"
    payload: ApprovalDecided
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class ModelChangeEntry(_Entry, frozen=True, kw_only=True, tag="model_change"):
    kind: ClassVar[Literal["model_change"]] = "model_change"
    payload: ModelChange
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class RuntimeInitEntry(_Entry, frozen=True, kw_only=True, tag="runtime_init"):
    kind: ClassVar[Literal["runtime_init"]] = "runtime_init"
    payload: RuntimeInit
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class SystemPromptEntry(_Entry, frozen=True, kw_only=True, tag="system_prompt"):
    kind: ClassVar[Literal["system_prompt"]] = "system_prompt"
    payload: SystemPrompt
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class WidgetEventEntry(_Entry, frozen=True, kw_only=True, tag="widget_event"):
    kind: ClassVar[Literal["widget_event"]] = "widget_event"
    payload: WidgetEvent
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class FoldEntry(_Entry, frozen=True, kw_only=True, tag="fold"):
    kind: ClassVar[Literal["fold"]] = "fold"
    payload: Fold
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class CompactionSummaryEntry(_Entry, frozen=True, kw_only=True, tag="compaction_summary"):
    kind: ClassVar[Literal["compaction_summary"]] = "compaction_summary"
    payload: CompactionSummary
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class BranchSummaryEntry(_Entry, frozen=True, kw_only=True, tag="branch_summary"):
    kind: ClassVar[Literal["branch_summary"]] = "branch_summary"
    payload: BranchSummary
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class RedactionEntry(_Entry, frozen=True, kw_only=True, tag="redaction"):
    kind: ClassVar[Literal["redaction"]] = "redaction"
    payload: Redaction
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class PurgeEntry(_Entry, frozen=True, kw_only=True, tag="purge"):
    kind: ClassVar[Literal["purge"]] = "purge"
    payload: Purge
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class DeltaBatchEntry(_Entry, frozen=True, kw_only=True, tag="delta_batch"):
    kind: ClassVar[Literal["delta_batch"]] = "delta_batch"
    payload: DeltaBatch
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


class CustomEntry(_Entry, frozen=True, kw_only=True, tag="custom"):
    kind: ClassVar[Literal["custom"]] = "custom"
    payload: Custom
    meta: JsonObject | None = None
    purged_digest: str | None = None
    trimmed_digest: str | None = None
    hash: str


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

ENTRY_TYPES: dict[str, type[Entry]] = {
    "session_header": SessionHeaderEntry,
    "run_started": RunStartedEntry,
    "run_ended": RunEndedEntry,
    "model_input": ModelInputEntry,
    "model_call_started": ModelCallStartedEntry,
    "model_call_failed": ModelCallFailedEntry,
    "model_output": ModelOutputEntry,
    "tools_change": ToolsChangeEntry,
    "tool_started": ToolStartedEntry,
    "tool_results": ToolResultsEntry,
    "approval_requested": ApprovalRequestedEntry,
    "approval_decided": ApprovalDecidedEntry,
    "model_change": ModelChangeEntry,
    "runtime_init": RuntimeInitEntry,
    "system_prompt": SystemPromptEntry,
    "widget_event": WidgetEventEntry,
    "fold": FoldEntry,
    "compaction_summary": CompactionSummaryEntry,
    "branch_summary": BranchSummaryEntry,
    "redaction": RedactionEntry,
    "purge": PurgeEntry,
    "delta_batch": DeltaBatchEntry,
    "custom": CustomEntry,
}
"""Every kind and its class; the closed set of H-2."""

ENTRY_KINDS: tuple[str, ...] = tuple(ENTRY_TYPES)

PAYLOAD_KINDS: dict[type[EntryPayload], str] = {
    SessionHeader: "session_header",
    RunStarted: "run_started",
    RunEnded: "run_ended",
    ModelInput: "model_input",
    ModelCallStarted: "model_call_started",
    ModelCallFailed: "model_call_failed",
    ModelOutput: "model_output",
    ToolsChange: "tools_change",
    ToolStarted: "tool_started",
    ToolResults: "tool_results",
    ApprovalRequested: "approval_requested",
    ApprovalDecided: "approval_decided",
    ModelChange: "model_change",
    RuntimeInit: "runtime_init",
    SystemPrompt: "system_prompt",
    WidgetEvent: "widget_event",
    Fold: "fold",
    CompactionSummary: "compaction_summary",
    BranchSummary: "branch_summary",
    Redaction: "redaction",
    Purge: "purge",
    DeltaBatch: "delta_batch",
    Custom: "custom",
}
