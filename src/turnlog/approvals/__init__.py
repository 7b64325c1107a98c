"""A call in; approve, ask or deny out. Requests and decisions are made here and bound to each other."""

from turnlog.contract import PendingApproval

from ._decisions import (
    Decision,
    approval_digest,
    check_decision,
    definition_hash,
    denial_text,
    expired,
    is_approved,
    make_decision,
    make_request,
    pending_approvals,
    policy_denial_text,
)
from ._policy import (
    Action,
    ApprovalHandler,
    ApprovalPolicy,
    Approvals,
    Predicate,
    Rule,
    RulePolicy,
    ToolInfo,
    Verdict,
    judge,
)

__all__ = [
    "Action",
    "ApprovalHandler",
    "ApprovalPolicy",
    "Approvals",
    "Decision",
    "PendingApproval",
    "Predicate",
    "Rule",
    "RulePolicy",
    "ToolInfo",
    "Verdict",
    "approval_digest",
    "check_decision",
    "definition_hash",
    "denial_text",
    "expired",
    "is_approved",
    "judge",
    "make_decision",
    "make_request",
    "pending_approvals",
    "policy_denial_text",
]
