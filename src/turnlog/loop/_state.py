"""Where a run stands, folded from the log. ``step`` is constant work per entry.

Everything the loop decides is decided from this, so pausing, crashing, resuming and replaying are the same
thing: reading the log and deciding again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from turnlog.contract import (
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    CustomEntry,
    DeltaBatchEntry,
    Entry,
    FoldEntry,
    ImagePart,
    Message,
    ModelCallFailed,
    ModelCallFailedEntry,
    ModelCallStarted,
    ModelCallStartedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEnded,
    RunEndedEntry,
    RunStarted,
    RunStartedEntry,
    RunStatus,
    RuntimeInitEntry,
    SessionHeaderEntry,
    SystemPromptEntry,
    TokenUsage,
    ToolCall,
    ToolResultPart,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolSpec,
    ToolStarted,
    ToolStartedEntry,
    WidgetEventEntry,
)


@dataclass(slots=True)
class CallState:
    """One call of the newest answer."""

    call: ToolCall
    parse_error: str | None = None
    requested: ApprovalRequested | None = None
    asked_in: str | None = None
    decided: ApprovalDecided | None = None
    decided_in: str | None = None
    started: ToolStarted | None = None
    asked_again: bool = False
    answered: bool = False

    @property
    def arguments(self) -> dict[str, object] | None:
        """What runs: the decision's arguments where a human changed them, else those that he was shown."""
        if self.decided is not None and self.decided.arguments is not None:
            return self.decided.arguments
        if self.requested is not None:
            return self.requested.arguments
        return self.call.arguments

    @property
    def may_have_run(self) -> bool:
        """It was started and nobody knows what came of it. A decision from before the start says nothing
        about that: only one that was asked for since then may let it run again."""
        settled = self.asked_again and self.decided is not None
        return self.started is not None and not self.answered and not settled

    @property
    def awaits_human(self) -> bool:
        return self.requested is not None and self.decided is None and not self.answered


