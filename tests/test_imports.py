"""What an import costs, and what the lowest room may lean on. import-linter checks the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "turnlog"
CONTRACT = PACKAGE / "contract"
LAZY = ["turnlog", "turnlog.history", "turnlog.loop", "turnlog.models", "turnlog.testing"]
LOADED_WHEN_USED = "pydantic httpx2 aiohttp apsw click rich xllamacpp openai anthropic"


def test_import_turnlog_loads_nothing_heavy_and_prints_nothing() -> None:
    script = f"""
import sys, turnlog
loaded = [name for name in {LOADED_WHEN_USED.split()} if name in sys.modules]
if loaded: sys.exit(f"import turnlog also loads {{loaded}}")
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


HELP = """import sys
sys.argv = ["turnlog", "--help"]
from turnlog.cli import main
try:
    main()
except SystemExit:
    pass"""
STARTS = {
    "import turnlog": ("import turnlog", 70, f"{LOADED_WHEN_USED} asyncio logging inspect msgspec"),
    "the first agent": (
        "from turnlog import Agent",
        340,
        f"{LOADED_WHEN_USED} email http turnlog.cli turnlog.mcp turnlog.server turnlog.transcript "
        "turnlog.history.sqlite turnlog.models.openai_chat turnlog.models.http turnlog.testing",
    ),
    "turnlog --help": (
        HELP,
        230,
        "httpx2 aiohttp apsw asyncio email ssl turnlog.loop turnlog.models turnlog.runtime turnlog.tools "
        "turnlog.context turnlog.history.sqlite turnlog.mcp turnlog.server turnlog.evals",
    ),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_start_loads_few_modules_and_no_heavy_one(start: str) -> None:
    """Counted and not timed, so that a slow machine changes nothing."""
    code, most, heavy = STARTS[start]
    script = f"{code}\nimport sys\nprint('LOADED', *sys.modules)"
    run = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    loaded = run.stdout.rpartition("LOADED ")[2].split()
    assert sorted(set(heavy.split()) & set(loaded)) == []
    assert len(loaded) <= most


def test_contract_stands_on_msgspec_and_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"msgspec", "turnlog"}
    strangers: list[str] = []
    for path in sorted(CONTRACT.rglob("*.py")):
        page = ast.parse(path.read_text(encoding="utf-8"))
        for block in ast.walk(page):
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
                block.body.clear()  # read by type checkers, never loaded
        for node in ast.walk(page):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            strangers += [f"{path.name}: {name}" for name in names if name.split(".")[0] not in allowed]
    assert strangers == []


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_package_has_the_names_that_type_checkers_see(name: str) -> None:
    package = import_module(name)
    path = PACKAGE.joinpath(*name.split(".")[1:]) / "__init__.py"
    seen = {
        alias.asname
        for block in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert seen == set(package.__all__) - {"__version__"} == set(dir(package)) - {"__version__"}
    for public in package.__all__:
        assert getattr(package, public) is getattr(package, public)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        _ = package.nonsense
