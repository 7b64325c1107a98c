"""Starting the process that forks the crashes, and reading its report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

ALL, EACH = -1, -2
"""How many crashes: at all places there are, or at one of each kind."""

TESTS = Path(__file__).resolve().parent.parent
_MEMORY = Path("/dev/shm")


class CrashReport(msgspec.Struct):
    folder: str
    singles: int = 0
    doubles: int = 0
    places: int = 0
    kinds: list[str] = []
    missed: int = 0
    failures: list[str] = []


def run_crashes(
    scenario: str,
    store: str,
    *,
    url: str | None = None,
    singles: int = ALL,
    doubles: int = 0,
    seed: int = 0,
    planted: str | None = None,
) -> CrashReport:
    """See ``Order`` in ``crash_zygote``. Raises when the process itself fails."""
    # A killed process leaves its page cache to the system, so memory is as good as a disk here, and faster.
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="turnlog-crash-", dir=base) as folder:
        order = {
            "scenario": scenario,
            "store": store,
            "folder": folder,
            "url": url,
            "singles": singles,
            "doubles": doubles,
            "seed": seed,
            "planted": planted,
        }
        done = subprocess.run(
            [sys.executable, "-m", "reliability.crash_zygote", msgspec.json.encode(order).decode()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the crash process failed:\n{done.stderr.decode()}")
        return msgspec.json.decode(
            msgspec.json.encode({**msgspec.json.decode(done.stdout), "folder": folder}), type=CrashReport
        )
