"""pydantic's errors in words that a model can act on: where, what is expected, what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from turnlog.contract import JsonObject

from ._check import found_text, unknown_field
from ._schema import resolve_ref

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, ValidationError

_MISSING = {
    "missing",
    "missing_argument",
    "missing_keyword_only_argument",
    "missing_positional_only_argument",
}
_EXTRA = {"extra_forbidden", "unexpected_keyword_argument"}
_SHOWN = 25


def describe(error: ValidationError, value: object, schema: JsonObject) -> list[str]:
    """One line for each place where something is wrong."""
    places: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_context=False):
        path, words = _one(item, value, schema)
        lines = places.setdefault(path, [])
        if words not in lines:
            lines.append(words)
    out = [f"{path}: {_joined(lines)}" if path else _joined(lines) for path, lines in places.items()]
    rest = len(out) - _SHOWN
    return [*out[:_SHOWN], f"and {rest} more"] if rest > 0 else out


def _one(item: ErrorDetails, value: object, schema: JsonObject) -> tuple[str, str]:
    kind, loc = item["type"], item["loc"]
    steps, owner = _walk(loc, value, ends_outside=kind in _MISSING)
    path = _path(steps)
    if kind in _MISSING:
        return path, "is required but missing"
    if kind in _EXTRA and steps:
        known = _fields(owner, steps, schema)
        return path, unknown_field(str(steps[-1]), known) if known else "there is no such field"
    words = item["msg"]
    if kind == "struct":
        return path, words
    for start, instead in (("Input should ", "should "), ("Value error, ", ""), ("Assertion failed, ", "")):
        if words.startswith(start):
            words = instead + words[len(start) :]
    return path, f"{words}, found {found_text(item['input'])}"


def _joined(lines: list[str]) -> str:
    """Several at one place are the arms of a union: what was found is said once."""
    if len(lines) == 1:
        return lines[0]
    heads = [line.rsplit(", found ", 1)[0] for line in lines]
    tails = {line.rsplit(", found ", 1)[-1] for line in lines if ", found " in line}
    found = f", found {tails.pop()}" if len(tails) == 1 else ""
    return " or ".join(dict.fromkeys(heads)) + found


def _walk(
    loc: tuple[int | str, ...], value: object, *, ends_outside: bool
) -> tuple[list[int | str], dict[str, Any]]:
    """The steps of ``loc`` that lead through ``value``; the others name arms of unions and are left out."""
    steps: list[int | str] = []
    owner: dict[str, Any] = {}
    for index, step in enumerate(loc):
        last = index == len(loc) - 1
        match value:
            case dict() if step in value or (last and ends_outside):
                owner = cast("dict[str, Any]", value)
                value = owner.get(str(step))
                steps.append(step)
            case list() if isinstance(step, int) and step < len(cast("list[Any]", value)):
                value = cast("list[Any]", value)[step]
                steps.append(step)
            case _:
                continue
    return steps, owner


def _fields(owner: dict[str, Any], steps: list[int | str], schema: JsonObject) -> list[str]:
    """The names allowed beside an unknown one, read from the schema along the way to it."""
    node = schema
    for step in steps[:-1]:
        node = _step(resolve_ref(schema, node), step, schema)
    node = resolve_ref(schema, node)
    return list(cast("JsonObject", node.get("properties") or {}))


def _step(node: JsonObject, step: int | str, root: JsonObject) -> JsonObject:
    arms = [resolve_ref(root, arm) for arm in (node, *(node.get("anyOf") or ()), *(node.get("oneOf") or ()))]
    for arm in arms:
        named = cast("JsonObject", arm.get("properties") or {})
        found = arm.get("items") if isinstance(step, int) else named.get(step)
        if isinstance(found, dict):
            inner = resolve_ref(root, cast("JsonObject", found))
            for choice in (inner, *(inner.get("anyOf") or ()), *(inner.get("oneOf") or ())):
                choice = resolve_ref(root, choice)
                if "properties" in choice or "items" in choice:
                    return choice
            return inner
    return {}


def _path(steps: list[int | str]) -> str:
    out = ""
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out
