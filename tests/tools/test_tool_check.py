"""Schemas from elsewhere: the checker for tools whose types are not ours."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog.tools import Tool

CASES: list[tuple[dict[str, Any], Any, list[str]]] = [
    ({"type": "string"}, "x", []),
    ({"type": "string"}, 1, ["v: should be text, found 1 (an integer)"]),
    ({"type": ["string", "null"]}, None, []),
    ({"type": ["string", "null"]}, True, ["v: should be text or null, found true"]),
    ({"type": "integer"}, 2.0, []),
    ({"type": "integer"}, 2.5, ["v: should be an integer, found 2.5 (a number)"]),
    ({"type": "integer"}, True, ["v: should be an integer, found true"]),
    ({"type": "number"}, True, ["v: should be a number, found true"]),
    ({"type": "number", "minimum": 1, "exclusiveMaximum": 3}, 3,
     ["v: should be less than 3, found 3 (an integer)"]),
    ({"type": "number", "multipleOf": 0.1}, 0.3, []),
    ({"type": "number", "multipleOf": 5}, 7, ["v: should be a multiple of 5, found 7 (an integer)"]),
    ({"enum": ["a", 1]}, 1.0, []),
    ({"enum": ["a", 1]}, True, ['v: should be one of "a", 1, found true']),
    ({"const": "x"}, "y", ['v: should be "x" (text), found "y" (text)']),
    ({"type": "string", "minLength": 2}, "a",
     ['v: should have at least 2 characters, has 1, found "a" (text)']),
    ({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [1, "b"],
     ["v: should have at most 1 items, has 2", 'v[1]: should be an integer, found "b" (text)']),
    ({"type": "array", "uniqueItems": True}, [{"a": 1}, {"a": 1}],
     ["v: should not hold the same item twice"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, [1, 2],
     ["v[1]: should be text, found 2 (an integer)"]),
    ({"type": "object", "properties": {"name": {}}, "required": ["name"], "additionalProperties": False},
     {"nmae": 1},
     ["v.name: is required but missing",
      "v.nmae: there is no such field; did you mean 'name'? (fields: name)"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "x"},
     ['v.a: should be an integer, found "x" (text)']),
    ({"type": "object", "minProperties": 1}, {}, ["v: should have at least 1 fields, has 0"]),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [],
     ["v: should be an integer, found [] (an array); or v: should be text, found [] (an array)"]),
    ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x", []),
    ({"oneOf": [{"type": "integer"}, {"minimum": 0}]}, 5,
     ["v: fits several of the 2 forms allowed, should fit one"]),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 4, ["v: should be at most 3, found 4 (an integer)"]),
    ({"$ref": "#/$defs/N"}, "x", ['v: should be an integer, found "x" (text)']),
    ({"$ref": "https://elsewhere.example/schema"}, "anything", []),
    ({"$ref": "#/$defs/Loop"}, {"next": {"next": {"next": 1}}},
     ["v.next.next.next: should be an object, found 1 (an integer)"]),
    ({"$ref": "#/$defs/Self"}, "x", []),
    ({"type": "string", "pattern": "(a+)+$"}, "a" * 40 + "!", []),
    ({"type": "from-the-future"}, 1, []),
    (False, 1, ["v: must be left out"]),  # type: ignore[list-item]
    (True, 1, []),  # type: ignore[list-item]
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "problems"), CASES)
def test_checked(schema: dict[str, Any], value: Any, problems: list[str]) -> None:
    whole = {
        "type": "object",
        "properties": {"v": schema},
        "$defs": {
            "N": {"type": "integer"},
            "Loop": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Loop"}}},
            "Self": {"$ref": "#/$defs/Self"},
        },
    }
    foreign = Tool.from_schema("foreign", "Far away.", whole, lambda arguments, ctx: arguments)
    assert foreign.bind({"v": value}).problems == problems


def test_depth_is_bounded() -> None:
    schema = {"type": "object", "properties": {"v": {"$ref": "#"}}}
    deep: Any = 1
    for _ in range(900):
        deep = {"v": deep}
    foreign = Tool.from_schema("foreign", "Far away.", schema, lambda arguments, ctx: arguments)
    assert foreign.bind(deep).problems == []
