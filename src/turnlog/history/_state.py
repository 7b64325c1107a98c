"""Where a session stands, folded from its log: the one state that appends are checked against, that the loop
decides from, and that every view is made of. ``step`` is constant work per entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from ..contract import (
    FINAL_ANSWER,
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    CompactionSummaryEntry,
    CustomEntry,
    Entry,
    ErrorInfo,
    FileRefPart,
    FoldEntry,
    ImagePart,
    JsonObject,
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
    ToolAnswered,
    ToolAnsweredEntry,
    ToolCall,
    ToolDeferred,
    ToolDeferredEntry,
    ToolResultPart,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolSpec,
    ToolStarted,
    ToolStartedEntry,
)

PAUSED = "turnlog.paused"
"""Name of the custom entry that says a run was paused; the run's next step ends the pause."""
RECAP_FAILED = "turnlog.recap_failed"
"""Name of the custom entry that says why there is no recap, and what asking for it took."""
CONTINUED = "turnlog.continued"
"""Name of the custom entry that says that the child session which a call waits for can continue."""
BY_CHILD = "session "
"""Before the name of the child session that the answer to a call comes from."""

SLICE = 1_000
"""Entries that are folded in one go: a millisecond or two."""

_ABOUT = 120


@dataclass(slots=True)
class CallState:
    """One call of the newest answer."""

    call: ToolCall
    parse_error: str | None = None
    request: ApprovalRequestedEntry | None = None
    decided: ApprovalDecided | None = None
    decided_in: str | None = None
    started: ToolStarted | None = None
    deferred: ToolDeferred | None = None
    answers: tuple[tuple[ToolDeferred, ToolAnswered], ...] = ()
    """What the tool asked for and was given, to run again with."""
    continues: bool = False
    """It was given an answer, and has not run since."""
    asked_again: bool = False
    answered: bool = False

    @property
    def requested(self) -> ApprovalRequested | None:
        """What a human was last asked about it."""
        return self.request.payload if self.request is not None else None

    @property
    def asked_in(self) -> str | None:
        """The session in which it was asked about."""
        return self.request.session_id if self.request is not None else None

    @property
    def arguments(self) -> dict[str, object] | None:
        """The arguments that run: those it began with, the decision's, else those the approver saw."""
        if self.started is not None and self.started.arguments is not None and not self.asked_again:
            return self.started.arguments
        if self.decided is not None and self.decided.arguments is not None:
            return self.decided.arguments
        if self.requested is not None:
            return self.requested.arguments
        return self.call.arguments

    @property
    def may_have_run(self) -> bool:
        """It started and its result is unknown. A decision made before the start does not settle that: only
        one that was asked for since then may let it run again."""
        settled = (self.asked_again and self.decided is not None) or self.deferred is not None
        settled = settled or self.continues
        return self.started is not None and not self.answered and not settled

    @property
    def is_due(self) -> bool:
        """A human let it run, and since then it has not."""
        allowed = self.decided is not None and self.decided.action in ("approve", "modify")
        return allowed and not self.answered and (self.started is None or self.asked_again)

    @property
    def awaits_human(self) -> bool:
        return self.request is not None and self.decided is None and not self.answered

    @property
    def waits(self) -> bool:
        """Nothing can be done about it here: a human decides, or its answer comes from outside."""
        return self.awaits_human or (self.deferred is not None and not self.answered)

    @property
    def child(self) -> str | None:
        """The session in which another agent does its work."""
        if self.started is not None and self.started.child_session_id is not None:
            return self.started.child_session_id
        by = (self.deferred.by if self.deferred is not None else None) or ""
        return by.removeprefix(BY_CHILD) if by.startswith(BY_CHILD) else None


