"""What a reader of a conversation is told beside the words: who spoke, what was decided, what went wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..contract import (
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    Entry,
    ErrorInfo,
    FoldEntry,
    ModelCallFailedEntry,
    ModelChangeEntry,
    ModelInputEntry,
    ModelOutputEntry,
    Purge,
    PurgeEntry,
    Redaction,
    RedactionEntry,
    RunEndedEntry,
    TokenUsage,
    ToolCallPart,
    ToolOutcome,
    ToolResultPayload,
    ToolResultsEntry,
)
from ._ledger import Ledger
from ._views import visible_entries

_SPEAKERS = {"user": "User", "steering": "User, during the run", "correction": "Correction", "host": "Host"}
_DECIDED = {"approve": "approved", "deny": "denied", "abort": "answered with an end of the run"}
_CUT = {
    "length": "stopped at its length limit",
    "content_filter": "was withheld by the provider",
    "refusal": "is a refusal",
    "other": "ended for a reason that was not named",
}
_TITLE = 80


class Story:
    """The visible entries of a session, and what belongs together among them."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = visible_entries(entries)
        self.ledger = Ledger()
        self.results: dict[str, tuple[ToolResultPayload, ToolOutcome]] = {}
        self.requests: dict[str, ApprovalRequested] = {}
        self.decisions: dict[str, ApprovalDecided] = {}
        self._names: dict[str, str] = {}
        self._told: ErrorInfo | None = None
        for entry in self.entries:
            self.ledger.apply(entry)
            self._note_calls(entry)

    def _note_calls(self, entry: Entry) -> None:
        if isinstance(entry, ModelOutputEntry):
            for part in entry.payload.message.tool_calls:
                self._names[part.payload.tool_call_id] = part.payload.tool_name
        elif isinstance(entry, ToolResultsEntry):
            parts = entry.payload.message.tool_results
            for part, outcome in zip(parts, entry.payload.outcomes, strict=False):
                self.results[part.payload.tool_call_id] = (part.payload, outcome)
        elif isinstance(entry, ApprovalRequestedEntry):
            self.requests[entry.payload.tool_call_id] = entry.payload
        elif isinstance(entry, ApprovalDecidedEntry):
            self.decisions[entry.payload.tool_call_id] = entry.payload

    @property
    def title(self) -> str:
        """The title that was given, else the user's first words."""
        if self.ledger.title:
            return one_line(self.ledger.title)
        inputs = (entry.payload.message for entry in self.entries if isinstance(entry, ModelInputEntry))
        first = one_line(next((message.text for message in inputs if message.role == "user"), ""))
        return (first if len(first) <= _TITLE else first[: _TITLE - 1] + "…") or "Conversation"

    def waits(self, call_id: str) -> bool:
        """Whether a call is asked about and not decided."""
        return call_id in self.requests and call_id not in self.decisions and call_id not in self.results

    def approval(self, call_id: str) -> str | None:
        """Who decided what about a call; None when nobody was asked, or nobody has answered."""
        decided = self.decisions.get(call_id)
        if decided is None:
            return None
        note = f": {decided.note}" if decided.note else ""
        if decided.action == "expire":
            return f"not decided in time{note}"
        if decided.action == "modify":
            return f"approved by {decided.decided_by} with other arguments{note}"
        return f"{_DECIDED[decided.action]} by {decided.decided_by}{note}"

    def note(self, entry: Entry) -> str | None:
        """A line for entries that a reader wants to know of; None for the others."""
        match entry:
            case ModelCallFailedEntry():
                self._told = entry.payload.error
                again = "; it was made again" if entry.payload.retry_in_ms is not None else ""
                return f"Model call failed: {_error(entry.payload.error)}{again}"
            case RunEndedEntry() if entry.payload.status != "completed":
                error = entry.payload.error
                told, self._told = self._told, None
                why = f": {_error(error)}" if error and not (told and _error(told) == _error(error)) else ""
                return f"Run {entry.payload.status}{why}"
            case ApprovalRequestedEntry() if self.waits(entry.payload.tool_call_id):
                why = f": {entry.payload.reason}" if entry.payload.reason else ""
                return f"The call of {entry.payload.tool_name} waits for approval{why}"
            case ApprovalDecidedEntry():
                name = self._names.get(entry.payload.tool_call_id, entry.payload.tool_call_id)
                return f"The call of {name} was {self.approval(entry.payload.tool_call_id)}"
            case ModelChangeEntry():
                return f"The model is now {entry.payload.target.model}"
            case FoldEntry():
                before, after = entry.payload.tokens_before, entry.payload.tokens_after
                return f"From here on the model sees less of what came before: {before:,} → {after:,} tokens"
            case CompactionSummaryEntry():
                return f"Summary of what came before: {entry.payload.summary}"
            case BranchSummaryEntry():
                p = entry.payload
                return f"Forked from session {p.from_session_id} after its entry {p.from_seq}"
            case RedactionEntry() | PurgeEntry():
                return _hidden(entry.payload)
            case _:
                return None


def speaker(entry: ModelInputEntry) -> str:
    return _SPEAKERS[entry.payload.source] if entry.payload.message.role == "user" else "System"


def ending(entry: ModelOutputEntry) -> str | None:
    """How an answer ended, where it was not finished."""
    return _CUT.get(entry.payload.finish_reason)


def describe_usage(usage: TokenUsage) -> str:
    words = f"{usage.input_tokens:,} tokens in"
    if usage.cached_input_tokens:
        words += f" ({usage.cached_input_tokens:,} cached)"
    words += f", {usage.output_tokens:,} out"
    return words + (f", ${usage.cost:.4f}" if usage.cost is not None else "")


def call_text(part: ToolCallPart) -> str:
    call = part.payload
    if call.arguments is None:
        return call.raw_args_text
    return pretty(call.arguments)


def pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def one_line(text: str) -> str:
    return " ".join(text.split())


def _error(error: ErrorInfo) -> str:
    return f"{error.code}: {error.message}"


def _hidden(done: Redaction | Purge) -> str:
    number = len(done.entry_ids)
    what = f"{number} entr{'y' if number == 1 else 'ies'}"
    how = "hidden" if isinstance(done, Redaction) else "erased"
    by, why = f" by {done.by}" if done.by else "", f": {done.reason}" if done.reason else ""
    return f"{what} {how}{by}{why}"
