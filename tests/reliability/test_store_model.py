"""Any sequence of calls, from two handles at once, on every store and on a model of one in fifty lines.

Writers with and without leases, repeats, forks, blobs, time that passes, handles that are closed and opened
again. Every answer, also every refusal, must be the model's.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from postgres_server import PostgresServer
from turnlog.contract import AgentError, Custom, Lease, Store, StoredEntry, seal
from turnlog.history import JsonlStore, MemoryStore, PostgresStore, SqliteStore
from turnlog.system import SystemIds
from turnlog.testing import FixedClock

IDS = SystemIds()
NAMES = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from(["ann", "bob"])
HANDLES = st.sampled_from([0, 1])


@dataclass
class ModelLog:
    rows: list[StoredEntry] = field(default_factory=list[StoredEntry])
    own_from: int = 0
    epoch: int = 0
    owner: str | None = None
    until: float = 0.0


class ModelStore:
    """What a store is, without anything that makes it a good one. Raises the code of what it refuses."""

    def __init__(self) -> None:
        self.logs: dict[str, ModelLog] = {}
        self.now = 0.0

    def log(self, name: str) -> ModelLog:
        return self.logs.setdefault(name, ModelLog())

    def append(self, name: str, rows: list[StoredEntry], expected: int, lease: Lease | None) -> None:
        log = self.log(name)
        if lease is not None and (lease.epoch, lease.owner) != (log.epoch, log.owner):
            raise Refused("SessionConcurrentWrite")
        if len(log.rows) != expected:
            there = log.rows[expected : expected + len(rows)]
            if expected >= log.own_from and [row.id for row in there] == [row.id for row in rows]:
                return
            raise Refused("SessionConcurrentWrite")
        log.rows.extend(rows)
        if lease is not None:
            log.until = self.now + lease.ttl

    def claim(self, name: str, owner: str, ttl: float) -> int:
        log = self.log(name)
        if log.owner is not None and log.owner != owner and log.until > self.now:
            raise Refused("SessionBusy")
        log.epoch, log.owner, log.until = log.epoch + 1, owner, self.now + ttl
        return log.epoch

    def renew(self, lease: Lease) -> None:
        log = self.log(lease.session_id)
        if (lease.epoch, lease.owner) != (log.epoch, log.owner):
            raise Refused("SessionConcurrentWrite")
        log.until = self.now + lease.ttl

    def release(self, lease: Lease) -> None:
        log = self.log(lease.session_id)
        if (lease.epoch, lease.owner) == (log.epoch, log.owner):
            log.owner, log.until = None, 0.0

    def fork(self, source: str, at: int, target: str, rows: list[StoredEntry]) -> None:
        past = self.log(source)
        if not past.rows:
            raise Refused("SessionNotFound")
        if not 0 < at <= len(past.rows):
            raise Refused("InvalidEntry")
        log = self.log(target)
        if log.rows:
            raise Refused("SessionConcurrentWrite")
        log.rows, log.own_from = [*past.rows[:at], *rows], at


class Refused(Exception):
    """The model's way of saying an error code."""


