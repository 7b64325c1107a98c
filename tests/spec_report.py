"""Which requirements of the specification have a test that passed.

A test names what it is about: `@pytest.mark.spec("D-3", "D-5")`. Only tests in `tests/acceptance/`, each
written from the sentence of the requirement, count as its proof; a mark elsewhere says where else it is
tested. An id that the specification does not have is a collection error of the file that names it. After a
whole run the summary says how many ids are proven and lists the others: failed, proven only in part because a
test was skipped, tested but not proven, or without any test.

`spec_ids.txt` beside this file is the list of ids. Where the specification itself lies next to the repository
(`../shared/SPEC.md`, or `$TURNLOG_SHARED/SPEC.md`) the two must agree; `python tests/spec_report.py --write`
renews the list.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

ROOT = Path(__file__).resolve().parent.parent
IDS_FILE = Path(__file__).with_name("spec_ids.txt")
REGENERATE = "python tests/spec_report.py --write"
PROPERTY = "spec"
"""The name under which a test's ids travel in its reports, from a worker process to the one that prints."""
PROOF = "tests/acceptance/"


def shared_folder() -> Path:
    """The folder beside the repository that holds the specification and recorded data; it may not exist."""
    return Path(os.environ.get("TURNLOG_SHARED") or ROOT.parent / "shared")


def parse_ids(specification: str) -> list[str]:
    """The ids that a specification defines, in its order.

    A section `## D. …` defines the ids of its letter that begin a list item (`- D-3 …`), or, when it has no
    such items, every id of its letter in its prose.
    """
    ids: list[str] = []
    for section in re.split(r"^(?=## )", specification, flags=re.MULTILINE):
        heading = re.match(r"## ([A-Z])\. ", section)
        if heading is None:
            continue
        letter = heading[1]
        found = re.findall(rf"^- ({letter}-\d+)\b", section, flags=re.MULTILINE)
        ids += found or re.findall(rf"\b{letter}-\d+\b", section)
    return list(dict.fromkeys(ids))


def render_ids(ids: Iterable[str]) -> str:
    """The content of the ids file: a line for each section."""
    return "".join(" ".join(group) + "\n" for _, group in groupby(ids, key=lambda spec_id: spec_id[0]))


def load_ids() -> list[str]:
    """The ids of the committed list; refuses a list that differs from the specification, where that is."""
    listed = IDS_FILE.read_text(encoding="utf-8").split()
    specification = shared_folder() / "SPEC.md"
    if specification.is_file():
        defined = parse_ids(specification.read_text(encoding="utf-8"))
        if defined != listed:
            changed = " ".join(sorted(set(defined) ^ set(listed))) or "only the order"
            raise pytest.UsageError(
                f"{IDS_FILE.name} does not agree with {specification} (differs: {changed}); run: {REGENERATE}"
            )
    return listed


def spec_ids_of(item: pytest.Item) -> list[str]:
    return [spec_id for marker in item.iter_markers("spec") for spec_id in marker.args]


def join_ranges(ids: Iterable[str]) -> str:
    """`M-1 M-2 M-3 D-1` as `M-1…3 D-1`."""
    pairs = [(letter, int(number)) for letter, number in (spec_id.split("-") for spec_id in ids)]
    words: list[str] = []
    # Neighbours of one letter keep the same distance between number and place in the list.
    for _, group in groupby(enumerate(pairs), key=lambda placed: (placed[1][0], placed[1][1] - placed[0])):
        run = [pair for _, pair in group]
        (letter, first), (_, last) = run[0], run[-1]
        words.append(f"{letter}-{first}" if first == last else f"{letter}-{first}…{last}")
    return " ".join(words)


class SpecReport:
    """The pytest plugin: checks ids while tests are collected, counts outcomes, reports at the end.

    Under xdist the workers collect and run; their reports reach the controlling process, which counts
    and prints.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.ids = load_ids()
        self.known = frozenset(self.ids)
        self.is_whole_run = (
            config.args_source is pytest.Config.ArgsSource.TESTPATHS
            and not config.option.keyword
            and not config.option.collectonly
            and config.option.markexpr in ("", "not soak")
        )
        self.proofs: defaultdict[str, set[str]] = defaultdict(set)
        self.others: defaultdict[str, set[str]] = defaultdict(set)
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.outcome != "passed":
            return report
        complaints: list[str] = []
        for item in report.result:
            if not isinstance(item, pytest.Item):
                continue
            ids = spec_ids_of(item)
            item.user_properties.append((PROPERTY, ids))
            unknown = [spec_id for spec_id in ids if spec_id not in self.known]
            if unknown:
                complaints.append(f"{item.nodeid} claims to prove {', '.join(map(repr, unknown))}")
        if complaints:
            report.outcome = "failed"
            report.result = []
            report.longrepr = "\n".join(
                [*complaints, f"The specification has no such requirement; its ids are in {IDS_FILE.name}."]
            )
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test has one outcome here: that of its call, or of the setup or teardown that went wrong.
        if report.when == "call" or report.outcome != "passed":
            for name, ids in report.user_properties:
                if name == PROPERTY:
                    for spec_id in ids if isinstance(ids, list) else ():
                        self._count(spec_id, report)

    def _count(self, spec_id: str, report: pytest.TestReport) -> None:
        if report.outcome == "failed":
            self.failed.add(spec_id)
        if report.nodeid.startswith(PROOF):
            self.proofs[spec_id].add(report.outcome)
        elif report.outcome == "passed":
            self.others[spec_id].add(_folder_of(report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.is_whole_run:
            return
        groups: dict[str, list[str]] = {"proven": [], "failed": [], "partly": [], "only skipped tests": []}
        for spec_id in self.ids:
            groups.setdefault(self._verdict(spec_id), []).append(spec_id)
        terminalreporter.section("specification")
        terminalreporter.line(f"{len(groups.pop('proven'))} of {len(self.ids)} requirements are proven")
        for verdict, ids in sorted(groups.items(), key=lambda group: group[0] == NO_TEST):
            if ids:
                terminalreporter.line(f"{verdict} ({len(ids)}): {join_ranges(ids)}")

    def _verdict(self, spec_id: str) -> str:
        if spec_id in self.failed:
            return "failed"
        proofs = self.proofs[spec_id]
        if "passed" in proofs:
            return "partly" if "skipped" in proofs else "proven"
        if proofs:
            return "only skipped tests"
        places = sorted(self.others[spec_id])
        return f"not proven here, tested in {', '.join(places)}" if places else NO_TEST


NO_TEST = "no test"


def _folder_of(nodeid: str) -> str:
    """`history` for a test in tests/history/, `tests` for one that lies in no folder."""
    parts = nodeid.split("::")[0].split("/")
    return parts[1] if len(parts) > 2 else parts[0]


def main(arguments: list[str]) -> int:
    if arguments != ["--write"]:
        print(f"usage: {REGENERATE}", file=sys.stderr)
        return 2
    specification = shared_folder() / "SPEC.md"
    if not specification.is_file():
        print(
            f"{specification} is not there; set TURNLOG_SHARED to the folder that holds SPEC.md",
            file=sys.stderr,
        )
        return 1
    ids = parse_ids(specification.read_text(encoding="utf-8"))
    IDS_FILE.write_text(render_ids(ids), encoding="utf-8")
    print(f"{len(ids)} ids written to {IDS_FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