@dataclass(slots=True)
class SessionState:
    """The newest run, and what outlives runs."""

    # the newest run
    run_id: str | None = None
    started: RunStarted | None = None
    started_at: str = ""
    ended: RunEnded | None = None
    paused: bool = False
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
    last_error: ErrorInfo | None = None
    failures: int = 0
    """How often in a row the newest failing call has failed with the same arguments."""
    failing: tuple[str, str] | None = None
    failed_round: int = 0
    corrections: int = 0
    """Answers of the run that did not fit its output type, and were sent back."""
    rejection: str = ""
    """What the newest of them was told, where it was a tool's result."""
    final: tuple[str, str] | None = None
    """The call whose result ends the run, and the text of that result."""
    agent: str | None = None
    handed_to: str | None = None
    """The agent that is asked next, after ``agent``, since the conversation was handed over."""
    handoffs: int = 0
    # the session
    schema_version: int | None = None
    title: str | None = None
    metadata: JsonObject = field(default_factory=dict[str, Any])
    about: tuple[str, str] = ("", "")
    """The entry of the first message of the user, and how it begins."""
    run_ids: set[str] = field(default_factory=set[str])
    call_ids: set[str] = field(default_factory=set[str])
    controls: dict[str, int] = field(default_factory=dict[str, int])
    """Controls that became an input → its seq: one that is delivered twice is taken in once."""
    system_prompt: str | None = None
    tools: Sequence[ToolSpec] | None = None
    runtime_data: JsonObject | None = None
    target: ModelInvocationDescriptor | None = None
    has_images: bool = False
    last_answer_at: str | None = None
    _total: TokenUsage | None = field(default=None, compare=False)
    _unsummed: list[object] = field(default_factory=list[object], compare=False)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Self:
        state = cls()
        state.take(entries)
        return state

    @property
    def is_open(self) -> bool:
        return self.run_id is not None and self.ended is None

    @property
    def current_run(self) -> str | None:
        """The run that is open, if one is."""
        return self.run_id if self.ended is None else None

    @property
    def open_calls(self) -> list[CallState]:
        """Calls without a result, in call order."""
        return [call for call in self.calls.values() if not call.answered]

    @property
    def speaker(self) -> str | None:
        """The agent whose turn it is; one that hands over still has its other calls answered."""
        return self.agent if self.handed_to is None or self.open_calls else self.handed_to

    @property
    def awaiting(self) -> list[CallState]:
        """Calls that a human is asked about; the end of a run takes its questions back."""
        if self.ended is not None:
            return []
        return [call for call in self.calls.values() if call.awaits_human]

    @property
    def status(self) -> RunStatus:
        """The status a watcher would see, from the log alone."""
        if self.run_id is None:
            return "idle"
        if self.ended is not None:
            return self.ended.status
        if self.paused:
            return "paused"
        if calls := self.open_calls:
            return "awaiting_human" if all(call.waits for call in calls) else "tool_running"
        return "model_running" if self.call_index or self.output is not None else "preparing"

    @property
    def total_usage(self) -> TokenUsage | None:
        """The sum over all model calls of the session."""
        if self._unsummed:
            for found in self._unsummed:
                if (used := TokenUsage.read(found)) is not None:
                    self._total = used if self._total is None else self._total + used
            self._unsummed.clear()
        return self._total

    def take(self, entries: Sequence[Entry]) -> None:
        """``step`` for a whole log: of runs that are over, only what outlives them is looked at."""
        for _ in self.take_slices(entries):
            pass

    def take_slices(self, entries: Sequence[Entry]) -> Iterator[None]:
        """As ``take``, a slice of the log at each step."""
        # The newest run may have begun with calls of the answer before it open.
        run = _newest(entries, "model_output", _newest(entries, "run_started", len(entries)))
        rest, at = iter(entries), 0
        while at < len(entries):
            steps, size = (OUTLIVING, min(SLICE, run - at)) if at < run else (STEPS, SLICE)
            for entry in islice(rest, size):
                step = steps[entry.kind]
                if step is not None:
                    step(self, entry)
            at += size
            yield

    def step(self, entry: Entry) -> None:
        step = STEPS[entry.kind]
        if step is not None:
            step(self, entry)

    # ── the session ──

    def _take_header(self, entry: SessionHeaderEntry) -> None:
        header = entry.payload
        self.schema_version = header.schema_version
        self.title = header.title if header.title is not None else self.title
        self.metadata = {**self.metadata, **(header.metadata or {})}

    def _set_tools(self, entry: ToolsChangeEntry) -> None:
        self.tools = entry.payload.tools

    def _set_prompt(self, entry: SystemPromptEntry) -> None:
        self.system_prompt = entry.payload.text

    def _set_runtime(self, entry: RuntimeInitEntry) -> None:
        self.runtime_data = entry.payload.data

    def _set_target(self, entry: ModelChangeEntry) -> None:
        self.target = entry.payload.target

    def _hide(self, entry: RedactionEntry | PurgeEntry) -> None:
        if self.about[0] in entry.payload.entry_ids:
            self.about = (self.about[0], "")

    def _take_custom(self, entry: CustomEntry) -> None:
        if entry.payload.name == PAUSED:
            self.paused = True
        elif entry.payload.name == CONTINUED:
            self.paused = False
            if call := self.calls.get(entry.payload.data.get("toolCallId", "")):
                call.deferred = None
        else:
            self._take_recap(entry)

    # ── a run ──

    def _add_run(self, entry: RunStartedEntry) -> None:
        if entry.run_id is not None:
            self.run_ids.add(entry.run_id)

    def _begin(self, entry: RunStartedEntry) -> None:
        self._add_run(entry)
        self.paused = False
        self.run_id = entry.run_id
        self.started = entry.payload
        self.started_at = entry.timestamp
        self.ended = self.open_call = self.failure = self.output = self.usage = self.last_error = None
        self.call_index = self.attempt = self.folds_since_failure = self.overflow_steps = 0
        self.calls = {id: call for id, call in self.calls.items() if not call.answered}
        self.input_pending = False
        self.tool_rounds = self.calls_started = self.failures = self.failed_round = self.corrections = 0
        self.failing = self.final = self.handed_to = None
        self.agent, self.handoffs = entry.payload.agent_name, 0

    def _end(self, entry: RunEndedEntry) -> None:
        self.paused = False
        self.ended = entry.payload
        self.open_call = None
        self.last_error = entry.payload.error

    def _take_input(self, entry: ModelInputEntry) -> None:
        self.input_pending = True
        if entry.payload.source == "correction":
            self.corrections += 1
        self.has_images = self.has_images or may_hold_images(entry.payload.message)
        if not self.about[0] and entry.payload.message.role == "user":
            self.about = (entry.id, _first_words(entry.payload.message.text))
        if entry.meta and (control := entry.meta.get("control")):
            self.controls[control] = entry.seq

    # ── model calls ──

    def _was_called(self, entry: ModelCallStartedEntry) -> None:
        self.target = entry.payload.target

    def _call_started(self, entry: ModelCallStartedEntry) -> None:
        self.paused = False
        started = entry.payload
        if started.model_call_index != self.call_index:
            self.overflow_steps = 0
        self.call_index = started.model_call_index
        self.attempt = started.attempt
        self.open_call = started
        self.agent, self.handed_to = self.handed_to or self.agent, None
        self.failure = None
        self.input_pending = False
        self.target = started.target

    def _had_failed(self, entry: ModelCallFailedEntry) -> None:
        if entry.payload.usage is not None:
            self._unsummed.append(entry.payload.usage)

    def _call_failed(self, entry: ModelCallFailedEntry) -> None:
        failed = entry.payload
        self.failure = failed
        self.last_error = failed.error
        self.open_call = None
        self.folds_since_failure = 0
        if failed.error.code == "ModelContextOverflow":
            self.overflow_steps += 1
        self._count(failed.usage)

    def _had_answered(self, entry: ModelOutputEntry) -> None:
        message = entry.payload.message
        self.last_answer_at = entry.timestamp
        if message.meta and (usage := message.meta.get("usage")):
            self._unsummed.append(usage)
        for part in message.tool_calls:
            self.call_ids.add(part.payload.tool_call_id)

    def _answered(self, entry: ModelOutputEntry) -> None:
        message = entry.payload.message
        meta = message.meta or {}
        errors: dict[str, str] = meta.get("parse_errors", {})
        self.output = entry
        self.last_answer_at = entry.timestamp
        self.open_call = self.failure = self.last_error = self.final = None
        self.overflow_steps = 0
        self.calls = {
            part.payload.tool_call_id: CallState(part.payload, errors.get(part.payload.tool_call_id))
            for part in message.tool_calls
        }
        self.call_ids.update(self.calls)
        self.tool_rounds += bool(self.calls)
        self._count(TokenUsage.read(meta.get("usage")))

    def _fold(self, entry: FoldEntry) -> None:
        self.folds_since_failure += 1

    def _had_recap(self, entry: CompactionSummaryEntry | CustomEntry) -> None:
        if (usage := _spent(entry)) is not None:
            self._unsummed.append(usage)

    def _take_recap(self, entry: CompactionSummaryEntry | CustomEntry) -> None:
        if self.is_open:
            self._count(_spent(entry))
        else:
            self._had_recap(entry)

    def _count(self, usage: TokenUsage | None) -> None:
        if usage is not None:
            self._unsummed.append(usage)
            self.usage = usage if self.usage is None else self.usage + usage

    # ── tools ──

    def _tool_started(self, entry: ToolStartedEntry) -> None:
        self.paused = False
        started = entry.payload
        if call := self.calls.get(started.tool_call_id):
            # Before this run's first answer it can only be a call that was open when the run began.
            if call.started is None and self.tool_rounds:
                self.calls_started += 1
            call.started = started
            call.asked_again = call.continues = False

    def _had_results(self, entry: ToolResultsEntry) -> None:
        self.has_images = self.has_images or may_hold_images(entry.payload.message)

    def _had_counted_results(self, entry: ToolResultsEntry) -> None:
        self._had_results(entry)
        for outcome in entry.payload.outcomes:
            if outcome.usage is not None:
                self._unsummed.append(outcome.usage)

    def _take_results(self, entry: ToolResultsEntry) -> None:
        self.paused = False
        self._had_results(entry)
        for outcome in entry.payload.outcomes:
            if call := self.calls.get(outcome.tool_call_id):
                call.answered = True
                if outcome.handed_to is not None:
                    self.handed_to, self.handoffs = outcome.handed_to, self.handoffs + 1
                self._note_failure(call, outcome.status == "failed")
                if outcome.ends_run:
                    self.final = (outcome.tool_call_id, _result_text(entry, outcome.tool_call_id))
                elif outcome.error_code == "OutputInvalid" and outcome.tool_name == FINAL_ANSWER:
                    self.corrections += 1
                    self.rejection = _result_text(entry, outcome.tool_call_id)
            self._count(outcome.usage)

    def failures_with(self, call: CallState) -> int:
        """How often in a row a call with these arguments will have failed when ``call`` fails. Calls of one
        answer count once: the model has not seen that the first failed."""
        if self.failing != signature_of(call):
            return 1
        return self.failures + (self.failed_round != self.tool_rounds)

    def _note_failure(self, call: CallState, failed: bool) -> None:
        self.failures = self.failures_with(call) if failed else 0
        self.failing = signature_of(call) if failed else None
        self.failed_round = self.tool_rounds

    def _defer(self, entry: ToolDeferredEntry) -> None:
        if call := self.calls.get(entry.payload.tool_call_id):
            call.deferred = entry.payload

    def _take_answer(self, entry: ToolAnsweredEntry) -> None:
        self.paused = False
        call = self.calls.get(entry.payload.tool_call_id)
        if call is not None and call.deferred is not None:
            call.answers = (*call.answers, (call.deferred, entry.payload))
            call.deferred, call.continues = None, True

    def _ask(self, entry: ApprovalRequestedEntry) -> None:
        if call := self.calls.get(entry.payload.tool_call_id):
            call.request, call.decided = entry, None
            call.asked_again = call.started is not None

    def _decide(self, entry: ApprovalDecidedEntry) -> None:
        self.paused = False
        if call := self.calls.get(entry.payload.tool_call_id):
            call.decided, call.decided_in = entry.payload, entry.session_id