class StoreMachine(RuleBasedStateMachine):
    open_handle: ClassVar[Callable[[Path, FixedClock], Store]]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.clock = FixedClock(step=0.0)
        self.model = ModelStore()
        self.leases: list[Lease] = []
        self.batches: list[tuple[str, list[StoredEntry], int]] = []
        self.blobs: dict[str, bytes] = {}
        first = self._open()
        self.handles = [first, first if isinstance(first, MemoryStore) else self._open()]

    def _open(self) -> Store:
        return type(self).open_handle(Path(self.folder.name), self.clock)

    def teardown(self) -> None:
        for handle in self.handles:
            self.run(handle.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.folder.cleanup()

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def same(self, expected: Callable[[], Any], work: Awaitable[Any]) -> Any:
        """The store's answer, which must be the model's: both do it, or both refuse it in the same way."""
        try:
            expected()
            wanted = "done"
        except Refused as refused:
            wanted = str(refused)
        value = None
        try:
            value = self.run(work)
            found = "done"
        except AgentError as error:
            found = error.code
        assert found == wanted
        return value

    def rows(self, name: str, after: int, count: int) -> list[StoredEntry]:
        return [
            seal(
                Custom(name="n", data={"place": place}),
                id=IDS.entry(),
                previous_id=None,
                previous_hash="",
                session_id=name,
                seq=place,
                timestamp="2026-01-01T00:00:00.000Z",
            ).stored
            for place in range(after + 1, after + 1 + count)
        ]

    # ── what is done ──

    @rule(name=NAMES, count=st.integers(1, 3), off=st.sampled_from([0, 0, 0, -1, 1]), at=HANDLES)
    def append(self, name: str, count: int, off: int, at: int) -> None:
        expected = max(len(self.model.log(name).rows) + off, 0)
        rows = self.rows(name, expected, count)
        self.batches.append((name, rows, expected))
        self.same(
            lambda: self.model.append(name, rows, expected, None),
            self.handles[at].append(name, rows, expected_tail=expected),
        )

    @rule(data=st.data(), at=HANDLES)
    def append_again(self, data: st.DataObject, at: int) -> None:
        if self.batches:
            name, rows, expected = data.draw(st.sampled_from(self.batches))
            self.same(
                lambda: self.model.append(name, rows, expected, None),
                self.handles[at].append(name, rows, expected_tail=expected),
            )

    @rule(data=st.data(), count=st.integers(1, 2), at=HANDLES)
    def append_leased(self, data: st.DataObject, count: int, at: int) -> None:
        if self.leases:
            lease = data.draw(st.sampled_from(self.leases))
            name = lease.session_id
            expected = len(self.model.log(name).rows)
            rows = self.rows(name, expected, count)
            self.same(
                lambda: self.model.append(name, rows, expected, lease),
                self.handles[at].append(name, rows, expected_tail=expected, lease=lease),
            )

    @rule(name=NAMES, owner=OWNERS, ttl=st.sampled_from([1.0, 10.0]), at=HANDLES)
    def claim(self, name: str, owner: str, ttl: float, at: int) -> None:
        lease = self.same(
            lambda: self.model.claim(name, owner, ttl),
            self.handles[at].claim(name, owner=owner, ttl=ttl),
        )
        if lease is not None:
            assert (lease.epoch, lease.owner) == (self.model.log(name).epoch, owner)
            self.leases.append(lease)

    @rule(data=st.data(), give_back=st.booleans(), at=HANDLES)
    def renew_or_release(self, data: st.DataObject, give_back: bool, at: int) -> None:
        if self.leases:
            lease = data.draw(st.sampled_from(self.leases))
            model, handle = self.model, self.handles[at]
            if give_back:
                self.same(lambda: model.release(lease), handle.release(lease))
            else:
                self.same(lambda: model.renew(lease), handle.renew(lease))

    @rule(source=NAMES, new=NAMES, place=st.integers(0, 6), at=HANDLES)
    def fork(self, source: str, new: str, place: int, at: int) -> None:
        if source != new:
            rows = self.rows(new, place, 1)
            self.same(
                lambda: self.model.fork(source, place, new, rows),
                self.handles[at].fork(source, at=place, target=new, first=rows),
            )

    @rule(data=st.binary(max_size=64), at=HANDLES)
    def put_blob(self, data: bytes, at: int) -> None:
        self.blobs[self.run(self.handles[at].put_blob(data))] = data

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(at=HANDLES)
    def reopen(self, at: int) -> None:
        if not isinstance(self.handles[at], MemoryStore):
            self.run(self.handles[at].close())
            self.handles[at] = self._open()

    # ── what must hold ──

    @invariant()
    def both_handles_show_what_the_model_holds(self) -> None:
        held = {name: log.rows for name, log in self.model.logs.items() if log.rows}
        for handle in self.handles:
            listed = {info.session_id: info.entries for info in self.run(handle.sessions())}
            assert listed == {name: len(rows) for name, rows in held.items()}
            for name in ("a", "b", "c"):
                rows = held.get(name)
                tail = self.run(handle.tail(name))
                if rows is None:
                    assert tail is None
                    continue
                assert (tail.seq, tail.id) == (len(rows), rows[-1].id)
                assert self.run(handle.read(name)) == rows
                half = len(rows) // 2
                assert self.run(handle.read(name, after=half, upto=len(rows) - 1)) == rows[half:-1]
            for blob, data in self.blobs.items():
                assert self.run(handle.get_blob(blob)) == data


def machine(name: str, opened: Callable[[Path, FixedClock], Store]) -> type[StoreMachine]:
    return type(name, (StoreMachine,), {"open_handle": staticmethod(opened)})


MACHINES = {
    "memory": machine("Memory", lambda folder, clock: MemoryStore(clock=clock)),
    "jsonl": machine("Jsonl", lambda folder, clock: JsonlStore(folder / "logs", clock=clock)),
    "sqlite": machine("Sqlite", lambda folder, clock: SqliteStore(folder / "log.db", clock=clock)),
}


def play(kind: type[StoreMachine], examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            phases=phases,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        ),
    )


@pytest.mark.spec("H-4", "H-6", "H-7")
@pytest.mark.parametrize("name", MACHINES)
def test_every_answer_is_the_models(name: str) -> None:
    play(MACHINES[name], 200 if name == "memory" else 50)


@pytest.mark.spec("H-4", "H-6", "H-7")
def test_every_answer_of_postgresql_is_the_models(postgres: PostgresServer) -> None:
    urls: dict[Path, str] = {}

    def opened(folder: Path, clock: FixedClock) -> Store:
        return PostgresStore(urls.setdefault(folder, postgres.url()), clock=clock)

    play(machine("Postgres", opened), 15)


class Unfenced(MemoryStore):
    """Takes what is written under a lost lease."""

    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        await super().append(session_id, batch, expected_tail=expected_tail)


class Forgetful(MemoryStore):
    """Takes a batch that it has for a conflict."""

    async def append(self, session_id: str, batch: Any, *, expected_tail: int, lease: Any = None) -> None:
        tail = await self.tail(session_id)
        if tail is not None and tail.seq != expected_tail:
            raise AgentError("SessionConcurrentWrite", "somebody else wrote to it")
        await super().append(session_id, batch, expected_tail=expected_tail, lease=lease)


@pytest.mark.parametrize("broken", [Unfenced, Forgetful])
def test_a_store_with_a_bug_is_told_apart_from_the_model(broken: type[MemoryStore]) -> None:
    with pytest.raises(AssertionError):
        play(machine("Broken", lambda folder, clock: broken(clock=clock)), 200, (Phase.generate,))
