"""Views of a log: the conversation, the agent's state, entries with redactions applied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, cast, overload, runtime_checkable

import msgspec

from ..contract import (
    HINTS,
    Clock,
    Entry,
    EntryPayload,
    ErrorInfo,
    Fold,
    LevelOfDetailSections,
    Message,
    ModelInput,
    ModelInputEntry,
    ModelOutputEntry,
    PendingApproval,
    PurgeEntry,
    RedactionEntry,
    RunStatus,
    Store,
    TokenUsage,
    ToolCall,
    ToolResults,
    ToolResultsEntry,
    Value,
    digest,
    encode,
    try_get_section,
    without_live_screen,
)
from ._blank import PLACEHOLDER, blank_payload
from ._copies import Copies, copies_of, trim
from ._state import SessionState

T = TypeVar("T")

_replace = msgspec.structs.replace
HIDING = (RedactionEntry, PurgeEntry)
"""A constant, since a union would be made anew for every entry of a long log."""


class AgentState(Value, frozen=True, kw_only=True):
    """Where an agent stands, as its log has it."""

    status: RunStatus
    current_run_id: str | None = None
    pending_tool_calls: list[ToolCall] = []
    pending_approvals: list[str] = []
    last_error: ErrorInfo | None = None
    token_usage: TokenUsage | None = None
    cost_usage: float | None = None

    @classmethod
    def of(cls, state: SessionState) -> AgentState:
        usage = state.total_usage
        return cls(
            status=state.status,
            current_run_id=state.current_run,
            pending_tool_calls=[call.call for call in state.open_calls],
            pending_approvals=[call.call.tool_call_id for call in state.awaiting],
            last_error=state.last_error,
            token_usage=usage,
            cost_usage=usage.cost if usage else None,
        )

    @classmethod
    def from_entries(cls, entries: Iterable[Entry]) -> AgentState:
        return cls.of(SessionState.of(list(entries)))


def pending_in(session_id: str, state: SessionState) -> list[PendingApproval]:
    """The questions of a session that nobody has decided, the oldest first."""
    asked = [call.request for call in state.awaiting if call.request is not None]
    return [
        PendingApproval(
            entry_id=entry.id,
            session_id=session_id,
            run_id=entry.run_id,
            requested_at=entry.timestamp,
            requested=entry.payload,
        )
        for entry in sorted(asked, key=lambda entry: entry.seq)
    ]


def screens_in(entries: Iterable[Entry]) -> Iterator[tuple[int, str]]:
    """The widgets' screen wherever the log shows another one than before, with the number of the entry."""
    last: str | None = None
    for entry in entries:
        for live in _live_sections(entry):
            _, screen = without_live_screen(live)
            if screen is not None and screen != last:
                last = screen
                yield entry.seq, screen


def _live_sections(entry: Entry) -> Iterator[Any]:
    match entry:
        case ModelInputEntry() if entry.payload.sections is not None:
            yield entry.payload.sections.live
        case ToolResultsEntry():
            for outcome in entry.payload.outcomes:
                if outcome.sections is not None:
                    yield outcome.sections.live
        case _:
            pass


class ReadOnly(Sequence[T]):
    """A list that can only be read, and grows with the one behind it."""

    __slots__ = ("_items",)

    def __init__(self, items: list[T]) -> None:
        self._items = items

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: int | slice) -> T | list[T]:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReadOnly):
            return self._items == cast("ReadOnly[T]", other)._items
        return self._items == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._items)


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
    return _hidden_now(entries).whole


def visible_entries(entries: Sequence[Entry]) -> list[Entry]:
    """``entries`` with the content of redacted ones replaced by a placeholder; structure stays.

    Copies of it in other entries go too: arguments of a call that an event of a widget repeats, and screens
    shown between a redacted entry and its redaction, for a widget may have shown it there.
    """
    copies = _hidden_now(entries)
    if not copies.whole:
        return list(entries)
    last = max(entry.seq for entry in entries if isinstance(entry, RedactionEntry | PurgeEntry))
    return [
        hide(entry, copies.whole)
        if entry.id in copies.whole
        else _with_payload(entry, trim(entry, copies.calls, screen=copies.first < entry.seq < last))
        for entry in entries
    ]


def _hidden_now(entries: Sequence[Entry]) -> Copies:
    """All that redactions and purges hide: the entries they name, and the copies that came before them. What
    was written after one was made without what it hides."""
    whole, calls, first = set[str](), set[str](), len(entries)
    for entry in entries:
        if isinstance(entry, HIDING):
            named = set(entry.payload.entry_ids)
            copies = copies_of(entries[: entry.seq - 1], named)
            whole |= named | copies.whole
            # What reads a redacted artifact is refused, so that the calls of earlier logs keep its name.
            calls |= copies.calls - copies.readers if isinstance(entry, RedactionEntry) else copies.calls
            first = min(first, copies.first)
    return Copies(whole, calls, first, set())


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


def hide(entry: Entry, hidden: Collection[str] = ()) -> Entry:
    """``entry`` without its content. What a fold says of an entry that is not ``hidden`` itself is no copy,
    and that hints were shown there is not what they said."""
    blank: Any = blank_payload(entry.payload)
    match entry.payload:
        case Fold() as fold:
            items = [
                item if old.entry_id in hidden else old
                for item, old in zip(blank.items, fold.items, strict=True)
            ]
            blank = _replace(blank, items=items)
        case ModelInput() as given:
            blank = _replace(blank, sections=_only_hints(given.sections))
        case ToolResults() as results:
            outcomes = [
                _replace(outcome, sections=_only_hints(old.sections))
                for outcome, old in zip(blank.outcomes, results.outcomes, strict=True)
            ]
            blank = _replace(blank, outcomes=outcomes)
        case _:
            pass
    return _replace(entry, payload=blank, meta=None)


def _only_hints(sections: LevelOfDetailSections | None) -> LevelOfDetailSections | None:
    if sections is None or try_get_section(sections.live, HINTS) is None:
        return None
    return LevelOfDetailSections(live=[(HINTS, PLACEHOLDER)], summary=[], gist=[])


def _with_payload(entry: Entry, payload: EntryPayload) -> Entry:
    return entry if payload is entry.payload else _replace(entry, payload=payload)


# Watching a log grow

INTERVAL = 0.2
_HINTED = 1.0
"""Seconds between two looks at a store that says when to look: its hints may be lost."""


@runtime_checkable
class Announcing(Protocol):
    """A store that hears of changes, which others may have made."""

    async def wait_for_change(self, session_id: str, after: int, timeout: float) -> None:
        """Until the log may have grown past entry ``after``, ``timeout`` seconds at most."""
        ...


async def follow(
    store: Store, session_id: str, after: int = 0, *, clock: Clock, interval: float = INTERVAL
) -> AsyncIterator[Entry]:
    """Entries after ``after``, those that are there and then those that come, for as long as it is read.

    Looks every ``interval`` seconds of ``clock``; a store that hears of changes says when to look, and is
    looked at less often beside. A session that does not exist yet is waited for.
    """
    while True:
        tail = await store.tail(session_id)
        if tail is None or tail.seq <= after:
            if isinstance(store, Announcing):
                await store.wait_for_change(session_id, after, max(interval, _HINTED))
            else:
                await clock.sleep(interval)
            continue
        for entry in await store.load(session_id, after=after):
            after = entry.seq
            yield entry
