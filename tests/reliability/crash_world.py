"""What crashes in the crash matrix: agents on durable stores, with a place to die at every step.

Everything here runs in a forked child. The model answers from what it is sent, the client goes on from what
is in the log, so either can be killed and started again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from turnlog import Agent, tool
from turnlog.approvals import pending_approvals
from turnlog.context import ContextOptions
from turnlog.contract import (
    AgentError,
    ApprovalRequested,
    RetryPolicy,
    RunEvent,
    Store,
    StoredEntry,
    Tail,
    ToolPolicy,
    read_envelope,
)
from turnlog.history import open_store, verify
from turnlog.loop import Hooks, fork_session, purge_entries
from turnlog.models import ModelRequest
from turnlog.testing import FaultStore, OutsideRecord, ScriptedModel, Turn, check_session
from turnlog.tools import NOT_RUN, ToolContext
from turnlog.widgets import TodoWidget

SESSION = "s1"
BRANCH = "s2"
SECRET = "the hidden cove"
GO_ON = "(go on)"


class Points:
    """Places in the code where a case can be struck, by name and count: ``append before #3``.

    ``fault``: ``kill`` ends the process; ``full`` and ``broken`` fail that write or sync as a full or broken
    disk does, and with ``lasting`` all that come after it.
    """

    def __init__(self, target: str | None = None, fault: str = "kill", *, lasting: bool = False) -> None:
        self.target = target
        self.fault = fault
        self.lasting = lasting
        self.struck = False
        self.seen: list[str] = []
        self._counts: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        if self.is_next(name):
            self.strike()

    def is_next(self, name: str) -> bool:
        """Count a visit; True when this is the place to strike at."""
        self._counts[name] += 1
        place = f"{name} #{self._counts[name]}"
        self.seen.append(place)
        if place == self.target:
            self.struck = True
            return True
        return self.lasting and self.struck and is_on_disk(name)

    def strike(self) -> None:
        match self.fault:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case _:
                raise OSError(errno.EIO, os.strerror(errno.EIO))


def is_on_disk(place: str) -> bool:
    return " write " in place or " sync " in place


class Outside:
    """A file beside the store that each effect and each acknowledgement is added to as it happens."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, *words: str) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, msgspec.json.encode(words) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> list[list[str]]:
        if not self.path.exists():
            return []
        return [msgspec.json.decode(line) for line in self.path.read_bytes().splitlines()]

    def ran(self, key: str) -> bool:
        return any(note[:2] == ["effect", key] for note in self.read())

    def record(self) -> OutsideRecord:
        notes = self.read()
        return OutsideRecord(
            effects=Counter(note[1] for note in notes if note[0] == "effect"),
            watched=WATCHED,
            rerunnable=RERUNNABLE,
            acknowledged=[
                Tail(seq=int(note[1]), id=note[2], hash=note[3]) for note in notes if note[0] == "ack"
            ],
            told={note[1] for note in notes if note[0] == "told"},
        )


class AckStore(FaultStore):
    """Notes outside what the store has acknowledged of the session. ``hasty``: before it is written, which is
    a bug."""

    def __init__(self, inner: Store, points: Points, outside: Outside, *, hasty: bool = False) -> None:
        super().__init__(inner, hook=lambda when, method, number: points.reach(f"{method} {when}"))
        self._outside = outside
        self._hasty = hasty

    async def append(self, session_id: str, batch: Any, **options: Any) -> None:
        if not self._hasty:
            await super().append(session_id, batch, **options)
        for stored in batch if session_id == SESSION else ():
            self._acknowledge(stored)
        if self._hasty:
            await super().append(session_id, batch, **options)

    def _acknowledge(self, stored: StoredEntry) -> None:
        self._outside.note("ack", str(stored.seq), stored.id, read_envelope(stored.body).hash)


# ── tools ──

WATCHED = ("pay", "look", "post", "book", "read_page")
RERUNNABLE = ("look", "post", "read_page")


