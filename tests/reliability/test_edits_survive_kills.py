"""kill -9 in the middle of edits and commands: no half-written file, no edit twice, no process left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reliability.edit_child import EDITS, END
from runtime.levels import LEVELS, needs
from slices import slice_of
from turnlog.runtime import SandboxLevel

CHILD = Path(__file__).with_name("edit_child.py")
PATIENCE = 60.0


def is_whole(text: str) -> bool:
    """The file after some number of edits, each made once and in order."""
    lines = text.splitlines()
    return lines == [f"line {number}" for number in range(1, len(lines))] + [END] and text.endswith("\n")


def wait_until_gone(mark: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while left := _processes_with(mark):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def _processes_with(mark: str) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended
    return found


def kill_until_done(folder: Path, seed: int, kills: int, level: SandboxLevel = "none") -> int:
    """Start the work again and again, and kill it; the last time it may finish. Returns how often."""
    chance = random.Random(seed)
    work = folder / "work"
    work.mkdir(parents=True)
    file = work / "work.txt"
    file.write_text(f"{END}\n")
    for number in range(kills + 1):
        mark = f"mark-{os.getpid()}-{seed}-{number}"
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(folder), mark, level], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == "ready\n"
            if number < kills:
                time.sleep(chance.uniform(0.01, 0.25))
                child.send_signal(signal.SIGKILL)
            said = child.stdout.read()
        child.wait(PATIENCE)
        wait_until_gone(mark)
        assert is_whole(file.read_text()), file.read_text()
        if "done" in said:
            assert file.read_text().count("line ") == EDITS, "an edit is missing, or was made twice"
            return number
    raise AssertionError("the last start was not killed, and did not finish")


def test_edits_and_commands_survive_kills(tmp_path: Path) -> None:
    kill_until_done(tmp_path, slice_of(1000), kills=3)


def test_a_sandbox_leaves_nothing_behind_either(tmp_path: Path) -> None:
    needs("workspace")
    kill_until_done(tmp_path, slice_of(1000), 2, "workspace")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", LEVELS)
def test_two_hundred_kills(
    tmp_path: Path, level: SandboxLevel, record_property: Callable[[str, object], None]
) -> None:
    needs(level)
    killed, seed = 0, 0
    while killed < 200:
        killed += kill_until_done(tmp_path / str(seed), seed, 8, level)
        seed += 1
    record_property("kills", [killed, 0 if level == "none" else killed, seed])
