"""Tools that read and change files."""

from __future__ import annotations

import difflib
import posixpath
from typing import Annotated, NotRequired, TypedDict

from turnlog.contract import FileInfo, Runtime

from .._answer import ToolError, ToolResult
from .._context import ToolContext
from .._render import ImageContent
from .._tool import tool
from ._changes import (
    LARGEST,
    change,
    check_seen,
    find_changeable,
    find_file,
    mark_seen,
    not_there,
    reconciled,
    shown,
    size_in_words,
    told,
)

_LINES = 2000
_LINE = 2000
_CHUNK = 1_000_000
_LARGEST_IMAGE = 5_000_000
_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_ENTRIES = 1000
READS = {"read_only": True}
WRITES = {"writes": True}


def looks_binary(head: bytes) -> bool:
    return b"\0" in head


@tool(name="read", requires_runtime=True, idempotent=True, concurrent=True, annotations=READS)
async def read_file(ctx: ToolContext, path: str, offset: int = 1, limit: int = _LINES) -> ToolResult:
    """Read a text file, or look at an image. Lines come with their numbers, which are no part of the file.

    Args:
        path: The file, relative to the workspace.
        offset: The first line to read, counted from 1.
        limit: How many lines to read at most.
    """
    runtime = ctx.require_runtime()
    if offset < 1 or limit < 1:
        raise ToolError(f"offset is {offset} and limit {limit}; both count lines, from 1 on")
    info = await find_file(runtime, path)
    if info is None:
        raise await not_there(runtime, path)
    head = await runtime.read(path, limit=8192)
    if kind := _image_type(head):
        return await _read_image(runtime, info, path, kind)
    if looks_binary(head):
        raise ToolError(
            f"{shown(path)} is a binary file of {size_in_words(info.size)}, which is not shown as text; "
            "look at it with a command, such as file or xxd"
        )
    limit = min(limit, _LINES)
    # A link has a size of its own; what it leads to is as large as it turns out to be.
    data = await runtime.read(path, limit=LARGEST + 1)
    if len(data) <= LARGEST:
        mark_seen(ctx, info.path, data)
        lines = _lines_of(data)
        total = len(lines)
        page = lines[offset - 1 : offset - 1 + limit]
    else:
        page, total = await _page_of_large(runtime, path, offset, limit), None
    return _page(path, page, offset, total)


def _image_type(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES if head.startswith(magic)), None)


async def _read_image(runtime: Runtime, info: FileInfo, path: str, kind: str) -> ToolResult:
    if info.size > _LARGEST_IMAGE:
        raise ToolError(
            f"{shown(path)} is an image of {size_in_words(info.size)}; the largest that can be shown has "
            f"{size_in_words(_LARGEST_IMAGE)}; make a smaller copy with a command"
        )
    data = await runtime.read(path, limit=_LARGEST_IMAGE)
    words = f"{shown(path)}: {kind}, {size_in_words(len(data))}"
    return told(f"looked at {words}", [words, ImageContent(data, kind)], f"looked at {shown(path)}")


