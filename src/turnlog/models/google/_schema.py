"""JSON schemas in the words that Google's API takes. What it has no word for is left to our own check."""

from __future__ import annotations

from typing import Any, cast

from turnlog.contract import JsonObject

from .._loose import as_list, as_object

_JSON_KEYS = frozenset(
    {
        "$anchor",
        "$defs",
        "$id",
        "$ref",
        "additionalProperties",
        "anyOf",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "oneOf",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
_OPENAPI_KEYS = (_JSON_KEYS | {"maxLength", "minLength", "pattern"}) - {
    "$anchor",
    "$defs",
    "$id",
    "$ref",
    "additionalProperties",
    "oneOf",
    "prefixItems",
}
_FORMATS = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double"})
_OPENAPI_FORMATS = frozenset({"date-time", "int32", "int64", "float", "double"})


def json_schema(schema: JsonObject) -> JsonObject:
    """``schema`` with the keywords of the API alone."""
    definitions = _definitions(schema)
    return _clean({**schema, "$defs": definitions} if definitions else schema)


def openapi_schema(schema: JsonObject) -> JsonObject:
    """``schema`` as the API's own, older kind: no references, upper-case types, text alone in enums."""
    return _translate(schema, _definitions(schema), ())


def _clean(found: Any) -> JsonObject:
    schema = _plain(found)
    if "$ref" in schema:
        # Beside a reference the API takes no other word.
        others = _clean({key: value for key, value in schema.items() if key != "$ref"})
        reference: JsonObject = {"$ref": str(schema["$ref"]).replace("#/definitions/", "#/$defs/")}
        return {**others, "anyOf": [reference]} if others else reference
    clean: JsonObject = {}
    for key, value in schema.items():
        if key not in _JSON_KEYS:
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


def _translate(found: Any, definitions: JsonObject, within: tuple[str, ...]) -> JsonObject:
    schema = _plain(found)
    if reference := schema.get("$ref"):
        name = str(reference).rpartition("/")[2]
        others = {key: value for key, value in schema.items() if key != "$ref"}
        if name in within or name not in definitions:  # it holds itself: what lies deeper is not described
            return {"type": "OBJECT", **_translate(others, definitions, within)}
        return _translate({**as_object(definitions[name]), **others}, definitions, (*within, name))
    schema = _one_type(schema)
    said: JsonObject = {}
    for key, value in schema.items():
        match key:
            case "nullable":
                said[key] = value
            case "type":
                said[key] = str(value).upper()
            case "properties":
                inner = {n: _translate(one, definitions, within) for n, one in as_object(value).items()}
                if inner:  # an object without properties must not list them
                    said[key] = inner
            case "anyOf":
                said[key] = [_translate(one, definitions, within) for one in as_list(value)]
            case "items":
                said[key] = _translate(value, definitions, within)
            case "enum":
                if all(isinstance(one, str) for one in as_list(value)):
                    said[key] = value
            case "format":
                if isinstance(value, str) and value in _OPENAPI_FORMATS:
                    said[key] = value
            case _:
                if key in _OPENAPI_KEYS:
                    said[key] = value
    if "properties" in said and "required" in said:
        said["required"] = [name for name in said["required"] if name in said["properties"]]
    elif "required" in said:
        del said["required"]
    return said


def _one_type(schema: JsonObject) -> JsonObject:
    """Null is said by ``nullable``; several types become alternatives."""
    schema = dict(schema)
    if "oneOf" in schema:
        schema["anyOf"] = [*as_list(schema.pop("oneOf")), *as_list(schema.get("anyOf"))]
    types = schema.get("type")
    if isinstance(types, list):
        names = [name for name in cast("list[Any]", types) if name != "null"]
        if len(names) < len(cast("list[Any]", types)):
            schema["nullable"] = True
        del schema["type"]
        if len(names) == 1:
            schema["type"] = names[0]
        elif names:
            schema["anyOf"] = [{"type": name} for name in names]
    choices = [one for one in as_list(schema.get("anyOf")) if as_object(one).get("type") != "null"]
    if len(choices) < len(as_list(schema.get("anyOf"))):
        schema["nullable"] = True
        del schema["anyOf"]
        if len(choices) == 1:
            return _one_type({**as_object(choices[0]), **schema})
        schema["anyOf"] = choices
    return schema


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
