"""Keep files and functions small enough to read.

A file past 600 lines or a function past 100 fails the check, in src and tests alike.
In src, a file past 400 lines or a function past 50 is listed as a question.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Past `question` is worth a look; past `refusal` is not accepted."""

    question: int
    refusal: int


LIMITS = {"file": Limit(question=400, refusal=600), "function": Limit(question=50, refusal=100)}


@dataclass(frozen=True, kw_only=True)
class Measured:
    kind: str
    place: str
    lines: int


def measure(path: Path) -> Iterator[Measured]:
    """The length of one file and of every function in it, nested ones and methods included."""
    text = path.read_text(encoding="utf-8")
    place = path.relative_to(ROOT).as_posix()
    yield Measured(kind="file", place=place, lines=len(text.splitlines()))
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Measured(kind="function", place=f"{place}:{node.lineno} {node.name}", lines=lines)


def main() -> int:
    questions: dict[str, list[Measured]] = {kind: [] for kind in LIMITS}
    refusals: list[Measured] = []
    for folder in ("src", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for measured in measure(path):
                limit = LIMITS[measured.kind]
                if measured.lines > limit.refusal:
                    refusals.append(measured)
                elif measured.lines > limit.question and folder == "src":
                    questions[measured.kind].append(measured)

    for kind, found in questions.items():
        if found:
            found.sort(key=lambda measured: -measured.lines)
            listed = ", ".join(f"{measured.place} ({measured.lines})" for measured in found)
            print(f"sizes: {kind}s past {LIMITS[kind].question} lines: {listed}")
    for measured in refusals:
        allowed = LIMITS[measured.kind].refusal
        print(f"sizes: {measured.place}: {measured.kind} of {measured.lines} lines, limit {allowed}")
    return 1 if refusals else 0


if __name__ == "__main__":
    sys.exit(main())
