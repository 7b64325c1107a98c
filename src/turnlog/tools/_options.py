"""How a tool is run, as data; and a tool as plain data."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from turnlog.contract import AgentError, JsonObject

from ._context import ToolContext

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Reconcile: TypeAlias = Callable[[ToolContext, JsonObject], Any]
"""Asked after a crash what became of a call that was started: the result if it happened, ``NOT_RUN`` if it
certainly did not and will not (a process that lost its session may still be at it), None if that cannot be
known. Sync or async."""


class _NotRun:
    def __repr__(self) -> str:
        return "NOT_RUN"


NOT_RUN = _NotRun()
"""What a ``reconcile`` function returns when the call certainly had no effect: it is then run again."""


class _Default:
    def __repr__(self) -> str:
        return "the executor's default"


DEFAULT_TIMEOUT: Any = _Default()


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """How a tool is run. Times are in seconds.

    ``timeout``: None waits for ever; by default the executor's limit holds. ``idempotent``: running it
    twice is as good as once, so it may be run again after a crash. ``keyed``: the same, because the tool
    passes ``ctx.idempotency_key`` on. ``retries``: how often a failure declared retryable is tried again.
    ``concurrent``: may run beside other calls of one message. ``annotations``: words about the tool for
    approval rules, as ``read_only`` or ``destructive``.
    """

    timeout: float | None = DEFAULT_TIMEOUT
    requires_approval: bool = False
    requires_runtime: bool = False
    requires_agent: bool = False
    idempotent: bool = False
    keyed: bool = False
    reconcile: Reconcile | None = None
    concurrent: bool = False
    retries: int = 0
    retry_on: tuple[type[Exception], ...] = ()
    max_output: int | None = None
    strict: bool | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class ToolDefinition:
    """A tool as plain data and one function of (arguments, ctx): what other rooms build tools from."""

    name: str
    description: str
    parameter_schema: JsonObject
    execute: Callable[[JsonObject, ToolContext], Awaitable[Any]]
    timeout_ms: int | None = None
    requires_approval: bool = False
    requires_runtime: bool = False
    requires_agent: bool = False


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise AgentError(
            "ConfigInvalid",
            f"{name!r} cannot be a tool's name: 1 to 64 of the characters a-z, A-Z, 0-9, _ and - ; "
            "give one with @tool(name=...)",
        )


def check_options(name: str, options: ToolOptions) -> None:
    problem = None
    timeout = options.timeout
    if isinstance(timeout, int | float) and not timeout > 0:
        problem = f"timeout is {timeout}; it is in seconds and more than 0, or None to wait for ever"
    elif options.retries < 0:
        problem = f"retries is {options.retries}; it is 0 or more"
    elif options.retries and not (options.idempotent or options.keyed):
        problem = "retries need idempotent=True (or keyed=True): running it twice must be harmless"
    elif options.max_output is not None and options.max_output < 200:
        problem = f"max_output is {options.max_output}; it is in bytes, 200 or more"
    if problem:
        raise AgentError("ConfigInvalid", f"tool {name!r}: {problem}")
