"""The whole crash matrix: every place in every scenario on every durable store, and pairs of places."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postgres_server import PostgresServer
from reliability.crash_runs import ALL, CrashReport, run_crashes
from reliability.crash_world import SCENARIOS, STORES

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def note(report: CrashReport, record_property: Callable[[str, object], None]) -> None:
    record_property("crashes", [report.singles, report.doubles, len(report.failures)])
    assert report.failures == []


@pytest.mark.spec("H-6", "H-10", "T-3")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_place(scenario: str, store: str, record_property: Callable[[str, object], None]) -> None:
    note(run_crashes(scenario, store, singles=ALL, doubles=120), record_property)


@pytest.mark.spec("H-6", "H-10", "T-3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_place_on_postgresql(
    scenario: str, postgres: PostgresServer, record_property: Callable[[str, object], None]
) -> None:
    url = postgres.url(schema="CASE")
    note(run_crashes(scenario, "postgres", url=url, singles=ALL, doubles=40), record_property)
