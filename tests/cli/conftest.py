"""A folder with `turnlog` in it, for every test of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(params=["sqlite:log.db", "jsonl:logs"])
def any_shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    """The same on each store that lives in files."""
    return Shell(tmp_path, request.param)
