"""What tests of the models share."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["httpx2", "aiohttp"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The HTTP client that the models of a test use: the test runs with each of them."""
    pytest.importorskip(request.param)
    monkeypatch.setenv("TURNLOG_TRANSPORT", request.param)
    return request.param
