"""A log as steps: what belongs together is one row of a timeline, with its time, its cost and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from turnlog.contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    CustomEntry,
    Entry,
    FoldEntry,
    JsonObject,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    SessionHeaderEntry,
    SystemPromptEntry,
    TokenUsage,
    ToolDeferredEntry,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolStartedEntry,
    Value,
    WidgetEventEntry,
    to_plain_text,
)

from ._state import usage_of

StepKind: TypeAlias = Literal[
    "input", "model", "tool", "fold", "recap", "run_started", "run_ended", "prompt", "tools", "model_change",
    "widget", "hidden", "branch", "custom",
]  # fmt: skip
StepStatus: TypeAlias = Literal["done", "running", "waiting", "failed", "denied", "unknown", "stopped"]
_TITLE = 120
"""Characters of a step's title."""


class Step(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """One row: the entries ``seq`` to ``end`` that belong together, others may lie between them.

    ``call`` numbers the model calls of the log from 1. ``ms`` is how long it took, ``waited`` how much of
    that a person took to decide. ``input`` and ``cached`` are tokens of a model call, ``cost`` US dollars.
    """

    seq: int
    end: int
    kind: StepKind
    at: str
    title: str = ""
    status: StepStatus
    run: int = 0
    entries: list[int] = msgspec.field(default_factory=list[int])
    ms: int | None = None
    waited: int | None = None
    call: int | None = None
    attempts: int | None = None
    tool_call_id: str | None = None
    tool: str | None = None
    by: str | None = None
    decision: str | None = None
    error: str | None = None
    detail: str | None = None
    input: int | None = None
    cached: int | None = None
    output: int | None = None
    cost: float | None = None
    before: int | None = None
    after: int | None = None


class RunSpan(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """One run of the log. ``ms`` is from its start to its end, or to its last entry while it is open."""

    number: int
    run_id: str
    first: int
    last: int
    at: str
    status: str = "running"
    error: str | None = None
    agent: str | None = None
    model: str | None = None
    ms: int = 0
    calls: int = 0
    tools: int = 0
    failed: int = 0
    cost: float | None = None


class Timeline(Value, frozen=True, kw_only=True):
    """A log to look at: its runs and its steps, in the order in which they began."""

    title: str | None
    entries: int
    runs: list[RunSpan]
    steps: list[Step]
    usage: TokenUsage | None
    active_ms: int


def timeline_of(entries: Iterable[Entry]) -> Timeline:
    """The steps of a log. ``entries`` are the visible ones, so that a title shows nothing that is hidden."""
    reader = TimelineReader()
    for entry in entries:
        reader.step(entry)
    return reader.timeline()


class TimelineReader:
    """Folds entries into steps; it can be given more entries as they come."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.runs: list[RunSpan] = []
        self._title: str | None = None
        self._seen = 0
        self._calls = 0
        self._call: Step | None = None
        self._tools: dict[str, Step] = {}
        self._arguments: dict[str, JsonObject] = {}
        self._asked: dict[str, str] = {}
        self._usage: TokenUsage | None = None

    def timeline(self) -> Timeline:
        return Timeline(
            title=self._title,
            entries=self._seen,
            runs=self.runs,
            steps=self.steps,
            usage=self._usage,
            active_ms=sum(
                max(0, step.ms - (step.waited or 0))
                for step in self.steps
                if step.ms is not None and step.kind in ("model", "tool")
            ),
        )

    def step(self, entry: Entry) -> None:
        self._seen = entry.seq
        if self.runs and self.runs[-1].status == "running":
            run = self.runs[-1]
            run.last, run.ms = entry.seq, _between(run.at, entry.timestamp)
        take = _STEPS.get(entry.kind)
        if take is not None:
            take(self, entry)

    def _add(
        self, entry: Entry, kind: StepKind, title: str = "", status: StepStatus = "done", **fields: Any
    ) -> Step:
        step = Step(
            seq=entry.seq,
            end=entry.seq,
            kind=kind,
            status=status,
            at=entry.timestamp,
            title=_short(title),
            run=len(self.runs),
            entries=[entry.seq],
            **fields,
        )
        self.steps.append(step)
        return step

    def _join(self, step: Step, entry: Entry) -> None:
        step.entries.append(entry.seq)
        step.end = max(step.end, entry.seq)

    def _spend(self, usage: TokenUsage | None) -> None:
        if usage is None:
            return
        self._usage = usage if self._usage is None else self._usage + usage
        if self.runs and usage.cost is not None:
            self.runs[-1].cost = (self.runs[-1].cost or 0.0) + usage.cost

    # ── runs ──

    def _header(self, entry: SessionHeaderEntry) -> None:
        self._title = entry.payload.title

    def _run_started(self, entry: RunStartedEntry) -> None:
        number = len(self.runs) + 1
        self.runs.append(
            RunSpan(
                number=number,
                run_id=entry.run_id or "",
                first=entry.seq,
                last=entry.seq,
                at=entry.timestamp,
                agent=entry.payload.agent_name,
            )
        )
        self._add(entry, "run_started", f"Run {number}")

    def _run_ended(self, entry: RunEndedEntry) -> None:
        ended = entry.payload
        status: StepStatus = {"failed": "failed", "aborted": "stopped"}.get(ended.status, "done")  # pyright: ignore[reportAssignmentType]
        error = ended.error
        said = f"{error.code}: {error.message}" if error is not None else None
        if error is not None and "stayed behind in session" in error.message:
            said = None  # the branch begins here; the run itself continues where it was
        for step in self._tools.values():
            if step.status in ("running", "waiting"):
                step.status = "stopped"
        self._tools.clear()
        self._call = None
        ms = None
        if self.runs:
            run = self.runs[-1]
            run.status, run.error, ms = ended.status, said, run.ms
        self._add(entry, "run_ended", ended.status, status=status, error=said, ms=ms)

    # ── model calls ──

    def _input(self, entry: ModelInputEntry) -> None:
        message = entry.payload.message
        self._add(entry, "input", message.text or _parts(message), detail=entry.payload.source)

    def _call_started(self, entry: ModelCallStartedEntry) -> None:
        call = entry.payload
        model = f"{call.target.provider_id}:{call.target.model}"
        self._calls += 1
        if self.runs:
            self.runs[-1].model = model
            self.runs[-1].calls += 1
        step = self._call
        if step is not None and call.attempt > 1:
            self._join(step, entry)
            step.attempts, step.status, step.call = call.attempt, "running", self._calls
            return
        self._call = self._add(
            entry, "model", "", status="running", call=self._calls, detail=model, input=call.estimated_tokens
        )

    def _call_failed(self, entry: ModelCallFailedEntry) -> None:
        failed, step = entry.payload, self._call
        self._spend(failed.usage)
        if step is None:
            return
        self._join(step, entry)
        step.error = f"{failed.error.code}: {failed.error.message}"
        step.ms = _between(step.at, entry.timestamp)
        step.status = "running" if failed.retry_in_ms is not None else "failed"
        step.attempts = max(step.attempts or 1, failed.attempt)
        if failed.partial and not step.title:
            step.title = _short(failed.partial)

    def _answered(self, entry: ModelOutputEntry) -> None:
        answer = entry.payload
        usage = usage_of(answer.message)
        self._spend(usage)
        step = self._call or self._add(entry, "model")
        self._call = None
        if step.end != entry.seq:
            self._join(step, entry)
        step.title = _short(answer.message.text)
        step.status = "failed" if answer.finish_reason in _BAD_ENDS else "done"
        step.ms = _between(step.at, entry.timestamp)
        if usage is not None:
            step.input, step.cached = usage.input_tokens, usage.cached_input_tokens
            step.output, step.cost = usage.output_tokens, usage.cost
        for part in answer.message.tool_calls:
            if part.payload.arguments is not None:
                self._arguments[part.payload.tool_call_id] = part.payload.arguments

    # ── tools ──

    def _tool(self, entry: Entry, call_id: str, name: str) -> Step:
        step = self._tools.get(call_id)
        if step is None:
            about = _about(self._arguments.pop(call_id, {}))
            step = self._add(entry, "tool", about, tool=name, tool_call_id=call_id, status="running")
            self._tools[call_id] = step
            if self.runs:
                self.runs[-1].tools += 1
        else:
            self._join(step, entry)
        return step

    def _asked_for(self, entry: ApprovalRequestedEntry) -> None:
        asked = entry.payload
        step = self._tool(entry, asked.tool_call_id, asked.tool_name)
        step.status, step.detail = "waiting", asked.reason
        step.title = step.title or _about(asked.arguments)
        self._asked[asked.tool_call_id] = entry.timestamp

    def _decided(self, entry: ApprovalDecidedEntry) -> None:
        decided = entry.payload
        step = self._tools.get(decided.tool_call_id)
        if step is None:
            return
        self._join(step, entry)
        step.decision, step.by = decided.action, decided.decided_by
        since = self._asked.pop(decided.tool_call_id, None)
        step.waited = _between(since, entry.timestamp) if since is not None else None
        step.status = "running" if decided.action in ("approve", "modify") else "denied"
        if decided.arguments is not None:
            step.title = _about(decided.arguments)

    def _tool_started(self, entry: ToolStartedEntry) -> None:
        step = self._tool(entry, entry.payload.tool_call_id, entry.payload.tool_name)
        step.status = "running"
        if entry.payload.attempt > 1:
            step.attempts = entry.payload.attempt

    def _deferred(self, entry: ToolDeferredEntry) -> None:
        step = self._tool(entry, entry.payload.tool_call_id, entry.payload.tool_name)
        step.status, step.detail = "waiting", entry.payload.question or entry.payload.reason

    def _results(self, entry: ToolResultsEntry) -> None:
        texts = {part.payload.tool_call_id: part.payload for part in entry.payload.message.tool_results}
        for outcome in entry.payload.outcomes:
            step = self._tool(entry, outcome.tool_call_id, outcome.tool_name)
            self._spend(outcome.usage)
            result = texts.get(outcome.tool_call_id)
            wrong = result is not None and bool(result.is_error)
            step.status = _OUTCOMES.get(outcome.status, "done")
            if step.status == "done" and wrong:
                step.status = "failed"
            gist = (
                to_plain_text(outcome.sections.gist)
                if outcome.sections is not None and outcome.authored
                else ""
            )
            step.detail = _short(gist or (result.text if result is not None else ""))
            step.error = outcome.error_code
            ms = outcome.elapsed_ms
            step.ms = ms if ms is not None else _between(step.at, entry.timestamp)
            if step.waited and ms is not None:
                step.ms = ms + step.waited
            if outcome.usage is not None:
                step.cost, step.input, step.output = (
                    outcome.usage.cost, outcome.usage.input_tokens, outcome.usage.output_tokens,
                )  # fmt: skip
            if step.status in ("failed", "unknown") and self.runs:
                self.runs[-1].failed += 1
            self._tools.pop(outcome.tool_call_id, None)

    # ── the rest ──

    def _fold(self, entry: FoldEntry) -> None:
        fold = entry.payload
        self._add(entry, "fold", fold.reason, before=fold.tokens_before, after=fold.tokens_after)

    def _recap(self, entry: CompactionSummaryEntry) -> None:
        self._spend(entry.payload.usage)
        self._add(entry, "recap", entry.payload.summary)

    def _prompt(self, entry: SystemPromptEntry) -> None:
        self._add(entry, "prompt", entry.payload.text)

    def _tools_changed(self, entry: ToolsChangeEntry) -> None:
        self._add(entry, "tools", ", ".join(tool.name for tool in entry.payload.tools) or "none")

    def _model_changed(self, entry: ModelChangeEntry) -> None:
        target = entry.payload.target
        self._add(entry, "model_change", f"{target.provider_id}:{target.model}", detail=entry.payload.reason)

    def _widget(self, entry: WidgetEventEntry) -> None:
        event = entry.payload
        step = self._tools.get(event.tool_call_id or "")
        if step is not None:
            self._join(step, entry)
        else:
            self._add(entry, "widget", f"{event.widget}: {event.event}")

    def _hidden(self, entry: RedactionEntry | PurgeEntry) -> None:
        gone = len(entry.payload.entry_ids)
        what = "hidden" if entry.kind == "redaction" else "erased"
        self._add(
            entry,
            "hidden",
            f"{gone} {'entry' if gone == 1 else 'entries'} {what}",
            by=entry.payload.by,
            detail=entry.payload.reason,
        )

    def _branch(self, entry: BranchSummaryEntry) -> None:
        came = entry.payload
        self._add(entry, "branch", f"Branch of {came.from_session_id} at entry {came.from_seq}")

    def _custom(self, entry: CustomEntry) -> None:
        self._add(entry, "custom", entry.payload.name)


_BAD_ENDS = ("length", "content_filter", "error")
_OUTCOMES: dict[str, StepStatus] = {
    "failed": "failed", "denied": "denied", "unknown": "unknown", "skipped": "stopped",
}  # fmt: skip

# The private names are the class's own: this table is the body of ``step``.
# pyright: reportPrivateUsage=false
_STEPS: dict[str, Callable[[TimelineReader, Any], None]] = {
    "session_header": TimelineReader._header,
    "run_started": TimelineReader._run_started,
    "run_ended": TimelineReader._run_ended,
    "model_input": TimelineReader._input,
    "model_call_started": TimelineReader._call_started,
    "model_call_failed": TimelineReader._call_failed,
    "model_output": TimelineReader._answered,
    "approval_requested": TimelineReader._asked_for,
    "approval_decided": TimelineReader._decided,
    "tool_started": TimelineReader._tool_started,
    "tool_deferred": TimelineReader._deferred,
    "tool_results": TimelineReader._results,
    "fold": TimelineReader._fold,
    "compaction_summary": TimelineReader._recap,
    "system_prompt": TimelineReader._prompt,
    "tools_change": TimelineReader._tools_changed,
    "model_change": TimelineReader._model_changed,
    "widget_event": TimelineReader._widget,
    "redaction": TimelineReader._hidden,
    "purge": TimelineReader._hidden,
    "branch_summary": TimelineReader._branch,
    "custom": TimelineReader._custom,
}
"""How each kind of entry becomes a step. The other kinds (``runtime_init``, ``delta_batch``) have none."""


def _between(since: str, until: str) -> int:
    passed = datetime.fromisoformat(until) - datetime.fromisoformat(since)
    return max(0, round(passed.total_seconds() * 1000))


def _short(text: str) -> str:
    line = " ".join(text[: _TITLE * 4].split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"


def _about(arguments: JsonObject) -> str:
    """What tells a call from others of the same tool: its first short argument that is text."""
    texts = [value for value in arguments.values() if isinstance(value, str) and value]
    if texts:
        return _short(texts[0])
    return _short(", ".join(f"{name} {value}" for name, value in arguments.items() if value is not None))


def _parts(message: Any) -> str:
    return ", ".join(part.kind for part in message.parts)
