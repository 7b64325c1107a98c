"""Checks of a store: what it answers for all sessions, the control queue, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from turnlog.contract import (
    ApprovalDecided,
    ApprovalRequested,
    Control,
    ControlKind,
    EntryPayload,
    LoopLimits,
    Message,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    Redaction,
    RetryPolicy,
    RunEnded,
    RunStarted,
    RunStatus,
    SessionDigest,
    SessionHeader,
    SessionInfo,
    Store,
    StoredEntry,
    ToolCall,
    ToolCallPart,
    ToolPolicy,
    text_part,
)

from ._store_support import IDS, SCHEMA_VERSION, TIME, Opened, SealedLog, filled, note, refused, same

_NOW = "2026-01-02T00:00:00.000Z"
_STARTED = RunStarted(limits=LoopLimits(), tool_policy=ToolPolicy(), retry=RetryPolicy())
_MODEL = ModelInvocationDescriptor(provider_id="check", specification="check", model="check")


async def sessions_are_found_by_what_they_are(opened: Opened) -> None:
    store = await opened()
    mark = IDS.session()
    early, late = SealedLog(), SealedLog()
    header = SessionHeader(
        schema_version=SCHEMA_VERSION, title="Tax Return", metadata={"team": mark, "size": 3}
    )
    waiting = SessionDigest(
        status="awaiting_human",
        run_id="r1",
        pending=2,
        title="Tax Return",
        metadata={"team": mark, "size": 3},
        about="How much?",
    )
    await store.append(early.session_id, early.make(header), expected_tail=0, digest=waiting)
    await _append(store, late, [SessionHeader(schema_version=SCHEMA_VERSION, metadata={"team": mark})])
    await _append(store, late, [note("x"), note("y")])

    info = await _one(store, metadata={"team": mark, "size": 3})
    same(info.session_id, early.session_id, "the session with these metadata")
    found = (info.status, info.run_id, info.pending, info.title, info.metadata, info.about)
    wanted = ("awaiting_human", "r1", 2, "Tax Return", {"team": mark, "size": 3}, "How much?")
    same(found, wanted, "what the list says of a session with a digest")
    both = [late.session_id, early.session_id]

    async def ids(found: list[SessionInfo]) -> list[str]:
        return [each.session_id for each in found]

    team = {"team": mark}
    same(await ids(await store.sessions(metadata=team)), both, "metadata")
    same(await ids(await store.sessions(metadata={"team": mark, "size": 4})), [], "other metadata")
    same(await ids(await store.sessions(metadata=team, status="awaiting_human")), both[1:], "status")
    same(await ids(await store.sessions(metadata=team, status="idle")), both[:1], "status after folding")
    same(await ids(await store.sessions(metadata=team, title="tax")), both[1:], "part of a title")
    since = TIME.format(3).replace(".000", "")
    same(await ids(await store.sessions(metadata=team, since=since)), both[:1], "since")
    same(await ids(await store.sessions(metadata=team, until=TIME.format(2))), both[1:], "until")
    first = await store.sessions(metadata=team, limit=1)
    same(await ids(first), both[:1], "the first page")
    rest = await store.sessions(metadata=team, limit=5, after=first[0].cursor)
    same(await ids(rest), both[1:], "the second page")
    await refused("ConfigInvalid", store.sessions(since="yesterday"), "a time that is none")
    unknown = cast("RunStatus", "running")
    await refused("ConfigInvalid", store.sessions(status=unknown), "a status that is none")
    await refused("ConfigInvalid", store.sessions(limit=-1), "a limit below nothing")
    await refused("ConfigInvalid", store.pending(limit=-1), "an inbox with a limit below nothing")
    await refused("ConfigInvalid", store.due(-1, now=_NOW), "due with a limit below nothing")


async def forks_are_found_by_their_parent(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    fork = log.branch(IDS.session())
    await store.fork(log.session_id, at=2, target=fork.session_id, first=fork.notes("mine"))
    found = await store.sessions(parent=log.session_id)
    same([info.session_id for info in found], [fork.session_id], "the forks of a session")


async def a_log_without_a_digest_is_folded(opened: Opened) -> None:
    store = await opened()
    log = SealedLog()
    batch = log.make(
        SessionHeader(schema_version=SCHEMA_VERSION, title="T", metadata={"id": log.session_id}),
        *_asking("Pay   the\nbill", "call-1"),
        run_id="r",
    )
    await store.append(log.session_id, batch, expected_tail=0)
    info = await _one(store, metadata={"id": log.session_id})
    found = (info.status, info.pending, info.about)
    same(found, ("awaiting_human", 1, "Pay the bill"), "what a folded log says")
    fold = SessionDigest(status="completed", metadata={"id": log.session_id}, about="Told")
    more = log.notes("x")
    await store.append(log.session_id, more, expected_tail=len(batch), digest=fold)
    info = await _one(store, metadata={"id": log.session_id})
    same((info.status, info.pending, info.about), ("completed", 0, "Told"), "what a digest says")
    hidden = Redaction(entry_ids=[batch[2].id])
    await _append(store, log, [hidden])
    info = await _one(store, metadata={"id": log.session_id})
    same((info.status, info.about), ("awaiting_human", None), "what a log folded again says")


async def the_inbox_has_every_session(opened: Opened) -> None:
    store = await opened()
    logs = [SealedLog() for _ in range(3)]
    for place, log in enumerate(logs):
        run = [SessionHeader(schema_version=SCHEMA_VERSION), *_asking("Pay", f"call-{place}")]
        digest = SessionDigest(status="awaiting_human", run_id="r", pending=1) if place else None
        await store.append(log.session_id, log.make(*run, run_id="r"), expected_tail=0, digest=digest)
    mine = {log.session_id for log in logs}
    found = [each for each in await store.pending() if each.session_id in mine]
    same(sorted(each.tool_call_id for each in found), ["call-0", "call-1", "call-2"], "the inbox")
    same({each.session_id for each in found}, mine, "the sessions of the inbox")
    same(found[0].arguments, {"amount": 1}, "the arguments that were asked about")
    decided = ApprovalDecided(tool_call_id="call-1", digest="d", action="approve", decided_by="ann")
    await _append(store, logs[1], [decided])
    await _append(store, logs[2], [RunEnded(status="aborted")])
    left = [each.tool_call_id for each in await store.pending() if each.session_id in mine]
    same(left, ["call-0"], "the inbox after a decision and the end of a run")
    same(len(await store.pending(limit=1)), 1, "an inbox with a limit")


async def runs_that_a_worker_can_continue_are_due(opened: Opened) -> None:
    store = await opened()
    mine: dict[str, str] = {}

    async def make(what: str, digest: SessionDigest | None, *more: EntryPayload) -> str:
        log = SealedLog()
        mine[log.session_id] = what
        batch = log.make(SessionHeader(schema_version=SCHEMA_VERSION), *more, run_id="r")
        await store.append(log.session_id, batch, expected_tail=0, digest=digest)
        return log.session_id

    async def due(now: str = _NOW) -> set[str]:
        found = await store.due(10_000, now=now)
        same(len(found), len(set(found)), "each due session once")
        return {mine[id] for id in found if id in mine}

    running = SessionDigest(status="tool_running", run_id="r")
    await make("open", running)
    await make("folded", None, _STARTED)
    await make("ended", SessionDigest(status="completed"))
    await make("waits for a human", SessionDigest(status="awaiting_human", run_id="r", pending=1))
    held, later = await make("held", running), await make("later", running)
    lease = await store.claim(held, owner="a", ttl=60)
    await store.wake(later, "2026-01-02T00:00:01Z")
    same(await due(), {"open", "folded"}, "what is due")
    same(await due("2026-01-02T00:00:01.000Z"), {"open", "folded", "later"}, "due at the wake time")
    await store.release(lease)
    await store.wake(later, None)
    same(await due(), {"open", "folded", "later", "held"}, "due after release and without a wake time")
    same(len(await store.due(1, now=_NOW)), 1, "due with a limit")
    await refused("SessionNotFound", store.wake(IDS.session(), None), "a wake time without a session")


async def controls_are_queued_and_answered(opened: Opened) -> None:
    one, two = await opened(), await opened()
    session, other = IDS.session(), IDS.session()
    first, second = _control(session, "send", {"text": "a\0b ü"}), _control(other, "abort", {})
    for control in (first, second, first):
        await one.post(control)
    mine = {session, other}
    same([each for each in await one.posted() if each.session_id in mine], [first, second], "the queue")
    same(await one.posted(session), [first], "the queue of one session")
    reader = two if await two.posted(session) else one
    same(await reader.take_answer(first.id), None, "an answer that is not there yet")
    await reader.answer_control(first.id, {"ok": True})
    await reader.answer_control(first.id, {"ok": False})
    same(await one.posted(session), [], "the queue after an answer")
    same(await one.withdraw(first.id), False, "withdrawing what was answered")
    same(await one.take_answer(first.id), {"ok": True}, "the first answer")
    same(await one.take_answer(first.id), None, "an answer that was taken")
    same(await one.withdraw(second.id), True, "withdrawing what was not answered")
    await one.answer_control(second.id, {"late": True})
    same(await one.take_answer(second.id), None, "an answer to what was withdrawn")
    await refused("InvalidEntry", one.post(_control(session, "send", {"x": object()})), "data beyond JSON")


async def a_control_is_answered_or_withdrawn_never_both(opened: Opened) -> None:
    store = await opened()
    for _ in range(10):
        control = _control(IDS.session(), "send", {})
        await store.post(control)
        withdrawn, _ = await asyncio.gather(
            store.withdraw(control.id), store.answer_control(control.id, {"ok": True})
        )
        same(await store.take_answer(control.id) is None, withdrawn, "answered, or withdrawn")


async def the_holder_of_a_lease_is_named(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    same(await store.holder(log.session_id), None, "the holder of a free session")
    same(await store.holder(IDS.session()), None, "the holder of no session")
    lease = await store.claim(log.session_id, owner="me", ttl=60)
    holder = await store.holder(log.session_id)
    if holder is None or (holder.owner, holder.epoch) != ("me", lease.epoch):
        raise AssertionError(f"the holder is me at epoch {lease.epoch}, found {holder}")
    if not 0 < holder.seconds_left <= 60:
        raise AssertionError(f"a fresh lease of 60 s has {holder.seconds_left} s left")
    await store.release(lease)
    same(await store.holder(log.session_id), None, "the holder after release")


async def a_deleted_session_is_gone(opened: Opened) -> None:
    store = await opened()
    single = await store.put_blob(f"single {IDS.session()}".encode())
    shared = await store.put_blob(f"shared {IDS.session()}".encode())
    log = await filled(store, f"blob:{single} blob:{shared}")
    other = await filled(store, f"blob:{shared}")
    control = _control(log.session_id, "send", {})
    await store.post(control)
    busy = await store.claim(log.session_id, owner="a", ttl=60)
    await refused("SessionBusy", store.delete_session(log.session_id), "deleting under a lease")
    await store.delete_session(log.session_id, lease=busy)
    await refused("SessionNotFound", store.read(log.session_id), "reading a deleted session")
    same(await store.tail(log.session_id), None, "the tail of a deleted session")
    same(await store.posted(log.session_id), [], "the controls of a deleted session")
    await refused("SessionReadFailed", store.get_blob(single), "bytes that only it named")
    await store.get_blob(shared)
    listed = {info.session_id for info in await store.sessions()}
    same((log.session_id in listed, other.session_id in listed), (False, True), "the list afterwards")
    stale = store.append(log.session_id, log.notes("late"), expected_tail=2)
    await refused("SessionConcurrentWrite", stale, "an append to a deleted session")
    await refused("SessionNotFound", store.delete_session(log.session_id), "deleting it again")
    anew = SealedLog(log.session_id)
    batch = [*anew.header("Anew"), *anew.notes("new")]
    await store.append(anew.session_id, batch, expected_tail=0)
    same(await store.read(anew.session_id), batch, "a new session with the id of a deleted one")


async def forks_keep_a_session_from_being_deleted(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one", "two")
    fork = log.branch(IDS.session())
    own = fork.notes("mine")
    await store.fork(log.session_id, at=3, target=fork.session_id, first=own)
    leaf = fork.branch(IDS.session())
    await store.fork(fork.session_id, at=4, target=leaf.session_id, first=leaf.notes("leaf"))
    error = await refused("SessionBusy", store.delete_session(log.session_id), "deleting what forks share")
    same(sorted(error.meta["forks"]), sorted([fork.session_id, leaf.session_id]), "the forks it names")
    await store.delete_session(leaf.session_id)
    same(len(await store.read(fork.session_id)), 4, "the fork after its own fork was deleted")
    await store.delete_session(log.session_id, forks="delete")
    for gone in (log.session_id, fork.session_id):
        same(await store.tail(gone), None, "a session that was taken along")


async def bytes_come_with_the_entries_that_name_them(opened: Opened) -> None:
    store = await opened()
    log = await filled(store, "one")
    data = f"with the batch {IDS.session()}".encode()
    name = await store.put_blob(data)
    holder = await filled(store, f"blob:{name}")
    await store.delete_session(holder.session_id)  # between put_blob and the append that names it
    batch = log.notes(f"blob:{name}")
    await store.append(log.session_id, batch, expected_tail=2, blobs=[data])
    same(await store.get_blob(name), data, "bytes that came with the batch")


def _control(session_id: str, kind: ControlKind, data: dict[str, object]) -> Control:
    return Control(id=IDS.entry(), session_id=session_id, kind=kind, data=data, created_at=_NOW)


def _asking(text: str, call_id: str) -> Sequence[EntryPayload]:
    """A run that waits for an approval."""
    said = Message(run_id="r", role="user", parts=[text_part(text)], timestamp=_NOW)
    call = ToolCall(tool_call_id=call_id, tool_name="pay", arguments={"amount": 1}, raw_args_text="{}")
    answer = Message(run_id="r", role="assistant", parts=[ToolCallPart(payload=call)], timestamp=_NOW)
    return (
        _STARTED,
        ModelInput(message=said),
        ModelOutput(
            message=answer, invocation=_MODEL, model_call_index=1, attempt=1, finish_reason="tool_calls"
        ),
        ApprovalRequested(tool_call_id=call_id, tool_name="pay", arguments={"amount": 1}, digest="d"),
    )


async def _append(store: Store, log: SealedLog, payloads: Sequence[EntryPayload]) -> list[StoredEntry]:
    before = log.seq
    batch = log.make(*payloads, run_id="r")
    await store.append(log.session_id, batch, expected_tail=before)
    return batch


async def _one(store: Store, **filters: object) -> SessionInfo:
    found = await store.sessions(**filters)  # pyright: ignore[reportArgumentType]
    if len(found) != 1:
        raise AssertionError(f"one session was expected, found {found!r}"[:2000])
    return found[0]
