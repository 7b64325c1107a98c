"""The tables that the folds over a log look their steps up in."""

from __future__ import annotations

import pytest

from turnlog.context._projection import STEPS as PROJECTION
from turnlog.contract import ENTRY_KINDS
from turnlog.history._state import STEPS as STATE


@pytest.mark.parametrize("table", [PROJECTION, STATE], ids=["projection", "state"])
def test_a_fold_knows_every_kind(table: dict[str, object]) -> None:
    assert list(table) == list(ENTRY_KINDS)
