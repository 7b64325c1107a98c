"""G. Golden traces: each a file that is replayed, byte for byte, and tells the story of its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnlog.contract import Entry
from turnlog.loop import replay_entries
from turnlog.testing import read_trace

FOLDER = Path(__file__).parents[1] / "golden" / "traces"
Story = Callable[[list[Entry]], bool]


def kinds(log: list[Entry]) -> list[str]:
    return [entry.kind for entry in log]


def payloads(log: list[Entry], kind: str) -> list[Any]:
    return [entry.payload for entry in log if entry.kind == kind]


def statuses(log: list[Entry]) -> list[str]:
    return [outcome.status for results in payloads(log, "tool_results") for outcome in results.outcomes]


def calls_per_answer(log: list[Entry]) -> list[int]:
    return [len(output.message.tool_calls) for output in payloads(log, "model_output")]


def decisions(log: list[Entry]) -> list[str]:
    return [decided.action for decided in payloads(log, "approval_decided")]


def endings(log: list[Entry]) -> list[str]:
    return [ended.status for ended in payloads(log, "run_ended")]


def ending(log: list[Entry]) -> str:
    return endings(log)[-1]


def started_twice(log: list[Entry]) -> bool:
    """The process died in a call that was safe to make again, under the same key."""
    first, second, *_ = payloads(log, "tool_started")
    return (first.idempotency_key, first.attempt, second.attempt) == (second.idempotency_key, 1, 2)


def starts_before_a_result(log: list[Entry]) -> int:
    found = kinds(log)
    return found[: found.index("tool_results")].count("tool_started")


def answers_by(log: list[Entry]) -> set[str]:
    return {output.invocation.model for output in payloads(log, "model_output")}


def notes_stay(log: list[Entry]) -> bool:
    [fold] = payloads(log, "fold")[:1]
    return "widget_event" in kinds(log) and fold.screen is not None and "Notebook" in fold.screen


STORIES: dict[str, Story] = {
    "G-1": lambda log: "tool_started" not in kinds(log) and ending(log) == "completed",
    "G-2": lambda log: statuses(log) == ["success"] and ending(log) == "completed",
    "G-3": lambda log: len(statuses(log)) > 1 and starts_before_a_result(log) == 1,
    "G-4": lambda log: len(statuses(log)) > 1 and starts_before_a_result(log) > 1,
    "G-5": lambda log: "failed" in statuses(log) and ending(log) == "completed",
    "G-6": lambda log: decisions(log) == ["approve"] and statuses(log) == ["success"],
    "G-7": lambda log: decisions(log) == ["deny"] and statuses(log) == ["denied"],
    "G-8": lambda log: decisions(log) == ["modify"] and statuses(log) == ["success"],
    "G-9": lambda log: (
        payloads(log, "model_call_failed")[0].error.code == "ModelContextOverflow"
        and "fold" in kinds(log)
        and ending(log) == "completed"
    ),
    "G-10": lambda log: payloads(log, "model_call_failed")[0].shown > 0 and endings(log)[0] == "aborted",
    "G-11": lambda log: "skipped" in statuses(log) and endings(log)[0] == "aborted",
    "G-12": lambda log: started_twice(log) and ending(log) == "completed",
    "G-13": lambda log: len(answers_by(log)) == 2,
    "G-14": notes_stay,
    "G-15": lambda log: (
        payloads(log, "model_call_started")[0].target.model == "first-1" and answers_by(log) == {"second-1"}
    ),
    "G-16": lambda log: (
        [given.source for given in payloads(log, "model_input")].count("correction") == 1
        and payloads(log, "run_started")[0].output_schema is not None
        and ending(log) == "completed"
    ),
    "G-17": lambda log: "branch_summary" in kinds(log),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.spec(name)) for name in STORIES])
async def test_a_golden_trace_is_its_story_and_replays_to_the_byte(name: str) -> None:
    [path] = FOLDER.glob(f"{name.lower()}_*.jsonl")
    log = read_trace(path)
    assert STORIES[name](log), kinds(log)
    report = await replay_entries(log, log[-1].session_id)
    assert report.identical, report.difference
    assert report.entries == len(log)
