"""What came of a suite: rates with their intervals, cost and time, and what changed since the last time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal
from xml.etree import ElementTree

from turnlog.contract import ErrorInfo, TokenUsage, Value

from ._checks import Verdict


class Trial(Value, frozen=True, kw_only=True):
    """One attempt at a case, as it is kept. ``error``: the run failed, or a check did, so that the attempt
    says nothing about the answer."""

    agent: str
    case: str
    number: int
    session_id: str
    status: Literal["passed", "failed", "error"]
    verdicts: list[Verdict] = []
    error: ErrorInfo | None = None
    usage: TokenUsage | None = None
    duration_ms: int = 0

    @property
    def reason(self) -> str:
        """Why it did not pass, in one line."""
        if self.error is not None:
            return f"{self.error.code}: {self.error.message}"
        found = [each for each in self.verdicts if not each.passed]
        return "; ".join(f"{each.check}: {each.reason or 'does not hold'}" for each in found)


class Rate(Value, frozen=True, kw_only=True):
    """How many passed, and between what the true share lies with a probability of 95 % (Wilson)."""

    passed: int
    of: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.passed / self.of if self.of else 0.0


def rate_of(trials: Sequence[Trial]) -> Rate:
    passed, n = sum(trial.status == "passed" for trial in trials), len(trials)
    if not n:
        return Rate(passed=0, of=0, low=0.0, high=1.0)
    z, share = 1.959964, passed / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Rate(passed=passed, of=n, low=max(0.0, middle - half), high=min(1.0, middle + half))


class Score(Value, frozen=True, kw_only=True):
    """One agent of a suite. ``usage`` counts the judges too; durations are those of the runs alone."""

    agent: str
    rate: Rate
    errors: int
    usage: TokenUsage | None
    median_ms: int
    slow_ms: int
    """Nine of ten runs took no longer."""


class Change(Value, frozen=True, kw_only=True):
    """A case whose rate is another than the last time."""

    agent: str
    case: str
    before: Rate
    now: Rate

    @property
    def is_worse(self) -> bool:
        return self.now.share < self.before.share


class Report(Value, frozen=True, kw_only=True):
    """What came of one run of a suite. ``stopped`` says why it has fewer trials than it should have.
    ``compared_to`` names the run before, with which the changes compare, the worst first."""

    suite: str
    run: str
    started_at: str
    cases: int
    repeat: int
    trials: list[Trial]
    scores: list[Score]
    changes: list[Change] = []
    compared_to: str | None = None
    stopped: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every trial was made, and passed."""
        return self.stopped is None and all(trial.status == "passed" for trial in self.trials)

    @property
    def regressions(self) -> list[Change]:
        return [change for change in self.changes if change.is_worse]

    @property
    def usage(self) -> TokenUsage | None:
        return add_up(score.usage for score in self.scores)

    def rate(self, agent: str, case: str) -> Rate:
        return rate_of([trial for trial in self.trials if (trial.agent, trial.case) == (agent, case)])

    def junit(self) -> str:
        """As the XML that CI systems read: a test suite for each agent, a test for each trial."""
        root = ElementTree.Element("testsuites", name=self.suite)
        for score in self.scores:
            mine = [trial for trial in self.trials if trial.agent == score.agent]
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=f"{self.suite}.{score.agent}",
                tests=str(len(mine)),
                failures=str(sum(trial.status == "failed" for trial in mine)),
                errors=str(score.errors),
                time=f"{sum(trial.duration_ms for trial in mine) / 1000:.3f}",
            )
            for trial in mine:
                name = trial.case if self.repeat == 1 else f"{trial.case} [{trial.number}]"
                case = ElementTree.SubElement(
                    suite,
                    "testcase",
                    classname=f"{self.suite}.{score.agent}",
                    name=_xml(name),
                    time=f"{trial.duration_ms / 1000:.3f}",
                )
                if trial.status != "passed":
                    kind = "failure" if trial.status == "failed" else "error"
                    told = ElementTree.SubElement(case, kind, message=_xml(trial.reason))
                    told.text = _xml(f"session {trial.session_id}")
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def make_report(
    suite: str,
    run: str,
    started_at: str,
    agents: Iterable[str],
    cases: int,
    repeat: int,
    trials: Sequence[Trial],
    before: tuple[str, Sequence[Trial]] | None,
    stopped: str | None,
) -> Report:
    return Report(
        suite=suite,
        run=run,
        started_at=started_at,
        cases=cases,
        repeat=repeat,
        trials=sorted(trials, key=lambda each: (each.agent, each.case, each.number)),
        scores=[_score(agent, [trial for trial in trials if trial.agent == agent]) for agent in agents],
        changes=_changes(trials, before[1]) if before is not None else [],
        compared_to=before[0] if before is not None else None,
        stopped=stopped,
    )


def _score(agent: str, trials: Sequence[Trial]) -> Score:
    spent = [each.usage for trial in trials for each in (trial, *trial.verdicts)]
    times = sorted(trial.duration_ms for trial in trials) or [0]
    return Score(
        agent=agent,
        rate=rate_of(trials),
        errors=sum(trial.status == "error" for trial in trials),
        usage=add_up(spent),
        median_ms=round(median(times)),
        slow_ms=times[min(len(times) - 1, math.ceil(0.9 * len(times)) - 1)],
    )


def _changes(now: Sequence[Trial], before: Sequence[Trial]) -> list[Change]:
    places = dict.fromkeys((trial.agent, trial.case) for trial in now)
    made: list[Change] = []
    for place in places:
        old = rate_of([trial for trial in before if (trial.agent, trial.case) == place])
        new = rate_of([trial for trial in now if (trial.agent, trial.case) == place])
        if old.of and old.share != new.share:
            made.append(Change(agent=place[0], case=place[1], before=old, now=new))
    return sorted(made, key=lambda each: each.now.share - each.before.share)


def add_up(usages: Iterable[TokenUsage | None]) -> TokenUsage | None:
    total: TokenUsage | None = None
    for usage in usages:
        if usage is not None:
            total = usage if total is None else total + usage
    return total


def _xml(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return "".join(
        c for c in text if c in "\t\n" or " " <= c < "\ud800" or "\ue000" <= c < "\ufffe" or c > "\uffff"
    )
