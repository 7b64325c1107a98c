"""What followers cost the server, how soon they see a delta, and how soon a browser shows a long session.

The server, its followers and the browser are processes of their own, so that each one's CPU time is its own.
One writer alone and one writer with followers take turns on the same server, each in a new session, with the
same work; the ratio is that of the server's CPU time. Two kinds of work: a run at full speed (tool rounds and
answers that nothing slows down), and an answer as a fast provider sends it, a hundred deltas a second.

``python -m benchmarks.bench_server followers`` runs one part; the others are ``idle`` and ``paint``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx2
import psutil

from turnlog import Agent, tool
from turnlog.loop import STRIDE
from turnlog.models import ModelRequest, ScriptedModel, Turn
from turnlog.models.scripted import Chunk
from turnlog.server import serve

FOLLOWERS = 200
IDLE = 1_000
ROUNDS = 3
TOKEN = "for-the-benchmark"
DELTAS = 300
PAUSE = 0.01
TOOL_ROUNDS = 40
WORDS = "There are books, maps and a lamp in this room, and dust on all of it. " * 4
ENTRIES = 10_000


# ── the server ──


class Clocked(ScriptedModel):
    """Answers ``paced`` with deltas that hold the time at which each was made."""

    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        paced = _asked(request) == "paced"
        async for chunk in super()._stream(request):
            if paced and hasattr(chunk, "text_delta"):
                await asyncio.sleep(PAUSE)
                chunk = type(chunk)(text_delta=f"at {time.time():.6f} ")  # pyright: ignore[reportCallIssue]
            yield chunk


def _asked(request: ModelRequest) -> str:
    return next(message.text for message in reversed(request.messages) if message.role == "user")


def answer(request: ModelRequest) -> Turn:
    match _asked(request):
        case "full":
            since = 0
            for message in reversed(request.messages):
                if message.role == "user":
                    break
                since += message.role == "assistant"
            if since < TOOL_ROUNDS:
                return Turn(
                    text=WORDS,
                    chunk_size=12,
                    tool_calls=[{"name": "look", "arguments": {"place": f"room {since}"}}],
                )
            return Turn(text=WORDS, chunk_size=12)
        case "paced":
            return Turn(text="x" * DELTAS, chunk_size=1)
        case _:
            return Turn(text="Yes.")


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: {WORDS}"


async def run_server(store: str) -> None:
    def ready(address: str, token: str | None) -> None:
        print(address.rstrip("/"), flush=True)

    async with Agent(Clocked(default=answer), tools=[look], store=store) as agent:
        await serve(agent, port=0, token=TOKEN, ready=ready)


@dataclass(frozen=True)
class Server:
    address: str
    process: psutil.Process
    client: httpx2.Client

    @property
    def cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    @property
    def memory(self) -> int:
        return self.process.memory_info().rss

    def ask(self, method: str, path: str, **more: Any) -> Any:
        done = self.client.request(method, f"/api{path}", **more)
        done.raise_for_status()
        return done.json() if done.content else None

    def run(self, session: str, text: str) -> None:
        self.ask("POST", f"/sessions/{session}/runs", json={"text": text})

    def wait(self, session: str) -> None:
        while self.ask("GET", f"/sessions/{session}/state")["status"] != "completed":
            time.sleep(0.05)


@contextmanager
def server_of(store: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "benchmarks.bench_server", "--serve", store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=address, headers=headers, timeout=120) as client:
            yield Server(address, psutil.Process(process.pid), client)
    finally:
        process.terminate()
        process.wait(30)


# ── the followers ──


async def follow(address: str, count: int, until: str, after: int, sessions: list[str]) -> None:
    """Follow with ``count`` connections: print a line when all are open, and when each has seen ``until``."""
    host, _, port = address.removeprefix("http://").partition(":")
    late: list[float] = []
    sizes: list[int] = []
    ready, opened = asyncio.Event(), 0

    async def one(number: int) -> None:
        nonlocal opened
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
        session = sessions[number % len(sessions)]
        path = f"/api/sessions/{session}/events?view=entries&after={after}"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        await reader.readuntil(b"retry: 1000")
        opened += 1
        if opened == count:
            ready.set()
        held, size = b"", 0
        while True:
            data = await reader.read(1 << 16)
            if not data:
                return
            size += len(data)
            if number == 0 and b'"at ' in data:
                now = time.time()
                late.extend(now - float(each[:17]) for each in data.split(b'"at ')[1:] if len(each) > 20)
            held = held[-64:] + data
            if until.encode() in held:
                sizes.append(size)
                return

    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    await ready.wait()
    print("open", flush=True)
    await asyncio.gather(*tasks)
    print(json.dumps({"late": late, "sizes": sizes}), flush=True)


@contextmanager
def followers_of(
    server: Server, count: int, sessions: list[str], until: str, after: int = 0
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.bench_server", "--follow", server.address, str(count), until]
    process = subprocess.Popen([*command, str(after), *sessions], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n"
        yield process
    finally:
        process.kill()
        process.wait(30)


def measure(server: Server, work: str, name: str, count: int) -> tuple[float, list[float]]:
    """CPU seconds of the server for a run with ``count`` followers, and how late the first saw each delta."""
    server.run(name, "hello")
    server.wait(name)
    late: list[float] = []
    if count == 0:
        before = server.cpu
        server.run(name, work)
        _rest(server, name)
        return server.cpu - before, late
    after = _length(server, name) * STRIDE
    with followers_of(server, count, [name], '"kind":"run_ended"', after) as process:
        before = server.cpu
        server.run(name, work)
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert len(told["sizes"]) == count and len(set(told["sizes"])) >= 1
        spent = server.cpu - before
    return spent, told["late"]


def _rest(server: Server, name: str) -> None:
    """Until the run is over, with questions that cost the server little."""
    while True:
        time.sleep(0.2)
        if server.ask("GET", f"/sessions/{name}/state")["status"] == "completed":
            return


def ratio_of(server: Server, work: str) -> tuple[float, float, float, list[float]]:
    alone: list[float] = []
    followed: list[float] = []
    late: list[float] = []
    for turn in range(ROUNDS):
        alone.append(measure(server, work, f"{work}-alone-{turn}", 0)[0])
        spent, seen = measure(server, work, f"{work}-followed-{turn}", FOLLOWERS)
        followed.append(spent)
        late += seen
    ratios = [more / less for more, less in zip(followed, alone, strict=True)]
    return min(alone), min(followed), statistics.median(ratios), late


def idle(server: Server, sessions: list[str]) -> tuple[float, float]:
    """KB of memory for each of 1,000 followers, and the CPU seconds of all in a second."""
    before = server.memory
    with followers_of(server, IDLE, sessions, "nothing like this"):
        time.sleep(8)
        each = (server.memory - before) / IDLE / 1024
        start, at = server.cpu, time.monotonic()
        time.sleep(8)
        return each, (server.cpu - start) / (time.monotonic() - at)


# ── the browser ──


def paint(server: Server, session: str) -> tuple[float, float] | None:
    """Milliseconds until Chromium has painted the conversation of a long session: by its own clock from the
    start of the navigation, the best of five and the middle one; None where there is no Chromium."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    times: list[float] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{server.address}/#token={TOKEN}")
        page.wait_for_selector(".srow")
        for _ in range(5):
            page.goto("about:blank")
            page.goto(f"{server.address}/#/s/{session}", wait_until="commit")
            page.wait_for_selector(".conv .prose")
            shown = "() => new Promise(done => requestAnimationFrame(() => done(performance.now())))"
            times.append(page.evaluate(shown))
        browser.close()
    return min(times), statistics.median(times)


