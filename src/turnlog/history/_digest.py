"""What a log adds up to for a list of sessions, and which of its questions wait for a human."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    CustomEntry,
    Entry,
    JsonObject,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    PendingApproval,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    SessionDigest,
    SessionHeaderEntry,
    ToolResultsEntry,
    ToolStartedEntry,
)

PAUSED = "turnlog.paused"
"""The name of the custom entry that records that a run was paused."""
ABOUT_LENGTH = 120


def digest_of(entries: Sequence[Entry]) -> SessionDigest:
    """The digest of a whole log."""
    hidden = _hidden(entries)
    fold = _Fold()
    for entry in entries:
        if entry.id not in hidden or not isinstance(entry, SessionHeaderEntry):
            fold.step(entry)
    return SessionDigest(
        status=fold.status,
        run_id=fold.run_id,
        pending=len(fold.pending),
        title=fold.title,
        metadata=fold.metadata or None,
        about=_about(entries, hidden),
    )


def pending_in(session_id: str, entries: Sequence[Entry]) -> list[PendingApproval]:
    """The questions of a log, or of the end of one that begins with the open run, that nobody decided."""
    fold = _Fold()
    for entry in entries:
        fold.step(entry)
    return [
        PendingApproval(
            entry_id=entry.id,
            session_id=session_id,
            run_id=entry.run_id,
            requested_at=entry.timestamp,
            requested=entry.payload,
        )
        for entry in fold.pending.values()
    ]


def _hidden(entries: Sequence[Entry]) -> set[str]:
    found: set[str] = set()
    for entry in entries:
        if isinstance(entry, RedactionEntry | PurgeEntry):
            found.update(entry.payload.entry_ids)
    return found


def _about(entries: Sequence[Entry], hidden: set[str]) -> str | None:
    for entry in entries:
        if not isinstance(entry, ModelInputEntry) or entry.payload.source != "user":
            continue
        if entry.id not in hidden and (text := about_text(entry.payload.message.text)):
            return text
    return None


def about_text(text: str) -> str:
    """The beginning of a message as one short line."""
    line = " ".join(text[: ABOUT_LENGTH * 4].split())
    return line if len(line) <= ABOUT_LENGTH else line[: ABOUT_LENGTH - 1].rstrip() + "…"


class _Fold:
    def __init__(self) -> None:
        self.status: Any = "idle"
        self.run_id: str | None = None
        self.title: str | None = None
        self.metadata: JsonObject = {}
        self.pending: dict[str, ApprovalRequestedEntry] = {}
        self._open: set[str] = set()
        self._paused = False

    def step(self, entry: Entry) -> None:
        paused, self._paused = self._paused, False
        match entry:
            case SessionHeaderEntry():
                header = entry.payload
                self.title = header.title if header.title is not None else self.title
                self.metadata = {**self.metadata, **(header.metadata or {})}
                self._paused = paused
            case RunStartedEntry():
                self.run_id, self.status = entry.run_id, "preparing"
            case RunEndedEntry():
                self.run_id, self.status = None, entry.payload.status
                self.pending, self._open = {}, set()
            case CustomEntry() if entry.payload.name == PAUSED and self.run_id is not None:
                self.status, self._paused = "paused", True
            case ModelCallStartedEntry():
                self.status = "model_running"
            case ModelOutputEntry():
                self._open |= {part.payload.tool_call_id for part in entry.payload.message.tool_calls}
                self._after_calls()
            case ToolStartedEntry():
                self.status = "tool_running"
            case ToolResultsEntry():
                for outcome in entry.payload.outcomes:
                    self._open.discard(outcome.tool_call_id)
                    self.pending.pop(outcome.tool_call_id, None)
                self._after_calls()
            case ApprovalRequestedEntry():
                self.pending.pop(entry.payload.tool_call_id, None)  # asked again: the newer one comes last
                self.pending[entry.payload.tool_call_id] = entry
                self._after_calls()
            case ApprovalDecidedEntry():
                self.pending.pop(entry.payload.tool_call_id, None)
                self._after_calls()
            case _:
                if paused:
                    self._after_calls()

    def _after_calls(self) -> None:
        if self.pending and self._open <= self.pending.keys():
            self.status = "awaiting_human"
        elif self._open:
            self.status = "tool_running"
        else:
            self.status = "idle" if self.run_id is None else "model_running"
