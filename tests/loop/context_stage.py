"""Whole runs over small budgets, and what must hold of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loop.scenarios import SESSION, Stage
from turnlog import Agent, tool
from turnlog.context import ContextOptions
from turnlog.contract import Entry, Message, encode
from turnlog.loop import explain, replay
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedModel

SMALL = ContextOptions(fold_at=6_000, min_freed_tokens=300, preview_at=100_000, user_cap=200)
"""Folds every few tool results, and keeps nothing apart."""

_BREAKS = {
    "fold",
    "redaction",
    "purge",
    "system_prompt",
    "tools_change",
    "runtime_init",
    "branch_summary",
    "run_started",
}


class ContextStage(Stage):
    """A stage whose one model is kept over all agents, so that every request can be looked at."""

    model: ScriptedModel

    def play(self, turns: Any, **options: Any) -> Agent:
        self.model = ScriptedModel(turns, clock=self.clock, ids=self.ids)
        options.setdefault("tools", [stock])
        options.setdefault("instructions", "You count crates.")
        options.setdefault("context", SMALL)
        return Agent(self.model, store=self.store, clock=self.clock, ids=self.ids, **options)

    def then(self, *turns: Any) -> None:
        """What the model answers from here on."""
        self.model._turns[self.model.calls :] = turns  # pyright: ignore[reportPrivateUsage]

    async def entries(self, session: str = SESSION) -> list[Entry]:
        return await self.store.load(session)

    async def folds(self, session: str = SESSION) -> list[Any]:
        return [entry.payload for entry in await self.entries(session) if entry.kind == "fold"]

    async def check(self, **options: Any) -> list[Entry]:
        """The promises that hold for every run, whatever it was about; returns the log."""
        entries = await self.entries()
        check_folds(entries)
        check_wire(entries, self.model.requests)
        check_pairs(self.model.requests)
        check_explained(entries, self.model.requests, options.get("options", SMALL))
        report = await replay(self.store, SESSION, options=options.get("options"), **_widgets(options))
        assert report.identical, report.difference
        return entries


def _widgets(options: dict[str, Any]) -> dict[str, Any]:
    return {"widgets": options["widgets"]} if "widgets" in options else {}


@tool(timeout=None)
async def stock(hall: int) -> str:
    """Read the stock of a hall."""
    return f"hall {hall} holds\n" + "\n".join(
        f"crate-{hall}-{n} weighs {n * 7 + hall} kilos" for n in range(240)
    )


def wire(message: Message) -> bytes:
    return encode((message.role, message.parts))


def head(request: ModelRequest) -> bytes:
    return encode((request.system_prompt, request.tool_specs))


def shown(request: ModelRequest) -> str:
    """All of a request as text."""
    return "\n".join([request.system_prompt or "", *(wire(message).decode() for message in request.messages)])


def check_wire(entries: Sequence[Entry], requests: Sequence[ModelRequest]) -> None:
    """C-3: a request starts with the bytes of the one before it, unless a break entry lies between."""
    calls = [entry for entry in entries if entry.kind == "model_call_started"]
    assert len(calls) == len(requests)
    for place in range(1, len(calls)):
        between = entries[calls[place - 1].seq : calls[place].seq - 1]
        # A run that starts breaks the wire only where it brings a prompt of its own.
        broken = any(
            entry.kind in _BREAKS
            and (entry.kind != "run_started" or entry.payload.system_prompt_override is not None)
            for entry in between
        )
        before = b"".join([head(requests[place - 1]), *map(wire, requests[place - 1].messages)])
        now = b"".join([head(requests[place]), *map(wire, requests[place].messages)])
        assert broken or now.startswith(before), f"call {place + 1} changed what call {place} had sent"


def check_pairs(requests: Sequence[ModelRequest]) -> None:
    """C-5: every call is answered by the next message, whole and in order."""
    for request in requests:
        owed: list[str] = []
        for message in request.messages:
            assert [part.payload.tool_call_id for part in message.tool_results] == owed
            owed = [part.payload.tool_call_id for part in message.tool_calls]
        assert not owed


def check_folds(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.kind == "fold":
            fold: Any = entry.payload
            assert fold.reason in {"threshold", "cold", "turn_end", "overflow", "manual"}
            assert 0 < fold.tokens_after < fold.tokens_before


def check_explained(entries: list[Entry], requests: Sequence[ModelRequest], options: ContextOptions) -> None:
    """C-2: what was sent at a call can be shown again; all of it where nothing was hidden since."""
    if any(entry.kind in ("redaction", "purge") for entry in entries):
        return
    for number in sorted({1, (len(requests) + 1) // 2, len(requests)}) if requests else ():
        view = explain(entries, number, options=options)
        assert view.matches
        assert [wire(message) for message in view.messages] == [
            wire(message) for message in requests[number - 1].messages
        ]
