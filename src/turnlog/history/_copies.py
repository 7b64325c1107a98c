"""Where else an entry's content stands: what has to go with it when it is hidden or erased."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ..contract import (
    LIVE_SCREEN,
    READ_ARTIFACT,
    RECALL,
    CompactionSummaryEntry,
    DeltaBatchEntry,
    Entry,
    EntryPayload,
    FoldEntry,
    JsonObject,
    LevelOfDetailSections,
    Message,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallPart,
    ToolResultsEntry,
    WidgetEventEntry,
    try_get_section,
)
from ._blank import PLACEHOLDER, blank_part

_NUMBERS = re.compile(r"\s*#?(\d+)(?:-(\d+))?\s*")
_SHOWN = re.compile(r"^#(\d+) (?:user|host|assistant|tool|summary)\b", re.MULTILINE)
_replace = msgspec.structs.replace


class Copies(NamedTuple):
    """``whole``: entries that repeat the content and go altogether. ``calls``: those whose arguments repeat
    it, in an answer that stays; of these ``readers`` repeat no more than the name of an artifact. Screens
    after ``first`` may show it."""

    whole: set[str]
    calls: set[str]
    first: int
    readers: set[str]


def copies_of(entries: Sequence[Entry], named: set[str]) -> Copies:
    """Everything our own code made of the named entries: folds and summaries over them, starts and approvals
    of their calls, events of widgets and the calls that made them, results that brought them back.

    What a model said of them is content of its own and is not looked for.
    """
    log = _Log(entries)
    gone, calls = {id for id in named if id in log.place}, set[str]()
    while True:
        more_calls = calls | log.calls_behind(gone)
        more = gone | log.repeating(gone, more_calls)
        if (more, more_calls) == (gone, calls):
            break
        gone, calls = more, more_calls
    first = min((log.place[id] for id in named & gone), default=len(entries))
    return Copies(gone - named, calls, first, calls & log.readers_of(gone))


class _Log:
    """A log with what is asked of it for every entry looked up once."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.place = {entry.id: entry.seq for entry in entries}
        self.outputs = [entry for entry in entries if isinstance(entry, ModelOutputEntry)]
        self.readers = [
            (entry, part.payload)
            for entry in self.outputs
            for part in entry.payload.message.tool_calls
            if part.payload.tool_name in (RECALL, READ_ARTIFACT)
        ]

    def calls_behind(self, gone: set[str]) -> set[str]:
        """Calls of answers that stay whose arguments repeat what is gone."""
        found = {
            entry.payload.tool_call_id
            for entry in self.entries
            if isinstance(entry, WidgetEventEntry) and entry.id in gone and entry.payload.tool_call_id
        }
        found |= self.readers_of(gone)
        own = {
            part.payload.tool_call_id
            for entry in self.outputs
            if entry.id in gone
            for part in entry.payload.message.tool_calls
        }
        return found - own

    def readers_of(self, gone: set[str]) -> set[str]:
        """Calls that read on in an artifact of what is gone."""
        artifacts = self._artifacts(gone)
        return {
            call.tool_call_id
            for _, call in self.readers
            if call.tool_name == READ_ARTIFACT and (call.arguments or {}).get("artifact") in artifacts
        }

    def repeating(self, gone: set[str], calls: set[str]) -> set[str]:
        cut = {
            entry.id
            for entry in self.outputs
            if any(part.payload.tool_call_id in calls for part in entry.payload.message.tool_calls)
        }
        shown = gone | cut  # a fold over a call, or a result that recalls it, has its arguments
        seqs = sorted(self.place[id] for id in shown)
        calls = calls | {
            part.payload.tool_call_id
            for entry in self.outputs
            if entry.id in gone
            for part in entry.payload.message.tool_calls
        }
        streams = {
            (entry.run_id, entry.payload.model_call_index)
            for entry in self.outputs
            if any(part.payload.tool_call_id in calls for part in entry.payload.message.tool_calls)
            or entry.id in gone
        }
        answers = self._brought_back(shown, seqs)
        return {
            entry.id
            for entry in self.entries
            if entry.id not in gone and self._repeats(entry, shown, seqs, calls, streams, answers)
        }

    def _repeats(
        self,
        entry: Entry,
        gone: set[str],
        seqs: list[int],
        calls: set[str],
        streams: set[tuple[str | None, int]],
        answers: set[str],
    ) -> bool:
        match entry:
            case FoldEntry():
                return self._folds(entry, gone, seqs)
            case CompactionSummaryEntry():
                return bool(seqs) and seqs[0] < entry.seq  # its writer was shown all that came before
            case DeltaBatchEntry():
                return (entry.run_id, entry.payload.model_call_index) in streams
            case ToolResultsEntry():
                return any(outcome.tool_call_id in answers for outcome in entry.payload.outcomes)
            case _:
                return getattr(entry.payload, "tool_call_id", None) in calls

    def _folds(self, entry: FoldEntry, gone: set[str], seqs: list[int]) -> bool:
        fold, place = entry.payload, self.place
        if any(item.text is not None and item.entry_id in gone for item in fold.items):
            return True
        summaries = [id for id in gone if place[id] < entry.seq and self._is_summary(id)]
        return any(
            summaries
            or any(
                place.get(segment.first_entry_id, 0) <= seq <= place.get(segment.last_entry_id, entry.seq)
                for seq in seqs
            )
            for segment in fold.segments
        )

    def _is_summary(self, id: str) -> bool:
        return isinstance(self.entries[self.place[id] - 1], CompactionSummaryEntry)

    def _artifacts(self, gone: set[str]) -> set[str]:
        return {
            outcome.artifact
            for entry in self.entries
            if isinstance(entry, ToolResultsEntry) and entry.id in gone
            for outcome in entry.payload.outcomes
            if outcome.artifact is not None
        }

    def _brought_back(self, gone: set[str], seqs: list[int]) -> set[str]:
        """Calls whose results show again what is gone."""
        artifacts = self._artifacts(gone)
        return {
            call.tool_call_id
            for entry, call in self.readers
            if (
                (call.arguments or {}).get("artifact") in artifacts
                if call.tool_name == READ_ARTIFACT
                else _recalls(call.arguments or {}, gone, [seq for seq in seqs if seq < entry.seq])
                or self._found(call.tool_call_id, seqs)
            )
        }

    def _found(self, call_id: str, seqs: list[int]) -> bool:
        """Whether a search by words showed one of these: it names each by its number."""
        for entry in self.entries:
            if isinstance(entry, ToolResultsEntry):
                for part in entry.payload.message.tool_results:
                    if part.payload.tool_call_id == call_id and isinstance(part.payload.content, str):
                        return any(int(number) in seqs for number in _SHOWN.findall(part.payload.content))
        return False


