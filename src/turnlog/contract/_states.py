"""The states of a run and the transitions between them, as a table."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ._errors import AgentError

RunStatus: TypeAlias = Literal[
    "idle",
    "preparing",
    "model_running",
    "tool_running",
    "awaiting_human",
    "completed",
    "failed",
    "aborted",
]

STATUSES: tuple[RunStatus, ...] = (
    "idle",
    "preparing",
    "model_running",
    "tool_running",
    "awaiting_human",
    "completed",
    "failed",
    "aborted",
)

TRANSITIONS: dict[tuple[RunStatus, RunStatus], str] = {
    ("idle", "preparing"): "a run starts",
    ("idle", "awaiting_human"): "a run that waits for a decision is resumed",
    ("preparing", "model_running"): "the context is built",
    ("preparing", "tool_running"): "a resumed run has calls left to run",
    ("preparing", "awaiting_human"): "a resumed run waits for a decision",
    ("preparing", "completed"): "a resumed run owes nothing more",
    ("preparing", "failed"): "an error ends the run",
    ("preparing", "aborted"): "the run is aborted",
    ("model_running", "completed"): "the answer holds no call",
    ("model_running", "tool_running"): "the answer holds calls",
    ("model_running", "failed"): "an error ends the run",
    ("model_running", "aborted"): "the run is aborted",
    ("tool_running", "model_running"): "all results are appended",
    ("tool_running", "awaiting_human"): "a call needs approval",
    ("tool_running", "completed"): "a tool gave the final output",
    ("tool_running", "failed"): "an error ends the run",
    ("tool_running", "aborted"): "the run is aborted",
    ("awaiting_human", "tool_running"): "decided, with calls left to run",
    ("awaiting_human", "model_running"): "denied, with no call left",
    ("awaiting_human", "failed"): "an error ends the run",
    ("awaiting_human", "aborted"): "the run is aborted",
    ("completed", "preparing"): "the next run starts",
    ("failed", "preparing"): "the next run starts",
    ("aborted", "preparing"): "the next run starts",
}
"""(from, to) → what makes it happen. A pair that is not here is a bug that fails loudly."""

TERMINAL: frozenset[str] = frozenset({"completed", "failed", "aborted"})


def check_transition(current: RunStatus, following: RunStatus) -> None:
    if (current, following) not in TRANSITIONS:
        raise AgentError(
            "IllegalTransition",
            f"a run cannot go from {current} to {following}; this is a bug in the loop, please report it",
            meta={"from": current, "to": following},
        )
