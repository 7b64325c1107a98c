"""What a log adds up to so far, kept entry by entry: what the next entry is checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ..contract import (
    AgentError,
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    CompactionSummaryEntry,
    Entry,
    ErrorInfo,
    JsonObject,
    Message,
    ModelCallFailedEntry,
    ModelCallStartedEntry,
    ModelOutput,
    ModelOutputEntry,
    RunEndedEntry,
    RunStartedEntry,
    RunStatus,
    SessionHeaderEntry,
    SystemPromptEntry,
    TokenUsage,
    ToolCall,
    ToolCallPart,
    ToolResults,
    ToolResultsEntry,
    ToolStarted,
    ToolStartedEntry,
)
from ..system import bulk


class Mark(NamedTuple):
    """A place in the log that a ledger can go back to. Costs what is open, not what has been."""

    open_calls: dict[str, ToolCall]
    started: dict[str, int]
    pending: dict[str, ApprovalRequested]
    scalars: tuple[object, ...]


class Ledger:
    """The running sums of a log. ``apply`` takes the next entry; the checks say why one may not come next."""

    __slots__ = (
        "_added_calls",
        "_added_runs",
        "_unsummed",
        "_usage",
        "calls",
        "current_run",
        "last_error",
        "metadata",
        "open_calls",
        "pending",
        "runs",
        "schema_version",
        "started",
        "status",
        "system_instruction",
        "title",
    )
    _SCALARS = (
        "current_run",
        "last_error",
        "metadata",
        "schema_version",
        "status",
        "system_instruction",
        "title",
        "_usage",
    )

    def __init__(self) -> None:
        self.calls: set[str] = set()
        self.runs: set[str] = set()
        self.open_calls: dict[str, ToolCall] = {}
        self.started: dict[str, int] = {}
        self.pending: dict[str, ApprovalRequested] = {}
        self.current_run: str | None = None
        self.status: RunStatus = "idle"
        self.last_error: ErrorInfo | None = None
        self._usage: TokenUsage | None = None
        self._unsummed: list[object] = []
        self.system_instruction: str | None = None
        self.title: str | None = None
        self.metadata: JsonObject = {}
        self.schema_version: int | None = None
        self._added_calls: list[str] = []
        self._added_runs: list[str] = []

    def mark(self) -> Mark:
        self._added_calls.clear()
        self._added_runs.clear()
        _ = self.usage  # summed up, so that going back is to put the sum back
        scalars = tuple(getattr(self, name) for name in self._SCALARS)
        return Mark(dict(self.open_calls), dict(self.started), dict(self.pending), scalars)

    def go_back(self, mark: Mark) -> None:
        self.calls.difference_update(self._added_calls)
        self.runs.difference_update(self._added_runs)
        self._unsummed.clear()
        self.open_calls = dict(mark.open_calls)
        self.started = dict(mark.started)
        self.pending = dict(mark.pending)
        for name, value in zip(self._SCALARS, mark.scalars, strict=True):
            setattr(self, name, value)

    def apply(self, entry: Entry) -> None:
        step = STEPS[entry.kind]
        if step is not None:
            step(self, entry)

    def apply_all(self, entries: Iterable[Entry]) -> None:
        """A whole log, which may be long."""
        steps = STEPS
        with bulk():
            for entry in entries:
                step = steps[entry.kind]
                if step is not None:
                    step(self, entry)

    @property
    def usage(self) -> TokenUsage | None:
        """The sum over all model calls; what came since it was last asked for is added now."""
        if self._unsummed:
            for found in self._unsummed:
                if (used := read_usage(found)) is not None:
                    self._usage = used if self._usage is None else self._usage + used
            self._unsummed.clear()
        return self._usage

    def add_usage(self, usage: object) -> None:
        if usage:
            self._unsummed.append(usage)

    def add_calls(self, calls: Sequence[ToolCallPart]) -> None:
        for part in calls:
            call = part.payload
            self.calls.add(call.tool_call_id)
            self._added_calls.append(call.tool_call_id)
            self.open_calls[call.tool_call_id] = call

    def add_run(self, run_id: str | None) -> None:
        self.current_run = run_id
        if run_id is not None:
            self.runs.add(run_id)
            self._added_runs.append(run_id)

    # What may come next

    def check_run_start(self, run_id: str) -> None:
        if not run_id:
            raise invalid("a run needs an id")
        if self.current_run is not None:
            raise invalid(
                f"run {self.current_run!r} has not ended, so run {run_id!r} cannot start; "
                "resume the open run, or end it first"
            )
        if run_id in self.runs:
            raise invalid(f"run {run_id!r} has been in this session before; a run id is used once")

    def check_run_end(self) -> None:
        if self.current_run is None:
            raise invalid("no run is open, so none can end")
        if self.open_calls:
            raise invalid(
                f"the run cannot end while calls have no result: {', '.join(self.open_calls)}; "
                "append their results, or fail_open_calls first"
            )

    def check_output(self, output: ModelOutput) -> None:
        message, by = output.message, output.invocation
        if message.role != "assistant":
            raise invalid(f"a model's output is an assistant message, this one's role is {message.role}")
        if not (by.provider_id and by.specification and by.model):
            raise invalid("a model's output needs its invocation: provider id, specification and model")
        if self.open_calls:
            raise invalid(
                f"the calls {', '.join(self.open_calls)} have no result yet; "
                "a model's output comes after all results of the one before it"
            )
        calls = message.tool_calls
        if not calls and not message.text.strip() and not _goes_on(output):
            raise invalid(
                "a model's output holds neither text nor calls; record it as a failed model call "
                "(ModelEmptyOutput), which may be tried again"
            )
        seen: set[str] = set()
        for part in calls:
            id, name = part.payload.tool_call_id, part.payload.tool_name
            if not id or not name:
                raise invalid(f"a tool call needs an id and a name; found id {id!r}, name {name!r}")
            if id in seen or id in self.calls:
                raise invalid(f"call id {id!r} is already used in this session; call ids are unique in it")
            seen.add(id)

    def check_results(self, results: ToolResults) -> None:
        parts = results.message.tool_results
        if results.message.role != "tool" or not parts:
            raise invalid(
                f"tool results are a tool message with at least one result; "
                f"this is a {results.message.role} message with {len(parts)}"
            )
        ids = [part.payload.tool_call_id for part in parts]
        outcomes = [outcome.tool_call_id for outcome in results.outcomes]
        if ids != outcomes:
            raise invalid(f"results and outcomes do not line up: results for {ids}, outcomes for {outcomes}")
        for place, id in enumerate(ids):
            if id in self.open_calls and id not in ids[:place]:
                continue
            if id in self.calls:
                raise invalid(f"call {id!r} has a result already; a call has one result")
            raise invalid(
                f"result for call {id!r}, which is not open in this session; open calls: "
                f"{', '.join(self.open_calls) or 'none'}"
            )

    def check_tool_start(self, started: ToolStarted) -> None:
        self._check_open(started.tool_call_id, "a tool starts")
        before = self.started.get(started.tool_call_id, 0)
        if started.attempt <= before:
            raise invalid(
                f"attempt {started.attempt} of call {started.tool_call_id!r} has started already "
                f"(the last was {before}); each attempt starts once"
            )

    def check_approval_request(self, requested: ApprovalRequested) -> None:
        self._check_open(requested.tool_call_id, "an approval is asked for")
        if requested.tool_call_id in self.pending:
            raise invalid(f"an approval of call {requested.tool_call_id!r} is pending already")

    def check_approval_decision(self, decided: ApprovalDecided) -> None:
        requested = self.pending.get(decided.tool_call_id)
        if requested is None:
            raise AgentError(
                "ApprovalInvalid",
                f"no approval of call {decided.tool_call_id!r} is pending; it was decided already, or never "
                f"asked for; pending: {', '.join(self.pending) or 'none'}",
            )
        if requested.digest != decided.digest:
            raise AgentError(
                "ApprovalInvalid",
                f"the decision on call {decided.tool_call_id!r} is bound to other content than what was "
                "asked for; show the request again and decide on that",
            )

    def _check_open(self, call_id: str, what: str) -> None:
        if call_id not in self.open_calls:
            raise invalid(
                f"{what} for call {call_id!r}, which is not open in this session; open calls: "
                f"{', '.join(self.open_calls) or 'none'}"
            )


def check_input(message: Message) -> None:
    """Raises ``InvalidEntry`` for what no model could be told: another role's message, or an empty one."""
    if message.role not in ("user", "system"):
        raise invalid(f"a model's input is a user or system message, this one's role is {message.role}")
    if not any(part.kind in ("image", "file_ref") for part in message.parts) and not message.text.strip():
        raise invalid("the input is empty: it has no text, image or file")


