"""Arguments that come piece by piece, each with its place: put together into one JSON object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from turnlog.contract import AgentError, encode

from ._events import PartialArg

_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]]+) | \[(?P<index>\d+)\] | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)
_LONGEST_LIST = 100_000


class PartialArguments:
    """``add`` pieces; ``text`` is the object they make. Pieces of one text are joined."""

    __slots__ = ("_growing", "_path", "_root")

    def __init__(self) -> None:
        self._root: Any = {}
        self._path: str | None = None
        """The place whose text is not complete yet."""
        self._growing: list[str] = []

    def add(self, pieces: Sequence[PartialArg]) -> None:
        for piece in pieces:
            value = _value(piece)
            goes_on = isinstance(value, str) and self._path == piece.json_path
            if not goes_on:
                self._settle()
            if isinstance(value, str):
                self._path = piece.json_path
                self._growing.append(value)
            else:
                self._root = _put(self._root, _steps(piece.json_path), value)
                self._path = piece.json_path
            if not piece.will_continue:
                self._settle()

    def _settle(self) -> None:
        """The text that was growing is complete."""
        if self._growing:
            assert self._path is not None
            self._root = _put(self._root, _steps(self._path), "".join(self._growing))
            self._growing.clear()
        self._path = None

    @property
    def text(self) -> str:
        self._settle()
        return encode(self._root).decode()


def _steps(path: str) -> list[str | int]:
    at = 1 if path[:1] == "$" else 0
    steps: list[str | int] = []
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise AgentError("ModelProtocolError", f"the place {path!r} of an argument cannot be read")
        index = found["index"]
        name = found["name"] or found["single"] or found["double"] or ""
        steps.append(name if index is None else int(index))
        at = found.end()
    return steps


def _value(piece: PartialArg) -> Any:
    if piece.string_value is not None:
        return piece.string_value
    if piece.bool_value is not None:
        return piece.bool_value
    number = piece.number_value
    if number is None:
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _put(root: Any, steps: list[str | int], value: Any) -> Any:
    """``root`` with ``value`` at the place; what is missing on the way is made."""
    if not steps:
        return value
    step = steps[0]
    if isinstance(step, int):
        items = cast("list[Any]", root) if isinstance(root, list) else []
        if step > _LONGEST_LIST:
            raise AgentError("ModelProtocolError", f"an argument names place {step} of a list")
        items += [None] * (step + 1 - len(items))
        items[step] = _put(items[step], steps[1:], value)
        return items
    fields = cast("dict[str, Any]", root) if isinstance(root, dict) else {}
    fields[step] = _put(fields.get(step), steps[1:], value)
    return fields
