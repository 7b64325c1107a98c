"""What can be handed in: a source of tools, a registry and an executor of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from turnlog.contract import JsonObject, ToolCallRequest, ToolPolicy, ToolSpec

from ._answer import ToolAnswer
from ._context import ToolContext
from ._options import ToolDefinition
from ._tool import Tool


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