def signature_of(call: CallState) -> tuple[str, str]:
    """The same for calls of one tool with the same arguments."""
    return call.call.tool_name, call.call.raw_args_text or repr(call.call.arguments)


def _result_text(entry: ToolResultsEntry, call_id: str) -> str:
    parts = (part.payload for part in entry.payload.message.tool_results)
    return next((part.text for part in parts if part.tool_call_id == call_id), "")


_SHOWN = (ImagePart, FileRefPart)


def may_hold_images(message: Message) -> bool:
    for part in message.parts:
        if isinstance(part, _SHOWN):
            return True
        if isinstance(part, ToolResultPart) and isinstance(part.payload.content, list):
            return True
    return False


def _first_words(text: str) -> str:
    """The beginning of a message as one short line."""
    line = " ".join(text[: 4 * _ABOUT].split())
    return line if len(line) <= _ABOUT else line[: _ABOUT - 1].rstrip() + "…"


def _spent(entry: CompactionSummaryEntry | CustomEntry) -> TokenUsage | None:
    """What a recap took, also one of which nothing came."""
    if isinstance(entry, CompactionSummaryEntry):
        return entry.payload.usage
    return TokenUsage.read(entry.payload.data.get("usage")) if entry.payload.name == RECAP_FAILED else None


def usage_of(message: Message) -> TokenUsage | None:
    return TokenUsage.read((message.meta or {}).get("usage"))


