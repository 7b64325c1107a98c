"""A process run to its end, with what it wrote."""

from __future__ import annotations

import asyncio
import contextlib

from turnlog.contract import AgentError, Process, ProcessResult


async def drain(process: Process, *, stdin: bytes | None = None, keep: int = 1_000_000) -> ProcessResult:
    """What ``Runtime.execute`` does with a process it has started. Raises what ``process.output`` raises."""
    kept = {"stdout": _Kept(keep), "stderr": _Kept(keep)}
    async with process:
        # Beside the reading: a process that answers while it is spoken to would fill its pipe and stop.
        feeding = asyncio.create_task(_feed(process, stdin))
        try:
            async for piece in process.output():
                kept[piece.stream].add(piece.data)
            end = await process.wait()
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
    return ProcessResult(
        exit_code=end.exit_code,
        reason=end.reason,
        stdout=kept["stdout"].text(),
        stderr=kept["stderr"].text(),
        truncated=any(stream.left_out for stream in kept.values()),
    )


async def _feed(process: Process, data: bytes | None) -> None:
    with contextlib.suppress(AgentError):  # it stopped listening, as it may
        if data is not None:
            await process.write(data)
        await process.close_stdin()


class _Kept:
    """The head and the tail of a stream, at most ``limit`` bytes of it."""

    def __init__(self, limit: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self.left_out = 0

    def add(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if over := max(len(self._tail) - self._tail_limit, 0):
            del self._tail[:over]
            self.left_out += over

    def text(self) -> str:
        note = f"\n[… {self.left_out:,} bytes left out here …]\n".encode() if self.left_out else b""
        return (bytes(self._head) + note + bytes(self._tail)).decode(errors="replace")
