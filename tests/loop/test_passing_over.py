"""A long log is opened without a close look at what is over, and stands where it would have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from history.history_log import STARTED, answer, call, open_session, results
from turnlog.contract import Entry, ToolStarted
from turnlog.history import MemoryStore, SessionState
from turnlog.testing import read_trace

TRACES = sorted((Path(__file__).parents[1] / "golden" / "traces").glob("*.jsonl"))


@pytest.mark.parametrize("seed", range(3))
def test_taking_a_log_at_once_is_stepping_through_it(seed: int) -> None:
    traces = list(TRACES)
    random.Random(seed).shuffle(traces)
    log: list[Entry] = [entry for path in traces for entry in read_trace(path)]
    stepped = SessionState()
    for count, entry in enumerate(log, 1):
        stepped.step(entry)
        taken = SessionState()
        taken.take(log[:count])
        assert (taken, taken.total_usage) == (stepped, stepped.total_usage), (
            f"after entry {count}, a {entry.kind}"
        )
    assert sum(entry.kind == "run_started" for entry in log) > 20, "a log of many runs"


async def test_a_call_that_was_open_before_a_run_is_not_counted_as_the_runs() -> None:
    session = await open_session(MemoryStore())
    session.append_model_output(answer("looking", call("c1")))
    session.start_run("run_1", STARTED)
    session.start_tool(ToolStarted(tool_call_id="c1", tool_name="look", idempotency_key="k", args_digest="d"))
    session.append_tool_results(results(("c1", "there")))
    session.append_model_output(answer("Found."))
    log = await session.commit()
    stepped, taken = SessionState(), SessionState()
    for entry in log:
        stepped.step(entry)
    taken.take(log)
    assert taken == stepped