# The private names are the class's own: these tables are the body of ``step`` and ``take``.
# pyright: reportPrivateUsage=false
STEPS: dict[str, Callable[[SessionState, Any], None] | None] = {
    "session_header": SessionState._take_header,
    "run_started": SessionState._begin,
    "run_ended": SessionState._end,
    "model_input": SessionState._take_input,
    "model_call_started": SessionState._call_started,
    "model_call_failed": SessionState._call_failed,
    "model_output": SessionState._answered,
    "tools_change": SessionState._set_tools,
    "tool_started": SessionState._tool_started,
    "tool_deferred": SessionState._defer,
    "tool_answered": SessionState._take_answer,
    "tool_results": SessionState._take_results,
    "approval_requested": SessionState._ask,
    "approval_decided": SessionState._decide,
    "model_change": SessionState._set_target,
    "runtime_init": SessionState._set_runtime,
    "system_prompt": SessionState._set_prompt,
    "widget_event": None,
    "fold": SessionState._fold,
    "compaction_summary": SessionState._take_recap,
    "branch_summary": None,
    "redaction": SessionState._hide,
    "purge": SessionState._hide,
    "delta_batch": None,
    "custom": SessionState._take_custom,
}
"""What each kind does. A table and not a match: a long log goes through it entry by entry."""

OUTLIVING: dict[str, Callable[[SessionState, Any], None] | None] = {
    **dict.fromkeys(STEPS),
    "session_header": SessionState._take_header,
    "run_started": SessionState._add_run,
    "model_input": SessionState._take_input,
    "model_call_started": SessionState._was_called,
    "model_call_failed": SessionState._had_failed,
    "model_output": SessionState._had_answered,
    "tools_change": SessionState._set_tools,
    "tool_results": SessionState._had_counted_results,
    "model_change": SessionState._set_target,
    "runtime_init": SessionState._set_runtime,
    "system_prompt": SessionState._set_prompt,
    "compaction_summary": SessionState._had_recap,
    "custom": SessionState._had_recap,
    "redaction": SessionState._hide,
    "purge": SessionState._hide,
}
"""What is left of an entry once a later run has begun, which resets all that belongs to a run."""


def _newest(entries: Sequence[Entry], kind: str, before: int) -> int:
    """The place of the newest entry of ``kind`` in front of place ``before``; 0 when there is none."""
    for place in range(before - 1, -1, -1):
        if entries[place].kind == kind:
            return place
    return 0
