"""Structured output: the schema of a type, and answers checked against it."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict

from turnlog.contract import AgentError
from turnlog.tools import output_schema, validate_output


class Pet(BaseModel):
    name: str
    age: int = 1


@dataclass
class Point:
    x: float
    y: float


class Row(TypedDict):
    id: int
    note: NotRequired[str]


class Leaf(msgspec.Struct, kw_only=True):
    size: int
    tags: list[str] = []


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


OBJECT = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("type_", "schema", "good", "value"),
    [
        (
            Pet,
            {**OBJECT, "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 1}},
             "required": ["name"]},
            '{"name": "Rex"}',
            Pet(name="Rex"),
        ),
        (
            Point,
            {**OBJECT, "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
             "required": ["x", "y"]},
            '{"x": 1, "y": 2.5}',
            Point(1.0, 2.5),
        ),
        (
            Row,
            {**OBJECT, "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
             "required": ["id"]},
            '{"id": 4}',
            {"id": 4},
        ),
        (
            Leaf,
            {**OBJECT, "properties": {"size": {"type": "integer"},
                                      "tags": {"type": "array", "items": {"type": "string"}, "default": []}},
             "required": ["size"]},
            '{"size": 4, "tags": ["a"]}',
            Leaf(size=4, tags=["a"]),
        ),
    ],
)  # fmt: skip
def test_object_types(type_: Any, schema: dict[str, Any], good: str, value: Any) -> None:
    assert output_schema(type_) == schema
    for answer in (good, f"```json\n{good}\n```", f"\n```\n{good}\n```\n", json.loads(good)):
        found = validate_output(type_, answer)
        assert (found.value, found.errors, found.ok) == (value, [], True)
        assert type(found.value) is type(value)
    assert validate_output(type_, '{"nope": 1}').errors


def test_other_types_are_wrapped_because_providers_want_objects() -> None:
    assert output_schema(list[int]) == {
        **OBJECT,
        "properties": {"value": {"type": "array", "items": {"type": "integer"}}},
        "required": ["value"],
    }
    for answer in ('{"value": [1, 2]}', "[1, 2]", [1, 2], {"value": [1, 2]}):
        assert validate_output(list[int], answer).value == [1, 2]
    assert validate_output(Literal["yes", "no"], '{"value": "yes"}').value == "yes"
    assert validate_output(str, "just text").value == "just text"
    assert validate_output(bool, "true").value is True
    assert validate_output(datetime.date, '"2026-01-02"').value == datetime.date(2026, 1, 2)
    assert validate_output(list[Leaf], '[{"size": 1}]').value == [Leaf(size=1)]


def test_unions_of_objects_keep_their_definitions() -> None:
    schema = output_schema(Pet | Point)
    assert schema["properties"]["value"] == {"anyOf": [{"$ref": "#/$defs/Pet"}, {"$ref": "#/$defs/Point"}]}
    assert set(schema["$defs"]) == {"Pet", "Point"}
    assert validate_output(Pet | Point, '{"value": {"name": "Rex"}}').value == Pet(name="Rex")
    assert validate_output(Pet | Point, {"x": 1, "y": 1}).value == Point(1, 1)


def test_everything_wrong_is_told_at_once() -> None:
    found = validate_output(Pet, '{"age": "old", "colour": "red"}')
    assert found.errors == [
        "name: is required but missing",
        'age: should be a valid integer, found "old" (text)',
        "colour: there is no such field (fields: name, age)",
    ]
    assert "Your answer does not fit" in found.correction
    assert "- name: is required but missing" in found.correction
    struct = validate_output(Leaf, '{"size": "x", "tags": [1]}')
    assert 'size: should be an integer, found "x" (text)' in struct.errors[0]
    assert "tags[0]: should be text" in struct.errors[0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "the answer is empty"),
        ("Here you are: {}", "not JSON"),
        ('{"name": "a", "name": "b"}', "appears twice"),
        ('{"name": NaN}', "NaN is not JSON"),
        ('{"name": "a"} {"name": "b"}', "not JSON"),
        ('1, "x": 2', "not JSON"),
        ("[]", "should be"),
        ("null", "should be"),
    ],
)
def test_answers_that_are_no_such_json(answer: str, words: str) -> None:
    found = validate_output(Pet, answer)
    assert not found.ok
    assert words in found.errors[0]


def test_open_models_stay_open_and_impossible_types_are_refused() -> None:
    assert validate_output(Loose, '{"a": 1, "b": 2}').value == Loose(a=1, b=2)  # type: ignore[call-arg]  # pyright: ignore
    assert output_schema(Loose)["additionalProperties"] is True

    class Odd:
        pass

    with pytest.raises(AgentError, match="no JSON schema can be made"):
        output_schema(Odd)
