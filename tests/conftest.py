"""What every test has: the specification report, a repeatable hypothesis, the recorded data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest

from slices import VARIABLE, choose_slice
from soak_report import SoakReport
from spec_report import SpecReport, shared_folder

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["postgres_server"]

# The same examples on every run; time limits belong to pytest-timeout, not to a loaded machine.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    choose_slice()
    config.pluginmanager.register(SpecReport(config), "spec-report")
    config.pluginmanager.register(SoakReport(), "soak-report")


def pytest_report_header() -> str:
    return f"long proofs: {VARIABLE}={choose_slice()}"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of recorded streams and sessions; a test that needs it is skipped where it is missing."""
    folder = shared_folder() / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded data at {folder}; set TURNLOG_SHARED to the folder that holds data/")
    return folder
