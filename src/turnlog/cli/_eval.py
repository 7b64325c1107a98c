"""``eval``: try a suite of cases and report, or make a session a case of one."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from turnlog.evals import Case, Rate, Report, Suite, add_case, read_cases
from turnlog.loop import Agent

from ._agent import agent_options, load_object, make_agent
from ._app import FAILED, INTERRUPTED, check_session, count, err, out, span, with_store, write_json
from ._text import plain, safe, short

_MOST = 20
"""Cases that are named one by one."""


@click.command("eval")
@click.argument("suite", metavar="SUITE")
@agent_options
@click.option(
    "--against",
    "-b",
    multiple=True,
    metavar="MODEL",
    help="Try another model too, beside -m; can be repeated.",
)
@click.option("--add", metavar="SESSION", callback=check_session, help="Make this session a case of SUITE.")
@click.option("--entry", type=click.IntRange(1), metavar="N", help="With --add: the entry with the question.")
@click.option("--name", metavar="NAME", help="With --add: the name of the case.")
@click.option("--case", "-k", "pattern", metavar="TEXT", help="Only cases whose name has TEXT in it.")
@click.option("--repeat", "-n", type=click.IntRange(1), metavar="N", help="How often each case is tried.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=8, metavar="N", help="How many at a time; default 8."
)
@click.option(
    "--max-cost", type=click.FloatRange(0), metavar="DOLLARS", help="Begin nothing once so much is spent."
)
@click.option("--judge", metavar="MODEL", help="The model of the judges that name none.")
@click.option(
    "--require", type=click.FloatRange(0, 1), metavar="SHARE", help="How many must pass; default 1, all."
)
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write a JUnit report for CI.")
@click.option("--fresh", is_flag=True, help="Begin anew, also where a run was stopped in the middle.")
def eval_command(
    suite: str,
    against: tuple[str, ...],
    add: str | None,
    entry: int | None,
    name: str | None,
    pattern: str | None,
    repeat: int | None,
    concurrency: int,
    max_cost: float | None,
    judge: str | None,
    require: float | None,
    junit: str | None,
    fresh: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Try the cases of SUITE and report what passed, what it cost, and what changed since the last time.

    SUITE is MODULE:NAME or FILE.py:NAME of a turnlog.evals.Suite (without a name it is suite), or a file of
    cases, a JSON line each, which the agent of the other options tries. A run that was stopped continues
    where it was. Exit codes: 0 passed, 1 not, 130 stopped.
    """
    if add is not None:
        _add(suite, add, entry, name, options["store_url"])
        return
    if entry is not None or name is not None:
        raise click.UsageError("--entry and --name belong to --add")
    loaded = _load(suite, against, judge, options)
    if repeat is not None:
        loaded.repeat = repeat

    async def work() -> Report:
        try:
            return await loaded.run(
                concurrency=concurrency,
                max_cost=max_cost,
                fresh=fresh,
                progress=False if as_json else None,
                cases=None if pattern is None else partial(_has, pattern),
            )
        finally:
            for agent in loaded.agents.values():
                await agent.close()

    try:
        report = asyncio.run(work())
    except KeyboardInterrupt:
        err.print("stopped; the same command continues, and asks nothing again that is done")
        sys.exit(INTERRUPTED)
    if junit is not None:
        Path(junit).write_text(report.junit(), "utf-8")
    if as_json:
        write_json(report)
    else:
        _show(report)
    if report.stopped is not None:
        sys.exit(FAILED)
    sys.exit(
        0
        if all(score.rate.share >= (1 if require is None else require) for score in report.scores)
        else FAILED
    )


def _has(pattern: str, case: Case) -> bool:
    return pattern.casefold() in case.name.casefold()


def _add(suite: str, session: str, entry: int | None, name: str | None, store_url: str | None) -> None:
    if not suite.endswith((".jsonl", ".json")):
        raise click.BadParameter("a session is added to a file of cases, FILE.jsonl", param_hint="SUITE")
    case = with_store(store_url, lambda store: add_case(suite, store, session, entry=entry, name=name))
    out.print(f"{safe(case.name)}: entry {case.entry} of {safe(session)} is a case of {safe(suite)} now")
    out.print("[dim]its checks ask for the same tools; edit the line to ask for more[/]")


def _load(suite: str, against: tuple[str, ...], judge: str | None, options: dict[str, Any]) -> Suite:
    if not suite.endswith((".jsonl", ".json")):
        if (
            against
            or judge
            or any(options[name] for name in ("agent_name", "model", "instructions", "tool_modules"))
        ):
            raise click.UsageError(
                "a suite has its agents and judge; options that make one are for a file of cases"
            )
        return load_object(suite, Suite, "suite", "SUITE")
    cases = read_cases(suite)
    agents: dict[str, Agent[Any]] = {}
    if options["agent_name"] is not None and against:
        raise click.UsageError("--against goes with -m; an agent that is loaded has its model")
    for model in (options["model"], *against):
        key = options["agent_name"] or model or "local"
        if key in agents:
            raise click.UsageError(f"{key} is named twice; compare a model with another one")
        chosen: dict[str, Any] = {**options, "model": model}
        agents[key] = make_agent(**chosen)
    return Suite(Path(suite).stem.replace(":", " "), agents=agents, cases=cases, judge=judge)


def _show(report: Report) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in (
        "agent",
        "passed",
        "95 % interval",
        "errors",
        "tokens",
        "cost",
        "median",
        "9 of 10 within",
    ):
        table.add_column(column, justify="left" if column == "agent" else "right")
    for score in report.scores:
        usage = score.usage
        cost = "" if usage is None or usage.cost is None else f"${usage.cost:.4f}"
        table.add_row(
            safe(score.agent),
            _rate(score.rate),
            f"{score.rate.low:.0%} to {score.rate.high:.0%}",
            str(score.errors or ""),
            "" if usage is None else f"{usage.total_tokens:,}",
            cost,
            span(score.median_ms),
            span(score.slow_ms),
        )
    out.print(table)
    if report.changes:
        out.print(f"\nsince {report.compared_to}:")
        for change in report.changes[:_MOST]:
            word, colour = ("worse", "red") if change.is_worse else ("better", "green")
            moved = f"{_rate(change.before)} → {_rate(change.now)}"
            out.print(f"  [{colour}]{word}[/] {safe(change.agent)} {safe(change.case)}: {moved}")
        _rest(len(report.changes))
    elif report.compared_to is not None:
        out.print(f"\n[dim]no case changed since {report.compared_to}[/]")
    failed = [trial for trial in report.trials if trial.status != "passed"]
    if failed:
        out.print("\nnot passed:")
        for trial in failed[:_MOST]:
            place = f"{trial.agent} {trial.case}" + (f" [{trial.number}]" if report.repeat > 1 else "")
            out.print(f"  [bold]{safe(place)}[/]: {short(trial.reason, 300)}")
            out.print(plain(f"    turnlog show {trial.session_id!r}"), markup=False, style="dim")
        _rest(len(failed))
    if report.stopped is not None:
        missing = len(report.scores) * report.cases * report.repeat - len(report.trials)
        err.print(f"[yellow]stopped[/]: {safe(report.stopped)}; {count(missing, 'attempt')} not made")


def _rate(rate: Rate) -> str:
    return f"{rate.passed}/{rate.of}"


def _rest(number: int) -> None:
    if number > _MOST:
        out.print(f"  [dim]and {number - _MOST} more; --json has all[/]")
