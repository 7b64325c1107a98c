"""May this call run? Approve, deny, or ask a human."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, TypeAlias, cast

from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    Runtime,
    ToolCallRequest,
    ToolPolicy,
    scrub,
)

from ._decisions import Decision
from ._matches import cover_commands, cover_hosts, cover_paths, has_commands

Action: TypeAlias = Literal["approve", "deny", "ask"]
_ACTIONS: tuple[Action, ...] = ("approve", "ask", "deny")  # from the least to the most strict


@dataclass(frozen=True)
class Verdict:
    """``final`` lets an approval stand although the tool or the run asks for a human: set it knowingly."""

    action: Action
    reason: str | None = None
    final: bool = False


class ToolInfo(Protocol):
    """What a policy may know of a tool. ``turnlog.tools.Tool`` is one."""

    @property
    def name(self) -> str: ...

    @property
    def requires_approval(self) -> bool: ...

    @property
    def idempotent(self) -> bool: ...

    @property
    def annotations(self) -> Mapping[str, Any]: ...


class ApprovalPolicy(Protocol):
    """Decides on one call. Sees the arguments as they would run. Whatever it raises is taken as ``ask``."""

    def evaluate(self, call: ToolCallRequest, tool_info: ToolInfo) -> Verdict: ...


Predicate: TypeAlias = Callable[[ToolCallRequest, ToolInfo], bool]


def _check_action(action: str, owner: str) -> None:
    if action not in _ACTIONS:
        raise AgentError(
            "ConfigInvalid",
            f"{owner} of an approval policy answers {action!r}; it can answer {', '.join(_ACTIONS)}",
        )


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Holds for calls that fit all of it: a tool name pattern (``shell``, ``read_*``), annotations the tool
    must carry with these values, a predicate, and patterns of what the call names.

    ``paths`` are of files (``src/**``, ``.env``; a folder stands for all in it), ``hosts`` of addresses
    (``*.example.com``), ``commands`` of shell commands, word for word (``git diff *``). A rule that approves
    fits when everything that the call names is covered for sure; one that asks or denies fits when something
    may be.
    """

    action: Action
    tools: str | Sequence[str] = "*"
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])
    paths: Sequence[str] = ()
    hosts: Sequence[str] = ()
    commands: Sequence[str] = ()
    when: Predicate | None = None
    reason: str | None = None
    final: bool = False

    def __post_init__(self) -> None:
        _check_action(self.action, "a rule")
        for name in ("paths", "hosts", "commands"):
            if isinstance(getattr(self, name), str):
                raise AgentError("ConfigInvalid", f"a rule: {name} is one text; pass a list of patterns")

    def fits(self, call: ToolCallRequest, tool_info: ToolInfo) -> bool:
        patterns = [self.tools] if isinstance(self.tools, str) else self.tools
        if not any(fnmatchcase(tool_info.name, pattern) for pattern in patterns):
            return False
        if any(tool_info.annotations.get(key) != value for key, value in self.annotations.items()):
            return False
        surely, arguments = self.action == "approve", call.arguments or {}
        if surely and (self.paths or self.hosts) and not self.commands and has_commands(arguments):
            return False  # a command reaches more than the folder and the addresses it names
        for wanted, cover in self._covered():
            if wanted and not cover(wanted, arguments, surely=surely):
                return False
        return self.when is None or bool(self.when(call, tool_info))

    def why(self) -> str | None:
        """What a human or a model is told where no reason was given."""
        if self.reason is not None or self.action == "approve":
            return self.reason
        named = [", ".join(map(str, wanted)) for wanted, _ in self._covered() if wanted]
        return f"a rule covers {'; '.join(named)}" if named else None

    def _covered(self) -> tuple[tuple[Sequence[str], Callable[..., bool]], ...]:
        return ((self.paths, cover_paths), (self.hosts, cover_hosts), (self.commands, cover_commands))


class RulePolicy:
    """The first rule that fits decides; none fits: the default. A rule whose predicate raises counts as
    fitting and asks, because nobody knows what it would have said."""

    def __init__(self, rules: Sequence[Rule], default: Action = "ask") -> None:
        _check_action(default, "the default")
        self._rules = tuple(rules)
        self._default = Verdict(default, None if default == "approve" else "no rule covers this call")

    def evaluate(self, call: ToolCallRequest, tool_info: ToolInfo) -> Verdict:
        for rule in self._rules:
            try:
                fits = rule.fits(call, tool_info)
            except Exception as error:
                return Verdict("ask", f"a rule failed: {type(error).__name__}: {scrub(str(error))}")
            if fits:
                return Verdict(rule.action, rule.why(), rule.final)
        return self._default


def _is_ours(call: ToolCallRequest, tool_info: ToolInfo) -> bool:
    """A server may claim anything of its tools; the program that uses them vouches for its own."""
    return "mcp_server" not in tool_info.annotations


