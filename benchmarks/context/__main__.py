"""Prints the tables and writes the plots."""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from turnlog.context import Projection, input_sections, result_sections
from turnlog.contract import Entry, ModelInputEntry, ToolResultsEntry, decode, encode

from . import memory, svg
from .made_up import converse
from .measure import NAMES, Result, both_needs, run
from .prices import Price, current_prices
from .sessions import Recording, read_session
from .strategies import Fold, Strategy, Summarise, default

_ROOT = Path(__file__).resolve().parents[2]
_PAUSE, _EVERY = 3_600, 5
_MADE_UP = 4


def main(arguments: Sequence[str] | None = None) -> None:
    shared = Path(os.environ.get("TURNLOG_SHARED") or _ROOT.parent / "shared") / "data"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.context", description=__doc__)
    parser.add_argument("sessions", nargs="*", type=Path, help="session files; default: the recorded ones")
    parser.add_argument(
        "--data", type=Path, default=shared, help="folder with sessions/ and memory_questions/"
    )
    parser.add_argument(
        "--strategy",
        action="append",
        default=[],
        type=load_strategy,
        metavar="MODULE:CLASS",
        help="one more strategy, a subclass of benchmarks.context.strategies.Strategy in a module or in a "
        "file (path/to/mine.py:Mine); may be repeated",
    )
    parser.add_argument("--plots", type=Path, default=None, help="folder to write SVG plots to")
    options = parser.parse_args(arguments)
    files = options.sessions or sorted((options.data / "sessions").glob("*.jsonl"))
    if not files:
        print(f"no sessions in {options.data}; name session files, or set TURNLOG_SHARED")
    for file in files:
        report_session(read_session(file), options.plots, options.strategy)
    questions = options.data / "memory_questions"
    if questions.is_dir():
        report_memory("recorded", memory.read_scenarios(questions), options.plots, options.strategy)
    report_memory("made-up", [converse(seed) for seed in range(_MADE_UP)], None, options.strategy)


def load_strategy(name: str) -> type[Strategy]:
    """The class that ``module:Class`` or ``file.py:Class`` names."""
    module, _, attribute = name.rpartition(":")
    try:
        if module.endswith(".py"):
            found = runpy.run_path(module)[attribute]
        else:
            found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, KeyError, OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot load {name!r}: {error}; write module:Class") from None
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise argparse.ArgumentTypeError(f"{name!r} is no subclass of benchmarks.context.strategies.Strategy")
    return found


def report_session(recording: Recording, plots: Path | None, others: Sequence[type[Strategy]] = ()) -> None:
    if not recording.calls:
        print(f"\n{recording.name}: no model calls")
        return
    prices, needs = current_prices(), both_needs(recording)
    target = recording.calls[0].output.invocation
    results = [run(strategy, recording, needs, prices) for strategy in [*default(target), *_made(others)]]
    print(f"\n{recording.name}: {len(recording.entries)} entries, {len(recording.calls)} model calls")
    print(f"head: {recording.head:,} tokens of system prompt and tools, sent and paid for at every call")
    print("needed, and last seen 30 or more entries before: ", end="")
    print(", ".join(f"{count} {title}" for title, count in results[0].needed.items()))
    print("(names: what looks like one; rare words: any word that at most 8 entries have held so far)\n")
    _print_table(results, prices)
    paused = recording.with_pauses(_PAUSE, _EVERY)
    shown = [Summarise(74_000), Summarise(124_000), *_folds(default(target)), *_made(others)]
    cold = [run(strategy, paused, needs, prices) for strategy in shown]
    print(f"\nthe same, left alone for an hour before every {_EVERY}th turn: caches have expired")
    _print_table(cold, prices)
    models = ", ".join(f"{price.label} {price.model}" for price in prices)
    print(f"dollars for the whole session at cache prices of {models}; tokens is the mean of a request")
    report_speed(recording)
    if plots is not None:
        _plot(recording, results, prices[0], plots)


def _made(others: Sequence[type[Strategy]]) -> list[Strategy]:
    return [make() for make in others]


def _folds(strategies: Sequence[Strategy]) -> list[Strategy]:
    return [strategy for strategy in strategies if isinstance(strategy, Fold)]


