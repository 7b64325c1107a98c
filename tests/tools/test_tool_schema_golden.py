"""The schema of many signatures, word for word. A change here changes what every model is told."""

from __future__ import annotations

import datetime
import decimal
import enum
import pathlib
import typing
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field

from turnlog.tools import ToolContext, tool

NO_JSON = object()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(BaseModel):
    """A place."""

    x: float
    y: float = Field(0, description="Up is positive.")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


@dataclass
class Box:
    width: int
    title: str = "box"
    tags: list[str] = field(default_factory=list)


class Options(TypedDict):
    depth: int
    deep: NotRequired[bool]


class Leaf(msgspec.Struct):
    size: int


class Tree(msgspec.Struct, kw_only=True):
    name: str
    leaves: list[Leaf] = []


def basics(text: str, number: int, share: float, flag: bool, anything: Any, nothing: None) -> None: ...
def defaults(text: str = "x", number: int = 1, maybe: int | None = None, items: list[int] = []) -> None: ...  # noqa: B006
def keyword(a: int, *, b: str = "b", c: float) -> None: ...
def containers(
    a: list[str], b: dict[str, int], c: tuple[int, str], d: set[int], e: tuple[int, ...]
) -> None: ...
def bare(a: list, b: dict) -> None: ...  # type: ignore[type-arg]  # pyright: ignore
def abstract(a: Sequence[int], b: Mapping[str, float]) -> None: ...
def choices(a: Literal["x", "y"], b: Colour, c: Level = Level.LOW) -> None: ...
def union(a: int | str, b: list[int] | dict[str, int] | None = None) -> None: ...
def times(a: datetime.datetime, b: datetime.date, c: datetime.timedelta) -> None: ...
def special(a: uuid.UUID, b: pathlib.Path, c: bytes, d: decimal.Decimal) -> None: ...
def limits(
    a: Annotated[int, Field(ge=1, le=9, description="A digit.")],
    b: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)],
    c: Annotated[list[int], Field(min_length=1)],
) -> None: ...
def field_default(a: int = Field(5, gt=0, description="More than none.")) -> None: ...
def model(point: Point, others: list[Point]) -> None: ...
def open_model(extra: Open, point: Point) -> None: ...
def recursive(node: Node) -> None: ...
def discriminated(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...
def data_class(box: Box) -> None: ...
def typed_dict(options: Options) -> None: ...
def struct(tree: Tree, more: list[Leaf] | None = None) -> None: ...
def rest(a: int, **others: int) -> None: ...
def rest_of_anything(a: int, **others: Any) -> None: ...
def injected(ctx: ToolContext, a: int) -> None: ...
def named_like_keywords(title: str, properties: dict[str, str], type: str, schema: int) -> None: ...
def odd_default(a: Any = NO_JSON) -> None: ...


def obj(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    return {**found, "additionalProperties": False, **more}


S, I, N, B = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}  # noqa: E741
NULL = {"type": "null"}
POINT = {
    "type": "object",
    "description": "A place.",
    "properties": {"x": N, "y": {"type": "number", "description": "Up is positive.", "default": 0}},
    "required": ["x"],
    "additionalProperties": False,
}

GOLDEN: list[tuple[Any, dict[str, Any]]] = [
    (
        basics,
        obj(
            {"text": S, "number": I, "share": N, "flag": B, "anything": {}, "nothing": NULL},
            ["text", "number", "share", "flag", "anything", "nothing"],
        ),
    ),
    (
        defaults,
        obj(
            {
                "text": {**S, "default": "x"},
                "number": {**I, "default": 1},
                "maybe": {"anyOf": [I, NULL], "default": None},
                "items": {"type": "array", "items": I, "default": []},
            }
        ),
    ),
    (keyword, obj({"a": I, "b": {**S, "default": "b"}, "c": N}, ["a", "c"])),
    (
        containers,
        obj(
            {
                "a": {"type": "array", "items": S},
                "b": {"type": "object", "additionalProperties": I},
                "c": {"type": "array", "prefixItems": [I, S], "minItems": 2, "maxItems": 2},
                "d": {"type": "array", "items": I, "uniqueItems": True},
                "e": {"type": "array", "items": I},
            },
            ["a", "b", "c", "d", "e"],
        ),
    ),
    (
        bare,
        obj(
            {"a": {"type": "array", "items": {}}, "b": {"type": "object", "additionalProperties": True}},
            ["a", "b"],
        ),
    ),
    (
        abstract,
        obj(
            {"a": {"type": "array", "items": I}, "b": {"type": "object", "additionalProperties": N}},
            ["a", "b"],
        ),
    ),
    (
        choices,
        obj(
            {
                "a": {"type": "string", "enum": ["x", "y"]},
                "b": {"$ref": "#/$defs/Colour"},
                "c": {"$ref": "#/$defs/Level", "default": 1},
            },
            ["a", "b"],
            **{
                "$defs": {
                    "Colour": {"type": "string", "enum": ["red", "blue"]},
                    "Level": {"type": "integer", "enum": [1, 2]},
                }
            },
        ),
    ),
    (
        union,
        obj(
            {
                "a": {"anyOf": [I, S]},
                "b": {
                    "anyOf": [
                        {"type": "array", "items": I},
                        {"type": "object", "additionalProperties": I},
                        NULL,
                    ],
                    "default": None,
                },
            },
            ["a"],
        ),
    ),
    (
        times,
        obj(
            {
                "a": {"type": "string", "format": "date-time"},
                "b": {"type": "string", "format": "date"},
                "c": {"type": "string", "format": "duration"},
            },
            ["a", "b", "c"],
        ),
    ),
    (
        special,
        obj(
            {
                "a": {"type": "string", "format": "uuid"},
                "b": {"type": "string", "format": "path"},
                "c": {"type": "string", "contentEncoding": "base64"},
                "d": {"anyOf": [N, S]},
            },
            ["a", "b", "c", "d"],
        ),
    ),
    (
        limits,
        obj(
            {
                "a": {"type": "integer", "description": "A digit.", "minimum": 1, "maximum": 9},
                "b": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "c": {"type": "array", "items": I, "minItems": 1},
            },
            ["a", "b", "c"],
        ),
    ),
    (
        field_default,
        obj(
            {"a": {"type": "integer", "description": "More than none.", "exclusiveMinimum": 0, "default": 5}}
        ),
    ),
    (
        model,
        obj(
            {
                "point": {"$ref": "#/$defs/Point"},
                "others": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            },
            ["point", "others"],
            **{"$defs": {"Point": POINT}},
        ),
    ),
    (
        open_model,
        obj(
            {"extra": {"$ref": "#/$defs/Open"}, "point": {"$ref": "#/$defs/Point"}},
            ["extra", "point"],
            **{
                "$defs": {
                    "Open": {
                        "type": "object",
                        "properties": {"a": I},
                        "required": ["a"],
                        "additionalProperties": True,
                    },
                    # One model is open on purpose, so none is closed against its author's word.
                    "Point": {key: value for key, value in POINT.items() if key != "additionalProperties"},
                }
            },
        ),
    ),
    (
        recursive,
        obj(
            {"node": {"$ref": "#/$defs/Node"}},
            ["node"],
            **{
                "$defs": {
                    "Node": obj(
                        {
                            "name": S,
                            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
                        },
                        ["name"],
                    )
                }
            },
        ),
    ),
    (
        discriminated,
        obj(
            {
                "pet": {
                    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                    "discriminator": {
                        "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                        "propertyName": "kind",
                    },
                }
            },
            ["pet"],
            **{
                "$defs": {
                    "Cat": obj({"kind": {**S, "const": "cat"}, "lives": I}, ["kind", "lives"]),
                    "Dog": obj(
                        {"kind": {**S, "const": "dog"}, "tricks": {"type": "array", "items": S}},
                        ["kind", "tricks"],
                    ),
                }
            },
        ),
    ),
    (
        data_class,
        obj(
            {"box": {"$ref": "#/$defs/Box"}},
            ["box"],
            **{
                "$defs": {
                    "Box": obj(
                        {
                            "width": I,
                            "title": {**S, "default": "box"},
                            "tags": {"type": "array", "items": S},
                        },
                        ["width"],
                    )
                }
            },
        ),
    ),
    (
        typed_dict,
        obj(
            {"options": {"$ref": "#/$defs/Options"}},
            ["options"],
            **{"$defs": {"Options": obj({"depth": I, "deep": B}, ["depth"])}},
        ),
    ),
    (
        struct,
        obj(
            {
                "tree": obj(
                    {
                        "name": S,
                        "leaves": {"type": "array", "items": obj({"size": I}, ["size"]), "default": []},
                    },
                    ["name"],
                ),
                "more": {
                    "anyOf": [{"type": "array", "items": obj({"size": I}, ["size"])}, NULL],
                    "default": None,
                },
            },
            ["tree"],
        ),
    ),
    (rest, {**obj({"a": I}, ["a"]), "additionalProperties": I}),
    (rest_of_anything, {**obj({"a": I}, ["a"]), "additionalProperties": True}),
    (injected, obj({"a": I}, ["a"])),
    (odd_default, obj({"a": {}})),
    (
        named_like_keywords,
        obj(
            {"title": S, "properties": {"type": "object", "additionalProperties": S}, "type": S, "schema": I},
            ["title", "properties", "type", "schema"],
        ),
    ),
]


@pytest.mark.spec("T-1")
@pytest.mark.parametrize(("function", "schema"), GOLDEN, ids=[each[0].__name__ for each in GOLDEN])
def test_schema(function: Any, schema: dict[str, Any]) -> None:
    found = tool(function).spec.parameter_schema
    assert found == schema
    # Equal bytes too: names in the order of the signature, keywords in the order of the table.
    assert msgspec.json.encode(found) == msgspec.json.encode(schema)


def test_every_hint_of_this_file_resolves() -> None:
    for function, _ in GOLDEN:
        assert typing.get_type_hints(function)
