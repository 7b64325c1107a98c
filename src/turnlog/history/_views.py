"""Views of a log: the conversation, the agent's state, entries with redactions applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ..contract import (
    Entry,
    EntryPayload,
    ErrorInfo,
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
    digest,
    encode,
)
from ._blank import blank_payload
from ._copies import copies_of, trim
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


def named_ids(entries: Sequence[Entry]) -> set[str]:
    """Ids that a redaction or a purge names."""
    named: set[str] = set()
    for entry in entries:
        if isinstance(entry, RedactionEntry | PurgeEntry):
            named.update(entry.payload.entry_ids)
    return named


def redacted_ids(entries: Sequence[Entry]) -> set[str]:
    """Ids of the entries whose content no view may show: the named ones, and what was made from them."""
    named = named_ids(entries)
    return named | copies_of(entries, named).whole if named else named


def visible_entries(entries: Sequence[Entry]) -> list[Entry]:
    """``entries`` with the content of redacted ones replaced by a placeholder; structure stays.

    Copies of it in other entries go too: arguments of a call that an event of a widget repeats, and screens
    shown between a redacted entry and its redaction, for a widget may have shown it there.
    """
    named = named_ids(entries)
    if not named:
        return list(entries)
    copies = copies_of(entries, named)
    hidden = named | copies.whole
    last = max(entry.seq for entry in entries if isinstance(entry, RedactionEntry | PurgeEntry))
    return [
        hide(entry)
        if entry.id in hidden
        else _with_payload(entry, trim(entry, copies.calls, screen=copies.first < entry.seq < last))
        for entry in entries
    ]


def trims_after(
    entries: Sequence[Entry], entry_ids: Iterable[str], *, erased: bool = False
) -> Iterator[tuple[Entry, EntryPayload]]:
    """Entries of which a part stays once these are gone as well as those that are gone already: each with
    what stays of it. Where they are ``erased``, what was only hidden before still has its content, and a fold
    over something older that is gone has its screen."""
    more = set(entry_ids)
    named = named_ids(entries) | more
    copies = copies_of(entries, named)
    whole = more if erased else named | copies.whole
    purged = named_ids([entry for entry in entries if isinstance(entry, PurgeEntry)]) | more
    calls = copies_of(entries, purged).calls if erased else copies.calls
    for entry in entries:
        if entry.id in whole or entry.purged_digest is not None:
            continue
        if isinstance(entry, ModelOutputEntry) and trim(entry, calls, screen=False) == entry.payload:
            continue  # arguments that were only hidden stay in the store
        left = trim(entry, copies.calls, screen=entry.seq > copies.first)
        if left != entry.payload:
            yield entry, left


def redaction_of(
    entries: Sequence[Entry], entry_ids: Sequence[str]
) -> tuple[list[str], dict[str, str] | None]:
    """These entries and those that repeat them; and digests of what stays of those in which a part does."""
    more = sorted(copies_of(entries, set(entry_ids)).whole)
    trimmed: dict[str, str] = {}
    for entry, left in trims_after(entries, entry_ids):
        meta = f":{digest(encode(entry.meta))}" if entry.meta else ""
        trimmed[entry.id] = digest(encode(left)) + meta
    return [*entry_ids, *more], trimmed or None


def hide(entry: Entry) -> Entry:
    return _replace(entry, payload=blank_payload(entry.payload), meta=None)


def _with_payload(entry: Entry, payload: EntryPayload) -> Entry:
    return entry if payload is entry.payload else _replace(entry, payload=payload)