def usage_of(message: Message) -> TokenUsage | None:
    """The usage an assembled answer carries in its meta; None where there is none that can be read."""
    return read_usage((message.meta or {}).get("usage"))


def read_usage(found: object) -> TokenUsage | None:
    if found is None or isinstance(found, TokenUsage):
        return found
    try:
        return msgspec.convert(found, TokenUsage)
    except msgspec.ValidationError:
        return None


def _goes_on(output: ModelOutput) -> bool:
    """A paused turn may hold nothing but the provider's own blocks, which it wants back."""
    return output.finish_reason == "pause" and any(
        part.payload.provider_data is not None for part in output.message.parts if part.kind != "tool_result"
    )


def invalid(message: str) -> AgentError:
    return AgentError("InvalidEntry", message)


def _on_output(ledger: Ledger, entry: ModelOutputEntry) -> None:
    message = entry.payload.message
    if calls := message.tool_calls:
        ledger.add_calls(calls)
        ledger.status = "tool_running"
    if message.meta:
        ledger.add_usage(message.meta.get("usage"))
    ledger.last_error = None


def _on_results(ledger: Ledger, entry: ToolResultsEntry) -> None:
    for outcome in entry.payload.outcomes:
        id = outcome.tool_call_id
        ledger.open_calls.pop(id, None)
        ledger.started.pop(id, None)
        ledger.pending.pop(id, None)
    if not ledger.open_calls:
        ledger.status = "model_running" if ledger.current_run else "idle"


