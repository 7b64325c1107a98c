"""Killed with clients attached: no run is lost or doubled, no effect happens twice, no number is missing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("uvicorn", reason="needs the extra 'server'")

from server.kills import kill_again_and_again


async def test_three_kills_with_clients_attached(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # the moments of a run that failed
    report = await kill_again_and_again(tmp_path, 3, seed)
    assert report.kills == 3 and report.runs > 0 and report.connections >= 3


@pytest.mark.soak
async def test_two_dozen_kills_with_clients_attached(tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}")
    report = await kill_again_and_again(tmp_path, 24, seed)
    print(report)
    assert report.kills == 24 and report.runs >= 5 and report.connections >= 24
