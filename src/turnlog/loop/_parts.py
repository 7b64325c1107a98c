"""What a loop is made of, and what it checks before it takes something in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from turnlog.approvals import Approvals
from turnlog.assembly import MessageAssembler
from turnlog.context import ContextManager, ContextOptions
from turnlog.contract import AgentError, Clock, Control, IdSource, JsonObject, Observer, Runtime, Store
from turnlog.history import Session, SessionState
from turnlog.models import Model
from turnlog.system import SystemClock, SystemIds
from turnlog.tools import Executor, Registry
from turnlog.widgets import Widget

from ._hooks import Hooks
from ._open_sessions import OpenRun, SessionOptions
from ._ports import Said


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """What a loop is made of, fixed at construction. The loop never sees a configuration."""

    model: Model
    store: Store
    registry: Registry
    executor: Executor
    agent_name: str | None = None
    approvals: Approvals = field(default_factory=Approvals)
    options: ContextOptions = field(default_factory=ContextOptions)
    context: Callable[[], ContextManager] | None = None
    assembler: Callable[[str], MessageAssembler] = MessageAssembler
    """Makes what turns one stream into one message, given the run's id. A replay reads the log instead."""
    hooks: Hooks = field(default_factory=Hooks)
    runtime: Runtime | None = None
    widgets: Sequence[Widget[Any]] = ()
    observers: Sequence[Observer] = ()
    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=SystemIds)
    recap: Model | None = None
    sessions: SessionOptions = field(default_factory=SessionOptions)
    owners: Sequence[object] = ()
    """What may have secrets of its own, beside models and store."""


def check_humans(state: SessionState, session_id: str) -> None:
    """A new run ends one that was left open, but never what a human was asked or has decided."""
    if state.status == "preparing" and state.is_open:
        raise AgentError(
            "SessionBusy",
            f"run {state.run_id} was submitted to session {session_id} and nobody has driven it yet; resume "
            "it, abort it, or send it the message",
        )
    if state.status == "awaiting_human":
        waiting, words = state.awaiting, ("waits for a decision on", "decide it and resume, or abort it")
    elif state.is_open and (due := [call for call in state.open_calls if call.is_due]):
        waiting, words = (
            due,
            (
                "has yet to run what was approved,",
                f"resume it first (Agent.resume, or turnlog chat --session {session_id})",
            ),
        )
    else:
        return
    names = ", ".join(call.call.tool_call_id for call in waiting)
    raise AgentError("SessionBusy", f"session {session_id} {words[0]} {names}; {words[1]}")


def take_message(opened: OpenRun, session: Session, control: Control) -> JsonObject | None:
    """Queue a message that was sent from elsewhere. It is answered once it is in the log."""
    seq = session.state.controls.get(control.id)
    if seq is not None:
        return {} if seq <= session.tail_seq else None
    if all(said.control != control.id for said in opened.steering.waiting):
        said = msgspec.convert(control.data["said"], Said)
        opened.steering.waiting.append(msgspec.structs.replace(said, control=control.id))
    return None
