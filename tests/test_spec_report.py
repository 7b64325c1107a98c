"""The specification report, run on small suites of its own, with and without worker processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spec_report import join_ranges, parse_ids, render_ids

HERE = Path(__file__).resolve().parent

SPECIFICATION = """
## M. Message
- M-1 one thing; see D-1.
- M-2 another,
  which M-9 does not define.

## N. Names
No ids here.

## D. Deltas
- D-1 a thing.

## G. Golden
Each a file: G-1 first; G-2
second.
"""


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run_suite(tmp_path: Path) -> Run:
    """Runs pytest on test files in a folder that has this report and the specification above."""

    def run(
        proofs: str, others: str = "", *options: str, listed: str = "M-1 M-2 D-1 G-1 G-2"
    ) -> tuple[int, str]:
        suite = tmp_path / "repository" / "tests"
        (suite / "acceptance").mkdir(parents=True)
        (suite / "loop").mkdir()
        for name in ("conftest.py", "spec_report.py", "slices.py", "soak_report.py", "postgres_server.py"):
            shutil.copy(HERE / name, suite)
        shutil.copy(HERE.parent / "pyproject.toml", suite.parent)
        (suite / "spec_ids.txt").write_text(listed)
        (suite / "acceptance" / "test_it.py").write_text("import pytest\n" + proofs)
        (suite / "loop" / "test_others.py").write_text("import pytest\n" + others)
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "SPEC.md").write_text(SPECIFICATION)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TURNLOG", "COV"))}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            command,
            cwd=suite.parent,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_ids_are_read_from_list_items_or_from_prose() -> None:
    assert parse_ids(SPECIFICATION) == ["M-1", "M-2", "D-1", "G-1", "G-2"]
    assert render_ids(parse_ids(SPECIFICATION)) == "M-1 M-2\nD-1\nG-1 G-2\n"


def test_neighbours_are_joined() -> None:
    assert join_ranges(["M-1", "M-2", "M-4", "D-5", "D-6"]) == "M-1…2 M-4 D-5…6"


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_report_tells_what_is_proven_from_what_is_not(run_suite: Run, options: tuple[str, ...]) -> None:
    code, output = run_suite(
        """
@pytest.mark.spec("M-1", "M-2")
def test_good(): pass

@pytest.mark.spec("M-2")
class TestBad:
    def test_bad(self): assert False

@pytest.mark.spec("D-1")
def test_skipped(): pytest.skip("not here")
""",
        """
@pytest.mark.spec("D-1", "G-1")
def test_elsewhere(): pass
""",
        *options,
    )
    assert code == 1
    assert "1 of 5 requirements are proven" in output
    assert "failed (1): M-2" in output
    assert "only skipped tests (1): D-1" in output
    assert "not proven here, tested in loop (1): G-1" in output
    assert "no test (1): G-2" in output
    assert "1 failed, 2 passed, 1 skipped" in output.splitlines()[-1]


def test_a_skip_beside_a_pass_is_half_a_proof(run_suite: Run) -> None:
    code, output = run_suite("""
@pytest.mark.spec("M-1", "M-2")
def test_good(): pass

@pytest.mark.spec("M-2")
def test_skipped(): pytest.skip("not here")
""")
    assert code == 0
    assert "1 of 5 requirements are proven" in output
    assert "partly (1): M-2" in output


def test_an_id_that_does_not_exist_fails_the_collection(run_suite: Run) -> None:
    code, output = run_suite("""
@pytest.mark.spec("M-3")
def test_it(): pass
""")
    assert code != 0
    assert "test_it.py::test_it claims to prove 'M-3'" in output
    assert "passed" not in output


def test_a_stale_list_of_ids_is_refused_with_the_command_that_renews_it(run_suite: Run) -> None:
    code, output = run_suite("def test_it(): pass", listed="M-1 M-2 D-1 G-1")
    assert code != 0
    assert "differs: G-2" in output
    assert "python tests/spec_report.py --write" in output