@dataclass(slots=True)
class RunState:
    """The session's newest run, and what of the session outlives runs."""

    run_id: str | None = None
    started: RunStarted | None = None
    started_at: str = ""
    ended: RunEnded | None = None
    call_index: int = 0
    attempt: int = 0
    open_call: ModelCallStarted | None = None
    failure: ModelCallFailed | None = None
    folds_since_failure: int = 0
    overflow_steps: int = 0
    output: ModelOutputEntry | None = None
    calls: dict[str, CallState] = field(default_factory=dict[str, CallState])
    input_pending: bool = False
    tool_rounds: int = 0
    calls_started: int = 0
    usage: TokenUsage | None = None
    # of the session
    system_prompt: str | None = None
    tools: list[ToolSpec] | None = None
    runtime_data: dict[str, object] | None = None
    target: ModelInvocationDescriptor | None = None
    has_header: bool = False
    has_folds: bool = False
    has_artifacts: bool = False
    has_images: bool = False
    last_answer_at: str | None = None

    @property
    def is_open(self) -> bool:
        return self.run_id is not None and self.ended is None

    @property
    def open_calls(self) -> list[CallState]:
        return [call for call in self.calls.values() if not call.answered]

    @property
    def awaiting(self) -> list[CallState]:
        return [call for call in self.calls.values() if call.awaits_human]

    @property
    def status(self) -> RunStatus:
        """The state as a watcher would name it, from the log alone."""
        if self.run_id is None:
            return "idle"
        if self.ended is not None:
            return self.ended.status
        if self.awaiting and all(call.awaits_human for call in self.open_calls):
            return "awaiting_human"
        if self.open_calls:
            return "tool_running"
        return "model_running" if self.call_index else "preparing"

    def step(self, entry: Entry) -> None:
        match entry:  # the kinds that make up a log's bulk come first
            case ModelCallStartedEntry():
                self._call_started(entry.payload)
            case ModelOutputEntry():
                self._answered(entry)
            case ToolStartedEntry():
                self._tool_started(entry.payload)
            case RunStartedEntry():
                self._begin(entry)
            case RunEndedEntry():
                self.ended = entry.payload
                self.open_call = None
            case ModelInputEntry():
                self.input_pending = True
                self._note_images(entry.payload.message)
            case ModelCallFailedEntry():
                self._call_failed(entry.payload)
            case ToolResultsEntry():
                self._note_images(entry.payload.message)
                for outcome in entry.payload.outcomes:
                    self.has_artifacts = self.has_artifacts or outcome.artifact is not None
                    if call := self.calls.get(outcome.tool_call_id):
                        call.answered = True
            case ApprovalRequestedEntry():
                if call := self.calls.get(entry.payload.tool_call_id):
                    call.requested, call.asked_in, call.decided = entry.payload, entry.session_id, None
                    call.asked_again = call.started is not None
            case ApprovalDecidedEntry():
                if call := self.calls.get(entry.payload.tool_call_id):
                    call.decided, call.decided_in = entry.payload, entry.session_id
            case FoldEntry():
                self.folds_since_failure += 1
                self.has_folds = True
            case ToolsChangeEntry():
                self.tools = entry.payload.tools
            case SystemPromptEntry():
                self.system_prompt = entry.payload.text
            case RuntimeInitEntry():
                self.runtime_data = entry.payload.data
            case ModelChangeEntry():
                self.target = entry.payload.target
            case SessionHeaderEntry():
                self.has_header = True
            case CompactionSummaryEntry():
                if self.is_open:
                    self._count(entry.payload.usage)
            case (
                BranchSummaryEntry()
                | RedactionEntry()
                | PurgeEntry()
                | DeltaBatchEntry()
                | CustomEntry()
                | WidgetEventEntry()
            ):
                pass

    def _note_images(self, message: Message) -> None:
        self.has_images = self.has_images or may_hold_images(message)

    def _begin(self, entry: RunStartedEntry) -> None:
        self.run_id = entry.run_id
        self.started = entry.payload
        self.started_at = entry.timestamp
        self.ended = None
        self.call_index = self.attempt = 0
        self.open_call = self.failure = self.output = self.usage = None
        self.folds_since_failure = self.overflow_steps = 0
        self.calls = {}
        self.input_pending = False
        self.tool_rounds = self.calls_started = 0

    def _call_started(self, started: ModelCallStarted) -> None:
        if started.model_call_index != self.call_index:
            self.overflow_steps = 0
        self.call_index = started.model_call_index
        self.attempt = started.attempt
        self.open_call = started
        self.failure = None
        self.input_pending = False
        self.target = started.target

    def _call_failed(self, failed: ModelCallFailed) -> None:
        self.failure = failed
        self.open_call = None
        self.folds_since_failure = 0
        if failed.error.code == "ModelContextOverflow":
            self.overflow_steps += 1
        self._count(failed.usage)

    def _answered(self, entry: ModelOutputEntry) -> None:
        message = entry.payload.message
        errors = (message.meta or {}).get("parse_errors", {})
        self.output = entry
        self.last_answer_at = entry.timestamp
        self.open_call = self.failure = None
        self.overflow_steps = 0
        self.calls = {
            part.payload.tool_call_id: CallState(part.payload, errors.get(part.payload.tool_call_id))
            for part in message.tool_calls
        }
        if self.calls:
            self.tool_rounds += 1
        self._count(usage_of(entry))

    def _count(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    def _tool_started(self, started: ToolStarted) -> None:
        if call := self.calls.get(started.tool_call_id):
            if call.started is None:
                self.calls_started += 1
            call.started = started
            call.asked_again = False


def may_hold_images(message: Message) -> bool:
    return any(
        isinstance(part, ImagePart)
        or (isinstance(part, ToolResultPart) and isinstance(part.payload.content, list))
        for part in message.parts
    )


def usage_of(entry: ModelOutputEntry) -> TokenUsage | None:
    """What an answer's message says it cost."""
    raw = (entry.payload.message.meta or {}).get("usage")
    return msgspec.convert(raw, TokenUsage) if raw else None
