"""What must hold of a session after anything: crashes, faults, aborts, several writers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnlog.context import ContextOptions
from turnlog.contract import (
    CompactionSummaryEntry,
    Entry,
    FoldEntry,
    ModelCallStarted,
    ModelCallStartedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    PurgeEntry,
    RedactionEntry,
    RunEndedEntry,
    RunStartedEntry,
    RuntimeInitEntry,
    Store,
    SystemPromptEntry,
    Tail,
    ToolResultsEntry,
    ToolsChangeEntry,
    ToolStartedEntry,
)
from turnlog.history import verify
from turnlog.loop import replay_entries
from turnlog.widgets import Widget

_BREAKS = (
    CompactionSummaryEntry,
    FoldEntry,
    ModelInputEntry,
    PurgeEntry,
    RedactionEntry,
    RuntimeInitEntry,
    SystemPromptEntry,
    ToolResultsEntry,
    ToolsChangeEntry,
)
"""What may make the context of a repeated call differ from that of the call it repeats."""


@dataclass(frozen=True, kw_only=True)
class OutsideRecord:
    """What was seen outside of the log, by something that no crash of the agent can touch.

    ``effects`` counts how often the body of a call ran, by idempotency key; ``watched`` names the tools whose
    bodies are counted, ``rerunnable`` those that may run more than once. ``acknowledged`` holds where the log
    ended when an append returned, ``told`` the ids of entries that a watcher heard of.
    """

    effects: Mapping[str, int] = field(default_factory=dict[str, int])
    watched: Collection[str] = ()
    rerunnable: Collection[str] = ()
    acknowledged: Iterable[Tail] = ()
    told: Iterable[str] = ()


async def check_session(
    store: Store,
    session_id: str,
    *,
    outside: OutsideRecord | None = None,
    settled: bool = True,
    replayed: bool = True,
    options: ContextOptions | None = None,
    widgets: Sequence[Widget[Any]] | None = None,
) -> None:
    """Raise ``AssertionError`` naming everything that is wrong with the log of ``session_id``.

    Checks: the log verifies (chain, order, pairing, bytes it names), ``seq`` has no gap, every run has ended
    and every call has one result (unless ``settled`` is False), a repeated model call had the same context,
    a replay is identical (unless ``replayed`` is False: what a purge erased can be replayed no more); and
    against ``outside``: nothing acknowledged or shown is missing, nothing ran without being in the log first,
    and nothing ran twice that may not.
    """
    problems = await find_problems(
        store,
        session_id,
        outside=outside,
        settled=settled,
        replayed=replayed,
        options=options,
        widgets=widgets,
    )
    if problems:
        raise AssertionError(f"session {session_id}:\n" + "\n".join(problems))


async def find_problems(
    store: Store,
    session_id: str,
    *,
    outside: OutsideRecord | None = None,
    settled: bool = True,
    replayed: bool = True,
    options: ContextOptions | None = None,
    widgets: Sequence[Widget[Any]] | None = None,
) -> list[str]:
    problems = [f"verify: {problem.message}" for problem in await verify(store, session_id)]
    entries = await store.load(session_id)
    problems += log_problems(entries, settled=settled)
    if outside is not None:
        problems += _outside_problems(entries, outside)
    if not replayed:
        return problems
    shown = {} if widgets is None else {"widgets": widgets}
    report = await replay_entries(entries, session_id, options=options, **shown)
    if not report.identical:
        problems.append(f"replay: entry {report.seq} ({report.kind}) differs:\n{report.difference}")
    elif report.open_run and settled:
        problems.append("replay: the run is still open")
    return problems


def log_problems(entries: Sequence[Entry], *, settled: bool = True) -> list[str]:
    """What is wrong with these entries, from them alone."""
    problems: list[str] = []
    if [entry.seq for entry in entries] != list(range(1, len(entries) + 1)):
        problems.append(f"seq has gaps: {[entry.seq for entry in entries]}")
    if len({entry.id for entry in entries}) != len(entries):
        problems.append("an entry id is used twice")
    results: Counter[str] = Counter()
    calls: list[str] = []
    run: str | None = None
    for entry in entries:
        match entry:
            case RunStartedEntry():
                if run is not None:
                    problems.append(f"entry {entry.seq}: {entry.run_id} starts inside {run}")
                run = entry.run_id
            case RunEndedEntry():
                if run is None or run != entry.run_id:
                    problems.append(f"entry {entry.seq}: {entry.run_id} ends, open is {run}")
                run = None
                problems += _unanswered(calls, results, f"entry {entry.seq}: the run ends, but")
            case ModelOutputEntry():
                problems += _unanswered(calls, results, f"entry {entry.seq}: the model answers, but")
                calls = [part.payload.tool_call_id for part in entry.payload.message.tool_calls]
            case ToolResultsEntry():
                for outcome in entry.payload.outcomes:
                    results[outcome.tool_call_id] += 1
            case _:
                pass
    problems += [f"{call} has {count} results" for call, count in results.items() if count > 1]
    if settled:
        problems += _unanswered(calls, results, "at the end")
        if run is not None:
            problems.append(f"{run} has not ended")
    return problems + _context_problems(entries)


def _unanswered(calls: Sequence[str], results: Counter[str], when: str) -> list[str]:
    return [f"{when} {call} has no result" for call in calls if not results[call]]


def _context_problems(entries: Sequence[Entry]) -> list[str]:
    problems: list[str] = []
    before: ModelCallStarted | None = None
    for entry in entries:
        if isinstance(entry, ModelCallStartedEntry):
            now = entry.payload
            if (
                before is not None
                and now.model_call_index == before.model_call_index
                and now.target == before.target
                and now.context_hash != before.context_hash
            ):
                problems.append(
                    f"entry {entry.seq}: call {now.model_call_index} was repeated with another context"
                )
            before = now
        elif isinstance(entry, (*_BREAKS, RunStartedEntry)):
            before = None
    return problems


def _outside_problems(entries: Sequence[Entry], outside: OutsideRecord) -> list[str]:
    problems: list[str] = []
    for tail in outside.acknowledged:
        found = entries[tail.seq - 1] if tail.seq <= len(entries) else None
        if found is None or (found.id, found.hash) != (tail.id, tail.hash):
            problems.append(f"entry {tail.seq} ({tail.id}) was acknowledged and is not in the log")
    ids = {entry.id for entry in entries}
    problems += [f"entry {id} was shown and is not in the log" for id in outside.told if id not in ids]
    return problems + _effect_problems(entries, outside)


def _effect_problems(entries: Sequence[Entry], outside: OutsideRecord) -> list[str]:
    problems: list[str] = []
    keys: dict[str, str] = {}
    tools: dict[str, str] = {}
    status: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, ToolStartedEntry):
            keys[entry.payload.tool_call_id] = entry.payload.idempotency_key
            tools[entry.payload.idempotency_key] = entry.payload.tool_name
        elif isinstance(entry, ToolResultsEntry):
            status.update((outcome.tool_call_id, outcome.status) for outcome in entry.payload.outcomes)
    for key, count in outside.effects.items():
        name = tools.get(key)
        if name is None:
            problems.append(f"a call with key {key} ran {count} times and its start is not in the log")
        elif count > 1 and name not in outside.rerunnable:
            problems.append(f"{name} with key {key} ran {count} times")
    for call, said in status.items():
        ran = outside.effects.get(keys.get(call, ""), 0)
        if said == "success" and not ran and tools.get(keys.get(call, "")) in outside.watched:
            problems.append(f"{call} is said to have succeeded and never ran")
        if said == "denied" and ran:
            problems.append(f"{call} was denied and ran")
    return problems
