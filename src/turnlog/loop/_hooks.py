"""Functions called at fixed points of a run. One that raises fails the run, visibly."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from turnlog.contract import AgentError, RunEvent, scrub

Hook: TypeAlias = Callable[..., "Awaitable[None] | None"]


@dataclass(frozen=True, slots=True)
class RunIds:
    """The session and the run that a hook is called for."""

    session_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Hooks:
    """Lists of functions, each called with what it is about; none can change what is recorded or sent. An
    abort does not wait for one to end.

    ``before_model(context)``, ``after_model(message)``, ``before_tool(call)``, ``after_tool(call, answer)``,
    ``on_event(event)``: a ``ModelContext``, a ``Message``, a ``ToolCallRequest``, the ``ToolAnswer``, a
    ``RunEvent``. A hook with a parameter ``ids`` is given the :class:`RunIds` as well.
    """

    before_model: list[Hook] = field(default_factory=list[Hook])
    after_model: list[Hook] = field(default_factory=list[Hook])
    before_tool: list[Hook] = field(default_factory=list[Hook])
    after_tool: list[Hook] = field(default_factory=list[Hook])
    on_event: list[Hook] = field(default_factory=list[Hook])

    def __post_init__(self) -> None:
        for point in self.__dataclass_fields__:
            given: Any = getattr(self, point)
            if not isinstance(given, list | tuple) or not all(map(callable, cast("list[Any]", given))):
                raise AgentError("ConfigInvalid", f"Hooks.{point} is a list of functions; found {given!r}")

    def has(self, point: str) -> bool:
        return bool(getattr(self, point))

    async def call(self, point: str, ids: RunIds, *args: object) -> None:
        for hook in getattr(self, point):
            await _call(hook, point, ids, *args)

    async def event(self, event: RunEvent) -> None:
        for hook in self.on_event:
            await _call(hook, "on_event", RunIds(event.session_id, event.run_id), event)


def _takes_ids(hook: Any) -> bool:
    try:
        return "ids" in inspect.signature(hook).parameters
    except (TypeError, ValueError):  # a function of C, which does not tell
        return False


async def _call(hook: Any, point: str, ids: RunIds, *args: object) -> None:
    try:
        given = hook(*args, ids=ids) if _takes_ids(hook) else hook(*args)
        if inspect.isawaitable(given):
            await given
    except Exception as error:
        name = getattr(hook, "__name__", type(hook).__name__)
        raise AgentError(
            "HookFailed",
            f"the {point} hook {name!r} raised {type(error).__name__}: {scrub(str(error))}",
            cause=error,
        ) from error
