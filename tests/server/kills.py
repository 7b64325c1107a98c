"""A real `turnlog serve` that is killed again and again, with clients attached: followers that reconnect by
the number of the last event they saw, and clients that start, send, approve and resume."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2

from turnlog.contract import Entry, encode
from turnlog.history import open_store, verify
from turnlog.loop import STRIDE

PATIENCE = 120.0
BETWEEN = ("model_delta", "tool_progress", "status")
TOKEN = "a-token-for-kills"
AGENT = '''
import os, time
from turnlog import Agent, ToolContext, tool
from turnlog.models import ScriptedModel, Turn


def effect(ctx: ToolContext, name: str) -> None:
    file = os.open("effects.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{ctx.session_id} {ctx.tool_call_id} {name}\\n".encode())
    os.close(file)


@tool
def note(text: str, ctx: ToolContext) -> str:
    """Write something down."""
    effect(ctx, "note")
    time.sleep(0.02)
    return f"noted {text}"


@tool(requires_approval=True)
def publish(text: str, ctx: ToolContext) -> str:
    """Show it to everybody."""
    effect(ctx, "publish")
    time.sleep(0.02)
    return f"published {text}"


def answer(request) -> Turn:
    done = 0
    for message in reversed(request.messages):
        if message.role == "user" and "job " in message.text:
            break
        done += message.role == "assistant"
    words = "I look at it with care, and write down what I find. "
    name = ("note", "publish")[done] if done < 2 else None
    calls = [{"name": name, "arguments": {"text": f"step {done}"}}] if name else []
    return Turn(text=words, tool_calls=calls, chunk_size=6, delay=0.004)


agent = Agent(ScriptedModel(default=answer), tools=[note, publish], store="sqlite:log.db")
'''


@dataclass
class Follower:
    """Follows a session through every crash: what it saw, in order, each as number, kind and data."""

    session: str
    view: Literal["entries", "events"]
    seen: list[tuple[int, str, Any]] = field(default_factory=list[tuple[int, str, Any]])
    connections: int = 0

    @property
    def last(self) -> int:
        return self.seen[-1][0] if self.seen else 0

    async def follow(self, client: httpx2.AsyncClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(httpx2.TransportError):
                await self._read(client)
            await asyncio.sleep(0.05)

    async def reach(self, number: int) -> None:
        while self.last < number:  # noqa: ASYNC110 - the reader has nobody else to tell
            await asyncio.sleep(0.05)

    async def _read(self, client: httpx2.AsyncClient) -> None:
        path = f"/api/sessions/{self.session}/events"
        headers = {"last-event-id": str(self.last)}
        async with client.stream("GET", path, params={"view": self.view}, headers=headers) as answer:
            if answer.status_code != 200:
                return
            self.connections += 1
            held: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if not line and "data" in held:
                    self.seen.append((int(held["id"]), held["event"], json.loads(held["data"])))
                name, _, value = line.partition(": ")
                held = {**held, name: value} if line and name else {}


@dataclass
class Driver:
    """Starts one run after the other in a session, sends to them, approves, and resumes what a crash left."""

    session: str
    random: random.Random
    jobs: list[str] = field(default_factory=list[str])
    """What the server was asked to do, whether it said yes or not."""
    taken: set[str] = field(default_factory=set[str])
    """Those of them that it said it had begun."""
    decided: set[str] = field(default_factory=set[str])
    """Calls whose approval it said it had."""
    sent: list[str] = field(default_factory=list[str])
    """Messages that the server said it has taken."""
    resumed: int = 0

    async def drive(self, client: httpx2.AsyncClient, stop: asyncio.Event) -> None:
        while True:
            with suppress(httpx2.TransportError):
                if not await self._step(client, stop.is_set()):
                    return
            await asyncio.sleep(0.03)

    async def _step(self, client: httpx2.AsyncClient, stopping: bool) -> bool:
        base = f"/api/sessions/{self.session}"
        found = await client.get(f"{base}/state")
        state = found.json() if found.status_code == 200 else {"status": "idle", "undriven": False}
        status = state["status"]
        if status in ("idle", "completed", "failed", "aborted"):
            if self.jobs and not await self._is_there(client, self.jobs[-1]):
                assert self.jobs[-1] not in self.taken, f"{self.jobs[-1]} was begun, and is lost"
                return await self._start(client, self.jobs[-1])
            if stopping:
                return False
            self.jobs.append(f"job {self.session} {len(self.jobs)}.")
            return await self._start(client, self.jobs[-1])
        if state["pending"]:
            asked = state["pending"][0]
            call = asked["requested"]["toolCallId"]
            assert call not in self.decided, f"the approval of {call} is lost"
            body = {
                "toolCallId": call,
                "digest": asked["requested"]["digest"],
                "action": "approve",
            }
            if (await client.post(f"{base}/decide", json=body)).status_code == 200:
                self.decided.add(call)
        elif state["undriven"] or status in ("awaiting_human", "paused"):
            self.resumed += (await client.post(f"{base}/resume")).status_code == 200
        elif self.random.random() < 0.1:
            words = f"also {self.session} {len(self.sent)}-{self.random.random()}."
            if (await client.post(f"{base}/send", json={"text": words})).status_code == 204:
                self.sent.append(words)
        return True

    async def _start(self, client: httpx2.AsyncClient, job: str) -> bool:
        answer = await client.post(f"/api/sessions/{self.session}/runs", json={"text": job})
        if answer.status_code == 201:
            self.taken.add(job)
        return True

    async def _is_there(self, client: httpx2.AsyncClient, job: str) -> bool:
        found = await client.get(f"/api/sessions/{self.session}/entries", params={"limit": 2_000})
        if found.status_code != 200:
            return False
        entries = found.json()["entries"]
        after = entries[-1]["seq"] if entries else 0
        while len(entries) < found.json()["tail"]:
            path = f"/api/sessions/{self.session}/entries"
            found = await client.get(path, params={"limit": 2_000, "after": after})
            entries += found.json()["entries"]
            after = entries[-1]["seq"]
        return any(job in json.dumps(entry["payload"]) for entry in entries if entry["kind"] == "model_input")


class KilledServer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "butler.py").write_text(AGENT, encoding="utf-8")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        words = ["serve", "--agent", "butler.py:agent", "--port", str(self.port), "--token", TOKEN]
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnlog.cli", *words),
            cwd=self.folder,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=self._said,
        )
        deadline = time.monotonic() + PATIENCE
        async with httpx2.AsyncClient(base_url=self.address) as client:
            while True:
                with suppress(httpx2.TransportError):
                    if (await client.get("/api/health")).status_code == 200:
                        return
                assert self._process.returncode is None, (self.folder / "said.txt").read_text()
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        await asyncio.wait_for(self._process.wait(), PATIENCE)

    def leave_nothing(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        os.close(self._said)


@asynccontextmanager
async def attached(server: KilledServer) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=server.address, headers=headers, timeout=PATIENCE) as client:
        yield client


@dataclass(frozen=True)
class Report:
    kills: int
    runs: int
    resumed: int
    approved: int
    sent: int
    effects: int
    events: int
    connections: int


async def kill_again_and_again(folder: Path, kills: int, seed: int) -> Report:
    server = KilledServer(folder)
    try:
        return await _kill(server, folder, kills, seed)
    finally:
        server.leave_nothing()


async def _kill(server: KilledServer, folder: Path, kills: int, seed: int) -> Report:
    """Kill the server ``kills`` times at random moments; then everything that was begun is finished, and
    compared with the log. The report counts what happened."""
    chance = random.Random(seed)
    followers = [Follower("one", "entries"), Follower("one", "events"), Follower("two", "entries")]
    drivers = [Driver("one", random.Random(seed + 1)), Driver("two", random.Random(seed + 2))]
    enough, over = asyncio.Event(), asyncio.Event()
    await server.start()
    async with attached(server) as client:
        driving = [asyncio.create_task(driver.drive(client, enough)) for driver in drivers]
        following = [asyncio.create_task(each.follow(client, over)) for each in followers]
        for _ in range(kills):
            # By what was seen and not by the clock: a busy machine would be killed before it does anything.
            await _see_more(followers, chance.randint(1, 160))
            await asyncio.sleep(chance.uniform(0, 0.1))
            await server.end(signal.SIGKILL)
            await asyncio.sleep(chance.uniform(0, 0.1))
            await server.start()
        enough.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*driving)
        logs = {name: await _log(folder, name) for name in ("one", "two")}
        async with asyncio.timeout(PATIENCE):
            for each in followers:
                await each.reach(logs[each.session][-1].seq * STRIDE)
        over.set()
        fresh = Follower("one", "events")
        with suppress(TimeoutError):
            async with asyncio.timeout(3):
                await fresh.follow(client, asyncio.Event())
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    await server.end(signal.SIGINT)
    for driver in drivers:
        check_runs(driver, logs[driver.session])
    effects = check_effects(folder, logs)
    for each in followers:
        check_numbers(each, logs[each.session], fresh)
    return Report(
        kills=kills,
        runs=sum(len(driver.jobs) for driver in drivers),
        resumed=sum(driver.resumed for driver in drivers),
        approved=sum(len(driver.decided) for driver in drivers),
        sent=sum(len(driver.sent) for driver in drivers),
        effects=effects,
        events=sum(len(each.seen) for each in followers),
        connections=sum(each.connections for each in followers),
    )


async def _see_more(followers: list[Follower], events: int) -> None:
    enough = sum(len(each.seen) for each in followers) + events
    async with asyncio.timeout(PATIENCE):
        while sum(len(each.seen) for each in followers) < enough:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


async def _log(folder: Path, session: str) -> list[Entry]:
    async with open_store(f"sqlite:{folder / 'log.db'}") as store:
        assert await verify(store, session) == []
        return await store.load(session)


def check_runs(driver: Driver, log: list[Entry]) -> None:
    """Every job is one run, asked once and completed; what the server took is heard once."""
    inputs = [encode(entry.payload).decode() for entry in log if entry.kind == "model_input"]
    for words in (*driver.jobs, *driver.sent):
        assert sum(words in text for text in inputs) == 1, (driver.session, words)
    began = [entry.run_id for entry in log if entry.kind == "run_started"]
    ended = [entry for entry in log if entry.kind == "run_ended"]
    assert len(began) == len(set(began)) == len(driver.jobs)
    assert [entry.run_id for entry in ended] == began
    assert {getattr(entry.payload, "status", None) for entry in ended} == {"completed"}


def check_effects(folder: Path, logs: dict[str, list[Entry]]) -> int:
    """No call had its effect twice, and each that is said to have succeeded had it."""
    path = folder / "effects.txt"
    effects = [tuple(line.split()[:2]) for line in path.read_text().splitlines()] if path.exists() else []
    assert len(effects) == len(set(effects))
    for session, log in logs.items():
        for entry in log:
            if entry.kind != "tool_results":
                continue
            for outcome in entry.payload.outcomes:
                if outcome.status == "success":
                    assert (session, outcome.tool_call_id) in effects
    return len(effects)


def check_numbers(follower: Follower, log: list[Entry], fresh: Follower) -> None:
    """No number twice, none out of order, none of the log missing; what was seen is what the log holds."""
    numbers = [number for number, _, _ in follower.seen]
    assert numbers == sorted(set(numbers))
    if follower.view == "entries":
        told = [(number, data) for number, kind, data in follower.seen if kind == "entry"]
        assert [number for number, _ in told] == [entry.seq * STRIDE for entry in log]
        assert [data["hash"] for _, data in told] == [entry.hash for entry in log]
        return
    kept = {number: kind for number, kind, _ in fresh.seen if kind not in BETWEEN}
    seen = {number: kind for number, kind, _ in follower.seen if kind not in BETWEEN}
    assert {number: kind for number, kind in seen.items() if number in kept} == kept
    assert {kind for number, kind in seen.items() if number not in kept} <= {"run_ended"}
