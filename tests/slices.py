"""Which part of a long proof this run takes: another one every time, and all of them in `make soak`.

A run is repeated with the number that it prints: `TURNLOG_TEST_SLICE=29841234 make test`.
"""

from __future__ import annotations

import os
import time

VARIABLE = "TURNLOG_TEST_SLICE"


def choose_slice() -> str:
    """The number of this run. Worker processes inherit it, so that all of them take the same part."""
    return os.environ.setdefault(VARIABLE, str(int(time.time()) // 60))


def slice_of(count: int) -> int:
    """Which of ``count`` parts it is this time."""
    return int(choose_slice()) % count
