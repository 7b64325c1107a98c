"""Disks that are full or broken, for a moment or for good: the run ends, says so, and goes on later."""

from __future__ import annotations

import pytest

from reliability.crash_runs import EACH, run_crashes


@pytest.mark.spec("L-8", "H-4", "H-10")
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("fault", ["full", "broken"])
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
def test_any_write_or_sync_may_fail(store: str, fault: str, lasting: bool) -> None:
    """Each kind of write and sync fails in turn, in the middle of it too. The process that meets the fault
    ends its runs with an ``AgentError``; a new one finds a log in order and finishes."""
    report = run_crashes("fold", store, singles=EACH, fault=fault, lasting=lasting)
    assert report.failures == []
    assert report.singles == len(report.kinds) >= 8


@pytest.mark.spec("L-8", "H-10")
@pytest.mark.parametrize(
    ("store", "limits"),
    [("jsonl", range(6_000, 24_000, 797)), ("sqlite", range(6_000, 150_000, 7_013))],
)
def test_the_system_may_refuse_a_write_at_any_byte(store: str, limits: range) -> None:
    """The kernel itself cuts a write at a limit and fails the next one."""
    report = run_crashes("parallel", store, singles=0, limits=limits)
    assert report.failures == []
    assert report.singles == len(limits)