def _lines_of(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


async def _page_of_large(runtime: Runtime, path: str, offset: int, limit: int) -> list[str]:
    """Lines of a file that is never in memory as a whole."""
    page: list[str] = []
    at, number, begun = 0, 1, b""
    while len(page) < limit:
        chunk = await runtime.read(path, offset=at, limit=_CHUNK)
        at += len(chunk)
        *lines, begun = (begun + chunk).split(b"\n")
        if not chunk:
            lines = [begun] if begun else []
        skipped = max(min(offset - number, len(lines)), 0)
        number += len(lines)
        page += [
            line[: 4 * _LINE].decode("utf-8", "replace")
            for line in lines[skipped : skipped + limit - len(page)]
        ]
        if not chunk:
            break
        begun = begun[: 4 * _LINE] if len(begun) > _CHUNK else begun  # of an endless line, its beginning
    return page


def _page(path: str, page: list[str], offset: int, total: int | None) -> ToolResult:
    if not page and (total is None or total > 0 or offset > 1):
        have = "fewer lines" if total is None else _lines(total)
        raise ToolError(f"{shown(path)} has {have}; line {offset} is past its end")
    last = offset + len(page) - 1
    text = "\n".join(f"{number:>6}\t{_cut(line)}" for number, line in enumerate(page, offset))
    if total is None:
        text += f"\n[lines {offset} to {last} of a large file; read on with offset={last + 1}]"
    elif last < total:
        text += f"\n[lines {offset} to {last} of {total}; read on with offset={last + 1}]"
    elif not total:
        text = "[the file is empty]"
    which = "" if offset == 1 and last == total else f", lines {offset} to {last}"
    return told(f"read {shown(path)}{which}", text, f"read {shown(path)}")


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= _LINE else f"{line[:_LINE]} [… {len(line) - _LINE} more characters]"


# ── changing ──


def _written(path: str, data: bytes) -> ToolResult:
    words = f"wrote {shown(path)}: {_count_lines(data)}, {size_in_words(len(data))}"
    return told(words, gist=f"wrote {shown(path)}")


def _edited(path: str, data: bytes) -> ToolResult:
    return told(f"edited {shown(path)}")


def _count_lines(data: bytes) -> str:
    return _lines(len(_lines_of(data)))


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


@tool(name="write", requires_runtime=True, reconcile=reconciled(_written), annotations=WRITES)
async def write_file(ctx: ToolContext, path: str, content: str) -> ToolResult:
    """Write a file whole: a new one, or one that you have read and replace. Missing folders are made.

    Args:
        path: The file, relative to the workspace.
        content: All that the file is to hold.
    """
    runtime = ctx.require_runtime()
    info = await find_changeable(runtime, path)
    place = posixpath.normpath(path) if info is None else info.path
    before = None if info is None else await runtime.read(path)
    if before is not None:
        await check_seen(ctx, place, before)
    data = content.encode()
    await change(ctx, place, before, data)
    return _written(place, data)


class Replacement(TypedDict):
    old: Annotated[str, "The text to replace, exactly as it is in the file."]
    new: Annotated[str, "The text to put in its place."]
    every: NotRequired[Annotated[bool, "Replace every occurrence."]]


@tool(name="edit", requires_runtime=True, reconcile=reconciled(_edited), annotations=WRITES)
async def edit_file(
    ctx: ToolContext,
    path: str,
    old: str,
    new: str,
    every: bool = False,
    more: list[Replacement] | None = None,
) -> ToolResult:
    """Replace text in a file that you have read. All replacements are made, or none.

    Args:
        path: The file, relative to the workspace.
        old: The text to replace, exactly as it is in the file, with enough of it to occur only once.
        new: The text to put in its place.
        every: Replace every occurrence of old.
        more: Further replacements in the same file, made after the first, in order.
    """
    runtime = ctx.require_runtime()
    info = await find_changeable(runtime, path)
    if info is None:
        raise await not_there(runtime, path)
    before = await runtime.read(path)
    await check_seen(ctx, info.path, before)
    try:
        text = before.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{shown(path)} is not UTF-8 text ({error}); change it with a command") from error
    edited = text
    steps = [Replacement(old=old, new=new, every=every), *(more or [])]
    for number, step in enumerate(steps, 1):
        which = f" (replacement {number} of {len(steps)}; none was made)" if len(steps) > 1 else ""
        edited = _replace(edited, step, path, which)
    after = edited.encode()
    await change(ctx, info.path, before, after)
    diff = list(difflib.unified_diff(text.splitlines(), edited.splitlines(), lineterm="", n=2))[2:]
    added, removed = (sum(line.startswith(sign) for line in diff) for sign in "+-")
    words = f"edited {shown(info.path)}: {_lines(added)} added, {removed} removed"
    return told(words, "\n".join([words, *diff]), f"edited {shown(info.path)}")


def _replace(text: str, step: Replacement, path: str, which: str) -> str:
    old, new = step["old"], step["new"]
    if "\r\n" in text and "\r" not in old:  # a model writes lines as it was shown them
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    if not old:
        raise ToolError(f"old is empty{which}; give the text to replace, or use write for a new file")
    if old == new:
        raise ToolError(f"old and new are the same{which}; nothing would change")
    count = text.count(old)
    if count == 0:
        raise ToolError(f"{shown(path)} does not hold the text in old{which}. {_nearest(text, old)}")
    if count > 1 and not step.get("every"):
        places = ", ".join(str(line) for line in _places(text, old)[:10])
        raise ToolError(
            f"{shown(path)} holds the text in old {count} times, from lines {places}{which}; give more of "
            "what is around the one you mean, or set every"
        )
    return text.replace(old, new)


def _places(text: str, old: str) -> list[int]:
    found: list[int] = []
    at = text.find(old)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + len(old))
    return found


def _nearest(text: str, old: str) -> str:
    """Where the file comes closest to what was looked for."""
    wanted = old.strip("\r\n").split("\n")
    lines = text.split("\n")
    bare = [line.strip() for line in lines]
    for at in range(len(bare) - len(wanted) + 1):
        if bare[at : at + len(wanted)] == [line.strip() for line in wanted]:
            return f"From line {at + 1} it holds the same words with other blanks; copy them as they are."
    close = difflib.get_close_matches(max(wanted, key=len).strip(), bare[:5000], n=1)
    if not close:
        return "Read the file again and copy the text exactly."
    at = bare.index(close[0])
    return f"The closest line is {at + 1}: {lines[at][:200]!r}"


@tool(name="list", requires_runtime=True, idempotent=True, concurrent=True, annotations=READS)
async def list_folder(ctx: ToolContext, path: str = ".") -> ToolResult:
    """List what a folder holds: folders end with /, links with @, files come with their size.

    Args:
        path: The folder, relative to the workspace.
    """
    runtime = ctx.require_runtime()
    info = await runtime.stat(path)
    if info is None:
        raise await not_there(runtime, path)
    if info.kind == "file":
        raise ToolError(f"{shown(path)} is a file; read it with the tool read")
    found = await runtime.list_files(path)
    lines = [_entry(each) for each in found[:_ENTRIES]]
    if len(found) > _ENTRIES:
        lines.append(f"[… and {len(found) - _ENTRIES} more; use glob to look for names]")
    return told(
        f"listed {shown(path)}: {len(found)} {'entry' if len(found) == 1 else 'entries'}",
        "\n".join(lines) or "[the folder is empty]",
    )


def _entry(info: FileInfo) -> str:
    name = shown(posixpath.basename(info.path))
    match info.kind:
        case "directory":
            return f"{name}/"
        case "link":
            return f"{name}@"
        case "file":
            return f"{name}  ({size_in_words(info.size)})"
        case "other":
            return f"{name}  (no file)"
