"""H. History and sessions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from acceptance.desk import Desk, asks_for, call
from postgres_server import PostgresServer
from turnlog import AgentError, open_store
from turnlog.contract import ENTRY_KINDS, StoredEntry, encode, user_message
from turnlog.history import Session, export_jsonl, import_jsonl, verify
from turnlog.loop import redact_entries, replay_entries
from turnlog.system import SystemClock, SystemIds
from turnlog.testing import FixedClock, FixedIds
from turnlog.transcript import render_html, render_markdown

LOOK = asks_for(call("look", place="gate"))
KINDS = {
    "session_header",
    "run_started",
    "run_ended",
    "model_input",
    "model_call_started",
    "model_call_failed",
    "model_output",
    "tools_change",
    "tool_started",
    "tool_results",
    "approval_requested",
    "approval_decided",
    "model_change",
    "runtime_init",
    "system_prompt",
    "widget_event",
    "fold",
    "compaction_summary",
    "branch_summary",
    "redaction",
    "purge",
    "delta_batch",
    "custom",
}


async def told(desk: Desk, session: str = "s") -> None:
    """Two runs, one with a tool."""
    await desk.agent(LOOK, "Quiet.").run("Look at the gate.", session=session)
    await desk.agent("Goodbye.").run("Bye.", session=session)


def stored(entries: list[Any]) -> list[StoredEntry]:
    return [StoredEntry(entry.seq, entry.id, entry.kind, encode(entry)) for entry in entries]


@pytest.mark.spec("H-1")
async def test_an_entry_has_these_fields_absent_ones_are_absent_and_numbers_have_no_gap() -> None:
    desk = Desk(ids=SystemIds())
    await told(desk, "a")
    await told(desk, "b")
    ids: list[str] = []
    for session in ("a", "b"):
        entries = await desk.entries(session)
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        for entry in entries:
            wire = msgspec.json.decode(encode(entry))
            assert set(wire) <= {
                *(
                    "id",
                    "parentId",
                    "sessionId",
                    "seq",
                    "kind",
                    "timestamp",
                    "runId",
                    "payload",
                    "meta",
                    "hash",
                ),
            }
            assert {"id", "sessionId", "seq", "kind", "timestamp", "payload", "hash"} <= set(wire)
            assert None not in wire.values()
        assert [entry.parent_id for entry in entries] == [None, *[entry.id for entry in entries[:-1]]]
        assert [entry.id for entry in entries] == sorted(entry.id for entry in entries), "sortable by time"
        ids += [entry.id for entry in entries]
    assert len(set(ids)) == len(ids)
    before = encode(await desk.entries("a"))
    await desk.agent("More.").run("More.", session="a")
    assert encode(await desk.entries("a")).startswith(before[:-1]), "nothing is updated or deleted"


@pytest.mark.spec("H-2")
async def test_these_kinds_exist_and_the_three_with_messages_carry_the_message_itself() -> None:
    assert set(ENTRY_KINDS) >= KINDS
    desk = Desk()
    await told(desk)
    kinds = {entry.kind for entry in await desk.entries()}
    assert "delta_batch" not in kinds, "off by default"
    for kind, role in (("model_input", "user"), ("model_output", "assistant"), ("tool_results", "tool")):
        for entry in await desk.of_kind(kind):
            assert entry.payload.message.role == role
            assert set(msgspec.json.decode(encode(entry.payload.message))) >= {"runId", "role", "parts"}
    [first, *_] = await desk.of_kind("model_call_started")
    assert first.payload.context_hash and first.payload.target.model and first.payload.attempt == 1


@pytest.mark.spec("H-3")
async def test_only_what_can_have_happened_is_written() -> None:
    desk = Desk()
    await told(desk)
    session = await Session.open(desk.store, "s", clock=SystemClock(), ids=SystemIds())
    last = (await desk.entries())[-1].seq
    [output, *_] = await desk.of_kind("model_output")
    [results] = await desk.of_kind("tool_results")
    for refused in (
        lambda: session.append_model_input(user_message("  ")),
        lambda: session.append_model_output(
            msgspec.structs.replace(
                output.payload, message=msgspec.structs.replace(output.payload.message, parts=[])
            )
        ),
        lambda: session.append_tool_results(results.payload),
        lambda: session.append_model_output(output.payload),
    ):
        with pytest.raises(AgentError):
            refused()
        assert session.staged == []
    assert (await desk.entries())[-1].seq == last
    for entry in await desk.of_kind("model_output"):
        by = entry.payload.invocation
        assert by.provider_id and by.specification and by.model


async def second_writer(url: str) -> None:
    desk = Desk(url, SystemIds())
    await told(desk)
    log = await desk.entries()
    before = encode(log)
    one = await Session.open(desk.store, "s", clock=SystemClock(), ids=SystemIds())
    two = await Session.open(desk.store, "s", clock=SystemClock(), ids=SystemIds())
    one.append_custom("note", {"by": "one"})
    one.append_custom("note", {"by": "one"})
    two.append_custom("note", {"by": "two"})
    written = await one.commit()
    with pytest.raises(AgentError) as caught:
        await two.commit()
    assert caught.value.code == "SessionConcurrentWrite"
    batch = stored(written)
    await desk.store.append("s", batch, expected_tail=len(log))  # the same again: done already
    now = await desk.entries()
    assert len(now) == len(log) + 2 and encode(now).startswith(before[:-1])
    assert await verify(desk.store, "s") == []
    broken = [batch[0]._replace(seq=len(now) + 1, id="x" * 32), batch[1]._replace(seq=len(now) + 9)]
    with pytest.raises(AgentError):
        await desk.store.append("s", broken, expected_tail=len(now))
    assert len(await desk.entries()) == len(now), "whole or not at all"
    await desk.store.close()  # type: ignore[attr-defined]


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("url", ["memory:", "jsonl:{}/log", "sqlite:{}/log.db"])
async def test_append_is_atomic_idempotent_and_guarded(url: str, tmp_path: Path) -> None:
    await second_writer(url.format(tmp_path))


@pytest.mark.spec("H-4")
async def test_the_same_on_postgresql(postgres: PostgresServer) -> None:
    await second_writer(postgres.url())


@pytest.mark.spec("H-5")
async def test_a_changed_entry_is_found_and_named_and_a_torn_tail_repaired(tmp_path: Path) -> None:
    desk = Desk(f"jsonl:{tmp_path}/log", SystemIds())
    await told(desk)
    log = await desk.entries()
    await desk.store.close()  # type: ignore[attr-defined]
    [path] = (tmp_path / "log").glob("s.jsonl")
    whole = path.read_bytes()

    path.write_bytes(whole.replace(b"Look at the gate.", b"Look at the moon."))
    changed = open_store(f"jsonl:{tmp_path}/log")
    problems = await verify(changed, "s")
    said = next(entry for entry in log if entry.kind == "model_input")
    assert problems[0].seq == said.seq
    await changed.close()  # type: ignore[attr-defined]

    path.write_bytes(whole + whole.splitlines()[1][:60])  # the beginning of a batch, never acknowledged
    torn = open_store(f"jsonl:{tmp_path}/log")
    assert [entry.hash for entry in await torn.load("s")] == [entry.hash for entry in log]
    await torn.close()  # type: ignore[attr-defined]


@pytest.mark.spec("H-7")
async def test_a_fork_shares_its_past_and_both_grow_by_themselves() -> None:
    desk = Desk()
    await told(desk)
    parent = await desk.entries()
    for at in (3, 7, len(parent)):
        branch = await desk.agent().session("s").fork(at, session=f"branch {at}")
        log = await desk.entries(f"branch {at}")
        shared = log[0].seq, [entry.hash for entry in log if entry.session_id == "s"]
        assert shared[1] == [entry.hash for entry in parent[: len(shared[1])]]
        assert 0 < len(shared[1]) <= at
        assert log[len(shared[1])].kind == "branch_summary"
        assert [entry.seq for entry in log] == list(range(1, len(log) + 1))
        await desk.agent("Elsewhere.").run("And?", session=f"branch {at}")
        assert (await branch.replay()).identical
    await desk.agent("Here.").run("And?", session="s")
    assert len(await desk.entries("branch 3")) != len(await desk.entries())


def found_in_files(folder: Path, words: bytes) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if words in path.read_bytes()]


@pytest.mark.spec("H-9")
@pytest.mark.parametrize("url", ["jsonl:{}/log", "sqlite:{}/log.db"])
async def test_what_was_redacted_is_in_no_view_and_what_was_purged_in_no_file(
    url: str, tmp_path: Path
) -> None:
    secret = "the walrus is Paul"
    desk = Desk(url.format(tmp_path), SystemIds())
    await desk.agent("I see.").run(f"Listen: {secret}.", session="s")
    [said] = await desk.of_kind("model_input")
    session = desk.agent("Fine.").session("s")
    await session.redact([said.id], by="ann")
    await desk.agent("Fine.").run("Go on.", session="s")
    log = await desk.entries()
    places = [
        encode(desk.seen),
        encode(await session.messages()),
        await export_jsonl(desk.store, "s"),
        render_markdown(log).encode(),
        render_html(log).encode(),
    ]
    assert not any(secret.encode() in place for place in places)
    await desk.agent().session("s").purge([said.id], by="ann")
    assert [entry.kind for entry in await desk.entries()][-1] == "purge"
    assert await verify(desk.store, "s") == []
    await desk.store.close()  # type: ignore[attr-defined]
    assert not found_in_files(tmp_path, secret.encode())


@pytest.mark.spec("H-11")
async def test_a_recorded_run_runs_again_without_effects_and_a_difference_is_shown() -> None:
    desk = Desk()
    await told(desk)
    done = list(desk.done)
    report = await desk.agent().session("s").replay()
    assert report.identical and desk.done == done
    entries = await desk.entries()
    at = next(n for n, entry in enumerate(entries) if entry.kind == "model_call_started")
    other = msgspec.structs.replace(
        entries[at], payload=msgspec.structs.replace(entries[at].payload, context_hash="0" * 64)
    )
    report = await replay_entries([*entries[:at], other, *entries[at + 1 :]], "s")
    assert not report.identical and "0000" in str(report.difference)


@pytest.mark.spec("H-12")
async def test_a_log_travels_as_jsonl_and_reads_as_a_page() -> None:
    there, here = Desk(), Desk()
    await told(there)
    data = await export_jsonl(there.store, "s")
    assert await import_jsonl(here.store, data) == "s"
    assert encode(await here.entries()) == encode(await there.entries())
    for page in (render_markdown(await here.entries()), render_html(await here.entries())):
        for words in ("Look at the gate.", "gate is quiet", "Quiet.", "Bye.", "Goodbye."):
            assert words in page


@pytest.mark.spec("H-14")
async def test_views_come_from_the_log_and_the_system_instruction_is_always_there() -> None:
    desk = Desk()
    agent = desk.agent(asks_for(call("pay", amount=5)), instructions="You are brief.")
    await agent.run("Pay.", session="s")
    state = await agent.session("s").state()
    assert state.status == "awaiting_human" and state.current_run_id
    assert [each.tool_name for each in state.pending_tool_calls] == ["pay"]
    assert state.last_error is None and state.token_usage is not None
    session = await Session.open(desk.store, "s", clock=FixedClock(), ids=FixedIds())
    assert (session.session_id, session.run_id) == ("s", state.current_run_id)
    assert [message.role for message in session.messages] == ["user", "assistant"]
    assert len(session.entries) == len(await desk.entries())
    assert session.system_instruction == "You are brief."
    empty = Desk()
    await empty.agent("Hi.", instructions="You are brief.").run("Hi.", session="new")
    assert empty.model is not None and "You are brief." in (empty.model.requests[0].system_prompt or "")


@pytest.mark.spec("H-15")
async def test_sessions_are_found_by_status_time_title_and_metadata_and_deleted() -> None:
    desk = Desk()
    await desk.agent("Hi.").run("Hi.", session="done", title="Trip to Rome", metadata={"customer": 42})
    between = desk.clock.now()
    await desk.agent(asks_for(call("pay", amount=5))).run("Pay.", session="waiting")

    async def found(**query: Any) -> list[str]:
        return [info.session_id for info in await desk.store.sessions(**query)]

    assert set(await found()) == {"done", "waiting"}
    assert await found(status="awaiting_human") == ["waiting"]
    assert await found(metadata={"customer": 42}) == ["done"]
    assert await found(title="Rome") == ["done"]
    assert await found(since=between) == ["waiting"]
    await desk.agent().session("done").delete()
    assert await found() == ["waiting"]
    with pytest.raises(AgentError, match="SessionNotFound"):
        await desk.entries("done")


@pytest.mark.spec("H-9")
async def test_a_redaction_is_an_entry_that_says_who() -> None:
    desk = Desk()
    await told(desk)
    [said, *_] = await desk.of_kind("model_input")
    await redact_entries(desk.store, "s", [said.id], by="ann", reason="private")
    [redaction] = await desk.of_kind("redaction")
    assert redaction.payload.entry_ids == [said.id]
    assert (redaction.payload.by, redaction.payload.reason) == ("ann", "private")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", redaction.timestamp)
