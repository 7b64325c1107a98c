"""No secret reaches the log, and no call runs with arguments that were masked."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..contract import (
    HELD_SECRET,
    AgentError,
    ApprovalDecided,
    EntryPayload,
    Message,
    ModelOutput,
    Secrets,
    decode,
    encode,
)

_replace = msgspec.structs.replace


def scrub_payload(payload: EntryPayload, secrets: Secrets) -> EntryPayload:
    """``payload`` with every secret masked, wherever in it a text stands.

    Arguments that run are never altered: a call that a model made with a secret is marked as one not to be
    run, and a decision that puts one into a call is refused as ``ApprovalInvalid``.
    """
    plain = msgspec.json.decode(encode(payload))
    masked = decode(encode(secrets.scrub_json(plain)), type(payload))
    if isinstance(payload, ApprovalDecided) and isinstance(masked, ApprovalDecided):
        _check_decision(payload, masked)
    if isinstance(payload, ModelOutput) and isinstance(masked, ModelOutput):
        held = [
            call.payload.tool_call_id
            for call, hidden in zip(payload.message.tool_calls, masked.message.tool_calls, strict=True)
            if call.payload != hidden.payload
        ]
        return _replace(masked, message=refuse_calls(masked.message, held))
    return masked


def _check_decision(decided: ApprovalDecided, masked: ApprovalDecided) -> None:
    if decided.arguments != masked.arguments:
        raise AgentError(
            "ApprovalInvalid",
            f"the changed arguments of call {decided.tool_call_id} hold a secret of this agent, which the "
            "log may not keep; change them without it",
        )


def refuse_calls(message: Message, call_ids: Iterable[str]) -> Message:
    """Mark calls of ``message`` that are not to be run: their arguments held a secret."""
    errors = dict.fromkeys(call_ids, HELD_SECRET)
    if not errors:
        return message
    meta = message.meta or {}
    return _replace(message, meta={**meta, "parse_errors": {**meta.get("parse_errors", {}), **errors}})
