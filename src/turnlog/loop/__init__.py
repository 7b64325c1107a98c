"""The hall: state folded from the log, decisions made from it, the runner, the agent, replay.

Everything is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.approvals import PendingApproval
    from turnlog.context import ContextDiff, ContextView, diff_contexts, explain
    from turnlog.models import load_model
    from turnlog.tools import Tool

    from ._agent import Agent
    from ._agent_config import AgentConfig, load_config
    from ._compact import compact_session
    from ._decide import decide, plan_retry
    from ._decisions import pending_calls, record_decision
    from ._fork import fork_session
    from ._hooks import Hooks
    from ._loop import AgentLoop
    from ._purge import purge_entries, redact_entries
    from ._replay import ReplayReport, replay, replay_entries
    from ._state import CallState, RunState

__all__ = [
    "Agent",
    "AgentConfig",
    "AgentLoop",
    "CallState",
    "ContextDiff",
    "ContextView",
    "Hooks",
    "PendingApproval",
    "ReplayReport",
    "RunState",
    "Tool",
    "compact_session",
    "decide",
    "diff_contexts",
    "explain",
    "fork_session",
    "load_config",
    "load_model",
    "pending_calls",
    "plan_retry",
    "purge_entries",
    "record_decision",
    "redact_entries",
    "replay",
    "replay_entries",
]

_HOMES = {
    "Agent": "._agent",
    "AgentConfig": "._agent_config",
    "AgentLoop": "._loop",
    "CallState": "._state",
    "ContextDiff": "turnlog.context",
    "ContextView": "turnlog.context",
    "Hooks": "._hooks",
    "PendingApproval": "turnlog.approvals",
    "ReplayReport": "._replay",
    "RunState": "._state",
    "Tool": "turnlog.tools",
    "compact_session": "._compact",
    "decide": "._decide",
    "diff_contexts": "turnlog.context",
    "explain": "turnlog.context",
    "fork_session": "._fork",
    "load_config": "._agent_config",
    "load_model": "turnlog.models",
    "pending_calls": "._decisions",
    "plan_retry": "._decide",
    "purge_entries": "._purge",
    "record_decision": "._decisions",
    "redact_entries": "._purge",
    "replay": "._replay",
    "replay_entries": "._replay",
}
"""Name → the module that has it."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
