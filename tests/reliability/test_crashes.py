"""kill -9 at every kind of place there is, once and twice, on a durable store; then all invariants.

A run takes one store for each scenario, another one the next time. The whole matrix, every scenario on every
store at every single place, is in tests/soak.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from postgres_server import PostgresServer
from reliability.crash_runs import EACH, run_crashes
from reliability.crash_world import SCENARIOS, STORES
from slices import slice_of


@pytest.mark.spec("H-4", "H-6", "H-10", "H-11", "T-3", "A-2", "L-3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_anywhere_a_run_goes_on_and_nothing_is_lost_or_done_twice(scenario: str) -> None:
    stores = list(STORES)
    store = stores[(list(SCENARIOS).index(scenario) + slice_of(len(stores))) % len(stores)]
    report = run_crashes(scenario, store, singles=EACH, doubles=3)
    assert report.failures == []
    assert report.singles == len(report.kinds) and report.doubles == 3
    assert {"append before", "append after"} <= set(report.kinds)


@pytest.mark.spec("H-6", "H-10", "T-3")
def test_killed_anywhere_on_postgresql(postgres: PostgresServer) -> None:
    scenario = ("parallel", "approval")[slice_of(2)]
    report = run_crashes(scenario, "postgres", url=postgres.url(schema="CASE"), singles=EACH, doubles=2)
    assert report.failures == []
    assert report.singles == len(report.kinds) and report.doubles == 2


@pytest.mark.parametrize(
    ("planted", "found"),
    [("careless tool", "ran 2 times"), ("hasty store", "was acknowledged and is not in the log")],
)
def test_the_checks_find_a_planted_bug(planted: str, found: str) -> None:
    report = run_crashes("one_tool", "jsonl", singles=EACH, planted=planted)
    assert report.failures and all(found in failure for failure in report.failures)


def test_places_of_every_layer_are_there() -> None:
    """A place that is renamed or no longer reached must not silently leave the matrix."""
    kinds = set(run_crashes("approval", "sqlite", singles=0).kinds)
    kinds |= set(run_crashes("fold", "jsonl", singles=0).kinds)
    kinds |= set(run_crashes("reconcile", "jsonl", singles=0, doubles=0).kinds)
    for expected in (
        "append before",
        "append after",
        "put_blob before",
        "hook before_model",
        "hook after_model",
        "hook before_tool",
        "hook after_tool",
        "model asked",
        "event model_delta text",
        "event model_delta tool_call_args",
        "event approval_requested",
        "event run_ended",
        "pay before its effect",
        "pay after its effect",
        "decide",
        "jsonl write torn",
        "jsonl sync after",
        "blob write torn",
        "replace before",
        "wal write torn",
        "wal sync before",
        "close",
    ):
        assert expected in kinds, expected


def test_the_folder_of_cases_is_gone_afterwards() -> None:
    report = run_crashes("no_tool", "jsonl", singles=1)
    assert not Path(report.folder).exists()
