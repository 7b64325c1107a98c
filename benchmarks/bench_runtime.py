"""What the sandbox costs: a command that does nothing, bare and at each level; and 99 MB of output."""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack

from turnlog.contract import AgentError
from turnlog.runtime import LocalRuntime, SandboxLevel

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
TARGET_MS = 15.0
LEVELS: tuple[SandboxLevel, ...] = ("none", "landlock", "workspace")


async def bare(folder: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        "true",
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.communicate()


async def main() -> None:
    took: dict[str, list[float]] = {"bare": []}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        runtimes: dict[str, LocalRuntime] = {}
        for level in LEVELS:
            try:
                runtimes[level] = await stack.enter_async_context(LocalRuntime(folder, level=level))
            except AgentError as error:
                print(f"{level}: not measured: {error.message}")
        for _ in range(ROUNDS):
            start = time.perf_counter()
            await bare(folder)
            took["bare"].append(time.perf_counter() - start)
            for level, runtime in runtimes.items():
                start = time.perf_counter()
                await runtime.execute("true")
                took.setdefault(level, []).append(time.perf_counter() - start)
        best = min(took["bare"])
        print(f"{'command':<12}{'min ms':>9}{'median ms':>11}{'above bare':>12}   of {ROUNDS}")
        for level, times in took.items():
            above = (min(times) - best) * 1000
            note = "" if above <= TARGET_MS else f"   more than {TARGET_MS:g} ms"
            middle = statistics.median(times) * 1000
            print(f"{level:<12}{min(times) * 1000:>9.2f}{middle:>11.2f}{above:>12.2f}{note}")
        for level, runtime in runtimes.items():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            await runtime.execute("head -c 99000000 /dev/zero", keep=1000)
            seconds = time.perf_counter() - start
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
            print(f"99 MB of output, {level}: {seconds * 1000:.0f} ms, {grown:.1f} MB more at most")


if __name__ == "__main__":
    asyncio.run(main())
