"""The page of guarantees names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 15
    for path, name in named:
        assert re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{path} has no {name}"
