"""For pytest: the fixture ``recorded``, a model that is asked once and answers from a file ever after, and
suites of ``turnlog.evals`` as tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from turnlog.evals import Case, Report, Suite
    from turnlog.models import Model


class Recorded(Protocol):
    """``recorded("ritz.jsonl", model="anthropic:…")``: the model of a test, recorded in a file beside it."""

    def __call__(self, path: str | Path, model: Model[Any] | str | None = None) -> Model[Any]: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("turnlog").addoption(
        "--turnlog-record",
        nargs="?",
        const="new",
        choices=["new", "all"],
        help="Ask the models of recorded tests, and write down what they answer: for tests without a "
        "recording (new, the default), or for all of them.",
    )


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    """A function that gives the test its model. Paths are relative to the test's file.

    Without ``--turnlog-record`` the model answers from the recording, and the test fails, with the
    difference, when it is asked something else than before. With it the model itself is asked where there is
    no recording yet, and the recording is written when the test has passed.
    """
    from turnlog.testing import RecordedModel, RecordingModel

    mode: Literal["new", "all"] | None = request.config.getoption("--turnlog-record")
    replaying: list[RecordedModel] = []
    recording: list[tuple[RecordingModel, Path]] = []

    def give(path: str | Path, model: Model[Any] | str | None = None) -> Model[Any]:
        file = request.path.parent / path
        if mode == "all" or (mode == "new" and not file.exists()):
            recorder = RecordingModel(_load(model, file))
            recording.append((recorder, file))
            return recorder
        if not file.exists():
            pytest.fail(
                f"there is no recording {file}; run this test once with --turnlog-record", pytrace=False
            )
        replayed = RecordedModel.from_log(file)
        replaying.append(replayed)
        return replayed

    failed = request.session.testsfailed
    yield give
    for recorder, file in recording:
        if request.session.testsfailed == failed:
            recorder.save(file)
        with suppress(Exception):
            asyncio.run(recorder.close())
    for replayed in replaying:
        if replayed.mismatches:
            pytest.fail(replayed.mismatches[0], pytrace=False)


def _load(model: Model[Any] | str | None, file: Path) -> Model[Any]:
    from turnlog.models import load_model

    if model is None:
        pytest.fail(
            f"a model is needed to record {file.name}: recorded({file.name!r}, model='anthropic:…')",
            pytrace=False,
        )
    return load_model(model) if isinstance(model, str) else model


# ── suites ──


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> pytest.Collector | None:
    """A ``Suite`` in a test file is a group of tests: one for each agent and case."""
    evals = sys.modules.get("turnlog.evals")  # a file with a suite has imported it
    if evals is None or not isinstance(obj, evals.Suite):
        return None
    return _Cases.from_parent(collector, name=name, suite=obj)  # pyright: ignore[reportUnknownMemberType]


class _Cases(pytest.Collector):
    """The tests of a suite. The first of them that runs tries all the cases that are chosen, side by side."""

    def __init__(self, *, suite: Suite, **rest: Any) -> None:
        super().__init__(**rest)
        self.suite = suite
        self._report: Report | None = None

    def collect(self) -> Iterator[pytest.Item]:
        for agent in self.suite.agents:
            for case in self.suite.cases:
                name = case.name if len(self.suite.agents) == 1 else f"{agent}-{case.name}"
                yield _Trials.from_parent(self, name=name, agent=agent, case=case)  # pyright: ignore[reportUnknownMemberType]

    def report(self) -> Report:
        if self._report is None:
            chosen = {
                item.case.name
                for item in self.session.items
                if isinstance(item, _Trials) and item.parent is self
            }

            def is_chosen(case: Case) -> bool:
                return case.name in chosen

            self._report = self.suite.run_sync(fresh=True, progress=False, cases=is_chosen)
        return self._report


class _Trials(pytest.Item):
    """The attempts of one agent at one case."""

    def __init__(self, *, agent: str, case: Case, **rest: Any) -> None:
        super().__init__(**rest)  # pyright: ignore[reportUnknownMemberType]
        self.agent = agent
        self.case = case

    def runtest(self) -> None:
        assert isinstance(self.parent, _Cases)
        mine = [
            trial
            for trial in self.parent.report().trials
            if (trial.agent, trial.case) == (self.agent, self.case.name)
        ]
        failed = [trial for trial in mine if trial.status != "passed"]
        if failed:
            lines = [f"{len(failed)} of {len(mine)} attempts did not pass:"]
            lines += [f"  {trial.reason}\n    session {trial.session_id}" for trial in failed]
            pytest.fail("\n".join(lines), pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent.name if self.parent else ''}: {self.name}"
