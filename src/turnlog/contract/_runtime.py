"""Where commands and files happen: the protocol of a runtime and the values it deals in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ._base import JsonObject, Value


class ExecutionResult(Value, frozen=True, kw_only=True):
    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False
    meta: JsonObject | None = None


@runtime_checkable
class Runtime(Protocol):
    """Where commands and files happen, behind a policy."""

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def status(self) -> str:
        """``idle``, ``connecting``, ``ready``, ``failed`` or ``closed``."""
        ...

    def capabilities(self) -> frozenset[str]: ...

    async def execute(self, action: str, arguments: Mapping[str, Any]) -> ExecutionResult: ...

    async def get_init_data(self) -> JsonObject:
        """Stable for a session; part of the cached prefix."""
        ...

    async def get_hints(self) -> JsonObject:
        """May change between calls."""
        ...
