"""Do the tests notice when the code is wrong? Break it in known ways, one at a time, and see.

    python scripts/mutants.py              every mutation of mutants.toml
    python scripts/mutants.py lease purge  those whose name contains one of the words
    python scripts/mutants.py --check      only whether each still applies to the source

A mutation is a text of a source file, the text that takes its place, and the tests that must fail then. It is
applied in a copy of the tree, never here; a process of the copy that has loaded other people's packages forks
for each run of its tests. The tests are run without any mutation first: they must pass, or
nothing is shown by their failing. A mutation survives when its tests still pass. One whose old text is not in
its file exactly once no longer applies: the code has changed, and so must the list. Both fail the run.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
SERVE = "--serve"
_LEFT_OUT = (".git", ".venv", ".demo", "__pycache__", "dist", "build", ".*_cache", ".hypothesis", "tmp")


_LOADED = (
    *("pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.stateful", "pytest_asyncio.plugin"),
    *("pytest_timeout", "xdist.plugin", "anyio.pytest_plugin", "msgspec", "pydantic", "httpx2", "apsw"),
    *("rich.console", "click", "psycopg", "openai", "anthropic", "google.genai", "botocore.session"),
)
_OPTIONS = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--timeout", "120")
_OPTIONS += ("-W", "ignore::pytest.PytestAssertRewriteWarning", "-W", "ignore::DeprecationWarning")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applies(self, root: Path) -> str | None:
        """Why it does not, or None."""
        path = root / self.file
        if not path.is_file():
            return f"there is no file {self.file}"
        found = path.read_text(encoding="utf-8").count(self.old)
        return None if found == 1 else f"its old text is {found} times in {self.file}, not once"


def load(words: Iterable[str]) -> list[Mutant]:
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))
    mutants = [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in table["mutant"]]
    names = [mutant.name for mutant in mutants]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SystemExit(f"{LIST.name} has two mutations called {', '.join(sorted(twice))}; rename one")
    words = list(words)
    return [mutant for mutant in mutants if not words or any(word in mutant.name for word in words)]


class Copy:
    """The tree, with an environment of its own in which ``turnlog`` is the copy's source."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT, self.root, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        self._make_environment()
        compileall.compile_dir(self.root / "src", quiet=1)
        self.start()

    def _make_environment(self) -> None:
        """The installed packages of the real one, by link; only the pointer to the source differs."""
        theirs, ours = ROOT / ".venv", self.root / ".venv"
        [packages] = theirs.glob("lib/python*/site-packages")
        target = ours / packages.relative_to(theirs)
        target.mkdir(parents=True)
        for path in packages.iterdir():
            if not (path.suffix == ".pth" and "turnlog" in path.name):
                (target / path.name).symlink_to(path)
        (target / "turnlog.pth").write_text(str(self.root / "src"), encoding="utf-8")
        shutil.copytree(theirs / "bin", ours / "bin", symlinks=True)
        shutil.copy(theirs / "pyvenv.cfg", ours)

    def start(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env.setdefault("TURNLOG_SHARED", str(ROOT.parent / "shared"))
        self._server = subprocess.Popen(
            [
                str(self.root / ".venv" / "bin" / "python"),
                str(self.root / "scripts" / LIST.stem) + ".py",
                SERVE,
            ],
            cwd=self.root,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> None:
        self._server.communicate()

    def test(self, tests: Iterable[str], *, first: bool = False) -> tuple[int, str]:
        """How pytest ended, and its last lines. ``first``: compiled tests are kept for later runs."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps({"tests": list(tests), "first": first}) + "\n")
        self._server.stdin.flush()
        code, last = json.loads(self._server.stdout.readline())
        return code, last

    def try_out(self, mutant: Mutant) -> str | None:
        """What is wrong: that it survived, or why nothing was shown. None when the tests noticed it."""
        if (why := mutant.applies(self.root)) is not None:
            return f"no longer applies: {why}"
        path = self.root / mutant.file
        text, before = path.read_text(encoding="utf-8"), path.stat()
        try:
            path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
            os.utime(path, (before.st_atime, before.st_mtime + 10))  # compiled code of this second is not its
            code, last = self.test(mutant.tests)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (before.st_atime, before.st_mtime))
        match code:
            case 0:
                return f"survived {' '.join(mutant.tests)}"
            case 1:
                return None
            case _:
                return f"shows nothing: pytest ended with {code}\n{last}"


def serve() -> None:
    """In the copy: run tests on its source, order by order, each in a process that is forked for it."""
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryFile("w+b") as output:
            if not (child := os.fork()):
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                sys.dont_write_bytecode = not order["first"]
                code = int(importlib.import_module("pytest").main([*_OPTIONS, *order["tests"]]))
                sys.stdout.flush()
                os._exit(code)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            last = output.read().decode(errors="replace").splitlines()[-25:]
        print(json.dumps([os.waitstatus_to_exitcode(status), "\n".join(last)]), flush=True)


def check(mutants: list[Mutant]) -> int:
    stale = [(mutant, why) for mutant in mutants if (why := mutant.applies(ROOT)) is not None]
    for mutant, why in stale:
        print(f"mutants: {mutant.name} no longer applies: {why}")
    print(f"mutants: {len(mutants) - len(stale)} of {len(mutants)} apply")
    return 1 if stale else 0


def run(mutants: list[Mutant], workers: int) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="turnlog-mutants-") as folder,
        ThreadPoolExecutor(workers) as pool,
    ):
        places = [Path(folder) / str(number) for number in range(workers)]
        copies: SimpleQueue[Copy] = SimpleQueue()
        for made in pool.map(Copy, places):
            copies.put(made)
        first = copies.get()
        code, last = first.test(sorted({test for mutant in mutants for test in mutant.tests}), first=True)
        copies.put(first)
        if code != 0:
            print(f"{last}\nmutants: the tests fail without any mutation; nothing can be shown")
            return 1

        def attempt(mutant: Mutant) -> str | None:
            copy = copies.get()
            try:
                return copy.try_out(mutant)
            finally:
                copies.put(copy)

        wrong = 0
        for mutant, why in zip(mutants, pool.map(attempt, mutants), strict=True):
            if why is not None:
                wrong += 1
                print(f"mutants: {mutant.name} {why}", flush=True)
        while not copies.empty():
            copies.get().stop()
    print(f"mutants: {len(mutants) - wrong} of {len(mutants)} noticed, {wrong} not")
    return 1 if wrong else 0


def main() -> int:
    if sys.argv[1:] == [SERVE]:
        serve()
        return 0
    parser = argparse.ArgumentParser(
        description="Apply known mutations and report those that no test notices."
    )
    parser.add_argument("words", nargs="*", help="only mutations whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="only see whether each still applies")
    parser.add_argument("-j", "--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    mutants = load(given.words)
    return check(mutants) if given.check else run(mutants, given.workers)


if __name__ == "__main__":
    sys.exit(main())
