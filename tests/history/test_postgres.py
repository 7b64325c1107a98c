"""PostgreSQL keeps the store promise, and what is its own: schemas, versions, passwords, event loops."""

from __future__ import annotations

import pytest

from turnlog.history import open_store
from turnlog.testing import check_store


@pytest.mark.spec("H-4", "H-6")
async def test_postgres_keeps_the_promise(postgres_url: str) -> None:
    assert len(await check_store(lambda: open_store(postgres_url))) >= 20
