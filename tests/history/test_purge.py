"""Redaction hides, purge erases; the chain holds."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from history.history_log import (
    answer,
    call,
    code_of,
    open_session,
    results,
    write_everything,
)
from strategies import payloads
from turnlog.contract import (
    AgentError,
    EntryPayload,
    Image,
    ImagePart,
    ModelInputEntry,
    decode,
    encode,
    text_part,
    user_message,
)
from turnlog.history import (
    MemoryStore,
    Session,
    export_jsonl,
    fork,
    open_store,
    purge,
    verify,
    visible_entries,
)
from turnlog.history._blank import blank_payload
from turnlog.system import SystemClock, SystemIds
from turnlog.transcript import render_html, render_markdown

CANARY = "canary-7f3a-purge"
CLOCK, IDS = SystemClock(), SystemIds()


def _all_bytes(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


async def _with_canary(session: Session) -> list[str]:
    """Every entry holds the canary; returns the ids."""
    await write_everything(session, secret=CANARY)
    return [entry.id for entry in session.entries]


@pytest.mark.spec("H-9")
async def test_a_redaction_hides_content_from_every_view() -> None:
    store = MemoryStore()
    session = await open_session(store)
    ids = await _with_canary(session)
    before = list(session.entries)
    session.redact(ids, "private", "ana")
    await session.commit()
    shown = visible_entries(session.entries)
    for view in (
        b"".join(encode(entry) for entry in shown),
        b"".join(encode(message) for message in session.messages),
        await export_jsonl(store, "s1"),
        render_markdown(session.entries).encode(),
        render_html(session.entries).encode(),
    ):
        assert CANARY.encode() not in view
        assert b"redact" in view
    assert [(entry.id, entry.kind, entry.seq) for entry in shown[:-1]] == [
        (entry.id, entry.kind, entry.seq) for entry in before
    ]
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert session.messages[1].tool_calls[0].payload.tool_call_id == "c1"
    assert await verify(store, "s1") == []
    assert CANARY.encode() in b"".join(row.body for row in await store.read("s1"))  # hidden, not erased


@pytest.mark.spec("H-9")
async def test_a_redaction_hides_what_was_made_from_the_content() -> None:
    session = await open_session(MemoryStore())
    await _with_canary(session)
    output = next(entry for entry in session.entries if entry.kind == "model_output")
    session.redact([output.id])
    await session.commit()
    hidden = {
        entry.kind
        for entry, shown in zip(session.entries, visible_entries(session.entries), strict=True)
        if entry != shown
    }
    assert hidden == {
        "model_output",
        "approval_requested",
        "approval_decided",
        "tool_started",
        "tool_deferred",
        "tool_answered",
        "fold",
        "compaction_summary",
        "delta_batch",
    }


async def test_only_committed_entries_can_be_redacted() -> None:
    session = await open_session(MemoryStore())
    staged = session.append_custom("note", {})
    for bad in ([staged.id], ["nope"], []):
        with pytest.raises(AgentError) as error:
            session.redact(bad)
        assert code_of(error) == "InvalidEntry"
    await session.commit()
    session.redact([staged.id])


@pytest.mark.spec("H-9", "H-5")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_a_purge_leaves_no_byte_and_keeps_the_chain(tmp_path: Path, url: str) -> None:
    store = open_store(url.format(tmp_path))
    session = await open_session(store, title=CANARY, metadata={"about": CANARY})
    ids = await _with_canary(session)
    for number in range(30):  # pages are split, old copies stay behind in them
        session.append_custom("filler", {"text": f"{CANARY} {number}" * 40}, meta={"seen": CANARY})
        await session.commit()
    ids += [entry.id for entry in session.entries[len(ids) :]]
    if url != "memory:":
        assert CANARY.encode() in _all_bytes(tmp_path)
    logged = await purge(store, "s1", ids, by="ana", reason="asked to", clock=CLOCK, ids=IDS)
    assert logged.kind == "purge"
    assert CANARY.encode() not in _all_bytes(tmp_path)
    rows = await store.read("s1")
    assert not any(CANARY.encode() in row.body for row in rows)
    assert len(rows) == len(ids) + 1
    assert await verify(store, "s1") == []
    assert all(b"purgedDigest" in row.body for row in rows[:-1])
    again = await Session.open(store, "s1", clock=CLOCK, ids=IDS)
    assert [message.role for message in again.messages] == ["user", "assistant", "tool", "assistant"]
    assert again.title is None
    assert (await store.sessions())[0].title is None
    again.append_custom("note", {"life": "goes on"})
    await again.commit()
    assert await verify(store, "s1") == []
    await store.close()


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_a_purge_takes_images_with_it_unless_others_show_them(tmp_path: Path, url: str) -> None:
    store = open_store(url.format(tmp_path))

    def image(data: bytes) -> ImagePart:
        return ImagePart(payload=Image(mime_type="image/png", data=base64.b64encode(data).decode()))

    private, shared = f"pixels of {CANARY}".encode(), b"a logo that another session shows"
    session = await open_session(store, ids=IDS)
    entry = session.append_model_input(user_message([text_part("see"), image(private), image(shared)]))
    await session.commit()
    other = await open_session(store, "s2", ids=IDS)
    other.append_model_input(user_message([image(shared)]))
    await other.commit()
    await purge(store, "s1", [entry.id], by="ana", clock=CLOCK, ids=IDS)
    assert private not in _all_bytes(tmp_path)
    assert await verify(store, "s1") == []
    assert await verify(store, "s2") == []
    await store.close()


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/logs", "sqlite:{}/log.db"])
async def test_a_purge_in_a_fork_reaches_the_shared_past_and_the_siblings(tmp_path: Path, url: str) -> None:
    store = open_store(url.format(tmp_path))
    session = await open_session(store, ids=IDS)
    await _with_canary(session)
    asked = next(entry for entry in session.entries if isinstance(entry, ModelInputEntry))
    early = await fork(store, "s1", asked.id, clock=CLOCK, ids=IDS)
    late = await fork(store, "s1", clock=CLOCK, ids=IDS)
    await purge(store, early, [asked.id], by="ana", clock=CLOCK, ids=IDS)
    for name in ("s1", early, late):
        assert await verify(store, name) == []
        entries = await store.load(name)
        found: Any = next(entry for entry in entries if entry.id == asked.id)
        assert found.payload.message.text == "[redacted]"
        assert found.purged_digest
        folds = [entry for entry in entries if entry.kind in ("fold", "compaction_summary")]
        assert all(CANARY.encode() not in encode(entry) for entry in folds)
    assert [entry.kind for entry in await store.load("s1")][-1] == "purge"
    assert [entry.kind for entry in await store.load(early)][-1] == "purge"
    await store.close()


async def test_a_purge_that_was_cut_off_is_seen_and_can_be_finished() -> None:
    store = MemoryStore()
    session = await open_session(store)
    entry = session.append_model_input(user_message(CANARY))
    await session.commit()
    session.append_purge([entry.id], None, "ana")
    await session.commit()
    (problem,) = await verify(store, "s1")
    assert (problem.code, problem.entry_id) == ("purge", entry.id)
    await purge(store, "s1", [entry.id], by="ana", clock=CLOCK, ids=IDS)
    await purge(store, "s1", [entry.id], by="ana", clock=CLOCK, ids=IDS)
    assert await verify(store, "s1") == []


async def test_only_what_is_there_can_be_purged() -> None:
    store = MemoryStore()
    session = await open_session(store)
    session.append_custom("note", {})
    await session.commit()
    for bad in ([], ["nope"]):
        with pytest.raises(AgentError, match="nothing to purge"):
            await purge(store, "s1", bad, by="ana", clock=CLOCK, ids=IDS)


async def test_a_purge_goes_on_when_the_session_is_written_to_meanwhile() -> None:
    from turnlog.testing import FaultStore

    inner = MemoryStore()
    session = await open_session(inner, ids=IDS)
    entry = session.append_model_input(user_message(CANARY))
    await session.commit()

    async def rival(when: str, method: str, number: int) -> None:
        if (when, method, number) == ("before", "append", 1):
            session.append_custom("note", {"by": "rival"})
            await session.commit()

    await purge(FaultStore(inner, hook=rival), "s1", [entry.id], by="ana", clock=CLOCK, ids=IDS)
    assert [found.kind for found in await inner.load("s1")][-2:] == ["custom", "purge"]
    assert await verify(inner, "s1") == []


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=60)
@given(payloads())
def test_blanking_keeps_the_type_and_stays_blank(payload: EntryPayload) -> None:
    blank = blank_payload(payload)
    assert type(blank).__name__ == type(payload).__name__
    assert blank_payload(blank) == blank
    assert decode(encode(blank), type(blank)) == blank


async def test_pairing_survives_a_redaction_in_the_middle() -> None:
    session = await open_session(MemoryStore())
    session.append_model_input(user_message("go"))
    output = session.append_model_output(answer(call("c1", q=1), call("c2", q=2)))
    session.append_tool_results(results(("c2", "two"), ("c1", "one")))
    await session.commit()
    session.redact([output.id])
    await session.commit()
    shown: Any = visible_entries(session.entries)[2].payload
    assert [part.payload.tool_call_id for part in shown.message.tool_calls] == ["c1", "c2"]
    assert [part.payload.arguments for part in shown.message.tool_calls] == [{}, {}]


@pytest.mark.spec("H-9")
async def test_a_purge_that_could_not_erase_a_picture_is_finished_by_doing_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"jsonl:{tmp_path}/log")
    session = await open_session(store)
    picture = base64.b64encode(CANARY.encode()).decode()
    shown = ImagePart(payload=Image(mime_type="image/png", data=picture))
    entry = session.append_model_input(user_message([text_part(CANARY), shown]))
    await session.commit()
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "blobs":
            raise PermissionError(13, "not now")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(AgentError):
            await purge(store, session.session_id, [entry.id], by="ana", clock=CLOCK, ids=IDS)
    assert CANARY.encode() in _all_bytes(tmp_path)
    await purge(store, session.session_id, [entry.id], by="ana", clock=CLOCK, ids=IDS)
    assert CANARY.encode() not in _all_bytes(tmp_path)
    assert await verify(store, session.session_id) == []
    await store.close()
