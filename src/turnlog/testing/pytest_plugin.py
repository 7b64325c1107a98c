"""The pytest fixture ``recorded``: a model that is asked once, and answers from a file ever after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
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
