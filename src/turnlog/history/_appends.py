"""The one way into the log: a method for each thing that can have happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..contract import (
    ApprovalDecided,
    ApprovalRequested,
    BranchSummary,
    CompactionSummary,
    Custom,
    DeltaBatch,
    Entry,
    EntryPayload,
    Fold,
    JsonObject,
    LevelOfDetailSections,
    Message,
    MessageDelta,
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
    SystemPrompt,
    ToolOutcome,
    ToolResults,
    ToolsChange,
    ToolSpec,
    ToolStarted,
    WidgetEvent,
    find_unjson,
    tool_result_part,
)
from ._ledger import Ledger, check_input, invalid


class Appends:
    """Each method checks against the log and what is staged, gives the entry its place, stages and returns
    it; ``Session.commit`` writes. ``run_id`` is the current run unless said otherwise.

    Raises ``InvalidEntry``, ``InvalidMessage`` or ``MetaTooLarge`` (and ``ApprovalInvalid`` for a decision
    nobody asked for); then nothing is staged.
    """

    _ledger: Ledger

    def _stage(self, payload: EntryPayload, run_id: str | None, meta: JsonObject | None) -> Entry:
        raise NotImplementedError

    def _known_ids(self) -> frozenset[str] | set[str]:
        raise NotImplementedError

    # Runs

    def start_run(self, run_id: str, started: RunStarted, *, meta: JsonObject | None = None) -> Entry:
        self._ledger.check_run_start(run_id)
        return self._stage(started, run_id, meta)

    def end_run(self, ended: RunEnded, *, run_id: str | None = None, meta: JsonObject | None = None) -> Entry:
        self._ledger.check_run_end()
        return self._stage(ended, run_id, meta)

    # The conversation

    def append_model_input(
        self,
        message: Message,
        *,
        sections: LevelOfDetailSections | None = None,
        source: Literal["user", "steering", "correction", "host"] = "user",
        run_id: str | None = None,
        meta: JsonObject | None = None,
    ) -> Entry:
        check_input(message)
        return self._stage(ModelInput(message=message, sections=sections, source=source), run_id, meta)

    def start_model_call(
        self, started: ModelCallStarted, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        return self._stage(started, run_id, meta)

    def fail_model_call(
        self, failed: ModelCallFailed, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        return self._stage(failed, run_id, meta)

    def append_model_output(
        self, output: ModelOutput, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        self._ledger.check_output(output)
        return self._stage(output, run_id, meta)

    def append_tool_results(
        self, results: ToolResults, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        self._ledger.check_results(results)
        return self._stage(results, run_id, meta)

    def fail_open_calls(
        self,
        reason: str,
        *,
        status: Literal["failed", "skipped", "denied", "unknown"] = "failed",
        error_code: str | None = None,
        unmatched: Sequence[str] = (),
        run_id: str | None = None,
        meta: JsonObject | None = None,
    ) -> Entry | None:
        """One result for every open call, all saying ``reason``; None when no call is open.

        ``unmatched`` names results that came back and fit no open call: they are noted in meta.
        """
        calls = list(self._ledger.open_calls.values())
        if not calls:
            return None
        parts = [tool_result_part(call.tool_call_id, reason, is_error=True) for call in calls]
        outcomes = [
            ToolOutcome(
                tool_call_id=call.tool_call_id,
                tool_name=call.tool_name,
                status=status,
                error_code=error_code,
            )
            for call in calls
        ]
        message = Message(run_id="", role="tool", parts=list(parts), timestamp="")
        if unmatched:
            meta = {**(meta or {}), "unmatched_results": list(unmatched)[:20]}
        results = ToolResults(message=message, outcomes=outcomes, execute_error=reason)
        return self.append_tool_results(results, run_id=run_id, meta=meta)

    # Tools and approvals

    def change_tools(
        self, tools: Sequence[ToolSpec], *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        names = [tool.name for tool in tools]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise invalid(f"two tools share a name: {', '.join(twice)}; rename one")
        return self._stage(ToolsChange(tools=list(tools)), run_id, meta)

    def start_tool(
        self, started: ToolStarted, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        self._ledger.check_tool_start(started)
        return self._stage(started, run_id, meta)

    def request_approval(
        self, requested: ApprovalRequested, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        self._ledger.check_approval_request(requested)
        return self._stage(requested, run_id, meta)

    def decide_approval(
        self, decided: ApprovalDecided, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        self._ledger.check_approval_decision(decided)
        return self._stage(decided, run_id, meta)

    # What the model is and is told

    def change_model(
        self, change: ModelChange, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        return self._stage(change, run_id, meta)

    def init_runtime(
        self, data: JsonObject, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        _check_json("runtime data", data)
        return self._stage(RuntimeInit(data=data), run_id, meta)

    def set_system_instruction(
        self, text: str, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        return self._stage(SystemPrompt(text=text), run_id, meta)

    def append_widget_event(
        self, event: WidgetEvent, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        if not event.widget or not event.event:
            raise invalid("a widget event needs the widget's name and the event's")
        _check_json(f"event {event.event!r} of widget {event.widget!r}", event.data)
        return self._stage(event, run_id, meta)

    def append_fold(self, fold: Fold, *, run_id: str | None = None, meta: JsonObject | None = None) -> Entry:
        return self._stage(fold, run_id, meta)

    def append_compaction(
        self, summary: CompactionSummary, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        if not summary.summary.strip():
            raise invalid("a compaction summary is empty")
        return self._stage(summary, run_id, meta)

    def append_branch_summary(
        self, summary: BranchSummary, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        return self._stage(summary, run_id, meta)

    # Bookkeeping

    def redact(
        self,
        entry_ids: Sequence[str],
        reason: str | None = None,
        by: str | None = None,
        *,
        trimmed: dict[str, str] | None = None,
        run_id: str | None = None,
        meta: JsonObject | None = None,
    ) -> Entry:
        """Hide the named entries' content from every view, export and future context.

        ``turnlog.loop.redact_entries`` looks for copies of it first, and names those too.
        """
        missing = [id for id in entry_ids if id not in self._known_ids()]
        if missing or not entry_ids:
            raise invalid(
                f"nothing to redact: no entry of this session has the id {', '.join(missing) or '-'}"
            )
        redaction = Redaction(entry_ids=list(entry_ids), trimmed=trimmed, reason=reason, by=by)
        return self._stage(redaction, run_id, meta)

    def append_purge(
        self,
        entry_ids: Sequence[str],
        reason: str | None = None,
        by: str | None = None,
        *,
        trimmed: dict[str, str] | None = None,
        run_id: str | None = None,
        meta: JsonObject | None = None,
    ) -> Entry:
        """Record that content is being erased. ``turnlog.history.purge`` calls this, and then erases."""
        purge = Purge(entry_ids=list(entry_ids), trimmed=trimmed, reason=reason, by=by)
        return self._stage(purge, run_id, meta)

    def append_custom(
        self, name: str, data: JsonObject, *, run_id: str | None = None, meta: JsonObject | None = None
    ) -> Entry:
        """Keep something of the host's own with the session. No model ever sees it."""
        if not name:
            raise invalid("a custom entry needs a name")
        _check_json(f"custom entry {name!r}", data)
        return self._stage(Custom(name=name, data=data), run_id, meta)

    def append_deltas(
        self,
        model_call_index: int,
        attempt: int,
        deltas: Sequence[MessageDelta],
        *,
        run_id: str | None = None,
        meta: JsonObject | None = None,
    ) -> Entry:
        plain: list[JsonObject] = [msgspec.to_builtins(delta) for delta in deltas]
        batch = DeltaBatch(model_call_index=model_call_index, attempt=attempt, deltas=plain)
        return self._stage(batch, run_id, meta)


def _check_json(what: str, data: JsonObject) -> None:
    if found := find_unjson(data):
        raise invalid(f"{what}: {found}")
