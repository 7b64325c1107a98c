"""All the seeds of which a test run takes a tenth, and more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reliability.test_simulation import SEEDS
from turnlog.testing import simulate

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MORE = 1_000_000
CHUNK = 5_000


@pytest.mark.parametrize("first", [*range(0, SEEDS, CHUNK), *range(MORE, MORE + 50_000, CHUNK)])
def test_every_seed(first: int, record_property: Callable[[str, object], None]) -> None:
    failed: list[str] = []
    for seed in range(first, first + CHUNK):
        try:
            simulate(seed)
        except AssertionError as error:
            failed.append(str(error))
    record_property("seeds", [CHUNK, len(failed)])
    assert not failed, f"{len(failed)} of {CHUNK} seeds failed:\n" + "\n\n".join(failed[:3])
