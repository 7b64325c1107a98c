"""A call that waits for approval, as it is shown to a person, and what the person may answer."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import click
from rich.console import Console

from turnlog.contract import (
    ApprovalDecidedEntry,
    ApprovalRequestedEntry,
    JsonObject,
    PendingApproval,
    Store,
)
from turnlog.history import SessionState
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
_EVERY = ("every", "replace_all", "all")
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


@dataclass(frozen=True)
class Line:
    """One line of a changed text: ``+``, ``-`` or unchanged, with its number where the file is here. The sign
    ``⋯`` stands for what is left out."""

    sign: Literal["+", "-", " ", "⋯"]
    text: str
    number: int | None = None


def show_call(call: PendingApproval) -> None:
    """A call to the last character, with what it changes in a text as a diff, and how to answer. Only lines
    that a file here has already are left out."""
    why = f" [dim]{short(call.reason)}[/]" if call.reason else ""
    command = click.get_current_context(silent=True)
    folder = command.params.get("workspace") if command is not None else None
    shown, lines = find_edit(call.arguments, folder or ".")
    err.print(f"[magenta]{safe(call.tool_name)}[/] {whole(shown)}{why}")
    show_lines(err, lines)
    say(
        err,
        f"[dim]y: yes · n: no, or no, because … · s: always yes to {safe(call.tool_name)} in this session · "
        "a: abort the run · l: later[/]",
    )


def show_lines(console: Console, lines: Sequence[Line], indent: str = "") -> None:
    width = number_width(lines)
    for line in lines:
        number = f"{line.number or '':>{width}} " if width else ""
        text = safe(line.sign + line.text)
        colour = _COLOURS.get(line.sign)
        console.print(f"{indent}[dim]{number}[/]" + (f"[{colour}]{text}[/]" if colour else text))


_COLOURS = {"+": "green", "-": "red", "⋯": "dim"}


def number_width(lines: Sequence[Line]) -> int:
    """Columns for the numbers of lines; 0 when they have none."""
    return (
        len(str(max((line.number or 0 for line in lines), default=0)))
        if any(line.number for line in lines)
        else 0
    )


def workspace_of(state: SessionState) -> str | None:
    """The folder that a run works in, where its log has it."""
    found = (state.runtime_data or {}).get("workspace")
    return found if isinstance(found, str) else None


def find_edit(arguments: JsonObject, folder: str | None) -> tuple[JsonObject, list[Line]]:
    """The arguments that are no part of an edit, and the edit. Where the file is in ``folder`` on this
    machine, the lines have their numbers, and a few of those around the change are shown. Without a folder no
    file is looked at."""
    named = next((name for name in _PATHS if isinstance(arguments.get(name), str)), None)
    before = _read(arguments[named], folder) if named is not None and folder is not None else None
    if (pairs := _pairs_of(arguments)) is not None:
        rest, edits = pairs
        after, most = before, sys.maxsize if any(rest.get(name) is True for name in _EVERY) else 1
        for old, new in edits:
            found = after is not None and bool(old) and 1 <= after.count(old) <= most
            after = after.replace(old, new) if after is not None and found else None
        if before is not None and after is not None:
            return rest, _numbered(before, after)
        return rest, [line for old, new in edits for line in _whole_diff(old, new)]
    for content in _CONTENTS if named is not None and before is not None else ():
        new = arguments.get(content)
        if isinstance(new, str) and new != before and before is not None and named is not None:
            rest = {name: value for name, value in arguments.items() if name != content}
            lines = _numbered(before, new)
            left = len(new.split("\n")) - sum(line.sign in " +" for line in lines)
            more = f"({count(left, 'more line')} as in {arguments[named]} on this machine)"
            return rest, [*lines, *([Line("⋯", more)] if left else [])]
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


def _numbered(old: str, new: str) -> list[Line]:
    """The difference of two versions of a file, with three lines around each change."""
    if old.endswith("\n") and new.endswith("\n"):  # no line comes after the last break
        old, new = old[:-1], new[:-1]
    before, after = old.split("\n"), new.split("\n")
    lines: list[Line] = []
    groups = list(difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(3))
    for group in groups:
        if group[0][1] > 0:
            lines.append(Line("⋯", ""))
        for tag, i, j, k, m in group:
            if tag == "equal":
                lines += [Line(" ", text, k + at + 1) for at, text in enumerate(after[k:m])]
                continue
            lines += [Line("-", text, i + at + 1) for at, text in enumerate(before[i:j])]
            lines += [Line("+", text, k + at + 1) for at, text in enumerate(after[k:m])]
    if groups and groups[-1][-1][4] < len(after):
        lines.append(Line("⋯", ""))
    return lines


def _whole_diff(old: str, new: str) -> list[Line]:
    """All of both texts, without numbers: where they stand in the file is not known here."""
    before, after = old.split("\n"), new.split("\n")
    lines: list[Line] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [Line(" ", text) for text in before[i:j]]
        else:
            lines += [Line("-", text) for text in before[i:j]] + [Line("+", text) for text in after[k:m]]
    return lines


def _read(path: str, folder: str) -> str | None:
    """The text of a file of this machine, which is not always the one that the tool works on."""
    try:
        file = Path(folder) / path
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        return file.read_bytes().decode("utf-8")
    except (OSError, ValueError):
        return None
