"""The JSONL store: readable files, torn tails dropped, damage never."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from history.history_log import answer, code_of, open_session, write_everything
from turnlog.contract import AgentError, Custom, seal, user_message
from turnlog.history import JsonlStore, fork, verify
from turnlog.history.jsonl._file import LogFile
from turnlog.system import SystemClock, SystemIds

ENTRY = seal(
    Custom(name="note", data={}),
    id="e5",
    previous_id=None,
    previous_hash="",
    session_id="s1",
    seq=5,
    timestamp="2026-01-01T00:00:00.000Z",
).stored


async def _two_batches(folder: Path) -> tuple[Path, int]:
    """A file of two batches, and where the second begins."""
    async with JsonlStore(folder) as store:
        session = await open_session(store)
        session.append_model_input(user_message("one 漢字 🜁"))
        await session.commit()
        path = folder / "s1.jsonl"
        first = path.stat().st_size
        session.append_model_output(answer("two"))
        session.append_model_input(user_message("three \n\u2028 J*"))
        await session.commit()
    return path, first


async def test_files_are_private_and_readable(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "logs"
    async with JsonlStore(folder) as store:
        assert await store.sessions() == []
        assert not folder.exists()
        await write_everything(await open_session(store))
        name = await store.put_blob(b"bytes")
    path = folder / "s1.jsonl"
    for made in (path, folder / "s1.lock", folder / "blobs" / name):
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"turnlog": 1, "session": "s1"}
    assert [line["kind"] for line in lines if "kind" in line][:3] == [
        "session_header",
        "system_prompt",
        "runtime_init",
    ]
    assert [line["commit"]["seq"] for line in lines if "commit" in line] == [10, 23]


def look(path: Path, data: bytes) -> LogFile:
    log = LogFile(str(path), "s1")
    log.take_in(data)
    return log


@pytest.mark.spec("H-5")
async def test_a_tail_torn_at_any_byte_falls_back_to_the_last_batch(tmp_path: Path) -> None:
    path, first = await _two_batches(tmp_path)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        log = look(path, whole[:cut])
        assert (log.tail, log.end) == ((0, 0) if cut < first else (2, first)), cut
    for cut in [*range(1, len(whole), 41), first - 1, first, first + 1, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        kept = 0 if cut < first else 2
        async with JsonlStore(tmp_path) as store:
            tail = await store.tail("s1")
            assert (tail.seq if tail else 0) == kept, cut
            session = await open_session(store, clock=SystemClock(), ids=SystemIds())
            assert len(session.entries) == kept, cut
            session.append_model_input(user_message("after the crash"))
            await session.commit()
            assert await verify(store, "s1") == [], cut
            assert len(await store.read("s1")) == max(kept, 1) + 1


@pytest.mark.spec("H-5")
async def test_every_flipped_bit_is_found_and_nothing_is_dropped_for_it(tmp_path: Path) -> None:
    path, _ = await _two_batches(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            with pytest.raises(AgentError) as error:
                look(path, bytes(damaged))
            assert code_of(error) in ("SessionCorrupt", "SessionMigrationFailed")
    for place in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        async with JsonlStore(tmp_path) as store:
            assert [problem.code for problem in await verify(store, "s1")] == ["unreadable"]
            with pytest.raises(AgentError):
                await store.append("s1", [ENTRY], expected_tail=4)
        assert path.read_bytes() == bytes(damaged)


async def test_a_file_that_lost_its_middle_is_damaged(tmp_path: Path) -> None:
    path, first = await _two_batches(tmp_path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for bad in (
        b"".join(lines[:2] + lines[3:]),
        b"".join(lines[:1] + lines[2:]),
        whole + lines[1],
        whole + lines[-1],
        lines[0] + whole[first:],
        whole + b'{"commit":{}}\n',
    ):
        path.write_bytes(bad)
        async with JsonlStore(tmp_path) as store:
            with pytest.raises(AgentError) as error:
                await store.load("s1")
            assert code_of(error) == "SessionCorrupt"
            assert str(path) in error.value.message
            assert [info.entries for info in await store.sessions()] == [0]


@pytest.mark.spec("H-8")
async def test_a_file_of_a_newer_turnlog_is_refused_untouched(tmp_path: Path) -> None:
    path, _ = await _two_batches(tmp_path)
    newer = path.read_bytes().replace(b'{"turnlog":1', b'{"turnlog":9', 1)
    path.write_bytes(newer)
    async with JsonlStore(tmp_path) as store:
        for act in (store.tail("s1"), store.load("s1")):
            with pytest.raises(AgentError, match="upgrade turnlog") as error:
                await act
            assert code_of(error) == "SessionMigrationFailed"
    assert path.read_bytes() == newer


async def test_a_file_under_another_sessions_name_is_refused(tmp_path: Path) -> None:
    path, _ = await _two_batches(tmp_path)
    path.rename(tmp_path / "s2.jsonl")
    async with JsonlStore(tmp_path) as store:
        with pytest.raises(AgentError, match="holds session 's1', not 's2'"):
            await store.load("s2")


@pytest.mark.spec("H-7")
async def test_a_fork_is_a_pointer(tmp_path: Path) -> None:
    async with JsonlStore(tmp_path) as store:
        session = await open_session(store)
        session.append_model_input(user_message("x" * 100_000))
        await session.commit()
        await fork(store, "s1", target="s2", clock=SystemClock(), ids=SystemIds())
        assert (tmp_path / "s2.jsonl").stat().st_size < 2000
        assert len(await store.load("s2")) == 3


async def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with JsonlStore(tmp_path / "file") as store:
        with pytest.raises(AgentError) as error:
            await store.append("s1", [ENTRY._replace(seq=1)], expected_tail=0)
        assert code_of(error) == "ConfigInvalid"
    folder = tmp_path / "logs"
    path, _ = await _two_batches(folder)
    path.unlink()
    path.mkdir()
    async with JsonlStore(folder) as store:
        with pytest.raises(AgentError) as error:
            await store.load("s1")
        assert code_of(error) == "SessionReadFailed"


async def test_a_broken_lease_file_is_named(tmp_path: Path) -> None:
    await _two_batches(tmp_path)
    (tmp_path / "s1.lock").write_text("{broken\n")
    async with JsonlStore(tmp_path) as store:
        with pytest.raises(AgentError, match="lock file") as error:
            await store.claim("s1", owner="a", ttl=1)
        assert code_of(error) == "SessionCorrupt"


async def test_a_lock_that_is_held_too_long_is_busy(tmp_path: Path) -> None:
    from turnlog.history.jsonl._lock import locked

    await _two_batches(tmp_path)
    async with JsonlStore(tmp_path, busy_timeout=0.05) as store:
        session = await open_session(store)
        session.append_model_input(user_message("one"))
        with locked(str(tmp_path / "s1.lock")), pytest.raises(AgentError, match="SessionBusy"):
            await session.commit()


@pytest.mark.spec("H-4", "H-6")
@pytest.mark.parametrize("writes", [1, 2, 3])
async def test_a_torn_write_of_the_lease_leaves_the_one_before(tmp_path: Path, writes: int) -> None:
    """Cut at every byte: the lease is the one before or the one after, and the session stays usable."""
    await _two_batches(tmp_path)
    path = tmp_path / "s1.lock"
    async with JsonlStore(tmp_path) as store:
        for number in range(writes):
            before = path.read_bytes()
            lease = await store.claim("s1", owner=f"owner-{number}", ttl=0.0)
    after = path.read_bytes()
    changed = [at for at in range(len(after)) if after[at : at + 1] != before[at : at + 1]]
    for cut in range(changed[0], len(after) + 1):
        path.write_bytes(after[:cut] + before[cut:])
        async with JsonlStore(tmp_path) as store:
            again = await store.claim("s1", owner="next", ttl=0.0)
        assert again.epoch in (lease.epoch, lease.epoch + 1)
