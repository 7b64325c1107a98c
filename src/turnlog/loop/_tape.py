"""The recording a replay reads: its entries, and how far the replay has come."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import NoReturn

import msgspec

from turnlog.contract import (
    AgentError,
    BranchSummaryEntry,
    CompactionSummaryEntry,
    CustomEntry,
    DeltaBatchEntry,
    Entry,
    ErrorInfo,
    ModelCallStarted,
    ModelChangeEntry,
    ModelInput,
    ModelInputEntry,
    ModelOutput,
    PurgeEntry,
    RedactionEntry,
    RunEnded,
    RunEndedEntry,
    ToolAnsweredEntry,
    ToolResults,
    ToolResultsEntry,
    WidgetEventEntry,
    encode,
)
from turnlog.history import Session

from ._ports import RunInterrupted, RunLeft

_replace = msgspec.structs.replace


class TapeEnded(RunLeft):
    """The recording stops here: the run was still open."""


_BY_OTHERS = (
    RedactionEntry,
    PurgeEntry,
    CustomEntry,
    CompactionSummaryEntry,
    ModelChangeEntry,
    DeltaBatchEntry,
    ToolAnsweredEntry,
)
"""What anybody may append while a run goes; the runner neither writes it nor waits for it."""


class Tape:
    """The recorded entries, and how far the replay has come."""

    def __init__(self, recorded: list[Entry]) -> None:
        self.recorded = recorded
        self._cut = next((entry.seq for entry in recorded if _is_cut(entry)), len(recorded))
        self._purged = max((entry.seq for entry in recorded if isinstance(entry, PurgeEntry)), default=0)
        self._changed = next(
            (entry.seq for entry in recorded if isinstance(entry, RedactionEntry | PurgeEntry)), len(recorded)
        )
        self.mismatch: tuple[int, str] | None = None
        self._session: Session | None = None

    def follow(self, session: Session) -> None:
        """Compare every entry of ``session`` with the recorded one. A subscriber of it."""
        self._session = session
        session.subscribe(self)

    def step(self, entry: Entry) -> None:
        if entry.seq > 1:  # a session writes its header by itself
            self.compare(entry)

    def refold(self, entries: Sequence[Entry]) -> None:
        if self.mismatch is None and entries and isinstance(entries[-1], RedactionEntry | PurgeEntry):
            self.compare(entries[-1])

    def copy(self) -> None:
        """Take the next entry as it is: a fact from outside."""
        session, entry = self._session, self.recorded[self._cursor]
        assert session is not None
        session.append_recorded(entry.payload, run_id=entry.run_id, meta=entry.meta)

    @property
    def position(self) -> int:
        """How many entries have been written again."""
        return self._session.next_seq - 1 if self._session is not None else 0

    @property
    def past_changed(self) -> bool:
        """Whether a redaction or a purge has hidden something of what is behind."""
        return self.position >= self._changed

    @property
    def ended(self) -> bool:
        return self._cursor >= len(self.recorded)

    @property
    def _cursor(self) -> int:
        # A session writes its header by itself, with the first entry.
        return max(self.position, 1)

    def peek(self) -> Entry:
        """What comes next in the run. What others appended meanwhile is taken in on the way."""
        while not self.ended:
            entry = self.recorded[self._cursor]
            if isinstance(entry, BranchSummaryEntry):
                raise RunLeft  # the run stayed behind in the session this one was forked from
            if not isinstance(entry, _BY_OTHERS) and not _by_host(entry) and not self._is_late_answer(entry):
                return entry
            self.copy()
        raise TapeEnded

    def _is_late_answer(self, entry: Entry) -> bool:
        """A result that came from outside for a call whose answer was put off."""
        if not isinstance(entry, ToolResultsEntry) or self._session is None:
            return False
        # A call that is skipped is answered by the end of its run, which is made again.
        calls = self._session.state.calls
        return all(
            outcome.status != "skipped"
            and (call := calls.get(outcome.tool_call_id)) is not None
            and call.deferred is not None
            for outcome in entry.payload.outcomes
        )

    @property
    def ending(self) -> RunEnded | None:
        """How the run ends, when nothing comes before that but words that nobody answered any more."""
        self.peek()
        for entry in self.after():
            if not isinstance(entry, ModelInputEntry) or entry.payload.source != "steering":
                return entry.payload if isinstance(entry, RunEndedEntry) else None
        return None

    @property
    def next(self) -> Entry:
        """The next entry, of the run or of others."""
        return self.recorded[self._cursor]

    def after(self, skip: int = 0) -> Iterator[Entry]:
        return map(self.recorded.__getitem__, range(self._cursor + skip, len(self.recorded)))

    def session_id(self) -> str:
        """The session that wrote the next entry: a fork's shared past is its parent's."""
        return self.recorded[min(self._cursor, len(self.recorded) - 1)].session_id

    def stop(self) -> NoReturn:
        """The run was interrupted here; the end of the run says why."""
        if self.ended:
            raise TapeEnded
        for entry in self.after():
            if isinstance(entry, RunEndedEntry):
                if entry.payload.error is not None:
                    raise RunInterrupted(AgentError.from_info(entry.payload.error))
                break
        self.refuse("that nothing in the run so far leads to")

    def refuse(self, why: str) -> NoReturn:
        entry = self.next
        words = f"the recording continues with a {entry.kind} {why}"
        self.mismatch = self.mismatch or (entry.seq, words)
        raise AgentError("ReplayMismatch", f"entry {entry.seq}: {words}")

    def is_unproven(self, entry: Entry) -> bool:
        """Whether what it was made of was purged since, so that it cannot be made again."""
        return self._cut < entry.seq < self._purged

    def _says(self, entry: Entry) -> bytes:
        payload = entry.payload
        if isinstance(payload, RunEnded) and payload.error is not None and _is_older_stop(payload.error):
            payload = _replace(payload, error=_replace(payload.error, code="OutputTruncated"))
        if entry.seq > self._cut and isinstance(payload, ModelCallStarted):
            # An estimate learns from all the calls before.
            payload = _replace(payload, estimated_tokens=None)
        if self.is_unproven(entry):
            match payload:
                case ModelCallStarted():
                    payload = _replace(payload, context_hash="", message_count=0)
                case ModelOutput():
                    payload = _replace(payload, wire_hash=None)
                case ModelInput():
                    payload = _replace(payload, sections=None)
                case ToolResults():
                    bare = [_replace(outcome, sections=None) for outcome in payload.outcomes]
                    payload = _replace(payload, outcomes=bare)
                case _:
                    pass
        return encode(payload)

    def compare(self, entry: Entry) -> None:
        if entry.seq > len(self.recorded):
            raise TapeEnded
        expected = self.recorded[entry.seq - 1]
        if _place(expected) == _place(entry) and (
            _is_cut(expected)  # its content, or a part of it, is gone: its place is all there is
            or (expected.meta == entry.meta and self._says(expected) == self._says(entry))
        ):
            return
        self.mismatch = self.mismatch or (entry.seq, show_difference(expected, entry))
        raise AgentError("ReplayMismatch", f"entry {entry.seq} differs:\n{self.mismatch[1]}")


def _is_older_stop(error: ErrorInfo) -> bool:
    """A typed answer that reached its length limit, under the name that older logs have for it."""
    return error.code == "OutputInvalid" and (error.meta or {}).get("finish_reason") == "length"


def _is_cut(entry: Entry) -> bool:
    return entry.purged_digest is not None or entry.trimmed_digest is not None


def _by_host(entry: Entry) -> bool:
    return isinstance(entry, WidgetEventEntry) and entry.payload.tool_call_id is None


def _place(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.seq, entry.parent_id, entry.run_id


def show_difference(expected: Entry, found: Entry) -> str:
    def lines(entry: Entry) -> list[str]:
        plain = {
            "kind": entry.kind,
            "seq": entry.seq,
            "parentId": entry.parent_id,
            "runId": entry.run_id,
            "payload": json.loads(encode(entry.payload)),
            "meta": entry.meta,
        }
        return json.dumps(plain, indent=2, ensure_ascii=False).splitlines()

    return "\n".join(
        difflib.unified_diff(lines(expected), lines(found), "recorded", "replayed", lineterm="", n=2)
    )