def make_tools(points: Points, outside: Outside, *, careless: bool = False) -> list[Any]:
    """``careless``: what may not run twice is declared as if it could, which is a bug."""

    def effect(ctx: ToolContext, *words: str) -> None:
        points.reach(f"{ctx.tool_name} before its effect")
        outside.note("effect", ctx.idempotency_key, ctx.tool_name, *words)
        points.reach(f"{ctx.tool_name} after its effect")

    @tool(timeout=None, idempotent=careless)
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay. Must never happen twice."""
        effect(ctx, str(amount))
        return f"paid {amount}"

    @tool(timeout=None, concurrent=True, idempotent=True)
    async def look(place: str, ctx: ToolContext) -> str:
        """Look at a place. Harmless."""
        effect(ctx, place)
        await asyncio.sleep(0)
        return f"{place}: all quiet"

    @tool(timeout=None, concurrent=True, keyed=True)
    def post(text: str, ctx: ToolContext) -> str:
        """Post once for each key; runs in a thread."""
        effect(ctx, text)
        return f"posted as {ctx.idempotency_key}"

    async def find_booking(ctx: ToolContext, arguments: dict[str, Any]) -> object:
        points.reach("reconcile")
        return "booked" if outside.ran(ctx.idempotency_key) else NOT_RUN

    @tool(timeout=None, reconcile=find_booking)
    async def book(seat: int, ctx: ToolContext) -> str:
        """Book a seat; can be asked what became of it."""
        effect(ctx, str(seat))
        return "booked"

    @tool(timeout=None, idempotent=True)
    async def read_page(number: int, ctx: ToolContext) -> str:
        """Read a long page."""
        effect(ctx, str(number))
        return f"page {number}: " + " ".join(f"word-{number}-{n}" for n in range(900))

    return [pay, look, post, book, read_page]


# ── scenarios ──

Answer = Callable[[ModelRequest], "str | Turn"]


@dataclass(frozen=True)
class Scenario:
    """What the client says, how the model answers it, how the agent is set up."""

    answer: Answer
    prompts: tuple[str, ...] = ("Go.",)
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    decide: Callable[[ApprovalRequested], str] = lambda request: "approve"
    tidy: bool = False
    """Afterwards the session is forked inside its run, and the result of its tool is purged."""


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def rounds(*turns: str | Turn) -> Answer:
    """One turn for each time the conversation has come back to the model."""

    def answer(request: ModelRequest) -> str | Turn:
        spoken = sum(message.role == "assistant" for message in request.messages)
        return turns[min(spoken, len(turns) - 1)]

    return answer


def flaky(request: ModelRequest) -> str | Turn:
    """Every call fails at first: the first in the middle of its text, the second by a cut."""
    spoken = sum(message.role == "assistant" for message in request.messages)
    if request.metadata.attempt % 2:
        broken = {"code": "ModelOverloaded", "message": "busy", "after": 2}
        return Turn(text="Half an", error=broken) if spoken else Turn(text="Half an answer", cut=True)
    return "Paid." if spoken else Turn(tool_calls=[call("pay", amount=7)])


PAGES = ContextOptions(preview_at=1_200, fold_at=9_000, min_freed_tokens=200)

SCENARIOS: dict[str, Scenario] = {
    "no_tool": Scenario(rounds("Hello there."), prompts=("Hi.", "And again?")),
    "one_tool": Scenario(rounds(Turn(text="Paying.", tool_calls=[call("pay", amount=3)]), "Paid.")),
    "parallel": Scenario(
        rounds(
            Turn(
                tool_calls=[
                    call("look", place="north"),
                    call("post", text="hi"),
                    call("look", place="south"),
                    call("pay", amount=4),
                ]
            ),
            "All done.",
        ),
        options={"tool_policy": ToolPolicy(max_parallel=3)},
    ),
    "approval": Scenario(
        rounds(
            Turn(tool_calls=[call("pay", amount=1), call("pay", amount=2), call("pay", amount=3)]),
            Turn(tool_calls=[call("look", place="desk"), call("pay", amount=5)]),
            "Settled.",
        ),
        options={"tool_policy": ToolPolicy(require_approval_by_default=True)},
        decide=lambda request: {1: "approve", 2: "deny", 3: "modify"}.get(
            request.arguments.get("amount", 0), "approve"
        ),
    ),
    "asked_again": Scenario(
        rounds(Turn(tool_calls=[call("pay", amount=1), call("pay", amount=2)]), "Asked."),
        options={"tool_policy": ToolPolicy(outcome_unknown="human")},
        decide=lambda request: "deny",  # approving would run it a second time, on purpose
    ),
    "tidied": Scenario(
        rounds(Turn(tool_calls=[call("look", place=SECRET), call("pay", amount=1)]), "Done."), tidy=True
    ),
    "retry": Scenario(flaky),
    "fold": Scenario(
        rounds(
            Turn(tool_calls=[call("read_page", number=1), call("todo_add", text="read on")]),
            Turn(tool_calls=[call("read_page", number=2)]),
            Turn(tool_calls=[call("read_page", number=3)]),
            "Three pages.",
        ),
        options={"context": PAGES, "widgets": [TodoWidget()]},
    ),
    "reconcile": Scenario(
        rounds(
            Turn(tool_calls=[call("book", seat=12), call("book", seat=13)]),
            "Two seats.",
        )
    ),
}


# ── one life of the client ──


@dataclass
class World:
    """A folder with a store and the outside record; what a process needs to go on from there."""

    folder: Path
    url: str
    scenario: Scenario
    points: Points = field(default_factory=Points)
    planted: str | None = None
    """A bug to make on purpose: the checks must find it."""

    @property
    def outside(self) -> Outside:
        return Outside(self.folder / "outside.jsonl")

    def open(self) -> AckStore:
        inner = open_store(self.url)
        return AckStore(inner, self.points, self.outside, hasty=self.planted == "hasty store")

    def agent(self, store: Store) -> Agent:
        def reach(name: str) -> Callable[..., None]:
            return lambda *_: self.points.reach(name)

        def asked(request: ModelRequest) -> str | Turn:
            self.points.reach("model asked")
            return self.scenario.answer(request)

        names = ("before_model", "after_model", "before_tool", "after_tool")
        options = {
            "retry": RetryPolicy(base_delay_ms=1, max_attempts=8),
            "hooks": Hooks(**{name: [reach(f"hook {name}")] for name in names}),
            **self.scenario.options,
        }
        model = ScriptedModel(default=asked)
        tools = make_tools(self.points, self.outside, careless=self.planted == "careless tool")
        return Agent(model, tools=tools, store=store, instructions="Brief.", **options)

    async def live(self, runs: int = 1_000) -> None:
        """Go on from what is in the log until every prompt is answered, or so many runs were tried."""
        store = self.open()
        agent = self.agent(store)
        while (prompt := await self._next(store)) is not None and runs:
            runs -= 1
            if prompt == GO_ON:
                await self._decide(agent)
                stream = agent.resume_stream(SESSION)
            else:
                stream = agent.run_stream(prompt, session=SESSION)
            async with aclosing(stream) as events:
                async for event in events:
                    self._hear(event)
        if self.scenario.tidy and runs:
            await self._tidy(store)
        self.points.reach("close")
        await agent.close()
        await store.close()

    async def _tidy(self, store: Store) -> None:
        entries = await store.load(SESSION)
        if await store.tail(BRANCH) is None:
            place = next(entry.seq for entry in entries if entry.kind == "model_output")
            self.points.reach("fork")
            await fork_session(store, SESSION, at=place, target=BRANCH)
        unfinished = [problem for problem in await verify(store, SESSION) if problem.code == "purge"]
        if unfinished or not any(entry.kind == "purge" for entry in entries):
            secret = [entry.id for entry in entries if entry.kind in ("model_output", "tool_results")]
            self.points.reach("purge")
            await purge_entries(store, SESSION, secret, by="carol")

    async def endure(self) -> None:
        """``live`` on a disk that fails: what is said then is an ``AgentError``, and nothing else."""
        for _ in range(3):
            try:
                await self.live(runs=3)
                return
            except AgentError as error:
                if error.code not in ("SessionWriteFailed", "SessionReadFailed", "SessionBusy"):
                    raise

    def _hear(self, event: RunEvent) -> None:
        kind = event.delta.kind if event.kind == "model_delta" else ""
        self.points.reach(f"event {event.kind} {kind}".rstrip())
        entry_id = getattr(event, "entry_id", None)
        if entry_id is not None:
            self.outside.note("told", entry_id)

    async def _next(self, store: Store) -> str | None:
        """The prompt to send, None when nothing is left to do, ``GO_ON`` for a run that is open."""
        entries = await store.load(SESSION) if await store.tail(SESSION) else []
        started = sum(entry.kind == "run_started" for entry in entries)
        ended = sum(entry.kind == "run_ended" for entry in entries)
        if started > ended:
            return GO_ON
        return self.scenario.prompts[started] if started < len(self.scenario.prompts) else None

    async def _decide(self, agent: Agent) -> None:
        """Decide what waits, each question the same way in every life."""
        for waiting in pending_approvals(await agent.store.load(SESSION)):
            action = self.scenario.decide(waiting.requested)
            changed = {"arguments": {"amount": 6}} if action == "modify" else {}
            self.points.reach("decide")
            try:
                await agent.decide(SESSION, waiting.requested.tool_call_id, action, by="carol", **changed)
            except AgentError as error:
                if error.code != "SessionBusy":
                    raise
                return  # a call beside it is open: it is resumed first

    async def check(self) -> None:
        """All invariants, read with a store that nothing has touched."""
        store = open_store(self.url)
        await check_session(
            store,
            SESSION,
            outside=self.outside.record(),
            replayed=not self.scenario.tidy,
            options=self.scenario.options.get("context"),
        )
        entries = await store.load(SESSION)
        runs = [entry.payload.status for entry in entries if entry.kind == "run_ended"]
        assert runs == ["completed"] * len(self.scenario.prompts), runs
        if self.scenario.tidy:
            await check_session(store, BRANCH, replayed=False)
            left = [
                path
                for path in self.folder.rglob("*")
                if path.is_file() and SECRET.encode() in path.read_bytes()
            ]
            assert not [path for path in left if path.name != "outside.jsonl"], f"not erased from {left}"
        said = [e.payload.message.text for e in entries if e.kind == "model_input"]
        assert said == list(self.scenario.prompts), said
        await store.close()


STORES: dict[str, Callable[[Path], str]] = {
    "jsonl": lambda folder: f"jsonl:{folder}/jsonl",
    "sqlite": lambda folder: f"sqlite:{folder}/turnlog.db",
}
