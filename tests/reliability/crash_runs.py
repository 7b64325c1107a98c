"""Starting the process that forks the crashes, and reading its report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

ALL, EACH = -1, -2
"""How many crashes: at all places there are, or at one of each kind."""

TESTS = Path(__file__).resolve().parent.parent
_MEMORY = Path("/dev/shm")


class CrashReport(msgspec.Struct):
    folder: str = ""
    singles: int = 0
    doubles: int = 0
    places: int = 0
    kinds: list[str] = []
    missed: int = 0
    failures: list[str] = []


class PowerReport(msgspec.Struct):
    images: int = 0
    steps: int = 0
    acknowledged: int = 0
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
    fault: str = "kill",
    lasting: bool = False,
    limits: Sequence[int] = (),
) -> CrashReport:
    """See ``Order`` in ``crash_zygote``. Raises when the process itself fails."""
    order = {
        "url": url,
        "singles": singles,
        "doubles": doubles,
        "seed": seed,
        "planted": planted,
        "fault": fault,
        "lasting": lasting,
        "limits": list(limits),
    }
    said, folder = _run("reliability.crash_zygote", {"scenario": scenario, "store": store, **order})
    report = msgspec.json.decode(said, type=CrashReport)
    report.folder = folder
    return report


def lose_power(scenario: str, store: str, **order: Any) -> PowerReport:
    """See ``Order`` in ``power_loss``. Raises when the process itself fails."""
    said, _ = _run("reliability.power_loss", {"scenario": scenario, "store": store, **order})
    return msgspec.json.decode(said, type=PowerReport)


def _run(module: str, order: dict[str, Any]) -> tuple[bytes, str]:
    # A killed process leaves its page cache to the system, so memory is as good as a disk here, and faster.
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="turnlog-crash-", dir=base) as folder:
        done = subprocess.run(
            [sys.executable, "-m", module, msgspec.json.encode({**order, "folder": folder}).decode()],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{module} failed:\n{done.stderr.decode()}")
        return done.stdout, folder
