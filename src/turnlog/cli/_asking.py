"""A call that waits for approval, as it is shown to a person, and what the person may answer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import click

from turnlog.contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    JsonObject,
    PendingApproval,
    Store,
)
from turnlog.loop import Decision

from ._app import count, err, say
from ._text import safe, short, whole

ALWAYS = "always in this session"

_PAIRS = (
    ("old", "new"),
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("old_text", "new_text"),
    ("search", "replace"),
    ("before", "after"),
)
"""Names that tools give to the text before and after an edit."""
_MORE = "more"  # further replacements of the built-in tool, as a list
_PATHS = ("path", "file_path", "file", "filename")
_CONTENTS = ("content", "contents", "text", "file_text", "new_content")
_LARGEST = 1_000_000  # bytes of a file that a new content is compared with

_ANSWERS: dict[str, Decision] = {"y": "approve", "yes": "approve", "a": "abort", "abort": "abort"}
_SESSION = ("s", "session", "always")
_LATER = ("l", "later")
_NO = re.compile(r"no?\b[\s,.:;-]*(?:because\b\s*)?(?P<why>.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Choice:
    """What a person decided. ``always``: the same for every call of this tool in this session."""

    action: Decision
    note: str | None = None
    always: bool = False


LATER = "later"


def read_answer(given: str) -> Choice | Literal["later"] | None:
    """What a person typed at the question; None when it is no answer."""
    word = given.strip().lower()
    if word in _LATER:
        return LATER
    if word in _SESSION:
        return Choice("approve", always=True)
    if word in _ANSWERS:
        return Choice(_ANSWERS[word])
    if refused := _NO.fullmatch(given.strip()):
        return Choice("deny", note=refused["why"].strip() or None)
    return None


async def allowed_tools(store: Store, session: str) -> set[str]:
    """Tools whose calls were always approved in this session; what a fork took along does not count."""
    names: dict[str, str] = {}
    allowed: set[str] = set()
    for entry in await store.load(session):
        if isinstance(entry, ApprovalRequestedEntry):
            names[entry.payload.tool_call_id] = entry.payload.tool_name
        elif isinstance(entry, ApprovalDecidedEntry) and entry.session_id == session:
            decided = entry.payload
            if decided.note == ALWAYS and decided.tool_call_id in names:
                allowed.add(names[decided.tool_call_id])
    return allowed


def show_call(call: PendingApproval) -> None:
    """A call to the last character, with what it changes in a text as a diff, and how to answer. Only lines
    that a file here has already are left out."""
    why = f" [dim]{short(call.reason)}[/]" if call.reason else ""
    shown, diff = _find_edit(call.arguments)
    err.print(f"[magenta]{safe(call.tool_name)}[/] {whole(shown)}{why}")
    for line in diff:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        err.print(f"[{colour}]{safe(line)}[/]" if colour else safe(line))
    say(
        err,
        f"[dim]y: yes · n: no, or no, because … · s: always yes to {safe(call.tool_name)} in this session · "
        "a: abort the run · l: later[/]",
    )


def _find_edit(arguments: JsonObject) -> tuple[JsonObject, list[str]]:
    """The arguments that are no part of an edit, and the edit."""
    if (pairs := _pairs_of(arguments)) is not None:
        rest, edits = pairs
        diffs = [_diff(old, new, context=len(old)) for old, new in edits]
        return rest, [line for diff in diffs for line in diff]
    for path in _PATHS:
        for content in _CONTENTS:
            named, new = arguments.get(path), arguments.get(content)
            if isinstance(named, str) and isinstance(new, str):
                old = _read(named)
                if old is not None and old != new:
                    rest = {name: value for name, value in arguments.items() if name != content}
                    diff = list(_diff(old, new, context=3))
                    left = len(new.split("\n")) - sum(line[:1] in (" ", "+") for line in diff)
                    more = [f"({count(left, 'more line')} as in {named} on this machine)"] if left else []
                    return rest, diff + more
    return arguments, []


def _pairs_of(arguments: JsonObject) -> tuple[JsonObject, list[tuple[str, str]]] | None:
    """The texts that an edit replaces, and the other arguments; None when it is no such edit."""
    for before, after in _PAIRS:
        old, new = arguments.get(before), arguments.get(after)
        if isinstance(old, str) and isinstance(new, str):
            rest = {name: value for name, value in arguments.items() if name not in (before, after)}
            edits = [(old, new)]
            more: Any = rest.get(_MORE)
            further = (
                [_pairs_of(each) for each in cast("list[Any]", more)] if _is_list_of_objects(more) else []
            )
            if further and all(each is not None and not each[0] for each in further):
                del rest[_MORE]
                edits += [pair for each in further if each is not None for pair in each[1]]
            return rest, edits
    return None


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in cast("list[object]", value))


def _diff(old: str, new: str, *, context: int) -> Iterator[str]:
    lines = difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=context)
    for number, line in enumerate(lines):
        if number > 1:  # behind the names of the files, which have none
            yield line


def _read(path: str) -> str | None:
    """The text of a file of this machine, which is not always the one that the tool works on."""
    try:
        file = Path(click.get_current_context().params.get("workspace") or ".") / path
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        return file.read_bytes().decode("utf-8")
    except (OSError, ValueError):
        return None
