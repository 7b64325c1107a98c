"""Processes that die in the middle of writing, and processes that write at once."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from turnlog.contract import AgentError, Custom
from turnlog.history import open_store, verify

URLS = ["sqlite:{}/log.db", "jsonl:{}/logs"]

# Appends for as long as it lives; says what was acknowledged only after it was.
WRITER = """
import asyncio, sys
from turnlog.history import Session, open_store
from turnlog.system import SystemClock, SystemIds

async def write(store, name, who):
    session = await Session.open(store, name, clock=SystemClock(), ids=SystemIds())
    number = 0
    while True:
        for _ in range(3):
            number += 1
            session.append_custom("note", {"by": who, "n": number, "pad": "x" * (number % 50) * 40})
        written = await session.commit()
        sys.stdout.write(f"{name} {written[-1].seq} {written[-1].id}\\n")
        sys.stdout.flush()

async def main(url, who):
    store = open_store(url)
    await asyncio.gather(*(write(store, f"s{n}", who) for n in range(3)))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.spec("H-6", "H-5")
@pytest.mark.parametrize("url", URLS)
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    chance = random.Random(7)
    acknowledged: dict[str, tuple[int, str]] = {}
    for life in range(6):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, url, str(life), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(chance.randrange(1, 40))]
        await asyncio.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        lines += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
        for line in lines:
            if line.endswith(b"\n"):
                name, seq, id = line.decode().split()
                acknowledged[name] = (int(seq), id)
        store = open_store(url)
        for name, (seq, id) in acknowledged.items():
            entries = await store.load(name)
            assert entries[seq - 1].id == id
            assert await verify(store, name) == []
            assert (len(entries) - 1) % 3 == 0  # a header, then whole batches of three
        await store.close()
    assert len(acknowledged) == 3


# Appends to one session that others write to as well, and goes on when they were faster.
RIVAL = """
import asyncio, sys
from turnlog.contract import AgentError
from turnlog.history import Session, open_store
from turnlog.system import SystemClock, SystemIds

async def main(url, who, count):
    store = open_store(url)
    session = await Session.open(store, "shared", clock=SystemClock(), ids=SystemIds())
    print("ready", flush=True)
    sys.stdin.readline()
    written = lost = 0
    while written < count:
        session.append_custom("note", {"by": who, "n": written})
        session.append_custom("more", {"by": who, "n": written})
        try:
            await session.commit()
        except AgentError as error:
            if error.code not in ("SessionConcurrentWrite", "SessionBusy"):
                raise
            lost += 1
            await session.refresh()
        else:
            written += 1
    await store.close()
    print(lost)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("url", URLS)
async def test_six_processes_write_one_session_without_a_gap(tmp_path: Path, url: str) -> None:
    url, count = url.format(tmp_path), 50
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RIVAL, url, str(who), str(count)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for who in range(6)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    lost = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * 6
    assert sum(int(out) for out, _ in lost) > 0  # they did meet
    store = open_store(url)
    entries = await store.load("shared")
    assert [entry.seq for entry in entries] == list(range(1, 2 * 6 * count + 2))
    assert await verify(store, "shared") == []
    for who in range(6):
        payloads = [entry.payload for entry in entries]
        mine = [p for p in payloads if isinstance(p, Custom) and p.data["by"] == str(who)]
        assert [(p.name, p.data["n"]) for p in mine] == [
            (name, n) for n in range(count) for name in ("note", "more")
        ]
    await store.close()


# A worker that is stopped, loses its lease, and wakes up.
STOPPED = """
import asyncio, sys
from turnlog.contract import AgentError
from turnlog.history import Session, open_store
from turnlog.system import SystemClock, SystemIds

async def main(url):
    store = open_store(url)
    lease = await store.claim("s1", owner="stopped", ttl=0.2)
    session = await Session.open(store, "s1", clock=SystemClock(), ids=SystemIds(), lease=lease)
    while True:
        session.append_custom("note", {"by": "stopped"})
        try:
            await session.commit()
        except AgentError as error:
            sys.exit(3 if error.code == "SessionConcurrentWrite" and error.meta.get("fenced") else 4)
        print(len(session.entries), flush=True)
        sys.stdin.readline()  # stopped here, it holds no lock of the store's files

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.spec("H-4")
@pytest.mark.parametrize("url", URLS)
async def test_a_stopped_writer_that_wakes_up_is_fenced(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPPED, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    assert await process.stdout.readline() == b"2\n"
    process.send_signal(signal.SIGSTOP)
    store = open_store(url)
    while True:
        try:
            await store.claim("s1", owner="new", ttl=600)
            break
        except AgentError as error:
            if error.code != "SessionBusy":
                raise
            await asyncio.sleep(0.05)
    before = await store.tail("s1")
    process.stdin.write(b"go on\n")
    process.send_signal(signal.SIGCONT)
    assert await process.wait() == 3
    assert await store.tail("s1") == before
    await store.close()
