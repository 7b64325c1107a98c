"""What was acknowledged is on the disk, whatever the disk still had in its cache when the power went."""

from __future__ import annotations

import pytest

from reliability.crash_runs import lose_power

IMAGES = 400


@pytest.mark.spec("H-5", "H-6")
@pytest.mark.parametrize("scenario", ["parallel", "approval", "fold"])
def test_sqlite_keeps_what_it_acknowledged(scenario: str) -> None:
    report = lose_power(scenario, "sqlite", images=IMAGES, holes=True)
    assert report.failures == []
    assert report.images == IMAGES and report.acknowledged > 10


@pytest.mark.spec("H-5")
@pytest.mark.parametrize("scenario", ["parallel", "fold"])
def test_jsonl_keeps_what_it_acknowledged_where_writes_are_cut_and_not_riddled(scenario: str) -> None:
    report = lose_power(scenario, "jsonl", images=IMAGES)
    assert report.failures == []
    assert report.images == IMAGES and report.acknowledged > 10


def test_jsonl_refuses_a_last_write_with_holes_and_loses_nothing_acknowledged() -> None:
    """More than a cut: the file is then named as damaged, not guessed at."""
    report = lose_power("fold", "jsonl", images=IMAGES, holes=True)
    assert report.failures
    assert all("SessionCorrupt" in failure for failure in report.failures)


@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
def test_a_disk_that_lies_about_its_syncs_is_found(store: str) -> None:
    assert lose_power("one_tool", store, images=60, forgetful=True).failures
