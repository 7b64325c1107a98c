"""A call in; approve, ask or deny out. Decisions are bound to what was asked and read back from the log."""

from turnlog.contract import PendingApproval

from ._decisions import (
    Decision,
    accept_decision,
    approval_digest,
    arguments_to_run,
    check_decision,
    decisions,
    denial_text,
    make_request,
    pending_approvals,
    policy_denial_text,
)
from ._policy import (
    Action,
    AlwaysAsk,
    ApprovalPolicy,
    AutoApprove,
    DenyAll,
    Predicate,
    Rule,
    RulePolicy,
    ToolInfo,
    Verdict,
    judge,
)

__all__ = [
    "Action",
    "AlwaysAsk",
    "ApprovalPolicy",
    "AutoApprove",
    "Decision",
    "DenyAll",
    "PendingApproval",
    "Predicate",
    "Rule",
    "RulePolicy",
    "ToolInfo",
    "Verdict",
    "accept_decision",
    "approval_digest",
    "arguments_to_run",
    "check_decision",
    "decisions",
    "denial_text",
    "judge",
    "make_request",
    "pending_approvals",
    "policy_denial_text",
]