def _recalls(arguments: JsonObject, gone: set[str], seqs: list[int]) -> bool:
    name: Any = arguments.get("entry")
    if not isinstance(name, str):
        return False
    number = _NUMBERS.fullmatch(name)
    if name in gone or number is None:
        return name in gone
    first, last = int(number[1]), int(number[2] or number[1])
    return any(first <= seq <= last for seq in seqs)


# ── cutting copies out of entries that stay ──


def trim(entry: Entry, calls: set[str], *, screen: bool) -> EntryPayload:
    """What stays of an entry's payload without these calls' arguments, and without what widgets showed."""
    payload = entry.payload
    match entry:
        case ModelOutputEntry() if calls and any(
            part.payload.tool_call_id in calls for part in entry.payload.message.tool_calls
        ):
            return _replace(entry.payload, message=_without_arguments(entry.payload.message, calls))
        case FoldEntry() if screen and entry.payload.screen is not None:
            return _replace(entry.payload, screen=PLACEHOLDER)
        case ModelInputEntry() if screen:
            sections = _without_screen(entry.payload.sections)
            return payload if sections is entry.payload.sections else _replace(payload, sections=sections)
        case ToolResultsEntry() if screen:
            outcomes = [
                _replace(outcome, sections=_without_screen(outcome.sections))
                for outcome in entry.payload.outcomes
            ]
            return payload if outcomes == entry.payload.outcomes else _replace(payload, outcomes=outcomes)
        case _:
            return payload


def _without_arguments(message: Message, calls: set[str]) -> Message:
    parts = [
        blank_part(part) if isinstance(part, ToolCallPart) and part.payload.tool_call_id in calls else part
        for part in message.parts
    ]
    return _replace(message, parts=parts)


def _without_screen(sections: LevelOfDetailSections | None) -> LevelOfDetailSections | None:
    if sections is None or try_get_section(sections.live, LIVE_SCREEN) is None:
        return sections
    return sections.with_live_section(LIVE_SCREEN, PLACEHOLDER)
