"""More seeds than a test run has time for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from turnlog.testing import simulate

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

FIRST = 1_000_000
SEEDS = 50_000
CHUNK = 5_000


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_more_seeds(first: int, record_property: Callable[[str, object], None]) -> None:
    failed: list[str] = []
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except AssertionError as error:
            failed.append(str(error))
    record_property("seeds", [CHUNK, len(failed)])
    assert not failed, f"{len(failed)} of {CHUNK} seeds failed:\n" + "\n\n".join(failed[:3])
