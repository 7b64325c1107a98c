"""A coding agent: four tools over a folder, and every edit shown to you before it is made.

Talk to it: `turnlog chat --agent examples/coding.py:agent`. It works in the folder that you start it in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from turnlog import Agent, tool
from turnlog.tools import ToolError

ROOT = Path.cwd()


def inside(path: str) -> Path:
    found = (ROOT / path).resolve()
    if not found.is_relative_to(ROOT):
        raise ToolError(f"{path} is outside of the project; use a path below it")
    return found


@tool(concurrent=True, idempotent=True)
def list_files(pattern: str = "**/*.py") -> list[str]:
    """List the files whose path matches a pattern."""
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if path.is_file())[:500]


@tool(concurrent=True, idempotent=True)
def read_file(path: str) -> str:
    """Read a file."""
    return inside(path).read_text()


@tool(requires_approval=True)
def edit_file(path: str, old: str, new: str) -> str:
    """Replace a piece of text, which must occur once, in a file."""
    file = inside(path)
    text = file.read_text()
    if (count := text.count(old)) != 1:
        raise ToolError(f"the text occurs {count} times in {path}; give a piece that occurs once")
    file.write_text(text.replace(old, new))
    return f"{path} was changed"


@tool(timeout=120)
def run_tests(path: str = ".") -> str:
    """Run the tests with pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    return f"exit code {done.returncode}\n{done.stdout[-4000:]}"


agent = Agent(
    os.environ.get("CODING_MODEL", "local"),
    tools=[list_files, read_file, edit_file, run_tests],
    instructions="You fix code. Read before you edit, and run the tests after it.",
    store=f"sqlite:{ROOT / '.coding.db'}",
)
