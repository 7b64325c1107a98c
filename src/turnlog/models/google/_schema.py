"""JSON schemas in the words that Google's API takes. What it has no word for is left to our own check."""

from __future__ import annotations

from typing import Any

from turnlog.contract import JsonObject

from .._answer import as_list, as_object

_KEYS = frozenset({
    "$anchor", "$defs", "$id", "$ref", "additionalProperties", "anyOf", "description", "enum", "format",
    "items", "maxItems", "maximum", "minItems", "minimum", "oneOf", "prefixItems", "properties", "required",
    "type",
})  # fmt: skip
_FORMATS = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double"})


def json_schema(schema: JsonObject) -> JsonObject:
    """``schema`` with the keywords of the API alone."""
    definitions = _definitions(schema)
    return _clean({**schema, "$defs": definitions} if definitions else schema)


def _clean(found: Any) -> JsonObject:
    schema = _plain(found)
    if "$ref" in schema:
        # Beside a reference the API takes no other word.
        others = _clean({key: value for key, value in schema.items() if key != "$ref"})
        reference: JsonObject = {"$ref": str(schema["$ref"]).replace("#/definitions/", "#/$defs/")}
        return {**others, "anyOf": [reference]} if others else reference
    clean: JsonObject = {}
    for key, value in schema.items():
        if key not in _KEYS:
            continue
        match key:
            case "properties" | "$defs":
                clean[key] = {name: _clean(inner) for name, inner in as_object(value).items()}
            case "anyOf" | "oneOf" | "prefixItems":
                clean[key] = [_clean(inner) for inner in as_list(value)]
            case "items":
                clean[key] = _clean(value)
            case "additionalProperties":
                clean[key] = value if isinstance(value, bool) else _clean(value)
            case "format":
                if isinstance(value, str) and value in _FORMATS:
                    clean[key] = value
            case _:
                clean[key] = value
    return clean


def _plain(found: Any) -> JsonObject:
    """One schema with what has a plainer word said in it: constants, exclusive limits, joined schemas."""
    schema = dict(as_object(found))
    for part in as_list(schema.pop("allOf", None)):
        schema = _joined(_plain(part), schema)
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "enum" in schema:
        _spell_enum(schema)
    for exclusive, inclusive, step in (
        ("exclusiveMinimum", "minimum", 1),
        ("exclusiveMaximum", "maximum", -1),
    ):
        limit = schema.pop(exclusive, None)
        if isinstance(limit, int | float) and not isinstance(limit, bool) and inclusive not in schema:
            whole = schema.get("type") == "integer" and float(limit).is_integer()
            schema[inclusive] = int(limit) + step if whole else limit
    return schema


def _spell_enum(schema: JsonObject) -> None:
    values = as_list(schema.pop("enum"))
    fit = [value for value in values if isinstance(value, str | int | float) and not isinstance(value, bool)]
    if fit and len(fit) == len(values):
        schema["enum"] = fit
    kinds = {_name_of(value) for value in values}
    if "type" not in schema and len(kinds) == 1 and None not in kinds:
        schema["type"] = kinds.pop()


def _name_of(value: object) -> str | None:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case _:
            return None


def _joined(first: JsonObject, second: JsonObject) -> JsonObject:
    joined = {**first, **second}
    for key in ("properties", "$defs"):
        if key in first and key in second:
            joined[key] = {**as_object(first[key]), **as_object(second[key])}
    if "required" in first and "required" in second:
        joined["required"] = list(dict.fromkeys([*as_list(first["required"]), *as_list(second["required"])]))
    return joined


def _definitions(schema: JsonObject) -> JsonObject:
    return {**as_object(schema.get("definitions")), **as_object(schema.get("$defs"))}
