"""JSON schemas made small and always the same: no titles, fixed key order, closed objects."""

from __future__ import annotations

from typing import Any, cast

from turnlog.contract import JsonObject

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
