"""May this call run: rules, defaults, and what happens when a guard breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from turnlog.approvals import (
    Approvals,
    Rule,
    RulePolicy,
    ToolInfo,
    Verdict,
    judge,
    policy_denial_text,
)
from turnlog.contract import AgentError, ToolCallRequest, ToolPolicy, guard
from turnlog.tools import tool


@dataclass
class Info:
    name: str
    requires_approval: bool = False
    idempotent: bool = False
    annotations: Mapping[str, Any] = field(default_factory=dict)


def call(name: str = "shell", **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(tool_name=name, tool_call_id="c", raw_arguments="", arguments=arguments)


def test_the_first_rule_that_fits_decides() -> None:
    policy = RulePolicy(
        [
            Rule(
                action="deny",
                tools="shell",
                when=lambda c, t: "rm " in (c.arguments or {})["command"],
                reason="rm",
            ),
            Rule(action="approve", tools=["read_*", "list_*"]),
            Rule(action="approve", annotations={"read_only": True}),
            Rule(action="ask", tools="shell", reason="commands are looked at"),
            Rule(action="deny", tools="shell"),
        ],
        default="deny",
    )
    cases = [
        (call(command="rm -rf /"), Info("shell"), Verdict("deny", "rm")),
        (call(command="ls"), Info("shell"), Verdict("ask", "commands are looked at")),
        (call(), Info("read_file"), Verdict("approve")),
        (call(), Info("Read_file"), Verdict("deny", "no rule covers this call")),
        (call(), Info("fetch", annotations={"read_only": True}), Verdict("approve")),
        (
            call(),
            Info("fetch", annotations={"read_only": False}),
            Verdict("deny", "no rule covers this call"),
        ),
        (call(), Info("fetch"), Verdict("deny", "no rule covers this call")),
    ]
    for request, info, verdict in cases:
        assert policy.evaluate(request, info) == verdict
    assert RulePolicy([]).evaluate(call(), Info("x")).action == "ask", "nobody said yes"


def test_a_predicate_that_raises_asks() -> None:
    guard("sk-canary-approvals")
    policy = RulePolicy(
        [Rule(action="approve", when=lambda c, t: {}["sk-canary-approvals"])], default="approve"
    )
    verdict = policy.evaluate(call(), Info("shell"))
    assert verdict.action == "ask"
    assert "a rule failed: KeyError" in str(verdict.reason)
    assert "canary" not in str(verdict.reason)


def test_wrong_words_are_refused_at_construction() -> None:
    with pytest.raises(AgentError, match="'allow'"):
        Rule(action="allow")  # type: ignore[arg-type]  # pyright: ignore
    with pytest.raises(AgentError, match="approve, ask, deny"):
        RulePolicy([], default="yes")  # type: ignore[arg-type]  # pyright: ignore


STRICT = ToolPolicy(require_approval_by_default=True)
PLAIN = ToolPolicy()
POLICIES: dict[str, Any] = {
    "none": None,
    "approve": RulePolicy([], default="approve"),
    "ask": RulePolicy([], default="ask"),
    "deny": RulePolicy([], default="deny"),
    "override": RulePolicy([Rule(action="approve", final=True)]),
    "final rule": RulePolicy([Rule(action="approve", tools="shell", final=True)]),
}


@pytest.mark.parametrize(
    ("policy", "required", "by_default", "action"),
    [
        ("none", False, PLAIN, "approve"), ("none", True, PLAIN, "ask"), ("none", False, STRICT, "ask"),
        ("approve", False, PLAIN, "approve"), ("approve", True, PLAIN, "ask"),
        ("approve", False, STRICT, "ask"),
        ("ask", False, PLAIN, "ask"), ("ask", True, STRICT, "ask"),
        ("deny", False, PLAIN, "deny"), ("deny", True, STRICT, "deny"),
        ("override", True, STRICT, "approve"), ("final rule", True, STRICT, "approve"),
    ],
)  # fmt: skip
def test_the_strictest_wins_unless_somebody_said_otherwise(
    policy: str, required: bool, by_default: ToolPolicy, action: str
) -> None:
    info = Info("shell", requires_approval=required)
    assert judge(POLICIES[policy], call(), info, by_default).action == action


def test_reasons_say_who_asks() -> None:
    asks = judge(None, call(), Info("pay", requires_approval=True))
    assert asks.reason == "tool 'pay' requires approval"
    assert judge(None, call(), Info("pay"), STRICT).reason == "this run requires approval for every tool"


@pytest.mark.parametrize("answer", [None, "approve", True, Verdict("yes")])  # type: ignore[arg-type]  # pyright: ignore
def test_a_policy_that_gives_no_verdict_asks(answer: Any) -> None:
    class Odd:
        def evaluate(self, call: ToolCallRequest, tool_info: ToolInfo) -> Any:
            return answer

    assert judge(Odd(), call(), Info("shell")).action == "ask"


def test_a_policy_that_raises_asks() -> None:
    class Broken:
        def evaluate(self, call: ToolCallRequest, tool_info: ToolInfo) -> Verdict:
            raise RuntimeError("no network")

    verdict = judge(Broken(), call(), Info("shell"))
    assert verdict == Verdict("ask", "Broken failed: RuntimeError: no network")


def test_a_tool_is_its_own_info() -> None:
    @tool(requires_approval=True, annotations={"destructive": True})
    def delete(path: str) -> None: ...

    policy = RulePolicy([Rule(action="deny", annotations={"destructive": True})], default="approve")
    assert judge(policy, call("delete", path="/"), delete).action == "deny"
    assert judge(None, call("delete", path="/"), delete).action == "ask"


def test_words_of_a_policys_denial() -> None:
    assert policy_denial_text("shell", "no rm") == (
        "The approval policy does not allow this call of 'shell': no rm. It was not run."
    )
    assert "'shell'. It was not run" in policy_denial_text("shell", None)


def test_who_decides_is_one_value() -> None:
    policy = RulePolicy([], default="approve")
    found = Approvals(policy=policy, handler=lambda request: "approve", ttl=90)
    assert found.expires_at("2026-01-31T12:00:00.000Z") == "2026-01-31T12:01:30.000Z"
    assert Approvals().expires_at("2026-01-31T12:00:00.000Z") is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ttl": "1d"}, "ttl is '1d'; pass a number of seconds"),
        ({"ttl": float("nan")}, "ttl is nan"),
        ({"ttl": float("inf")}, "ttl is inf"),
        ({"ttl": 1e300}, "ttl is 1e+300"),
        ({"ttl": 0}, "ttl is 0"),
        ({"ttl": True}, "ttl is True"),
        ({"policy": "ask"}, "policy is 'ask'; pass a policy"),
        ({"handler": "yes"}, "handler is 'yes'; pass a function"),
    ],
)
def test_approvals_that_cannot_work_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(AgentError) as caught:
        Approvals(**given)
    assert (caught.value.code, words in caught.value.message) == ("ConfigInvalid", True)
