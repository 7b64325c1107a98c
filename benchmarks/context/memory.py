"""Exact-answer questions over long conversations: which answers survive a budget, and which can be found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from turnlog.context import ContextOptions, Vocabulary, extract_words, recall_search
from turnlog.contract import AgentError

from .sessions import LogWriter, call_of
from .strategies import ClearOldResults, Fold, Strategy, Summarise

BUDGETS = (0.10, 0.20, 0.35, 0.50)

Scenario: TypeAlias = dict[str, Any]
"""``turns`` are texts, ``questions`` have a ``question`` and the ``answers`` that are right."""

Shrink = Callable[[list[str], float], list[str]]
"""What is left of the turns of a conversation in a share of their bytes."""

Make = Callable[[int], "Strategy | None"]
"""A strategy whose requests have at most so many tokens."""


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


def fold_at(tokens: int) -> Fold:
    return Fold(ContextOptions(fold_at=tokens))


def summarise_at(tokens: int) -> Summarise:
    """Its summary takes a third of the budget, the newest turns as much, and the rest is room to grow."""
    return Summarise(tokens, summary_tokens=tokens // 3, tail_share=1 / 3)


def clear_at(tokens: int) -> ClearOldResults:
    return ClearOldResults(tokens, at_least=1)


def replayed(make: Make, *, as_results: bool = False) -> Shrink:
    """The whole way: a session whose strategy is asked at every turn, and what it would send at the end.

    Headings, and room to grow until it has to shorten again, come out of the same budget. A strategy that
    touches nothing but the results of tools is given the turns as such.
    """

    def shrink(turns: list[str], share: float) -> list[str]:
        strategy = make(budget(turns, share))
        if strategy is None:
            return turns
        _replay(strategy, turns, as_results=as_results)
        return [_plain(piece.wire) for piece in strategy.request()]

    return shrink


def _replay(strategy: Strategy, turns: list[str], *, as_results: bool = False) -> None:
    log = LogWriter()
    strategy.begin(0)
    for number, turn in enumerate(turns):
        strategy.starts_turn = not as_results
        if as_results:
            call_id = f"call-{number}"
            strategy.append(log.add(call_of(call_id)))
            strategy.append(log.add_result(call_id, "read_mail", turn, is_error=False))
        else:
            strategy.append(log.add_input(turn))
        strategy.prepare()
        strategy.request()


def _plain(wire: bytes) -> str:
    return wire.decode().replace("\\n", "\n").replace('\\"', '"')


def reachable(scenarios: list[Scenario], share: float) -> float:
    """The share of all questions one of whose answers is in view after the folds, or comes back when the
    question itself is searched for: one call of ``recall``."""
    asked = kept = 0
    for scenario in scenarios:
        strategy = fold_at(budget(scenario["turns"], share))
        _replay(strategy, scenario["turns"])
        view = "\n".join(message.text for message in strategy.context.projection.emit().messages)
        for question in scenario["questions"]:
            asked += 1
            text = f"{view}\n{_search(strategy, question['question'])}"
            kept += holds_answer(text, question)
    return kept / max(asked, 1)


def _search(strategy: Fold, query: str) -> str:
    context = strategy.context
    try:
        return recall_search(strategy.log.entries, query, size=context.page_size, skip=context.live_ids)
    except AgentError:
        return ""


def budget(turns: list[str], share: float) -> int:
    size = sum(len(turn.encode()) for turn in turns)
    return max(int(size * share / ContextOptions().bytes_per_token), 1)


SHRINKS: dict[str, Shrink] = {
    "first words of each turn": first_words,
    "sliding window": newest_turns,
    "summarise": replayed(summarise_at),
    "clear old results": replayed(clear_at, as_results=True),
    "turnlog, rare words": rare_words,
    "turnlog, whole folds": replayed(fold_at),
    "turnlog, turns as results": replayed(fold_at, as_results=True),
}


def read_scenarios(folder: Path) -> list[Scenario]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def retention(scenarios: list[Scenario], shrink: Shrink, share: float) -> float:
    """The share of all questions one of whose answers is still there, word for word."""
    asked = kept = 0
    for scenario in scenarios:
        text = "\n".join(shrink(scenario["turns"], share))
        asked += len(scenario["questions"])
        kept += sum(holds_answer(text, question) for question in scenario["questions"])
    return kept / max(asked, 1)


def holds_answer(text: str, question: dict[str, Any]) -> bool:
    text = text.lower()
    return any(
        re.search(rf"(?<!\w){re.escape(answer.lower())}(?!\w)", text) is not None
        for answer in question["answers"]
    )
