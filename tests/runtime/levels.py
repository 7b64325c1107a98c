"""Which sandboxes this machine can do. A test of one that it cannot is skipped, with the reason."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from turnlog.contract import AgentError
from turnlog.runtime import LocalRuntime, SandboxLevel

LEVELS: tuple[SandboxLevel, ...] = ("workspace", "landlock", "none")
SANDBOXES: tuple[SandboxLevel, ...] = ("workspace", "landlock")


def needs(level: SandboxLevel) -> None:
    if (reason := _missing(level)) is not None:
        pytest.skip(reason)


@functools.cache
def _missing(level: SandboxLevel) -> str | None:
    with ThreadPoolExecutor() as threads:  # the test itself has an event loop
        return threads.submit(lambda: asyncio.run(_connect(level))).result()


async def _connect(level: SandboxLevel) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            async with LocalRuntime(folder, level=level):
                return None
        except AgentError as error:
            return error.message
