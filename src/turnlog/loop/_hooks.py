"""Functions called at fixed points of a run. One that raises fails the run, visibly."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from turnlog.contract import AgentError, RunEvent, scrub

Hook: TypeAlias = Callable[..., "Awaitable[None] | None"]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Each is called with what it is about; none may change it. An abort does not wait for one to end.

    ``before_model(context)``, ``after_model(message)``, ``before_tool(call)``, ``after_tool(call, answer)``,
    ``on_event(event)``.
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

    async def call(self, point: str, *args: object) -> None:
        for hook in getattr(self, point):
            await _call(hook, point, *args)

    async def event(self, event: RunEvent) -> None:
        for hook in self.on_event:
            await _call(hook, "on_event", event)


async def _call(hook: Any, point: str, *args: object) -> None:
    try:
        given = hook(*args)
        if inspect.isawaitable(given):
            await given
    except Exception as error:
        name = getattr(hook, "__name__", type(hook).__name__)
        raise AgentError(
            "HookFailed",
            f"the {point} hook {name!r} raised {type(error).__name__}: {scrub(str(error))}",
            cause=error,
        ) from error