_READS = Rule(action="approve", annotations={"read_only": True}, when=_is_ours)


def read_only(rules: Sequence[Rule] = ()) -> RulePolicy:
    """Tools that only read may run, all others are denied. What a server claims of its tools is not
    believed: approve them with ``rules``, which come first, here as in the policies below."""
    reason = "only tools that read are allowed here; tell what you would change instead"
    return RulePolicy([*rules, _READS, Rule(action="deny", reason=reason)])


def ask_before_write(rules: Sequence[Rule] = ()) -> RulePolicy:
    """Tools that only read may run, a human decides on all others."""
    return RulePolicy([*rules, _READS, Rule(action="ask", reason="it may change something")])


def workspace_auto(runtime: Runtime, rules: Sequence[Rule] = ()) -> RulePolicy:
    """Tools may read, and change files and run commands within the sandbox of ``runtime``; a human decides
    on all others, and on everything but reading where the runtime has no sandbox."""

    def is_confined(call: ToolCallRequest, tool_info: ToolInfo) -> bool:
        changing = tool_info.annotations.get("writes") or tool_info.annotations.get("runs_commands")
        return bool(changing) and runtime.sandbox is not None and _is_ours(call, tool_info)

    def is_open(call: ToolCallRequest, tool_info: ToolInfo) -> bool:
        return runtime.sandbox is None

    return RulePolicy(
        [
            *rules,
            _READS,
            Rule(action="approve", when=is_confined),
            Rule(action="ask", when=is_open, reason="no sandbox keeps it within the workspace"),
            Rule(action="ask", reason="it may reach beyond the workspace"),
        ]
    )


def everything_asks(rules: Sequence[Rule] = ()) -> RulePolicy:
    """A human decides on every call."""
    return RulePolicy([*rules, Rule(action="ask", reason="every call is asked about")])


def judge(
    policy: ApprovalPolicy | None,
    call: ToolCallRequest,
    tool_info: ToolInfo,
    tool_policy: ToolPolicy | None = None,
) -> Verdict:
    """What holds for a call: the strictest of the policy, the tool's own demand and the run's default.

    No policy approves what neither of those asks for. A policy that raises, or answers with something
    else, asks: a broken guard lets nothing through.
    """
    found = _ask(policy, call, tool_info) if policy is not None else Verdict("approve")
    if found.action != "approve" or found.final:
        return found
    if tool_info.requires_approval:
        return Verdict("ask", f"tool {tool_info.name!r} requires approval")
    if tool_policy is not None and tool_policy.require_approval_by_default:
        return Verdict("ask", "this run requires approval for every tool")
    return found


def _ask(policy: ApprovalPolicy, call: ToolCallRequest, tool_info: ToolInfo) -> Verdict:
    name = type(policy).__name__
    try:
        found = cast("object", policy.evaluate(call, tool_info))
    except Exception as error:
        return Verdict("ask", f"{name} failed: {type(error).__name__}: {scrub(str(error))}")
    if not isinstance(found, Verdict) or found.action not in _ACTIONS:
        return Verdict("ask", f"{name} gave no verdict but {found!r}")
    return found


ApprovalHandler: TypeAlias = Callable[
    [ApprovalRequested],
    "ApprovalDecided | Decision | Awaitable[ApprovalDecided | Decision | None] | None",
]
"""Asked where a call waits and somebody is there to answer: a decision, or None to let the run go."""

_LONGEST = 100 * 365 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Approvals:
    """Who decides on calls: ``policy`` first, ``handler`` where that asks. Without a handler the call waits
    in the log.

    A request is void ``ttl`` seconds after it was made, and the call counts as not allowed; None: never.
    """

    policy: ApprovalPolicy | None = None
    handler: ApprovalHandler | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        policy, handler, ttl = (cast("object", each) for each in (self.policy, self.handler, self.ttl))
        if policy is not None and not callable(getattr(policy, "evaluate", None)):
            raise _wrong("policy", policy, "a policy, as RulePolicy([…])")
        if handler is not None and not callable(handler):
            raise _wrong("handler", handler, "a function that takes the request")
        is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
        if ttl is not None and not (is_number and 0 < cast("float", ttl) <= _LONGEST):
            raise _wrong("ttl", ttl, "a number of seconds, more than 0, or None")

    def expires_at(self, now: str) -> str | None:
        """When a request made at ``now`` is void, in the form a clock gives."""
        if self.ttl is None:
            return None
        then = datetime.fromisoformat(now) + timedelta(seconds=self.ttl)
        return then.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wrong(name: str, given: object, words: str) -> AgentError:
    return AgentError("ConfigInvalid", f"Approvals: {name} is {given!r}; pass {words}")