def _on_tool_started(ledger: Ledger, entry: ToolStartedEntry) -> None:
    ledger.started[entry.payload.tool_call_id] = entry.payload.attempt
    ledger.status = "tool_running"


def _on_approval_requested(ledger: Ledger, entry: ApprovalRequestedEntry) -> None:
    ledger.pending[entry.payload.tool_call_id] = entry.payload
    ledger.status = "awaiting_human"


def _on_approval_decided(ledger: Ledger, entry: ApprovalDecidedEntry) -> None:
    ledger.pending.pop(entry.payload.tool_call_id, None)
    if not ledger.pending:
        ledger.status = "tool_running"


def _on_call_started(ledger: Ledger, entry: ModelCallStartedEntry) -> None:
    ledger.status = "model_running"


def _on_call_failed(ledger: Ledger, entry: ModelCallFailedEntry) -> None:
    ledger.last_error = entry.payload.error
    ledger.add_usage(entry.payload.usage)


def _on_run_started(ledger: Ledger, entry: RunStartedEntry) -> None:
    ledger.add_run(entry.run_id)
    ledger.status, ledger.last_error = "preparing", None


def _on_run_ended(ledger: Ledger, entry: RunEndedEntry) -> None:
    ledger.current_run = None
    ledger.status, ledger.last_error = entry.payload.status, entry.payload.error
    ledger.pending = {}


def _on_header(ledger: Ledger, entry: SessionHeaderEntry) -> None:
    header = entry.payload
    ledger.schema_version = header.schema_version
    ledger.title = header.title if header.title is not None else ledger.title
    ledger.metadata = {**ledger.metadata, **(header.metadata or {})}


def _on_system_prompt(ledger: Ledger, entry: SystemPromptEntry) -> None:
    ledger.system_instruction = entry.payload.text


def _on_compaction(ledger: Ledger, entry: CompactionSummaryEntry) -> None:
    ledger.add_usage(entry.payload.usage)


STEPS: dict[str, Callable[[Ledger, Any], None] | None] = {
    "session_header": _on_header,
    "run_started": _on_run_started,
    "run_ended": _on_run_ended,
    "model_input": None,
    "model_call_started": _on_call_started,
    "model_call_failed": _on_call_failed,
    "model_output": _on_output,
    "tools_change": None,
    "tool_started": _on_tool_started,
    "tool_deferred": None,
    "tool_results": _on_results,
    "approval_requested": _on_approval_requested,
    "approval_decided": _on_approval_decided,
    "model_change": None,
    "runtime_init": None,
    "system_prompt": _on_system_prompt,
    "widget_event": None,
    "fold": None,
    "compaction_summary": _on_compaction,
    "branch_summary": None,
    "redaction": None,
    "purge": None,
    "delta_batch": None,
    "custom": None,
}
"""What each kind does to the sums. A table and not a match: a long log goes through it entry by entry."""
