"""Asking a person about a call that waits for approval."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnlog.contract import JsonObject, PendingApproval
from turnlog.loop import Decision

from ._app import err, out, say
from ._keys import prompt_anew
from ._text import safe, short, whole

_PAIRS = (
    ("old", "new"),
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("old_text", "new_text"),
    ("search", "replace"),
    ("before", "after"),
)
"""Names that tools give to the text before and after an edit."""
_PATHS = ("path", "file_path", "file", "filename")
_CONTENTS = ("content", "contents", "text", "file_text", "new_content")
_LARGEST = 1_000_000  # bytes of a file that a new content is compared with

_ANSWERS: dict[str, Decision] = {"y": "approve", "yes": "approve", "a": "abort", "abort": "abort"}
_ALWAYS = ("s", "session", "always")
_LATER = ("l", "later")
_NO = re.compile(r"no?\b[\s,.:;-]*(?:because\b\s*)?(?P<why>.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Choice:
    """What a person decided. ``always``: the same for every call of this tool in this session."""

    action: Decision
    note: str | None = None
    always: bool = False


def ask(call: PendingApproval) -> Choice | None:
    """Show a call and ask until it is decided; None when it is left for later."""
    show_call(call)
    say(
        err,
        f"[dim]y: yes · n: no, or no, because … · s: always yes to {safe(call.tool_name)} in this session · "
        "a: abort the run · l: later[/]",
    )
    while True:
        try:
            given = prompt_anew("run it? ").strip()
        except (EOFError, KeyboardInterrupt):
            out.print()
            return None
        word = given.lower()
        if word in _LATER:
            return None
        if word in _ALWAYS:
            return Choice("approve", always=True)
        if word in _ANSWERS:
            return Choice(_ANSWERS[word])
        if refused := _NO.fullmatch(given):
            return Choice("deny", note=refused["why"].strip() or None)


def show_call(call: PendingApproval) -> None:
    """A call to the last character; what it changes in a text, as a diff. Only lines that a file here has
    already are left out."""
    why = f" [dim]{short(call.reason)}[/]" if call.reason else ""
    shown, diff = _find_edit(call.arguments)
    err.print(f"[magenta]{safe(call.tool_name)}[/] {whole(shown)}{why}")
    for line in diff:
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        err.print(f"[{colour}]{safe(line)}[/]" if colour else safe(line))


def _find_edit(arguments: JsonObject) -> tuple[JsonObject, list[str]]:
    """The arguments that are no part of an edit, and the edit."""
    for before, after in _PAIRS:
        old, new = arguments.get(before), arguments.get(after)
        if isinstance(old, str) and isinstance(new, str):
            rest = {name: value for name, value in arguments.items() if name not in (before, after)}
            return rest, list(_diff(old, new, context=len(old)))
    for path in _PATHS:
        for content in _CONTENTS:
            named, new = arguments.get(path), arguments.get(content)
            if isinstance(named, str) and isinstance(new, str):
                old = _read(named)
                if old is not None and old != new:
                    rest = {name: value for name, value in arguments.items() if name != content}
                    diff = list(_diff(old, new, context=3))
                    left = len(new.split("\n")) - sum(line[:1] in (" ", "+") for line in diff)
                    more = [f"({left} more lines are as in {named} on this machine)"] if left else []
                    return rest, diff + more
    return arguments, []


def _diff(old: str, new: str, *, context: int) -> Iterator[str]:
    lines = difflib.unified_diff(old.split("\n"), new.split("\n"), lineterm="", n=context)
    for number, line in enumerate(lines):
        if number > 1:  # behind the names of the files, which have none
            yield line


def _read(path: str) -> str | None:
    """The text of a file of this machine, which is not always the one that the tool works on."""
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > _LARGEST:
            return None
        return file.read_bytes().decode("utf-8")
    except (OSError, ValueError):
        return None
