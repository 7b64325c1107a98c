"""The runtime of this machine keeps the promise of a runtime, at every level that the machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.levels import LEVELS, needs
from turnlog.runtime import LocalRuntime
from turnlog.testing import check_runtime


@pytest.mark.parametrize("level", LEVELS)
async def test_it_passes_the_kit(level: Any, tmp_path: Path) -> None:
    needs(level)
    passed = await check_runtime(
        lambda: LocalRuntime(tmp_path, level=level),
        broken=lambda: LocalRuntime(tmp_path / "nowhere", level=level),
    )
    assert "kills" in passed and "broken" in passed
