"""Forks share the past; old schema versions are read as today's; newer ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from history.history_log import STARTED, answer, call, code_of, open_session, results, write_everything
from turnlog.contract import (
    SCHEMA_VERSION,
    AgentError,
    BranchSummary,
    Store,
    StoredEntry,
    chain_hash,
    digest,
    encode,
    user_message,
)
from turnlog.history import MemoryStore, Session, fork, open_store, verify
from turnlog.history._upcast import UPCASTERS, decode_log
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import FixedClock

URLS = ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"]
CLOCK, IDS = SystemClock(), SystemIds()


@pytest.mark.spec("H-7")
@pytest.mark.parametrize("url", URLS)
async def test_a_fork_goes_its_own_way_from_any_entry(tmp_path: Path, url: str) -> None:
    store = open_store(url.format(tmp_path))
    session = await open_session(store, ids=IDS)
    await write_everything(session)
    whole = list(session.entries)
    for at in range(1, len(whole) + 1):
        name = await fork(store, "s1", at, clock=CLOCK, ids=IDS, summary="another way")
        branch = await Session.open(store, name, clock=CLOCK, ids=IDS, create=False)
        assert branch.entries[:at] == whole[:at]
        mark = branch.entries[at].payload
        assert mark == BranchSummary(
            from_session_id="s1", from_entry_id=whole[at - 1].id, from_seq=at, summary="another way"
        )
        branch.append_custom("note", {"at": at})
        await branch.commit()
        assert await verify(store, name) == []
    assert await store.load("s1") == whole
    session.append_custom("note", {})
    await session.commit()
    assert await verify(store, "s1") == []
    await store.close()


@pytest.mark.spec("H-7")
async def test_a_fork_keeps_what_was_open(tmp_path: Path) -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.start_run("run_1", STARTED)
    session.append_model_input(user_message("go"))
    session.append_model_output(answer(call("c1")))
    middle = (await session.commit())[-1]
    session.append_tool_results(results(("c1", "ok")))
    await session.commit()
    name = await fork(store, "s1", middle.id, "branch", clock=CLOCK, ids=IDS)
    assert name == "branch"
    branch = await Session.open(store, "branch", clock=CLOCK, ids=IDS)
    assert [open_call.tool_call_id for open_call in branch.open_calls] == ["c1"]
    assert branch.run_id == "run_1"
    branch.append_tool_results(results(("c1", "otherwise")))
    await branch.commit()
    assert await verify(store, "branch") == []


async def test_a_fork_of_nothing_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(AgentError, match="SessionNotFound"):
        await fork(store, "s1", clock=CLOCK, ids=IDS)
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    for at in (0, 3, -1, "nope"):
        with pytest.raises(AgentError) as error:
            await fork(store, "s1", at, clock=CLOCK, ids=IDS)
        assert code_of(error) == "InvalidEntry"
    await fork(store, "s1", target="taken", clock=CLOCK, ids=IDS)
    with pytest.raises(AgentError, match="exists already"):
        await fork(store, "s1", target="taken", clock=CLOCK, ids=IDS)
    assert len(await store.sessions()) == 2


def _old_log(session_id: str = "old") -> list[StoredEntry]:
    """A log as version 0 wrote it, with a sound chain."""
    message = {"runId": "r", "role": "user", "content": "hello from 0", "timestamp": "t"}
    payloads: list[tuple[str, Any]] = [
        ("session_header", {"version": 0, "title": "Old times"}),
        ("model_input", {"message": message}),
        ("custom", {"name": "note", "data": {"content": "left alone"}}),
    ]
    stored: list[StoredEntry] = []
    previous_id, previous = None, ""
    for seq, (kind, payload) in enumerate(payloads, 1):
        place = {"id": f"old_{seq}", "session_id": session_id, "seq": seq, "timestamp": FixedClock().now()}
        raw = encode(payload)
        previous = chain_hash(
            previous,
            **place,
            parent_id=previous_id,
            kind=kind,
            run_id=None,
            payload_digest=digest(raw),
            meta_digest=None,
        )
        wire = {"kind": kind, "id": place["id"], "parentId": previous_id, "sessionId": session_id}
        wire |= {"seq": seq, "timestamp": place["timestamp"], "payload": payload, "hash": previous}
        body = encode({name: value for name, value in wire.items() if value is not None})
        stored.append(StoredEntry(seq, f"old_{seq}", kind, body))
        previous_id = f"old_{seq}"
    return stored


@pytest.mark.spec("H-8")
@pytest.mark.parametrize("url", URLS)
async def test_an_old_log_is_read_as_todays_and_never_rewritten(tmp_path: Path, url: str) -> None:
    store: Store = open_store(url.format(tmp_path))
    old = _old_log()
    await store.append("old", old, expected_tail=0)
    session = await Session.open(store, "old", clock=CLOCK, ids=IDS, create=False)
    header: Any = session.entries[0].payload
    assert (header.schema_version, header.title) == (0, "Old times")
    assert [message.text for message in session.messages] == ["hello from 0"]
    session.append_model_output(answer("hello from today"))
    written = await session.commit()
    assert [entry.kind for entry in written] == ["session_header", "model_output"]
    assert written[0].payload.schema_version == SCHEMA_VERSION
    assert (await store.read("old"))[:3] == old
    again = await Session.open(store, "old", clock=CLOCK, ids=IDS)
    assert again.entries == session.entries
    assert again.title == "Old times"
    assert await store.load("old", after=3) == session.entries[3:]
    assert await store.load("old", after=1) == session.entries[1:]
    again.append_custom("note", {})
    assert [entry.kind for entry in await again.commit()] == ["custom"]
    assert await verify(store, "old") == []
    name = await fork(store, "old", 2, clock=CLOCK, ids=IDS)
    branch = await store.load(name)
    assert [entry.kind for entry in branch[2:]] == ["session_header", "branch_summary"]
    assert await verify(store, name) == []
    await store.close()


@pytest.mark.spec("H-8")
async def test_every_version_before_this_one_has_a_migration() -> None:
    assert set(UPCASTERS) == set(range(SCHEMA_VERSION))


@pytest.mark.spec("H-8")
@pytest.mark.parametrize("later", [False, True])
async def test_a_newer_log_is_refused_clearly(later: bool) -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    rows = await store.read("s1")
    newer = rows[0].body.replace(b'"schemaVersion":1', b'"schemaVersion":9')
    bodies = [rows[0].body, rows[1].body, newer.replace(b'"seq":1', b'"seq":3')] if later else [newer]
    with pytest.raises(AgentError, match=r"version 9, this turnlog reads up to 1; upgrade turnlog") as error:
        decode_log("s1", bodies)
    assert code_of(error) == "SessionMigrationFailed"


async def test_fields_of_a_newer_writer_survive_and_new_kinds_are_named() -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    rows = await store.read("s1")
    added = rows[1].body.replace(b'"data":{}', b'"data":{},"mood":"good"')
    entries = decode_log("s1", [rows[0].body, added])
    assert encode(entries[1]) == added
    unknown = rows[1].body.replace(b'"custom"', b'"dream"')
    with pytest.raises(AgentError, match=r"entry 2 of session 's1': kind 'dream'") as error:
        decode_log("s1", [rows[0].body, unknown])
    assert code_of(error) == "UnknownKind"
    with pytest.raises(AgentError, match="entry 2 of session 's1' cannot be read") as error:
        decode_log("s1", [rows[0].body, b"{}"])
    assert code_of(error) == "SessionCorrupt"
