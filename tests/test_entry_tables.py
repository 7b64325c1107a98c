"""What looks entries up by kind knows every kind: a new one cannot be forgotten in a table."""

from __future__ import annotations

from types import ModuleType

import pytest

from turnlog.context import _projection
from turnlog.contract import ENTRY_KINDS
from turnlog.history import _state


@pytest.mark.parametrize("room", [_projection, _state], ids=["projection", "session state"])
def test_every_kind_has_its_step(room: ModuleType) -> None:
    assert set(room.STEPS) == set(ENTRY_KINDS)
