"""Requests and decisions: bound to each other by a digest, checked, and read back from the log."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    ApprovalDecidedEntry,
    ApprovalRequested,
    ApprovalRequestedEntry,
    Entry,
    JsonObject,
    PendingApproval,
    RunEndedEntry,
    ToolCallRequest,
    ToolResultsEntry,
    digest,
    find_unjson,
)

ACTIONS = ("approve", "deny", "modify", "abort", "expire")
_DIGEST_FORM = "turnlog-approval-1"


def approval_digest(
    session_id: str, call_id: str, tool_name: str, arguments: JsonObject, sandbox: str | None = None
) -> str:
    """What a decision is bound to: exactly this call of this tool with these arguments, run here."""
    bound = [_DIGEST_FORM, session_id, call_id, tool_name, arguments, sandbox]
    return digest(msgspec.json.encode(bound, order="sorted"))


def make_request(
    session_id: str,
    call: ToolCallRequest,
    *,
    reason: str | None = None,
    expires_at: str | None = None,
    sandbox: str | None = None,
) -> ApprovalRequested:
    """The request for a call whose arguments were checked. ``expires_at`` is ISO-8601 text."""
    if call.arguments is None:
        raise AgentError(
            "ApprovalInvalid",
            f"call {call.tool_call_id!r} has no arguments that parse; it cannot run, so nobody is asked",
        )
    if expires_at is not None:
        _moment(expires_at, "expires_at")
    return ApprovalRequested(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        arguments=call.arguments,
        digest=approval_digest(session_id, call.tool_call_id, call.tool_name, call.arguments, sandbox),
        reason=reason,
        expires_at=expires_at,
        sandbox=sandbox,
    )


def check_decision(
    requested: ApprovalRequested,
    decided: ApprovalDecided,
    *,
    now: str | None = None,
    session_id: str | None = None,
) -> None:
    """Refuse a decision that is not one on exactly this request.

    With ``session_id`` the request itself is checked too: its digest must be that of what it shows. With
    ``now`` its time limit is. Raises ``ApprovalInvalid`` and ``ApprovalExpired``.
    """
    owner = f"call {requested.tool_call_id!r} of {requested.tool_name!r}"
    problem = _mismatch(requested, decided) or _malformed(decided)
    if problem is None and session_id is not None:
        whole = approval_digest(
            session_id, requested.tool_call_id, requested.tool_name, requested.arguments, requested.sandbox
        )
        if whole != requested.digest:
            problem = "the request's digest is not that of the call it shows; ask again"
    if problem is not None:
        raise AgentError("ApprovalInvalid", f"decision on {owner}: {problem}")
    _check_time(owner, requested, decided, now)


def _mismatch(requested: ApprovalRequested, decided: ApprovalDecided) -> str | None:
    if decided.tool_call_id != requested.tool_call_id:
        return f"it is about call {decided.tool_call_id!r}; decide on the call that was asked about"
    if decided.digest != requested.digest:
        return "its digest is another: what was shown is not what would run; look at the request again"
    return None


def _malformed(decided: ApprovalDecided) -> str | None:
    if decided.action not in ACTIONS:
        return f"the action {decided.action!r} does not exist; it is one of {', '.join(ACTIONS)}"
    if not decided.decided_by.strip():
        return "it does not say who decided; give decided_by"
    if decided.action == "modify":
        if decided.arguments is None:
            return "modify needs the arguments to run instead"
        if found := find_unjson(decided.arguments):
            return f"the arguments to run instead: {found}"
    elif decided.arguments is not None:
        return f"{decided.action} takes no arguments; use modify to run others"
    return None


def _check_time(owner: str, requested: ApprovalRequested, decided: ApprovalDecided, now: str | None) -> None:
    limit = requested.expires_at
    if decided.action == "expire" and limit is None:
        raise AgentError("ApprovalInvalid", f"decision on {owner}: it has no time limit, so it cannot expire")
    if limit is None or now is None:
        return
    late = _moment(now, "now") >= _moment(limit, "expires_at")
    if decided.action == "expire" and not late:
        raise AgentError("ApprovalInvalid", f"decision on {owner}: its time ends at {limit}, it is {now}")
    if decided.action != "expire" and late:
        raise AgentError(
            "ApprovalExpired",
            f"decision on {owner}: it had to be made before {limit}, it is {now}; let the agent ask again",
        )


def _moment(text: str, field: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise AgentError(
            "ApprovalInvalid", f"{field} is {text!r}; it is ISO-8601 text, as 2026-01-31T12:00:00.000Z"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def arguments_to_run(requested: ApprovalRequested, decided: ApprovalDecided) -> JsonObject | None:
    """What a checked decision lets run: the arguments shown, those put in their place, or nothing."""
    match decided.action:
        case "approve":
            return requested.arguments
        case "modify":
            return decided.arguments
        case "deny" | "abort" | "expire":
            return None


def denial_text(requested: ApprovalRequested, decided: ApprovalDecided) -> str:
    """What the model is told of a call that was not let through."""
    note = f" They said: “{decided.note}”." if decided.note else ""
    match decided.action:
        case "deny":
            why = f"{decided.decided_by} did not allow this call of {requested.tool_name!r}.{note}"
            return f"{why} It was not run. Do not call it again unchanged: take another way, or ask."
        case "abort":
            return f"{decided.decided_by} ended the run instead of allowing {requested.tool_name!r}.{note}"
        case "expire":
            return (
                f"Nobody decided on this call of {requested.tool_name!r} before {requested.expires_at}. "
                f"It was not run.{note}"
            )
        case "approve" | "modify":
            raise AgentError(
                "ApprovalInvalid", f"call {requested.tool_call_id!r} was let through: there is no denial"
            )


def policy_denial_text(tool_name: str, reason: str | None) -> str:
    """What the model is told of a call that the policy denied by itself."""
    why = f": {reason}" if reason else ""
    return f"The approval policy does not allow this call of {tool_name!r}{why}. It was not run."


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision with its question: who, when, what was asked and what ran instead."""

    entry_id: str
    session_id: str
    run_id: str | None
    requested: ApprovalRequested
    requested_at: str
    decided: ApprovalDecided
    decided_at: str

    @property
    def decided_by(self) -> str:
        return self.decided.decided_by

    @property
    def arguments(self) -> JsonObject | None:
        """What was let through; None when nothing was."""
        return arguments_to_run(self.requested, self.decided)