def followed_rows(server: Server) -> Iterator[tuple[str, str, str]]:
    for work, words in (("full", "at full speed"), ("paced", f"{1 / PAUSE:.0f} deltas a second")):
        alone, followed, ratio, late = ratio_of(server, work)
        yield f"one writer, {words}: CPU of the server", f"{alone * 1e3:.0f} ms", ""
        yield f"  with {FOLLOWERS} followers", f"{followed * 1e3:.0f} ms", ""
        yield "  ratio", f"{ratio:.2f}x", "≤ 2x" if work == "full" else ""
        if late:
            late.sort()
            yield "  a delta reaches a follower, middle", f"{late[len(late) // 2] * 1e3:.0f} ms", ""
            yield "  99 of 100 within", f"{late[len(late) * 99 // 100] * 1e3:.0f} ms", "≤ 100 ms"


def idle_rows(server: Server) -> Iterator[tuple[str, str, str]]:
    names = [f"quiet-{number}" for number in range(IDLE)]
    for name in names:
        server.run(name, "hello")
    server.wait(names[-1])
    for sessions, words in (([names[0]], "of one session"), (names, "of a session each")):
        each, cpu = idle(server, sessions)
        yield f"{IDLE:,} idle followers {words}: memory each", f"{each:.0f} KB", ""
        yield "  CPU of all", f"{cpu:.1%}", ""


def paint_rows(server: Server) -> Iterator[tuple[str, str, str]]:
    found = paint(server, "long")
    if found is not None:
        yield f"first paint of {ENTRIES:,} entries in Chromium, best", f"{found[0]:.0f} ms", "≤ 1,000 ms"
        yield "  middle of five", f"{found[1]:.0f} ms", ""


async def work(store: str) -> None:
    """A session as an agent makes it, of ``ENTRIES`` entries."""
    async with Agent(ScriptedModel(default=answer), tools=[look], store=store) as agent:
        tail = 0
        while tail < ENTRIES:
            await agent.run("full", session="long")
            tail = (await agent.store.tail("long")).seq  # pyright: ignore[reportOptionalMemberAccess]


PARTS = {"followers": followed_rows, "idle": idle_rows, "paint": paint_rows}


def rows(*parts: str) -> Iterator[tuple[str, str, str]]:
    for part in parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            if part == "paint":
                asyncio.run(work(f"sqlite:{folder}/log.db"))
            with server_of(f"sqlite:{folder}/log.db") as server:
                yield from PARTS[part](server)


def _length(server: Server, session: str) -> int:
    with suppress(httpx2.HTTPStatusError):
        return server.ask("GET", f"/sessions/{session}/entries", params={"limit": 1})["tail"]
    return 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve", store]:
            asyncio.run(run_server(store))
        case ["--follow", address, count, until, after, *sessions]:
            asyncio.run(follow(address, int(count), until, int(after), sessions))
        case parts:
            for name, figure, goal in rows(*parts):
                print(f"{name:<60} {figure:>12}   {goal}", flush=True)
