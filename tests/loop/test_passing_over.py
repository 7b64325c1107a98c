"""A long log is opened without a close look at the runs that are over, and stands where it would have."""

from __future__ import annotations

from pathlib import Path

from turnlog.contract import Entry
from turnlog.loop import RunState
from turnlog.loop._state import newest_run
from turnlog.testing import read_trace

TRACES = sorted((Path(__file__).parents[1] / "golden" / "traces").glob("*.jsonl"))


def test_what_outlives_runs_is_all_that_a_later_run_needs() -> None:
    log: list[Entry] = [entry for path in TRACES for entry in read_trace(path)]
    looked = RunState()
    runs = 0
    for count, entry in enumerate(log, 1):
        looked.step(entry)
        passed = RunState()
        newest = newest_run(log[:count])
        for before in log[:newest]:
            passed.pass_over(before)
        for after in log[newest:count]:
            passed.step(after)
        assert passed == looked, f"after entry {count}, a {entry.kind}"
        runs += entry.kind == "run_started"
    assert runs > 20, "a log of many runs"
