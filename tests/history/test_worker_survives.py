"""A store's thread that meets what nobody expected goes on, and says so to whoever waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from history.history_log import open_session
from turnlog.contract import AgentError, user_message
from turnlog.history import SqliteStore
from turnlog.history._worker import Job, Worker


@pytest.mark.spec("H-6", "L-8")
async def test_a_group_that_breaks_down_fails_its_jobs_and_no_later_one() -> None:
    broken = True

    def run_group(jobs: list[Job]) -> Iterable[list[Job]]:
        for place, job in enumerate(jobs):
            if broken and place == 1:
                raise MemoryError("no room for a journal")
            job.run([job])
            yield [job]

    worker = Worker("turnlog test", run_group)
    first = worker.do(lambda: "done")  # starts the thread, which may take it alone
    await first
    waiting = [worker.do(lambda: "done") for _ in range(5)]
    found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 120)
    assert all(each == "done" or isinstance(each, AgentError) for each in found)
    broken = False
    assert await asyncio.wait_for(worker.do(lambda: "again"), 120) == "again"
    await worker.stop(lambda: None)


@pytest.mark.spec("L-8")
async def test_a_job_that_comes_while_the_thread_is_stopped_is_done_after_the_last_and_answered() -> None:
    worker = Worker("turnlog test")
    done: list[str] = []
    last_may_end, late_may_end = threading.Event(), threading.Event()

    def last() -> None:
        last_may_end.wait(30)
        done.append("last")

    def late() -> None:
        done.append("late")
        late_may_end.wait(30)

    await worker.do(lambda: None)
    stopping = asyncio.ensure_future(worker.stop(last))
    await asyncio.sleep(0)  # it has begun
    waiting = worker.do(late)
    last_may_end.set()
    await asyncio.wait_for(stopping, 120)
    late_may_end.set()  # the worker has let go of this loop by now
    await asyncio.wait_for(waiting, 120)
    assert done == ["last", "late"]
    await worker.stop(lambda: None)


@pytest.mark.spec("L-8", "H-9")
async def test_who_reads_while_something_is_erased_is_answered(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "log.db") as store:
        session = await open_session(store)
        session.append_model_input(user_message("hello"))
        await session.commit()
        erasing = asyncio.ensure_future(erase_often(store))

        async def read_on() -> None:
            while not erasing.done():
                assert len(await store.read("s1")) == 2

        await asyncio.wait_for(asyncio.gather(erasing, *[read_on() for _ in range(8)]), 120)


async def erase_often(store: SqliteStore) -> None:
    for _ in range(20):
        await store.erase("s1", {})