def _print_table(results: list[Result], prices: list[Price]) -> None:
    costs = "".join(f"{price.label:>11}" for price in prices)
    recalls = "".join(f"{title:>12}" for title in results[0].recall)
    print(f"{'strategy':<28}{costs}{'breaks':>8}{'reuse':>8}{recalls}{'tokens':>9}{'CPU ms':>8}")
    for result in results:
        costs = "".join(f"{result.costs[price.label]:>11.2f}" for price in prices)
        recalls = "".join(f"{share:>12.1%}" for share in result.recall.values())
        print(
            f"{result.strategy:<28}{costs}{result.breaks:>8}{result.byte_reuse:>8.1%}{recalls}"
            f"{result.mean_tokens:>9,}{result.seconds * 1000:>8.0f}"
        )


def report_speed(recording: Recording) -> None:
    """What an append and a projection from nothing take."""
    projection = Projection()
    times: list[int] = []
    for entry in recording.entries:
        started = time.perf_counter_ns()
        _make_grains(projection, entry)
        projection.step(entry)
        times.append(time.perf_counter_ns() - started)
    times.sort()
    print(
        f"\nappend step with grains: p50 {times[len(times) // 2] / 1000:.1f} µs, "
        f"p90 {times[len(times) * 9 // 10] / 1000:.0f} µs, mean {statistics.mean(times) / 1000:.0f} µs"
    )
    bodies = [encode(entry) for entry in recording.entries]
    started = time.process_time()
    entries: list[Entry] = [decode(body, Entry) for body in bodies]
    decoded = time.process_time()
    Projection.of(entries).emit()
    done = time.process_time()
    print(
        f"from nothing: {len(entries)} entries, {sum(map(len, bodies)) / 1e6:.1f} MB: decoding "
        f"{(decoded - started) * 1000:.0f} ms, projecting {(done - decoded) * 1000:.0f} ms"
    )


def _make_grains(projection: Projection, entry: Entry) -> None:
    if isinstance(entry, ModelInputEntry):
        input_sections(projection, entry.payload.message)
    elif isinstance(entry, ToolResultsEntry):
        for part in entry.payload.message.tool_results:
            result_sections(projection, part.payload.content)


def report_memory(
    what: str, scenarios: list[memory.Scenario], plots: Path | None, others: Sequence[type[Strategy]] = ()
) -> None:
    asked = sum(len(scenario["questions"]) for scenario in scenarios)
    print(f"\nanswers retained, of {asked} exact-answer questions ({what}), by share of the text kept")
    print(f"{'':<28}" + "".join(f"{budget:>8.0%}" for budget in memory.BUDGETS))
    shrinks = dict(memory.SHRINKS)
    for make in others:
        if make.of_budget(1_000) is not None:
            shrinks[make.name or make.__name__] = memory.replayed(make.of_budget)
    rows = [
        (name, [memory.retention(scenarios, shrink, budget) for budget in memory.BUDGETS])
        for name, shrink in shrinks.items()
    ]
    found = [memory.reachable(scenarios, budget) for budget in memory.BUDGETS]
    rows.append(("turnlog, folds and recall", found))
    for name, kept in rows:
        print(f"{name:<28}" + "".join(f"{share:>8.1%}" for share in kept))
    if plots is not None:
        groups = [f"{budget:.0%} kept" for budget in memory.BUDGETS]
        _write(
            plots / "context-memory.svg", svg.bars("Answers that survive a budget", "answers", groups, rows)
        )


def _plot(recording: Recording, results: list[Result], price: Price, plots: Path) -> None:
    dots = [(result.strategy, result.costs[price.label], result.recall[NAMES.title]) for result in results]
    title = f"Cost of {len(recording.calls)} calls ({price.model}) and what is still visible"
    _write(plots / "context-cost.svg", svg.scatter(title, "dollars", "needed identifiers visible", dots))
    series = [
        (result.strategy, [(float(call), size / 1000) for call, size in enumerate(result.sizes)][::3])
        for result in results
    ]
    _write(
        plots / "context-size.svg", svg.lines("Size of each request", "model call", "thousand tokens", series)
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path}")


if __name__ == "__main__":
    main()
