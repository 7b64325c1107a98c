"""A fork at any entry, also inside what was written as one batch, replays and can be continued."""

from __future__ import annotations

import pytest

from loop.scenarios import SESSION, TRACES, Stage
from turnlog.history import verify
from turnlog.loop import fork_session, replay


@pytest.mark.spec("H-7", "L-14")
@pytest.mark.parametrize("trace", sorted(TRACES))
async def test_a_fork_at_any_entry_replays(trace: str) -> None:
    stage = Stage()
    await TRACES[trace][1](stage)
    names = [info.session_id for info in await stage.store.sessions()]
    assert SESSION in names
    for seq in range(1, len(await stage.store.load(SESSION)) + 1):
        name = await fork_session(stage.store, SESSION, at=seq, clock=stage.clock, ids=stage.ids)
        assert await verify(stage.store, name) == [], seq
        report = await replay(stage.store, name)
        assert report.identical, (seq, report.difference)
        if seq % 4 == 0:
            await stage.agent(["Again."]).run("Go on.", session=name)
            report = await replay(stage.store, name)
            assert report.identical, (seq, report.difference)
