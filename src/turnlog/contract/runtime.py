"""Where commands and files happen: the protocol of a runtime and the values it deals in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from ._base import JsonObject, Value

RuntimeStatus: TypeAlias = Literal["idle", "connecting", "ready", "failed", "closed"]

Command: TypeAlias = str | Sequence[str]
"""Text is run by the runtime's shell; a list is a program and its arguments, with no shell in between."""

EndReason: TypeAlias = Literal["exited", "killed", "timed_out", "memory", "processes", "output"]


FILE_CHANGED = "file_changed"
"""The name of the custom entry that announces a change of a file, with what it held before."""


class ExecutionEnv(Value, frozen=True, kw_only=True):
    """What commands and file actions may do. None as a limit means none.

    ``writable_roots`` are folders, relative ones below the workspace; everything else is read-only.
    ``readable_roots`` are folders outside of the workspace that can be read too. ``network`` denies all,
    allows all, or allows ``hosts`` alone. ``variables`` are what a command sees of the environment, beside
    what the runtime itself needs. ``timeout`` is in seconds; ``max_memory`` (a command with everything it
    started), ``max_output`` (both streams of one command together) and ``max_file_size`` are in bytes.
    """

    writable_roots: tuple[str, ...] = (".",)
    readable_roots: tuple[str, ...] = ()
    network: Literal["deny", "allow", "hosts"] = "deny"
    hosts: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    timeout: float | None = 600.0
    max_memory: int | None = 8_000_000_000
    max_processes: int | None = 1_000
    max_output: int | None = 100_000_000
    max_file_size: int | None = 10_000_000_000


class ProcessOutput(Value, frozen=True, kw_only=True):
    """A piece of what a process wrote, as it came."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class ProcessEnd(Value, frozen=True, kw_only=True):
    """How a process ended. ``exit_code`` is None when it did not end by itself; ``reason`` then says why."""

    exit_code: int | None
    reason: EndReason = "exited"


class ProcessResult(Value, frozen=True, kw_only=True):
    """A process that was run to its end. Text that is not UTF-8 has replacement characters; ``truncated``
    says that output beyond the limit was left out, from the middle."""

    exit_code: int | None
    stdout: str
    stderr: str
    reason: EndReason = "exited"
    truncated: bool = False


class FileInfo(Value, frozen=True, kw_only=True):
    """``path`` is relative to the workspace where the file lies in it; ``modified`` is ISO-8601 UTC text."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int = 0
    modified: str | None = None


class Process(Protocol):
    """A command under way. As a context manager it is killed when the block is left before its end."""

    @property
    def id(self) -> str:
        """Unique in its runtime."""
        ...

    @property
    def end(self) -> ProcessEnd | None:
        """None while it runs."""
        ...

    def output(self) -> AsyncIterator[ProcessOutput]:
        """Pieces of both streams in the order they came, until both are closed. For one reader. A process
        that is not read is held up once its buffer is full."""
        ...

    async def write(self, data: bytes) -> None:
        """Hand ``data`` to its standard input. Raises ``RuntimeExecutionError`` when that is closed."""
        ...

    async def close_stdin(self) -> None: ...

    async def wait(self) -> ProcessEnd:
        """Wait until it has ended, by itself or by a limit. Where nobody reads ``output``, it is thrown
        away."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal, as ``signal.SIGINT``, to the command and to what it started in its process group.
        Nothing when it has ended. Raises ``RuntimeExecutionError`` for a number that is no signal."""
        ...

    async def kill(self) -> None:
        """End it and everything it started; returns once they are gone. Nothing when it has ended."""
        ...

    async def __aenter__(self) -> Process: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Runtime(Protocol):
    """Where commands and files happen, behind a policy. ``turnlog.testing.check_runtime`` checks one.

    A context manager: ``connect`` at its start, ``close`` at its end. Every method raises ``AgentError``
    alone: ``RuntimeNotReady`` before ``connect`` and after ``close``, ``RuntimePermissionDenied`` for what
    the policy or the system forbids, ``RuntimeSandboxViolation`` for what the sandbox stopped,
    ``RuntimeExecutionError`` for everything else (a file that is not there, a program that cannot be
    started). Paths are relative to the workspace or absolute; none leads out of what the policy allows,
    through links neither.
    """

    @property
    def status(self) -> RuntimeStatus: ...

    @property
    def policy(self) -> ExecutionEnv:
        """What holds for everything that is run here."""
        ...

    @property
    def sandbox(self) -> str | None:
        """The level of isolation that the system enforces, as ``"workspace"``; None when it enforces none.
        Approvals are bound to it."""
        ...

    def capabilities(self) -> frozenset[str]:
        """Which of ``run``, ``stdin`` and ``files`` work here, and names of the runtime's own."""
        ...

    async def connect(self) -> None:
        """Make ready; nothing when it is. Raises ``RuntimeUnavailable``, and is then ``failed``."""
        ...

    async def close(self) -> None:
        """Kill what still runs and let go of everything. May be called twice. Raises nothing."""
        ...

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Process:
        """Start a command. ``env`` is added to the policy's variables; ``timeout``, in seconds, can only
        shorten the policy's."""
        ...

    async def execute(
        self,
        command: Command,
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        keep: int = 1_000_000,
    ) -> ProcessResult:
        """Run a command to its end and keep up to ``keep`` bytes of each stream."""
        ...

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a file, from ``offset`` on, at most ``limit``."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Put a file in place whole, its folders too where they are missing: nobody sees half of it."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, or an empty folder."""
        ...

    async def stat(self, path: str) -> FileInfo | None:
        """None when nothing is there. A link is reported as a link."""
        ...

    async def list_files(self, path: str = ".") -> list[FileInfo]:
        """What a folder holds, by name."""
        ...

    async def get_init_data(self) -> JsonObject:
        """Stable for a session; part of the cached prefix."""
        ...

    async def get_hints(self) -> JsonObject:
        """May change between calls."""
        ...

    async def __aenter__(self) -> Runtime: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
