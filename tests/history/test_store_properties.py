"""Any payload survives any store; any history of calls leaves every store as the model of it says."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from strategies import META, payloads
from turnlog.contract import AgentError, Custom, Entry, EntryPayload, Sealed, StoredEntry, encode, seal
from turnlog.history import MemoryStore, export_jsonl, import_jsonl, open_store
from turnlog.system import SystemIds

IDS = SystemIds()


def sealed(payload: EntryPayload, previous: Sealed | None, meta: dict[str, Any] | None = None) -> Sealed:
    return seal(
        payload,
        id=IDS.entry(),
        previous_id=previous.entry.id if previous else None,
        previous_hash=previous.entry.hash if previous else "",
        session_id="s1",
        seq=previous.entry.seq + 1 if previous else 1,
        timestamp="2026-01-01T00:00:00.000Z",
        meta=meta,
    )


@pytest.mark.spec("M-4", "H-12")
@settings(suppress_health_check=list(HealthCheck), max_examples=40)
@given(items=st.lists(st.tuples(payloads(), st.none() | META), min_size=1, max_size=6), cut=st.integers(1, 5))
def test_every_payload_survives_every_store(
    items: list[tuple[EntryPayload, dict[str, Any] | None]], cut: int
) -> None:
    made: list[Sealed] = []
    for payload, meta in items:
        made.append(sealed(payload, made[-1] if made else None, meta))
    rows = [one.stored for one in made]

    async def check(url: str) -> None:
        store = open_store(url)
        try:
            for start in range(0, len(rows), cut):
                await store.append("s1", rows[start : start + cut], expected_tail=start)
            assert await store.read("s1") == rows
            if not any(row.kind in ("session_header", "redaction", "purge") for row in rows):
                entries: list[Entry] = await store.load("s1")
                assert entries == [one.entry for one in made]
                assert [encode(entry) for entry in entries] == [row.body for row in rows]
                data = await export_jsonl(store, "s1", blobs=False)
                other = MemoryStore()
                await import_jsonl(other, data, trust=True)
                assert await export_jsonl(other, "s1", blobs=False) == data
        finally:
            await store.close()

    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory:", f"jsonl:{folder}/logs", f"sqlite:{folder}/log.db"):
            asyncio.run(check(url))


class StoreMachine(RuleBasedStateMachine):
    """Appends, repeats, forks, erasures and reopenings, against plain lists."""

    url = "memory:"
    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.store = self._open()
        self.logs: dict[str, list[StoredEntry]] = {}
        self.parents: dict[str, tuple[str, int]] = {}
        self.names = 0

    def teardown(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()
        self.folder.cleanup()

    def _open(self) -> Any:
        return open_store(self.url.format(Path(self.folder.name)))

    def run(self, act: Any) -> Any:
        return self.loop.run_until_complete(act)

    def _rows(self, name: str, after: int, texts: list[str]) -> list[StoredEntry]:
        rows: list[StoredEntry] = []
        for seq, text in enumerate(texts, after + 1):
            made = seal(
                Custom(name="n", data={"text": text}),
                id=IDS.entry(),
                previous_id=None,
                previous_hash="",
                session_id=name,
                seq=seq,
                timestamp="2026-01-01T00:00:00.000Z",
            )
            rows.append(made.stored)
        return rows

    def _next_name(self) -> str:
        self.names += 1
        return f"s{self.names}"

    TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=3)

    @initialize(target=sessions, texts=TEXTS)
    def first(self, texts: list[str]) -> str:
        return self.create(texts)

    def create(self, texts: list[str]) -> str:
        name = self._next_name()
        rows = self._rows(name, 0, texts)
        self.run(self.store.append(name, rows, expected_tail=0))
        self.logs[name] = rows
        return name

    @rule(target=sessions, texts=TEXTS)
    def another(self, texts: list[str]) -> str:
        return self.create(texts)

    @rule(name=sessions, texts=TEXTS, again=st.booleans())
    def append(self, name: str, texts: list[str], again: bool) -> None:
        tail = len(self.logs[name])
        rows = self._rows(name, tail, texts)
        self.run(self.store.append(name, rows, expected_tail=tail))
        if again:
            self.run(self.store.append(name, rows, expected_tail=tail))
        self.logs[name] = self.logs[name] + rows

    @rule(name=sessions, texts=TEXTS, off=st.integers(-2, 2).filter(bool))
    def append_elsewhere(self, name: str, texts: list[str], off: int) -> None:
        tail = max(len(self.logs[name]) + off, 0)
        if tail == len(self.logs[name]):
            return
        with pytest.raises(AgentError, match="SessionConcurrentWrite"):
            self.run(self.store.append(name, self._rows(name, tail, texts), expected_tail=tail))

    @rule(target=sessions, name=sessions, texts=TEXTS, share=st.floats(0.01, 1))
    def fork(self, name: str, texts: list[str], share: float) -> str:
        at = max(1, round(len(self.logs[name]) * share))
        target = self._next_name()
        rows = self._rows(target, at, texts)
        self.run(self.store.fork(name, at=at, target=target, first=rows))
        self.logs[target] = self.logs[name][:at] + rows
        self.parents[target] = (name, at)
        return target

    @rule(name=sessions, share=st.floats(0.01, 1))
    def erase(self, name: str, share: float) -> None:
        place = max(1, round(len(self.logs[name]) * share)) - 1
        old = self.logs[name][place]
        new = old._replace(body=old.body.replace(b'"text":', b'"gone":'))
        self.run(self.store.erase(name, {place + 1: new.body}))
        for rows in self.logs.values():  # whoever shares the entry sees it
            for at, row in enumerate(rows):
                if row.id == old.id:
                    rows[at] = new

    @rule()
    def reopen(self) -> None:
        if self.url != "memory:":
            self.run(self.store.close())
            self.store = self._open()

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        listed = {info.session_id: info for info in self.run(self.store.sessions())}
        assert set(listed) == set(self.logs)
        for name, rows in self.logs.items():
            assert self.run(self.store.read(name)) == rows
            middle = len(rows) // 2
            assert self.run(self.store.read(name, after=middle)) == rows[middle:]
            assert self.run(self.store.tail(name)).id == rows[-1].id
            info = listed[name]
            assert info.entries == len(rows)
            assert (info.parent_session_id, info.forked_at) == self.parents.get(name, (None, None))


class _Jsonl(StoreMachine):
    url = "jsonl:{}/logs"


class _Sqlite(StoreMachine):
    url = "sqlite:{}/log.db"


@pytest.mark.spec("H-6", "H-7")
@pytest.mark.parametrize("machine", [StoreMachine, _Jsonl, _Sqlite])
def test_any_history_of_calls(machine: type[StoreMachine]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=14, suppress_health_check=list(HealthCheck), deadline=None
        ),
    )
