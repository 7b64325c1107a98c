"""Reading the pages of this project, so that tests can hold them to what they say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FENCE = re.compile(r"^(?:<!-- (?P<note>.*?) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comment right before it, which readers do not see."""

    language: str
    text: str
    note: str
    line: int


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str | None = None) -> list[Block]:
    found = [
        Block(match["language"], match["text"], match["note"] or "", text.count("\n", 0, match.start("text")))
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def broken_links(name: str) -> list[str]:
    """Links of a page that lead to no file of this repository."""
    folder = (ROOT / name).parent
    return [target for target in _LINK.findall(page(name)) if not (folder / target).exists()]


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table whose head starts with ``heading``."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            break
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows
