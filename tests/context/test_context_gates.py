"""What the design promises on recorded sessions, and that a turn costs what is new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from context.context_log import CLAUDE, Log, call
from turnlog.context import Projection

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.context import memory, svg
from benchmarks.context.measure import Needs, Result, run
from benchmarks.context.prices import BUILT_IN, current_prices
from benchmarks.context.sessions import Recording, read_session
from benchmarks.context.strategies import Fold, Strategy, default


@pytest.fixture(scope="module")
def recording(shared_data: Path) -> Recording:
    return read_session(shared_data / "sessions" / "pi_before-compaction.jsonl")


@pytest.fixture(scope="module")
def needs(recording: Recording) -> Needs:
    return Needs(recording)


def measured(strategy: Strategy, recording: Recording, needs: Needs) -> Result:
    return run(strategy, recording, needs, BUILT_IN)


@pytest.mark.spec("C-11")
def test_gates_at_74k(recording: Recording, needs: Needs) -> None:
    ours = measured(Fold(74_000), recording, needs)
    assert ours.byte_reuse >= 0.97
    assert ours.recall >= 0.60
    assert max(ours.sizes) <= 75_000


@pytest.mark.spec("C-11")
def test_gates_at_124k_and_cost_against_the_others(recording: Recording, needs: Needs) -> None:
    results = [measured(strategy, recording, needs) for strategy in default()]
    ours = results[-1]
    assert ours.strategy == "turnlog, fold at 124k"
    assert ours.recall >= 0.80
    for provider in ours.costs:
        best = min(result.costs[provider] for result in results if result.recall >= ours.recall)
        assert ours.costs[provider] <= 1.1 * best


@pytest.mark.spec("C-11")
def test_answers_that_survive_a_fifth_of_the_text(shared_data: Path) -> None:
    scenarios = memory.read_scenarios(shared_data / "memory_questions")
    kept = {name: memory.retention(scenarios, shrink, 0.2) for name, shrink in memory.SHRINKS.items()}
    assert kept["turnlog, rare words"] >= 0.60
    assert kept["turnlog, whole folds"] >= 0.60
    assert max(kept, key=lambda name: kept[name]) == "turnlog, rare words"


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
