"""A long log is opened without a close look at what is over, and stands where it would have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from turnlog.contract import Entry
from turnlog.loop import RunState
from turnlog.testing import read_trace

TRACES = sorted((Path(__file__).parents[1] / "golden" / "traces").glob("*.jsonl"))


@pytest.mark.parametrize("seed", range(3))
def test_taking_a_log_at_once_is_stepping_through_it(seed: int) -> None:
    traces = list(TRACES)
    random.Random(seed).shuffle(traces)
    log: list[Entry] = [entry for path in traces for entry in read_trace(path)]
    stepped = RunState()
    for count, entry in enumerate(log, 1):
        stepped.step(entry)
        taken = RunState()
        taken.take(log[:count])
        assert taken == stepped, f"after entry {count}, a {entry.kind}"
    assert sum(entry.kind == "run_started" for entry in log) > 20, "a log of many runs"
