"""Golden traces: a session's log as a file, which a scenario must write again to the byte."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from turnlog.contract import AgentError, Entry, decode, encode

UPDATE = "TURNLOG_UPDATE_GOLDEN"
"""Set this variable to 1 to write the files anew, then read the diff before you commit it."""


def read_trace(path: str | Path) -> list[Entry]:
    """The entries of a golden file."""
    return [decode(line, Entry) for line in Path(path).read_bytes().splitlines() if line]


def check_trace(path: str | Path, entries: Sequence[Entry]) -> None:
    """Raise ``AssertionError`` with a diff unless ``entries`` are the file's, byte for byte."""
    path = Path(path)
    found = b"".join(encode(entry) + b"\n" for entry in entries)
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found)
        return
    if not path.exists():
        raise AgentError("ConfigInvalid", f"there is no golden trace {path}; run once with {UPDATE}=1")
    expected = path.read_bytes()
    if expected != found:
        diff = difflib.unified_diff(
            expected.decode().splitlines(), found.decode().splitlines(), str(path), "now", lineterm="", n=1
        )
        raise AssertionError(f"the trace differs from {path.name}:\n" + "\n".join(diff))