class _Ledger:
    """Both views come of one walk over the log."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.open: dict[str, ApprovalRequestedEntry] = {}
        self.asked: dict[str, ApprovalRequestedEntry] = {}
        self.closed: set[str] = set()
        self.decisions: list[Decision] = []
        for entry in entries:
            self._step(entry)

    def _step(self, entry: Entry) -> None:
        # Only five of the kinds say anything about approvals.
        if isinstance(entry, ApprovalRequestedEntry):
            call_id = entry.payload.tool_call_id
            self.open.pop(call_id, None)  # asked again: the newer question stands at the end
            self.open[call_id] = self.asked[call_id] = entry
        elif isinstance(entry, ApprovalDecidedEntry):
            self.open.pop(entry.payload.tool_call_id, None)
            question = self.asked.get(entry.payload.tool_call_id)
            if question is not None:
                self.decisions.append(_decision(question, entry))
        elif isinstance(entry, ToolResultsEntry):
            for outcome in entry.payload.outcomes:
                self.open.pop(outcome.tool_call_id, None)
                self.closed.add(outcome.tool_call_id)
        elif isinstance(entry, RunEndedEntry):
            ended = [call for call, asked in self.open.items() if asked.run_id == entry.run_id]
            for call_id in ended:
                del self.open[call_id]


def _decision(question: ApprovalRequestedEntry, entry: ApprovalDecidedEntry) -> Decision:
    return Decision(
        entry_id=entry.id,
        session_id=entry.session_id,
        run_id=entry.run_id,
        requested=question.payload,
        requested_at=question.timestamp,
        decided=entry.payload,
        decided_at=entry.timestamp,
    )


def pending_approvals(entries: Iterable[Entry]) -> list[PendingApproval]:
    """The questions of a log that nobody has decided, oldest first."""
    return [
        PendingApproval(
            entry_id=entry.id,
            session_id=entry.session_id,
            run_id=entry.run_id,
            requested_at=entry.timestamp,
            requested=entry.payload,
        )
        for entry in _Ledger(entries).open.values()
    ]


def decisions(entries: Iterable[Entry]) -> list[Decision]:
    """Every decision of a log, in order."""
    return _Ledger(entries).decisions


def accept_decision(
    entries: Iterable[Entry], decided: ApprovalDecided, *, now: str | None = None
) -> ApprovalRequested:
    """The open question that ``decided`` answers, after every check: it exists, waits, is not decided yet.

    Raises ``ApprovalInvalid`` and ``ApprovalExpired``.
    """
    ledger = _Ledger(entries)
    call_id = decided.tool_call_id
    waiting = ledger.open.get(call_id)
    if waiting is not None:
        check_decision(waiting.payload, decided, now=now)
        return waiting.payload
    earlier = [each for each in ledger.decisions if each.decided.tool_call_id == call_id]
    if earlier:
        last = earlier[-1]
        problem = f"was decided already: {last.decided.action}, by {last.decided_by} at {last.decided_at}"
    elif call_id in ledger.asked:
        problem = "has a result already" if call_id in ledger.closed else "belongs to a run that has ended"
    else:
        problem = "was never put to anyone"
    raise AgentError(
        "ApprovalInvalid", f"call {call_id!r} {problem}; a decision counts once, while it is open"
    )
