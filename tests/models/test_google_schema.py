"""Schemas in the words of Google's API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.anthropic_wire import WEATHER
from models.google_wire import HELLO, ask, check_official
from turnlog.contract import ToolSpec
from turnlog.models.google._schema import json_schema

TREE: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "Tree",
    "properties": {
        "title": {"type": "string", "title": "Title", "minLength": 1, "format": "uri"},
        "root": {"$ref": "#/$defs/Node", "description": "the first"},
        "when": {"type": "string", "format": "date-time", "default": None},
        "count": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10, "multipleOf": 2},
        "share": {"type": "number", "exclusiveMinimum": 0},
        "kind": {"const": "tree"},
        "on": {"const": True},
        "level": {"enum": [1, 2]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "integer", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1},
        "both": {
            "allOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]}, {"required": ["b"]}]
        },
    },
    "required": ["title"],
    "additionalProperties": False,
    "$defs": {
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
    },
}


def test_json_schemas_keep_what_the_api_knows() -> None:
    assert json_schema(TREE) == {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "root": {"anyOf": [{"$ref": "#/$defs/Node"}], "description": "the first"},
            "when": {"type": "string", "format": "date-time"},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "share": {"type": "number", "minimum": 0},
            "kind": {"type": "string", "enum": ["tree"]},
            "on": {"type": "boolean"},
            "level": {"type": "integer", "enum": [1, 2]},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"type": ["string", "integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "both": {"type": "object", "properties": {"a": {}}, "required": ["b", "a"]},
        },
        "required": ["title"],
        "additionalProperties": False,
        "$defs": {
            "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}
        },
    }


def test_older_drafts_name_their_definitions_otherwise() -> None:
    old = {"properties": {"a": {"$ref": "#/definitions/A"}}, "definitions": {"A": {"type": "string"}}}
    assert json_schema(old) == {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"type": "string"}},
    }


@pytest.mark.spec("P-9")
async def test_tools_fit_the_official_types() -> None:
    tree = ToolSpec(name="tree", description="Plants a tree.", parameter_schema=TREE)
    nothing = ToolSpec(
        name="now", description="The time.", parameter_schema={"type": "object", "properties": {}}
    )
    body = await ask(HELLO, [tree, WEATHER, nothing])
    check_official(body)
    assert all("parametersJsonSchema" in one for one in body["tools"][0]["functionDeclarations"])


keys = st.sampled_from(
    [
        "type",
        "properties",
        "items",
        "anyOf",
        "allOf",
        "enum",
        "const",
        "$ref",
        "required",
        "format",
        "not",
        "x",
    ]
)
schemas: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("#/$defs/A"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(keys | st.just("$defs"), schemas, max_size=5))
def test_any_schema_comes_through(schema: dict[str, Any]) -> None:
    before = json.dumps(schema)
    json.dumps(json_schema(schema))
    assert json.dumps(schema) == before
