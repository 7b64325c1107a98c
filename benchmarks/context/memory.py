"""Exact-answer questions over long conversations: which answers survive a budget."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnlog.context import (
    ContextOptions,
    Projection,
    Vocabulary,
    extract_words,
    plan_fold,
    recall_search,
)
from turnlog.contract import AgentError, Entry, encode

from .sessions import LogWriter

BUDGETS = (0.10, 0.20, 0.35, 0.50)

Shrink = Callable[[list[str], float], list[str]]


def first_words(turns: list[str], share: float) -> list[str]:
    return [turn[: int(len(turn) * share)] for turn in turns]


def newest_turns(turns: list[str], share: float) -> list[str]:
    left = int(sum(map(len, turns)) * share)
    kept: list[str] = []
    for turn in reversed(turns):
        kept.insert(0, turn[max(len(turn) - left, 0) :])
        left -= len(turn)
        if left <= 0:
            break
    return kept


def rare_words(turns: list[str], share: float) -> list[str]:
    """Each turn cut when it is written, by what the log knew then."""
    vocabulary = Vocabulary()
    kept: list[str] = []
    for turn in turns:
        kept.append(extract_words(turn, vocabulary, int(len(turn) * share)))
        vocabulary.add(turn)
    return kept


def folded(turns: list[str], share: float) -> list[str]:
    """The whole way: a session folded whenever it outgrows the budget, as a model would be sent it at its
    end. Headings, and room to grow until the next fold, come out of the same budget."""
    projection, _ = _session(turns, share)
    return [encode(message.parts).decode() for message in projection.emit().messages]


def _session(turns: list[str], share: float) -> tuple[Projection, list[Entry]]:
    projection, log = Projection(_budget(turns, share)), LogWriter()
    entries: list[Entry] = []
    for turn in turns:
        entries.append(log.add_input(turn))
        projection.step(entries[-1])
        fold = plan_fold(projection)
        if fold is not None:
            entries.append(log.add(fold))
            projection.step(entries[-1])
    return projection, entries


def reachable(scenarios: list[dict[str, Any]], share: float) -> float:
    """The share of all questions one of whose answers is in view after the folds, or comes back when the
    question itself is searched for: one call of ``recall``."""
    asked = kept = 0
    for scenario in scenarios:
        projection, entries = _session(scenario["turns"], share)
        view = "\n".join(message.text for message in projection.emit().messages)
        skip = projection.live_ids()
        for question in scenario["questions"]:
            asked += 1
            text = f"{view}\n{_search(entries, question['question'], skip)}".lower()
            kept += any(_holds(text, answer.lower()) for answer in question["answers"])
    return kept / max(asked, 1)


def _search(entries: list[Entry], query: str, skip: set[str]) -> str:
    try:
        return recall_search(entries, query, skip=skip)
    except AgentError:
        return ""


def _budget(turns: list[str], share: float) -> ContextOptions:
    size = sum(len(turn.encode()) for turn in turns)
    return ContextOptions(fold_at=max(int(size * share / ContextOptions().bytes_per_token), 1))


SHRINKS: dict[str, Shrink] = {
    "first words of each turn": first_words,
    "sliding window": newest_turns,
    "turnlog, rare words": rare_words,
    "turnlog, whole folds": folded,
}


def read_scenarios(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def retention(scenarios: list[dict[str, Any]], shrink: Shrink, share: float) -> float:
    """The share of all questions one of whose answers is still there, word for word."""
    asked = kept = 0
    for scenario in scenarios:
        text = "\n".join(shrink(scenario["turns"], share)).lower()
        for question in scenario["questions"]:
            asked += 1
            kept += any(_holds(text, answer.lower()) for answer in question["answers"])
    return kept / max(asked, 1)


def _holds(text: str, answer: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
