"""Every store keeps the store promise, and the suite that says so finds stores that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnlog.contract import AgentError, Store
from turnlog.history import MemoryStore, open_store
from turnlog.testing import FaultStore, FixedClock, check_store


@pytest.mark.spec("X-5")
async def test_a_fault_store_without_faults_is_the_store_inside() -> None:
    await check_store(lambda: FaultStore(MemoryStore()))


class _ForgetsTheTail(MemoryStore):
    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        tail = await self.tail(session_id)
        shifted = tail.seq if tail else 0
        batch = [stored._replace(seq=shifted + place) for place, stored in enumerate(batch, 1)]
        await super().append(session_id, batch, expected_tail=shifted, lease=lease)


class _NeverDoneAlready(MemoryStore):
    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        tail = await self.tail(session_id)
        if (tail.seq if tail else 0) != expected_tail:
            raise AgentError("SessionConcurrentWrite", "no")
        await super().append(session_id, batch, expected_tail=expected_tail, lease=lease)


class _TearsBatches(MemoryStore):
    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        for place, stored in enumerate(batch):
            await super().append(session_id, [stored], expected_tail=expected_tail + place, lease=lease)


class _IgnoresLeases(MemoryStore):
    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        await super().append(session_id, batch, expected_tail=expected_tail)


class _DropsNul(MemoryStore):
    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        batch = [stored._replace(body=stored.body.replace(b"\\u0000", b"")) for stored in batch]
        await super().append(session_id, batch, expected_tail=expected_tail, lease=lease)


class _CopiesForks(MemoryStore):
    async def fork(self, source: str, *, at: int, target: str, first: Any) -> None:
        past = await self.read(source, upto=at)
        await self.append(target, [*past, *first], expected_tail=0)


class _LeaksItsErrors(MemoryStore):
    async def get_blob(self, name: str) -> bytes:
        return self._blobs[name]


class _KeepsBlobs(MemoryStore):
    async def erase(self, session_id: str, bodies: Any) -> None:
        kept = dict(self._blobs)
        await super().erase(session_id, bodies)
        self._blobs = kept


@pytest.mark.spec("X-5")
@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_ForgetsTheTail, "what_is_missing_is_named"),
        (_NeverDoneAlready, "the_same_batch_again_is_done_already"),
        (_TearsBatches, "a_batch_is_written_whole_or_not_at_all"),
        (_IgnoresLeases, "a_lost_lease_writes_nothing"),
        (_DropsNul, "every_text_survives"),
        (_CopiesForks, "a_fork_shares_the_past_and_nothing_else"),
        (_LeaksItsErrors, "what_is_missing_is_named"),
        (_KeepsBlobs, "bytes_that_only_erased_entries_name_go_with_them"),
    ],
)
async def test_the_suite_finds_a_broken_store(broken: type[Store], check: str) -> None:
    with pytest.raises(AssertionError, match=f"^{check}: "):
        await check_store(broken)


@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_leases_are_measured_by_the_clock_that_is_given(url: str, tmp_path: Path) -> None:
    clock = FixedClock()
    store = open_store(url.format(tmp_path), clock=clock)
    lease = await store.claim("s1", owner="a", ttl=30)
    clock.advance(29)
    with pytest.raises(AgentError, match="SessionBusy") as error:
        await store.claim("s1", owner="b", ttl=30)
    assert 0 < (error.value.retry_after or 0) < 2
    await store.renew(lease)
    clock.advance(29)
    with pytest.raises(AgentError, match="SessionBusy"):
        await store.claim("s1", owner="b", ttl=30)
    clock.advance(2)
    assert (await store.claim("s1", owner="b", ttl=30)).epoch == lease.epoch + 1
    await store.close()


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from turnlog.history import JsonlStore, SqliteStore, default_store_url

    assert isinstance(open_store("memory:"), MemoryStore)
    store = open_store(f"sqlite:///{tmp_path}/a.db".replace("////", "///"))
    assert isinstance(store, SqliteStore)
    assert store.path == f"{tmp_path}/a.db"
    logs = open_store("jsonl:~/logs")
    assert isinstance(logs, JsonlStore)
    assert logs.folder == Path.home() / "logs"
    assert list(tmp_path.iterdir()) == []
    for bad in ("redis:x", "a.db", "", "sqlite:", "postgresql"):
        with pytest.raises(AgentError, match=r"ConfigInvalid.*sqlite:FILE"):
            open_store(bad)
    monkeypatch.setenv("TURNLOG_STORE", "memory:")
    assert default_store_url() == "memory:"
    monkeypatch.delenv("TURNLOG_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store_url().startswith("sqlite:")
    assert default_store_url().endswith("sessions.db")


def test_importing_the_room_loads_no_driver() -> None:
    import subprocess
    import sys

    script = (
        "import sys, turnlog.history as h; h.Session, h.open_store('sqlite:/nowhere/x.db'); "
        "sys.exit(any(name in sys.modules for name in ('apsw', 'psycopg', 'sqlite3')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=200).returncode == 0
