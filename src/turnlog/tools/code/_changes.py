"""How a file is changed: against what the model read, announced in the log, and asked about after a crash."""

from __future__ import annotations

import difflib
import json
import posixpath
from collections.abc import Awaitable, Callable
from typing import Any

from turnlog.contract import FILE_CHANGED, FileInfo, JsonObject, Runtime, digest

from .._answer import ToolError, ToolResult
from .._context import ToolContext
from .._options import NOT_RUN

LARGEST = 10_000_000
"""Bytes of a file that is shown whole, hashed, and changed here."""

SEEN = "seen"
_WIDGET = "workspace"


def shown(path: str) -> str:
    """A path as one line that nobody takes for two: a name may hold line breaks."""
    return path if path.isprintable() else json.dumps(path)


def told(words: str, content: object = None, gist: str | None = None) -> ToolResult:
    """A result whose shorter versions are ``words``; without ``content`` it is they alone."""
    return ToolResult(words if content is None else content, summary=words, gist=gist or words)


def size_in_words(size: int) -> str:
    for unit, above in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= above:
            return f"{size / above:.1f} {unit}"
    return f"{size} bytes"


async def find_file(runtime: Runtime, path: str) -> FileInfo | None:
    """A file at ``path``, or None. Raises ``ToolError`` for what is there and is no plain file."""
    info = await runtime.stat(path)
    match info.kind if info is not None else None:
        case "directory":
            raise ToolError(f"{shown(path)} is a folder; name a file in it, or use the tool list")
        case "other":
            raise ToolError(f"{shown(path)} is a device, socket or pipe, and no file")
        case _:
            return info


async def find_changeable(runtime: Runtime, path: str) -> FileInfo | None:
    info = await find_file(runtime, path)
    if info is not None and info.kind == "link":
        raise ToolError(f"{shown(path)} is a link; change the file that it leads to")
    if info is not None and info.size > LARGEST:
        raise ToolError(
            f"{shown(path)} has {size_in_words(info.size)}; files above {size_in_words(LARGEST)} are not "
            "changed with this tool; use a command"
        )
    return info


async def not_there(runtime: Runtime, path: str) -> ToolError:
    """The error for a file that does not exist, with names that are close to it."""
    folder, name = posixpath.split(path)
    known: list[str] = []
    place = await runtime.stat(folder or ".")
    if place is not None and place.kind == "directory":
        known = [posixpath.basename(each.path) for each in await runtime.list_files(folder or ".")]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"; in that folder there is {', '.join(map(shown, close))}" if close else ""
    if place is None:
        hint = f"; its folder {shown(folder)} does not exist either"
    return ToolError(f"there is no file {shown(path)}{hint}")


def mark_seen(ctx: ToolContext, path: str, data: bytes) -> None:
    """Keep in the log which version of a file the model has seen, once this call succeeds."""
    ctx.emit(_WIDGET, SEEN, {"path": path, "sha256": digest(data)})


async def check_seen(ctx: ToolContext, path: str, data: bytes) -> None:
    """Refuse to change a file that the model has not read as it is now."""
    known: set[str | None] = set()
    for name, fact in await ctx.require_journal().facts():
        if fact.get("path") != path:
            continue
        if name == f"{_WIDGET}.{SEEN}":
            known = {fact.get("sha256")}
        elif name == FILE_CHANGED:
            # A change that then failed left the file as it was before.
            known = {fact.get("before"), fact.get("after")}
    if not known:
        raise ToolError(f"{shown(path)} exists and was not read in this session; read it first")
    if digest(data) not in known:
        raise ToolError(
            f"{shown(path)} was changed since it was last read, by a command or a person; nothing was "
            "written. Read it again, and then decide what is still to be changed"
        )


async def change(ctx: ToolContext, path: str, before: bytes | None, after: bytes) -> None:
    """Put ``after`` into a file that holds ``before`` (None: it does not exist). The log says so first, with
    the old content, so that the change can be found out after a crash, and undone."""
    runtime, journal = ctx.require_runtime(), ctx.require_journal()
    kept = await journal.keep(before) if before is not None else None
    await journal.record(
        FILE_CHANGED,
        {
            "tool_call_id": ctx.tool_call_id,
            "path": path,
            "before": None if before is None else digest(before),
            "after": digest(after),
            "kept": kept,
        },
    )
    if await read_now(runtime, path) != before:
        raise ToolError(f"{shown(path)} was changed at this very moment; nothing was written. Read it again")
    await runtime.write(path, after)


async def read_now(runtime: Runtime, path: str) -> bytes | None:
    """All of a file; None when it does not exist."""
    return None if await runtime.stat(path) is None else await runtime.read(path)


def reconciled(
    tell: Callable[[str, bytes], ToolResult],
) -> Callable[[ToolContext, JsonObject], Awaitable[Any]]:
    """What became of a change that a crash cut short: the file as it is shows it, compared with what was
    announced. ``tell`` gives the result of one that did happen."""

    async def ask(ctx: ToolContext, arguments: JsonObject) -> Any:
        announced = [
            fact
            for name, fact in await ctx.require_journal().facts()
            if name == FILE_CHANGED and fact.get("tool_call_id") == ctx.tool_call_id
        ]
        if not announced:
            return NOT_RUN  # nothing is written before it is announced
        path = str(announced[-1]["path"])
        data = await read_now(ctx.require_runtime(), path)
        now = None if data is None else digest(data)
        if data is not None and now == announced[-1]["after"]:
            return tell(path, data)
        return NOT_RUN if now == announced[-1]["before"] else None

    return ask
