"""JSON schemas made small and always the same (no titles, fixed key order, closed objects), and values
checked against them."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Callable
from typing import Any, cast

import msgspec

from turnlog.contract import JsonObject

from ._answer import shorten

_ORDER = (
    "$schema", "$id", "$ref", "type", "description", "const", "enum", "format", "contentEncoding", "pattern",
    "minLength", "maxLength", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf",
    "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "properties", "patternProperties",
    "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames", "anyOf", "oneOf",
    "allOf", "not", "discriminator", "default", "examples", "deprecated", "$defs",
)  # fmt: skip
_RANK = {key: rank for rank, key in enumerate(_ORDER)}
_SCHEMAS = {"items", "additionalProperties", "not", "propertyNames", "contains", "if", "then", "else"}
_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_MAPS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}


def normalise(schema: JsonObject) -> JsonObject:
    """The same schema without titles, its keywords in a fixed order; names keep the order they have."""
    out: JsonObject = {}
    for key in sorted(schema, key=lambda key: (_RANK.get(key, len(_RANK)), key)):
        if key == "title" and isinstance(schema[key], str):
            continue
        out[key] = _child(key, schema[key])
    if out.get("type") == "string" and out.get("format") in ("base64url", "binary"):
        del out["format"]
        out["contentEncoding"] = "base64"
        return normalise(out) if list(out)[-1] == "contentEncoding" and len(out) > 2 else out
    return out


def _child(key: str, value: Any) -> Any:
    if key in _SCHEMAS and isinstance(value, dict):
        return normalise(cast("JsonObject", value))
    if key in _LISTS and isinstance(value, list):
        return [
            normalise(cast("JsonObject", item)) if isinstance(item, dict) else item
            for item in cast("list[Any]", value)
        ]
    if key in _MAPS and isinstance(value, dict):
        return {
            name: normalise(cast("JsonObject", item)) if isinstance(item, dict) else item
            for name, item in cast("JsonObject", value).items()
        }
    return value


def forbid_extras(schema: JsonObject, *, open_root: bool = False) -> JsonObject | None:
    """The schema with every object of named fields closed to others; None when one of them is open on
    purpose (``open_root``: one other than the outermost)."""
    found = [node for node in _nodes(schema) if "properties" in node and not (open_root and node is schema)]
    if any(node.get("additionalProperties") is True for node in found):
        return None
    return normalise(_closed(schema))


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    out: JsonObject = {}
    for key, value in cast("JsonObject", node).items():
        if key in _SCHEMAS or key in _LISTS:
            out[key] = _closed(value)
        elif key in _MAPS and isinstance(value, dict):
            out[key] = {name: _closed(item) for name, item in cast("JsonObject", value).items()}
        else:
            out[key] = value
    if "properties" in out:
        out.setdefault("additionalProperties", False)
    return out


def _nodes(node: Any) -> list[JsonObject]:
    if isinstance(node, list):
        return [found for item in cast("list[Any]", node) for found in _nodes(item)]
    if not isinstance(node, dict):
        return []
    schema = cast("JsonObject", node)
    found = [schema]
    for key, value in schema.items():
        if key in _SCHEMAS or key in _LISTS:
            found += _nodes(value)
        elif key in _MAPS and isinstance(value, dict):
            found += [inner for item in cast("JsonObject", value).values() for inner in _nodes(item)]
    return found


def resolve_ref(root: JsonObject, node: JsonObject) -> JsonObject:
    """Follow local references (``#/$defs/X``); an unknown one allows anything."""
    for _ in range(32):
        ref = node.get("$ref")
        if not isinstance(ref, str):
            return node
        if not ref.startswith("#"):
            return {}
        found: Any = root
        for step in ref[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = cast("JsonObject", found).get(name) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            return {}
        node = cast("JsonObject", found)
    return {}


_MAX_DEPTH = 64
_TYPES: dict[str, str] = {
    "object": "an object",
    "array": "an array",
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", operator.ge, "at least"),
    ("exclusiveMinimum", operator.gt, "greater than"),
    ("maximum", operator.le, "at most"),
    ("exclusiveMaximum", operator.lt, "less than"),
)


def check_schema(schema: JsonObject, value: object) -> list[str]:
    """Everything in ``value`` that breaks ``schema``, in words, each with its path."""
    return _Checker(schema).check(schema, value, "", 0)


def found_text(value: object) -> str:
    """A value as a message shows it: its JSON, cut, and what kind of thing it is."""
    try:
        text = shorten(msgspec.json.encode(value).decode(), 80)
    except Exception:
        text = shorten(repr(value), 80)
    kind = kind_of(value)
    return text if kind in ("null", "true or false") else f"{text} ({kind})"


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "an array"
        case _:
            return "an object"


def unknown_field(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"there is no such field{hint} (fields: {', '.join(known) or 'none'})"


class _Checker:
    def __init__(self, root: JsonObject) -> None:
        self._root = root

    def check(self, schema: Any, value: object, path: str, depth: int) -> list[str]:
        if schema is False:
            return [_at(path, "must be left out")]
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return []
        node = resolve_ref(self._root, cast("JsonObject", schema))
        wrong = self._type(node, value, path)
        if wrong:
            return wrong
        problems = self._value(node, value, path) + self._choices(node, value, path, depth)
        match value:
            case dict():
                problems += self._object(node, cast("JsonObject", value), path, depth)
            case list():
                problems += self._array(node, cast("list[object]", value), path, depth)
            case _:
                pass
        return problems

    def _type(self, node: JsonObject, value: object, path: str) -> list[str]:
        wanted = node.get("type")
        if wanted is None:
            return []
        names = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
        if any(_is_type(value, name) for name in names):
            return []
        words = " or ".join(_TYPES.get(str(name), str(name)) for name in names)
        return [_at(path, f"should be {words}, found {found_text(value)}")]

    def _value(self, node: JsonObject, value: object, path: str) -> list[str]:
        problems: list[str] = []
        if "const" in node and not _same(value, node["const"]):
            problems.append(f"should be {found_text(node['const'])}")
        allowed = node.get("enum")
        if isinstance(allowed, list) and not any(_same(value, each) for each in cast("list[Any]", allowed)):
            shown = ", ".join(msgspec.json.encode(each).decode() for each in cast("list[Any]", allowed)[:50])
            problems.append(f"should be one of {shown}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            problems += _number(node, value)
        if isinstance(value, str):
            problems += _length(node, "Length", len(value), "characters")
        return [_at(path, f"{problem}, found {found_text(value)}") for problem in problems]

    def _choices(self, node: JsonObject, value: object, path: str, depth: int) -> list[str]:
        problems: list[str] = []
        for part in _schemas(node.get("allOf")):
            problems += self.check(part, value, path, depth + 1)
        for key in ("anyOf", "oneOf"):
            arms = _schemas(node.get(key))
            if not arms:
                continue
            results = [self.check(arm, value, path, depth + 1) for arm in arms]
            if all(results):
                # The problems of the arm that came closest help most; of several equal ones all are given.
                least = min(len(result) for result in results)
                nearest = [" and ".join(result) for result in results if len(result) == least]
                problems.append("; or ".join(dict.fromkeys(nearest)))
            elif key == "oneOf" and sum(not result for result in results) > 1:
                problems.append(_at(path, f"fits several of the {len(arms)} forms allowed, should fit one"))
        return problems

    def _object(self, node: JsonObject, value: JsonObject, path: str, depth: int) -> list[str]:
        known = cast("JsonObject", node.get("properties") or {})
        problems = [
            _at(_join(path, str(name)), "is required but missing")
            for name in cast("list[Any]", node.get("required") or [])
            if name not in value
        ]
        for name, item in value.items():
            if name in known:
                problems += self.check(known[name], item, _join(path, name), depth + 1)
            elif node.get("additionalProperties") is False and "patternProperties" not in node:
                problems.append(_at(_join(path, name), unknown_field(name, list(known))))
            elif isinstance(node.get("additionalProperties"), dict):
                problems += self.check(node["additionalProperties"], item, _join(path, name), depth + 1)
        return problems + [
            _at(path, problem) for problem in _length(node, "Properties", len(value), "fields")
        ]

    def _array(self, node: JsonObject, value: list[object], path: str, depth: int) -> list[str]:
        problems = [_at(path, problem) for problem in _length(node, "Items", len(value), "items")]
        first = _schemas(node.get("prefixItems"))
        for index, item in enumerate(value):
            inner = first[index] if index < len(first) else node.get("items")
            problems += self.check(inner, item, f"{path}[{index}]", depth + 1)
        if node.get("uniqueItems") is True:
            encoded = [msgspec.json.encode(item, order="sorted") for item in value]
            if len(set(encoded)) < len(encoded):
                problems.append(_at(path, "should not hold the same item twice"))
        return problems


def _schemas(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _is_type(value: object, name: Any) -> bool:
    match name:
        case "integer":
            whole = isinstance(value, float) and value.is_integer()
            return whole or (isinstance(value, int) and not isinstance(value, bool))
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return True  # a type of a newer schema language


def _same(left: object, right: object) -> bool:
    """JSON equality: 1 and 1.0 are one value, true and 1 are two."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return left == right


def _number(node: JsonObject, value: float) -> list[str]:
    problems: list[str] = []
    for key, fits, words in _BOUNDS:
        limit = node.get(key)
        if isinstance(limit, int | float) and not isinstance(limit, bool) and not fits(value, limit):
            problems.append(f"should be {words} {limit}")
    step = node.get("multipleOf")
    if isinstance(step, int | float) and step > 0:
        times = value / step
        if math.isfinite(times) and abs(times - round(times)) > 1e-9:
            problems.append(f"should be a multiple of {step}")
    return problems


def _length(node: JsonObject, suffix: str, size: int, unit: str) -> list[str]:
    least, most = node.get(f"min{suffix}"), node.get(f"max{suffix}")
    problems: list[str] = []
    if isinstance(least, int) and size < least:
        problems.append(f"should have at least {least} {unit}, has {size}")
    if isinstance(most, int) and size > most:
        problems.append(f"should have at most {most} {unit}, has {size}")
    return problems


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str, words: str) -> str:
    return f"{path}: {words}" if path else words
