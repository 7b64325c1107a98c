"""Views of a log: the conversation, the agent's state, entries with redactions applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..contract import (
    LIVE_SCREEN,
    CompactionSummaryEntry,
    DeltaBatchEntry,
    Entry,
    ErrorInfo,
    FoldEntry,
    LevelOfDetailSections,
    Message,
    ModelInputEntry,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunStatus,
    TokenUsage,
    ToolCall,
    ToolResultsEntry,
    Value,
    try_get_section,
)
from ._blank import PLACEHOLDER, blank_payload
from ._ledger import Ledger

_replace = msgspec.structs.replace


class AgentState(Value, frozen=True, kw_only=True):
    """What an agent is at, as its log tells it."""

    status: RunStatus
    current_run_id: str | None = None
    pending_tool_calls: list[ToolCall] = []
    pending_approvals: list[str] = []
    last_error: ErrorInfo | None = None
    token_usage: TokenUsage | None = None
    cost_usage: float | None = None

    @classmethod
    def of(cls, ledger: Ledger) -> AgentState:
        return cls(
            status=ledger.status,
            current_run_id=ledger.current_run,
            pending_tool_calls=list(ledger.open_calls.values()),
            pending_approvals=list(ledger.pending),
            last_error=ledger.last_error,
            token_usage=ledger.usage,
            cost_usage=ledger.usage.cost if ledger.usage else None,
        )

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> AgentState:
        ledger = Ledger()
        for entry in entries:
            ledger.apply(entry)
        return cls.of(ledger)


class Transcript:
    """The visible messages of a growing log; costs what is new, unless something old was hidden."""

    def __init__(self) -> None:
        self._seen = 0
        self._messages: list[Message] = []

    def update(self, entries: Sequence[Entry]) -> list[Message]:
        fresh = entries[self._seen :]
        if any(isinstance(entry, RedactionEntry | PurgeEntry) for entry in fresh):
            self._messages = messages_of(visible_entries(entries))
        else:
            self._messages += messages_of(fresh)
        self._seen = len(entries)
        return self._messages


def messages_of(entries: Iterable[Entry]) -> list[Message]:
    return [
        entry.payload.message
        for entry in entries
        if isinstance(entry, ModelInputEntry | ModelOutputEntry | ToolResultsEntry)
    ]


def redacted_ids(entries: Sequence[Entry]) -> set[str]:
    """Ids of the entries whose content no view may show: the named ones, and what was made from them."""
    named: set[str] = set()
    for entry in entries:
        if isinstance(entry, RedactionEntry | PurgeEntry):
            named.update(entry.payload.entry_ids)
    return named | derived_ids(entries, named) if named else named


def visible_entries(entries: Sequence[Entry]) -> list[Entry]:
    """``entries`` with the content of redacted ones replaced by a placeholder; structure stays.

    Screens shown between a redacted entry and its redaction go too: a widget may have shown it there.
    """
    hidden = redacted_ids(entries)
    if not hidden:
        return list(entries)
    first = min(entry.seq for entry in entries if entry.id in hidden)
    last = max(entry.seq for entry in entries if isinstance(entry, RedactionEntry | PurgeEntry))
    return [
        hide(entry) if entry.id in hidden else hide_screen(entry) if first < entry.seq < last else entry
        for entry in entries
    ]


def hide(entry: Entry) -> Entry:
    return _replace(entry, payload=blank_payload(entry.payload), meta=None)


def hide_screen(entry: Entry) -> Entry:
    """``entry`` without what widgets showed in it."""
    match entry:
        case FoldEntry() if entry.payload.screen is not None:
            payload = _replace(entry.payload, screen=PLACEHOLDER)
        case ModelInputEntry():
            sections = _without_screen(entry.payload.sections)
            if sections is entry.payload.sections:
                return entry
            payload = _replace(entry.payload, sections=sections)
        case ToolResultsEntry():
            outcomes = [
                _replace(outcome, sections=_without_screen(outcome.sections))
                for outcome in entry.payload.outcomes
            ]
            payload = _replace(entry.payload, outcomes=outcomes)
        case _:
            return entry
    return _replace(entry, payload=payload)


def _without_screen(sections: LevelOfDetailSections | None) -> LevelOfDetailSections | None:
    if sections is None or try_get_section(sections.live, LIVE_SCREEN) is None:
        return sections
    return sections.with_live_section(LIVE_SCREEN, PLACEHOLDER)


def derived_ids(entries: Sequence[Entry], named: set[str]) -> set[str]:
    """Entries that repeat content of the named ones: folds and summaries over them, calls made by them."""
    place = {entry.id: entry.seq for entry in entries}
    seqs = sorted(place[id] for id in named if id in place)
    calls: set[str] = set()
    model_calls: set[tuple[str | None, int]] = set()
    for entry in entries:
        if entry.id in named and isinstance(entry, ModelOutputEntry):
            calls.update(part.payload.tool_call_id for part in entry.payload.message.tool_calls)
            model_calls.add((entry.run_id, entry.payload.model_call_index))
    return {
        entry.id
        for entry in entries
        if entry.id not in named and _repeats(entry, named, place, seqs, calls, model_calls)
    }


def _repeats(
    entry: Entry,
    named: set[str],
    place: dict[str, int],
    seqs: list[int],
    calls: set[str],
    model_calls: set[tuple[str | None, int]],
) -> bool:
    if isinstance(entry, FoldEntry):
        if any(item.text is not None and item.entry_id in named for item in entry.payload.items):
            return True
        return any(
            place.get(segment.first_entry_id, 0) <= seq <= place.get(segment.last_entry_id, entry.seq)
            for segment in entry.payload.segments
            for seq in seqs
        )
    if isinstance(entry, CompactionSummaryEntry):
        return bool(seqs) and seqs[0] < place.get(entry.payload.first_kept_entry_id, entry.seq)
    if isinstance(entry, DeltaBatchEntry):
        return (entry.run_id, entry.payload.model_call_index) in model_calls
    call_id = getattr(entry.payload, "tool_call_id", None)
    return call_id is not None and call_id in calls
