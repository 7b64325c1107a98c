"""The tools of an agent, by name, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from turnlog.contract import AgentError, ToolPolicy, ToolSpec

from ._options import ToolDefinition
from ._tool import Tool, tool

ToolLike: TypeAlias = Tool | ToolDefinition | Callable[..., Any]


class ToolRegistry:
    """Holds tools in the order they were given. Two of one name are refused, whoever brought them."""

    def __init__(self, tools: Iterable[ToolLike] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for item in tools:
            self.add(item)

    def add(self, item: ToolLike) -> Tool:
        """A plain typed function is taken as ``tool(function)``. Raises ``ConfigInvalid``."""
        made = as_tool(item)
        other = self._tools.get(made.name)
        if other is not None and other is not made:
            raise AgentError(
                "ConfigInvalid",
                f"two tools are named {made.name!r}: {_origin(other)} and {_origin(made)}; "
                "give one of them another with @tool(name=...)",
            )
        self._tools[made.name] = made
        return made

    def remove(self, name: str) -> None:
        self._tools.pop(name, None)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def specs(
        self, allowed: Iterable[str] | None = None, order: Sequence[str] | None = None
    ) -> list[ToolSpec]:
        """What the model is told: the allowed tools (None: all), those in ``order`` first, the others after
        them as they were added. Names that are not here are passed over; see :meth:`unknown`."""
        wanted = None if allowed is None else set(allowed)
        first = [name for name in dict.fromkeys(order or ()) if name in self._tools]
        names = dict.fromkeys([*first, *self._tools])
        return [self._tools[name].spec for name in names if wanted is None or name in wanted]

    def offered(
        self,
        policy: ToolPolicy,
        allowed: Sequence[str] | None = None,
        order: Sequence[str] | None = None,
    ) -> list[ToolSpec]:
        """What a run offers: nothing when tools are off, else the policy's list ∩ the run's own."""
        if not policy.enabled:
            return []
        names = policy.allow_list
        if names is None or allowed is None:
            return self.specs(allowed if names is None else names, order)
        return self.specs(set(names).intersection(allowed), order)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that no tool here has; for whoever wants to warn of a misspelt list."""
        return [name for name in names if name not in self._tools]


def as_tool(item: ToolLike) -> Tool:
    if isinstance(item, Tool):
        found = cast("Tool", item)
        found.check_types()  # what was declared after it is known by now
        return found
    if isinstance(item, ToolDefinition):
        return Tool.from_definition(item)
    if not callable(cast("object", item)):
        raise AgentError("ConfigInvalid", f"{item!r} is not a tool: give a typed function or a Tool")
    return tool(item)


def _origin(found: Tool) -> str:
    function = found.function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{module}.{name}" if module else name
