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
from turnlog.tools import OutputType, Problems, ToolError


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


def schema_of(type_: Any) -> Any:
    return OutputType(type_).json_schema


def value_of(type_: Any, answer: Any) -> Any:
    found = OutputType(type_).validate(answer)
    assert not isinstance(found, Problems), found
    return found


def problems_of(type_: Any, answer: Any) -> Problems:
    found = OutputType(type_).validate(answer)
    assert isinstance(found, Problems), found
    return found


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
    assert schema_of(type_) == schema
    for answer in (good, f"```json\n{good}\n```", f"\n```\n{good}\n```\n", json.loads(good)):
        found = value_of(type_, answer)
        assert found == value
        assert type(found) is type(value)
    assert problems_of(type_, '{"nope": 1}').errors


def test_other_types_are_wrapped_because_providers_want_objects() -> None:
    assert schema_of(list[int]) == {
        **OBJECT,
        "properties": {"value": {"type": "array", "items": {"type": "integer"}}},
        "required": ["value"],
    }
    for answer in ('{"value": [1, 2]}', "[1, 2]", [1, 2], {"value": [1, 2]}):
        assert value_of(list[int], answer) == [1, 2]
    assert value_of(Literal["yes", "no"], '{"value": "yes"}') == "yes"
    assert value_of(str, "just text") == "just text"
    assert value_of(bool, "true") is True
    assert value_of(datetime.date, '"2026-01-02"') == datetime.date(2026, 1, 2)
    assert value_of(list[Leaf], '[{"size": 1}]') == [Leaf(size=1)]


def test_unions_of_objects_keep_their_definitions() -> None:
    schema = schema_of(Pet | Point)
    assert schema["properties"]["value"] == {"anyOf": [{"$ref": "#/$defs/Pet"}, {"$ref": "#/$defs/Point"}]}
    assert set(schema["$defs"]) == {"Pet", "Point"}
    assert value_of(Pet | Point, '{"value": {"name": "Rex"}}') == Pet(name="Rex")
    assert value_of(Pet | Point, {"x": 1, "y": 1}) == Point(1, 1)


def test_everything_wrong_is_told_at_once() -> None:
    found = problems_of(Pet, '{"age": "old", "colour": "red"}')
    assert list(found.errors) == [
        "name: is required but missing",
        'age: should be a valid integer, found "old" (text)',
        "colour: there is no such field (fields: name, age)",
    ]
    assert "Your answer does not fit" in found.correction
    assert "- name: is required but missing" in found.correction
    struct = problems_of(Leaf, '{"size": "x", "tags": [1]}')
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
    assert words in problems_of(Pet, answer).errors[0]


def test_open_models_stay_open_and_impossible_types_are_refused() -> None:
    assert value_of(Loose, '{"a": 1, "b": 2}') == Loose(a=1, b=2)  # type: ignore[call-arg]  # pyright: ignore
    assert schema_of(Loose)["additionalProperties"] is True

    class Odd:
        pass

    with pytest.raises(AgentError, match="no JSON schema can be made"):
        schema_of(Odd)


class Bank: ...


@dataclass
class Account:
    bank: Bank


@dataclass
class Customer:
    name: str
    accounts: Account


def test_a_type_without_a_schema_is_refused_with_its_field() -> None:
    with pytest.raises(AgentError) as caught:
        OutputType(Customer)
    assert caught.value.code == "ConfigInvalid"
    assert caught.value.message.startswith(
        "output type Customer has a field 'accounts' that has a field 'bank' that is of type Bank, and no"
    )
    assert "ctx.deps" not in caught.value.message


def test_a_check_of_the_users_own_may_ask_again() -> None:
    def check(pet: Pet) -> str | None:
        if pet.age > 30:
            raise ValueError("age: no dog is that old; look at the letter again")
        if pet.age < 0:
            raise ToolError("age: cannot be negative")
        return "name: is a cat's name" if pet.name == "Tom" else None

    output = OutputType(Pet, check=check)
    assert output.validate('{"name": "Rex", "age": 3}') == Pet(name="Rex", age=3)
    for answer, words in (
        ('{"name": "Rex", "age": 31}', "age: no dog is that old; look at the letter again"),
        ('{"name": "Rex", "age": -1}', "age: cannot be negative"),
        ('{"name": "Tom"}', "name: is a cat's name"),
        ('{"name": 3}', "name: should be a valid string, found 3 (an integer)"),
    ):
        found = output.validate(answer)
        assert isinstance(found, Problems)
        assert (found.errors, words in found.correction) == ((words,), True)


class Line(BaseModel):
    text: str
    amount: float | None = None
    day: datetime.date | None = None


@dataclass
class Letter:
    sender: str
    lines: list[Line]
    pages: int = 1


class Note(msgspec.Struct):
    title: str
    tags: list[str] = []


class Cat(TypedDict):
    kind: Literal["cat"]
    name: str


@dataclass
class Dog:
    kind: Literal["dog"]
    name: str


def test_what_has_come_so_far_has_the_shape_of_the_type() -> None:
    whole = '{"sender": "Ann", "lines": [{"text": "Tea", "amount": 2.5, "day": "2026-01-02"}], "pages": 2}'
    output = OutputType(Letter)
    assert output.partial("") is None
    assert output.partial("Sure") is None
    empty = output.partial("{")
    assert empty == Letter(None, None, 1)  # type: ignore[arg-type]  # pyright: ignore
    assert output.partial('```json\n{"sender": "A') == Letter("A", None, 1)  # type: ignore[arg-type]  # pyright: ignore
    early = output.partial('{"sender": "Ann", "lines": [{"text": "Tea", "day": "2026-')
    assert isinstance(early, Letter) and isinstance(early.lines[0], Line)
    assert (early.lines[0].text, early.lines[0].day, early.lines[0].amount) == ("Tea", None, None)
    assert output.partial(whole) == value_of(Letter, whole)
    for end in range(len(whole) + 1):
        found = output.partial(whole[:end])
        assert found is None or isinstance(found, Letter)


def test_partial_values_of_other_types() -> None:
    assert OutputType(Note).partial('{"title": "x", "tags": ["a", "b') == Note("x", ["a", "b"])
    assert OutputType(Note).partial('{"tags": ["a"]}') == Note(None, ["a"])  # type: ignore[arg-type]  # pyright: ignore
    assert OutputType(list[Note]).partial('{"value": [{"title": "x"}, {"ti') == [
        Note("x"),
        Note(None),  # type: ignore[arg-type]  # pyright: ignore
    ]
    assert OutputType(list[int]).partial('{"value": [1, 2') == [1, 2]
    assert OutputType(Cat).partial('{"kind": "cat", "na') == {"kind": "cat"}
    assert OutputType(str).partial('{"value": "so f') == "so f"
    union = OutputType(Dog | Line)
    assert union.partial('{"value": {"kind": "dog", "name": "Re') == Dog("dog", "Re")
    assert union.partial('{"value": {"text": "Te') == Line.model_construct(text="Te", amount=None, day=None)
    assert OutputType(dict[str, Note]).partial('{"a": {"title": "x"') == {"a": Note("x")}
