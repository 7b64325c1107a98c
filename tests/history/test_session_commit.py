"""Committing: whole batches, agreement of memory and log after every kind of failure, secrets, images."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from history.history_log import STARTED, answer, call, code_of, open_session, results
from turnlog.contract import (
    AgentError,
    Image,
    ImagePart,
    Message,
    Store,
    ToolOutcome,
    ToolResults,
    guard,
    text_part,
    tool_result_part,
    user_message,
)
from turnlog.history import MemoryStore, Session, attach_images, verify
from turnlog.testing import FaultStore, StoreFault, fail_append, fill_disk, slow_append
from turnlog.testing._fault_store import When


async def _agrees(session: Session, store: Store | None = None) -> None:
    """What the session holds is what the log holds, and the log is sound."""
    store = store or session.store
    assert session.staged == []
    assert session.entries == (await store.load(session.session_id) if session.entries else [])
    if session.entries:
        assert await verify(store, session.session_id) == []


async def test_a_commit_is_one_batch() -> None:
    store = FaultStore(MemoryStore())
    session = await open_session(store)
    for text in "abc":
        session.append_model_input(user_message(text))
    assert len(session.staged) == 4
    assert session.entries == []
    assert [entry.seq for entry in await session.commit()] == [1, 2, 3, 4]
    assert store.calls.count(("append", 1)) == 1
    assert ("append", 2) not in store.calls
    await _agrees(session)


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("fault", [fail_append(2), fill_disk(2), fail_append(2, code="SessionBusy")])
async def test_a_failed_commit_drops_what_was_staged(fault: StoreFault) -> None:
    session = await open_session(FaultStore(MemoryStore(), [fault]))
    session.start_run("run_1", STARTED)
    session.append_model_input(user_message("one"))
    await session.commit()
    before = session.view()
    session.append_model_output(answer("two", call("c1")))
    session.append_tool_results(results(("c1", "ok")))
    with pytest.raises(AgentError) as error:
        await session.commit()
    assert error.value is fault.error
    assert session.view() == before
    await _agrees(session)
    session.append_model_output(answer("two again", call("c1")))  # the id is free again
    await session.commit()
    assert [open_call.tool_call_id for open_call in session.open_calls] == ["c1"]
    await _agrees(session)


async def test_the_first_commit_that_fails_leaves_no_session() -> None:
    session = await open_session(FaultStore(MemoryStore(), [fail_append(1)]), title="T")
    session.append_model_input(user_message("one"))
    with pytest.raises(AgentError):
        await session.commit()
    assert await session.store.tail("s1") is None
    session.append_model_input(user_message("one"))
    assert [entry.kind for entry in await session.commit()] == ["session_header", "model_input"]
    assert session.title == "T"


@pytest.mark.spec("H-4")
async def test_an_acknowledgement_that_was_lost_is_found_in_the_log() -> None:
    inner = MemoryStore()
    session = await open_session(FaultStore(inner, [fail_append(1, when="after")]))
    session.append_model_input(user_message("one"))
    assert [entry.seq for entry in await session.commit()] == [1, 2]
    session.append_model_input(user_message("two"))
    await session.commit()
    await _agrees(session, inner)


async def test_a_log_that_cannot_be_asked_counts_as_not_written() -> None:
    broken = AgentError("SessionReadFailed", "no answer")
    plan = [fail_append(2, when="after"), StoreFault(nth=1, method="tail", error=broken)]
    session = await open_session(FaultStore(MemoryStore(), plan))
    session.append_model_input(user_message("one"))
    await session.commit()
    session.append_model_input(user_message("two"))
    with pytest.raises(AgentError) as error:
        await session.commit()
    assert code_of(error) == "SessionWriteFailed"
    assert len(session.entries) == 2
    assert [entry.seq for entry in await session.refresh()] == [3]
    await _agrees(session)


async def test_a_store_of_another_shape_fails_the_commit_and_the_session_stays_usable() -> None:
    class Older(MemoryStore):
        async def append(self, session_id: str, batch: Any, *, expected_tail: int) -> None:  # type: ignore[override]
            raise AssertionError("it cannot be called with a digest")

    older, store = Older(), MemoryStore()
    session = await open_session(older)
    session.append_model_input(user_message("one"))
    with pytest.raises(AgentError) as error:
        await session.commit()
    assert code_of(error) == "SessionWriteFailed"
    assert not session.has_staged
    session.store = store
    session.append_model_input(user_message("two"))
    assert [entry.seq for entry in await session.commit()] == [1, 2]


@pytest.mark.spec("H-4")
async def test_a_second_writer_is_told_and_can_go_on() -> None:
    store = MemoryStore()
    first = await open_session(store)
    first.append_model_input(user_message("one"))
    await first.commit()
    second = await open_session(store)
    first.append_custom("note", {"by": "first"})
    await first.commit()
    second._ids = first._ids  # fixed ids of their own would repeat
    second.append_custom("note", {"by": "second"})
    with pytest.raises(AgentError) as error:
        await second.commit()
    assert code_of(error) == "SessionConcurrentWrite"
    assert len(await second.refresh()) == 1
    second.append_custom("note", {"by": "second"})
    await second.commit()
    assert len(await first.refresh()) == 1
    await _agrees(first)
    await _agrees(second)


async def test_a_lost_lease_stops_a_session() -> None:
    store = MemoryStore()
    lease = await store.claim("s1", owner="a", ttl=60)
    session = await open_session(store, lease=lease)
    session.append_model_input(user_message("one"))
    await session.commit()
    await store.claim("s1", owner="a", ttl=60)
    session.append_model_input(user_message("two"))
    with pytest.raises(AgentError) as error:
        await session.commit()
    assert code_of(error) == "SessionConcurrentWrite"
    assert error.value.meta["fenced"] is True
    await _agrees(session)


async def test_refresh_needs_a_clean_desk() -> None:
    session = await open_session(MemoryStore())
    session.append_model_input(user_message("one"))
    with pytest.raises(AgentError, match="commit or discard"):
        await session.refresh()
    session.discard()
    assert session.staged == []
    assert await session.refresh() == []


async def _begun(store: FaultStore, nth: int) -> None:
    """The nth append has reached the store, where it takes its time."""
    while ("append", nth) not in store.calls:  # noqa: ASYNC110 (the store tells nobody)
        await asyncio.sleep(0)


async def test_a_cancelled_commit_finishes_its_write() -> None:
    store = FaultStore(MemoryStore(), [slow_append(2, 0.05)])
    session = await open_session(store)
    session.append_model_input(user_message("one"))
    await session.commit()
    session.append_model_input(user_message("two"))
    task = asyncio.ensure_future(session.commit())
    await _begun(store, 2)
    for _ in range(3):  # however often it is asked
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(session.entries) == 3
    session.append_model_input(user_message("three"))
    await session.commit()
    await _agrees(session)


async def test_a_timeout_around_a_commit_is_still_a_timeout() -> None:
    session = await open_session(FaultStore(MemoryStore(), [slow_append(1, 0.05)]))
    session.append_model_input(user_message("one"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):  # over as soon as the commit waits for its write
            await session.commit()
    assert len(session.entries) == 2
    await _agrees(session)


async def test_a_cancelled_commit_that_fails_says_so() -> None:
    plan = [slow_append(1, 0.02), StoreFault(nth=1, when="after", error=AgentError("SessionBusy", "no"))]
    store = FaultStore(MemoryStore(), plan)
    session = await open_session(store)
    session.append_model_input(user_message("one"))
    task = asyncio.ensure_future(session.commit())
    await _begun(store, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _agrees(session)


async def test_staging_goes_on_while_a_commit_is_written() -> None:
    store = FaultStore(MemoryStore(), [slow_append(1, 0.01), slow_append(2, 0.01)])
    session = await open_session(store)
    session.append_model_input(user_message("zero"))
    commits = [asyncio.ensure_future(session.commit())]
    await asyncio.sleep(0)
    for text in ("one", "two"):
        session.append_model_input(user_message(text))
        commits.append(asyncio.ensure_future(session.commit()))
    written = await asyncio.gather(*commits)
    assert [[entry.seq for entry in batch] for batch in written] == [[1, 2], [3, 4], []]
    assert [entry.seq for entry in session.entries] == [1, 2, 3, 4]
    await _agrees(session)


async def test_what_follows_a_failed_write_is_dropped_with_it() -> None:
    failing = FaultStore(MemoryStore(), [StoreFault(nth=2, delay=0.01, error=AgentError("SessionBusy", "x"))])
    session = await open_session(failing)
    session.append_model_input(user_message("zero"))
    await session.commit()
    session.append_model_output(answer(call("c1")))
    first = asyncio.ensure_future(session.commit())
    await asyncio.sleep(0)
    session.append_tool_results(results(("c1", "built on sand")))
    second = asyncio.ensure_future(session.commit())
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [getattr(error, "code", None) for error in outcomes] == ["SessionBusy", "SessionWriteFailed"]
    assert session.open_calls == []
    await _agrees(session)


async def test_a_commit_that_waits_can_be_cancelled_and_made_up_for() -> None:
    session = await open_session(FaultStore(MemoryStore(), [slow_append(1, 0.02)]))
    session.append_model_input(user_message("zero"))
    first = asyncio.ensure_future(session.commit())
    await asyncio.sleep(0)
    session.append_model_input(user_message("one"))
    waiting = asyncio.ensure_future(session.commit())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    assert [entry.seq for entry in session.staged] == [3]
    assert [entry.seq for entry in await session.commit()] == [3]
    await _agrees(session)


@pytest.mark.spec("E-3")
async def test_secrets_never_reach_the_log() -> None:
    secret = 'sk-canary-"quoted"\n-0123456789'
    guard(secret)
    store = MemoryStore()
    session = await open_session(store)
    session.start_run("run_1", STARTED)
    session.append_model_input(user_message(f"my key is {secret}, use it"), meta={"seen": secret})
    session.append_model_output(answer(f"ok {secret}", call("c1", key=secret, deep=[{"k": [secret]}])))
    session.append_tool_results(results(("c1", secret)))
    session.append_custom("note", {secret: secret})
    await session.commit()
    everything = b"".join(stored.body for stored in await store.read("s1"))
    assert b"sk-canary" not in everything
    assert everything.count(b"[secret]") >= 7
    await _agrees(session)
    assert "[secret], use it" in session.messages[0].text


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@pytest.mark.spec("M-2")
async def test_image_bytes_are_stored_once_and_apart() -> None:
    store = MemoryStore()
    session = await open_session(store)
    image = ImagePart(
        payload=Image(
            mime_type="image/png", data=base64.b64encode(PIXEL).decode(), provider_data={"origin": "x"}
        )
    )
    linked = ImagePart(payload=Image(mime_type="image/png", url="https://example.org/a.png"))
    asked = user_message([text_part("see"), image, linked])
    session.append_model_input(asked)
    session.append_model_output(answer(call("c1")))
    shown = Message(run_id="", role="tool", parts=[tool_result_part("c1", [image])], timestamp="")
    outcome = ToolOutcome(tool_call_id="c1", tool_name="look", status="success")
    session.append_tool_results(ToolResults(message=shown, outcomes=[outcome]))
    await session.commit()
    bodies = [stored.body for stored in await store.read("s1")]
    assert not any(image.payload.data.encode() in body for body in bodies if image.payload.data)
    assert sum(b'"url":"blob:sha256-' in body for body in bodies) == 2
    assert len(store._blobs) == 1
    again = await attach_images(store, session.messages[0])
    assert again.parts == asked.parts
    result: Any = (await attach_images(store, session.messages[2])).parts[0]
    assert result.payload.content == [image]
    plain = user_message("no image", run_id="r", timestamp="t")
    assert await attach_images(store, plain) is plain
    await _agrees(session)


async def test_broken_image_data_is_refused() -> None:
    session = await open_session(MemoryStore())
    bad = ImagePart(payload=Image(mime_type="image/png", data="not base64!"))
    with pytest.raises(AgentError, match="not base64"):
        session.append_model_input(user_message([bad]))
    assert session.staged == []


async def test_images_of_a_failed_commit_are_not_left_behind() -> None:
    fault = StoreFault(nth=1, error=AgentError("SessionWriteFailed", "full"))
    session = await open_session(FaultStore(MemoryStore(), [fault]))
    image = ImagePart(payload=Image(mime_type="image/png", data=base64.b64encode(PIXEL).decode()))
    session.append_model_input(user_message([image]))
    with pytest.raises(AgentError, match="full"):
        await session.commit()
    session.append_model_input(user_message([image]))
    await session.commit()
    await _agrees(session)


async def test_faults_can_be_hooked_and_counted() -> None:
    seen: list[tuple[str, str, int]] = []
    later: list[str] = []

    async def hook(when: When, method: str, number: int) -> None:
        seen.append((when, method, number))
        await asyncio.sleep(0)
        later.append(method)

    store = FaultStore(MemoryStore(), hook=hook)
    session = await open_session(store)
    session.append_model_input(user_message("one"))
    await session.commit()
    assert seen == [
        ("before", "load", 1),
        ("before", "append", 1),
        ("after", "append", 1),
    ]
    assert later == ["load", "append", "append"]
