"""A store's thread that meets what nobody expected goes on, and says so to whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from turnlog.contract import AgentError
from turnlog.history._worker import Job, Worker


@pytest.mark.spec("H-6", "L-8")
async def test_a_group_that_breaks_down_fails_its_jobs_and_no_later_one() -> None:
    broken = True

    def run_group(jobs: list[Job]) -> Iterable[list[Job]]:
        for place, job in enumerate(jobs):
            if broken and place == 1:
                raise MemoryError("no room for a journal")
            job.run()
            yield [job]

    worker = Worker("turnlog test", run_group)
    first = worker.do(lambda: "done")  # starts the thread, which may take it alone
    await first
    waiting = [worker.do(lambda: "done") for _ in range(5)]
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert all(each == "done" or isinstance(each, AgentError) for each in found)
    broken = False
    assert await asyncio.wait_for(worker.do(lambda: "again"), 10) == "again"
    await worker.stop(lambda: None)
