"""The tools of an agent, by name, in order; those of toolsets opened, read again when they change, closed.

And what can be handed in: a source of tools, a registry and an executor of your own.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from turnlog.contract import AgentError, JsonObject, Runtime, ToolCallRequest, ToolPolicy, ToolSpec, scrub

from ._answer import ToolAnswer
from ._context import ToolContext, check_deps
from ._options import ToolDefinition
from ._tool import Tool, tool


@runtime_checkable
class Toolset(Protocol):
    """Tools that have to be opened first and may change: those of a server, a plug-in, a database.

    Accepted wherever tools are listed. The registry opens it before its first use, reads ``tools`` again
    whenever ``version`` has grown, and closes it at the end. Calls may come from another event loop, or
    another thread, than ``open`` did: one agent may serve several. ``turnlog.testing.check_toolset`` checks
    an implementation.
    """

    @property
    def name(self) -> str:
        """Short, for messages: which source a tool comes from."""
        ...

    @property
    def version(self) -> int:
        """Grows whenever ``tools`` has another answer than before. Cheap: it is read before every model
        call."""
        ...

    async def open(self) -> None:
        """Make ready. Raises ``AgentError`` when that fails, with nothing left open."""
        ...

    async def tools(self) -> Sequence[ToolLike]:
        """The tools of the source now, in an order that stays the same. Called only while it is open. Raises
        ``AgentError``."""
        ...

    async def close(self) -> None:
        """Let go of everything that ``open`` took. May be called twice, and without ``open``. Raises
        nothing."""
        ...


ToolLike: TypeAlias = Tool | ToolDefinition | Callable[..., Any]
"""What is taken as one tool: a Tool, a ToolDefinition, or a typed function."""

ToolSource: TypeAlias = ToolLike | Toolset
"""What a list of tools may hold."""


class Registry(Protocol):
    """The tools of an agent, by name. ``ToolRegistry`` is one; another may be handed to the loop.

    Nothing here raises but ``refresh``.
    """

    @property
    def names(self) -> list[str]:
        """The names of all tools, in order."""
        ...

    def get(self, name: str) -> Tool | None:
        """The tool of that name, as of the last ``refresh``."""
        ...

    def __iter__(self) -> Iterator[Tool]: ...

    def offered(
        self, policy: ToolPolicy, allowed: Sequence[str] | None = None, order: Sequence[str] | None = None
    ) -> list[ToolSpec]:
        """What a run offers to the model: the policy's tools that are also in ``allowed`` (None: all), those
        in ``order`` first."""
        ...

    async def refresh(self) -> None:
        """Open what is not open yet and read again what has changed. Called before every model call, so it
        is cheap when nothing has. Raises ``AgentError``."""
        ...

    async def close(self) -> None:
        """Close what ``refresh`` opened."""
        ...


class Executor(Protocol):
    """Runs calls. ``ToolExecutor`` is one; another may be handed to the loop, to run tools elsewhere.

    ``execute`` and ``reconcile`` raise nothing but ``CancelledError``: every failure is an answer.
    """

    def validate(self, call: ToolCallRequest) -> ToolAnswer | JsonObject:
        """The arguments that would run, or the answer that says why the call cannot. Runs nothing."""
        ...

    async def execute(self, call: ToolCallRequest, ctx: ToolContext) -> ToolAnswer:
        """Run one call; the answer's status is ``deferred`` when its result will come from outside."""
        ...

    async def reconcile(
        self, call: ToolCallRequest | Tool, ctx: ToolContext, arguments: JsonObject | None = None
    ) -> ToolAnswer | None:
        """What became of a call that was started before a crash; None when that cannot be known."""
        ...

    def cancel(self, tool_call_id: str, reason: str = "the run was aborted") -> bool:
        """Stop a call that ``execute`` runs; it then answers within a bounded time. False when no such call
        is under way. May be called from any thread."""
        ...

    async def close(self) -> None:
        """Stop every call under way."""
        ...


_TOOLSET_PARTS = ("name", "version", "open", "tools", "close")


@dataclass(slots=True)
class _Source:
    """One toolset and what was read of it."""

    toolset: Toolset
    is_open: bool = False
    version: int | None = None
    tools: list[Tool] = field(default_factory=list[Tool])


class _Offer(NamedTuple):
    """What was offered last, and to whom."""

    asked: tuple[object, ...]
    specs: list[ToolSpec]


class ToolRegistry:
    """Holds tools in the order they were given; those of a toolset stand in its place.

    Two tools of one name are refused, wherever they come from. Tools of a toolset are there from the first
    ``refresh`` on.
    """

    def __init__(self, tools: Iterable[ToolSource] = ()) -> None:
        self._places: list[Tool | _Source] = []
        self._sources: list[_Source] = []
        self._offer: _Offer | None = None
        self._tools: dict[str, Tool] = {}
        self._lock = threading.Lock()
        for item in tools:
            self.add(item)

    def add(self, item: ToolSource) -> None:
        """A plain typed function is taken as ``tool(function)``. Raises ``ConfigInvalid``."""
        if is_toolset(item):
            source = _Source(cast("Toolset", item))
            self._places.append(source)
            self._sources.append(source)
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
        return [source.toolset for source in self._sources]

    def use_runtime(self, runtime: Runtime | None) -> None:
        """Hand the agent's runtime to the toolsets that start processes (``use_runtime``)."""
        for source in self._sources:
            use = getattr(source.toolset, "use_runtime", None)
            if runtime is not None and use is not None:
                use(runtime)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    # ── toolsets ──

    @property
    def is_fresh(self) -> bool:
        """Whether all toolsets are open and as they were last read."""
        for source in self._sources:
            if not source.is_open or source.version != source.toolset.version:
                return False
        return True

    async def refresh(self) -> None:
        """Open toolsets that are not open yet, and read again those whose ``version`` has grown.

        Raises ``ConfigInvalid`` when two tools have one name, and what a toolset raises; the tools are then
        those of before.
        """
        if self.is_fresh:
            return
        sources = self._sources
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
            for source in self._sources:
                if source.is_open:
                    source.is_open, source.version, source.tools = False, None, []
                    with contextlib.suppress(Exception):  # it cannot be closed better than this
                        await source.toolset.close()
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
        # A run asks before every model call and at every tool call, with the same objects.
        asked = (self._tools, policy, allowed, order)
        known = self._offer
        if known is None or not all(map(operator.is_, known.asked, asked)):
            names = policy.allow_list
            if names is not None and allowed is not None:
                names = set(names).intersection(allowed)
            known = self._offer = _Offer(asked, self.specs(allowed if names is None else names, order))
        return known.specs[:]

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
