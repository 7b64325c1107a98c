"""Requests and decisions: made here and nowhere else, bound to each other by a digest, and checked."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, cast, get_args

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
    ToolSpec,
    digest,
    find_unjson,
)

Decision: TypeAlias = Literal["approve", "deny", "modify", "abort"]
"""What a human may decide on a call: let it run, not run, run with other arguments, or end the run."""

_DECISIONS: tuple[str, ...] = get_args(Decision)
_ACTIONS = (*_DECISIONS, "expire")
_DIGEST_FORM = "turnlog-approval-1"
_DIGEST_FORM_WITH_DEFINITION = "turnlog-approval-2"


def definition_hash(spec: ToolSpec, origin: str | None = None) -> str:
    """What an approver sees of a tool: name, description and schema; and ``origin``, where it comes from, for
    tools of servers: the same words from another command are another tool."""
    told = [spec.name, spec.description, spec.parameter_schema]
    if origin is not None:
        told.append(origin)
    return digest(msgspec.json.encode(told, order="sorted"))


def approval_digest(
    session_id: str,
    call_id: str,
    tool_name: str,
    arguments: JsonObject,
    sandbox: str | None = None,
    definition: str | None = None,
) -> str:
    """What a decision is bound to: exactly this call of this tool with these arguments, run here."""
    bound = [_DIGEST_FORM, session_id, call_id, tool_name, arguments, sandbox]
    if definition is not None:  # requests of older logs have none, and keep their digest
        bound = [_DIGEST_FORM_WITH_DEFINITION, *bound[1:], definition]
    return digest(msgspec.json.encode(bound, order="sorted"))


def make_request(
    session_id: str,
    call: ToolCallRequest,
    *,
    reason: str | None = None,
    expires_at: str | None = None,
    sandbox: str | None = None,
    definition: str | None = None,
    changed_by: str | None = None,
) -> ApprovalRequested:
    """The request for a call whose arguments were checked. ``expires_at`` is ISO-8601 text, ``definition``
    the :func:`definition_hash` of the tool, ``changed_by`` the hook that changed the arguments. Raises
    ``ApprovalInvalid``."""
    if call.arguments is None:
        raise AgentError(
            "ApprovalInvalid",
            f"call {call.tool_call_id!r} has no arguments that parse; it cannot run, so nobody is asked",
        )
    if expires_at is not None:
        _moment(expires_at, "expires_at")
    call_id, name, arguments = call.tool_call_id, call.tool_name, call.arguments
    return ApprovalRequested(
        tool_call_id=call_id,
        tool_name=name,
        arguments=arguments,
        digest=approval_digest(session_id, call_id, name, arguments, sandbox, definition),
        reason=reason,
        expires_at=expires_at,
        sandbox=sandbox,
        definition=definition,
        changed_by=changed_by,
    )


def make_decision(
    requested: ApprovalRequested,
    action: Decision,
    *,
    by: str,
    arguments: JsonObject | None = None,
    note: str | None = None,
    now: str | None = None,
    session_id: str | None = None,
    check: Callable[[JsonObject], list[str]] | None = None,
) -> ApprovalDecided:
    """A human's decision on a request that waits, after every check.

    ``check`` tells what is wrong with arguments that are to run instead. ``now`` and ``session_id`` are as in
    :func:`check_decision`. Raises ``ApprovalInvalid`` and ``ApprovalExpired``; the request then still waits.
    """
    if cast("str", action) not in _DECISIONS:
        raise AgentError("ApprovalInvalid", f"{action!r} is no decision; use one of {', '.join(_DECISIONS)}")
    decided = ApprovalDecided(
        tool_call_id=requested.tool_call_id,
        digest=requested.digest,
        action=action,
        decided_by=by,
        arguments=arguments,
        note=note,
    )
    check_decision(requested, decided, now=now, session_id=session_id)
    problems = check(arguments) if check is not None and arguments is not None else None
    if problems:
        raise AgentError(
            "ApprovalInvalid",
            f"these arguments do not fit {requested.tool_name!r}: {'; '.join(problems)}. The call still "
            "waits: decide again with arguments that fit",
        )
    return decided


def expired(requested: ApprovalRequested, now: str) -> ApprovalDecided | None:
    """The decision on a request whose time is over; None while it may still be decided."""
    limit = requested.expires_at
    if limit is None or _moment(now, "now") < _moment(limit, "expires_at"):
        return None
    return ApprovalDecided(
        tool_call_id=requested.tool_call_id, digest=requested.digest, action="expire", decided_by="turnlog"
    )


def is_approved(
    requested: ApprovalRequested,
    decided: ApprovalDecided,
    *,
    session_id: str,
    definition: str | None = None,
    sandbox: str | None = None,
) -> bool:
    """Whether a recorded decision lets the call run now, with ``definition`` being that of its tool now, and
    ``sandbox`` the level that it would run at.

    False when it was not let through, and when the tool or the level has become another since it was shown:
    then it has to be asked again. Raises ``ApprovalInvalid`` when the two do not belong together.
    """
    check_decision(requested, decided, session_id=session_id)
    if requested.sandbox != sandbox:
        return False
    if requested.definition is not None and requested.definition != definition:
        return False
    return decided.action in ("approve", "modify")


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
            session_id,
            requested.tool_call_id,
            requested.tool_name,
            requested.arguments,
            requested.sandbox,
            requested.definition,
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
    if decided.action not in _ACTIONS:
        return f"the action {decided.action!r} does not exist; it is one of {', '.join(_ACTIONS)}"
    if not decided.decided_by.strip():
        return "it does not name who decided; give decided_by"
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


def pending_approvals(entries: Iterable[Entry]) -> list[PendingApproval]:
    """The questions of a log that nobody has decided, oldest first."""
    waiting: dict[str, ApprovalRequestedEntry] = {}
    for entry in entries:
        if isinstance(entry, ApprovalRequestedEntry):
            waiting.pop(entry.payload.tool_call_id, None)  # asked again: the newer question stands at the end
            waiting[entry.payload.tool_call_id] = entry
        elif isinstance(entry, ApprovalDecidedEntry):
            waiting.pop(entry.payload.tool_call_id, None)
        elif isinstance(entry, ToolResultsEntry):
            for outcome in entry.payload.outcomes:
                waiting.pop(outcome.tool_call_id, None)
        elif isinstance(entry, RunEndedEntry):
            waiting = {key: asked for key, asked in waiting.items() if asked.run_id != entry.run_id}
    return [
        PendingApproval(
            entry_id=entry.id,
            session_id=entry.session_id,
            run_id=entry.run_id,
            requested_at=entry.timestamp,
            requested=entry.payload,
        )
        for entry in waiting.values()
    ]
