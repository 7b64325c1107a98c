"""A store whose log stops anywhere: what a crash between any two entries would leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from loop.scenarios import TRACES, MortalStore, Stage
from turnlog import Agent, tool
from turnlog.context import ContextOptions
from turnlog.contract import Entry, StoredEntry, encode
from turnlog.history import MemoryStore
from turnlog.testing import FixedClock, FixedIds, ScriptedModel, read_trace
from turnlog.widgets import MemoryNotebookWidget, TodoWidget

FILES = Path(__file__).parent.parent / "golden" / "traces"


@cache
def trace_of(name: str) -> list[Entry]:
    return read_trace(FILES / f"{name.lower()}_{TRACES[name][0]}.jsonl")


class NotingStore(MortalStore):
    """Notes where each batch ended: a real crash stops nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: set[int] = set()

    async def append(self, session_id: str, batch: Sequence[StoredEntry], **more: Any) -> None:
        await super().append(session_id, batch, **more)
        self.ends.add(batch[-1].seq)


async def batch_ends(name: str) -> set[int]:
    """The entries of a trace after which its store had all of a batch."""
    store = NotingStore()
    await TRACES[name][1](Stage(store=store))
    return store.ends


async def stop_after(entries: Sequence[Entry], session_id: str) -> Stage:
    """A stage whose store holds exactly ``entries``, with later times and other ids."""
    store = MemoryStore()
    rows = [StoredEntry(entry.seq, entry.id, entry.kind, encode(entry)) for entry in entries]
    await store.append(session_id, rows, expected_tail=0)
    return Stage(store=store, clock=FixedClock("2026-01-01T01:00:00.000Z"), ids=FixedIds("r"))


def agent_on(
    stage: Stage, trace: str, before: Sequence[Entry], *, other_tools: bool = False, **options: Any
) -> Agent:
    """An agent like the one that wrote ``trace``, which ends any run with a word. With ``other_tools`` it
    offers more than that one did."""

    @tool(timeout=None)
    async def read_log(day: int) -> str:
        """Read a day's log."""
        stage.effects.append(f"read_log {day}")
        return f"day {day}: quiet"

    @tool(timeout=None)
    async def stock(hall: int) -> str:
        """Read the stock of a hall."""
        stage.effects.append(f"stock {hall}")
        return f"hall {hall}: empty"

    @tool(timeout=None)
    async def wait(what: str) -> str:
        """Wait for something that does not come."""
        stage.effects.append(f"wait {what}")
        return "it came"

    usual = [wait if each.name == "wait" else each for each in stage.tools()]
    own: dict[str, list[Any]] = {"G-9": [read_log], "G-14": [stock], "G-15": []}
    screens: dict[str, list[Any]] = {"G-13": [TodoWidget()], "G-14": [MemoryNotebookWidget()]}
    tools, widgets = own.get(trace, usual), screens.get(trace, [])
    if other_tools:
        tools, widgets = [*usual, read_log, stock], [MemoryNotebookWidget(), TodoWidget()]
    targets = [entry.payload.target.model for entry in before if entry.kind == "model_call_started"]
    model = ScriptedModel(
        default="Done.",
        model_id=targets[-1] if targets else "scripted",
        clock=stage.clock,
        ids=stage.ids,
    )
    options.setdefault("context", ContextOptions(preview_at=100_000))
    return Agent(
        model, store=stage.store, clock=stage.clock, ids=stage.ids, tools=tools, widgets=widgets, **options
    )
