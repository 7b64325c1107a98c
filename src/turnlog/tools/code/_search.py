"""Tools that look for files, by name and by what they hold."""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase

from turnlog.contract import AgentError, FileInfo, Runtime

from .._answer import ToolError, ToolResult
from .._context import ToolContext
from .._tool import tool
from ._changes import LARGEST, shown, size_in_words, told
from ._files import READS, looks_binary
from ._pattern import BadPattern, Pattern

_PASSED_OVER = frozenset(
    [
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        ".venv",
        "venv",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".tox",
    ]
)
"""Folders of tools, not of people. They are searched when they are named."""
_MOST_FILES = 100_000
_MOST_FOUND = 500
_LINE = 400
_PATIENCE = 20.0
"""Seconds after which a search returns what it has."""


class _Walk:
    """All files below a folder, by name; links are not followed."""

    def __init__(self, ctx: ToolContext, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock = ctx.clock
        self._ends = ctx.clock.monotonic() + _PATIENCE
        self.unread: list[str] = []
        self.stopped: str | None = None
        """Why not all files were looked at."""

    def is_late(self) -> bool:
        if self._clock.monotonic() > self._ends:
            self.stopped = f"stopped after {_PATIENCE:.0f} s; search a smaller folder"
        return self.stopped is not None

    async def files(self, path: str) -> AsyncIterator[FileInfo]:
        folders, count = deque([path]), 0
        while folders and not self.is_late():
            folder = folders.popleft()
            try:
                found = await self._runtime.list_files(folder)
            except AgentError as error:
                if folder == path:
                    raise
                self.unread.append(f"{shown(folder)}: {error.message}")
                continue
            for info in found:
                if info.kind == "directory" and posixpath.basename(info.path) not in _PASSED_OVER:
                    folders.append(info.path)
                elif info.kind == "file":
                    count += 1
                    yield info
            if count > _MOST_FILES:
                self.stopped = f"stopped after {_MOST_FILES} files; search a smaller folder"

    def notes(self) -> list[str]:
        notes = [f"[{self.stopped}]"] if self.stopped else []
        if self.unread:
            more = f", and {len(self.unread) - 5} more" if len(self.unread) > 5 else ""
            notes.append(f"[not looked at: {'; '.join(self.unread[:5])}{more}]")
        return notes


async def _base(runtime: Runtime, path: str) -> FileInfo:
    info = await runtime.stat(path)
    if info is None:
        raise ToolError(f"there is no folder {shown(path)}")
    return info


@tool(name="glob", requires_runtime=True, idempotent=True, concurrent=True, annotations=READS)
async def glob_files(ctx: ToolContext, pattern: str, path: str = ".") -> ToolResult:
    """Find files by name.

    Args:
        pattern: As src/**/*.py: * and ? stand for characters of one name, ** for any folders.
        path: The folder to look in, relative to the workspace.
    """
    runtime = ctx.require_runtime()
    base = await _base(runtime, path)
    if base.kind != "directory":
        raise ToolError(f"{shown(path)} is no folder; give a folder as path")
    wanted = _NamePattern(pattern)
    walk = _Walk(ctx, runtime)
    found = [info.path async for info in walk.files(path) if wanted.fits(_below(info.path, base.path))]
    found.sort()
    lines = [shown(each) for each in found[:_MOST_FOUND]]
    if len(found) > _MOST_FOUND:
        lines.append(f"[… and {len(found) - _MOST_FOUND} more; narrow the pattern]")
    words = f"{len(found)} files match {pattern!r}" if len(found) != 1 else f"1 file matches {pattern!r}"
    return told(words, "\n".join([*lines, *walk.notes()]) or f"[no file matches {pattern!r}]")


def _below(path: str, folder: str) -> str:
    return path if folder in (".", "") else path.removeprefix(folder.rstrip("/") + "/")


class _NamePattern:
    """A pattern of names, matched part by part."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        self._parts = parts if len(parts) > 1 or "**" in parts else ["**", *parts]

    def fits(self, path: str) -> bool:
        reached = {0}
        for name in path.split("/"):
            reached = self._behind(reached, name)
        return len(self._parts) in self._skipping(reached)

    def _skipping(self, reached: set[int]) -> set[int]:
        found = set(reached)
        for at, part in enumerate(self._parts):
            if at in found and part == "**":
                found.add(at + 1)
        return found

    def _behind(self, reached: set[int], name: str) -> set[int]:
        after: set[int] = set()
        for at in self._skipping(reached):
            part = self._parts[at] if at < len(self._parts) else None
            if part == "**":
                after.add(at)
            elif part is not None and fnmatchcase(name, part):
                after.add(at + 1)
        return after


@tool(name="grep", requires_runtime=True, idempotent=True, concurrent=True, annotations=READS)
async def grep_files(
    ctx: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    ignore_case: bool = False,
    context: int = 0,
) -> ToolResult:
    """Find lines that match a regular expression, in all text files below a folder or in one file.

    Args:
        pattern: A regular expression, without looking around and references back.
        path: A folder or a file, relative to the workspace.
        glob: Only files whose names fit, as *.py.
        ignore_case: Whether capital and small letters are the same.
        context: Lines to show before and after each match.
    """
    runtime = ctx.require_runtime()
    try:
        wanted = Pattern(pattern, ignore_case=ignore_case)
    except BadPattern as error:
        raise ToolError(str(error)) from error
    base = await _base(runtime, path)
    names = None if glob is None else _NamePattern(glob)
    walk = _Walk(ctx, runtime)
    lines: list[str] = []
    matches = files = 0
    single = base if base.kind == "file" else None
    async for info in _one(single) if single else walk.files(path):
        if names is not None and not names.fits(_below(info.path, base.path)):
            continue
        if walk.is_late() or matches >= _MOST_FOUND:
            break
        found = await _search_file(runtime, info, wanted, walk, context)
        matches += sum(is_match for _, is_match, _ in found)
        files += bool(found)
        lines += [_line(info.path, *each) for each in found]
    if matches >= _MOST_FOUND:
        lines = lines[: _MOST_FOUND * (1 + 2 * min(context, 20))]
        lines.append(f"[stopped after {_MOST_FOUND} matches; narrow the pattern or the folder]")
    match = "1 line matches" if matches == 1 else f"{matches} lines match"
    words = f"{match} {pattern!r}, in {'1 file' if files == 1 else f'{files} files'}"
    return told(words, "\n".join([*lines, *walk.notes()]) or f"[no line matches {pattern!r}]")


async def _one(info: FileInfo) -> AsyncIterator[FileInfo]:
    yield info


def _line(path: str, number: int, is_match: bool, text: str) -> str:
    sign = ":" if is_match else "-"
    return f"{shown(path)}{sign}{number}{sign}{text if len(text) <= _LINE else text[:_LINE] + ' …'}"


async def _search_file(
    runtime: Runtime, info: FileInfo, wanted: Pattern, walk: _Walk, context: int
) -> list[tuple[int, bool, str]]:
    if info.size > LARGEST:
        walk.unread.append(f"{shown(info.path)}: {size_in_words(info.size)}, too large")
        return []
    try:
        data = await runtime.read(info.path)
    except AgentError as error:
        walk.unread.append(f"{shown(info.path)}: {error.message}")
        return []
    if looks_binary(data[:8192]):
        return []
    # In a thread: a file of many megabytes must not hold up everything else.
    search = _matches if len(data) < 100_000 else _in_thread
    found = search(wanted, data, context)
    return found if isinstance(found, list) else await found


async def _in_thread(wanted: Pattern, data: bytes, context: int) -> list[tuple[int, bool, str]]:
    return await asyncio.to_thread(_matches, wanted, data, context)


def _matches(wanted: Pattern, data: bytes, context: int) -> list[tuple[int, bool, str]]:
    """Lines as (number, whether it matches, text), with ``context`` lines around each match."""
    text = data.decode("utf-8", "replace")
    if wanted.literal not in text:
        return []
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    around = min(max(context, 0), 20)
    found: dict[int, bool] = {}
    count = 0
    for number, line in enumerate(lines):
        if wanted.search(line.rstrip("\r")):
            count += 1
            if count > _MOST_FOUND:
                break
            for near in range(max(number - around, 0), min(number + around + 1, len(lines))):
                found.setdefault(near, False)
            found[number] = True
    return [(number + 1, found[number], lines[number].rstrip("\r")) for number in sorted(found)]
