"""The tools of an agent, by name, in order; those of toolsets opened, read again when they change, closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any, cast

from turnlog.contract import AgentError, ToolPolicy, ToolSpec, scrub

from ._context import check_deps
from ._options import ToolDefinition
from ._ports import ToolLike, Toolset, ToolSource
from ._tool import Tool, tool

_TOOLSET_PARTS = ("name", "version", "open", "tools", "close")


class _Source:
    """One toolset and what was read of it."""

    __slots__ = ("is_open", "tools", "toolset", "version")

    def __init__(self, toolset: Toolset) -> None:
        self.toolset = toolset
        self.is_open = False
        self.version: int | None = None
        self.tools: list[Tool] = []


class ToolRegistry:
    """Holds tools in the order they were given; those of a toolset stand in its place.

    Two tools of one name are refused, wherever they come from. Tools of a toolset are there from the first
    ``refresh`` on.
    """

    def __init__(self, tools: Iterable[ToolSource] = ()) -> None:
        self._places: list[Tool | _Source] = []
        self._tools: dict[str, Tool] = {}
        self._lock = threading.Lock()
        for item in tools:
            self.add(item)

    def add(self, item: ToolSource) -> None:
        """A plain typed function is taken as ``tool(function)``. Raises ``ConfigInvalid``."""
        if is_toolset(item):
            self._places.append(_Source(cast("Toolset", item)))
            return
        made = as_tool(cast("ToolLike", item))
        if self._tools.get(made.name) is not made:
            self._tools = _by_name([*self._places, made])
            self._places.append(made)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    @property
    def toolsets(self) -> list[Toolset]:
        return [place.toolset for place in self._places if isinstance(place, _Source)]

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    # ── toolsets ──

    async def refresh(self) -> None:
        """Open toolsets that are not open yet, and read again those whose ``version`` has grown.

        Raises ``ConfigInvalid`` when two tools have one name, and what a toolset raises; the tools are then
        those of before.
        """
        sources = [place for place in self._places if isinstance(place, _Source)]
        if all(source.is_open and source.version == source.toolset.version for source in sources):
            return
        async with self._alone():
            try:
                for source in sources:
                    await _read(source)
                self._tools = _by_name(self._places)
            except BaseException:
                for source in sources:
                    source.version = None  # looked at again, and refused again, until it fits
                raise

    async def close(self) -> None:
        """Close the toolsets that were opened; their tools are gone until the next ``refresh``."""
        async with self._alone():
            for place in self._places:
                if isinstance(place, _Source) and place.is_open:
                    place.is_open, place.version, place.tools = False, None, []
                    with contextlib.suppress(Exception):  # it cannot be closed better than this
                        await place.toolset.close()
            self._tools = _by_name(self._places)

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncGenerator[None]:
        # Several event loops may share a registry, which no lock of asyncio can do; waiting here is rare.
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        try:
            yield
        finally:
            self._lock.release()

    # ── what a run may use ──

    def specs(
        self, allowed: Iterable[str] | None = None, order: Sequence[str] | None = None
    ) -> list[ToolSpec]:
        """What the model is told: the allowed tools (None: all), those in ``order`` first, the others after
        them as they were added. Names that are not here are passed over; see :meth:`unknown`."""
        tools = self._tools
        wanted = None if allowed is None else set(allowed)
        first = [name for name in dict.fromkeys(order or ()) if name in tools]
        names = dict.fromkeys([*first, *tools])
        return [tools[name].spec for name in names if wanted is None or name in wanted]

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
        """Those of ``names`` that no tool here has: a misspelt list."""
        return [name for name in names if name not in self._tools]

    def check_deps(self, deps: object) -> None:
        """Refuse ``deps`` that a tool here cannot work with, by its ``ToolContext[X]``. Raises
        ``ConfigInvalid``."""
        for found in self:
            for wanted in found.deps_types:
                check_deps(deps, wanted, f"tool {found.name!r}")

    def check_deps_type(self, given: Any) -> None:
        """Refuse an agent's ``deps_type`` that a tool here cannot work with. Raises ``ConfigInvalid``."""
        for found in self:
            for wanted in found.deps_types:
                both = isinstance(given, type) and isinstance(wanted, type)
                if both and not getattr(wanted, "_is_protocol", False) and not issubclass(given, wanted):
                    raise AgentError(
                        "ConfigInvalid",
                        f"tool {found.name!r} works with deps of type {wanted.__name__}, and the agent's "
                        f"deps_type is {given.__name__}; give it deps_type={wanted.__name__}",
                    )


def is_toolset(item: object) -> bool:
    return not isinstance(item, Tool | type) and all(hasattr(item, part) for part in _TOOLSET_PARTS)


def as_tool(item: ToolLike) -> Tool:
    if isinstance(item, Tool):
        found = cast("Tool", item)
        found.check_types()  # what was declared after it is known by now
        return found
    if isinstance(item, ToolDefinition):
        return Tool.from_definition(item)
    given = cast("object", item)
    if not callable(given):
        lacking = [part for part in _TOOLSET_PARTS if not hasattr(given, part)]
        also = f"; for a toolset it lacks {', '.join(lacking)}" if len(lacking) < len(_TOOLSET_PARTS) else ""
        raise AgentError(
            "ConfigInvalid", f"{item!r} is not a tool: give a typed function, a Tool or a Toolset{also}"
        )
    return tool(item)


async def _read(source: _Source) -> None:
    toolset = source.toolset
    if not source.is_open:
        await _told(toolset, "be opened", toolset.open())
        source.is_open = True
    version = toolset.version
    if version != source.version:
        found = await _told(toolset, "list its tools", toolset.tools())
        source.tools = [as_tool(item) for item in found]
        source.version = version


async def _told(toolset: Toolset, what: str, work: Any) -> Any:
    try:
        return await work
    except AgentError:
        raise
    except Exception as error:
        raise AgentError(
            "ConfigInvalid",
            f"toolset {toolset.name!r} could not {what}: {type(error).__name__}: {scrub(str(error))}",
            cause=error,
        ) from error


def _by_name(places: Sequence[Tool | _Source]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    origins: dict[str, str] = {}
    for place in places:
        for each in place.tools if isinstance(place, _Source) else [place]:
            origin = f"toolset {place.toolset.name!r}" if isinstance(place, _Source) else _origin(each)
            other = found.get(each.name)
            if other is not None and other is not each:
                raise AgentError(
                    "ConfigInvalid",
                    f"two tools are named {each.name!r}: {origins[each.name]} and {origin}; give one of them "
                    "another, with @tool(name=...) or a prefix for the toolset",
                )
            found[each.name], origins[each.name] = each, origin
    return found


def _origin(found: Tool) -> str:
    function = found.function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{module}.{name}" if module else name
