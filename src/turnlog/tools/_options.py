"""How a tool is run: the options of ``@tool``, and a tool as plain data."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, cast

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


class ToolOptions(TypedDict, total=False):
    """How a tool is run. Times are in seconds.

    ``timeout``: None waits for ever; by default the executor's limit holds. ``idempotent``: running it
    twice is as good as once, so it may be run again after a crash. ``keyed``: the same, because the tool
    passes ``ctx.idempotency_key`` on. ``retries``: how often a failure declared retryable is tried again.
    ``concurrent``: may run beside other calls of one message. ``ends_run``: a successful result ends the run.
    ``annotations``: words about the tool for approval rules, as ``read_only`` or ``destructive``.
    """

    timeout: float | None
    requires_approval: bool
    requires_runtime: bool
    requires_agent: bool
    idempotent: bool
    keyed: bool
    reconcile: Reconcile | None
    concurrent: bool
    ends_run: bool
    retries: int
    retry_on: tuple[type[Exception], ...]
    max_output: int | None
    strict: bool | None
    annotations: Mapping[str, Any]


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


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that does not exist, a value of the wrong kind, and what cannot hold together."""
    problem = next((found for key in options if (found := _problem(key, options[key]))), None)
    repeats = options.get("idempotent") or options.get("keyed")
    if problem is None and options.get("retries") and not repeats:
        problem = "retries need idempotent=True (or keyed=True): running it twice must be harmless"
    if problem is not None:
        raise AgentError("ConfigInvalid", f"tool {name!r}: {problem}")


def _problem(option: str, value: object) -> str | None:
    words = _KINDS.get(option)
    if words is None:
        close = difflib.get_close_matches(option, _KINDS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"there is no option {option!r}{hint}; the options are name, description, {', '.join(_KINDS)}"
    return None if _fits(option, value) else f"{option} is {value!r}; it is {words}"


def _fits(option: str, value: object) -> bool:
    match option:
        case "timeout":
            return value is None or value is DEFAULT_TIMEOUT or _is_positive(value)
        case "reconcile":
            return value is None or callable(value)
        case "retries":
            return type(value) is int and value >= 0
        case "retry_on":
            errors = cast("tuple[object, ...]", value)
            return isinstance(value, tuple) and all(
                isinstance(each, type) and issubclass(each, Exception) for each in errors
            )
        case "max_output":
            return value is None or (type(value) is int and value >= 200)
        case "strict":
            return value is None or isinstance(value, bool)
        case "annotations":
            return isinstance(value, Mapping)
        case _:
            return isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


_FLAG = "True or False"
_KINDS = {
    "timeout": "in seconds and more than 0, or None to wait for ever",
    "requires_approval": _FLAG,
    "requires_runtime": _FLAG,
    "requires_agent": _FLAG,
    "idempotent": _FLAG,
    "keyed": _FLAG,
    "reconcile": "a function of (ctx, arguments), or None",
    "concurrent": _FLAG,
    "ends_run": _FLAG,
    "retries": "a whole number, 0 or more",
    "retry_on": "a tuple of exception classes",
    "max_output": "in bytes, 200 or more, or None",
    "strict": "True, False or None",
    "annotations": "a mapping, as {'read_only': True}",
}
