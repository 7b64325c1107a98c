"""The hall: state folded from the log, decisions made from it, the runner, the agent, replay."""

from turnlog.context import ContextDiff, ContextView, diff_contexts, explain
from turnlog.models import load_model
from turnlog.tools import Tool

from ._agent import Agent
from ._agent_config import AgentConfig, load_config
from ._compact import compact_session
from ._decide import decide, plan_retry
from ._decisions import record_decision
from ._fork import fork_session
from ._hooks import Hooks
from ._loop import AgentLoop
from ._purge import purge_entries
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
    "purge_entries",
    "plan_retry",
    "record_decision",
    "replay",
    "replay_entries",
]
