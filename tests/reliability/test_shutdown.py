"""A program that ends while its run goes on: ``asyncio.run`` cancels every task at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loop.scenarios import SESSION, Stage, call
from turnlog.contract import Store, ToolPolicy
from turnlog.history import JsonlStore, MemoryStore, SqliteStore
from turnlog.testing import Turn, check_session


def opened(kind: str, folder: Path) -> Store:
    if kind == "memory":
        return MemoryStore()
    return JsonlStore(folder) if kind == "jsonl" else SqliteStore(folder / "log.db")


@pytest.mark.spec("L-7", "L-8", "H-10")
@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
def test_a_program_may_end_at_any_moment(kind: str, tmp_path: Path) -> None:
    """Not even the writes under way are spared. What is in the log is in order, and can be gone on with."""
    statuses: set[str] = set()
    for turns in range(48):
        stage = Stage(store=opened(kind, tmp_path / str(turns)))
        unhandled: list[dict[str, Any]] = []

        async def main(turns: int = turns, stage: Stage = stage, unhandled: list[Any] = unhandled) -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
            calls = [call("look", place="a"), call("look", place="b"), call("add", a=1, b=2)]
            agent = stage.agent(
                [Turn(tool_calls=calls), Turn(tool_calls=[call("wait", what="rain")])],
                tool_policy=ToolPolicy(max_parallel=2),
            )
            going = asyncio.ensure_future(agent.run("Go.", session=SESSION))
            for _ in range(turns):
                await asyncio.sleep(0 if kind == "memory" else 0.0005)
            assert not going.done()

        async def after(stage: Stage = stage) -> None:
            if await stage.store.tail(SESSION) is None:
                return
            await check_session(stage.store, SESSION, settled=False)
            await stage.agent(["Here I am."]).resume(SESSION)
            await check_session(stage.store, SESSION)
            entries = await stage.store.load(SESSION)
            statuses.add(next(entry.payload.status for entry in entries if entry.kind == "run_ended"))

        asyncio.run(main())
        assert unhandled == []
        asyncio.run(after())
        asyncio.run(stage.store.close())
        assert stage.effects.count("add 1 2") <= 1
    assert statuses
