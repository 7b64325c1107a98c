"""What the design promises on recorded sessions, and that a turn costs what is new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from context.context_log import CLAUDE, Log, call
from slices import slice_of
from turnlog.context import ContextOptions, Projection

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.context import memory, svg
from benchmarks.context.made_up import converse
from benchmarks.context.measure import Needs, Result, both_needs, run
from benchmarks.context.prices import BUILT_IN, current_prices
from benchmarks.context.sessions import Recording, read_session
from benchmarks.context.strategies import Fold, Strategy, default


@pytest.fixture(scope="module")
def recording(shared_data: Path) -> Recording:
    return read_session(shared_data / "sessions" / "pi_before-compaction.jsonl")


@pytest.fixture(scope="module")
def needs(recording: Recording) -> list[Needs]:
    return both_needs(recording)


def measured(strategy: Strategy, recording: Recording, needs: list[Needs]) -> Result:
    return run(strategy, recording, needs, BUILT_IN)


@pytest.mark.spec("C-11")
def test_gates_at_74k(recording: Recording, needs: list[Needs]) -> None:
    """By what looks like a name, and by any word that few entries have held."""
    target = recording.calls[0].output.invocation
    ours = measured(Fold(ContextOptions(fold_at=74_000), target=target), recording, needs)
    assert ours.byte_reuse >= 0.97
    assert ours.recall["names"] >= 0.60
    assert ours.recall["rare words"] >= 0.60
    assert max(ours.sizes) <= 75_000


@pytest.mark.spec("C-11")
def test_gates_at_124k_and_cost_against_the_others(recording: Recording, needs: list[Needs]) -> None:
    target = recording.calls[0].output.invocation
    results = [measured(strategy, recording, needs) for strategy in default(target)]
    ours = results[-1]
    assert ours.strategy == "turnlog, fold at 124k"
    assert ours.recall["names"] >= 0.80
    assert ours.recall["rare words"] >= 0.80
    for need in ours.recall:
        for provider in ours.costs:
            equal = [result.costs[provider] for result in results if result.recall[need] >= ours.recall[need]]
            assert ours.costs[provider] <= 1.1 * min(equal)


@pytest.mark.spec("C-11")
def test_answers_that_survive_a_fifth_of_the_text(shared_data: Path) -> None:
    scenarios = memory.read_scenarios(shared_data / "memory_questions")
    kept = {name: memory.retention(scenarios, shrink, 0.2) for name, shrink in memory.SHRINKS.items()}
    ours = [name for name in kept if name.startswith("turnlog")]
    assert len(ours) == 3
    assert min(kept[name] for name in ours) >= 0.60
    assert max(kept[name] for name in kept if name not in ours) < 0.45


@pytest.mark.spec("C-11")
def test_answers_survive_wherever_a_conversation_is_left_and_whichever_half_is_asked(
    shared_data: Path,
) -> None:
    """How much is in view depends on how long ago the last fold was; the gate holds over all of that."""
    scenarios = memory.read_scenarios(shared_data / "memory_questions")
    begun = [_until(one, share) for one in scenarios for share in (0.55, 0.65, 0.75, 0.85, 0.95)]
    for half in (0, 1):
        asked = [{**one, "questions": one["questions"][half::2]} for one in begun]
        assert memory.retention(asked, memory.SHRINKS["turnlog, whole folds"], 0.2) >= 0.60


def _until(scenario: memory.Scenario, share: float) -> memory.Scenario:
    """The beginning of a conversation, with the questions that it answers."""
    turns = scenario["turns"][: int(len(scenario["turns"]) * share)]
    text = "\n".join(turns)
    return {
        "turns": turns,
        "questions": [one for one in scenario["questions"] if memory.holds_answer(text, one)],
    }


@pytest.mark.spec("C-11", "C-12")
def test_answers_survive_in_conversations_that_nothing_was_tuned_on() -> None:
    first = 1_000 + 3 * slice_of(100)
    scenarios = [converse(seed) for seed in range(first, first + 3)]
    assert memory.retention(scenarios, memory.SHRINKS["turnlog, whole folds"], 0.2) >= 0.80
    assert memory.reachable(scenarios, 0.2) >= 0.95


def test_prices_and_plots_need_nothing_else() -> None:
    assert [price.label for price in current_prices()] == [price.label for price in BUILT_IN]
    chart = svg.bars("a <title>", "share", ["x"], [("one", [0.5]), ("two", [0.25])])
    assert "a &lt;title&gt;" in chart
    assert svg.lines("t", "x", "y", [("one", [(0, 0), (10, 5)])]).endswith("</svg>\n")
    assert "circle" in svg.scatter("t", "x", "y", [("one", 3.0, 0.5)])


def _work(projection: Projection, entry: Any) -> int:
    """How many calls a step and an emit make, of Python and of C."""
    count = 0

    def seen(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(seen)
    try:
        projection.step(entry)
        projection.emit(CLAUDE)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.spec("C-8")
def test_a_turn_costs_what_is_new() -> None:
    costs: list[int] = []
    for rounds in (10, 1_000):
        log = Log()
        for n in range(rounds):
            log.user(f"step {n}")
            log.output(call(f"c{n}"))
            log.results(**{f"c{n}": "done"})
        projection = Projection.of(log.entries)
        projection.emit(CLAUDE)
        costs.append(_work(projection, log.user("one more")))
    assert costs[0] == costs[1]
