"""Where a run stands, folded from the log. ``step`` is constant work per entry.

Everything the loop decides is decided from this, so pausing, crashing, resuming and replaying are the same
thing: reading the log and deciding again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from turnlog.contract import (
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    CompactionSummaryEntry,
    Entry,
    FoldEntry,
    Message,
    ModelCallFailed,
    ModelCallFailedEntry,
    ModelCallStarted,
    ModelCallStartedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
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
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolSpec,
    ToolStarted,
    ToolStartedEntry,
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
    def is_due(self) -> bool:
        """A human let it run, and since then it has not."""
        allowed = self.decided is not None and self.decided.action in ("approve", "modify")
        return allowed and not self.answered and (self.started is None or self.asked_again)

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

    def take(self, entries: Sequence[Entry]) -> None:
        """``step`` for a whole log. Of runs that are over only what outlives them is looked at, and of the
        newest run's calls those of its newest answer."""
        run, answer = _newest(entries, "run_started"), _newest(entries, "model_output")
        for steps, part in (
            (OUTLIVING, islice(entries, run)),
            (COUNTED, islice(entries, run, max(run, answer))),
            (STEPS, islice(entries, max(run, answer), None)),
        ):
            for entry in part:
                step = steps[entry.kind]
                if step is not None:
                    step(self, entry)

    def step(self, entry: Entry) -> None:
        step = STEPS[entry.kind]
        if step is not None:
            step(self, entry)

    def _end(self, entry: RunEndedEntry) -> None:
        self.ended = entry.payload
        self.open_call = None

    def _take_input(self, entry: ModelInputEntry) -> None:
        self.input_pending = True
        self.has_images = self.has_images or may_hold_images(entry.payload.message)

    def _take_results(self, entry: ToolResultsEntry) -> None:
        self.has_images = self.has_images or may_hold_images(entry.payload.message)
        for outcome in entry.payload.outcomes:
            if outcome.artifact is not None:
                self.has_artifacts = True
            if call := self.calls.get(outcome.tool_call_id):
                call.answered = True

    def _ask(self, entry: ApprovalRequestedEntry) -> None:
        if call := self.calls.get(entry.payload.tool_call_id):
            call.requested, call.asked_in, call.decided = entry.payload, entry.session_id, None
            call.asked_again = call.started is not None

    def _decide(self, entry: ApprovalDecidedEntry) -> None:
        if call := self.calls.get(entry.payload.tool_call_id):
            call.decided, call.decided_in = entry.payload, entry.session_id

    def _fold(self, entry: FoldEntry) -> None:
        self.folds_since_failure += 1
        self.has_folds = True

    def _set_tools(self, entry: ToolsChangeEntry) -> None:
        self.tools = entry.payload.tools

    def _set_prompt(self, entry: SystemPromptEntry) -> None:
        self.system_prompt = entry.payload.text

    def _set_runtime(self, entry: RuntimeInitEntry) -> None:
        self.runtime_data = entry.payload.data

    def _set_target(self, entry: ModelChangeEntry) -> None:
        self.target = entry.payload.target

    def _take_header(self, entry: SessionHeaderEntry) -> None:
        self.has_header = True

    def _take_recap(self, entry: CompactionSummaryEntry) -> None:
        if self.is_open:
            self._count(entry.payload.usage)

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

    def _call_started(self, entry: ModelCallStartedEntry) -> None:
        started = entry.payload
        if started.model_call_index != self.call_index:
            self.overflow_steps = 0
        self.call_index = started.model_call_index
        self.attempt = started.attempt
        self.open_call = started
        self.failure = None
        self.input_pending = False
        self.target = started.target

    def _was_called(self, entry: ModelCallStartedEntry) -> None:
        self.target = entry.payload.target

    def _was_answered(self, entry: ModelOutputEntry) -> None:
        self.last_answer_at = entry.timestamp

    def _count_answer(self, entry: ModelOutputEntry) -> None:
        message = entry.payload.message
        self.tool_rounds += bool(message.tool_calls)
        if message.meta:
            self._count(usage_of(entry))

    def _count_start(self, entry: ToolStartedEntry) -> None:
        # Before this run's first calls it can only be one that was open when the run began.
        self.calls_started += self.tool_rounds > 0 and entry.payload.attempt == 1

    def _call_failed(self, entry: ModelCallFailedEntry) -> None:
        failed = entry.payload
        self.failure = failed
        self.open_call = None
        self.folds_since_failure = 0
        if failed.error.code == "ModelContextOverflow":
            self.overflow_steps += 1
        self._count(failed.usage)

    def _answered(self, entry: ModelOutputEntry) -> None:
        message = entry.payload.message
        errors: dict[str, str] = message.meta.get("parse_errors", {}) if message.meta else {}
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
        if message.meta:
            self._count(usage_of(entry))

    def _count(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    def _tool_started(self, entry: ToolStartedEntry) -> None:
        started = entry.payload
        if call := self.calls.get(started.tool_call_id):
            if call.started is None:
                self.calls_started += 1
            call.started = started
            call.asked_again = False


def may_hold_images(message: Message) -> bool:
    for part in message.parts:
        if part.kind == "image" or (part.kind == "tool_result" and isinstance(part.payload.content, list)):
            return True
    return False


def usage_of(entry: ModelOutputEntry) -> TokenUsage | None:
    """What an answer's message says it cost."""
    raw = (entry.payload.message.meta or {}).get("usage")
    return msgspec.convert(raw, TokenUsage) if raw else None


# The private names are the class's own: this table is the body of ``step``.
# pyright: reportPrivateUsage=false
STEPS: dict[str, Callable[[RunState, Any], None] | None] = {
    "session_header": RunState._take_header,
    "run_started": RunState._begin,
    "run_ended": RunState._end,
    "model_input": RunState._take_input,
    "model_call_started": RunState._call_started,
    "model_call_failed": RunState._call_failed,
    "model_output": RunState._answered,
    "tools_change": RunState._set_tools,
    "tool_started": RunState._tool_started,
    "tool_deferred": None,
    "tool_results": RunState._take_results,
    "approval_requested": RunState._ask,
    "approval_decided": RunState._decide,
    "model_change": RunState._set_target,
    "runtime_init": RunState._set_runtime,
    "system_prompt": RunState._set_prompt,
    "widget_event": None,
    "fold": RunState._fold,
    "compaction_summary": RunState._take_recap,
    "branch_summary": None,
    "redaction": None,
    "purge": None,
    "delta_batch": None,
    "custom": None,
}
"""What each kind does. A table and not a match: a long log goes through it entry by entry."""

OUTLIVING: dict[str, Callable[[RunState, Any], None] | None] = {
    **dict.fromkeys(STEPS),
    "session_header": RunState._take_header,
    "model_input": RunState._take_input,
    "model_call_started": RunState._was_called,
    "model_output": RunState._was_answered,
    "tools_change": RunState._set_tools,
    "tool_results": RunState._take_results,
    "model_change": RunState._set_target,
    "runtime_init": RunState._set_runtime,
    "system_prompt": RunState._set_prompt,
    "fold": RunState._fold,
}
"""What is left of an entry once a later run has begun, which sets back all that is a run's own."""

COUNTED: dict[str, Callable[[RunState, Any], None] | None] = {
    **STEPS,
    "model_output": RunState._count_answer,
    "tool_started": RunState._count_start,
    "approval_requested": None,
    "approval_decided": None,
}
"""What is left of an entry once a later answer of the same run has come, which brings calls of its own."""


def _newest(entries: Sequence[Entry], kind: str) -> int:
    """Where the newest entry of ``kind`` is; 0 when there is none."""
    for place in range(len(entries) - 1, -1, -1):
        if entries[place].kind == kind:
            return place
    return 0
